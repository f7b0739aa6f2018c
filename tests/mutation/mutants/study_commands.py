# SPDX-License-Identifier: Apache-2.0
"""Mutants of the study's commands, its plans and contexts, and of what it shows."""

from __future__ import annotations

from . import of

_ACCURACY = "study/sparq_study/accuracy"
_TESTS = "study/tests/accuracy/test_"
_ORACLE = f"{_TESTS}accuracy_methods.py::test_stateless_method_agrees_with_its_oracle"
_PLANES = f"{_TESTS}accuracy_key_index.py::test_planes_and_their_scores_equal_the_reference_bit_for_bit"

MUTANTS = [
    *of(
        "study/accuracy.py",
        "study/tests/accuracy/test_accuracy_cli.py::test_plan_from_arguments "
        "study/tests/accuracy/test_accuracy_cli.py::test_errors_exit_2",
        [
            (
                'sizes["items"] = args.items',
                'sizes["items"] = sizes.get("items", 1)',
                "--items changes nothing",
            ),
            (
                "seed = plan.seed if args.seed is None else args.seed",
                "seed = plan.seed",
                "--seed changes nothing",
            ),
        ],
    ),
    *of(
        "study/alisa.py",
        "study/tests/alisa/test_alisa.py::test_the_document_is_what_the_lines_say",
        [
            (
                "all(b >= a for a, b in zip(of, of[1:]))",
                "all(b > a for a, b in zip(of, of))",
                "no series grows",
            ),
            (
                "return [a / b for a, b in zip(s, s[1:])]",
                "return [b / a for a, b in zip(s, s[1:])]",
                "factors upside down",
            ),
        ],
    ),
    *of(
        "study/alisa_lines.py",
        "study/tests/alisa/test_alisa.py::test_lines_are_the_simulators_of_today "
        "study/tests/alisa/test_alisa.py::test_the_overhead_is_the_largest_that_is_needed",
        [
            (
                "max((dense / largest - sparse) / w.n_output",
                "min((dense / largest - sparse) / w.n_output",
                "the least overhead will do",
            ),
            ('"tokens": work.batch * work.n_output,', '"tokens": work.n_output,', "tokens of one sequence"),
        ],
    ),
    *of(
        "study/alisa_device.py",
        "study/tests/alisa/test_alisa_device.py",
        [
            (
                "away = min(max(0, held - hot_rows), older)",
                "away = max(0, held - hot_rows)",
                "more rows are away than there are",
            ),
            (
                "[s for s in steps if s.held <= n_hot]",
                "[s for s in steps if s.held < n_hot]",
                "a full buffer is phase II",
            ),
            ("hit_rate = 1 - line", "hit_rate = line", "misses are hits"),
        ],
    ),
    *of(
        "study/capture.py",
        "study/tests/traces/test_capture.py",
        [
            (
                "start = tokens.shape[1] - n_steps",
                "start = tokens.shape[1] - n_steps - 1",
                "a step too early",
            ),
            ("[0].transpose(1, 0, 2)", "[0][:, ::-1].transpose(1, 0, 2)", "queries backwards"),
            ("model.set_attn_implementation(before)", "pass", "the model keeps the recording attention"),
            ("enabled=prefill_bits == 16", "enabled=False", "all products in float32"),
            ("**about, prefill_bits=bits", "**about", "a trace's products in float32"),
        ],
    ),
    *of(
        "study/weights.py",
        "study/tests/test_weights.py",
        [
            (
                "(of_16_bits.exp() * (of_16_bits - found))",
                "(found.exp() * (of_16_bits - found))",
                "the divergence is from the other model",
            ),
            ('"dense": enable_dense, "sparq": enable', '"dense": enable, "sparq": enable', "all is SparQ"),
        ],
    ),
    *of(
        "study/reuse.py",
        "study/tests/traces/test_reuse_command.py",
        [
            (
                "reuse.misses[first:] / trace.n_kv_heads",
                "reuse.misses[first:]",
                "misses of all heads are those of one",
            ),
            (
                'if line["kind"] != "synthetic"]',
                'if line["kind"] == "synthetic"]',
                "made traces are shown for recorded ones",
            ),
            ("k // 4 if a.local is None else a.local", "k // 4", "--local changes nothing"),
            (
                """f"{line['model']}, {line['start']:,} positions before\"""",
                """f"{line['model']}\"""",
                "lengths of a model are in one table",
            ),
        ],
    ),
    *of(
        "study/rows.py",
        f"{_TESTS}rows.py",
        [
            (
                "end = trace.start + first + n",
                "end = trace.start + first",
                "the last positions are not there",
            ),
            (
                "error(output, dense)",
                'error(output, outputs["fp16"])',
                "the error against dense is that against fp16 rows",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/coverage.py",
        "study/tests/accuracy/test_accuracy_intervals.py::test_intervals_hold_the_truth_often_enough "
        "study/tests/accuracy/test_accuracy_intervals.py::test_published_simulation_is_what_the_code_gives",
        [
            (
                "(low <= truth) & (truth <= high)",
                "(low <= truth) | (truth <= high)",
                "every interval holds the truth",
            ),
            ("low, high = low[shown], high[shown]", "high[~shown] = 1e9", "no interval: a wide one"),
        ],
    ),
    *of(
        f"{_ACCURACY}/statistics.py",
        "study/tests/accuracy/test_accuracy_results.py::test_statistics_of_known_distributions "
        "study/tests/accuracy/test_accuracy_results.py::test_agreement",
        [
            (".mean(-1).pow(2) - 3", ".mean(-1).pow(2)", "a Gaussian has a kurtosis of 3"),
            ("both.sum(-1) / min(k, exact.shape[-1])", "both.sum(-1) / k", "a short text never agrees"),
            ("centred.abs() > n_sigma", "centred > n_sigma", "one tail counts"),
        ],
    ),
    *of(
        f"{_ACCURACY}/text.py",
        "study/tests/accuracy/test_accuracy_tasks.py::test_excerpts_are_plain_and_mixed",
        [
            (
                "for group in zip(*by_genre) for path in group",
                "for group in by_genre for path in group",
                "genres do not alternate",
            )
        ],
    ),
    *of(
        f"{_ACCURACY}/trace_tokens.py",
        "study/tests/traces/test_capture.py::test_what_is_decoded",
        [
            ("return context + again[:n_steps]", "return context + again", "more steps than asked for"),
            ("before = n_tokens - n_steps", "before = n_tokens", "a longer text than asked for"),
        ],
    ),
    *of(
        f"{_ACCURACY}/document.py",
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say "
        "study/tests/accuracy/test_accuracy_documents.py::test_differences_of_a_run_that_goes_on",
        [
            (
                "gap = report.difference(items[0], items[1], metric)",
                "gap = report.difference(items[1], items[0], metric)",
                "second minus first",
            ),
            (
                'worst = max(line["max_abs_log_prob_error"]',
                'worst = min(line["max_abs_log_prob_error"]',
                "the worst deviation is the best",
            ),
            ("if i in both or not partial", "if True", "a part is compared with all"),
        ],
    ),
    *of(
        f"{_ACCURACY}/plan.py",
        "study/tests/accuracy/test_accuracy_cli.py::test_the_held_out_plan "
        "study/tests/accuracy/test_accuracy_cli.py::test_plan_from_arguments "
        "study/tests/accuracy/test_accuracy_tasks.py::test_plan_errors "
        "study/tests/accuracy/test_accuracy_results.py::test_runner_writes_one_line_per_task_item_question_and_method",
        [
            (
                "return questions[-1:] if self.decode_only else questions",
                "return questions",
                "the held-out plan asks both questions",
            ),
            ('if key != "items"}', "}", "items are a size of a task's build"),
            (
                'dict.fromkeys(["dense", *self.methods])',
                'dict.fromkeys([*self.methods, "dense"])',
                "dense is last",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/plots.py",
        "study/tests/accuracy/test_accuracy_results.py::test_every_default_method_has_a_family_of_its_own_name",
        [
            (
                "if re.match(entry.pattern, method):",
                "if re.search(entry.pattern, method):",
                "a method matched to SparQ is SparQ",
            )
        ],
    ),
    *of(
        f"{_ACCURACY}/runner.py",
        f"{_TESTS}accuracy_results.py",
        [
            (
                'if line.get("revision", 1) != revisions[method]:',
                "if False:",
                "lines of older arithmetic are kept",
            ),
            ("jobs = jobs[part::n_parts]", "jobs = jobs[part:]", "processes do the same work"),
            ('(plan["seed"], plan.get(', "(plan.get(", "a file goes on with another seed"),
            (', plan.get("kernels", False))', ")", "lines of formulas go on by kernels"),
            ("total[key] = total.get(key, 0) + value", "total[key] = value", "the last probe alone counts"),
            (
                "(methods[label].window() or 0) > item.distance",
                "(methods[label].window() or 0) >= item.distance",
                "a window holds what lies before it",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/__init__.py",
        "study/tests/accuracy/test_accuracy_methods.py::test_errors_of_parameters "
        "study/tests/accuracy/test_accuracy_methods.py::test_text_form_round_trips",
        [("if key not in fields or not separator:", "if key not in fields:", "a parameter needs no value")],
    ),
    *of(
        f"{_ACCURACY}/methods/fixed.py",
        "study/tests/accuracy/test_accuracy_methods.py::test_stateless_method_agrees_with_its_oracle",
        [
            ("> span.positions() - self.top_k\n", ">= span.positions() - self.top_k\n", "a position more"),
            ("(position < self.sinks)", "(position <= self.sinks)", "a sink more"),
            (
                "torch.div(query + self.top_k, self.top_k",
                "torch.div(query + self.top_k + 1, self.top_k",
                "a longer stride",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/calibrated.py",
        f"{_ORACLE}[double_sparsity:r=4,k=20] "
        f"{_ORACLE}[fasa:r=4,k=20] "
        f"{_ORACLE}[loki:r=4,k=20] "
        "study/tests/accuracy/test_accuracy_methods.py::test_errors_of_parameters",
        [
            (
                "top_positions(calibration.importance, self.rank, lower_first=True)",
                "top_positions(-calibration.importance, self.rank, lower_first=True)",
                "the least important channels are fixed",
            ),
            ("if self.rank % 2:", "if False:", "half a pair of channels is taken"),
            (".repeat(1, 2)", ".repeat_interleave(2, 1)", "a pair is of neighbours"),
            ("[..., : self.rank]", "[..., -self.rank :]", "the last axes score"),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/calibration.py",
        f"{_ORACLE}[double_sparsity:r=4,k=20] {_ORACLE}[fasa:r=4,k=20] {_ORACLE}[loki:r=4,k=20]",
        [
            ("vectors.flip(-1)", "vectors", "axes begin with the smallest"),
            (
                "self.query.abs().mean((1, 2)) * self.key.abs().mean(1)",
                "self.key.abs().mean(1)",
                "importance is that of the keys alone",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/mass.py",
        f"{_ORACLE}[top_p:r=4,k=20,p=0.3] "
        "study/tests/accuracy/test_accuracy_methods.py::test_errors_of_parameters",
        [
            ("if not 0 < self.p <= 1:", "if not 0 <= self.p <= 1:", "no mass at all is taken"),
            (
                "before = before - ordered.values.clamp(min=0)  #",
                "pass  #",
                "the position that reaches the mass is left out",
            ),
            ("needed) | is_local", "needed)", "recent positions are left out"),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/pages.py",
        f"{_ORACLE}[quest:k=48] "
        f"{_ORACLE}[hsa:r=3,k=20] "
        "study/tests/accuracy/test_accuracy_methods.py::test_transfer_formula",
        [
            (
                "of_high, of_low = self._parts(span.query)",
                "of_low, of_high = self._parts(span.query)",
                "the bounds of a page change places",
            ),
            (
                "span.positions() // self.page\n",
                "(span.positions() + 1) // self.page\n",
                "the newest page is the next one",
            ),
            ("is_high = query.sum(1) > 0", "is_high = query.sum(1) < 0", "the other bound is read"),
            (
                "return min(self.rank, head_dim)",
                "return 2 * min(self.rank, head_dim)",
                "both bounds are counted",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/planes.py",
        f"{_ORACLE}[planes:r=6,k=20,bits=9] {_PLANES} "
        "study/tests/accuracy/test_accuracy_methods.py::test_transfer_formula",
        [
            (
                "(~read * size / 2).sum(-1)",
                "(~read * size * 0).sum(-1)",
                "planes that are not read count nothing",
            ),
            (
                "(span.positions()[:, 0] + 1) // BLOCK",
                "span.positions()[:, 0] // BLOCK",
                "a block that is just full is not counted",
            ),
            ("transfers.SCALE_BYTES / BLOCK", "0 / BLOCK", "scales are read for nothing"),
            ("step.cummax(1).values", "step.cumsum(1)", "the contract's steps are a mean"),
            ("unit * 0.5 * middle", "unit * 0.0 * middle", "the contract's middle is left out"),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/key_index.py",
        f"{_TESTS}accuracy_key_index.py",
        [
            (
                "step = to_half((high - low) * (one / most))",
                "step = to_half((high - low) / most)",
                "a division in place of a multiplication",
            ),
            (
                "return coefficient, largest * (one / limit)",
                "return coefficient, largest / limit",
                "a unit by division",
            ),
            ("torch.minimum(code, most)", "code", "codes are not cut"),
        ],
    ),
    *of(
        f"{_ACCURACY}/methods/rows.py",
        f"{_TESTS}accuracy_rows.py",
        [
            (".clamp_(-127, 127)", ".clamp_(-128, 127)", "a code of -128"),
            (
                "torch.tensor(255.0 / (2**index_bits - 1))",
                "torch.tensor(256.0 / 2**index_bits)",
                "fine steps of 16",
            ),
            (
                '"int8_row": 2, "int8_block": 1',
                '"int8_row": 2, "int8_block": 2',
                "keys have scales of their own",
            ),
        ],
    ),
    *of(
        f"{_ACCURACY}/tasks/item.py",
        f"{_TESTS}accuracy_tasks.py",
        [
            (
                "return out + filler[at:], len(filler) - at",
                "return out + filler[at:], len(filler)",
                "the distance is all of the text",
            ),
            (
                "max(len(probe.prompt) for probe in self.probes)",
                "min(len(probe.prompt) for probe in self.probes)",
                "the shortest prompt counts",
            ),
            ("sorted(pieces, key=lambda piece: piece[0])", "pieces", "pieces in no order"),
            (
                "found[(index - i) % len",
                "found[(index + i) % len",
                "a long text begins with what comes later",
            ),
            ("[1]) + tokens\n", "[1])\n", "a long text is one excerpt"),
        ],
    ),
    *of(
        f"{_ACCURACY}/tasks/language.py",
        f"{_TESTS}accuracy_tasks.py",
        [
            (
                "(dense.exp() * (dense - log_probs)).sum()",
                "(log_probs.exp() * (log_probs - dense)).sum()",
                "KL the other way round",
            ),
            (
                "            if not hit:\n                break\n",
                "            if not hit:\n                continue\n",
                "a run goes on behind a miss",
            ),
            ("tokens[: length - 1]", "tokens[:length]", "the prompt is in the text too"),
        ],
    ),
    *of(
        f"{_ACCURACY}/tasks/words.py",
        f"{_TESTS}accuracy_tasks.py",
        [
            (
                "0.5 * (common[:, None] == rare[None, :])",
                "1.0 * (common[:, None] == rare[None, :])",
                "a tie is right",
            ),
            (
                'chosen.setdefault(words.encode(f" {word}")[0], word)',
                'chosen[words.encode(f" {word}")[0]] = word',
                "the last word with a token is taken",
            ),
        ],
    ),
    *of(
        "study/alisa_plots.py",
        "study/tests/alisa/test_alisa.py::test_pictures_show_the_lines",
        [
            ('line["tokens"] / line[name] for line in own', "line[name] for line in own", "bars are seconds"),
            ('costs = variants()["stated"]', 'costs = variants()["figure 1"]', "phases are of other costs"),
            (
                'line["seconds"][0] / s for s',
                's / line["seconds"][0] for s',
                "a speed-up is its inverse",
            ),
        ],
    ),
    *of(
        "study/sparq_study/alisa/published.py",
        "study/tests/alisa/test_alisa.py::test_the_document_is_what_the_lines_say",
        [('float(row["high"])', 'float(row["low"])', "ranges have one end")],
    ),
]
