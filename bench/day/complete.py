# SPDX-License-Identifier: Apache-2.0
"""What the model says of a day that was measured where there was no emulator: a build against the SDK has
none, and no plans. Done where the archive is read."""

from __future__ import annotations

import importlib
from typing import Any, Iterable

from .items import failed


def completed(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records, each result with what the model says of it; where it can say nothing, with why."""
    return [_one(record) if _lacks(record) else record for record in records]


def _lacks(record: dict[str, Any]) -> bool:
    return bool(
        record["event"] == "result" and record.get("seconds") is not None and record.get("modelled") is None
    )


def _one(record: dict[str, Any]) -> dict[str, Any]:
    part: Any = importlib.import_module(f"day.{record['part']}")
    try:
        made: dict[str, Any] = part.at_home(record)
        return made
    except (ValueError, RuntimeError) as error:
        return {**record, "not_modelled": failed(error)}
