# SPDX-License-Identifier: Apache-2.0
"""The range of a modelled time. Streaming is fitted on measurements; work on chip is estimated from
instruction counts, and nothing of it was measured. A time is therefore given as estimated, and with the work
on chip twice as long (docs/device_model.md, "The on-chip range")."""

from __future__ import annotations

from typing import Mapping

#: columns of a row that say it
ON_CHIP_COLUMNS = ("on_chip_seconds", "seconds_if_on_chip_doubled")


def on_chip_seconds(seconds_by_category: Mapping[str, float]) -> float:
    """Of a modelled time all but remote copies: compute, exchange, sync."""
    return seconds_by_category["total"] - seconds_by_category["streaming"]


def on_chip_range(seconds_by_category: Mapping[str, float]) -> dict[str, float]:
    """The columns of a row."""
    on_chip = on_chip_seconds(seconds_by_category)
    return dict(zip(ON_CHIP_COLUMNS, (on_chip, seconds_by_category["total"] + on_chip)))
