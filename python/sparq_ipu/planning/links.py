# SPDX-License-Identifier: Apache-2.0
"""Links between IPUs: what an exchange takes on them. The emulator has the same in C++ (its src/links.cpp); a
test compares the two.

IPUs form a ladder, two to a rung, as PopLibs sets up the IPU Model of several IPUs: four links join the two
of a rung for what they send each other, two carry what goes on from there, and two lead up and two down to
the next IPU of the same side. What goes to the other side crosses first.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Iterator, Mapping

from sparq_ipu.planning.device_model import DeviceModel

#: (from, to): bytes
Flows = Mapping["tuple[int, int]", int]

_LINKS = {"rung": 4, "across": 2, "up": 2, "down": 2}


def _hops(source: int, target: int) -> Iterator[tuple[int, str]]:
    """The groups of links that bytes take: (IPU, which way)."""
    if source // 2 == target // 2:
        yield source, "rung"
        return
    at = source
    if at % 2 != target % 2:
        yield at, "across"
        at ^= 1
    while at != target:
        way = "up" if at < target else "down"
        yield at, way
        at += 2 if way == "up" else -2


def busiest_link_bytes(flows: Flows) -> int:
    """Bytes over the link that has most."""
    groups: Counter[tuple[int, str]] = Counter()
    for (source, target), n_bytes in flows.items():
        for group in _hops(source, target):
            groups[group] += n_bytes
    return max((-(-n_bytes // _LINKS[way]) for (_, way), n_bytes in groups.items()), default=0)


def sync_hops(n_ipus: int) -> int:
    """How far the message goes that all IPUs have met."""
    return 1 + n_ipus // 4


def exchange_seconds(model: DeviceModel, tile_bytes: int) -> dict[str, float]:
    """What an exchange between IPUs takes on the chips, beside the links: the most a tile sends or receives,
    and a sync."""
    cycles = model.exchange_fixed_cycles + -(-tile_bytes // int(model.exchange_bytes_per_cycle))
    return {"exchange": cycles / model.clock_hz, "sync": model.sync_cycles / model.clock_hz}


def link_seconds(model: DeviceModel, flows: Flows, n_ipus: int) -> float:
    """What it takes on the links."""
    bytes_time = busiest_link_bytes(flows) / model.link_bytes_per_second
    return bytes_time + 2 * sync_hops(n_ipus) * model.link_hop_seconds


def gateways(n_ipus: int, model: DeviceModel) -> int:
    """Machines that so many IPUs are in."""
    return math.ceil(n_ipus / model.ipus_per_gateway)
