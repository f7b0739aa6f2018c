# SPDX-License-Identifier: Apache-2.0
"""What a caller chooses of the caches of a model on "ipu" and "emulator". No result depends on it."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

from sparq_ipu.kernels import Settings, attention_over
from sparq_reference import CacheSpec, checks

#: where a cache can be, the default first
MEMORIES = ("streaming", "sram", "tiered")
#: how a model can be split over IPUs
SPLITS = ("layers", "heads")

#: tiles of an IPU
MAX_TILES = 1472
#: IPUs that links join without a gateway between
MAX_IPUS = 64
MAX_HOT_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Share:
    """What one IPU has: layers [first_layer, first_layer + n_layers), each with this cache."""

    spec: CacheSpec
    first_layer: int
    n_layers: int


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """Options of a cache on an IPU or an emulated one (docs/ipu_plans.md).

    Args:
        n_tiles: tiles of an emulated IPU; 0: all 1472.
        memory: "streaming" (rows of K and V in streaming memory); "tiered": the key index and hot rows on
            chip, all rows in streaming memory, SparQ and window attention only, with `index_bits` below 16;
            or "sram": all of the cache on chip, dense attention only.
        n_ipus: IPUs, a power of two up to 64.
        split: what of a model an IPU has: "layers" (layer l of L is on IPU l * n_ipus // L), or "heads" (all
            layers, of a share of the KV heads, then of the batch; IPUs of neighbouring heads are neighbours).
        hot_rows: with "tiered", rows of keys and values of each KV head that stay in SRAM, in [0, 65536],
            rounded up; 0: four times the largest top_k of the programs.

    Raises:
        ValueError: an argument out of range; the message begins with `op`.
    """

    n_tiles: int = 0
    memory: str = MEMORIES[0]
    n_ipus: int = 1
    split: str = SPLITS[0]
    hot_rows: int = 0
    op: dataclasses.InitVar[str] = "KVCache"

    def __post_init__(self, op: str) -> None:
        for name, least, most in (
            ("hot_rows", 0, MAX_HOT_ROWS),
            ("n_tiles", 0, MAX_TILES),
            ("n_ipus", 1, MAX_IPUS),
        ):
            object.__setattr__(self, name, checks.check_integer(op, name, getattr(self, name), least, most))
        for name, values in (("memory", MEMORIES), ("split", SPLITS)):
            check_choice(op, name, getattr(self, name), values)
        if self.n_ipus & (self.n_ipus - 1):
            checks.fail(op, "n_ipus", f"be a power of two up to {MAX_IPUS}", self.n_ipus)

    def check(self, op: str, spec: CacheSpec, n_layers: int = 1, settings: Sequence[Settings] = ()) -> None:
        """As `sparq_ipu.backends.Options.check`."""
        self.check_memory(op, spec)
        self.shares(op, spec, n_layers)
        for of_attention in settings:
            self.check_attention(op, spec, of_attention)

    def check_memory(self, op: str, spec: CacheSpec) -> None:
        """Whether such a cache can be in that memory, with this buffer of hot rows."""
        if spec.index_components and self.memory != "tiered":
            checks.fail(op, "index_components", "be 0 unless memory is 'tiered'", spec.index_components)
        if self.memory == "tiered":
            if spec.index_bits == 16:  # the keys themselves are no index
                checks.fail(op, "index_bits", "be 8, 4 or 2 where memory is 'tiered'", spec.index_bits)
            return
        if spec.row_bits != 16:
            checks.fail(op, "row_bits", "be 16 unless memory is 'tiered'", spec.row_bits)
        if self.hot_rows != DeviceOptions.hot_rows:
            checks.fail(op, "memory", "be 'tiered' where hot rows are asked for", repr(self.memory))

    def check_attention(self, op: str, spec: CacheSpec, settings: Settings) -> None:
        """Whether attention over such a cache can have these settings; None: dense attention."""
        attention_over(self.memory, settings, op)
        self._check_window(op, spec, settings)
        if settings is None or self.memory != "tiered":
            return
        top_k = min(settings.top_k, spec.capacity)
        if top_k > MAX_HOT_ROWS:
            checks.fail(op, "top_k", f"be at most {MAX_HOT_ROWS} where memory is 'tiered'", top_k)
        if 0 < self.hot_rows < top_k:
            checks.fail(op, "hot_rows", f"be 0 or at least top_k={top_k}", self.hot_rows)

    def _check_window(self, op: str, spec: CacheSpec, settings: Settings) -> None:
        if settings is None or not settings.remembers or self.split != "heads":
            return
        if math.gcd(self.n_ipus, spec.n_kv_heads) != 1:  # sums are over all heads
            rule = "be 'layers' where heads of one history of window attention would be split"
            checks.fail(op, "split", rule, repr(self.split))

    def shares(self, op: str, spec: CacheSpec, n_layers: int) -> list[Share]:
        """The share of each IPU, of so many layers of such a cache."""
        n_ipus = self.n_ipus
        if self.split == "layers":
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


def check_choice(op: str, name: str, value: object, values: Sequence[str]) -> None:
    """Whether an option is one of these texts."""
    if value not in values:
        checks.fail(op, name, f"be {' or '.join(map(repr, values))}", repr(value))
