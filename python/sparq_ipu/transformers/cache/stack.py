# SPDX-License-Identifier: Apache-2.0
"""The layers of a model in one `sparq_ipu.KVCache`, where a cache of its own would take each an IPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.transformers.cache.storage import FIRST_ROOM, Storage, append_real, move
from sparq_reference import checks


class LayerStack:
    """One KVCache for all layers that have the shape of the first; it grows by doubling, for all of them.

    Args:
        n_layers: of the model.
    """

    def __init__(self, n_layers: int):
        self.n_layers = n_layers
        self._cache: KVCache | None = None
        self._options: dict[str, Any] = {}
        self._users: set[int] = set()
        #: rows that were chosen from this one, and what they became, while layers follow one another
        self._selected: tuple[list[int], LayerStack] | None = None

    @property
    def cache(self) -> KVCache:
        """The KVCache of all layers."""
        assert self._cache is not None  # a storage exists, so somebody has joined
        return self._cache

    def storage(
        self, index: int, key: torch.Tensor, capacity: int | None, options: dict[str, Any]
    ) -> Storage:
        """An empty one for layer `index`, for tokens of that shape; see `Storage.for_tokens`. A layer of
        another shape gets a KVCache of its own."""
        batch, n_kv_heads, n_tokens, head_dim = key.shape
        room = min(n_tokens + FIRST_ROOM, checks.MAX_CAPACITY) if capacity is None else capacity
        shape = (batch, n_kv_heads, head_dim)
        if not self._join(index, shape, room, options):
            alone = {name: value for name, value in options.items() if name not in ("n_ipus", "split")}
            return Storage.for_tokens(key, capacity, alone)
        return StackStorage(self, index, capacity is None)

    def leave(self, index: int) -> None:
        """Layer `index` has forgotten everything."""
        self._users.discard(index)

    def reserve(self, n_positions: int) -> None:
        """Make room for `n_positions` in every layer."""
        if n_positions > self.cache.capacity:
            capacity = min(max(n_positions, 2 * self.cache.capacity), checks.MAX_CAPACITY)
            self._cache = self._moved(np.arange(self.cache.batch), capacity, self._users)

    def select(self, index: int, rows: np.ndarray) -> LayerStack:
        """A stack with these rows of layer `index`. Other layers join it when they are asked for the same
        rows."""
        wanted = rows.tolist()
        if self._selected is None or self._selected[0] != wanted or index in self._selected[1]._users:
            stack = LayerStack(self.n_layers)
            stack._options = self._options
            stack._cache = self._empty(len(rows), self.cache.capacity)
            self._selected = wanted, stack
        stack = self._selected[1]
        move(self.cache.layer(index), stack.cache.layer(index), rows)
        stack._users.add(index)
        if stack._users >= self._users:
            self._selected = None  # all have followed: nobody else needs it
        return stack

    def _join(self, index: int, shape: tuple[int, int, int], room: int, options: dict[str, Any]) -> bool:
        if self._cache is None or not self._users:
            self._cache = None  # gives its device back
            self._cache = KVCache(*shape, room, n_layers=self.n_layers, **options)
            self._options = options
        cache = self.cache
        if shape != (cache.batch, cache.n_kv_heads, cache.head_dim) or options != self._options:
            return False
        self.reserve(room)
        self.cache.layer(index).reset()
        self._users.add(index)
        return True

    def _empty(self, batch: int, capacity: int) -> KVCache:
        cache = self.cache
        return KVCache(
            batch, cache.n_kv_heads, cache.head_dim, capacity, n_layers=self.n_layers, **self._options
        )

    def _moved(self, rows: np.ndarray, capacity: int, layers: set[int]) -> KVCache:
        cache = self._empty(len(rows), capacity)
        for layer in layers:
            move(self.cache.layer(layer), cache.layer(layer), rows)
        return cache


class StackStorage(Storage):
    """Keys and values of the real tokens of one layer of a stack."""

    def __init__(self, stack: LayerStack, index: int, grows: bool):
        #: shared with the other layers
        self.stack = stack
        self._index = index
        self._grows = grows

    @property
    def cache(self) -> KVCache:
        return self.stack.cache.layer(self._index)

    def reserve(self, n_positions: int) -> None:
        if self._grows:
            self.stack.reserve(n_positions)

    def replace(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor) -> None:
        self.cache.reset()
        append_real(self.cache, key, value, real)

    def select(self, index: torch.Tensor) -> Storage:
        return StackStorage(self.stack.select(self._index, index.numpy()), self._index, self._grows)

    def forget(self) -> None:
        self.stack.leave(self._index)
