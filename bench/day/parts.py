# SPDX-License-Identifier: Apache-2.0
"""The parts of a day, in their order. What a part needs is imported in its own process: where it is missing,
the others run."""

from __future__ import annotations

import importlib

from .items import Context, Item, Part

MINUTE = 60


def _part(module: str, what: str, minutes: int, quick_minutes: int) -> Part:
    def items(context: Context) -> list[Item]:
        found: list[Item] = importlib.import_module(f"day.{module}").items(context)
        return found

    return Part(module, what, items, minutes * MINUTE, quick_minutes * MINUTE)


PARTS = (
    _part("environment", "versions, the device, and how popc takes its flags", 60, 2),
    _part("bits", "every kernel, bit for bit against the conformance vectors", 120, 2),
    _part("rules", "what the device model has a rule of, one by one", 180, 3),
    _part("vertices", "every vertex alone: cycles beside its estimate, and its bits", 180, 2),
    _part("programs", "whole programs beside their plans: cold, at hit rates, by a recorded trace", 240, 5),
    _part("poptorch", "attention in a PopTorch session", 60, 1),
)
BY_NAME = {part.name: part for part in PARTS}
