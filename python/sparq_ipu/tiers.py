# SPDX-License-Identifier: Apache-2.0
"""What a caller chooses of a cache in three tiers (docs/design.md): the buffer of hot rows. No result depends
on it."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from sparq_reference import CacheSpec, SparqSettings, WindowSettings, checks

#: which row makes room for another: the one that was selected least recently, or, to keep the most recent
#: tokens, that of the oldest position
POLICIES = ("lru", "recent")

MAX_HOT_ROWS = 1 << 16
MAX_WAVE_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Tiers:
    """The buffer of hot rows of a cache.

    Args:
        hot_rows: rows of keys and values of each KV head that stay in SRAM, in [0, 65536], rounded up; 0:
            four times the largest top_k of the programs.
        hot_policy: "lru" or "recent", see `POLICIES`.
        wave_rows: rows that are read from streaming memory at a time, for all KV heads, in [0, 65536]; 0:
            an eighth of those that are selected, 64 to 512, and all of them (up to 8192) where three quarters
            are missing.

    Raises:
        ValueError: an argument out of range; the message begins with `op`.
    """

    hot_rows: int = 0
    hot_policy: str = POLICIES[0]
    wave_rows: int = 0
    op: dataclasses.InitVar[str] = "KVCache"

    def __post_init__(self, op: str) -> None:
        for name, most in (("hot_rows", MAX_HOT_ROWS), ("wave_rows", MAX_WAVE_ROWS)):
            object.__setattr__(self, name, checks.check_integer(op, name, getattr(self, name), 0, most))
        if self.hot_policy not in POLICIES:
            raise ValueError(
                f"{op}: hot_policy must be {' or '.join(map(repr, POLICIES))}, got {self.hot_policy!r}"
            )

    @classmethod
    def take(cls, op: str, options: dict[str, Any]) -> Tiers:
        """Of these keyword arguments, those that are about hot rows: removed from them.

        Raises:
            ValueError: as the constructor.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: options.pop(name) for name in names if name in options}, op=op)

    def check(self, op: str, spec: CacheSpec, settings: SparqSettings | WindowSettings | None) -> None:
        """Whether attention over such a cache can have these settings.

        Raises:
            ValueError: `<op>: <argument> must <rule>, got <value>`.
        """
        if settings is None:
            return
        top_k = min(settings.top_k, spec.capacity)
        if top_k > MAX_HOT_ROWS:
            checks.fail(op, "top_k", f"be at most {MAX_HOT_ROWS} where memory is 'tiered'", top_k)
        if 0 < self.hot_rows < top_k:
            checks.fail(op, "hot_rows", f"be 0 or at least top_k={top_k}", self.hot_rows)


def check_memory(op: str, memory: object, memories: Sequence[str], spec: CacheSpec, tiers: Tiers) -> None:
    """Whether a cache can be in that memory, one of `memories`, with this buffer of hot rows.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`.
    """
    if memory not in memories:
        checks.fail(op, "memory", f"be {' or '.join(map(repr, memories))}", repr(memory))
    check_row_bits(op, spec.row_bits, str(memory))
    if memory == "tiered":
        check_index(op, spec.index_bits)
    elif tiers != Tiers():
        checks.fail(op, "memory", "be 'tiered' where hot rows are asked for", repr(memory))


def check_index(op: str, index_bits: int) -> None:
    """Whether a key index of so many bits can stay in SRAM.

    Raises:
        ValueError: 16: the keys themselves are no index.
    """
    if index_bits == 16:
        checks.fail(op, "index_bits", "be 8 or 4 where memory is 'tiered'", index_bits)


def check_row_bits(op: str, row_bits: int, memory: str) -> None:
    """Whether a cache in this memory of a device can have rows of so many bits.

    Raises:
        ValueError: 8, unless memory is "tiered".
    """
    if row_bits != 16 and memory != "tiered":
        checks.fail(op, "row_bits", "be 16 unless memory is 'tiered'", row_bits)
