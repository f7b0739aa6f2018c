# SPDX-License-Identifier: Apache-2.0
"""The range of a modelled time. Streaming is fitted on measurements; work on chip is estimated by rules that
were held to what others measured. A time is therefore given thrice: as the rules say, which is likely, and
with each kind of work on chip as much shorter and longer as those measurements were (docs/device_model.md,
"The on-chip range")."""

from __future__ import annotations

from typing import Mapping

from sparq_ipu.planning.device_model import parameters_file

#: columns of a row that say it
ON_CHIP_COLUMNS = ("on_chip_seconds", "seconds_low", "seconds_high")
#: of compute, exchange and sync the least and the most that was measured, over what the rules say
FACTORS: dict[str, tuple[float, float]] = {
    category: (low, high) for category, (low, high) in parameters_file()["on_chip_range"].items()
}


def on_chip_seconds(seconds_by_category: Mapping[str, float]) -> float:
    """Of a modelled time all but remote copies: compute, exchange, sync."""
    return seconds_by_category["total"] - seconds_by_category["streaming"]


def seconds_low(seconds_by_category: Mapping[str, float]) -> float:
    """With work on chip as short as any that was measured."""
    return seconds_by_category["total"] - sum(
        (1 - low) * seconds_by_category[category] for category, (low, _) in FACTORS.items()
    )


def seconds_high(seconds_by_category: Mapping[str, float]) -> float:
    """With work on chip as long as any that was measured."""
    return seconds_by_category["total"] + sum(
        (high - 1) * seconds_by_category[category] for category, (_, high) in FACTORS.items()
    )


def on_chip_range(seconds_by_category: Mapping[str, float]) -> dict[str, float]:
    """The columns of a row."""
    of = seconds_by_category
    return dict(zip(ON_CHIP_COLUMNS, (on_chip_seconds(of), seconds_low(of), seconds_high(of))))
