# SPDX-License-Identifier: Apache-2.0
"""Settings of an attention call and of a KV cache: one object each, made and checked at the public
call, handed on by every layer, read where the work is done.

The same in C++: poplar_ops/include/sparq/settings.hpp. A test compares the words of both.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, ClassVar, Literal, Mapping, TypeVar, Union

from sparq_reference.checks import (
    HEAD_DIM_MULTIPLE,
    MAX_CAPACITY,
    check_bool,
    check_index_bits,
    check_index_components,
    check_integer,
    check_rank,
    check_row_bits,
    fail,
)

#: of the shares of attention in window attention, most steps times heads: their sum stays below 2**31 (E11)
MAX_RECENT_HEADS = (1 << 15) - 1

#: kind of settings -> the name of the call in messages
OPS = {"nothing": "dense_attention", "sparq": "sparq_attention", "window": "window_attention"}

_Settings = TypeVar("_Settings", bound="SparqSettings")


@dataclasses.dataclass(frozen=True)
class _AttentionSettings:
    """Shared by settings of every kind."""

    #: of OPS
    kind: ClassVar[str]

    @property
    def n_remembered(self) -> int:
        """The number of earlier steps whose weights it selects by."""
        return 0

    @property
    def remembers(self) -> bool:
        """Whether it selects by the weights of earlier steps."""
        return self.n_remembered > 0

    def check(self, op: str, head_dim: int, index_components: int = 0) -> None:
        """Refuse heads of head_dim components, index_components of them in the key index (0: all)."""

    def check_heads(self, op: str, n_heads: int) -> None:
        """Refuse n_heads query heads."""

    @classmethod
    def take(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Remove the settings from these keyword arguments and return them."""
        names = [field.name for field in dataclasses.fields(cls)]
        return {name: options.pop(name) for name in names if name in options}

    def arguments(self) -> dict[str, Any]:
        """The settings by name, as keyword arguments take them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class SparqSettings(_AttentionSettings):
    """SparQ attention (arXiv:2312.04985, Algorithm 1).

    Args:
        rank: components of the query used to score positions, at least 1, at most head_dim (paper: r).
        top_k: positions attended to, in [1, 2**24]; all of them where there are no more (paper: k).
        n_local: of these, the most recent positions that are always taken, 0 <= n_local <= top_k (paper: l).
        mean_value: give the weight of the other positions to the mean of all values (paper: v-bar, alpha).
        op: the beginning of messages.
        head_dim: the limit of rank, where it is known.
    """

    kind: ClassVar[Literal["sparq"]] = "sparq"

    rank: int
    top_k: int
    n_local: int = 0
    mean_value: bool = True
    op: dataclasses.InitVar[str] = "SparqSettings"
    head_dim: dataclasses.InitVar[int | None] = None

    def __post_init__(self, op: str, head_dim: int | None) -> None:
        if head_dim is None:
            rank = check_integer(op, "rank", self.rank, 1, MAX_CAPACITY)
        else:
            rank = check_rank(op, self.rank, head_dim)
        top_k = check_integer(op, "top_k", self.top_k, 1, MAX_CAPACITY)
        n_local = check_integer(op, "n_local", self.n_local, 0, top_k, f"[0, top_k={top_k}]")
        mean_value = check_bool(op, "mean_value", self.mean_value)
        self._set(rank=rank, top_k=top_k, n_local=n_local, mean_value=mean_value)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():  # plain integers, whatever kind came in
            if value is not getattr(self, name):
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls: type[_Settings], op: str, head_dim: int | None, arguments: Mapping[str, Any]) -> _Settings:
        """Settings from keyword arguments of another call."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in arguments:
            if name not in names:
                fail(op, "settings", f"be among {', '.join(names)}", repr(name))
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in arguments:
                fail(op, field.name, "be given", "nothing")
        return cls(**arguments, op=op, head_dim=head_dim)

    def check(self, op: str, head_dim: int, index_components: int = 0) -> None:
        check_rank(op, self.rank, head_dim, index_components)

    def __str__(self) -> str:
        mean_value = "" if self.mean_value else ", without the mean value"
        return f"rank {self.rank}, top_k {self.top_k}, n_local {self.n_local}{mean_value}"


@dataclasses.dataclass(frozen=True)
class WindowSettings(_AttentionSettings):
    """Window attention: ALISA's sparse window attention (arXiv:2403.17312, Algorithm 1), local and strided
    attention. Its selection does not look at the query.

    Args:
        top_k: positions attended to, in [1, 2**24]; all of them where there are no more (paper: 2 k).
        n_local: of these, the most recent positions, 0 <= n_local <= top_k; None: half, the larger half of an
            odd top_k. With n_local = top_k this is local attention.
        n_recent: the others are those with the largest sums of attention weights over the last n_recent steps
            (paper: k, which is top_k // 2); at most 32767 // n_heads. 0: every n-th of the others instead,
            which is strided attention where n_local is 0 too.
    """

    kind: ClassVar[Literal["window"]] = "window"

    top_k: int
    n_local: int = None  # type: ignore[assignment]  # an integer once it is made
    n_recent: int = 32
    op: dataclasses.InitVar[str] = "WindowSettings"

    def __post_init__(self, op: str) -> None:
        top_k = check_integer(op, "top_k", self.top_k, 1, MAX_CAPACITY)
        n_local = top_k - top_k // 2 if self.n_local is None else self.n_local
        n_local = check_integer(op, "n_local", n_local, 0, top_k, f"[0, top_k={top_k}]")
        n_recent = check_integer(op, "n_recent", self.n_recent, 0, MAX_RECENT_HEADS)
        for name, value in (("top_k", top_k), ("n_local", n_local), ("n_recent", n_recent)):
            object.__setattr__(self, name, value)

    @property
    def n_remembered(self) -> int:
        return self.n_recent if self.n_local < self.top_k else 0

    def check_heads(self, op: str, n_heads: int) -> None:
        # sums over all heads stay below 2**31
        if self.remembers and self.n_recent * n_heads > MAX_RECENT_HEADS:
            most = MAX_RECENT_HEADS // n_heads
            fail(op, "n_recent", f"be in [0, {most}] for n_heads={n_heads}", self.n_recent)

    def __str__(self) -> str:
        return f"top_k {self.top_k}, n_local {self.n_local}, n_recent {self.n_recent}"


#: settings of an attention call; None: dense attention
Settings = Union[SparqSettings, WindowSettings, None]


def kind_of(settings: Settings) -> str:
    """The kind of these settings, a key of OPS."""
    return "nothing" if settings is None else settings.kind


def op_of(settings: Settings) -> str:
    """The name of attention with these settings in messages."""
    return OPS[kind_of(settings)]


def settings_columns(settings: Settings) -> dict[str, Any]:
    """The settings by name, for a row of results; None each for dense attention. Window attention has one
    more."""
    columns = dict.fromkeys(field.name for field in dataclasses.fields(SparqSettings))
    return columns if settings is None else {**columns, **settings.arguments()}


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """The KV cache of one attention layer.

    Args:
        batch: batch elements, at least 1.
        n_kv_heads: KV heads, at least 1; batch * n_kv_heads at most 2**24.
        head_dim: components of a head, a positive multiple of 8.
        capacity: most positions of one batch element, in [1, 2**24].
        index_bits: bits of a number of the key index, from which SparQ scores positions: 16 (the keys,
            float16), or 8, 4 or 2 (docs/exactness.md E9), with head_dim at most 2**16.
        row_bits: bits of a number of the rows of keys and values: 16 (float16), or 8: rows are rounded when
            they are appended (docs/exactness.md E10).
        index_components: number of components in the key index, the first ones: a multiple of 8, at least the
            rank (docs/exactness.md E13). 0: all.
    """

    batch: int
    n_kv_heads: int
    head_dim: int
    capacity: int
    index_bits: int = 16
    row_bits: int = 16
    index_components: int = 0
    op: dataclasses.InitVar[str] = "CacheSpec"

    def __post_init__(self, op: str) -> None:
        for name in ("batch", "n_kv_heads", "head_dim", "capacity"):
            value = check_integer(op, name, getattr(self, name), 1, MAX_CAPACITY)
            object.__setattr__(self, name, value)
            if name == "head_dim" and value % HEAD_DIM_MULTIPLE:
                fail(op, name, f"be a multiple of {HEAD_DIM_MULTIPLE}", value)
        if self.n_tasks > MAX_CAPACITY:
            fail(op, "batch * n_kv_heads", f"be at most {MAX_CAPACITY}", self.n_tasks)
        object.__setattr__(self, "index_bits", check_index_bits(op, self.index_bits, self.head_dim))
        object.__setattr__(self, "row_bits", check_row_bits(op, self.row_bits))
        components = check_index_components(op, self.index_components, self.head_dim)
        object.__setattr__(self, "index_components", components)

    @property
    def n_tasks(self) -> int:
        """Independent problems: one KV head of one batch element."""
        return self.batch * self.n_kv_heads

    @property
    def n_indexed(self) -> int:
        """Number of components in the key index."""
        return self.index_components or self.head_dim

    @classmethod
    def options(cls) -> list[str]:
        """Names of the fields with a default, which a caller may leave out."""
        return [f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING]

    @property
    def option_values(self) -> dict[str, Any]:
        """The options, by name."""
        return {name: getattr(self, name) for name in self.options()}

    def plain(self) -> CacheSpec:
        """The same cache with the default of every option."""
        return dataclasses.replace(self, **{name: getattr(type(self), name) for name in self.options()})

    @classmethod
    def take(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Remove the options of a cache from these keyword arguments and return them."""
        return {name: options.pop(name) for name in cls.options() if name in options}


class HasSpec:
    """The fields of `spec` as attributes of a cache."""

    spec: CacheSpec
    batch: int
    n_kv_heads: int
    head_dim: int
    capacity: int
    index_bits: int
    row_bits: int
    index_components: int


for _field in dataclasses.fields(CacheSpec):
    setattr(HasSpec, _field.name, property(operator.attrgetter(f"spec.{_field.name}")))
