# SPDX-License-Identifier: Apache-2.0
"""The Poplar program as a backend: on an IPU, or on the bundled emulator.

A Poplar program is compiled for fixed shapes and settings. The first attention call compiles one, since
`n_heads` is known only then. A call with settings that the program lacks compiles it anew with these added,
and the cache moves over.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Tuple

import numpy as np

from sparq_ipu.backends import Backend, History, cpu, reference
from sparq_ipu.backends.room import STREAMING_MEMORY_BYTES, TILE_BYTES, check_room, host_memory, sizes_of
from sparq_ipu.device_options import MAX_TILES, DeviceOptions
from sparq_ipu.kernels import Attention, Settings, attention_over
from sparq_reference import CacheSpec, DoesNotFit, WindowSettings, row_codes, window
from sparq_reference.settings import op_of

if TYPE_CHECKING:
    from sparq_ipu import _core

Options = DeviceOptions


def unavailable(device: str) -> str | None:
    """Why `device` ("ipu" or "emulator") can not run here; None if it can."""
    try:
        from sparq_ipu import _core
    except ImportError as error:
        return f"the extension module is not built: {error}"
    return _core.device_unavailable(device) or None


def create(device: str, spec: CacheSpec, n_layers: int, options: DeviceOptions) -> list[IpuBackend]:
    """The caches of all layers, on one IPU or several."""
    options.check("KVCache", spec, n_layers)
    if device == "emulator":  # an IPU knows what it has
        resource, room = "streaming memory", STREAMING_MEMORY_BYTES
        if options.memory == "sram":
            resource, room = "tile memory", (options.n_tiles or MAX_TILES) * TILE_BYTES
        for ipu, share in enumerate(options.shares("KVCache", spec, n_layers)):
            of_ipu = "" if options.n_ipus == 1 else f" of IPU {ipu}"
            check_room(share.spec, share.n_layers, room, resource + of_ipu)
    program = Program(device, spec, n_layers, options)
    return program.layers


#: keys, values, and how many of them are real, as `append` takes them
Tokens = Tuple[np.ndarray, np.ndarray, np.ndarray]


class IpuBackend:
    """One layer's cache: `sparq_ipu.backends.Backend`.

    Until the program of all layers is compiled, it keeps what was appended. Calls from several threads wait
    for one another.
    """

    def __init__(self, program: Program, layer: int):
        self._program, self._layer, self._lock = program, layer, program.lock
        self._spec, self._options = program.spec, program.options
        #: appended while there is no session: copies, since the caller may change its arrays
        self._pending: list[Tokens] = []
        self._lengths = np.zeros(self._spec.batch, np.int64)
        #: for how many steps window attention remembers; 0: it was never used
        self._n_recent = 0
        #: what it remembers, while the session does not
        self._history: History | None = None

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    @property
    def session(self) -> _core.Session | None:
        """The `sparq_ipu._core.Session` of all layers; None before the first attention call."""
        return self._program.session

    def check_settings(self, op: str, settings: Settings) -> None:
        self._options.check_attention(op, self._spec, settings)
        window.check_recent(op, self._n_recent, settings)

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        with self._lock:
            if self.session is None:
                bits = self._spec.row_bits
                key, value = (
                    rows.copy() if bits == 16 else row_codes.round_rows(rows, bits) for rows in (key, value)
                )
                self._pending.append((key, value, lengths.copy()))
            else:
                self._write(self.session, (key, value, lengths))
            self._lengths = self._lengths + lengths  # a new array: callers keep the old one

    def attend(self, query: np.ndarray, settings: Settings) -> np.ndarray:
        op = op_of(settings)
        with self._lock:
            if settings is not None:
                settings.check_heads(op, query.shape[1])
            self.check_settings(op, settings)
            wanted = attention_over(self._options.memory, settings, op)
            session, index = self._program.session_with(op, query.shape[1], wanted)
            output = session.attention(index, np.ascontiguousarray(query), layer=self._layer)
            if wanted.n_recent:
                self._n_recent = wanted.n_recent
            return output

    def observe(self, query: np.ndarray, settings: WindowSettings) -> None:
        """On the host: a program attends to listed positions, these tokens to all."""
        with self._lock:
            if not settings.remembers:
                return
            key, value = self.contents()  # already rounded, if rows have 8 bits: 16 bits hold them
            host = _host_cache(dataclasses.replace(self._spec, row_bits=16, index_components=0))
            host.append(key, value, self._lengths)
            before = self.history()
            if before is not None:
                host.set_history(before)
            host.observe(query, settings)
            after = host.history()
            assert after is not None  # these settings remember
            self.set_history(after)

    def history(self) -> History | None:
        with self._lock:
            if self._n_recent == 0:
                return None
            if self.session is None or self.session.n_recent != self._n_recent:
                return self._history
            return History(self._n_recent, self.session.history(self._layer))

    def set_history(self, history: History) -> None:
        with self._lock:
            self._n_recent, self._history = history.n_recent, history
            if self.session is not None and self.session.n_recent == history.n_recent:
                self.session.set_history(history.steps, self._layer)

    def truncate(self, lengths: np.ndarray) -> None:
        with self._lock:
            history = self.history()
            if history is not None:
                kept = [[s for s in of if len(s) <= n] for of, n in zip(history.steps, lengths)]
                history = History(history.n_recent, kept)
            self._replace(*self.contents(), lengths, history)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            key, value = self.contents()
        return key[:, :, start:stop], value[:, :, start:stop]

    def reset(self) -> None:
        with self._lock:
            self._pending.clear()
            if self.session is not None:
                self.session.reset(self._layer)
            self._lengths = np.zeros_like(self._lengths)
            self._n_recent, self._history = 0, None

    def reorder(self, index: np.ndarray) -> None:
        with self._lock:
            history = self.history()
            if history is not None:
                history = History(history.n_recent, [history.steps[b] for b in index])
            key, value = self.contents()
            self._replace(key[index], value[index], self._lengths[index], history)

    def _replace(
        self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray, history: History | None
    ) -> None:
        """Hold the first lengths[b] of these positions, which it held, and no others."""
        self.reset()
        longest = int(lengths.max())
        if longest:
            self.append(key[:, :, :longest], value[:, :, :longest], lengths)
        if history is not None:
            self.set_history(history)

    def contents(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values held, (batch, n_kv_heads, longest length, head_dim)."""
        longest = int(self._lengths.max())
        if self.session is not None:
            return self.session.read(longest, self._layer)
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

    def leave_session(self) -> None:
        """Keep on the host what the session holds, for the next one."""
        held, history = (*self.contents(), self._lengths), self.history()
        self._pending, self._history = [held], history

    def enter_session(self, session: _core.Session) -> None:
        """Give a new session what the host keeps."""
        self._flush(session)
        if self._history is not None and self._history.n_recent == session.n_recent:
            session.set_history(self._history.steps, self._layer)

    def _flush(self, session: _core.Session) -> None:
        while self._pending:
            self._write(session, self._pending.pop(0))

    def _write(self, session: _core.Session, tokens: Tokens) -> None:
        key, value = np.ascontiguousarray(tokens[0]), np.ascontiguousarray(tokens[1])
        counts = [int(n) for n in tokens[2]]
        if key.shape[2] == 1:
            session.append(key, value, counts, self._layer)  # on the device
        elif key.shape[2] > 0:
            session.write(key, value, counts, self._layer)  # by the host


class Program:
    """The session (compiled program, loaded device) that all layers share, made when first needed."""

    def __init__(self, device: str, spec: CacheSpec, n_layers: int, options: DeviceOptions):
        self.spec, self.options = spec, options
        self.lock = threading.RLock()
        self.session: _core.Session | None = None
        #: what the session was compiled for: programs in its order
        self.attention: list[Attention] = []
        self._device, self._n_heads = device, 0
        self.layers = [IpuBackend(self, layer) for layer in range(n_layers)]

    def session_with(self, op: str, n_heads: int, wanted: Attention) -> tuple[_core.Session, int]:
        """A session that has this program, the one in use or one compiled now, and the program's index."""
        sizes = sizes_of(self.spec, len(self.layers))
        try:
            session = self._session_with(n_heads, wanted)
        except DoesNotFit as error:  # the planner's words, with those of the caller before them
            rule = "capacity must be one whose program fits the device"
            text = f"{op}: {rule}, got {self.spec.capacity} with {sizes}, n_heads={n_heads}: {error}"
            raise DoesNotFit(text, error.resource, error.need, error.room) from error
        except MemoryError:
            rule = "memory of this machine must be free for the streaming memory of a device"
            got = f"too little for capacity={self.spec.capacity}, {sizes}"
            raise MemoryError(f"{op}: {rule}, got {got}") from None
        return session, self.attention.index(wanted)

    def _session_with(self, n_heads: int, wanted: Attention) -> _core.Session:
        if self.session is not None and n_heads == self._n_heads and wanted in self.attention:
            return self.session
        every = self.attention if wanted in self.attention else [*self.attention, wanted]
        if wanted.n_recent:  # a session remembers so many steps, or none
            every = [program for program in every if program.n_recent in (0, wanted.n_recent)]
        if self.session is not None:
            for layer in self.layers:
                layer.leave_session()
            self.session = None  # a device serves one session: free it before the next one wants it
        try:
            session = self._compile(n_heads, every)
        except DoesNotFit:
            if every == [wanted]:
                raise
            session = self._compile(n_heads, [wanted])  # too much with all programs so far: this one then
        for layer in self.layers:
            layer.enter_session(session)
        return session

    def _compile(self, n_heads: int, attention: list[Attention]) -> _core.Session:
        from sparq_ipu import _core

        n_layers = len(self.layers)
        if self._device == "emulator":
            check_room(self.spec, n_layers, host_memory(), "memory of this machine, which emulates it")
        session = _core.Session(
            self.spec,
            n_heads,
            attention=attention,
            device=self._device,
            options=self.options,
            n_layers=n_layers,
        )
        self.session, self._n_heads, self.attention = session, n_heads, attention
        return session


def _host_cache(spec: CacheSpec) -> Backend:
    """A cache of one layer on the host, of the fastest kind."""
    if cpu.unavailable("cpu") is None:
        return cpu.create("cpu", spec, 1, cpu.Options())[0]
    return reference.create("reference", spec, 1, reference.Options())[0]
