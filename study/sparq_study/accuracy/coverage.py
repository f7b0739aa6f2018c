# SPDX-License-Identifier: Apache-2.0
"""How often the intervals of few items hold the truth, by simulation: why `measure` has the one it has.

`python study/accuracy.py --coverage` writes the lines of which docs/study.md shows the table.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable, Tuple

import numpy as np

from sparq_ipu.commands.tables import markdown_table

from . import measure

SIZES = (3, 4, 5, 6, 12)  # items
TRIALS, RESAMPLES = 4000, 1000

Draw = Callable[[np.random.Generator, Tuple[int, int]], np.ndarray]
Interval = Callable[[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]


def _hits(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.binomial(30, 0.9, shape) / 30


#: what one item may look like -> (its mean, drawing it)
DISTRIBUTIONS: dict[str, tuple[float, Draw]] = {
    "normal": (0.0, lambda rng, shape: rng.normal(0, 1, shape)),
    "27 of 30 right": (0.9, _hits),
    "exponential": (1.0, lambda rng, shape: rng.exponential(1, shape)),
    "lognormal": (math.exp(0.5), lambda rng, shape: rng.lognormal(0, 1, shape)),
}
LARGEST_WEIGHT = 2.0  # of an item, the smallest being 1: texts of one length in tokens differ in characters


def jackknife_t(over: np.ndarray, under: np.ndarray, level: float = measure.LEVEL) -> Any:
    """The interval of `measure.ratio`. over, under: (trials, n). Returns: low, high, both (trials,)."""
    value = over.sum(1) / under.sum(1)
    return measure.t_interval(value, measure.pseudo_values(over, under), level)


def _draws(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """The ratio of items drawn with replacement: (trials, RESAMPLES), ascending."""
    n = over.shape[1]
    index = np.random.default_rng(0).integers(0, n, size=(RESAMPLES, n))
    draws = np.stack([o[index].sum(1) / u[index].sum(1) for o, u in zip(over, under)])
    draws.sort(axis=1)
    return draws


def percentile(over: np.ndarray, under: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap, 95 %."""
    low, high = np.percentile(_draws(over, under), [2.5, 97.5], axis=1)
    return low, high


def bca(over: np.ndarray, under: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap, bias-corrected and accelerated (Efron 1987), 95 %."""
    normal = statistics.NormalDist()
    draws = _draws(over, under)
    value = over.sum(1) / under.sum(1)
    pseudo = measure.pseudo_values(over, under)
    influence = pseudo - pseudo.mean(1, keepdims=True)
    acceleration = (influence**3).sum(1) / np.maximum((influence**2).sum(1), 1e-100) ** 1.5 / 6
    below = (draws < value[:, None]).mean(1) / 2 + (draws <= value[:, None]).mean(1) / 2
    bias = np.array([normal.inv_cdf(share) for share in np.clip(below, 1e-3, 1 - 1e-3)])
    ends = []
    for share in (0.025, 0.975):
        z = bias + normal.inv_cdf(share)
        corrected = np.array([normal.cdf(x) for x in bias + z / (1 - acceleration * z)])
        at = np.clip((corrected * RESAMPLES).astype(int), 0, RESAMPLES - 1)
        ends.append(draws[np.arange(len(draws)), at])
    return ends[0], ends[1]


METHODS: dict[str, Interval] = {
    "percentile bootstrap": percentile,
    "BCa bootstrap": bca,
    "t, 95 %": lambda over, under: jackknife_t(over, under, 0.95),
    f"t, {100 * measure.LEVEL:.1f} %": jackknife_t,
}


def simulate(
    distribution: str,
    n: int,
    interval: Interval = jackknife_t,
    largest_weight: float = LARGEST_WEIGHT,
    trials: int = TRIALS,
) -> tuple[float, float]:
    """(share of the intervals that hold the truth, their mean width), of trials of n items.

    The weight of an item is uniform between 1 and largest_weight. Trials without an interval are left out.
    The same arguments give the same numbers.
    """
    truth, draw = DISTRIBUTIONS[distribution]
    rng = np.random.default_rng([n, list(DISTRIBUTIONS).index(distribution)])
    value = draw(rng, (trials, n))
    under = rng.uniform(1, largest_weight, (trials, n))
    low, high = interval(value * under, under)
    shown = np.isfinite(high)
    low, high = low[shown], high[shown]
    return float(((low <= truth) & (truth <= high)).mean()), float((high - low).mean())


def lines() -> list[dict[str, Any]]:
    """One line per distribution, n and method. Takes about ten seconds."""
    found = []
    for distribution in DISTRIBUTIONS:
        for n in SIZES:
            for name, interval in METHODS.items():
                covered, width = simulate(distribution, n, interval)
                line = {"items": distribution, "n": n, "method": name}
                found.append({**line, "coverage": round(covered, 3), "width": round(width, 3)})
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Coverage, and the mean width in brackets. found: as from `lines`."""
    methods = list(dict.fromkeys(line["method"] for line in found))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for line in found:
        cell = f"{line['coverage']:.2f} ({line['width']:.2f})"
        rows.setdefault((line["items"], str(line["n"])), {})[line["method"]] = cell
    body = [[*key, *(cells[method] for method in methods)] for key, cells in rows.items()]
    return markdown_table(["items", "n", *methods], body)
