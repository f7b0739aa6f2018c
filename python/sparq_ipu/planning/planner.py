# SPDX-License-Identifier: Apache-2.0
"""What an attention program would do on an IPU, without running it: tiles, waves, memory, bytes, time.

    print(sparq_ipu.plan(seq_len=16384, rank=32, top_k=128))

The device program is built and compiled as for a run and then counted in a dry run, which carries out only
what control flow depends on: no cache is allocated and nothing is computed. Every time is modelled
(docs/device_model.md).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any, Sequence

import numpy as np

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import BASELINE, DEFAULT, Attention, Kernel, Settings, kernel_named
from sparq_ipu.planning.device_model import DeviceModel, device_model
from sparq_ipu.planning.measured_range import footprint_extrapolated
from sparq_ipu.planning.on_chip import on_chip_range, on_chip_seconds
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, WindowSettings, checks
from sparq_reference.settings import settings_columns

#: of plans of attention alone, for people
NOT_IN_A_PLAN = "Not in it: weights, and the caches of other batches in flight (sparq-ipu plan has both)"

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
    """One kernel on one shape; times in modelled seconds of one query token of the whole batch."""

    kernel: str
    batch: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    seq_len: int
    #: None for dense attention
    settings: Settings
    #: of the cache, by name: index_bits
    options: dict[str, Any]
    #: share of the selected rows that is taken to be hot; None where none can be
    hit_rate: float | None
    model: DeviceModel
    n_ipus: int
    #: layers of this shape that share the programs, all on every one of the IPUs
    n_layers: int
    #: (batch, n_heads, n_kv_heads) of one IPU
    per_ipu: tuple[int, int, int]
    #: tasks, slots, parts, rounds, tiles used, chunk, capacity and waves of one IPU
    mapping: dict[str, Any]
    #: SRAM of the fullest tile, bytes: total, limit, by kind, and the largest users
    memory: dict[str, Any]
    #: bytes of each buffer in the streaming memory of one IPU
    streaming_memory: dict[str, int]
    stages: tuple[Stage, ...]
    #: by category: compute, exchange, sync, streaming, host_streams
    seconds_by_category: dict[str, float]
    #: read from and written to streaming memory by one IPU
    streamed_bytes: int
    seconds_per_query: float
    #: with several IPUs: where those behind one gateway share the streaming rate of one
    seconds_if_gateway_shared: float
    #: seconds of dense-streaming over seconds of this; None where that was not planned or does not fit
    speedup_vs_dense_streaming: float | None = None
    speedup_if_gateway_shared: float | None = None
    #: where work on chip takes both twice as long as estimated
    speedup_if_on_chip_doubled: float | None = None
    #: the emulator's counts by step, as `emulator_last_run` has them
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list, repr=False)
    time_source: str = "modelled"
    #: whether the engine runs with the option target.extendedMemory
    extended_memory: bool = False

    @property
    def footprint_extrapolated(self) -> bool:
        """Whether the cache of one IPU is larger than any that was measured for the device model."""
        return footprint_extrapolated(kernel_named("plan", self.kernel), self.streaming_memory_bytes)

    @property
    def seconds_per_token(self) -> float:
        """Attention of all layers for one token of every batch element."""
        return self.n_layers * self.seconds_per_query

    @property
    def max_tile_bytes(self) -> int:
        return int(self.memory["bytes"])

    @property
    def streaming_memory_bytes(self) -> int:
        return sum(self.streaming_memory.values())

    @property
    def on_chip_seconds(self) -> float:
        """All but remote copies: estimated from instruction counts, not measured."""
        return on_chip_seconds(self.seconds_by_category)

    @property
    def seconds_if_on_chip_doubled(self) -> float:
        """The other end of the range of `seconds_per_query`: work on chip takes twice as long."""
        return self.seconds_per_query + self.on_chip_seconds

    @property
    def fixed_seconds(self) -> float:
        """All but the bytes and packets of remote copies: work on chip, and the copies' fixed cost."""
        copies = sum(s.executions for s in self.stages if s.kind.startswith("remote"))
        streaming = self.seconds_by_category["streaming"] - copies * self.model.remote_copy_seconds
        return self.seconds_by_category["total"] - streaming

    def stages_by_name(self, depth: int = 2) -> dict[str, float]:
        """Seconds by the first components of the steps' debug paths, in program order."""
        result: dict[str, float] = {}
        for stage in self.stages:
            name = "/".join(stage.name.split("/")[:depth])
            result[name] = result.get(name, 0.0) + stage.seconds
        return result

    def row(self) -> dict[str, Any]:
        """One flat record, for JSON lines; the names are those of bench/ipu_sparq.py."""
        return {
            "kernel": self.kernel,
            "device": self.model.name,
            "batch": self.batch,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "seq_len": self.seq_len,
            **self.options,
            **settings_columns(self.settings),
            "n_ipus": self.n_ipus,
            "n_layers": self.n_layers,
            "hit_rate": self.hit_rate,
            "seconds_per_query": self.seconds_per_query,
            "seconds_per_token": self.seconds_per_token,
            "time_source": self.time_source,
            "seconds_if_gateway_shared": self.seconds_if_gateway_shared,
            **on_chip_range(self.seconds_by_category),
            "seconds_by_category": self.seconds_by_category,
            "fixed_seconds": self.fixed_seconds,
            "stages": self.stages_by_name(),
            "streamed_bytes": self.streamed_bytes,
            "speedup_vs_dense_streaming": self.speedup_vs_dense_streaming,
            "speedup_if_gateway_shared": self.speedup_if_gateway_shared,
            "speedup_if_on_chip_doubled": self.speedup_if_on_chip_doubled,
            "max_tile_bytes": self.max_tile_bytes,
            "tile_bytes_by_kind": tile_bytes_by_kind(self.memory),
            "tile_bytes_limit": int(self.memory["limit"]),
            "streaming_memory_bytes": self.streaming_memory_bytes,
            "extended_memory": self.extended_memory,
            "footprint_extrapolated": self.footprint_extrapolated,
            "mapping": self.mapping,
        }

    def __str__(self) -> str:
        m, waves = self.mapping, self.mapping["waves"]
        usual = _options({}, self.head_dim)
        settings = "".join(
            f", {name} {value}" for name, value in self.options.items() if value != usual[name]
        )
        settings += "" if self.settings is None else f", {self.settings}"
        lines = [
            f"{self.kernel}: batch {self.batch}, {self.n_heads} heads, {self.n_kv_heads} KV heads, "
            f"head_dim {self.head_dim}, seq_len {self.seq_len}{settings}",
            f"  tiles: {m['n_tasks']} tasks in {m['rounds']} rounds of {m['slots']} slots of {m['parts']} "
            f"tiles; {m['tiles_used']} of {self.model.tiles} used",
            f"  waves: at most {waves['n_waves']} of {waves['positions_per_wave']} positions",
            f"  SRAM: {self.max_tile_bytes} of {self.memory['limit']} bytes on tile {self.memory['tile']}: "
            + ", ".join(f"{name} {n}" for name, n in self.memory["largest"][:4]),
            "    by kind: "
            + ", ".join(
                f"{kind.replace('_', ' ')} {n}" for kind, n in tile_bytes_by_kind(self.memory).items()
            ),
            f"  streaming memory: {self.streaming_memory_bytes / 1e9:.3f} GB of "
            f"{self.model.streaming_memory_bytes / 1e9:.0f} GB per IPU; "
            f"{self.streamed_bytes / 1e6:.3f} MB moved"
            + (", target.extendedMemory" if self.extended_memory else "")
            + ("; larger than any measured: times extrapolated" if self.footprint_extrapolated else ""),
            f"  modelled for {self.model.name}: {self.seconds_per_query * 1e6:.1f} us, "
            + ", ".join(
                f"{name} {t * 1e6:.1f}"
                for name, t in self.seconds_by_category.items()
                if name != "total" and t > 0
            ),
        ]
        if self.hit_rate is not None:
            lines.insert(
                1,
                f"  hot rows: {m['hot_rows']} of each KV head; {self.hit_rate:.0%} of the selected rows are "
                "taken to be among them",
            )
        if self.n_layers > 1:
            lines.insert(1, f"  {self.n_layers} layers: memory is of all of them, times of one call of one")
            all_layers = f"{self.seconds_per_token * 1e6:.1f} us a token"
            lines[-1] += f"; all layers one after the other: {all_layers}"
        if self.n_ipus > 1:
            share = min(self.n_ipus, self.model.ipus_per_gateway)
            lines.insert(
                1,
                f"  {self.n_ipus} IPUs: each has batch {self.per_ipu[0]}, {self.per_ipu[1]} heads, "
                f"{self.per_ipu[2]} KV heads; all below is of one IPU",
            )
            lines[-1] += " (every IPU at its full streaming rate)"
            lines.append(
                f"  modelled, {share} IPUs sharing the streaming rate of one: "
                f"{self.seconds_if_gateway_shared * 1e6:.1f} us; the truth lies between"
            )
        lines.append(
            f"  on chip {self.on_chip_seconds * 1e6:.1f} us, estimated; if it were twice that: "
            f"{self.seconds_if_on_chip_doubled * 1e6:.1f} us"
        )
        if self.speedup_vs_dense_streaming is not None:
            lines.append(
                f"  predicted speed-up over dense-streaming: {self.speedup_vs_dense_streaming:.2f}x"
                + (
                    f", {self.speedup_if_on_chip_doubled:.2f}x if both had twice the work on chip"
                    if self.speedup_if_on_chip_doubled is not None
                    else ""
                )
            )
        lines.append("  by stage, modelled us:")
        lines += [f"    {name:<40} {t * 1e6:>12.2f}" for name, t in self.stages_by_name().items()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class _Request:
    """What is to be planned, checked."""

    kernel: Kernel
    settings: Settings
    batch: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    seq_len: int
    lengths: tuple[int, ...]
    append: bool
    model: DeviceModel
    n_ipus: int
    n_layers: int
    device_options: DeviceOptions
    #: None where no rows can be hot
    hit_rate: float | None
    #: of the cache, by name
    options: dict[str, Any]

    @property
    def per_ipu(self) -> tuple[int, int, int]:
        """(batch, n_heads, n_kv_heads) of one IPU."""
        return split(self.batch, self.n_heads, self.n_kv_heads, self.n_ipus)

    @property
    def cache(self) -> CacheSpec:
        """The cache of one IPU."""
        batch, _, n_kv_heads = self.per_ipu
        return CacheSpec(batch, n_kv_heads, self.head_dim, self.seq_len, op="plan", **self.options)

    @property
    def shares(self) -> list[tuple[int, ...]]:
        """Lengths of the batch elements of each IPU; IPUs with the same lengths do the same."""
        batch = self.per_ipu[0]
        return sorted({self.lengths[b : b + batch] for b in range(0, self.batch, batch)})


def _options(given: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Options of a cache by name, checked, those that are not given too."""
    spec = CacheSpec(1, 1, head_dim, 1, op="plan", **given)
    return {name: getattr(spec, name) for name in CacheSpec.options()}


def _check_cache_in_sram(model: DeviceModel, n_bytes: int) -> None:
    if n_bytes > model.tiles * model.tile_bytes:
        need = math.ceil(n_bytes / model.tiles)
        raise DoesNotFit(
            f"plan: tile memory: the fullest tile must need at most {model.tile_bytes} bytes, "
            f"got {need} (of the cache alone, over {model.tiles} tiles)",
            "tile memory",
            need,
            model.tile_bytes,
        )


def _check_streaming_memory(model: DeviceModel, buffers: dict[str, int]) -> None:
    need = sum(buffers.values())
    if need > model.streaming_memory_bytes:
        largest = ", ".join(f"{name} {n}" for name, n in sorted(buffers.items(), key=lambda x: -x[1]))
        raise DoesNotFit(
            f"plan: streaming memory of an IPU must be at most {model.streaming_memory_bytes} bytes, "
            f"got {need} ({largest})",
            "streaming memory",
            need,
            model.streaming_memory_bytes,
        )


def split(batch: int, n_heads: int, n_kv_heads: int, n_ipus: int) -> tuple[int, int, int]:
    """The share (batch, n_heads, n_kv_heads) of one IPU: KV heads are split first, then the batch. All shares
    are alike: one executable serves all processes.

    Raises:
        ValueError: KV heads and batch do not split evenly over so many IPUs.
    """
    heads = math.gcd(n_ipus, n_kv_heads)
    if batch % (n_ipus // heads) != 0:
        raise ValueError(
            "plan: n_ipus must split n_kv_heads, then batch, evenly, "
            f"got n_ipus={n_ipus}, n_kv_heads={n_kv_heads}, batch={batch}"
        )
    return batch // (n_ipus // heads), n_heads // heads, n_kv_heads // heads


def plan(
    batch: int = 1,
    n_heads: int = 32,
    n_kv_heads: int | None = None,
    head_dim: int = 128,
    seq_len: int = 16384,
    *,
    kernel: str = DEFAULT.name,
    rank: int = 32,
    top_k: int = 128,
    n_local: int | None = None,
    mean_value: bool = True,
    n_recent: int = 32,
    lengths: Sequence[int] | None = None,
    append: bool = False,
    device: str | DeviceModel = "bow",
    n_ipus: int = 1,
    n_layers: int = 1,
    n_tiles: int = 0,
    hot_rows: int = 0,
    hit_rate: float = 0.0,
    wave_rows: int = 0,
    baseline: bool = True,
    **options: Any,
) -> Plan:
    """Plan one attention call.

    Args:
        batch, n_heads, n_kv_heads, head_dim: of the layer; n_kv_heads None: as many as n_heads.
        seq_len: capacity of the cache in positions, and its length unless `lengths` says otherwise.
        kernel: a name of `sparq_ipu.kernels.KERNELS`.
        rank, top_k, n_local, mean_value: of SparQ attention; n_local None: 0. Not used by dense attention.
        top_k, n_local, n_recent: of window attention; n_local None: half of top_k.
        lengths: (batch,) positions held by each batch element, in [1, seq_len].
        append: whether the program that appends on the device is compiled too (a `KVCache` has it; it takes
            tile memory).
        device: name of a device model ("bow", "gc200"), or a model.
        n_ipus: IPUs that share KV heads, then batch, each with a process; nothing passes between them. Of
            window attention 1.
        n_layers: layers of this shape on the same IPUs, in [1, 1024]. Times are of one layer's call, memory
            is of all; `seconds_per_token` is the time of all layers. Dense attention in SRAM has one only.
        n_tiles: tiles of the IPU; 0: all.
        hot_rows, wave_rows: of a cache in three tiers, see `sparq_ipu.device_options.DeviceOptions`.
        hit_rate: of a cache in three tiers, in [0, 1]: the share of selected rows that is taken to be hot;
            0: all are read from streaming memory. Not predicted: docs/device_model.md has what was measured.
        options: of the cache, see `sparq_reference.CacheSpec`: index_bits (16, 8 or 4; in three tiers 4 where
            it is not given), row_bits (16; in three tiers also 8). As the settings, not used by
            dense attention.
        baseline: for a kernel that takes settings, plan dense-streaming too, for the predicted speed-up.

    Raises:
        ValueError: an argument out of range.
        DoesNotFit (a ValueError): tile memory or the streaming memory of an IPU can not hold it.
        RuntimeError: the extension module is not built, or without the emulator to count with.
    """
    chosen = kernel_named("plan", kernel)
    of_tiers = dict(hot_rows=hot_rows, hit_rate=hit_rate, wave_rows=wave_rows)
    for name, value in {} if chosen.memory == "tiered" else of_tiers.items():
        if value:
            checks.fail("plan", name, f"be 0 for kernel {kernel!r}, which has no hot rows", repr(value))
    request = _checked(
        chosen,
        (batch, n_heads, n_heads if n_kv_heads is None else n_kv_heads, head_dim, seq_len, n_ipus),
        (rank, top_k, n_local, mean_value, n_recent),
        lengths,
        append,
        device if isinstance(device, DeviceModel) else device_model(device),
        DeviceOptions(n_tiles, chosen.memory, hot_rows=hot_rows, wave_rows=wave_rows, op="plan"),
        checks.check_integer("plan", "n_layers", n_layers, 1, checks.MAX_LAYERS),
        _check_hit_rate(hit_rate),
        {"index_bits": 4, **options} if chosen.memory == "tiered" else options,
    )
    result = _planned(request)
    if request.kernel is BASELINE:
        return dataclasses.replace(
            result,
            speedup_vs_dense_streaming=1.0,
            speedup_if_gateway_shared=1.0,
            speedup_if_on_chip_doubled=1.0,
        )
    if request.kernel.is_dense or not baseline:
        return result
    try:
        plain = _options({}, request.head_dim)
        dense = _planned(
            dataclasses.replace(request, kernel=BASELINE, settings=None, append=False, options=plain)
        )
    except DoesNotFit:  # there is no speed-up over it then
        return result
    return dataclasses.replace(
        result,
        speedup_vs_dense_streaming=dense.seconds_per_query / result.seconds_per_query,
        speedup_if_gateway_shared=dense.seconds_if_gateway_shared / result.seconds_if_gateway_shared,
        speedup_if_on_chip_doubled=dense.seconds_if_on_chip_doubled / result.seconds_if_on_chip_doubled,
    )


def _checked(
    kernel: Kernel,
    sizes: tuple[object, ...],
    settings: tuple[int, int, int | None, bool, int],
    lengths: object,
    append: bool,
    model: DeviceModel,
    device_options: DeviceOptions,
    n_layers: int,
    hit_rate: float,
    options: dict[str, Any],
) -> _Request:
    """Arguments of `plan` as a request."""
    for name in options:
        if name not in CacheSpec.options():
            own = [p.name for p in inspect.signature(plan).parameters.values() if p.kind is p.KEYWORD_ONLY]
            checks.fail("plan", "options", f"be among {[*own, *CacheSpec.options()]}", repr(name))
    names = ("batch", "n_heads", "n_kv_heads", "head_dim", "seq_len", "n_ipus")
    batch, n_heads, n_kv_heads, head_dim, seq_len, n_ipus = (
        checks.check_integer("plan", name, size, 1, checks.MAX_CAPACITY) for name, size in zip(names, sizes)
    )
    checked = _options(options, head_dim)
    tiles = checks.check_integer("plan", "n_tiles", device_options.n_tiles, 0, model.tiles)
    if n_heads % n_kv_heads != 0:
        checks.fail("plan", "n_heads", f"be a multiple of n_kv_heads={n_kv_heads}", n_heads)
    if lengths is None:
        held = np.full(batch, seq_len)
    else:
        high = np.full(batch, seq_len)
        held = checks.check_integers("plan", "lengths", lengths, batch, 1, high, f"[1, seq_len={seq_len}]")
    request = _Request(
        kernel=kernel,
        settings=_settings(kernel, head_dim, *settings),
        device_options=device_options,
        hit_rate=hit_rate if kernel.memory == "tiered" else None,
        batch=batch,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        seq_len=seq_len,
        lengths=tuple(held.tolist()),
        append=append,
        model=dataclasses.replace(model, tiles=tiles) if tiles else model,
        n_ipus=n_ipus,
        n_layers=n_layers,
        options=_options({}, head_dim) if kernel.is_dense else checked,
    )
    if isinstance(request.settings, WindowSettings):
        request.settings.check_heads("plan", n_heads)
        if n_ipus != 1:  # a share of the heads would select for itself
            checks.fail("plan", "n_ipus", "be 1 for window attention", n_ipus)
    device_options.check("plan", request.cache, n_layers, [request.settings])
    return request


def _settings(
    kernel: Kernel, head_dim: int, rank: int, top_k: int, n_local: int | None, mean_value: bool, n_recent: int
) -> Settings:
    """Of these arguments of `plan` those that the kernel takes."""
    if kernel.takes == "window":
        return WindowSettings(top_k, n_local, n_recent, op="plan")  # type: ignore[arg-type]  # None: half
    if kernel.is_dense:
        return None
    n_local = 0 if n_local is None else n_local
    return SparqSettings(rank, top_k, n_local, mean_value, op="plan", head_dim=head_dim)


def _check_hit_rate(hit_rate: object) -> float:
    if isinstance(hit_rate, bool) or not isinstance(hit_rate, (int, float)) or not 0 <= hit_rate <= 1:
        checks.fail("plan", "hit_rate", "be in [0, 1]", repr(hit_rate))
    return float(hit_rate)


def _counted(request: _Request) -> dict[str, Any]:
    """What the emulator counts in a dry run of one IPU, the slowest one."""
    try:
        from sparq_ipu import _core
    except ImportError as error:
        raise RuntimeError(f"plan: the extension module must be built, got none ({error})") from error
    if not _core.has_emulator:
        raise RuntimeError("plan: the extension module must be built with the emulator, got one without")
    # before the dry run, whose own time and memory grow with the size
    _check_cache_in_sram(request.model, request.kernel.sram_bytes(request.cache) * request.n_layers)
    of_layer = request.kernel.streaming_bytes(request.cache)
    _check_streaming_memory(request.model, {name: n * request.n_layers for name, n in of_layer.items()})
    counts = (
        _core.emulator_plan(
            request.cache,
            request.per_ipu[1],
            Attention(request.kernel.name, request.settings),
            list(share),
            options=request.device_options,
            model=request.model.parameters(),
            append=request.append,
            n_layers=request.n_layers,
            hit_rate=request.hit_rate or 0.0,
        )
        for share in request.shares
    )
    return max(counts, key=lambda c: c["seconds"]["total"])


def _seconds_beyond(model: DeviceModel, n_ipus: int, steps: list[dict[str, Any]]) -> float:
    """What remote copies take longer where IPUs share the streaming rate of one."""
    shared = model.with_streaming_share(1 / min(n_ipus, model.ipus_per_gateway))

    def beyond(step: dict[str, Any]) -> float:
        copy = step["bytes"], step["packets"], step["rows"]
        seconds = shared.streaming_seconds(*copy) - model.streaming_seconds(*copy)
        return seconds * int(step["executions"])

    return sum(map(beyond, steps))


def _planned(request: _Request) -> Plan:
    model = request.model
    counted = _counted(request)
    streaming_memory = {name: n for name, n, _ in counted["streaming_memory"]}
    _check_streaming_memory(model, streaming_memory)
    steps = counted["steps"]
    streamed = [s for s in steps if s["kind"].startswith("remote")]
    seconds = counted["seconds"]["total"]
    return Plan(
        kernel=request.kernel.name,
        batch=request.batch,
        n_heads=request.n_heads,
        n_kv_heads=request.n_kv_heads,
        head_dim=request.head_dim,
        seq_len=request.seq_len,
        settings=request.settings,
        options=request.options,
        hit_rate=request.hit_rate,
        model=model,
        n_ipus=request.n_ipus,
        n_layers=request.n_layers,
        per_ipu=request.per_ipu,
        mapping=counted["mapping"],
        memory=counted["memory"],
        streaming_memory=streaming_memory,
        stages=tuple(
            Stage(
                s["name"],
                s["kind"],
                s["executions"],
                s["seconds"]["total"],
                s["bytes"] * s["executions"] if s["kind"].startswith("remote") else 0,
            )
            for s in steps
        ),
        seconds_by_category=counted["seconds"],
        streamed_bytes=sum(s["bytes"] * s["executions"] for s in streamed),
        seconds_per_query=seconds,
        seconds_if_gateway_shared=seconds + _seconds_beyond(model, request.n_ipus, streamed),
        steps=steps,
        extended_memory=counted["extended_memory"],
    )
