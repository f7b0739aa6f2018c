# SPDX-License-Identifier: Apache-2.0
"""Rows of 8 bits: contract E10."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from bits import assert_bits, bits_of
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import CacheSpec, KVCache, exact, row_codes

#: every float16 number that is 0 or more
POSITIVE = np.arange(0x7C00, dtype=np.uint16).view(np.float16)


def some_rows(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.integers(-26, 16, (*shape[:-1], 1)))
    return (rng.uniform(-1, 1, shape) * size).astype(np.float16)


def round_in_fractions(row: np.ndarray) -> list[float]:
    """Rule E10 for one row, in exact fractions but where the rule rounds to float32."""
    out: list[float] = []
    for start in range(0, len(row), 16):
        group = [float(x) for x in row[start : start + 16]]
        third = float(np.float32(max(map(abs, group))) * (np.float32(1) / np.float32(127)))
        scale = Fraction(0)
        if third:
            exponent = int(np.floor(np.log2(third))) - 7  # of the last of 8 bits
            scale = round(Fraction(third) / Fraction(2) ** exponent) * Fraction(2) ** exponent
        scale = min(max(scale, Fraction(1, 2**20)), Fraction(512))
        inverse = np.float32(1) / np.float32(float(scale))
        for x in group:
            code = round(Fraction(float(np.float32(x) * inverse)))  # ties to even
            out.append(float(np.float16(float(min(127, max(-127, code)) * scale))))
    return out


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 16, 24, 40, 64]))
def test_the_rule(seed: int, head_dim: int) -> None:
    row = some_rows(seed, head_dim)
    assert row_codes.round_rows(row, 8).astype(float).tolist() == round_in_fractions(row)


@pytest.mark.parametrize("head_dim, n_groups", [(8, 1), (16, 1), (24, 2), (64, 4)])
def test_a_scale_for_each_group(head_dim: int, n_groups: int) -> None:
    codes = row_codes.encode(np.zeros((3, head_dim), np.float16))
    assert codes.code.shape == (3, head_dim) and codes.scale.shape == (3, n_groups)


def test_ties_of_a_scale_are_rounded_to_even() -> None:
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
    assert row_codes.to_bfloat16(ties).tolist() == [1, 1 + 2.0**-6]


def test_the_largest_numbers_are_cut() -> None:
    """Above 127.5 * 512 a code would be 128, which 8 bits do not have."""
    row = np.array([65504, -65504, 65312, 65280, -65248, 1, 0, -512], np.float16)
    assert row_codes.round_rows(row, 8).astype(float).tolist() == round_in_fractions(row)
    assert row_codes.encode(row).code[:3].tolist() == [127, -127, 127]


def test_rounding_twice_is_rounding_once() -> None:
    """Of every group that there can be, as far as it matters: its largest number decides on the scale, and
    each code beside any scale comes back."""
    rows = np.zeros((len(POSITIVE), 16), np.float16)
    rows[:, 3] = POSITIVE
    once = row_codes.round_rows(rows, 8)
    assert_bits(row_codes.round_rows(once, 8), once)
    scales = np.unique(row_codes.encode(rows).scale)
    assert len(scales) > 3000 and scales[0] == 2.0**-20 and scales[-1] == 512
    codes = np.zeros((len(scales), 255, 16), np.int8)
    codes[..., 0], codes[..., 1] = -127, np.arange(-127, 128)
    again = row_codes.encode(
        row_codes.decode(row_codes.RowCodes(codes, scales[:, None, None].repeat(255, 1)))
    )
    assert (again.code == codes).all() and (again.scale[..., 0] == scales[:, None]).all()


def test_scales_of_other_widths_would_not_do() -> None:
    """Negative control: with scales of 4 bits some rows change when they are rounded again."""

    def rounded(rows: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(np.abs(rows.astype(np.float64)).max(-1) / 127)
        scale = np.ldexp(np.rint(mantissa * 16) / 16, exponent)[:, None]
        return (np.rint(rows / scale).clip(-127, 127) * scale).astype(np.float16)

    rows = np.random.default_rng(0).standard_normal((5000, 16)).astype(np.float16)
    assert (bits_of(rounded(rounded(rows))) != bits_of(rounded(rows))).any()


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 24, 64]))
def test_error(seed: int, head_dim: int) -> None:
    """Half a scale, half a unit of float16, and what the rounding of the scale may cut off: at most 1/255 of
    the largest number of the group, or 2**-21 where that is more."""
    row = some_rows(seed, head_dim)
    got = row_codes.round_rows(row, 8).astype(float)
    for start in range(0, head_dim, 16):
        group = row[start : start + 16].astype(float)
        limit = max(np.abs(group).max() / 127, 2.0**-20) * (0.5 + 1 / 256) + np.abs(group) * 2.0**-11
        if np.abs(group).max() > 65024:
            limit = np.maximum(limit, 480.0)  # what is above 127 * 512 is cut
        assert (np.abs(got[start : start + 16] - group) <= limit + 2.0**-25).all()


def test_a_cache_is_the_one_of_rounded_rows() -> None:
    rng = np.random.default_rng(1)
    key, value = rng.standard_normal((2, 2, 3, 90, 24)).astype(np.float16)
    query = rng.standard_normal((2, 6, 24)).astype(np.float16)
    settings = dict(rank=5, top_k=9, n_local=2)
    cache, plain, other = (
        KVCache(2, 3, 24, 100, index_bits=4, **options) for options in ({"row_bits": 8}, {}, {})
    )
    cache.append(key, value)
    plain.append(row_codes.round_rows(key, 8), row_codes.round_rows(value, 8))
    other.append(key, value)
    outputs = [c.sparq_attention(query, **settings) for c in (cache, plain, other)]
    assert_bits(outputs[0], outputs[1])
    assert (bits_of(outputs[0]) != bits_of(outputs[2])).any()  # negative control
    assert_bits(cache.dense_attention(query), plain.dense_attention(query))
    assert_bits(cache.key, plain.key)
    np.testing.assert_array_equal(cache.value_sum, exact.sum_values(plain.value))


def test_row_bits_is_an_option_of_a_cache() -> None:
    for n_bits in (16, np.int64(8)):
        spec = CacheSpec(2, 3, 16, 5, row_bits=n_bits)
        assert spec.row_bits == n_bits and type(spec.row_bits) is int
    for wrong, shown in ((4, "4"), (True, "True"), (8.0, "8.0")):
        message = f"^KVCache: row_bits must be one of 16, 8, got {shown}$"
        with pytest.raises(ValueError, match=message):
            KVCache(2, 3, 16, 5, row_bits=wrong)
