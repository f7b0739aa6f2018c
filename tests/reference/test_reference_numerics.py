# SPDX-License-Identifier: Apache-2.0
"""numerics.py: exp, sqrt, narrowing and the ordered sums, against float64 and against plain loops."""

from __future__ import annotations

import os
import zlib

import contract_oracle as oracle
import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import numerics

F = np.float32
#: strides over the bit patterns of [-2**-10, 0] and of [-87, -2**-10], where exp happens: 1.0 and 10.6
#: million numbers; all 1.1 thousand million of them take half a minute, at night
EXP_STRIDES = (1, 1) if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else (997, 13)
EXP_EDGE = -(2.0**-10)


def numbers(first: int, last: int, stride: int = 1) -> np.ndarray:
    """float32 of the bit patterns first .. last."""
    return np.arange(first, last + 1, stride, dtype=np.uint32).view(F)


def bits(x: float) -> int:
    return int(np.asarray(x, F).view(np.uint32))


def ulp_error(got: np.ndarray, true: np.ndarray) -> float:
    """Largest error in units of the last place of the fp32 number nearest to `true`."""
    return float((np.abs(got - true) / np.spacing(true.astype(F)).astype(float)).max())


def check_exp(exp, strides: tuple[int, int] = EXP_STRIDES) -> float:
    """Monotone, normal, within 2 ulp over [-87, 0]; returns the largest error in ulp."""
    worst, above, count = 0.0, F(1), 0
    for first, last, stride in zip((bits(-0.0), bits(EXP_EDGE)), (bits(EXP_EDGE) - 1, bits(-87.0)), strides):
        for start in range(first, last + 1, stride << 20):
            x = numbers(start, min(last, start + (stride << 20) - 1), stride)  # descending
            y = exp(x)
            count += len(x)
            assert y[0] <= above and (y[1:] <= y[:-1]).all(), f"not monotone near {x[0]}"
            assert (y >= np.finfo(F).tiny).all()
            worst = max(worst, ulp_error(y, np.exp(x.astype(float))))
            above = y[-1]
    assert count >= 10**7
    assert worst < 2, f"{worst} ulp"
    return worst


def test_exp_over_its_domain() -> None:
    # over every number: 1.0489, at -48.866352; 2 is what check_exp demands of any implementation
    assert check_exp(numerics.exp) < 1.05


def checksum(function, first: int, last: int, stride: int) -> str:
    """CRC-32 of the results, little endian, over the bit patterns first .. last."""
    crc = 0
    for start in range(first, last + 1, stride << 20):
        x = numbers(start, min(last, start + (stride << 20) - 1), stride)
        crc = zlib.crc32(function(x).astype("<f4").tobytes(), crc)
    return f"{crc:08x}"


def test_every_bit_of_exp_and_sqrt() -> None:
    """Checksums that a C program written from the contract gave too: a change of one bit anywhere shows.

    exp over every 13th number from -2**-10 down to -87 (10,556,338), sqrt over all of [1, 4) (16,777,216).
    """
    assert checksum(numerics.exp, bits(EXP_EDGE), bits(-87.0), 13) == "6f69a239"
    assert checksum(numerics.sqrt, bits(1), bits(4) - 1, 1) == "cbf96119"


def test_exp_at_its_ends() -> None:
    assert numerics.exp(F(0)) == 1 and numerics.exp(F(-0.0)) == 1
    assert numerics.exp(numbers(bits(-(2.0**-149)), bits(-(2.0**-149))))[0] == 1
    end = numerics.exp(F(-87))
    assert end >= np.finfo(F).tiny and ulp_error(end, np.exp(np.array(-87.0))) < 2


def test_exp_is_1_from_its_smallest_argument_on() -> None:
    """Above -2**-25 the argument is taken for 0; below it the result is the number below 1."""
    edge = F(-(2.0**-25))
    assert numerics.exp(np.nextafter(edge, F(0))) == 1 and numerics.exp(edge) == 1
    below = numbers(bits(edge) + 1, bits(-(2.0**-24)))
    assert (numerics.exp(below) == np.nextafter(F(1), F(0))).all()


def test_exp_around_every_change_of_exponent() -> None:
    """Neighbouring numbers where round(x / ln 2) steps: where a reduction goes wrong first."""
    for n in range(125):
        middle = bits(-(n + 0.5) * np.log(2))
        x = numbers(middle - 2000, middle + 2000)
        y = numerics.exp(x)
        assert (y[1:] <= y[:-1]).all()
        assert ulp_error(y, np.exp(x.astype(float))) < 2


def test_softmax_weight_cuts_below_54() -> None:
    below, above = np.nextafter(F(-54), F(-60)), np.nextafter(F(-54), F(0))
    w = numerics.softmax_weight(np.array([-np.inf, -1e30, -87.5, below, -54, above, 0], F))
    assert (w[:4] == 0).all() and not np.signbit(w[:4]).any()
    assert (w[4:] == numerics.exp(np.array([-54, above, 0], F))).all() and w[4] > 2.0**-78


def check_sqrt(sqrt) -> float:
    """Exhaustive over [1, 4), which is every case: sqrt(4 t) = 2 sqrt(t) by bits (tested below)."""
    worst, below = 0.0, F(0)
    for start in range(bits(1), bits(4), 1 << 21):
        t = numbers(start, start + (1 << 21) - 1)
        y = sqrt(t)
        assert y[0] >= below and (y[1:] >= y[:-1]).all(), f"not monotone near {t[0]}"
        worst = max(worst, ulp_error(y, np.sqrt(t.astype(float))))
        below = y[-1]
    assert worst < 1, f"{worst} ulp"
    return worst


def test_sqrt_exhaustively() -> None:
    assert check_sqrt(numerics.sqrt) < 0.76
    assert numerics.sqrt(F(1)) == 1 and numerics.sqrt(F(4)) == 2


def test_sqrt_scales_by_powers_of_four() -> None:
    t = np.random.default_rng(0).uniform(1, 4, 10000).astype(F)
    for e in range(-30, 30):
        np.testing.assert_array_equal(numerics.sqrt(t * F(4.0**e)), numerics.sqrt(t) * F(2.0**e))


def test_widen_is_exact_and_to_half_gives_it_back() -> None:
    """All 65536 bit patterns."""
    codes = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    x = codes.view(np.float16)
    finite = np.isfinite(x)
    wide = numerics.widen(x[finite])
    sign = np.where(codes[finite] >> 15, -1.0, 1.0)
    exponent, fraction = (codes[finite] >> 10) & 31, (codes[finite] & 1023).astype(float)
    true = np.where(
        exponent == 0, fraction * 2.0**-24, (1 + fraction / 1024) * 2.0 ** (exponent.astype(float) - 15)
    )
    np.testing.assert_array_equal(wide.astype(float), sign * true)
    np.testing.assert_array_equal(numerics.to_half(wide).view(np.uint16), codes[finite])


def check_to_half(to_half) -> None:
    """Between every two neighbouring fp16 numbers: near either, around the tie; then beyond the largest."""
    low = np.arange(0x7BFF, dtype=np.uint16)
    a, b = (numerics.widen(c.view(np.float16)) for c in (low, low + np.uint16(1)))
    middle = (a + b) * F(0.5)  # exact in fp32
    even = np.where(low % 2 == 0, low, low + 1)
    for sign, code in ((F(1), 0), (F(-1), 0x8000)):
        for x, expected in (
            (a + (b - a) * F(0.25), low),
            (np.nextafter(middle, F(0)), low),
            (middle, even),
            (np.nextafter(middle, F(np.inf)), low + 1),
            (a + (b - a) * F(0.75), low + 1),
        ):
            np.testing.assert_array_equal(to_half(sign * x).view(np.uint16), expected + code)
        beyond = sign * np.array([65504, 65519.996, 65520, 1e30, np.finfo(F).max], F)
        np.testing.assert_array_equal(to_half(beyond).view(np.uint16), 0x7BFF + code)


def test_to_half_rounds_to_even_and_saturates() -> None:
    check_to_half(numerics.to_half)


def test_flush() -> None:
    edge = 2.0**-48
    x = np.array([edge, -edge, np.nextafter(F(edge), F(0)), -edge / 2, 0, -0.0, 3], F)
    y = numerics.flush(x)
    np.testing.assert_array_equal(y, np.array([edge, -edge, 0, 0, 0, 0, 3], F))
    assert not np.signbit(y[2:6]).any()


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_scale(head_dim: int) -> None:
    assert numerics.scale(head_dim) == oracle.scale(head_dim)
    assert numerics.scale(head_dim).dtype == F


def test_only_float16_and_float32_are_taken() -> None:
    with pytest.raises(ValueError, match=r"^numerics: input must be float16 or float32, got float64$"):
        numerics.lane_sum(np.zeros(8))


def sums_data(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-4, 5, n)).astype(F)


@given(st.sampled_from((*strategies.SEQ_LENS, 1000)), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_the_plain_loops(n: int, seed: int) -> None:
    x = sums_data(n, seed)
    rows = strategies.tensors("normal", (n, 16), np.random.default_rng(seed))
    listed = x.astype(float).tolist()
    assert numerics.lane_sum(x) == oracle.lane_sum(listed)
    assert numerics.lane_sum(np.stack([x, x]).T, axis=0).tolist() == [oracle.lane_sum(listed)] * 2
    assert numerics.fold_blocks(numerics.block_sums(x)) == oracle.sum_weights(listed)
    assert numerics.group_sum(x[None, :, None], 1)[0, 0, 0] == oracle.ascending_sum(listed)
    got = numerics.weighted_sum(x[None], rows)
    assert got[0].tolist() == oracle.sum_weighted(listed, rows.astype(float).tolist())
    q = strategies.tensors("heavy_tailed", (16,), np.random.default_rng(seed + 1))
    expected = [oracle.lane_sum([oracle.fl(a * b) for a, b in zip(q.tolist(), row)]) for row in rows.tolist()]
    assert numerics.dot(q, rows).tolist() == expected


@pytest.mark.parametrize("chunk", [64, 128, 4096])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    rng = np.random.default_rng(4)
    w, v = rng.random((3, 5000)).astype(F), strategies.tensors("normal", (5000, 24), rng)
    expected = numerics.weighted_sum(w, v)
    monkeypatch.setattr(numerics, "CHUNK", chunk)
    np.testing.assert_array_equal(numerics.weighted_sum(w, v), expected)
    monkeypatch.setattr(numerics, "CHUNK", 96)  # not whole blocks: a different contract
    assert not np.array_equal(numerics.weighted_sum(w, v), expected)


def test_partial_sums_may_be_computed_in_any_order() -> None:
    rng = np.random.default_rng(5)
    n = 64 * 9 + 5
    w, v = rng.random((2, n)).astype(F), strategies.tensors("normal", (n, 8), rng)
    starts = rng.permutation(range(0, n, 64))
    sums, weighted = {}, {}
    for start in starts:
        block = slice(start, start + 64)
        sums[start] = numerics.lane_sum(w[:, block])
        weighted[start] = numerics.weighted_sum(w[:, block], v[block])
    ascending = sorted(starts)
    np.testing.assert_array_equal(
        numerics.fold_blocks(np.stack([sums[s] for s in ascending])[:, :], axis=0),
        numerics.fold_blocks(numerics.block_sums(w)),
    )
    whole = numerics.weighted_sum(w, v)
    np.testing.assert_array_equal(
        numerics.fold_blocks(np.stack([weighted[s] for s in ascending]), axis=0), whole
    )
    # but adding them up as they come is another sum
    as_they_come = numerics.fold_blocks(np.stack([weighted[s] for s in starts]), axis=0)
    assert not np.array_equal(as_they_come, whole)
