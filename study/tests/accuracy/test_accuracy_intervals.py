# SPDX-License-Identifier: Apache-2.0
"""Intervals: their level, the weights of items, what they cover, and where there is none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sparq_study.accuracy import measure, report
from sparq_study.accuracy.measure import Estimate
from sparq_study.accuracy.tasks import Metric

ROOT = Path(__file__).resolve().parents[3]
SIZES = range(3, 13)  # items of the tasks of the study

OVER, UNDER = [3.0, 1.0, 10.0, 6.0], [4.0, 4.0, 20.0, 7.0]  # ratios 0.75, 0.25, 0.5, 0.857
BASE_OVER, BASE_UNDER = [1.0, 2.0, 5.0, 1.0], [5.0, 4.0, 10.0, 8.0]
T_3 = 5.0472924583  # of 98.5 %, 3 degrees of freedom


@pytest.mark.parametrize(
    ("level", "degrees", "t"),
    [
        (0.95, 1, 12.7062047362),
        (0.95, 2, 4.3026527297),
        (0.95, 3, 3.1824463053),
        (0.95, 5, 2.5705818356),
        (0.95, 11, 2.2009851601),
        (0.95, 30, 2.0422724563),
        (0.90, 4, 2.1318467863),
        (0.99, 10, 3.1692726726),
        (0.985, 1, math.tan(math.pi * 0.985 / 2)),  # Cauchy
        (0.985, 3, T_3),
        (0.985, 2, 0.985 * math.sqrt(2 / (1 - 0.985**2))),  # closed form
    ],
)
def test_t_quantile_equals_known_values(level, degrees, t):
    assert measure.t_quantile(level, degrees) == pytest.approx(t, rel=1e-9)


def left_out(over, under):
    """The ratio without each item."""
    return [sum(over[:i] + over[i + 1 :]) / sum(under[:i] + under[i + 1 :]) for i in range(len(over))]


def by_hand(value, without):
    """The jackknife interval of 4 items by its other formula: (n - 1) / n times the squares of what leaving
    out changes."""
    mean = sum(without) / 4
    half = T_3 * math.sqrt(3 / 4 * sum((x - mean) ** 2 for x in without))
    return value - half, value + half


def test_ratio_has_the_level_and_the_weights_it_says():
    estimate = measure.ratio(np.array(OVER), np.array(UNDER))
    assert (estimate.value, estimate.n) == (pytest.approx(20 / 35), 4)  # the mean of the ratios is 0.589
    assert (estimate.low, estimate.high) == pytest.approx(by_hand(20 / 35, left_out(OVER, UNDER)), rel=1e-6)


def test_paired_difference_has_the_level_and_the_weights_it_says():
    estimate = measure.paired_difference(*map(np.array, (OVER, UNDER, BASE_OVER, BASE_UNDER)))
    value = 20 / 35 - 9 / 27
    pairs = zip(left_out(OVER, UNDER), left_out(BASE_OVER, BASE_UNDER))
    assert (estimate.value, estimate.n) == (pytest.approx(value), 4)
    wanted = by_hand(value, [first - second for first, second in pairs])
    assert (estimate.low, estimate.high) == pytest.approx(wanted, rel=1e-6)


def test_with_equal_weights_it_is_the_t_interval_of_the_mean():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    estimate = measure.ratio(values, np.full(4, 2.0))
    half = T_3 * values.std(ddof=1) / 2 / 2
    assert (estimate.low, estimate.high) == pytest.approx((2 - half, 2 + half), rel=1e-6)


def test_paired_difference_removes_what_items_share():
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 10, 20)
    one = np.ones(20)
    paired = measure.paired_difference(hard + 1 + rng.normal(0, 0.1, 20), one, hard, one)
    assert 0.8 < paired.low < paired.high < 1.2
    unpaired = measure.ratio(hard, one)
    assert unpaired.high - unpaired.low > 5  # negative control: unpaired, the difference of 1 would drown
    message = r"^paired_difference: lengths must be equal, got \[20, 20, 19, 19\]$"
    with pytest.raises(ValueError, match=message):
        measure.paired_difference(hard, one, hard[1:], one[1:])


#: what one item may look like: its mean, drawing it, and the share of intervals that must hold the mean
ITEMS = {
    "normal": (0.0, lambda rng, shape: rng.normal(0, 1, shape), 0.93),
    "27 of 30 right": (0.9, lambda rng, shape: rng.binomial(30, 0.9, shape) / 30, 0.93),
    "exponential": (1.0, lambda rng, shape: rng.exponential(1, shape), 0.88),
    "lognormal": (math.exp(0.5), lambda rng, shape: rng.lognormal(0, 1, shape), 0.88),
}


def covered(items: str, n: int, largest_weight: float, level: float = measure.LEVEL) -> float:
    """The share of intervals that hold the truth, of n items with weights from 1 to `largest_weight`."""
    truth, draw, _ = ITEMS[items]
    rng = np.random.default_rng([n, list(ITEMS).index(items)])
    values = draw(rng, (10_000, n))
    under = rng.uniform(1, largest_weight, values.shape)
    over = values * under
    pseudo = measure.pseudo_values(over, under)
    low, high = measure.t_interval(over.sum(1) / under.sum(1), pseudo, level)
    shown = np.isfinite(high)
    return float(((low <= truth) & (truth <= high))[shown].mean())


@pytest.mark.parametrize("largest_weight", [1.0, 2.0])
@pytest.mark.parametrize("items", ITEMS)
def test_intervals_hold_the_truth_often_enough(items, largest_weight):
    for n in SIZES:
        assert covered(items, n, largest_weight) >= ITEMS[items][2], n


def test_intervals_at_95_percent_hold_it_less_often():
    """Negative control, and the reason for the level."""
    assert covered("lognormal", 6, 2.0, 0.95) < 0.85


@pytest.mark.parametrize("n", [1, 2, 5])
def test_items_that_all_say_the_same_have_no_interval(n):
    weights = np.arange(1.0, n + 1)
    same = measure.ratio(0.9 * weights, weights)
    assert same == Estimate(pytest.approx(0.9), -math.inf, math.inf, n)
    gap = measure.paired_difference(0.9 * weights, weights, 0.7 * weights, weights)
    assert (gap.low, gap.high) == (-math.inf, math.inf)
    assert report.interval(gap, 3, "+") == "+0.200" and not report.clear(gap)


def test_clear_needs_five_items_and_an_interval_without_zero():
    assert report.clear(Estimate(1.0, 0.5, 1.5, 5)) and report.clear(Estimate(-1.0, -1.5, -0.5, 5))
    assert not report.clear(Estimate(1.0, 0.5, 1.5, 4))
    assert not report.clear(Estimate(1.0, -0.1, 2.1, 12))
    assert not report.clear(Estimate(1.0, 0.0, 2.0, 12))


def test_intervals_of_a_metric_stay_in_its_range_and_differences_are_not_cut():
    items = {i: {"sums": {"hits": hits, "n": 10}} for i, hits in enumerate((10, 10, 10, 9))}
    base = {i: {"sums": {"hits": 0, "n": 10}} for i in items}
    share = report.estimate(items, Metric("a", "hits", "n", "high", most=1.0))
    assert share.high == 1.0 and 0.8 < share.low < 0.975
    assert (
        report.estimate(items, Metric("a", "hits", "n", "high")).high > 1.05
    )  # a metric without a largest value
    few = {i: {"sums": {"hits": hits, "n": 10}} for i, hits in enumerate((0, 0, 0, 1))}
    assert report.estimate(few, Metric("a", "hits", "n", "low")).low == 0.0
    gap = report.difference(items, base, Metric("a", "hits", "n", "high", most=1.0))
    assert gap is not None and gap.high > 1.05
