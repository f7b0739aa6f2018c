# SPDX-License-Identifier: Apache-2.0
"""The NumPy reference as a backend: slow, and right by definition."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypeVar

import numpy as np

from sparq_ipu.backends import History
from sparq_ipu.backends.room import check_room, host_memory
from sparq_reference import CacheSpec, KVCache, WindowSettings, exact, window

if TYPE_CHECKING:
    from sparq_ipu.kernels import Settings


def unavailable(device: str) -> str | None:
    """Always available."""
    return None


@dataclasses.dataclass(frozen=True)
class Options:
    """There are none."""

    op: dataclasses.InitVar[str] = "KVCache"

    def check(self, op: str, spec: CacheSpec, n_layers: int = 1, settings: Sequence[Settings] = ()) -> None:
        """The reference takes any cache."""


def create(device: str, spec: CacheSpec, n_layers: int, options: Options) -> list[ReferenceBackend]:
    """A reference cache for each layer; see `sparq_ipu.backends.Backend`."""
    stored = dataclasses.replace(spec, row_bits=16)  # as float16, whatever they are rounded to
    check_room(stored, n_layers, host_memory(), "memory of this machine")
    return [ReferenceBackend(spec) for _ in range(n_layers)]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _in_turn(method: _Method) -> _Method:
    """One call at a time: a token that is half stored would be seen."""

    @functools.wraps(method)
    def called(self: ReferenceBackend, *arguments: Any) -> Any:
        with self.lock:
            return method(self, *arguments)

    return called  # type: ignore[return-value]


class ReferenceBackend:
    """`sparq_reference.KVCache` behind the backend protocol. NaN and infinity were looked for before."""

    def __init__(self, spec: CacheSpec):
        self._cache = KVCache(**dataclasses.asdict(spec))
        self.lock = threading.Lock()

    @property
    def lengths(self) -> np.ndarray:
        return self._cache.lengths

    def check_settings(self, op: str, settings: Settings) -> None:
        held = self._cache.history
        window.check_recent(op, 0 if held is None else held.n_recent, settings)

    @_in_turn
    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        self._cache.append(key, value, lengths, check_finite=False)

    @_in_turn
    def attend(self, query: np.ndarray, settings: Settings) -> np.ndarray:
        if query.ndim == 4:
            return self._attend_from_tokens(query)
        return self._cache.attention(query, settings, check_finite=False)

    @_in_turn
    def observe(self, query: np.ndarray, settings: WindowSettings) -> None:
        self._cache.observe(query, settings, check_finite=False)

    @_in_turn
    def history(self) -> History | None:
        held = self._cache.history
        if held is None:
            return None
        return History(held.n_recent, [held.steps(b) for b in range(self._cache.batch)])

    @_in_turn
    def set_history(self, history: History) -> None:
        held = window.WindowHistory(self._cache.batch, history.n_recent)
        for element, steps in enumerate(history.steps):
            for shares in steps:
                held.add(element, shares)
        self._cache.history = held

    def _attend_from_tokens(self, query: np.ndarray) -> np.ndarray:
        cache, output = self._cache, np.empty_like(query)
        for back, index in enumerate(reversed(range(query.shape[2]))):
            token = query[:, :, index]
            output[:, :, index] = exact.dense_unchecked(token, cache.key, cache.value, cache.lengths - back)
        return output

    @_in_turn
    def truncate(self, lengths: np.ndarray) -> None:
        self._cache.truncate(lengths)

    @_in_turn
    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        held = (np.arange(start, stop) < self._cache.lengths[:, None])[:, None, :, None]
        zero = np.float16(0)
        key, value = self._cache.key[:, :, start:stop], self._cache.value[:, :, start:stop]
        return np.where(held, key, zero), np.where(held, value, zero)

    @_in_turn
    def reset(self) -> None:
        self._cache.reset()

    @_in_turn
    def reorder(self, index: np.ndarray) -> None:
        self._cache.reorder(index)
