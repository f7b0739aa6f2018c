# SPDX-License-Identifier: Apache-2.0
"""Mutants of the studies beside accuracy: traces, buffers of hot rows, ALISA's schedule."""

from __future__ import annotations

from . import of

MUTANTS = [
    *of(
        "study/sparq_study/traces/file.py",
        "study/tests/traces/test_trace_files.py",
        [
            ("at = slice(start + i, start + i + 1)", "at = slice(i, i + 1)", "steps append the prompt again"),
            (
                "layer.query[:steps, : heads * group_size]",
                "layer.query[:steps, :heads]",
                "a KV head loses its query heads",
            ),
            ("if not np.isfinite(array).all():", "if False:", "NaN passes"),
            ("if first.query.shape[1] % n_kv_heads:", "if False:", "heads that fit no group pass"),
            ("if number in wanted\n", "\n", "layers that were not asked for stay"),
            ("for missing in sorted(wanted - names):", "for missing in ():", "a missing array is not named"),
            ("!= FORMAT:", "[:9] != FORMAT[:9]:", "another version of the format is read"),
        ],
    ),
    *of(
        "study/sparq_study/traces/reuse.py",
        "study/tests/traces/test_reuse.py",
        [
            ("self.last_step[slots[slots >= 0]] = step", "pass", "a row that is hit does not become young"),
            ("self._slot[left[left >= 0]] = -1", "pass", "a row that left is still found"),
            (
                'np.argsort(self.last_step, kind="stable")',
                'np.argsort(-self.last_step, kind="stable")',
                "the row selected last makes room",
            ),
            (
                "chosen[chosen < length - n_hot]",
                "chosen[chosen <= length - n_hot]",
                "the window is one short",
            ),
            ("(missing != length - 1)", "(missing == missing)", "the new token's row is read"),
            ("self.hits[first:].sum()", "self.hits.sum()", "steps that fill the buffer count as hits"),
            ("far - n_far_missing", "len(chosen) - n_far_missing", "local rows are hits"),
        ],
    ),
    *of(
        "study/sparq_study/traces/selection.py",
        "study/tests/traces/test_reuse.py",
        [
            (
                "coefficient = key_index.round_to_integer(weight * inverse)",
                "coefficient = weight * inverse",
                "coefficients are no integers",
            ),
            ("scores *= inv_tau[:, :, None]", "pass", "there is no temperature"),
            (
                "full = length // BLOCK * BLOCK",
                "full = n_blocks * BLOCK",
                "a step has blocks that became full later",
            ),
            (
                "kv * group_size : (kv + 1) * group_size]",
                "0:group_size]",
                "every KV head has the queries of the first",
            ),
        ],
    ),
    *of(
        "study/sparq_study/traces/synthetic.py",
        "study/tests/traces/test_reuse.py",
        [
            ("(1 - hit_rate)", "hit_rate", "hits miss"),
            ("if step:", "if step > 1:", "the second step asks for the group of the first"),
            ("np.tile(signs[kv], (size, 1))", "np.repeat(signs[kv], size, 0) * 0", "no key is in a group"),
        ],
    ),
    *of(
        "study/sparq_study/alisa/schedule.py",
        "study/tests/alisa/test_scheduler.py",
        [
            ("np.where(step >= self.p1, away, 0.0)", "away", "phase I is left out"),
            (
                "np.where(step >= self.p2, away",
                "np.where(step >= self.p1, away",
                "phase III begins with phase II",
            ),
            (
                "loaded = attended(away) - made_again",
                "loaded = attended(away)",
                "what is made again is loaded too",
            ),
            ("size * (loaded + stored + in_slow", "size * (loaded + in_slow", "nothing is stored"),
            ("if need > limit * (1 + 1e-9) or limit < 0:", "if limit < 0:", "what does not fit passes"),
            (
                "return self.prefill + float(self.steps.sum())",
                "return float(self.steps.sum())",
                "the prompt takes no time",
            ),
            ("(self.index_bits + 0.5) / 32", "self.index_bits / 32", "a block's scale takes no room"),
            (
                "slow_share * work.token_bytes * (np.minimum(kept, n - 1) + stored)",
                "slow_share * work.token_bytes * kept",
                "new tokens are not stored",
            ),
        ],
    ),
    *of(
        "study/sparq_study/alisa/costs.py",
        "study/tests/alisa/test_scheduler.py",
        [
            (
                "work.machine.fast_bytes * (1 - self.reserve)",
                "work.machine.fast_bytes",
                "nothing is kept in reserve",
            ),
            ("np.maximum(read, product)", "read + product", "reading and computing do not overlap"),
            (
                "        return float(work.batch * work.model.layers * 2 * work.model.hidden**2)",
                "        return float(work.batch * work.model.layers * work.model.hidden**2)",
                "values cost nothing to make again",
            ),
            (
                '"input-slow": (0.0, 0.5)',
                '"input-slow": (0.0, 1.0)',
                "an input has the bytes of a key and a value",
            ),
        ],
    ),
    *of(
        "study/sparq_study/alisa/machine.py",
        "study/tests/alisa/test_scheduler.py",
        [
            (
                "4 * self.hidden**2 + self.ffn_matrices",
                "3 * self.hidden**2 + self.ffn_matrices",
                "a layer has three attention matrices",
            ),
            (
                "return 4 * self.layers * self.hidden",
                "return 2 * self.layers * self.hidden",
                "keys have values' bytes alone",
            ),
            ("return self.n_input + self.n_output", "return self.n_output", "the prompt takes no room"),
        ],
    ),
    *of(
        "study/sparq_study/alisa/optimise.py",
        "study/tests/alisa/test_scheduler.py",
        [
            (
                "if run.seconds < timeline.seconds:",
                "if run.seconds > timeline.seconds:",
                "the slowest schedule is the best",
            ),
            ("if alpha > 1:", "if False:", "an index that does not fit is no error"),
            (
                "wider = float(alpha / (1 - share))",
                "wider = float(alpha)",
                "inputs in fast memory take no room",
            ),
        ],
    ),
]
