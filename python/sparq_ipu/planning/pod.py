# SPDX-License-Identifier: Apache-2.0
"""Attention of a whole model over the IPUs of a Pod: where it is, whether it fits, how long a token takes.

    print(sparq_ipu.planning.plan_pod(n_layers=32, n_ipus=16, seq_len=65536))

What one IPU does is counted in a dry run, as by `plan`; what passes between IPUs is added, by the model of
links that the emulator has. Tests compare the sum with emulated runs over several IPUs. Every time is
modelled (docs/scaling.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from sparq_ipu.device_options import DeviceOptions, Share
from sparq_ipu.kernels import DEFAULT, Attention, Kernel, kernel_named
from sparq_ipu.planning.device_model import DeviceModel, device_model
from sparq_ipu.planning.links import busiest_link_bytes, gateways, link_seconds
from sparq_ipu.planning.planner import NOT_IN_A_PLAN
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, checks
from sparq_reference.settings import settings_columns


@dataclasses.dataclass(frozen=True)
class PodPlan:
    """Attention of all layers for one token of every batch element; times in modelled seconds.

    With split "layers" IPUs work one after the other on a token. With "heads" they work at once, where
    Poplar runs the programs of the IPUs side by side; `seconds_if_in_turn` is the other end.
    """

    kernel: str
    batch: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    seq_len: int
    settings: SparqSettings | None
    index_bits: int
    model: DeviceModel
    n_layers: int
    n_ipus: int
    split: str
    shares: tuple[Share, ...]
    #: SRAM of the fullest tile, as `Plan.memory`
    memory: dict[str, Any]
    #: bytes in streaming memory of the IPU that has most
    streaming_memory_bytes: int
    #: of a token: compute, exchange, sync, streaming, links, total
    seconds_by_category: dict[str, float]
    #: read and written by the remote copies of a token, over all IPUs
    streamed_bytes: int
    seconds_if_gateway_shared: float
    seconds_if_in_turn: float
    #: of the IPU that works longest on a token: what limits a pipeline of several batches
    seconds_of_busiest_ipu: float
    #: the same, where IPUs behind a gateway share the streaming rate of one
    seconds_of_busiest_ipu_if_gateway_shared: float
    time_source: str = "modelled"

    @property
    def seconds_per_token(self) -> float:
        """Every IPU at its full streaming rate."""
        return self.seconds_by_category["total"]

    @property
    def on_chip_seconds(self) -> float:
        """Compute, exchange within an IPU and sync: estimated from instruction counts."""
        return sum(self.seconds_by_category[name] for name in ("compute", "exchange", "sync"))

    @property
    def tokens_per_second(self) -> float:
        """Of attention alone, one batch at a time."""
        return self.batch / self.seconds_per_token

    @property
    def tokens_per_second_in_flight(self) -> float:
        """As many batches in flight as there are IPUs in turn: "layers" as a pipeline."""
        return self.batch / self.seconds_of_busiest_ipu

    def row(self) -> dict[str, Any]:
        """One flat record, for JSON lines."""
        return {
            "kernel": self.kernel,
            "device": self.model.name,
            "batch": self.batch,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "seq_len": self.seq_len,
            "index_bits": self.index_bits,
            **settings_columns(self.settings),
            "n_layers": self.n_layers,
            "n_ipus": self.n_ipus,
            "n_gateways": gateways(self.n_ipus, self.model),
            "split": self.split,
            "seconds_per_token": self.seconds_per_token,
            "seconds_if_gateway_shared": self.seconds_if_gateway_shared,
            "seconds_if_in_turn": self.seconds_if_in_turn,
            "seconds_if_on_chip_doubled": self.seconds_per_token + self.on_chip_seconds,
            "seconds_of_busiest_ipu": self.seconds_of_busiest_ipu,
            "seconds_of_busiest_ipu_if_gateway_shared": self.seconds_of_busiest_ipu_if_gateway_shared,
            "seconds_by_category": self.seconds_by_category,
            "streamed_bytes": self.streamed_bytes,
            "streaming_memory_bytes": self.streaming_memory_bytes,
            "max_tile_bytes": int(self.memory["bytes"]),
            "time_source": self.time_source,
        }

    def __str__(self) -> str:
        share = self.shares[0]
        us = {name: t * 1e6 for name, t in self.seconds_by_category.items()}
        per_ipu = f"{share.n_layers} layers" if self.split == "layers" else "all layers"
        settings = "" if self.settings is None else f", {self.settings}"
        index = "" if self.index_bits == 16 else f", index_bits {self.index_bits}"
        lines = [
            f"{self.kernel}: {self.n_layers} layers, batch {self.batch}, {self.n_heads} heads, "
            f"{self.n_kv_heads} KV heads, head_dim {self.head_dim}, seq_len {self.seq_len}{index}{settings}",
            f"  {self.n_ipus} IPUs behind {gateways(self.n_ipus, self.model)} gateways, split by "
            f"{self.split}: IPU 0 has {per_ipu}, batch {share.spec.batch}, {share.spec.n_kv_heads} KV heads",
            f"  SRAM: {self.memory['bytes']} of {self.memory['limit']} bytes on the fullest tile",
            f"  streaming memory: at most {self.streaming_memory_bytes / 1e9:.3f} GB of "
            f"{self.model.streaming_memory_bytes / 1e9:.0f} GB an IPU; "
            f"{self.streamed_bytes / 1e6:.3f} MB moved for a token",
            f"  modelled for {self.model.name}, a token: {us['total']:.1f} us = "
            + " + ".join(
                f"{name} {t:.1f}" for name, t in us.items() if name not in ("total", "host_streams")
            ),
        ]
        if self.split == "heads" and self.n_ipus > 1:
            lines += [
                f"  if IPUs behind one gateway share the streaming rate of one: "
                f"{self.seconds_if_gateway_shared * 1e6:.1f} us; the truth lies between",
                f"  if the IPUs' programs run one after the other: {self.seconds_if_in_turn * 1e6:.1f} us",
            ]
        elif self.n_ipus > 1:
            alone, shared = (
                self.batch / t
                for t in (self.seconds_of_busiest_ipu, self.seconds_of_busiest_ipu_if_gateway_shared)
            )
            lines.append(
                f"  one IPU streams at a time; a pipeline of {self.n_ipus} batches: {alone:.1f} tokens/s, "
                f"{shared:.1f} if IPUs behind one gateway share the streaming rate of one"
            )
        lines.append(
            f"  if work on chip took twice as long: "
            f"{(self.seconds_per_token + self.on_chip_seconds) * 1e6:.1f} us"
        )
        lines.append(f"  {NOT_IN_A_PLAN}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class _Request:
    """What is to be planned, checked."""

    kernel: Kernel
    settings: SparqSettings | None
    spec: CacheSpec
    n_heads: int
    model: DeviceModel
    n_layers: int
    append: bool
    options: DeviceOptions

    @property
    def n_ipus(self) -> int:
        return self.options.n_ipus

    @property
    def split(self) -> str:
        return self.options.split


def plan_pod(
    batch: int = 1,
    n_heads: int = 32,
    n_kv_heads: int | None = None,
    head_dim: int = 128,
    seq_len: int = 16384,
    *,
    n_layers: int = 32,
    n_ipus: int = 4,
    split: str = "layers",
    kernel: str = DEFAULT.name,
    rank: int = 32,
    top_k: int = 128,
    n_local: int = 0,
    mean_value: bool = True,
    append: bool = False,
    device: str | DeviceModel = "bow",
    n_tiles: int = 0,
    **options: Any,
) -> PodPlan:
    """Plan attention of all layers over several IPUs, every row full.

    Args:
        n_ipus: a power of two up to 64.
        split: as `sparq_ipu.KVCache`: "layers" or "heads".
        others: as `sparq_ipu.plan`.

    Raises:
        ValueError: an argument out of range.
        DoesNotFit (a ValueError): a tile or the streaming memory of an IPU can not hold its share; message
            and `resource` name the IPU.
        RuntimeError: the extension module is not built, or without the emulator to count with.
    """
    chosen = kernel_named("plan", kernel)
    if chosen.takes == "window":
        checks.fail("plan", "n_ipus", "be 1 for window attention", n_ipus)
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    spec = CacheSpec(batch, kv_heads, head_dim, seq_len, op="plan", **options)
    heads = checks.check_integer("plan", "n_heads", n_heads, 1, checks.MAX_CAPACITY)
    if heads % spec.n_kv_heads != 0:
        checks.fail("plan", "n_heads", f"be a multiple of n_kv_heads={spec.n_kv_heads}", heads)
    settings = None
    if chosen.takes == "sparq":
        settings = SparqSettings(rank, top_k, n_local, mean_value, op="plan", head_dim=head_dim)
    model = device if isinstance(device, DeviceModel) else device_model(device)
    tiles = checks.check_integer("plan", "n_tiles", n_tiles, 0, model.tiles)
    return _planned(
        _Request(
            kernel=chosen,
            settings=settings,
            spec=spec if chosen.takes == "sparq" else dataclasses.replace(spec, index_bits=16),
            n_heads=heads,
            model=dataclasses.replace(model, tiles=tiles) if tiles else model,
            n_layers=checks.check_integer("plan", "n_layers", n_layers, 1, checks.MAX_LAYERS),
            append=append,
            options=DeviceOptions(tiles, n_ipus=n_ipus, split=split, op="plan"),
        )
    )


def _check_streaming_memory(request: _Request, need: int, ipu: int) -> None:
    room = request.model.streaming_memory_bytes
    if need > room:
        resource = f"streaming memory of IPU {ipu}"
        raise DoesNotFit(f"plan: {resource} must be at most {room} bytes, got {need}", resource, need, room)


def _counted(request: _Request, share: Share, ipu: int) -> dict[str, Any]:
    """What the emulator counts for one IPU, as if it were alone: all its layers, one after the other."""
    from sparq_ipu import _core

    if not _core.has_emulator:
        raise RuntimeError("plan: the extension module must be built with the emulator, got one without")
    of_layer = sum(request.kernel.streaming_bytes(share.spec).values())
    _check_streaming_memory(request, of_layer * share.n_layers, ipu)  # before memory for the dry run
    try:
        counted: dict[str, Any] = _core.emulator_plan(
            share.spec,
            request.n_heads * share.spec.n_kv_heads // request.spec.n_kv_heads,
            Attention(request.kernel.name, request.settings),
            [share.spec.capacity] * share.spec.batch,
            options=dataclasses.replace(request.options, n_ipus=1),
            model=request.model.parameters(),
            append=request.append,
            n_layers=share.n_layers,
            stacked=True,
        )
    except DoesNotFit as error:
        if error.resource.startswith("tile memory"):
            resource = f"tile memory of IPU {ipu}"
            raise DoesNotFit(f"{error} (IPU {ipu})", resource, error.need, error.room) from error
        raise
    _check_streaming_memory(request, sum(n for _, n, _ in counted["streaming_memory"]), ipu)
    return counted


def _streamed(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [step for step in steps if step["kind"].startswith("remote")]


def _seconds_beyond(model: DeviceModel, n_at_once: int, steps: Sequence[dict[str, Any]]) -> float:
    """What remote copies take longer where so many IPUs stream through one gateway."""
    shared = model.with_streaming_share(1 / min(n_at_once, model.ipus_per_gateway))
    seconds = 0.0
    for step in _streamed(steps):
        copy = step["bytes"], step["packets"], step["rows"]
        seconds += step["executions"] * (shared.streaming_seconds(*copy) - model.streaming_seconds(*copy))
    return seconds


class _Between:
    """What passes between IPUs: an exchange on the chips, a sync and the links, by category."""

    def __init__(self, request: _Request, mapping_slots: int):
        self._request = request
        group = request.n_heads // request.spec.n_kv_heads
        self._task_bytes = group * request.spec.head_dim * 2
        self._slots = mapping_slots

    def home_bytes(self, n_tasks: int) -> int:
        """Of a tile that holds the queries of its tasks."""
        return -(-n_tasks // self._slots) * self._task_bytes

    def exchange(self, tile_bytes: int) -> dict[str, float]:
        model = self._request.model
        cycles = model.exchange_fixed_cycles + -(-tile_bytes // int(model.exchange_bytes_per_cycle))
        return {"exchange": cycles / model.clock_hz, "sync": model.sync_cycles / model.clock_hz}

    def hand_over(self, source: int) -> dict[str, float]:
        """The output of an IPU's last layer goes to the next IPU."""
        request = self._request
        flows = {(source, source + 1): request.spec.n_tasks * self._task_bytes}
        links = link_seconds(request.model, flows, request.n_ipus)
        return {**self.exchange(self.home_bytes(request.spec.n_tasks)), "links": links}

    def scatter_and_gather(self, share: Share) -> dict[str, float]:
        """The query goes from IPU 0 to all, their outputs come back: of one layer."""
        request = self._request
        n_bytes = share.spec.n_tasks * self._task_bytes
        out = {(0, ipu): n_bytes for ipu in range(1, request.n_ipus)}
        back = {(ipu, 0): n_bytes for ipu in range(1, request.n_ipus)}
        both = self.exchange(self.home_bytes(request.spec.n_tasks))
        links = sum(link_seconds(request.model, flows, request.n_ipus) for flows in (out, back))
        # both exchange as much on IPU 0; that of the outputs is counted there already, but for its bytes
        more = self.exchange(self.home_bytes(request.spec.n_tasks - share.spec.n_tasks))["exchange"]
        more -= self.exchange(0)["exchange"]
        return {"exchange": both["exchange"] + more, "sync": both["sync"], "links": links}


def _slots(counted: dict[str, Any], request: _Request) -> int:
    return int(counted["mapping"]["slots"])


def _planned(request: _Request) -> PodPlan:
    shares = request.options.shares("plan", request.spec, request.n_layers)
    counts: dict[int, dict[str, Any]] = {}  # by the layers of a share: nothing else differs
    for ipu, share in enumerate(shares):
        if share.n_layers not in counts:
            counts[share.n_layers] = _counted(request, share, ipu)
    names = ("compute", "exchange", "sync", "streaming", "links")
    fullest = max(counts.values(), key=lambda c: c["memory"]["bytes"])
    between = _Between(request, _slots(fullest, request))
    model, n_ipus = request.model, request.n_ipus
    total = dict.fromkeys(names, 0.0)

    def add(seconds: dict[str, float], times: int = 1) -> None:
        for name in names:
            total[name] += times * seconds.get(name, 0.0)

    alone = [counts[share.n_layers]["seconds"] for share in shares]
    steps = [counts[share.n_layers]["steps"] for share in shares]
    longest = max(range(n_ipus), key=lambda ipu: alone[ipu]["total"])
    if request.split == "layers":
        for seconds in alone:
            add(seconds)
        for ipu in range(n_ipus - 1):
            add(between.hand_over(ipu))
        beyond = 0.0
        in_turn = sum(total.values())
        last = between.hand_over(0) if n_ipus > 1 else {}
        busiest = alone[longest]["total"] + 2 * sum(last.values())
    else:
        add(alone[0])
        shared = between.scatter_and_gather(shares[0]) if n_ipus > 1 else {}
        add(shared, request.n_layers)
        beyond = _seconds_beyond(model, n_ipus, steps[0])
        in_turn = sum(total.values()) + (n_ipus - 1) * alone[0]["total"]
        busiest = sum(total.values())
    return PodPlan(
        kernel=request.kernel.name,
        batch=request.spec.batch,
        n_heads=request.n_heads,
        n_kv_heads=request.spec.n_kv_heads,
        head_dim=request.spec.head_dim,
        seq_len=request.spec.capacity,
        settings=request.settings,
        index_bits=request.spec.index_bits,
        model=model,
        n_layers=request.n_layers,
        n_ipus=n_ipus,
        split=request.split,
        shares=tuple(shares),
        memory=fullest["memory"],
        streaming_memory_bytes=max(
            sum(n for _, n, _ in counted["streaming_memory"]) for counted in counts.values()
        ),
        seconds_by_category={**total, "total": sum(total.values())},
        streamed_bytes=sum(s["bytes"] * s["executions"] for of_ipu in steps for s in _streamed(of_ipu)),
        seconds_if_gateway_shared=sum(total.values()) + beyond,
        seconds_if_in_turn=in_turn,
        seconds_of_busiest_ipu=busiest,
        seconds_of_busiest_ipu_if_gateway_shared=busiest + _seconds_beyond(model, n_ipus, steps[longest]),
    )


__all__ = ["PodPlan", "busiest_link_bytes", "plan_pod"]
