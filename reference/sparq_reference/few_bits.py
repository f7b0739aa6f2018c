# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weights have 4 or 8 bits (contract E15): the exact twin, and the ideal one in float64.

Numbers of bfloat16 are float32 arrays here, of which the lower 16 bits are 0.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import checks

#: inputs that are rounded together, and that share a scale and a zero with 4 bits
GROUP = 32
#: a group has 16 bits where its largest magnitude is more than this many times the mean of the row's groups
_WIDE_FROM = np.float32(3)
#: the largest integers of 8 and 16 bits
_NARROW, _WIDE = np.float32(127), np.float32(127 * 256)
#: magnitudes below the first are 0 in a group that has none above; from the second on they are infinite
_LEAST, _INFINITE = np.float32(2.0**-100), np.float32(2.0**120)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 numbers as bfloat16 has them: to nearest, ties to even; a NaN stays one."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def integers(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's groups as integers times a step.

    Args:
        rows: (n, inputs) float32, numbers of bfloat16.
        bits: of the weights, 4 or 8.

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
        is_wide = (bits == 8) | (largest * np.float32(n_groups) > total * _WIDE_FROM)
    most = np.where(is_wide, _WIDE, _NARROW)
    inverse = np.divide(most, largest, out=np.zeros_like(largest), where=largest > 0)
    finite = np.where(is_finite[:, :, None], groups, np.float32(0))
    step = np.where(is_finite, largest * (np.float32(1) / most), np.float32(np.nan))
    return np.rint(finite * inverse[:, :, None]).astype(np.int64), step


def few_bits_product(
    rows: np.ndarray, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> np.ndarray:
    """A linear layer's product, to the bit.

    Args:
        rows: (n, inputs) float32, numbers of bfloat16; inputs a multiple of 32.
        codes: (outputs, inputs) integers: in [0, 15] with a zero, in [-127, 127] without.
        scale: (outputs, groups) with a zero, (outputs,) without; float32, numbers of bfloat16.
        zero: as the scale; None: weights of 8 bits.

    Returns:
        (n, outputs) float32, numbers of bfloat16.
    """
    _check(rows, codes)
    x, step = integers(rows, 8 if zero is None else 4)
    of_group = codes.reshape(len(codes), -1, GROUP).astype(np.int64) - (0 if zero is None else 8)
    output = np.zeros((len(rows), len(codes)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        total = step * x.sum(axis=2).astype(np.float32)
        for group in range(x.shape[1]):
            dot = (x[:, group] @ of_group[:, group].T).astype(np.float32)
            if zero is None:
                output += dot * step[:, group, None]
            else:
                output += scale[:, group] * dot * step[:, group, None]
                output += zero[:, group] * total[:, group, None]
        return to_bfloat16(output * scale if zero is None else output)


def ideal_product(
    rows: np.ndarray, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
) -> np.ndarray:
    """The same with nothing rounded, in float64."""
    _check(rows, codes)
    weights = codes.astype(np.float64)
    if zero is None:
        weights = weights * scale[:, None]
    else:
        of_group = weights.reshape(len(codes), -1, GROUP) - 8
        weights = (of_group * scale[:, :, None] + zero[:, :, None]).reshape(codes.shape)
    product: np.ndarray = rows.astype(np.float64) @ weights.T
    return product


def _check(rows: np.ndarray, codes: np.ndarray) -> None:
    if rows.shape[1] % GROUP or not rows.shape[1]:
        checks.fail("few_bits", "inputs", f"be a multiple of {GROUP}", rows.shape[1])
    if codes.shape[1] != rows.shape[1]:
        checks.fail("few_bits", "codes", f"have {rows.shape[1]} inputs, as rows do", codes.shape[1])
