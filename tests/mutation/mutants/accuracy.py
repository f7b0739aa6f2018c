# SPDX-License-Identifier: Apache-2.0
"""Mutants of the accuracy study: methods, the engine, intervals, tasks."""

from __future__ import annotations

from . import of

_METHODS = "study/tests/accuracy/test_accuracy_methods.py"
_INTERVALS = "study/tests/accuracy/test_accuracy_intervals.py"
_ENGINE = "study/tests/accuracy/test_accuracy_engine.py"
_COMPONENTS = "study/tests/accuracy/test_accuracy_components.py"
_TASKS = "study/tests/accuracy/test_accuracy_tasks.py"
_RESULTS = "study/tests/accuracy/test_accuracy_results.py"
_REVISION = f"{_RESULTS}::test_lines_of_a_former_revision_are_left_out_and_computed_anew"

MUTANTS = [
    *of(
        "study/sparq_study/accuracy/methods/stateful.py",
        _METHODS,
        [
            (
                'state["sum"] = state["sum"] + weight.sum(1)',
                "pass",
                "H2O never adds the weights of decode steps",
            ),
            ("weight.argmin(1, keepdim=True)", "weight.argmax(1, keepdim=True)", "H2O evicts the heaviest"),
            (
                'state["sum"] + weight.sum(1)',
                'state["sum"] + weight.sum(1) / 2',
                "weights of decode steps are halved",
            ),
            ("index > position - self.local", "index >= position - self.local", "one more local position"),
            (
                'state["index"], state["sum"] = index, total',
                'state["sum"] = total',
                "H2O evicts for one step",
            ),
            ('(state["next"] + 1) % self.n_recent', 'state["next"]', "ALISA overwrites one row"),
            (
                "row.zero_().scatter_(1, index, weight)",
                "row.scatter_(1, index, weight)",
                "old weights stay in ALISA's window",
            ),
            (
                "return self.top_k - self.top_k // 2",
                "return self.top_k // 2",
                "odd top_k: ALISA reads one less",
            ),
            (
                "torch.softmax(scores, dim=-1)\n            outputs",
                "torch.softmax(scores / 2, dim=-1)\n            outputs",
                "scores are halved",
            ),
            ("scores = 2 * seq_len", "scores = seq_len", "sums are read and not written"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/methods/sparq.py",
        f"{_METHODS} study/tests/accuracy/test_accuracy_key_index.py {_REVISION}",
        [
            ("(1 - alpha) * mean[:, None]", "mean[:, None]", "the mean has full weight"),
            (
                "span.layer < self.mean_value_from",
                "span.layer <= self.mean_value_from",
                "one layer more without a mean",
            ),
            ("lower_first=self._ties_by_index", "lower_first=False", "ties of an index go to any position"),
            ("span.positions() - self.local", "span.positions() - self.local - 1", "one more local position"),
            (
                "(span.positions() + 1) // BLOCK * BLOCK",
                "span.positions() // BLOCK * BLOCK",
                "the block that a query completes is not in the index",
            ),
            ("share.sqrt() / span.scale", "share / span.scale", "the temperature has no root"),
            (
                "torch.where(kept > 0, kept / total,",
                "torch.where(kept >= 0, kept / total,",
                "a query of zeros gives NaN",
            ),
            ("query = span.query * used", "query = span.query", "all components are used"),
            ("return 1 if self.index_bits == 16 else 2", "return 1", "old results of an index count as new"),
            (
                "0 if self.mean_value_from < 0 else mean_value",
                "mean_value",
                "a mean that is not read is counted",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/methods/sparq.py",
        _COMPONENTS,
        [
            (": span.first].numpy()", ":].numpy()", "keys behind the prompt choose components too"),
            (
                "order[0, :, : self.index_components]",
                "order[0, :, -self.index_components :]",
                "the key index has the components that matter least",
            ),
            (
                "            self.indexed(span)  # by",
                "            pass  # by",
                "components are chosen by keys that are rounded",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/methods/base.py",
        _METHODS,
        [
            ("span.layer < self.dense_layers", "span.layer <= self.dense_layers", "one layer more is dense"),
            (
                "torch.arange(self.seq_len)[None, :] <= self.positions()",
                "torch.arange(self.seq_len)[None, :] < self.positions()",
                "a query does not see itself",
            ),
            (
                "cached * self.kv_bits / 16 + other",
                "(cached + other) * self.kv_bits / 16",
                "sums shrink with the bits of the cache",
            ),
            ("<= budget:", "< budget:", "a method that moves exactly as much does not match"),
            ("equal.cumsum(-1) <= count", "equal.cumsum(-1) < count", "one tie too few is taken"),
            ("dense / self.transfer(", "self.transfer(", "compression is a number of elements"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/methods/quantise.py",
        _METHODS,
        [
            (".clamp_(0, 2**self.bits - 1)", "", "values outside the range are not clamped"),
            ("(2**bits - 1)\n", "2**bits\n", "one step too many"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/engine.py",
        _ENGINE,
        [
            ("weight_sum[:, :first] = old.weight_sum", "pass", "sums of a prefix are forgotten"),
            (
                "recent = torch.cat([before, recent], 1)[:, -N_RECENT:]",
                "pass",
                "rows of a prefix are forgotten",
            ),
            (
                "> torch.arange(first + start, end)[:, None]",
                ">= torch.arange(first + start, end)[:, None]",
                "prefill does not see itself",
            ),
            (
                "torch.arange(start, start + len(tokens))[None]",
                "torch.arange(len(tokens))[None]",
                "every span begins at position 0",
            ),
            (
                "dim**-0.5 if scaling is None else scaling",
                "dim**-0.5",
                "the model's own scale is ignored",
                "every model of the tests has 1 / sqrt(head_dim)",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/engine.py",
        f"{_ENGINE}::test_a_prefill_in_bfloat16_is_near_and_what_follows_is_float32",
        [
            ("self.prefill_bits == 16 and not record", "False", "no prefill is in bfloat16"),
            ("self.prefill_bits == 16 and not record", "self.prefill_bits == 16", "one with a record is too"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/kernels.py",
        "study/tests/accuracy/test_accuracy_kernels.py",
        [
            (
                "            cache.truncate(np.array([self.prefix.length]))\n",
                "            pass\n",
                "spans stay",
            ),
            ("if not isinstance(method, SparQ):", "if False:", "other methods are SparQ"),
            (
                '"mean_value_from", "index_bits")',
                '"index_bits")',
                "layers without a mean value are asked of formulas",
            ),
            ("n_local=method.local,", "n_local=0,", "the last positions are not kept"),
            (
                "0 <= method.mean_value_from <= layer",
                "method.mean_value_from <= layer",
                "no mean value is one",
            ),
            (
                "<= method.mean_value_from <= layer",
                "<= method.mean_value_from",
                "every layer has the mean value",
            ),
            ("index_bits=index_bits,", "index_bits=16,", "every key index has 16 bits"),
            ("> 1e-6:", "> 1e6:", "another scale is taken for that of the kernels"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/engine.py",
        "study/tests/accuracy/test_accuracy_kernels.py",
        [
            ("self._caches.prefix is not prefix or ", "", "a text has the caches of another"),
            (" or self._caches.room < n_tokens", "", "a long span has no room"),
            (
                "self.kernels and has_kernel(method)",
                "self.kernels",
                "kernels are asked for what they have not",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/engine.py",
        _COMPONENTS,
        [
            (
                "query[:, :, -LAST_QUERIES:]",
                "query[:, :, :LAST_QUERIES]",
                "the first queries choose components",
            ),
            (
                "torch.cat([old.magnitudes, new], 1)[:, -LAST_QUERIES:] if old else new",
                "new",
                "queries of a prefix choose no components",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/measure.py",
        _INTERVALS,
        [
            ("LEVEL = 0.985", "LEVEL = 0.95", "intervals are shorter than they say"),
            ("t_quantile(level, n - 1)", "t_quantile(level, n)", "one degree of freedom too many"),
            ("pseudo.std(-1, ddof=1)", "pseudo.std(-1)", "the spread is that of all items"),
            ("- (n - 1) * (total_over", "- n * (total_over", "pseudo-values are wrong"),
            (
                "pseudo_values(*arrays[:2]) - pseudo_values(*arrays[2:])",
                "pseudo_values(*arrays[:2])",
                "a difference is not paired",
            ),
            ("over.sum() / under.sum()", "(over / under).mean()", "a mean of ratios"),
            ("/ math.sqrt(n)", "/ n", "intervals shrink too fast"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/report.py",
        f"{_INTERVALS} {_RESULTS}",
        [
            ("FEWEST, ENOUGH = 3, 5", "FEWEST, ENOUGH = 3, 4", "four items are enough for a verdict"),
            ("gap.low > 0 or gap.high < 0", "gap.low > 0", "nothing is clearly lower"),
            ('(gap.value > 0) == (compared.better == "low")', "(gap.value > 0)", "higher is always worse"),
            ("sorted(set(items) & set(base))", "sorted(items)", "items that one method lacks are compared"),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/tasks/retrieval.py",
        _TASKS,
        [
            ("DEEPEST = 0.55", "DEEPEST = 0.95", "what is asked for stands in the window"),
            ("[scored]\n", "\n", "digits that are given count as found"),
            ("float(hits.all().item())", "float(hits.any().item())", "one digit right is all right"),
            ("cities[6:], 3)", "cities[:2], 3)", "a city is told of in two ways"),
            (
                "_depth(kind / len(kinds), 6) - _depth(0, 6)",
                "0.0 * kind",
                "all that is told stands in clumps",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/later.py",
        "study/tests/accuracy/test_accuracy_later.py",
        [
            (
                "found[LATER_LEVELS[1]], KL).value",
                "found[LATER_LEVELS[0]], KL).value",
                "the goal is the smallest budget's KL",
            ),
            (
                "report.difference(items, base, metric)",
                "report.difference(base, items, metric)",
                "ours less theirs",
            ),
            ("(more / less) ** part", "(more / less) * part", "bytes between two levels follow no power law"),
            ("if kl >= points[0][1]:", "if kl > points[0][1]:", "the first level itself is passed over"),
            ('if lines[0]["model"] == CHOSEN_ON', "", "the goal is that of any model"),
            ("share * dense / 1e6", "dense / 1e6", "each method moves all bytes"),
            ("max(reach, key=", "min(reach, key=", "the settings of most bytes are shown"),
            ("is kind and method.index_bits == bits", "is kind", "a model in float32 counts as settings"),
            ("or not report.has_interval(report.estimate(items, KL))", "", "one context is enough"),
            (
                'getattr(method, "index_components", 0)',
                "False",
                "settings whose index has some of the components are shown too",
            ),
            (
                "report.estimate({i: of[i] for i in both}, KL)",
                "report.estimate(of, KL)",
                "all components have contexts that some have not",
            ),
        ],
    ),
]
