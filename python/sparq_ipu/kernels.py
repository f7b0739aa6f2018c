# SPDX-License-Identifier: Apache-2.0
"""The attention kernels of the device program: the one place in Python that lists them. Backends, planning,
the report and the benchmarks read it.

A kernel computes dense attention, or SparQ attention where it takes settings; several kernels compute the
same bits from caches in different memories. To add one: its entry here, and its entry in C++
(poplar_ops/include/sparq/kernels.hpp). A test compares the two lists.

Window attention (docs/alisa.md), which SparQ is compared with, has a list of its own: WINDOW_KERNELS.
"""

from __future__ import annotations

import dataclasses
from typing import Union

import numpy as np

from sparq_reference import checks, exact, ideal, row_codes, transfers
from sparq_reference.cache import op_of as op_with
from sparq_reference.numerics import BLOCK
from sparq_reference.settings import CacheSpec, SparqSettings, WindowSettings


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One attention kernel of the device program."""

    name: str
    #: where it reads keys and values: "streaming", "sram", or "tiered": the key index and hot rows in SRAM,
    #: all rows in streaming memory
    memory: str
    #: takes `SparqSettings`
    takes_settings: bool
    #: one line for people
    description: str
    #: takes `WindowSettings`; with neither it is dense attention
    takes_window: bool = False

    @property
    def is_dense(self) -> bool:
        """Attends to all positions: there is nothing to set."""
        return not (self.takes_settings or self.takes_window)

    @property
    def op(self) -> str:
        """What messages call it."""
        return "window_attention" if self.takes_window else op_of(self.takes_settings)

    def settings(self, settings: SparqSettings | None) -> SparqSettings | None:
        """`settings` if the kernel takes some, else None."""
        return settings if self.takes_settings else None

    def streaming_bytes(self, cache: CacheSpec) -> dict[str, int]:
        """Bytes that the positions alone take in streaming memory, by buffer: a lower bound, without
        rounding to chunks and scratch rows. Nothing for a cache in SRAM."""
        if self.memory == "sram":
            return {}
        rows = 2 * _bytes_of_keys(cache)
        if self.memory == "tiered":
            of_row = transfers.row_bytes(cache.head_dim, cache.row_bits)
            return {"cache/rows": cache.n_tasks * cache.capacity * of_row}
        if not self.takes_settings:
            return {"cache/rows": rows}
        return {"cache/rows": rows, "cache/key_columns": _bytes_of_index(cache)}

    def sram_bytes(self, cache: CacheSpec) -> int:
        """Bytes that keys and values, or the key index, take in SRAM, over all tiles: a lower bound."""
        if self.memory == "streaming":
            return 0
        return 2 * _bytes_of_keys(cache) if self.memory == "sram" else _bytes_of_index(cache)

    def transfer_elements(self, seq_len: int, head_dim: int, settings: SparqSettings | None) -> int:
        """Elements that one query moves for one KV head, by the paper's formula. Of a cache in three tiers
        the selected rows alone, as if none were hot."""
        if settings is None:
            return transfers.dense_elements(seq_len, head_dim)
        top_k = min(settings.top_k, seq_len)  # all that there is to read
        if self.memory == "tiered":
            return transfers.sparq_elements(0, head_dim, 0, top_k)
        return transfers.sparq_elements(seq_len, head_dim, settings.rank, top_k)

    def transfer_bytes(
        self,
        seq_len: int,
        head_dim: int,
        settings: SparqSettings | None,
        index_bits: int = 16,
        row_bits: int = 16,
    ) -> int:
        """Bytes that one query moves for one KV head: that formula, with a key index and (of a cache in three
        tiers) rows of so many bits."""
        if settings is None:
            return transfers.dense_bytes(seq_len, head_dim)
        top_k = min(settings.top_k, seq_len)
        if self.memory == "tiered":  # the new row too; the mean value, read and written, has 16 bits
            rows = (top_k + 1) * transfers.row_bytes(head_dim, row_bits)
            return rows + 2 * transfers.ELEMENT_BYTES * head_dim
        return transfers.sparq_bytes(seq_len, head_dim, settings.rank, top_k, index_bits)

    def theoretical_speedup(
        self,
        seq_len: int,
        head_dim: int,
        settings: SparqSettings | None,
        index_bits: int = 16,
        row_bits: int = 16,
    ) -> float:
        """Of cache reads, against dense attention: see `transfers.theoretical_speedup`."""
        if settings is None:
            return 1.0
        top_k = min(settings.top_k, seq_len)
        if self.memory == "tiered":
            return seq_len * transfers.row_bytes(head_dim) / (top_k * transfers.row_bytes(head_dim, row_bits))
        return transfers.theoretical_speedup(seq_len, head_dim, settings.rank, top_k, index_bits)


def _bytes_of_keys(cache: CacheSpec) -> int:
    return 2 * cache.n_tasks * cache.capacity * cache.head_dim


def _bytes_of_index(cache: CacheSpec) -> int:
    # of a key index of few bits full blocks alone: what is behind them is on chip anyway
    behind = 0 if cache.index_bits == 16 else cache.capacity % BLOCK
    index = transfers.index_bytes(cache.capacity - behind, cache.head_dim, cache.index_bits)
    return cache.n_tasks * index


#: every kernel by name, in the order of tables
KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("dense-sram", "sram", False, "dense attention, the cache in SRAM"),
        Kernel("dense-streaming", "streaming", False, "dense attention, the cache in streaming memory"),
        Kernel("sparq-streaming", "streaming", True, "SparQ attention, the cache in streaming memory"),
        Kernel(
            "sparq-tiered",
            "tiered",
            True,
            "SparQ attention, the key index and hot rows in SRAM, all rows in streaming memory",
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


#: of window attention (ALISA), by name
WINDOW_KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "window-streaming", "streaming", False, "window attention, the cache in streaming memory", True
        ),
        Kernel(
            "window-tiered",
            "tiered",
            False,
            "window attention, hot rows in SRAM, all rows in streaming memory",
            True,
        ),
    )
}


def window_elements(seq_len: int, head_dim: int, settings: WindowSettings) -> int:
    """Elements that one query moves for one KV head, as the SparQ paper counts H2O: 2 k d + 2 d + 2 S where a
    history of S sums is read and written, else 2 k d + 2 d."""
    top_k = min(settings.top_k, seq_len)
    if settings.remembers:
        return transfers.h2o_elements(seq_len, head_dim, top_k)
    return transfers.lm_infinite_elements(head_dim, top_k)


#: settings of an attention call; None: dense attention
Settings = Union[SparqSettings, WindowSettings, None]


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention program: the name of a kernel, and its settings (None for dense attention)."""

    kernel: str
    settings: Settings

    @property
    def n_recent(self) -> int:
        """Steps that it remembers."""
        window = self.settings
        return window.n_recent if isinstance(window, WindowSettings) and window.remembers else 0


def op_of(takes_settings: bool) -> str:
    """What messages call dense attention, or SparQ attention."""
    return "sparq_attention" if takes_settings else "dense_attention"


def kernel_named(op: str, name: object) -> Kernel:
    """The kernel of this name.

    Raises:
        ValueError: there is none.
    """
    known = {**KERNELS, **WINDOW_KERNELS}
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{op}: kernel must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def attention_over(memory: str, settings: Settings, op: str | None = None) -> Attention:
    """The program for a cache in that memory. `op` is what messages begin with; None: the attention.

    Raises:
        ValueError: no kernel reads that memory with such settings.
    """
    window = isinstance(settings, WindowSettings)
    those = [
        kernel
        for kernel in (*KERNELS.values(), *WINDOW_KERNELS.values())
        if (kernel.takes_window, kernel.takes_settings) == (window, not window and settings is not None)
    ]
    for kernel in those:
        if kernel.memory == memory:
            return Attention(kernel.name, settings)
    others = [repr(kernel.memory) for kernel in those]
    return checks.fail(op or op_with(settings), "memory", f"be {' or '.join(others)}", repr(memory))


def exact_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    settings: SparqSettings | None,
    index_bits: int = 16,
    row_bits: int = 16,
) -> np.ndarray:
    """What any kernel must compute, to the bit: the reference; arguments as `sparq_reference.exact`. With
    row_bits=8 keys and values are rounded first, as a cache rounds them."""
    key, value = (row_codes.round_rows(rows, row_bits) for rows in (key, value))
    if settings is None:
        return exact.dense_attention(query, key, value)
    return exact.sparq_attention(query, key, value, index_bits=index_bits, **settings.arguments())


def ideal_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    settings: SparqSettings | None,
    index_bits: int = 16,
    row_bits: int = 16,
) -> np.ndarray:
    """The same in float64; arguments as `sparq_reference.ideal`."""
    key, value = (row_codes.round_rows(rows, row_bits) for rows in (key, value))
    if settings is None:
        return ideal.dense_attention(query, key, value)
    return ideal.sparq_attention(query, key, value, index_bits=index_bits, **settings.arguments())
