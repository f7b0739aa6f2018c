# SPDX-License-Identifier: Apache-2.0
"""Attention of a whole model over the IPUs of a Pod: where it is, whether it fits, how long a token takes.

    sparq_ipu.planning.plan_pod(n_layers=32, n_ipus=16, seq_len=65536).row()

What one IPU does is counted in a dry run, as by `plan`; what passes between IPUs is added, with heads split
by another dry run, else by the model of links that the emulator has. Tests compare the sum with emulated
runs over several IPUs. `plan_model` adds what is no attention: weights, and the hidden states that pass
between IPUs. Every time is modelled (docs/ipu_plans.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from sparq_ipu.device_options import Share
from sparq_ipu.kernels import DEFAULT
from sparq_ipu.planning.counting import counted, counted_between, seconds_beyond, streamed_bytes
from sparq_ipu.planning.device_model import DeviceModel, seconds_high, seconds_low
from sparq_ipu.planning.links import exchange_seconds, gateways, link_seconds
from sparq_ipu.planning.request import Request, check_request

#: attributes of a plan in its row
_COLUMNS = (
    *("split", "seconds_per_token", "seconds_if_gateway_shared", "seconds_if_in_turn"),
    *("seconds_of_busiest_ipu", "seconds_of_busiest_ipu_if_gateway_shared", "seconds_by_category"),
    *("streamed_bytes", "streaming_memory_bytes"),
)


@dataclasses.dataclass(frozen=True)
class PodPlan:
    """Attention of all layers for one token of every batch element; times in modelled seconds.

    With split "layers" IPUs work one after the other on a token. With "heads" they take each step at once.
    That remote copies of several IPUs, which follow one another in the program, go on at once was measured
    nowhere; `seconds_if_in_turn` is the other end, where they do not.
    """

    request: Request
    shares: tuple[Share, ...]
    #: of the IPU with the fullest tile
    counts: dict[str, Any]
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

    @property
    def split(self) -> str:
        """What an IPU has: some of the "layers" or some of the "heads"."""
        return self.request.device_options.split

    @property
    def memory(self) -> dict[str, Any]:
        """SRAM of the fullest tile, as `Plan.memory`."""
        memory: dict[str, Any] = self.counts["memory"]
        return memory

    @property
    def seconds_per_token(self) -> float:
        """Every IPU at its full streaming rate."""
        return self.seconds_by_category["total"]

    def row(self) -> dict[str, Any]:
        """One flat record, for JSON lines."""
        return {
            **self.request.columns(),
            "n_gateways": gateways(self.request.n_ipus, self.request.model),
            **{name: getattr(self, name) for name in _COLUMNS},
            "seconds_low": seconds_low(self.seconds_by_category),
            "seconds_high": seconds_high(self.seconds_by_category),
            "max_tile_bytes": int(self.memory["bytes"]),
            "time_source": "modelled",
        }


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
    append: bool = False,
    device: str | DeviceModel = "bow",
    hit_rate: float = 0.0,
    **options: Any,
) -> PodPlan:
    """Plan attention of all layers over several IPUs, every row full. Arguments and errors are those of
    `sparq_ipu.plan`; with DoesNotFit, message and `resource` name the IPU.

    Args:
        n_ipus: a power of two up to 64.
        split: as `sparq_ipu.KVCache`: "layers" or "heads".
    """
    sizes = dict(batch=batch, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, seq_len=seq_len)
    how: dict[str, Any] = dict(append=append, device=device, n_layers=n_layers, hit_rate=hit_rate)
    return planned(check_request(plan_pod, sizes, kernel, options, n_ipus=n_ipus, split=split, **how))


def _hand_over(request: Request, slots: int, source: int) -> dict[str, float]:
    """The output of the last layer of IPU `source` goes to the next IPU: an exchange on the chips, a sync and
    the links, by category. `slots` share the tasks."""
    model, n_tasks = request.model, request.cache.n_tasks
    of_task = 2 * request.cache.head_dim * (request.n_heads // request.cache.n_kv_heads)
    links = link_seconds(model, {(source, source + 1): n_tasks * of_task}, request.n_ipus)
    return {**exchange_seconds(model, -(-n_tasks // slots) * of_task), "links": links}


def _together(of_ipu: Sequence[dict[str, Any]], between: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds by category where IPUs take the steps of one of them together. They agree on each branch, and
    on the number of waves of misses once the misses are counted. What an IPU alone copies from layer to
    layer goes between them."""
    from sparq_ipu import _core

    names_of = _core.steps_of_several_ipus()
    branches = tuple(f"/{name}" for name in names_of["branches_by_number"])
    of_waves = [step for step in between if f"/{names_of['agreed']}" in step["name"]]
    of_switch = [step for step in between if f"/{names_of['switch']}" in step["name"]]
    rest = [step for step in between if step not in of_waves and step not in of_switch]
    of_branch = [step for step in rest if step["kind"] in ("branch", "compute")]
    copied = [step for step in rest if step not in of_branch]
    names = {step["name"] for step in copied}
    total: dict[str, float] = {}

    def add(step: dict[str, Any], times: float = 1.0) -> None:
        for name, seconds in step["seconds"].items():
            total[name] = total.get(name, 0.0) + times * seconds

    for step in copied:
        add(step)
    for step in of_ipu:
        agreed = of_branch if step["kind"] == "branch" else []
        if step["name"].endswith(branches):  # four bytes of each IPU are compared; of other branches one
            agreed = of_switch
        elif step["name"].endswith(f"/{names_of['before_agreed']}"):
            agreed = of_waves
        for part in agreed:
            add(part, step["executions"] / part["executions"])
        if step["kind"] != "branch" and step["name"] not in names:
            add(step)
    return total


def planned(request: Request) -> PodPlan:
    """What `plan_pod` returns."""
    shares = request.shares
    counts: dict[int, dict[str, Any]] = {}  # by the layers of a share: nothing else differs
    for ipu, share in enumerate(shares):
        if share.n_layers not in counts:
            full = [share.spec.capacity] * share.spec.batch
            counts[share.n_layers] = counted(request, share.spec, full, share.n_layers, ipu)
    names = ("compute", "exchange", "sync", "streaming", "links")
    fullest = max(counts.values(), key=lambda c: c["memory"]["bytes"])
    model, n_ipus = request.model, request.n_ipus
    total = dict.fromkeys(names, 0.0)

    def add(seconds: dict[str, float]) -> None:
        for name in names:
            total[name] += seconds.get(name, 0.0)

    alone = [counts[share.n_layers]["seconds"] for share in shares]
    steps = [counts[share.n_layers]["steps"] for share in shares]
    longest = max(range(n_ipus), key=lambda ipu: alone[ipu]["total"])
    if request.device_options.split == "layers":
        for seconds in alone:
            add(seconds)
        between = [_hand_over(request, fullest["mapping"]["slots"], ipu) for ipu in range(n_ipus - 1)]
        for seconds in between:
            add(seconds)
        beyond = 0.0
        in_turn = sum(total.values())
        busiest = alone[longest]["total"] + 2 * sum(between[0].values() if between else ())
    else:
        add(alone[0] if n_ipus == 1 else _together(steps[0], counted_between(request)))
        beyond = seconds_beyond(model, n_ipus, steps[0])
        in_turn = sum(total.values()) + (n_ipus - 1) * total["streaming"]
        busiest = sum(total.values())
    return PodPlan(
        request=request,
        shares=tuple(shares),
        counts=fullest,
        streaming_memory_bytes=max(sum(of_ipu["streaming_memory"].values()) for of_ipu in counts.values()),
        seconds_by_category={**total, "total": sum(total.values())},
        streamed_bytes=sum(map(streamed_bytes, steps)),
        seconds_if_gateway_shared=sum(total.values()) + beyond,
        seconds_if_in_turn=in_turn,
        seconds_of_busiest_ipu=busiest,
        seconds_of_busiest_ipu_if_gateway_shared=busiest + seconds_beyond(model, n_ipus, steps[longest]),
    )
