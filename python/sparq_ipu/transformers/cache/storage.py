# SPDX-License-Identifier: Apache-2.0
"""Where the keys and values of a layer are: a `sparq_ipu.KVCache`, and a larger one when it is full."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.transformers.cache.columns import to_positions
from sparq_reference import checks

#: positions that a growing cache has room for beyond its first tokens
FIRST_ROOM = 256
#: positions that move at once from one KVCache to another
_MOVED = 4096


def first_cache(key: torch.Tensor, capacity: int | None, options: dict[str, Any]) -> KVCache:
    """An empty one for tokens of that shape: key (batch, n_kv_heads, n_tokens, head_dim).

    Args:
        capacity: most positions of a row; None: no limit.
        options: of `sparq_ipu.KVCache`.
    """
    batch, n_kv_heads, n_tokens, head_dim = key.shape
    room = min(n_tokens + FIRST_ROOM, checks.MAX_CAPACITY) if capacity is None else capacity
    return KVCache(batch, n_kv_heads, head_dim, room, **options)


class Storage:
    """Keys and values of the real tokens of one layer.

    Args:
        cache: what attention reads, until it is full.
        options: of `cache`.
        grows: whether a larger KVCache, of twice the size, may take the place of a full one.
    """

    def __init__(self, cache: KVCache, options: dict[str, Any], grows: bool):
        self.cache = cache
        self._options = options
        self._grows = grows

    def empty(self, batch: int, capacity: int) -> KVCache:
        """A KVCache as this one has."""
        return KVCache(batch, self.cache.n_kv_heads, self.cache.head_dim, capacity, **self._options)

    def reserve(self, n_columns: int, n_more: int) -> None:
        """Make room for `n_more` columns of tokens behind `n_columns`, unless the capacity is fixed."""
        if self._grows:
            self._grow(n_columns + n_more)

    def _grow(self, n_positions: int, most: int = checks.MAX_CAPACITY) -> None:
        """Make room for `n_positions`; doubled sizes end at `most`."""
        full = self.cache
        if n_positions > full.capacity:
            self.cache = self.empty(full.batch, min(max(n_positions, 2 * full.capacity), most))
            _move(full, self.cache, np.arange(full.batch))

    def settle(self) -> None:
        """The tokens of a prompt have attended: what no later one sees may go."""

    def append(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor | None) -> None:
        """Append the real ones among tokens.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
            real: (batch, n_tokens) bool; None: all.

        Raises:
            ValueError: as `KVCache.append`; nothing has changed then.
        """
        if real is None or bool(real.all()):
            self.cache.append(key.numpy(), value.numpy())
        elif bool(real.any()):
            key, value = to_positions(real, key, value)
            self.cache.append(key.numpy(), value.numpy(), real.sum(dim=1).numpy())

    def replace(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor) -> None:
        """Hold these tokens, as `append` takes them, and no others."""
        self.cache.reset()
        self.append(key, value, real)

    def check_left(self, lengths: np.ndarray) -> None:
        """Raise ValueError where rows can not be cut to these lengths, (batch,) integers."""

    def truncate(self, lengths: np.ndarray) -> None:
        """Forget what is behind these lengths. Call `check_left` before."""
        self.cache.truncate(lengths)

    def reorder(self, index: np.ndarray) -> None:
        """As `KVCache.reorder`."""
        self.cache.reorder(index)

    @property
    def begin(self) -> int:
        """First position that every row holds."""
        return 0

    def read(self, start: int = 0, stop: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions [start, stop); None: to the longest length. (batch, n_kv_heads,
        stop - start, head_dim) float16, 0 where a row holds none."""
        key, value = self.cache.read(start, stop)
        return torch.from_numpy(key), torch.from_numpy(value)

    def select(self, index: torch.Tensor) -> Storage:
        """A copy of the rows `index`, in that order."""
        return Storage(self._selected(index.numpy()), self._options, self._grows)

    def _selected(self, rows: np.ndarray) -> KVCache:
        selected = self.empty(len(rows), self.cache.capacity)
        _move(self.cache, selected, rows)
        return selected


def _move(source: KVCache, target: KVCache, index: np.ndarray) -> None:
    """Append what the rows `index` of one cache hold to another, an empty one, a piece at a time."""
    lengths = source.lengths
    longest = int(lengths.max())
    for start in range(0, longest, _MOVED):
        stop = min(start + _MOVED, longest)
        key, value = (x[index] for x in source.read(start, stop))
        target.append(key, value, np.clip(lengths[index] - start, 0, stop - start))
