# SPDX-License-Identifier: Apache-2.0
"""From counts to seconds: the parameters of an IPU, for a Bow IPU and for a GC200 (Mk2).

Every time that comes from here is *modelled*. The parameters are in `data/device_models.json`; the emulator's
C++ model has the same numbers and the same formulas (a test compares them). What they mean, how they were
fitted and what is extrapolated: docs/device_model.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Mapping

PARAMETERS = Path(__file__).resolve().parent / "data" / "device_models.json"

#: names of the devices that have a model
NAMES = ("bow", "gc200")


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """One IPU and its share of the streaming memory.

    A remote copy (one `Copy` between SRAM and streaming memory) takes

        (bytes * (1 + shared_rows) + packets * packet_overhead_bytes) / streaming_bytes_per_second
        + remote_copy_seconds

    A packet holds at most 1 KiB, and neither spans two rows nor two tiles.
    """

    name: str
    #: tile cycles per second
    clock_hz: float
    tiles: int
    #: in or out of one tile
    exchange_bytes_per_cycle: float
    #: of a piece of an exchange, beside its bytes
    exchange_piece_cycles: float
    #: internal sync
    sync_cycles: int
    #: an exchange phase, beside its bytes
    exchange_fixed_cycles: int
    #: a compute set, beside its vertices
    compute_set_fixed_cycles: int
    #: a copy within a tile: an element of a short piece, beside its bytes
    local_element_cycles: float
    local_bytes_per_cycle: float
    #: fitted: streaming memory, read
    streaming_bytes_per_second: float
    #: fitted: a packet costs as much as so many bytes
    packet_overhead_bytes: float
    #: fitted with an assumption: of every remote copy
    remote_copy_seconds: float
    #: fitted: see `shared_rows`
    shared_row_penalty: float
    #: bytes of a row from which on the penalty grows no further
    shared_row_knee_bytes: float
    host_stream_bytes_per_second: float
    #: one link to another IPU, in one direction
    link_bytes_per_second: float
    #: of the message that all IPUs have met, there or back
    link_hop_seconds: float
    #: SRAM of a tile
    tile_bytes: int
    #: streaming memory of one IPU
    streaming_memory_bytes: int
    #: IPUs that share a gateway, and with it their way to streaming memory
    ipus_per_gateway: int

    def parameters(self) -> dict[str, Any]:
        """What the emulator's C++ model takes, by name."""
        fields = dataclasses.asdict(self)
        for name in ("name", "tile_bytes", "streaming_memory_bytes", "ipus_per_gateway"):
            del fields[name]
        return fields

    def shared_rows(self, n_bytes: float, rows: int) -> float:
        """Share of its bytes that a gather takes longer because some tiles share a row (1 < rows < tiles)."""
        if rows <= 1 or rows >= self.tiles:
            return 0.0
        growth = self.shared_row_growth(n_bytes / rows)
        return self.shared_row_penalty * growth * math.sqrt(1 - rows / self.tiles)

    def shared_row_growth(self, row_bytes: float) -> float:
        """How the penalty of shared rows depends on the length of a row: 1 from the knee on."""
        return min(1.0, row_bytes / self.shared_row_knee_bytes)

    def streaming_seconds(self, n_bytes: float, packets: int, rows: int) -> float:
        """Modelled seconds of one remote copy."""
        payload = n_bytes * (1 + self.shared_rows(n_bytes, rows))
        return (
            payload + self.packet_overhead_bytes * packets
        ) / self.streaming_bytes_per_second + self.remote_copy_seconds

    def with_streaming_share(self, share: float) -> DeviceModel:
        """The same IPU where only this share of its streaming rate is left to it."""
        if not 0 < share <= 1:
            raise ValueError(f"device_model: share must be in (0, 1], got {share}")
        return dataclasses.replace(self, streaming_bytes_per_second=self.streaming_bytes_per_second * share)


def parameters_file() -> dict[str, Any]:
    """The content of `data/device_models.json`."""
    content: dict[str, Any] = json.loads(PARAMETERS.read_text())
    return content


def device_model(name: str = "bow") -> DeviceModel:
    """The model of one IPU: "bow" (fitted on measurements), or "gc200" (the Mk2 IPU: the same chip at 1.33
    GHz; nothing of it was measured); or a file that ends in .json, as `bench/calibrate.py --day` writes it.
    """
    if isinstance(name, str) and name.endswith(".json"):
        return _from_file(name)
    if name not in NAMES:
        raise ValueError(f"device_model: name must be one of {', '.join(NAMES)}, got {name!r}")
    content = parameters_file()
    bow = DeviceModel(name="bow", **content["bow"], **content["limits"])
    if name == "bow":
        return bow
    # The fitted streaming rate of a Bow IPU is 4 bytes a tile cycle to within a percent.
    clock = content["gc200_clock_hz"]
    rate = bow.streaming_bytes_per_second * (clock / bow.clock_hz)
    return dataclasses.replace(bow, name=name, clock_hz=clock, streaming_bytes_per_second=rate)


def _from_file(path: str) -> DeviceModel:
    try:
        return DeviceModel(**json.loads(Path(path).read_text()))
    except OSError as error:
        reason = error.strerror or "not read"
    except (TypeError, ValueError):
        reason = "not the fields of a DeviceModel"
    raise ValueError(f"device_model: name must be a file of a device model, got {path!r} ({reason})")


def device_name(text: str) -> str:
    """For a flag --device: a name, or a file."""
    try:
        device_model(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2].replace("name must", "must")) from None
    return text


# ---- The range of a modelled time. Streaming is fitted on measurements; work on chip is estimated by rules
# that were held to what others measured. A time is therefore given thrice: as the rules say, which is
# likely, and with each kind of work on chip as much shorter and longer as those measurements were
# (docs/device_model.md, "The on-chip range").

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
