# SPDX-License-Identifier: Apache-2.0
"""Numbers as bit patterns, in which the sign of a zero and what a NaN holds count too."""

from __future__ import annotations

import numpy as np


def bits_of(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def assert_bits(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Equal dtypes, shapes and bits, or a message with the first place where they differ."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), what
    different = np.argwhere(bits_of(actual) != bits_of(expected))
    if len(different):
        at = tuple(different[0].tolist())
        got, right = (np.atleast_1d(x)[at] for x in (actual, expected))
        message = f"{len(different)} of {actual.size} differ, first at {at}: got {got!r}, expected {right!r}"
        raise AssertionError(f"{what}: {message}")
