# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4 bits: the bits of their definition, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from sparq_ipu import _cpu

GROUP, OUTPUTS = 32, 16


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of fp32 numbers, to nearest, ties to even."""
    bits = np.asarray(x).astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def packed(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """(outputs / 16, inputs / 32, 320) bytes, byte by byte; scale and zero are bits of bfloat16."""
    n, m = codes.shape
    weights = np.zeros((n // OUTPUTS, m // GROUP, 320), np.uint8)
    for i in range(4):
        for o in range(OUTPUTS):
            for b in range(4):
                below = codes[o::OUTPUTS, 4 * i + b :: GROUP]
                above = codes[o::OUTPUTS, 16 + 4 * i + b :: GROUP]
                weights[:, :, 64 * i + 4 * o + b] = below | above << 4
    for o in range(OUTPUTS):
        for at, numbers in ((0, scale), (2, zero)):
            weights[:, :, 256 + 4 * o + at] = numbers[o::OUTPUTS] & 255
            weights[:, :, 257 + 4 * o + at] = numbers[o::OUTPUTS] >> 8
    return weights


def integers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of groups of rows (n, groups, 32) of finite numbers in float64: integers, and steps (n, groups)."""
    _, exponent = np.frexp(np.abs(rows).max(axis=2))
    step = 2.0 ** np.maximum(exponent - 1 - 13, -110)
    return np.rint(rows / step[:, :, None]), step


def expected(rows: np.ndarray, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    n, m = rows.shape
    x, step = integers(float32(rows).reshape(n, -1, GROUP).astype(np.float64))
    total = np.zeros((n, len(codes)), np.float32)
    for group in range(m // GROUP):
        steps = codes[:, group * GROUP : (group + 1) * GROUP].astype(np.float64) - 8
        dot = (x[:, group] @ steps.T).astype(np.float32)  # both exact: integers below 2^24
        sums = x[:, group].sum(axis=1).astype(np.float32)[:, None]
        both = float32(scale)[:, group] * dot + float32(zero)[:, group] * sums
        total += both * step[:, group, None].astype(np.float32)
    return bfloat16(total)


def product(rows: np.ndarray, weights: np.ndarray, **options: object) -> np.ndarray:
    n_outputs, n_inputs = weights.shape[0] * OUTPUTS, weights.shape[1] * GROUP
    output = np.zeros((len(rows), n_outputs), np.uint16)
    addresses = [array.ctypes.data for array in (rows, weights, output)]
    _cpu.int4_product(*addresses, len(rows), n_inputs, n_outputs, **options)
    return output


def some(shape: tuple[int, int, int], spread: int = 9) -> tuple[np.ndarray, ...]:
    n_rows, outputs, inputs = shape
    rng = np.random.default_rng(n_rows + outputs)
    rows = rng.standard_normal((n_rows, inputs)) * 2.0 ** rng.integers(-spread, spread, (n_rows, inputs))
    codes = rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)
    scale = rng.uniform(1e-3, 1, (outputs, inputs // GROUP))
    zero = rng.standard_normal((outputs, inputs // GROUP))
    return bfloat16(rows), codes, bfloat16(scale), bfloat16(zero)


SHAPES = [(1, 16, 32), (1, 304, 224), (2, 16, 96), (7, 144, 96), (33, 32, 64), (66, 16, 32)]


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits(isa: str, shape: tuple[int, int, int], n_threads: int) -> None:
    rows, *weights = some(shape)
    output = product(rows, packed(*weights), isa=isa, n_threads=n_threads)
    np.testing.assert_array_equal(output, expected(rows, *weights))


def test_a_row_has_the_same_bits_in_any_company(isa: str) -> None:
    rows, *weights = some((66, 48, 160))
    together = product(rows, packed(*weights), isa=isa)
    for n in range(1, 67):
        alone = product(np.ascontiguousarray(rows[66 - n :]), packed(*weights), isa=isa, n_threads=n % 3 + 1)
        np.testing.assert_array_equal(alone, together[66 - n :])


def test_the_largest_sums(isa: str) -> None:
    """Codes and numbers whose sums are as large as they can be, of either sign."""
    largest = bfloat16(np.array([255 * 2.0**-7, -255 * 2.0**-7, 255 * 2.0**100, -255 * 2.0**100]))
    # of the lower byte: 128 below a multiple of 256
    lower = bfloat16(np.array([2.0**-6 * 255, -(2.0**-6) * 255, 1.0078125 * 128, -129.0]))
    rows = np.repeat(np.concatenate((largest, lower))[:, None], 64, axis=1)
    rows[4:, ::32] = bfloat16(np.array([2.0 * 128]))[0]
    for code in (0, 15):
        codes = np.full((16, 64), code, np.uint8)
        scale, zero = (bfloat16(np.full((16, 2), value)) for value in (2.0**-9, 0.5))
        output = product(rows, packed(codes, scale, zero), isa=isa)
        np.testing.assert_array_equal(output, expected(rows, codes, scale, zero))


def test_numbers_of_any_size(isa: str) -> None:
    """A step is at least 2^-110, so numbers beside which it would be less are none."""
    rng = np.random.default_rng(0)
    rows = bfloat16(
        rng.standard_normal((9, 64))
        * 2.0 ** np.array([-140, -120, -99, -98, -97, -96, -60, 60, 110])[:, None]
    )
    rows[0, 32:] = 0
    weights = some((1, 32, 64))[1:]
    output = product(rows, packed(*weights), isa=isa)
    np.testing.assert_array_equal(output, expected(rows, *weights))
    assert not (output[0] & 0x7FFF).any() and output[3].any()


def test_numbers_near_the_largest_of_a_group_are_exact() -> None:
    """Down to 1/64 of it; a smaller one becomes a multiple of 2^-13 of the largest one's power of two."""
    codes = np.full((16, 32), 9, np.uint8)
    ones, none = bfloat16(np.ones((16, 1))), bfloat16(np.zeros((16, 1)))
    rows = np.zeros((3, 32))
    rows[:, 0], rows[:, 1] = 1, -1
    rows[0, 2], rows[1, 2], rows[2, 2] = 255 * 2.0**-13, 255 * 2.0**-14, 253 * 2.0**-14
    output = product(bfloat16(rows), packed(codes, ones, none))
    assert float32(output)[:, 0].tolist() == [255 * 2.0**-13, 2.0**-6, 2.0**-7 * 126 / 64]  # ties to even


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_nan(isa: str, value: float) -> None:
    rows, *weights = some((4, 32, 96))
    numbers = float32(rows)
    numbers[1, 40] = value
    output = product(bfloat16(numbers), packed(*weights), isa=isa)
    assert np.isnan(float32(output[1])).all()
    np.testing.assert_array_equal(output[[0, 2, 3]], expected(rows, *weights)[[0, 2, 3]])


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
    space = np.zeros(4096, np.uint8)
    with pytest.raises(ValueError) as error:
        _cpu.int4_product(space.ctypes.data, space.ctypes.data, space.ctypes.data, 1, m, n)
    assert str(error.value) == f"int4_product: {rule}"
    with pytest.raises(ValueError, match="int4_product: isa must be one of"):
        _cpu.int4_product(space.ctypes.data, space.ctypes.data, space.ctypes.data, 1, 32, 16, isa="avx3")
    with pytest.raises(ValueError, match="int4_product: n_threads must be in"):
        _cpu.int4_product(space.ctypes.data, space.ctypes.data, space.ctypes.data, 1, 32, 16, n_threads=-1)
