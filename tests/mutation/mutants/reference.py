# SPDX-License-Identifier: Apache-2.0
"""Mutants of the NumPy reference: arithmetic, both twins, the cache, checks, the formulas of transfers."""

from __future__ import annotations

from . import of

_TESTS = "tests/reference/test_reference_"
_NUMERICS = f"{_TESTS}numerics.py"
_TWINS = f"{_NUMERICS} {_TESTS}ideal.py {_TESTS}laws.py {_TESTS}contract.py"
_INDEX = f"{_TESTS}key_index.py {_TESTS}index_planes.py"
_CHECKS = f"{_TESTS}checks.py {_TESTS}settings.py {_TESTS}cache.py {_TESTS}finite.py"

MUTANTS = [
    *of(
        "reference/sparq_reference/numerics.py",
        _TWINS,
        [
            ("HALF_MAX = np.float32(65504.0)", "HALF_MAX = np.float32(65472.0)", "saturates too early"),
            ("np.float32(2.0**-48)", "np.float32(2.0**-47)", "flush cuts more"),
            ("np.abs(x) >= FLUSH_BELOW", "np.abs(x) > FLUSH_BELOW", "flush cuts 2**-48 itself"),
            ("CUTOFF = np.float32(-54.0)", "CUTOFF = np.float32(-53.0)", "weights end too early"),
            ("np.where(x < CUTOFF,", "np.where(x <= CUTOFF,", "the weight at the cutoff is 0"),
            ('fromhex("0x1.120b96p-7")', 'fromhex("0x1.120b98p-7")', "one bit of a coefficient of exp"),
            ('fromhex("-0x1.bd0106p-13")', 'fromhex("-0x1.bd0104p-13")', "one bit of the low part of ln 2"),
            ("for _ in range(3):", "for _ in range(2):", "a Heron step less in sqrt"),
            (
                "np.uint32(0x1FBB4F2E)",
                "np.uint32(0x1FBB4F2F)",
                "another first guess of sqrt",
                "three steps come to the same bits for every number of [1, 4), which is all there are",
            ),
            (
                "lanes[..., :4] + lanes[..., 4:]",
                "lanes[..., ::2] + lanes[..., 1::2]",
                "lanes are folded in another order",
            ),
            (
                "two[..., 0] + two[..., 1]",
                "two[..., 1] - -two[..., 0]",
                "the last two lanes change places",
                "the sum of two numbers is the same in both orders, with every rounding",
            ),
            (
                "partial = np.moveaxis(widen(partial), axis, 0)",
                "partial = np.moveaxis(widen(partial), axis, 0)[::-1]",
                "partial sums are added descending",
            ),
            (
                "missing = -n % BLOCK",
                "missing = BLOCK - n % BLOCK",
                "a block of zeros too many",
                "adding +0 to a sum that began with +0 changes no bit",
            ),
            (
                "CHUNK = 32 * BLOCK",
                "CHUNK = 31 * BLOCK",
                "another number of positions at a time",
                "it bounds memory and changes no bit, as its comment says",
            ),
            (
                "1.0 / math.sqrt(head_dim)",
                "1.0 / np.float32(math.sqrt(head_dim))",
                "the scale is rounded twice",
            ),
            (
                "np.minimum(np.maximum(widen(x), -HALF_MAX), HALF_MAX)",
                "np.minimum(widen(x), HALF_MAX)",
                "negative overflow does not saturate",
            ),
            (
                "_EXP_TINY = np.float32(-(2.0**-25))",
                "_EXP_TINY = np.float32(-(2.0**-24))",
                "exp is 1 for numbers that are not that small",
            ),
        ],
    ),
    *of(
        "reference/sparq_reference/exact.py",
        _TWINS,
        [
            (
                "return np.sort(largest, axis=-1).astype(np.int64)",
                "return largest.astype(np.int64)",
                "components are not ascending",
            ),
            (
                "numerics.group_sum(np.abs(widen(query)), n_kv_heads)",
                "numerics.group_sum(widen(query), n_kv_heads)",
                "signed components are compared",
            ),
            (
                "np.float32(head_dim) * selected)",
                "np.float32(query.shape[1]) * selected)",
                "the temperature has the number of heads for head_dim",
            ),
            (
                "np.where(nothing, numerics.scale(head_dim), numerics.sqrt(ratio))",
                "numerics.sqrt(ratio)",
                "no scale where the selected components are 0",
            ),
            (
                "else length // numerics.BLOCK * numerics.BLOCK",
                "else -(-length // numerics.BLOCK) * numerics.BLOCK",
                "the open block is quantised too",
            ),
            ("total * inv_tau[b, heads, None]", "total", "approximate scores without temperature"),
            (
                "first_local = length - min(n_local, count)",
                "first_local = length - n_local",
                "more local positions than positions",
            ),
            (
                "n_best = count - (length - first_local)",
                "n_best = count",
                "local positions come on top of top_k",
            ),
            (
                'np.argsort(-merit[b, :, :first_local], axis=-1, kind="stable")[:, :n_best]',
                'np.argsort(-merit[b], axis=-1, kind="stable")[:, :n_best]',
                "a local position can be selected twice",
            ),
            (
                "numerics.flush(numerics.weighted_sum(weights, value))",
                "numerics.weighted_sum(weights, value)",
                "tiny sums are not cut before the division",
            ),
            ("(np.float32(1) - alpha) * mean", "alpha * mean", "the mean has the wrong share"),
            (
                "sum_values(value, lengths=lengths) if value_sum is None else value_sum",
                "sum_values(value, lengths=lengths)",
                "the caller's sum of values is ignored",
            ),
            (
                "real = np.arange(start, start + block.shape[2]) < lengths[:, None]",
                "real = np.arange(start, start + block.shape[2]) <= lengths[:, None]",
                "a row beyond the length is summed",
            ),
            ("scores * numerics.scale(q.shape[1])", "scores", "exact scores are not scaled"),
        ],
    ),
    *of(
        "reference/sparq_reference/ideal.py",
        f"{_TESTS}ideal.py {_TESTS}bound.py {_TESTS}laws.py",
        [
            ("(1.0 - alpha) * mean", "(1.0 - alpha) * attended", "the mean value is left out"),
            (
                "alpha: np.ndarray = np.minimum(1.0, total / weight_sum)",
                "alpha: np.ndarray = np.minimum(1.0, total)",
                "alpha is not divided by the sum",
            ),
            (
                "np.where(nothing, 1.0, ratio) / head_dim",
                "np.where(nothing, 1.0, ratio)",
                "the temperature lacks head_dim",
            ),
            ("/ np.sqrt(query.shape[1])", "/ query.shape[1]", "scores are divided by head_dim"),
            (
                "np.where(rows < 0, 0.0, selected)",
                "selected",
                "padding counts as position 0",
                "there is padding only where all positions are selected, and alpha is then 1 anyway",
            ),
            ("n = lengths[b]", "n = lengths[0]", "every element has the length of the first"),
        ],
    ),
    *of(
        "reference/sparq_reference/index_planes.py",
        f"{_TESTS}index_planes.py",
        [
            ("index_bits - 1 - plane)) & 1", "plane)) & 1", "planes begin with the least significant"),
            ("step.max(axis=1)", "step[:, -1]", "the last block alone says how wide a component is"),
            (
                "np.ones(step.shape[0], np.float16)",
                "np.zeros(step.shape[0], np.float16)",
                "without a full block no component counts",
            ),
            (
                'np.argsort(-weight, axis=-1, kind="stable")[..., :rank]',
                'np.argsort(-weight, axis=-1, kind="stable")',
                "every component is offered",
            ),
            ("-np.arange(index_bits))", "-2 * np.arange(index_bits))", "a plane is worth a quarter"),
            (
                "offered = np.sort(offered, axis=-1)",
                "offered = np.sort(offered, axis=-1)[..., ::-1]",
                "equal planes go to the higher component",
            ),
            (
                "for t in range(planes):",
                "for t in range(index_bits):",
                "planes are read that nobody asked for",
            ),
            ("(index_bits - depth)) - 1", "(index_bits - depth))", "the middle is half a step too high"),
            ("index < head_dim, index, -1", "index < head_dim, index, 0", "padding is component 0"),
        ],
    ),
    *of(
        "reference/sparq_reference/component_order.py",
        f"{_TESTS}index_components.py",
        [
            ("-magnitude * spread,", "-spread,", "queries have no say in which components are first"),
            (".std(axis=2)", ".mean(axis=2)", "large keys are first, not those that differ"),
        ],
    ),
    *of(
        "reference/sparq_reference/exact.py",
        f"{_TESTS}index_components.py",
        [("[..., : index_components or None]", "", "components that the index has not are chosen")],
    ),
    *of(
        "reference/sparq_reference/key_index.py",
        _INDEX,
        [
            (
                "COEFFICIENT_LIMIT = {8: 2047, 4: 127, 2: 127}",
                "COEFFICIENT_LIMIT = {8: 2048, 4: 127, 2: 127}",
                "coefficients have one more step",
            ),
            ("(2**24 - 1) // (most * rank)", "(2**24 - 1) // most", "sums may pass 2**24"),
            ("(high - low) * (_ONE / most)", "(high - low) / most", "the step is divided, not multiplied"),
            ("np.minimum(code, most)", "code", "codes may pass the largest"),
            ("(widen(x) + _ROUND) - _ROUND", "np.floor(widen(x) + np.float32(0.5))", "ties are rounded up"),
            (
                "coefficient_limit(index_bits, rank or query.shape[1])",
                "coefficient_limit(index_bits, query.shape[1])",
                "planes have a limit of their own",
            ),
            ("(unit * _HALF) * middle", "unit * middle", "what was not read counts whole"),
            ("largest * (_ONE / limit)", "largest / limit", "the unit is divided, not multiplied"),
            ("index.low[j]", "index.low[0]", "every component has the offset of the first"),
            ("flat = step == 0", "flat = high == low", "a block whose step rounds to 0 is not flat"),
        ],
    ),
    *of(
        "reference/sparq_reference/cache.py",
        f"{_TESTS}cache.py {_TESTS}checks.py {_TESTS}laws.py",
        [
            ("self._value_sum.fill(0)", "pass", "a reset keeps the sum of values"),
            ("self._value_sum = self._value_sum[index]", "pass", "reorder leaves the sums where they were"),
            ("self._lengths = self._lengths[index]", "pass", "reorder leaves the lengths where they were"),
            ("return self._lengths.copy()", "return self._lengths", "lengths can be changed from outside"),
            ("view.flags.writeable = False", "pass", "keys can be changed from outside"),
            ("initial=self._value_sum)", "initial=None)", "the sum of values starts anew with each append"),
            ("checks.check_not_empty(op, self._lengths)", "pass", "attention over nothing is not refused"),
            ("self._key.fill(np.nan)", "self._key.fill(0)", "positions that are not held look like keys"),
            ("index_bits=self.spec.index_bits,", "index_bits=16,", "the key index is ignored"),
        ],
    ),
    *of(
        "reference/sparq_reference/checks.py",
        f"{_CHECKS} {_TESTS}index_planes.py",
        [
            (
                "most = index_bits * head_dim if index_bits in PLANES_OF else 0",
                "most = index_bits * head_dim",
                "keys themselves may be in planes",
            ),
            (
                "MAX_CAPACITY = 1 << 24",
                "MAX_CAPACITY = 1 << 25",
                "counts that fp32 does not hold are allowed",
            ),
            (
                "MAX_INDEX_HEAD_DIM = 1 << 16",
                "MAX_INDEX_HEAD_DIM = 1 << 17",
                "sums of an index may be inexact",
            ),
            ("bad = (array < low) | (array > high)", "bad = array > high", "no lower limit of integers"),
            (">= _HALF_INFINITY)", "> _HALF_INFINITY)", "infinity is taken for a number"),
            ("else array[b, h, : lengths[b]]", "else array[b, h]", "NaN beyond a length is refused"),
            (
                "if np.count_nonzero(after > cache.capacity):",
                "if np.count_nonzero(after >= cache.capacity):",
                "a full cache is refused",
            ),
            ("after = cache_lengths + checked", "after = checked", "capacity is not counted over appends"),
            (
                'batch, 0, high, f"[0, n_tokens={n_tokens}]"',
                'batch, 1, high, f"[0, n_tokens={n_tokens}]"',
                "an element without a new token is refused",
            ),
            (
                "high = np.full(batch, batch - 1, np.int64)",
                "high = np.full(batch, batch, np.int64)",
                "reorder takes an index beyond the batch",
            ),
            ("if n_heads % n_kv_heads:", "if False:", "heads that do not split into groups are taken"),
            ("isinstance(array, np.ma.MaskedArray)", "False", "masked arrays are taken"),
        ],
    ),
    *of(
        "reference/sparq_reference/settings.py",
        f"{_TESTS}settings.py {_TESTS}checks.py",
        [
            (
                'check_integer(op, "n_local", self.n_local, 0, top_k,',
                'check_integer(op, "n_local", self.n_local, 0, MAX_CAPACITY,',
                "n_local may pass top_k",
            ),
            (
                "if self.n_tasks > MAX_CAPACITY:",
                "if self.n_tasks > 2 * MAX_CAPACITY:",
                "too many tasks are taken",
            ),
            ('fail(op, field.name, "be given", "nothing")', "pass", "a setting that is missing is no error"),
            ("if value is not getattr(self, name):", "if False:", "settings keep NumPy's integers"),
        ],
    ),
    *of(
        "reference/sparq_reference/transfers.py",
        f"{_TESTS}transfers.py {_TESTS}readme.py {_TESTS}index_planes.py",
        [
            (
                "min(index_read_bits, read_bits), min(index_read_bits, n_components)",
                "min(index_read_bits, read_bits), n_components",
                "scales are read of components without a plane",
            ),
            (
                "2 * seq_len * head_dim + 2 * head_dim",
                "2 * seq_len * head_dim",
                "dense attention writes no new key",
            ),
            ("+ 4 * head_dim", "+ 2 * head_dim", "the mean value row is free"),
            ("seq_len // BLOCK", "-(-seq_len // BLOCK)", "the open block counts as full"),
            ("SCALE_BYTES = 4", "SCALE_BYTES = 2", "a block has no step"),
            ("2 * head_dim + 2 * seq_len", "2 * head_dim + seq_len", "H2O's sums are not written"),
            ("elements / dense_elements(", "1 / dense_elements(", "the ratio has lost its numerator"),
        ],
    ),
    *of(
        "reference/sparq_reference/window.py",
        f"{_TESTS}window.py",
        [
            ("del steps[: -self.n_recent]", "pass", "steps are never forgotten"),
            ("if s[0] <= n]", "if s[0] < n]", "the step at the kept length is forgotten"),
            (
                "[list(self._steps[i]) for i in index]",
                "[list(steps) for steps in self._steps]",
                "histories stay",
            ),
            ("total[b, :length] += shares", "total[b, :length] = shares", "the last step alone counts"),
            (
                "np.argsort(-sums[b, :first_local]",
                "np.argsort(sums[b, :first_local]",
                "the smallest sums win",
            ),
            (
                "np.arange(first_local - 1, -1, -stride)",
                "np.arange(0, first_local, stride)",
                "strides begin at the oldest",
            ),
            (
                "stride = -(-first_local // n_best)",
                "stride = first_local // n_best",
                "more are read than were asked for",
            ),
            (
                "held not in (0, n_recent)",
                "held != n_recent",
                "a cache without a history is refused",
            ),
        ],
    ),
    *of(
        "reference/sparq_reference/row_codes.py",
        f"{_TESTS}row_codes.py",
        [
            ("np.uint32(0x7FFF) + odd", "np.uint32(0)", "scales are cut"),
            ("np.abs(x).max(axis=-1)", "x.max(axis=-1)", "negative components have no scale"),
            (
                "np.minimum(np.maximum(scale, SCALE_RANGE[0]), SCALE_RANGE[1])",
                "np.maximum(scale, SCALE_RANGE[0])",
                "scales have no upper end",
            ),
            ("np.minimum(np.maximum(code, -_LIMIT), _LIMIT)", "code", "codes wrap"),
            (
                "    if row_bits == 16:\n        return rows",
                "    if False:\n        return rows",
                "rows of 16 bits are rounded",
            ),
            (
                "n_groups = -(-head_dim // GROUP)",
                "n_groups = head_dim // GROUP + 1",
                "an empty group has a scale",
            ),
        ],
    ),
]
