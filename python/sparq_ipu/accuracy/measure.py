# SPDX-License-Identifier: Apache-2.0
"""Intervals: percentile bootstrap over items (contexts), which are the independent units.

Items are resampled in pairs where two methods are compared.
"""

from __future__ import annotations

import dataclasses

import numpy as np

RESAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """value, and its 95 % interval [low, high]; n items."""

    value: float
    low: float
    high: float
    n: int


def _resamples(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, size=(RESAMPLES, n))


def ratio(over: np.ndarray, under: np.ndarray, seed: int = 0) -> Estimate:
    """sum(over) / sum(under) over items.

    over, under: (n,). With one item the interval is that point, which says nothing.
    """
    over, under = np.asarray(over, dtype=float), np.asarray(under, dtype=float)
    index = _resamples(len(over), seed)
    draws = over[index].sum(1) / under[index].sum(1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(over.sum() / under.sum(), float(low), float(high), len(over))


def paired_difference(
    over: np.ndarray, under: np.ndarray, base_over: np.ndarray, base_under: np.ndarray, seed: int = 0
) -> Estimate:
    """Ratio of a method minus that of another on the same items, which are resampled together.

    over, under, base_over, base_under: (n,), all in the same order of items.
    """
    arrays = [np.asarray(array, dtype=float) for array in (over, under, base_over, base_under)]
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(f"paired_difference: lengths must be equal, got {[len(array) for array in arrays]}")
    index = _resamples(len(arrays[0]), seed)
    sums = [array[index].sum(1) for array in arrays]
    low, high = np.percentile(sums[0] / sums[1] - sums[2] / sums[3], [2.5, 97.5])
    value = arrays[0].sum() / arrays[1].sum() - arrays[2].sum() / arrays[3].sum()
    return Estimate(float(value), float(low), float(high), len(arrays[0]))
