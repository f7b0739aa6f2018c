# SPDX-License-Identifier: Apache-2.0
"""Linear layers with weights of 4, 6 or 8 bits (contract E15): the exact twin, and the ideal one in float64.

Numbers of bfloat16 are float32 arrays here, of which the lower 16 bits are 0.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import checks
from sparq_reference.numerics import to_bfloat16

#: inputs that are rounded together, and that share a scale and a zero; with 6 bits 16 share a scale
GROUP = 32
#: by bits of weights: a group has 16 bits where its largest magnitude is more than this many times the row's
#: mean of such magnitudes
_WIDE_FROM = {4: np.float32(3), 6: np.float32(1.5), 8: np.float32(1.5)}
#: the largest integers of 8 and 16 bits
_NARROW, _WIDE = np.float32(127), np.float32(127 * 256)
#: magnitudes below the first are 0 in a group that has none above; from the second on they are infinite
_LEAST, _INFINITE = np.float32(2.0**-100), np.float32(2.0**120)


def integers(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's groups as integers times a step.

    Args:
        rows: (n, inputs) float32, numbers of bfloat16.
        bits: of the weights, 4, 6 or 8.

    Returns:
        Integers (n, groups, 32) int64, and steps (n, groups) float32; NaN where a magnitude is infinite.
    """
    groups = rows.reshape(len(rows), -1, GROUP)
    largest = np.abs(groups).max(axis=2)
    is_finite = largest < _INFINITE
    largest = np.where(is_finite & (largest >= _LEAST), largest, np.float32(0))
    n_groups = largest.shape[1]
    total = np.cumsum(largest, axis=1, dtype=np.float32)[:, -1:]
    with np.errstate(over="ignore"):
        is_wide = largest * np.float32(n_groups) > total * _WIDE_FROM[bits]
    most = np.where(is_wide, _WIDE, _NARROW)
    inverse = np.divide(most, largest, out=np.zeros_like(largest), where=largest > 0)
    finite = np.where(is_finite[:, :, None], groups, np.float32(0))
    step = np.where(is_finite, largest * (np.float32(1) / most), np.float32(np.nan))
    return np.rint(finite * inverse[:, :, None]).astype(np.int64), step


def few_bits_product(rows: np.ndarray, codes: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """A linear layer's product, to the bit.

    Args:
        rows: (n, inputs) float32, numbers of bfloat16; inputs a multiple of 32.
        codes: (outputs, inputs) integers without a sign: of 4 bits, or of 8.
        scales: (outputs, groups, 2) of float16: scale and zero, with 6 bits the scales of 16 inputs each.
        bits: 4, 6 or 8.

    Returns:
        (n, outputs) float32, numbers of bfloat16.
    """
    _check(rows, codes)
    x, step = integers(rows, bits)
    halves = 2 if bits == 6 else 1
    x = x.reshape(len(rows), -1, halves, GROUP // halves)
    signed = codes.reshape(len(codes), -1, halves, GROUP // halves).astype(np.int64) - _offset(bits)
    of_group = scales.astype(np.float32)
    output = np.zeros((len(rows), len(codes)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        total = step * x.sum(axis=(2, 3)).astype(np.float32)
        for group in range(x.shape[1]):
            for half in range(halves):
                dot = (x[:, group, half] @ signed[:, group, half].T).astype(np.float32)
                output += of_group[:, group, half] * dot * step[:, group, None]
            if bits != 6:
                output += of_group[:, group, 1] * total[:, group, None]
        return to_bfloat16(output)


def ideal_product(rows: np.ndarray, codes: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """The same with nothing rounded, in float64."""
    _check(rows, codes)
    steps = codes.reshape(*scales.shape, -1).astype(np.float64) - _offset(bits)
    of_group = scales.astype(np.float64)[..., None]
    weights = steps * (of_group if bits == 6 else of_group[:, :, :1])
    if bits != 6:
        weights += of_group[:, :, 1:]
    product: np.ndarray = rows.astype(np.float64) @ weights.reshape(codes.shape).T
    return product


def _offset(bits: int) -> int:
    """Subtracted from codes."""
    return 8 if bits == 4 else 128


def _check(rows: np.ndarray, codes: np.ndarray) -> None:
    if rows.shape[1] % GROUP or not rows.shape[1]:
        checks.fail("few_bits", "inputs", f"be a multiple of {GROUP}", rows.shape[1])
    if codes.shape[1] != rows.shape[1]:
        checks.fail("few_bits", "codes", f"have {rows.shape[1]} inputs, as rows do", codes.shape[1])
