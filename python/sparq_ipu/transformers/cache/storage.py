# SPDX-License-Identifier: Apache-2.0
"""Where the keys and values of layers are: a `sparq_ipu.KVCache`, and a larger one when it is full.

Layers share one where a cache takes a device, and a program is compiled for it. Elsewhere each has its own.
"""

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


class LayerStack:
    """One KVCache for all layers that have the shape of the first; it grows by doubling, for all of them.

    Args:
        n_layers: of the model.
    """

    def __init__(self, n_layers: int = 1):
        self.n_layers = n_layers
        #: the KVCache of each layer, parts of one; empty before anybody has joined
        self.layers: list[KVCache] = []
        self._options: dict[str, Any] = {}
        self._users: set[int] = set()
        #: rows that were chosen from this one, and what they became, while layers follow one another
        self._selected: tuple[list[int], LayerStack] | None = None

    def storage(
        self, index: int, key: torch.Tensor, capacity: int | None, options: dict[str, Any]
    ) -> Storage:
        """An empty one for layer `index`, for tokens of that shape: key (batch, n_kv_heads, n_tokens,
        head_dim). A layer of another shape gets a KVCache of its own.

        Args:
            capacity: most positions of a row; None: no limit.
            options: of `sparq_ipu.KVCache`.
        """
        batch, n_kv_heads, n_tokens, head_dim = key.shape
        room = min(n_tokens + FIRST_ROOM, checks.MAX_CAPACITY) if capacity is None else capacity
        shape = (batch, n_kv_heads, head_dim)
        if not self._join(index, shape, room, options):
            alone = {name: value for name, value in options.items() if name not in ("n_ipus", "split")}
            return LayerStack().storage(0, key, capacity, alone)
        return Storage(self, index, capacity is None)

    def leave(self, index: int) -> None:
        """Layer `index` has forgotten everything."""
        self._users.discard(index)

    def reserve(self, n_positions: int, most: int = checks.MAX_CAPACITY) -> None:
        """Make room for `n_positions` in every layer; doubled sizes end at `most`."""
        full = self.layers
        if n_positions > full[0].capacity:
            capacity = min(max(n_positions, 2 * full[0].capacity), most)
            self.layers = self.empty(full[0].batch, capacity)
            for layer in self._users:
                _move(full[layer], self.layers[layer], np.arange(full[0].batch))

    def select(self, index: int, rows: np.ndarray) -> LayerStack:
        """A stack with these rows of layer `index`. Other layers join it when they are asked for the same
        rows."""
        wanted = rows.tolist()
        if self._selected is None or self._selected[0] != wanted or index in self._selected[1]._users:
            stack = LayerStack(self.n_layers)
            stack._options = self._options
            stack.layers = self.empty(len(rows), self.layers[0].capacity)
            self._selected = wanted, stack
        stack = self._selected[1]
        _move(self.layers[index], stack.layers[index], rows)
        stack._users.add(index)
        if stack._users >= self._users:
            self._selected = None  # all have followed: nobody else needs it
        return stack

    def _join(self, index: int, shape: tuple[int, int, int], room: int, options: dict[str, Any]) -> bool:
        if not self._users:
            self.layers = []  # gives its device back
            self._options = options
            self.layers = self._made(*shape, room)
        cache = self.layers[0]
        if shape != (cache.batch, cache.n_kv_heads, cache.head_dim) or options != self._options:
            return False
        self.reserve(room)
        self.layers[index].reset()
        self._users.add(index)
        return True

    def empty(self, batch: int, capacity: int) -> list[KVCache]:
        """A KVCache for each layer, as they have."""
        return self._made(batch, self.layers[0].n_kv_heads, self.layers[0].head_dim, capacity)

    def _made(self, *shape: int) -> list[KVCache]:
        cache = KVCache(*shape, n_layers=self.n_layers, **self._options)
        return [cache.layer(index) for index in range(self.n_layers)]


class Storage:
    """Keys and values of the real tokens of one layer.

    Args:
        stack: the layers that share a KVCache. index: of this one among them.
        grows: whether a larger KVCache may take the place of a full one.
    """

    def __init__(self, stack: LayerStack, index: int, grows: bool):
        self.stack = stack
        self.index = index
        self._grows = grows

    @property
    def cache(self) -> KVCache:
        """The KVCache that attention reads."""
        return self.stack.layers[self.index]

    def reserve(self, n_columns: int, n_more: int) -> None:
        """Make room for `n_more` columns of tokens behind `n_columns`, unless the capacity is fixed."""
        if self._grows:
            self.stack.reserve(n_columns + n_more)

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
        return Storage(self.stack.select(self.index, index.numpy()), self.index, self._grows)

    def forget(self) -> None:
        """Nothing reads these tokens any more."""
        self.stack.leave(self.index)


def _move(source: KVCache, target: KVCache, index: np.ndarray) -> None:
    """Append what the rows `index` of one cache hold to another, an empty one, a piece at a time."""
    lengths = source.lengths
    longest = int(lengths.max())
    for start in range(0, longest, _MOVED):
        stop = min(start + _MOVED, longest)
        key, value = (x[index] for x in source.read(start, stop))
        target.append(key, value, np.clip(lengths[index] - start, 0, stop - start))
