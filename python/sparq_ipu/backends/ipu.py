# SPDX-License-Identifier: Apache-2.0
"""The Poplar program as a backend: on an IPU, or on the bundled emulator.

A Poplar program is compiled for fixed shapes and settings. So the first attention call compiles one
(`n_heads` is known only then), and a call with settings that the program lacks compiles it anew with these
added; the cache moves over.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from sparq_reference import checks


def unavailable(device: str) -> str | None:
    """Why `device` ("ipu" or "emulator") can not run here; None if it can."""
    try:
        from sparq_ipu import _core
    except ImportError as error:
        return f"the extension module is not built: {error}"
    return _core.device_unavailable(device) or None


def create(
    device: str,
    batch: int,
    n_kv_heads: int,
    head_dim: int,
    capacity: int,
    *,
    n_tiles: int = 0,
    memory: str = "streaming",
) -> IpuBackend:
    """A cache on an IPU.

    Args:
        n_tiles: tiles of the emulated IPU; 0: all 1472. Results do not depend on it.
        memory: "streaming" (rows of K and V in streaming memory), or "sram": all of the cache on chip, dense
            attention only, filled once.

    Raises:
        ValueError: an option out of range.
    """
    if memory not in ("streaming", "sram"):
        raise ValueError(f"KVCache: memory must be 'streaming' or 'sram', got {memory!r}")
    n_tiles = checks.check_integer("KVCache", "n_tiles", n_tiles, 0, checks.MAX_CAPACITY)
    return IpuBackend(device, batch, n_kv_heads, head_dim, capacity, n_tiles, memory)


class IpuBackend:
    """A session (compiled program, loaded device), made when first needed; and what came before. Calls from
    several threads take turns."""

    def __init__(
        self,
        device: str,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        n_tiles: int,
        memory: str,
    ):
        self._device = device
        self._shape = (batch, n_kv_heads, head_dim, capacity)
        self._n_tiles = n_tiles
        self._memory = memory
        self._session: Any = None
        self._n_heads = 0
        self._dense = False
        self._sparq: list[tuple[int, int, int, bool]] = []
        # Appended while there is no session: copies, since the caller may change his arrays.
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._lengths = np.zeros(batch, np.int64)
        self._lock = threading.RLock()

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    @property
    def session(self) -> Any:
        """The `sparq_ipu._core.Session` in use; None before the first attention call."""
        return self._session

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        with self._lock:
            if self._memory == "sram" and self._lengths.any():
                raise ValueError(
                    f"append: a cache in SRAM must be empty, got length {int(self._lengths.max())}"
                )
            if self._session is None:
                self._pending.append((key.copy(), value.copy(), lengths.copy()))
            else:
                self._write(np.ascontiguousarray(key), np.ascontiguousarray(value), lengths)
            self._lengths = self._lengths + lengths

    def _write(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        counts = [int(n) for n in lengths]
        if key.shape[2] == 1 and self._memory == "streaming":
            self._session.append(key, value, counts)  # on the device
        elif key.shape[2] > 0:
            self._session.write(key, value, counts)  # by the host

    def dense_attention(self, query: np.ndarray) -> np.ndarray:
        with self._lock:
            self._need(query.shape[1], dense=True)
            return self._session.dense(np.ascontiguousarray(query))

    def sparq_attention(
        self, query: np.ndarray, rank: int, top_k: int, n_local: int, mean_value: bool
    ) -> np.ndarray:
        if self._memory == "sram":
            raise ValueError("sparq_attention: memory must be 'streaming', got 'sram'")
        settings = (rank, top_k, n_local, mean_value)
        with self._lock:
            self._need(query.shape[1], sparq=settings)
            return self._session.sparq(self._sparq.index(settings), np.ascontiguousarray(query))

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            key, value = self._contents()
        return key[:, :, start:stop], value[:, :, start:stop]

    def reset(self) -> None:
        with self._lock:
            self._pending.clear()
            if self._session is not None:
                self._session.reset()
            self._lengths = np.zeros_like(self._lengths)

    def reorder(self, index: np.ndarray) -> None:
        with self._lock:
            key, value = self._contents()
            self._replace(key[index], value[index], self._lengths[index])

    def _contents(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values held, (batch, n_kv_heads, longest length, head_dim)."""
        longest = int(self._lengths.max())
        if self._session is not None:
            return self._session.read(longest)
        batch, n_kv_heads, head_dim, _ = self._shape
        key = np.zeros((batch, n_kv_heads, longest, head_dim), np.float16)
        value = np.zeros_like(key)
        held = np.zeros(batch, np.int64)
        for new_key, new_value, counts in self._pending:
            for b, n in enumerate(counts):
                key[b, :, held[b] : held[b] + n] = new_key[b, :, :n]
                value[b, :, held[b] : held[b] + n] = new_value[b, :, :n]
            held += counts
        return key, value

    def _replace(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        """The cache holds exactly these."""
        self._pending = [(key, value, lengths)]
        if self._session is not None:
            self._session.reset()
            self._flush_pending()
        self._lengths = np.asarray(lengths, np.int64)

    def _flush_pending(self) -> None:
        while self._pending:
            key, value, lengths = self._pending.pop(0)
            self._write(np.ascontiguousarray(key), np.ascontiguousarray(value), lengths)

    def _need(
        self, n_heads: int, dense: bool = False, sparq: tuple[int, int, int, bool] | None = None
    ) -> None:
        """Make sure that the session has this program; compile one that has, if it lacks it."""
        from sparq_ipu import _core

        dense_too = dense or self._dense
        settings = self._sparq if sparq is None or sparq in self._sparq else [*self._sparq, sparq]
        if self._session is not None and (n_heads, dense_too, settings) == (
            self._n_heads,
            self._dense,
            self._sparq,
        ):
            return
        if self._session is not None:
            # A device serves one session: give it back before the next one wants it.
            self._pending = [(*self._contents(), self._lengths)]
            self._session = None
        batch, n_kv_heads, head_dim, capacity = self._shape

        def compiled(dense: bool, settings: list[tuple[int, int, int, bool]]) -> None:
            self._session = _core.Session(
                _core.Shape(batch, n_heads, n_kv_heads, head_dim, capacity),
                dense_sram=dense and self._memory == "sram",
                dense_streaming=dense and self._memory == "streaming",
                sparq=settings,
                device=self._device,
                n_tiles=self._n_tiles,
            )
            self._n_heads, self._dense, self._sparq = n_heads, dense, settings

        try:
            compiled(dense_too, settings)
        except RuntimeError:
            alone = [] if sparq is None else [sparq]
            if (dense_too, settings) == (dense, alone):
                raise
            compiled(dense, alone)  # all programs so far are too many for the tiles: this one then
        self._flush_pending()
