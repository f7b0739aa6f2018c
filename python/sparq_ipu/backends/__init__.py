# SPDX-License-Identifier: Apache-2.0
"""One module for each way to run: `reference` (NumPy), `cpu` (SIMD kernels), `ipu` (the Poplar program, on an
IPU or emulated).

A backend module defines

* `unavailable(device) -> str | None`: why `device` can not run here, None if it can;
* `Options`: a frozen dataclass, of what a caller may choose. It checks each field; its `check` says whether
  a cache can have them all: `Options` below;
* `create(device, spec, n_layers, options) -> list[Backend]`, one for each layer; `spec` is a
  `sparq_reference.CacheSpec`, of one layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Sequence

import numpy as np

from sparq_reference.settings import CacheSpec, WindowSettings

if TYPE_CHECKING:
    from sparq_ipu.kernels import Settings


class History(NamedTuple):
    """The steps that window attention remembers of one layer, for a copy of a cache."""

    n_recent: int  #: steps there is room for
    steps: list[list[np.ndarray]]  #: of each batch element, the oldest first: shares (length,) uint32


class Options(Protocol):
    """What `sparq_ipu.KVCache` asks of a backend's options."""

    def check(self, op: str, spec: CacheSpec, n_layers: int = 1, settings: Sequence[Settings] = ()) -> None:
        """Whether so many layers of such a cache can have these options, and attention each of these
        settings; None: dense attention. Makes nothing, and does not ask for memory.

        Raises:
            ValueError: `<op>: <argument> must <rule>, got <value>`.
        """


class AnyCache:
    """Options that every cache can have, and any attention over it."""

    def check(self, op: str, spec: CacheSpec, n_layers: int = 1, settings: Sequence[Settings] = ()) -> None:
        pass


class Backend(Protocol):
    """What `sparq_ipu.KVCache` asks of a backend: the cache of one layer. Arguments arrive checked; shapes as
    there."""

    @property
    def lengths(self) -> np.ndarray:
        """(batch,) integers: positions held."""

    def check_settings(self, op: str, settings: Settings) -> None:
        """Raise ValueError, beginning with `op`, if `attention` has no program for such settings, or the
        history of window attention is one of another n_recent."""

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        """Append the first lengths[b] tokens of key, value (batch, n_kv_heads, n_tokens, head_dim)."""

    def append_token(self, key: np.ndarray, value: np.ndarray, check_finite: bool) -> bool:
        """Append a token for every batch element, (batch, n_kv_heads, 1, head_dim), if that can be checked in
        the same call. False: nothing has happened, check and `append`. Arguments arrive unchecked."""

    def attention_of_query(
        self, query: np.ndarray, settings: Settings, check_finite: bool
    ) -> np.ndarray | None:
        """`attention`, if the query can be checked in the same call. None: nothing has happened, check and
        ask for `attention`. The query arrives unchecked."""

    def attention(self, query: np.ndarray, settings: Settings) -> np.ndarray:
        """Decode attention, (batch, n_heads, head_dim) float16 in and out: SparQ or window attention, or
        dense attention where settings is None."""

    def observe(self, query: np.ndarray, settings: WindowSettings) -> None:
        """Put the dense attention of the last tokens held, (batch, n_heads, n_tokens, head_dim), into the
        history of window attention."""

    def history(self) -> History | None:
        """What window attention remembers; None: nothing."""

    def set_history(self, history: History) -> None:
        """Remember that instead, in a cache that remembers nothing."""

    def attention_of_tokens(self, query: np.ndarray) -> np.ndarray:
        """Dense attention of the last tokens held, (batch, n_heads, n_tokens, head_dim) float16 in and out:
        each to the positions up to its own. Asked on "cpu" and "reference" alone."""

    def truncate(self, lengths: np.ndarray) -> None:
        """Keep the first lengths[b] positions of each element, lengths[b] <= what it holds."""

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of positions [start, stop), 0 <= start <= stop <= the longest length; 0 at
        or beyond an element's length."""

    def reset(self) -> None:
        """Forget every position."""

    def reorder(self, index: np.ndarray) -> None:
        """Batch element b becomes a copy of what element index[b] was (beam search)."""


class ChecksBefore:
    """Of a backend whose arguments are always checked before its calls."""

    def append_token(self, key: np.ndarray, value: np.ndarray, check_finite: bool) -> bool:
        return False

    def attention_of_query(
        self, query: np.ndarray, settings: Settings, check_finite: bool
    ) -> np.ndarray | None:
        return None
