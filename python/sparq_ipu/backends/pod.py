# SPDX-License-Identifier: Apache-2.0
"""Several IPUs: which of them has what, and the caches of all layers over them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

from sparq_ipu.backends.ipu import IpuLayers
from sparq_ipu.backends.room import check_room
from sparq_ipu.kernels import Attention, Settings
from sparq_reference import CacheSpec, WindowSettings, checks

#: how a model can be split over IPUs
SPLITS = ("layers", "heads")
#: IPUs that links join without a gateway between
MAX_IPUS = 64


@dataclasses.dataclass(frozen=True)
class Share:
    """What one IPU has: layers [first_layer, first_layer + n_layers), each with this cache."""

    spec: CacheSpec
    first_layer: int
    n_layers: int


def check_n_ipus(op: str, n_ipus: object) -> int:
    """A number of IPUs that a machine can give.

    Raises:
        ValueError: not a power of two up to 64.
    """
    checked = checks.check_integer(op, "n_ipus", n_ipus, 1, MAX_IPUS)
    if checked & (checked - 1):
        checks.fail(op, "n_ipus", f"be a power of two up to {MAX_IPUS}", checked)
    return checked


def share_out(op: str, spec: CacheSpec, n_layers: int, n_ipus: int, split: str) -> list[Share]:
    """The share of each IPU.

    Args:
        split: "layers": layer l is on IPU l * n_ipus // n_layers. "heads": every IPU has all layers, of its
            share of the KV heads, then of the batch; IPUs of neighbouring heads are neighbours.

    Raises:
        ValueError: an unknown split, or one that does not come out even.
    """
    if split not in SPLITS:
        raise ValueError(f"{op}: split must be {' or '.join(map(repr, SPLITS))}, got {split!r}")
    if split == "layers":
        if n_layers < n_ipus:
            rule = f"be at most n_layers={n_layers} where layers are split"
            checks.fail(op, "n_ipus", rule, n_ipus)
        first = [-(-ipu * n_layers // n_ipus) for ipu in range(n_ipus + 1)]
        return [Share(spec, a, b - a) for a, b in zip(first, first[1:])]
    heads = math.gcd(n_ipus, spec.n_kv_heads)
    rows = n_ipus // heads
    if spec.batch % rows != 0:
        rule = f"split n_kv_heads={spec.n_kv_heads}, then batch={spec.batch}, evenly"
        checks.fail(op, "n_ipus", rule, n_ipus)
    part = dataclasses.replace(spec, batch=spec.batch // rows, n_kv_heads=spec.n_kv_heads // heads)
    return [Share(part, 0, n_layers)] * n_ipus


def check_rooms(shares: list[Share], room: int, resource: str) -> None:
    """Whether keys and values fit the memory of every IPU.

    Raises:
        DoesNotFit: they do not; the message names the IPU.
    """
    for ipu, share in enumerate(shares):
        check_room(share.spec, share.n_layers, room, f"{resource} of IPU {ipu}")


class PodLayers(IpuLayers):
    """As `IpuLayers`, with a session over several IPUs."""

    def __init__(self, n_ipus: int, split: str, *arguments: Any):
        super().__init__(*arguments)
        self._n_ipus = n_ipus
        self._split = split

    def check_settings(self, op: str, settings: Settings) -> None:
        if isinstance(settings, WindowSettings):
            checks.fail(op, "n_ipus", "be 1 for window attention", self._n_ipus)
        super().check_settings(op, settings)

    def _compile(self, n_heads: int, attention: list[Attention]) -> Any:
        from sparq_ipu import _core

        session = _core.PodSession(
            self._spec,
            n_heads,
            attention=attention,
            device=self._device,
            n_tiles=self._n_tiles,
            n_layers=self._n_layers,
            n_ipus=self._n_ipus,
            split=self._split,
            **dataclasses.asdict(self._tiers),
        )
        # it has the methods of a session that layers use
        self._session, self._n_heads, self._attention = cast(_core.Session, session), n_heads, attention
        return session
