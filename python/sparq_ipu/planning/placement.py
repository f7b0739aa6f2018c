# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model fit in three tiers, and what the others cost.

    print(sparq_ipu.planning.place_layers(n_heads=32, n_kv_heads=8, seq_len=65536, n_layers=32, n_ipus=4))

Every IPU has its share of the layers. As many of these as fit SRAM are in three tiers: key index and hot rows
in SRAM, all rows in streaming memory; none, where that is slower. The others stream their key index, of as
many bits. That is another program, and both must fit each tile.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import DEFAULT, TIERED
from sparq_ipu.planning.planner import plan
from sparq_ipu.planning.record import NOT_IN_A_PLAN, Plan
from sparq_reference import DoesNotFit, checks

#: arguments of `plan` that only a cache in three tiers has
OF_TIERS = ("hit_rate", "row_bits", "index_components", *DeviceOptions.OF_TIERS)


@dataclasses.dataclass(frozen=True)
class LayerPlacement:
    """Where the layers of one IPU are; the last IPU may have fewer."""

    seq_len: int
    n_layers: int
    n_ipus: int
    layers_per_ipu: int
    #: of these, how many are in three tiers
    n_tiered: int
    #: of a layer in three tiers; None where none fits. Its memory is of all n_tiered.
    tiered: Plan | None
    #: of a layer whose index is streamed, with the memory of all that are not in three tiers
    others: Plan | None
    #: of a layer whose index is streamed, if all were
    streamed: Plan

    @property
    def max_tile_bytes(self) -> int:
        """Of both programs, with what SRAM keeps of all layers: their fullest tiles are taken to be one."""
        return sum(plan.max_tile_bytes for plan in (self.tiered, self.others) if plan)

    @property
    def seconds_per_token(self) -> float:
        """Modelled: attention of all layers for one token, IPU after IPU."""
        return self._per_token("seconds_per_query")

    @property
    def seconds_low(self) -> float:
        """The low end of the range of `seconds_per_token`, which is likely."""
        return self._per_token("seconds_low")

    @property
    def seconds_high(self) -> float:
        """Its high end."""
        return self._per_token("seconds_high")

    def _per_token(self, name: str) -> float:
        of_ipu: float = self.n_tiered * getattr(self.tiered, name) if self.tiered else 0.0
        if self.others:
            of_ipu += (self.layers_per_ipu - self.n_tiered) * getattr(self.others, name)
        return of_ipu * self.n_layers / self.layers_per_ipu

    @property
    def seconds_if_streamed(self) -> float:
        """The same with no layer in three tiers."""
        return self.n_layers * self.streamed.seconds_per_query

    def __str__(self) -> str:
        rest = self.layers_per_ipu - self.n_tiered
        lines = [
            f"{self.n_layers} layers on {self.n_ipus} IPUs at {self.seq_len} positions: of an IPU's "
            f"{self.layers_per_ipu} layers {self.n_tiered} in three tiers, {rest} with a streamed key index"
        ]
        if self.tiered:
            lines.append(
                f"  in three tiers: {self.tiered.seconds_per_query * 1e6:.1f} us a layer at a hit rate of "
                f"{self.tiered.request.hit_rate:.0%}; {self.tiered.max_tile_bytes} bytes of the fullest tile"
            )
        others = self.others or self.streamed
        lines.append(f"  streamed: {others.seconds_per_query * 1e6:.1f} us a layer")
        lines.append(f"  together: {self.max_tile_bytes} of {self.streamed.memory['limit']} bytes of a tile")
        lines.append(
            f"  modelled, attention of a token: {self.seconds_per_token * 1e3:.3f} ms; "
            f"with every index streamed {self.seconds_if_streamed * 1e3:.3f} ms"
        )
        lines.append(f"  {NOT_IN_A_PLAN}")
        return "\n".join(lines)


def _fits(kernel: str, n_layers: int, **arguments: Any) -> Plan | None:
    try:
        return plan(kernel=kernel, n_layers=n_layers, baseline=False, **arguments)
    except DoesNotFit:
        return None


def most_tiered(
    n_layers: int,
    tiered: Callable[[int], Plan | None],
    others: Callable[[int], Plan | None],
    room: int,
) -> tuple[int, Plan | None, Plan | None]:
    """How many of an IPU's layers can be in three tiers beside the others, which have a program of their own.

    Args:
        tiered, others: the plan of so many layers of either kind; None where they do not fit by themselves.
        room: bytes of a tile for both.

    Returns:
        The number, and both plans; 0 and no plan where none fits.
    """

    def mixed(n: int) -> tuple[int, Plan | None, Plan | None] | None:
        both = tiered(n), others(n_layers - n) if n != n_layers else None
        if both[0] is None or (both[1] is None and n != n_layers):
            return None
        fits = sum(plan.max_tile_bytes for plan in both if plan) <= room
        return (n, *both) if fits else None

    best = mixed(n_layers)
    low, high = 0, n_layers  # SRAM grows with the layers in three tiers
    while best is None or best[0] != n_layers:
        if high - low <= 1:
            break
        middle = (low + high) // 2
        tried = mixed(middle)
        low, high, best = (middle, high, tried) if tried else (low, middle, best)
    return best or (0, None, None)


def place_layers(
    batch: int = 1,
    n_heads: int = 32,
    n_kv_heads: int | None = None,
    head_dim: int = 128,
    seq_len: int = 16384,
    *,
    n_layers: int = 32,
    n_ipus: int = 1,
    **others: Any,
) -> LayerPlacement:
    """Place the layers of a model.

    Args:
        n_layers: of the model; an IPU has ceil(n_layers / n_ipus) of them.
        others: as `sparq_ipu.plan`. Of layers in three tiers alone:
            `hit_rate`, `row_bits`, `index_components` and `hot_rows`.

    Raises:
        ValueError: an argument out of range.
        DoesNotFit (a ValueError): the layers of an IPU do not fit with streamed indices either: tile memory,
            or streaming memory for their rows.
        RuntimeError: as `sparq_ipu.plan`.
    """
    n_layers = checks.check_integer("place_layers", "n_layers", n_layers, 1, checks.MAX_LAYERS)
    n_ipus = checks.check_integer("place_layers", "n_ipus", n_ipus, 1, n_layers)
    per_ipu = math.ceil(n_layers / n_ipus)
    shape = dict(batch=batch, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, seq_len=seq_len)
    of_tiers = {name: others.pop(name) for name in OF_TIERS if name in others}
    same: dict[str, Any] = {**shape, "append": True, **others}
    streamed = plan(kernel=DEFAULT.name, n_layers=per_ipu, baseline=False, **same)
    n_tiered, tiered, rest = most_tiered(
        per_ipu,
        lambda n: _fits(TIERED.name, n, **same, **of_tiers),
        lambda n: _fits(DEFAULT.name, n, **same),
        streamed.memory["limit"],
    )
    if tiered is None or tiered.seconds_per_query >= streamed.seconds_per_query:
        n_tiered, tiered, rest = 0, None, streamed  # of short contexts there is little to stream
    return LayerPlacement(seq_len, n_layers, n_ipus, per_ipu, n_tiered, tiered, rest, streamed)
