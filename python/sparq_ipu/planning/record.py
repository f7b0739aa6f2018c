# SPDX-License-Identifier: Apache-2.0
"""A plan: its record, row and text."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparq_ipu.kernels import Kernel
from sparq_ipu.planning.device_model import on_chip_range, on_chip_seconds, seconds_high, seconds_low
from sparq_ipu.planning.request import Request

#: of plans of attention alone, for people
NOT_IN_A_PLAN = "Not in it: weights, and the caches of other batches in flight (sparq-ipu plan has both)"

#: Bytes of the largest caches in streaming memory whose programs were measured for the device model: of SparQ
#: attention, which keeps keys twice, and of dense attention. Larger ones may be slower there, so their times
#: are marked as extrapolated.
MEASURED_SPARQ, MEASURED_DENSE = 1_610_612_736, 4_294_967_296
#: a cache of the measured shape has some rows more here, which no query reads
_SCRATCH = 1.05

#: what the SRAM of a tile is counted as, by its names in `Plan.memory`; the last five are the estimated code
TILE_KINDS = (
    "variables",
    "vertex_state",
    "temporaries",
    "vertex_code",
    "stacks",
    "control_code",
    "exchange_code",
    "host_exchange_code",
)


def tile_bytes_by_kind(memory: dict[str, Any]) -> dict[str, int]:
    """Of the fullest tile; `memory` as `emulator_memory` has it."""
    return {kind: int(memory[kind]) for kind in TILE_KINDS}


#: attributes of a plan in its row; and those over dense attention
_COLUMNS = (
    *("seconds_per_query", "seconds_per_token", "seconds_by_category", "fixed_seconds", "streamed_bytes"),
    *("max_tile_bytes", "streaming_memory_bytes", "extended_memory", "footprint_extrapolated", "mapping"),
)
SPEEDUPS = ("speedup_vs_best_dense", "speedup_low", "speedup_high", "speedup_vs_dense_streaming")


def footprint_extrapolated(kernel: Kernel, streaming_memory_bytes: int) -> bool:
    """Whether a cache of so many bytes of streaming memory on one IPU is larger than any measured, by more
    than scratch rows."""
    measured = MEASURED_SPARQ if kernel.takes == "sparq" else MEASURED_DENSE
    return streaming_memory_bytes > _SCRATCH * measured


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the program, all its executions together."""

    name: str
    kind: str  # compute, copy, remote-read, ...
    executions: int
    seconds: float  # modelled
    streamed_bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """One kernel on one shape; times in modelled seconds of one query token of the whole batch. Its layers
    share the programs."""

    request: Request
    #: tasks, slots, parts, rounds, tiles used, chunk, capacity and waves
    mapping: dict[str, Any]
    #: SRAM of the fullest tile, bytes: total, limit, by kind, and the largest users
    memory: dict[str, Any]
    #: bytes of each buffer in streaming memory
    streaming_memory: dict[str, int]
    stages: tuple[Stage, ...]
    #: by category: compute, exchange, sync, streaming, host_streams
    seconds_by_category: dict[str, float]
    #: read from and written to streaming memory
    streamed_bytes: int
    seconds_per_query: float
    #: seconds of the best dense plan over seconds of this; None where no dense plan was made or fits
    speedup_vs_best_dense: float | None = None
    #: the same with work on chip of both at the high end of its range, and at the low one
    speedup_low: float | None = None
    speedup_high: float | None = None
    #: seconds of dense-streaming over seconds of this, as in the SparQ paper
    speedup_vs_dense_streaming: float | None = None
    #: the emulator's counts by step, as `emulator_last_run` has them
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list, repr=False)
    #: whether the engine runs with the option target.extendedMemory
    extended_memory: bool = False

    @property
    def footprint_extrapolated(self) -> bool:
        """Whether the cache of one IPU is larger than any that was measured for the device model."""
        return footprint_extrapolated(self.request.kernel, self.streaming_memory_bytes)

    @property
    def wide_rows(self) -> bool:
        """Whether keys and values are in SRAM in fp32, not in fp16."""
        return bool(self.mapping.get("wide_rows", False))

    @property
    def seconds_per_token(self) -> float:
        """Attention of all layers for one token of every batch element."""
        return self.request.n_layers * self.seconds_per_query

    @property
    def max_tile_bytes(self) -> int:
        return int(self.memory["bytes"])

    @property
    def streaming_memory_bytes(self) -> int:
        return sum(self.streaming_memory.values())

    @property
    def on_chip_seconds(self) -> float:
        """All but remote copies: estimated by rules, not measured."""
        return on_chip_seconds(self.seconds_by_category)

    @property
    def seconds_low(self) -> float:
        """The low end of the range of `seconds_per_query`, which is likely."""
        return seconds_low(self.seconds_by_category)

    @property
    def seconds_high(self) -> float:
        """Its high end."""
        return seconds_high(self.seconds_by_category)

    @property
    def fixed_seconds(self) -> float:
        """All but the bytes and packets of remote copies: work on chip, and the copies' fixed cost."""
        copies = sum(s.executions for s in self.stages if s.kind.startswith("remote"))
        streaming = self.seconds_by_category["streaming"] - copies * self.request.model.remote_copy_seconds
        return self.seconds_by_category["total"] - streaming

    def stages_by_name(self) -> dict[str, float]:
        """Seconds by the first two components of the steps' debug paths, in program order."""
        result: dict[str, float] = {}
        for stage in self.stages:
            name = "/".join(stage.name.split("/")[:2])
            result[name] = result.get(name, 0.0) + stage.seconds
        return result

    def row(self) -> dict[str, Any]:
        """One flat record, for JSON lines."""
        return {
            **self.request.columns(),
            **{name: getattr(self, name) for name in (*_COLUMNS, *SPEEDUPS)},
            "time_source": "modelled",
            **on_chip_range(self.seconds_by_category),
            "stages": self.stages_by_name(),
            "tile_bytes_by_kind": tile_bytes_by_kind(self.memory),
            "tile_bytes_limit": int(self.memory["limit"]),
        }

    def __str__(self) -> str:
        request = self.request
        m, waves = self.mapping, self.mapping["waves"]
        lines = [
            f"{request.kernel.name}: {request}",
            f"  tiles: {m['n_tasks']} tasks in {m['rounds']} rounds of {m['slots']} slots of {m['parts']} "
            f"tiles; {m['tiles_used']} of {request.model.tiles} used",
            f"  waves: at most {waves['n_waves']} of {waves['positions_per_wave']} positions",
            f"  SRAM: {self.max_tile_bytes} of {self.memory['limit']} bytes on tile {self.memory['tile']}: "
            + ", ".join(f"{name} {n}" for name, n in self.memory["largest"][:4]),
            "    by kind: "
            + ", ".join(
                f"{kind.replace('_', ' ')} {n}" for kind, n in tile_bytes_by_kind(self.memory).items()
            ),
            f"  streaming memory: {self.streaming_memory_bytes / 1e9:.3f} GB of "
            f"{request.model.streaming_memory_bytes / 1e9:.0f} GB per IPU; "
            f"{self.streamed_bytes / 1e6:.3f} MB moved"
            + (", target.extendedMemory" if self.extended_memory else "")
            + ("; larger than any measured: times extrapolated" if self.footprint_extrapolated else ""),
            f"  modelled for {request.model.name}: {self.seconds_per_query * 1e6:.1f} us, "
            + ", ".join(
                f"{name} {t * 1e6:.1f}"
                for name, t in self.seconds_by_category.items()
                if name != "total" and t > 0
            ),
        ]
        if "wide_rows" in m:
            lines.insert(1, f"  keys and values: {'fp32' if self.wide_rows else 'fp16'} in SRAM")
        if request.hit_rate is not None:
            lines.insert(
                1,
                f"  hot rows: {m['hot_rows']} of each KV head; "
                f"{request.hit_rate:.0%} of the selected rows are taken to be among them",
            )
        if request.n_layers > 1:
            lines.insert(
                1, f"  {request.n_layers} layers: memory is of all of them, times of one call of one"
            )
            all_layers = f"{self.seconds_per_token * 1e6:.1f} us a token"
            lines[-1] += f"; all layers one after the other: {all_layers}"
        lines.append(
            f"  on chip {self.on_chip_seconds * 1e6:.1f} us, estimated; all, low, likely, high: "
            f"{self.seconds_low * 1e6:.1f}, {self.seconds_per_query * 1e6:.1f}, "
            f"{self.seconds_high * 1e6:.1f} us"
        )
        if self.speedup_vs_best_dense is not None:
            lines.append(
                f"  predicted speed-up over the best dense plan: {self.speedup_vs_best_dense:.3g}x "
                f"(with work on chip high {self.speedup_low:.3g}x, low {self.speedup_high:.3g}x)"
            )
        if self.speedup_vs_dense_streaming is not None:
            lines.append(f"  over dense-streaming: {self.speedup_vs_dense_streaming:.3g}x")
        lines.append("  by stage, modelled us:")
        lines += [f"    {name:<40} {t * 1e6:>12.2f}" for name, t in self.stages_by_name().items()]
        return "\n".join(lines)
