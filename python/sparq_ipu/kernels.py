# SPDX-License-Identifier: Apache-2.0
"""The attention kernels of the device program: the one place in Python that lists them. Backends, planning
and benchmarks read it.

A kernel computes dense attention, or SparQ or window attention where it takes settings of that kind; several
kernels compute the same bits from caches in different memories. To add one: its entry here, and its entry in
C++ (poplar_ops/include/sparq/kernels.hpp). A test compares the two lists.
"""

from __future__ import annotations

import dataclasses

from sparq_reference import checks, transfers
from sparq_reference.numerics import BLOCK
from sparq_reference.settings import OPS, CacheSpec, SparqSettings, kind_of, op_of
from sparq_reference.settings import Settings as Settings  # for who calls attention


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One attention kernel of the device program."""

    name: str
    #: where it reads keys and values: "streaming", "sram", or "tiered": the key index and hot rows in SRAM,
    #: all rows in streaming memory
    memory: str
    #: the kind of its settings, of `sparq_reference.settings.OPS`; "nothing": dense attention
    takes: str
    #: one line for people
    description: str

    @property
    def is_dense(self) -> bool:
        """Attends to all positions: there is nothing to set."""
        return self.takes == "nothing"

    @property
    def op(self) -> str:
        """What messages call it."""
        return OPS[self.takes]

    def settings(self, settings: SparqSettings | None) -> SparqSettings | None:
        """`settings` if the kernel takes such, else None."""
        return settings if kind_of(settings) == self.takes else None

    def cache_bytes(self, cache: CacheSpec) -> tuple[dict[str, int], int]:
        """What the positions of a cache take at least, without rounding to chunks and scratch rows: each
        buffer in streaming memory, and SRAM of all tiles."""
        rows = cache.n_tasks * cache.capacity * transfers.row_bytes(cache.head_dim, cache.row_bits)
        if self.memory == "sram":
            return {}, rows
        if self.memory == "streaming" and self.takes != "sparq":
            return {"cache/rows": rows}, 0
        # of a key index of few bits full blocks alone: what is behind them is on chip anyway
        behind = 0 if cache.index_bits == 16 else cache.capacity % BLOCK
        of_task = transfers.index_bytes(cache.capacity - behind, cache.n_indexed, cache.index_bits)
        index = cache.n_tasks * of_task
        if self.memory == "tiered":
            return {"cache/rows": rows}, index
        return {"cache/rows": rows, "cache/key_columns": index}, 0


#: every kernel by name, in the order of tables
KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("dense-sram", "sram", "nothing", "dense attention, the cache in SRAM"),
        Kernel("dense-streaming", "streaming", "nothing", "dense attention, the cache in streaming memory"),
        Kernel("sparq-streaming", "streaming", "sparq", "SparQ attention, the cache in streaming memory"),
        Kernel(
            "sparq-tiered",
            "tiered",
            "sparq",
            "SparQ attention, the key index and hot rows in SRAM, all rows in streaming memory",
        ),
        # of ALISA (docs/alisa.md), which SparQ is compared with
        Kernel("window-streaming", "streaming", "window", "window attention, the cache in streaming memory"),
        Kernel(
            "window-tiered",
            "tiered",
            "window",
            "window attention, hot rows in SRAM, all rows in streaming memory",
        ),
    )
}

DENSE_SRAM = KERNELS["dense-sram"]
#: what speed-ups are measured against
BASELINE = KERNELS["dense-streaming"]
#: what the project is about: the default of plans and benchmarks
DEFAULT = KERNELS["sparq-streaming"]
#: the key index and hot rows in SRAM
TIERED = KERNELS["sparq-tiered"]


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention program: the name of a kernel, and its settings (None for dense attention)."""

    kernel: str
    settings: Settings

    @property
    def n_recent(self) -> int:
        """Steps that it remembers."""
        return 0 if self.settings is None else self.settings.n_remembered


def kernel_named(op: str, name: object) -> Kernel:
    """The kernel of this name."""
    if not isinstance(name, str) or name not in KERNELS:
        raise ValueError(f"{op}: kernel must be one of {', '.join(KERNELS)}, got {name!r}")
    return KERNELS[name]


def attention_over(memory: str, settings: Settings, op: str | None = None) -> Attention:
    """The program for a cache in that memory. `op` is what messages begin with; None: the attention."""
    those = [kernel for kernel in KERNELS.values() if kernel.takes == kind_of(settings)]
    for kernel in those:
        if kernel.memory == memory:
            return Attention(kernel.name, settings)
    others = [repr(kernel.memory) for kernel in those]
    return checks.fail(op or op_of(settings), "memory", f"be {' or '.join(others)}", repr(memory))
