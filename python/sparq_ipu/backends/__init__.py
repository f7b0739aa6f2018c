# SPDX-License-Identifier: Apache-2.0
"""One module for each way to run: `reference` (NumPy), `cpu` (SIMD kernels), `ipu` (the Poplar program, on an
IPU or emulated).

A backend module defines

* `unavailable(device) -> str | None`: why `device` can not run here, None if it can;
* `Options`: a frozen dataclass of a caller's choices. It checks each field; its `check` (`Options` below)
  says whether a cache can have them all;
* `create(device, spec, n_layers, options) -> list[Backend]`, one for each layer; `spec` is the
  `sparq_reference.CacheSpec` of one layer.
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
        """Refuse so many layers of such a cache with these options, or attention with one of these settings;
        None: dense attention. Makes nothing, and does not ask for memory."""


class Backend(Protocol):
    """What `sparq_ipu.KVCache` asks of a backend: the cache of one layer. Shapes are those of `KVCache`.
    Arguments were checked."""

    @property
    def lengths(self) -> np.ndarray:
        """(batch,) integers: positions held."""

    def check_settings(self, op: str, settings: Settings) -> None:
        """Refuse settings that `attend` has no program for, or that want a history of another n_recent."""

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        """Append the first lengths[b] tokens of key, value to element b."""

    def attend(self, query: np.ndarray, settings: Settings) -> np.ndarray:
        """Decode attention (batch, n_heads, head_dim); dense attention where settings is None. On "cpu" and
        "reference" dense attention takes the last tokens held as well: (batch, n_heads, n_tokens, head_dim),
        each token attends to the positions up to its own."""

    def observe(self, query: np.ndarray, settings: WindowSettings) -> None:
        """Put the dense attention of the last tokens held, (batch, n_heads, n_tokens, head_dim), into the
        history of window attention."""

    def history(self) -> History | None:
        """What window attention remembers; None: nothing."""

    def set_history(self, history: History) -> None:
        """Remember that instead, in a cache that remembers nothing."""

    def truncate(self, lengths: np.ndarray) -> None:
        """Keep the first lengths[b] positions of each element, lengths[b] <= what it holds."""

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of positions [start, stop), at most the longest length; 0 beyond that of an
        element."""

    def reset(self) -> None:
        """Forget every position."""

    def reorder(self, index: np.ndarray) -> None:
        """Batch element b becomes a copy of what element index[b] was (beam search)."""
