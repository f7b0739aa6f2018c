# SPDX-License-Identifier: Apache-2.0
"""Layers with a sliding window hold the last positions of a text only: no later token sees those before.

`BACK` more than the window are always held, so that tokens can be taken back: rejected drafts, an answer, the
end of a prompt that another one continues differently.
"""

from __future__ import annotations

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.transformers.cache.columns import to_positions
from sparq_ipu.transformers.cache.storage import LayerStack, Storage
from sparq_reference import checks

#: positions before the window that are always held
BACK = 1024
#: tokens that come before positions are dropped again
_MORE = 1024
#: attention to a prompt computes in blocks of so many positions (E14); whole ones are dropped
_BLOCK = 64


def room_of(window: int) -> int:
    """Positions that a layer with this window has memory for."""
    return window + BACK + _BLOCK + _MORE


def keep_last(source: KVCache, window: int, target: KVCache | None = None) -> np.ndarray:
    """Drop the first positions of each batch element: its last `window + BACK` remain, or a block more.

    Args:
        target: where they are then; None: in the same cache.

    Returns:
        (batch,) positions that each element lost.
    """
    lengths = source.lengths
    lost: np.ndarray = np.maximum(lengths - window - BACK, 0) // _BLOCK * _BLOCK
    left, first = lengths - lost, int(lost.min())
    at = np.minimum(lost[:, None] + np.arange(left.max()), lengths.max() - 1) - first
    key, value = (np.take_along_axis(x, at[:, None, :, None], 2) for x in source.read(first))
    target = source if target is None else target
    target.reset()
    if left.any():
        target.append(key, value, left)
    return lost


def check_left(op: str, window: int, dropped: np.ndarray, lengths: np.ndarray) -> None:
    """Whether texts can be cut to these lengths, (batch,) integers, where the first `dropped` positions are.

    Raises:
        ValueError: the next token would see a position that was dropped.
    """
    missing = (dropped > 0) & (lengths < dropped + window)
    if missing.any():
        row = int(missing.argmax())
        rule = f"leave at least {dropped[row] + window} tokens of this text in layers with windows"
        checks.fail(op, "length", rule, int(lengths[row]))


class WindowStorage(Storage):
    """Keys and values of one layer with a window.

    Args:
        stack: of this layer alone. window: in positions.
    """

    def __init__(self, stack: LayerStack, window: int, dropped: np.ndarray | None = None):
        super().__init__(stack, 0, grows=True)
        self._window = window
        #: (batch,) first positions of each row that are not held
        self._dropped = np.zeros(self.cache.batch, np.int64) if dropped is None else dropped
        #: columns up to which there is room for certain
        self._until = 0

    def reserve(self, n_columns: int, n_more: int) -> None:
        if n_columns + n_more <= self._until:
            return
        held, room = int(self.cache.lengths.max()), room_of(self._window)
        if held + n_more > max(room, self.cache.capacity):
            self._drop(max(room, self._window + BACK + _BLOCK + n_more))
            held = int(self.cache.lengths.max())
        else:
            self.stack.reserve(held + n_more, max(room, held + n_more))
        self._until = n_columns + self.cache.capacity - held

    def _drop(self, capacity: int) -> None:
        cache = self.cache
        if capacity != cache.capacity:
            self.stack.layers = self.stack.empty(cache.batch, capacity)
        self._dropped = self._dropped + keep_last(cache, self._window, self.cache)
        self._until = 0

    def settle(self) -> None:
        if self.cache.capacity > room_of(self._window):
            self._drop(room_of(self._window))

    def replace(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor) -> None:
        tokens = to_positions(real, key, value)
        left = real.sum(dim=1).numpy() - self._dropped  # where any was dropped, `check_left` left some
        at = np.minimum(self._dropped[:, None] + np.arange(left.max()), tokens[0].shape[2] - 1)
        self.cache.reset()
        if left.any():
            key_left, value_left = (np.take_along_axis(x.numpy(), at[:, None, :, None], 2) for x in tokens)
            self.cache.append(key_left, value_left, left)
        self._until = 0

    def check_left(self, lengths: np.ndarray) -> None:
        check_left("SparqCache", self._window, self._dropped, lengths)

    def truncate(self, lengths: np.ndarray) -> None:
        self.cache.truncate(lengths - self._dropped)
        self._until = 0  # columns of padding may come again as tokens

    def reorder(self, index: np.ndarray) -> None:
        super().reorder(index)
        self._dropped = self._dropped[index]

    @property
    def begin(self) -> int:
        return int(self._dropped.max())

    def read(self, start: int = 0, stop: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = self.cache.lengths + self._dropped
        stop = int(lengths.max()) if stop is None else stop
        held = super().read()
        result = tuple(x.new_zeros(*x.shape[:2], stop - start, x.shape[3]) for x in held)
        for row, (dropped, length) in enumerate(zip(self._dropped.tolist(), lengths.tolist())):
            first, last = max(start, dropped), min(stop, length)
            for to, of in zip(result, held):
                if first < last:
                    to[row, :, first - start : last - start] = of[row, :, first - dropped : last - dropped]
        return result[0], result[1]

    def select(self, index: torch.Tensor) -> Storage:
        rows = index.numpy()
        return WindowStorage(self.stack.select(0, rows), self._window, self._dropped[rows])
