# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4, 6 and 8 bits: the bits of contract E15, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from calls import refusal
from hypothesis import given
from hypothesis import strategies as st

from sparq_ipu import _cpu
from sparq_reference.few_bits import GROUP, few_bits_product, ideal_product, integers, to_bfloat16

OUTPUTS = 16


def bits_of(x: np.ndarray) -> np.ndarray:
    """Numbers of bfloat16, as 16 bits."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


class Weights:
    """Codes and scales, as the kernels read them."""

    def __init__(self, codes: np.ndarray, scales: np.ndarray, bits: int):
        self.numbers = codes, scales.astype(np.float16), bits  # what the reference takes
        (n, m), n_codes = codes.shape, 256 if bits == 4 else 512
        self.packed = np.zeros((n // OUTPUTS, m // GROUP, n_codes + 64), np.uint8)
        for o in range(OUTPUTS):  # byte by byte
            for b in range(4):
                for i in range(n_codes // 64):
                    at = self.packed[:, :, 64 * i + 4 * o + b]
                    at[:] = codes[o::OUTPUTS, 4 * i + b :: GROUP]
                    if bits == 4:
                        at |= (codes[o::OUTPUTS, 16 + 4 * i + b :: GROUP] << 4).astype(np.uint8)
            for which in range(2):
                halves = self.packed.view(np.float16)[:, :, n_codes // 2 + 16 * which + o]
                halves[:] = scales[o::OUTPUTS, :, which]

    @classmethod
    def random(cls, bits: int, n: int, m: int, seed: int = 0, zeros: float = 1) -> Weights:
        rng = np.random.default_rng(seed + n)
        codes = rng.integers(0, 16 if bits == 4 else 256, (n, m)).astype(np.uint8)
        scales = rng.uniform(1e-3, 1, (n, m // GROUP, 2))
        scales *= np.where(rng.integers(0, 9, scales.shape), 1, 2.0**-12)  # some below the normal range
        if bits != 6:
            scales[:, :, 1] = rng.standard_normal(scales.shape[:2]) * (rng.random(scales.shape[:2]) < zeros)
        return cls(codes, scales, bits)

    def product(self, rows: np.ndarray, **options: object) -> np.ndarray:
        codes, _, bits = self.numbers
        output = np.zeros((len(rows), len(codes)), np.uint16)
        numbers = bits_of(rows)
        addresses = (numbers.ctypes.data, self.packed.ctypes.data, bits, output.ctypes.data)
        _cpu.few_bits_product(*addresses, *rows.shape, len(codes), **options)
        return (output.astype(np.uint32) << 16).view(np.float32)


def check(weights: Weights, rows: np.ndarray, **options: object) -> None:
    expected = few_bits_product(rows, *weights.numbers)
    np.testing.assert_array_equal(bits_of(weights.product(rows, **options)), bits_of(expected))


def some_rows(n: int, m: int, spread: int = 9, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed + n)
    return to_bfloat16(rng.standard_normal((n, m)) * 2.0 ** rng.integers(-spread, spread, (n, m)))


@pytest.mark.parametrize("bits", [4, 6, 8])
@given(data=st.data())
def test_bits(bits: int, data: st.DataObject) -> None:
    """Few rows, tiles that are filled and not, several parts of rows, parts of a tile's columns; any
    instruction set and threads."""
    n_rows = data.draw(st.integers(1, 60) | st.sampled_from([67, 131, 133, 265, 487]), "rows")
    n = OUTPUTS * data.draw(st.integers(1, 6 if n_rows > 60 else 19), "blocks")
    m = GROUP * data.draw(st.integers(1, 4 if n_rows > 60 else 19), "groups")
    seed = data.draw(st.integers(0, 99), "seed")
    rows = some_rows(n_rows, m, data.draw(st.integers(1, 30), "spread"), seed)
    isa = data.draw(st.sampled_from(_cpu.available_isas()), "isa")
    n_threads = data.draw(st.integers(1, 5), "threads")
    zeros = data.draw(st.sampled_from([0, 0.01, 1]), "share of zeros that are not 0")
    check(Weights.random(bits, n, m, seed, zeros), rows, isa=isa, n_threads=n_threads)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_row_has_the_same_bits_in_any_company(isa: str, bits: int) -> None:
    """Alone, as in a step, and among any number, as in a prompt."""
    weights, rows = Weights.random(bits, 48, 320), some_rows(66, 320)
    together = weights.product(rows, isa=isa)
    for n in range(1, 67):
        alone = weights.product(np.ascontiguousarray(rows[66 - n :]), isa=isa, n_threads=n % 3 + 1)
        np.testing.assert_array_equal(alone, together[66 - n :])


@pytest.mark.parametrize("n_rows", [1, 5, 37])
def test_the_largest_sums(isa: str, n_rows: int) -> None:
    """Codes and numbers whose sums are as large as they can be, of either sign."""
    rows = np.zeros((n_rows, 64), np.float32)
    for value in (255 * 2.0**-7, -255 * 2.0**-7, 255 * 2.0**100, -255 * 2.0**100, 2.0**-95, 129.0, -129.0):
        rows[:] = value
        for code, bits in ((0, 4), (15, 4), *((code, bits) for code in (0, 128, 255) for bits in (6, 8))):
            codes = np.full((16, 64), code, np.uint8)
            scales = np.full((16, 2, 2), [2.0**-9, 0.5])
            check(Weights(codes, scales, bits), rows, isa=isa)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("n_rows", [1, 6])
def test_the_largest_sums_of_low_parts(isa: str, n_rows: int, bits: int) -> None:
    """Integers of 16 bits whose low parts are -128 or 127, but for the largest, with the largest codes."""
    for integer, group, largest in ((128, 0, 31), (127, 4, 0), (128, 2, 13)):
        rows = np.full((n_rows, 5, 32), 2.0**-9, np.float32)
        rows[:, group] = integer / 128
        rows[:, group, largest] = 254
        rows = rows.reshape(n_rows, 160)
        found = integers(rows[:1], bits)[0][0, group]
        assert found[largest] == 32512 and (np.delete(found, largest) == integer).all()
        codes = np.full((16, 160), 15 if bits == 4 else 255, np.uint8)
        check(Weights(codes, np.full((16, 5, 2), 0.5), bits), rows, isa=isa)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_numbers_of_any_size(isa: str, bits: int) -> None:
    """Groups below 2^-100 count as 0, those from 2^120 on are infinite."""
    rng = np.random.default_rng(0)
    powers = np.array([-140, -120, -105, -103, -102, -101, -100, -60, 60, 110, 117, 118, 119])
    rows = to_bfloat16(rng.standard_normal((len(powers), 64)) * 2.0 ** powers[:, None])
    rows[0, 32:] = 0
    weights = Weights.random(bits, 32, 64)
    check(weights, np.tile(rows, (4, 1)), isa=isa)
    for row in rows:
        check(weights, row[None], isa=isa)
    output = weights.product(rows, isa=isa)
    assert not output[:3].any() and output[6].any()
    assert np.isnan(output[-1]).all() and np.isfinite(output[-4]).all()
    for value in (2.0**120, -(2.0**120)):
        edge = np.full((1, 64), value, np.float32)
        check(weights, edge, isa=isa)
        assert np.isnan(weights.product(edge, isa=isa)).all()
        assert not np.isnan(weights.product(edge * np.float32(255 / 256), isa=isa)).all()


@pytest.mark.parametrize(
    ("bits", "largest"), [(4, (3.859375, 3.84375)), (6, (1.59375, 1.5859375)), (8, (1.59375, 1.5859375))]
)
def test_a_group_far_above_the_others_has_16_bits(bits: int, largest: tuple[float, float]) -> None:
    """More than 3 times the mean of the row's largest magnitudes, with weights of 6 and 8 bits 1.5 times."""
    rows = np.full((2, 320), 1, np.float32)
    rows[:, 0] = largest
    found, steps = integers(rows, bits)
    most = np.array([32512, 127], np.float32)
    assert found[:, 0, 0].tolist() == most.tolist() and (found[:, 1:] == 127).all()
    assert steps[:, 0].tolist() == (np.float32(largest) * (np.float32(1) / most)).tolist()
    alone = [integers(row[None], bits)[0] for row in rows]
    assert np.array_equal(np.concatenate(alone), found)
    assert np.abs(integers(rows[:, :32], bits)[0]).max() == 127  # a single group is the mean


@pytest.mark.parametrize("n_rows", [3, 39])
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_nan(isa: str, bits: int, n_rows: int, value: float) -> None:
    weights, rows = Weights.random(bits, 32, 96), some_rows(n_rows, 96)
    expected = few_bits_product(rows, *weights.numbers)
    rows[1, 40] = value
    output = weights.product(rows, isa=isa)
    assert np.isnan(output[1]).all() and np.isnan(few_bits_product(rows, *weights.numbers)[1]).all()
    np.testing.assert_array_equal(np.delete(output, 1, 0), np.delete(expected, 1, 0))


@given(st.sampled_from([4, 6, 8]), st.integers(1, 12), st.integers(1, 30), st.integers(0, 999))
def test_the_error_is_that_of_rounding_rows(bits: int, n_groups: int, spread: int, seed: int) -> None:
    """Beside float64: half a step of each number, rounding in fp32 and to bfloat16."""
    m = GROUP * n_groups
    rows, weights = some_rows(5, m, spread, seed), Weights.random(bits, 16, m, seed)
    codes, scales, _ = weights.numbers
    ideal = ideal_product(rows, *weights.numbers)
    scale = np.repeat(scales.astype(float), GROUP // 2, axis=2)  # the two parts are rounded alone
    first, second = scale[:, :, :16], scale[:, :, 16:]
    size = np.abs(codes.astype(float) - (8 if bits == 4 else 128)).reshape(scale.shape)
    if bits == 6:
        size *= scale
    else:
        size = size * np.concatenate((first, first), axis=2) + np.abs(
            np.concatenate((second, second), axis=2)
        )
    size = size.reshape(codes.shape)
    rounded = np.repeat(integers(rows, bits)[1].astype(float) / 2, GROUP, axis=1) @ size.T
    n_sums = 2 * n_groups if bits == 6 else n_groups
    error = rounded + (np.abs(rows) @ size.T + rounded) * (n_sums + 4) * 2.0**-24
    got = few_bits_product(rows, *weights.numbers)
    assert (np.abs(got - ideal) <= error + (np.abs(ideal) + error) * 2.0**-8).all()


@pytest.mark.parametrize(
    ("n", "m", "rule"),
    [
        (16, 48, "in_features must be a multiple of 32, got 48"),
        (16, 0, "in_features must be a multiple of 32, got 0"),
        (24, 32, "out_features must be a multiple of 16, got 24"),
        (0, 32, "out_features must be a multiple of 16, got 0"),
    ],
)
def test_refused(n: int, m: int, rule: str) -> None:
    space = np.zeros(4096, np.uint8).ctypes.data
    for bits in (4, 6, 8):
        assert (
            refusal(_cpu.few_bits_product, space, space, bits, space, 1, m, n) == f"few_bits_product: {rule}"
        )
    with pytest.raises(ValueError, match="few_bits_product: bits must be 4, 6 or 8, got 5"):
        _cpu.few_bits_product(space, space, 5, space, 1, 32, 16)
    with pytest.raises(ValueError, match="few_bits_product: isa must be one of"):
        _cpu.few_bits_product(space, space, 4, space, 1, 32, 16, isa="avx3")
    with pytest.raises(ValueError, match="few_bits_product: n_threads must be in"):
        _cpu.few_bits_product(space, space, 4, space, 1, 32, 16, n_threads=-1)


def test_the_reference_refuses_other_shapes() -> None:
    rows, codes = np.zeros((1, 64), np.float32), np.zeros((OUTPUTS, 64), np.int64)
    scales = np.ones((OUTPUTS, 2, 2), np.float16)
    for product in (few_bits_product, ideal_product):
        with pytest.raises(ValueError, match="few_bits: inputs must be a multiple of 32, got 48"):
            product(rows[:, :48], codes[:, :48], scales, 8)
        with pytest.raises(ValueError, match="few_bits: codes must have 64 inputs, as rows do, got 32"):
            product(rows, codes[:, :32], scales, 8)
