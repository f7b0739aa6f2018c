# SPDX-License-Identifier: Apache-2.0
"""The Poplar program as a backend: on an IPU, or on the bundled emulator.

A Poplar program is compiled for fixed shapes and settings. So the first attention call compiles one
(`n_heads` is known only then), and a call with settings that the program lacks compiles it anew with these
added; the cache moves over.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from sparq_ipu.backends.room import check_room
from sparq_ipu.kernels import MEMORIES, Attention, attention_over
from sparq_ipu.planning.device_model import device_model
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, checks

if TYPE_CHECKING:
    from sparq_ipu import _core


def unavailable(device: str) -> str | None:
    """Why `device` ("ipu" or "emulator") can not run here; None if it can."""
    try:
        from sparq_ipu import _core
    except ImportError as error:
        return f"the extension module is not built: {error}"
    return _core.device_unavailable(device) or None


def create(device: str, spec: CacheSpec, *, n_tiles: int = 0, memory: str = MEMORIES[0]) -> IpuBackend:
    """A cache on an IPU.

    Args:
        n_tiles: tiles of the emulated IPU; 0: all 1472. Results do not depend on it.
        memory: "streaming" (rows of K and V in streaming memory), or "sram": all of the cache on chip, dense
            attention only, filled once.

    Raises:
        ValueError: an option out of range; DoesNotFit, which is one, where the emulated IPU has no memory for
            the keys and values of a full cache.
    """
    if memory not in MEMORIES:
        raise ValueError(f"KVCache: memory must be {' or '.join(map(repr, MEMORIES))}, got {memory!r}")
    bow = device_model()
    n_tiles = checks.check_integer("KVCache", "n_tiles", n_tiles, 0, bow.tiles)
    if device == "emulator":  # an IPU knows what it has
        on_chip = (n_tiles or bow.tiles) * bow.tile_bytes
        rooms = {"streaming": bow.streaming_memory_bytes, "sram": on_chip}
        resources = {"streaming": "streaming memory", "sram": "tile memory"}
        check_room(spec, rooms[memory], resources[memory])
    return IpuBackend(device, spec, n_tiles, memory)


class IpuBackend:
    """A session (compiled program, loaded device), made when first needed; until then, what was appended.
    Calls from several threads take turns."""

    def __init__(self, device: str, spec: CacheSpec, n_tiles: int, memory: str):
        self._device = device
        self._spec = spec
        self._n_tiles = n_tiles
        self._memory = memory
        self._session: _core.Session | None = None
        self._n_heads = 0
        #: programs of the session, in its order
        self._attention: list[Attention] = []
        # Appended while there is no session: copies, since the caller may change his arrays.
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._lengths = np.zeros(spec.batch, np.int64)
        self._lock = threading.RLock()

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    @property
    def session(self) -> _core.Session | None:
        """The `sparq_ipu._core.Session` in use; None before the first attention call."""
        return self._session

    def check_settings(self, op: str, settings: SparqSettings | None) -> None:
        attention_over(self._memory, settings, op)

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        with self._lock:
            if self._memory == "sram" and self._lengths.any():
                raise ValueError(
                    f"append: a cache in SRAM must be empty, got length {int(self._lengths.max())}"
                )
            if self._session is None:
                self._pending.append((key.copy(), value.copy(), lengths.copy()))
            else:
                self._write(self._session, key, value, lengths)
            self._lengths = self._lengths + lengths

    def _write(self, session: _core.Session, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        key, value = np.ascontiguousarray(key), np.ascontiguousarray(value)
        counts = [int(n) for n in lengths]
        if key.shape[2] == 1 and self._memory == "streaming":
            session.append(key, value, counts)  # on the device
        elif key.shape[2] > 0:
            session.write(key, value, counts)  # by the host

    def attention(self, query: np.ndarray, settings: SparqSettings | None) -> np.ndarray:
        wanted = attention_over(self._memory, settings)
        with self._lock:
            session = self._session_with(query.shape[1], wanted)
            return session.attention(self._attention.index(wanted), np.ascontiguousarray(query))

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
        spec = self._spec
        key = np.zeros((spec.batch, spec.n_kv_heads, longest, spec.head_dim), np.float16)
        value = np.zeros_like(key)
        held = np.zeros(spec.batch, np.int64)
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
            self._flush_pending(self._session)
        self._lengths = np.asarray(lengths, np.int64)

    def _flush_pending(self, session: _core.Session) -> None:
        while self._pending:
            self._write(session, *self._pending.pop(0))

    def _session_with(self, n_heads: int, wanted: Attention) -> _core.Session:
        """A session that has this program: the one in use, or one compiled now."""
        if self._session is not None and n_heads == self._n_heads and wanted in self._attention:
            return self._session
        every = self._attention if wanted in self._attention else [*self._attention, wanted]
        if self._session is not None:
            # A device serves one session: give it back before the next one wants it.
            self._pending = [(*self._contents(), self._lengths)]
            self._session = None
        try:
            session = self._compile(n_heads, every)
        except DoesNotFit:
            if every == [wanted]:
                raise
            session = self._compile(n_heads, [wanted])  # too much with all programs so far: this one then
        self._flush_pending(session)
        return session

    def _compile(self, n_heads: int, attention: list[Attention]) -> _core.Session:
        from sparq_ipu import _core

        session = _core.Session(
            self._spec, n_heads, attention=attention, device=self._device, n_tiles=self._n_tiles
        )
        self._session, self._n_heads, self._attention = session, n_heads, attention
        return session
