# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 8 bits: the bits of their definition, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from sparq_ipu import _cpu


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of fp32 numbers, to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def expected(rows: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Sixteen lanes one after another, then halves: 8, 4, 2, 1 apart."""
    lanes = np.zeros((len(rows), len(codes), 16), np.float32)
    for k in range(0, rows.shape[1], 16):
        lanes += float32(rows[:, None, k : k + 16]) * codes[:, k : k + 16].astype(np.float32)
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return bfloat16(lanes[..., 0] * float32(scale))


def product(rows: np.ndarray, codes: np.ndarray, scale: np.ndarray, **options: object) -> np.ndarray:
    output = np.zeros((len(rows), len(codes)), np.uint16)
    addresses = [array.ctypes.data for array in (rows, codes, scale, output)]
    _cpu.int8_product(*addresses, len(rows), codes.shape[1], len(codes), **options)
    return output


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("shape", [(1, 4, 16), (1, 300, 224), (7, 132, 96), (33, 20, 48), (66, 4, 32)])
def test_bits(isa: str, shape: tuple[int, int, int], n_threads: int) -> None:
    n_rows, outputs, inputs = shape
    rng = np.random.default_rng(n_rows + outputs)
    rows = bfloat16(rng.standard_normal((n_rows, inputs)) * 2.0 ** rng.integers(-9, 9, (n_rows, inputs)))
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = bfloat16(rng.uniform(1e-3, 1, outputs))
    output = product(rows, codes, scale, isa=isa, n_threads=n_threads)
    np.testing.assert_array_equal(output, expected(rows, codes, scale))


def test_ties_go_to_even() -> None:
    codes = np.zeros((4, 16), np.int8)
    codes[:, :3] = [[127, 127, 3], [127, 127, 5], [-127, -127, -3], [127, 126, 5]]
    ones = bfloat16(np.ones((1, 16)))
    output = product(ones, codes, bfloat16(np.ones(4)))
    assert float32(output).tolist() == [[256.0, 260.0, -256.0, 258.0]]  # of 257, 259, -257, 258


@pytest.mark.parametrize(
    ("n", "m", "rule"),
    [
        (4, 24, "in_features must be a multiple of 16, got 24"),
        (4, 0, "in_features must be a multiple of 16, got 0"),
        (6, 16, "out_features must be a multiple of 4, got 6"),
    ],
)
def test_refused(n: int, m: int, rule: str) -> None:
    rows, codes, scale = np.zeros((1, m), np.uint16), np.zeros((n, m), np.int8), np.zeros(n, np.uint16)
    with pytest.raises(ValueError) as error:
        product(rows, codes, scale)
    assert str(error.value) == f"int8_product: {rule}"
