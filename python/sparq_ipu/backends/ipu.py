# SPDX-License-Identifier: Apache-2.0
"""The Poplar program as a backend: on an IPU, or on the bundled emulator.

A Poplar program is compiled for fixed shapes and settings. So the first attention call compiles one
(`n_heads` is known only then), and a call with settings that the program lacks compiles it anew with these
added; the cache moves over.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Tuple

import numpy as np

from sparq_ipu.backends import Backend, ChecksBefore, History, cpu, reference
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
    """The caches of all layers, on one IPU or several.

    Raises:
        ValueError: options that such a cache can not have; DoesNotFit, which is one, where the emulated IPU
            has no memory for the keys and values of a full cache.
    """
    options.check("KVCache", spec, n_layers)
    if device == "emulator":  # an IPU knows what it has
        resource, room = "streaming memory", STREAMING_MEMORY_BYTES
        if options.memory == "sram":
            resource, room = "tile memory", (options.n_tiles or MAX_TILES) * TILE_BYTES
        for ipu, share in enumerate(options.shares("KVCache", spec, n_layers)):
            of_ipu = "" if options.n_ipus == 1 else f" of IPU {ipu}"
            check_room(share.spec, share.n_layers, room, resource + of_ipu)
    layers = IpuLayers(device, spec, n_layers, options)
    return [IpuBackend(layers, layer) for layer in range(n_layers)]


class IpuBackend(ChecksBefore):
    """One layer's cache: `sparq_ipu.backends.Backend`."""

    def __init__(self, layers: IpuLayers, layer: int):
        self._layers = layers
        self._layer = layer

    @property
    def lengths(self) -> np.ndarray:
        lengths: np.ndarray = self._layers.lengths[self._layer]
        return lengths

    @property
    def session(self) -> _core.Session | None:
        """The `sparq_ipu._core.Session` of all layers; None before the first attention call."""
        return self._layers.session

    def check_settings(self, op: str, settings: Settings) -> None:
        self._layers.check_settings(op, settings)
        window.check_recent(op, self._layers.n_recent(self._layer), settings)

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        self._layers.append(self._layer, key, value, lengths)

    def attention(self, query: np.ndarray, settings: Settings) -> np.ndarray:
        return self._layers.attention(self._layer, query, settings)

    def observe(self, query: np.ndarray, settings: WindowSettings) -> None:
        self._layers.observe(self._layer, query, settings)

    def history(self) -> History | None:
        return self._layers.history(self._layer)

    def set_history(self, history: History) -> None:
        self._layers.set_history(self._layer, history)

    def attention_of_tokens(self, query: np.ndarray) -> np.ndarray:
        raise NotImplementedError("a program takes one token a call")  # the caller says so first

    def truncate(self, lengths: np.ndarray) -> None:
        self._layers.truncate(self._layer, lengths)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        return self._layers.read(self._layer, start, stop)

    def reset(self) -> None:
        self._layers.reset(self._layer)

    def reorder(self, index: np.ndarray) -> None:
        self._layers.reorder(self._layer, index)


def _host_cache(spec: CacheSpec) -> Backend:
    """A cache of one layer on the host, of the fastest kind."""
    if cpu.unavailable("cpu") is None:
        return cpu.create("cpu", spec, 1, cpu.Options())[0]
    return reference.create("reference", spec, 1, reference.Options())[0]


#: keys, values, and how many of them are real, as `append` takes them
Tokens = Tuple[np.ndarray, np.ndarray, np.ndarray]


class IpuLayers:
    """A session (compiled program, loaded device) that all layers share, made when first needed; until then,
    what was appended to each. Calls from several threads take turns."""

    def __init__(self, device: str, spec: CacheSpec, n_layers: int, options: DeviceOptions):
        self._device = device
        self._spec = spec
        self._n_layers = n_layers
        self._options = options
        self._session: _core.Session | None = None
        self._n_heads = 0
        #: programs of the session, in its order
        self._attention: list[Attention] = []
        # Of each layer, appended while there is no session: copies, since the caller may change his arrays.
        self._pending: list[list[Tokens]] = [[] for _ in range(n_layers)]
        self._lengths = np.zeros((n_layers, spec.batch), np.int64)
        # Of each layer: for how many steps window attention remembers, 0 where it never did; and what, while
        # the session does not have it.
        self._n_recent = [0] * n_layers
        self._histories: list[History | None] = [None] * n_layers
        self._lock = threading.RLock()

    @property
    def lengths(self) -> np.ndarray:
        """(n_layers, batch)"""
        return self._lengths

    @property
    def session(self) -> _core.Session | None:
        return self._session

    def n_recent(self, layer: int) -> int:
        """Steps that window attention remembers of a layer; 0 if none came yet."""
        return self._n_recent[layer]

    def check_settings(self, op: str, settings: Settings) -> None:
        self._options.check_attention(op, self._spec, settings)

    def append(self, layer: int, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        with self._lock:
            if self._options.memory == "sram" and self._lengths[layer].any():
                longest = int(self._lengths[layer].max())
                raise ValueError(f"append: a cache in SRAM must be empty, got length {longest}")
            if self._session is None:
                bits = self._spec.row_bits  # the caller may change its arrays before they are written
                key, value = (
                    rows.copy() if bits == 16 else row_codes.round_rows(rows, bits) for rows in (key, value)
                )
                self._pending[layer].append((key, value, lengths.copy()))
            else:
                self._write(self._session, layer, (key, value, lengths))
            self._set_lengths(layer, self._lengths[layer] + lengths)

    def attention(self, layer: int, query: np.ndarray, settings: Settings) -> np.ndarray:
        op = op_of(settings)
        self.check_settings(op, settings)
        wanted = attention_over(self._options.memory, settings, op)
        with self._lock:
            self._check_history(op, layer, query.shape[1], settings)
            try:
                session = self._session_with(query.shape[1], wanted)
            except DoesNotFit as error:
                raise self._does_not_fit(op, query.shape[1], error) from error
            except MemoryError:
                sizes = f"capacity={self._spec.capacity}, {sizes_of(self._spec, self._n_layers)}"
                rule = "memory of this machine must be free for the streaming memory of a device"
                raise MemoryError(f"{op}: {rule}, got too little for {sizes}") from None
            index = self._attention.index(wanted)
            output = session.attention(index, np.ascontiguousarray(query), layer=layer)
            if wanted.n_recent:
                self._n_recent[layer] = wanted.n_recent
            return output

    def _does_not_fit(self, op: str, n_heads: int, error: DoesNotFit) -> DoesNotFit:
        """The planner's words, with those of the caller before them."""
        rule = "capacity must be one whose program fits the device"
        got = f"{self._spec.capacity} with {sizes_of(self._spec, self._n_layers)}, n_heads={n_heads}"
        return DoesNotFit(f"{op}: {rule}, got {got}: {error}", error.resource, error.need, error.room)

    def _check_history(self, op: str, layer: int, n_heads: int, settings: Settings) -> None:
        """Raise ValueError unless so many heads can be counted, and the steps so far are as many as these."""
        if settings is None or settings.kind != "window" or not settings.remembers:
            return
        settings.check_heads(op, n_heads)
        window.check_recent(op, self._n_recent[layer], settings)

    def observe(self, layer: int, query: np.ndarray, settings: WindowSettings) -> None:
        """On the host: a program attends to listed positions, these tokens to all."""
        with self._lock:
            self._check_history("observe", layer, query.shape[1], settings)
            if not settings.remembers:
                return
            key, value = self._contents(layer)  # rounded, if at all: so as rows of 16 bits
            host = _host_cache(dataclasses.replace(self._spec, row_bits=16, index_components=0))
            host.append(key, value, self._lengths[layer])
            before = self.history(layer)
            if before is not None:
                host.set_history(before)
            host.observe(query, settings)
            after = host.history()
            assert after is not None  # these settings remember
            self.set_history(layer, after)

    def history(self, layer: int) -> History | None:
        with self._lock:
            n_recent = self._n_recent[layer]
            if n_recent == 0:
                return None
            if self._session is None or self._session.n_recent != n_recent:
                return self._histories[layer]
            return History(n_recent, self._session.history(layer))

    def set_history(self, layer: int, history: History) -> None:
        with self._lock:
            self._n_recent[layer] = history.n_recent
            self._histories[layer] = history
            if self._session is not None and self._session.n_recent == history.n_recent:
                self._session.set_history(history.steps, layer)

    def truncate(self, layer: int, lengths: np.ndarray) -> None:
        with self._lock:
            history = self.history(layer)
            key, value = self._contents(layer)
            longest = int(lengths.max())
            self.reset(layer)
            if longest:
                self.append(layer, key[:, :, :longest], value[:, :, :longest], lengths)
            if history is not None:
                kept = [[s for s in of if len(s) <= n] for of, n in zip(history.steps, lengths)]
                self.set_history(layer, History(history.n_recent, kept))

    def read(self, layer: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            key, value = self._contents(layer)
        return key[:, :, start:stop], value[:, :, start:stop]

    def reset(self, layer: int) -> None:
        with self._lock:
            self._pending[layer].clear()
            if self._session is not None:
                self._session.reset(layer)
            self._set_lengths(layer, np.zeros_like(self._lengths[layer]))
            self._n_recent[layer] = 0
            self._histories[layer] = None

    def reorder(self, layer: int, index: np.ndarray) -> None:
        with self._lock:
            history = self.history(layer)
            key, value = self._contents(layer)
            lengths = self._lengths[layer][index]
            self._pending[layer] = [(key[index], value[index], lengths)]
            if self._session is not None:
                self._session.reset(layer)
                self._flush_pending(self._session, layer)
            self._set_lengths(layer, lengths)
            if history is not None:
                self.set_history(layer, History(history.n_recent, [history.steps[b] for b in index]))

    def _set_lengths(self, layer: int, lengths: np.ndarray) -> None:
        """In a new array: who asked for lengths keeps what he got."""
        self._lengths = self._lengths.copy()
        self._lengths[layer] = lengths

    def _write(self, session: _core.Session, layer: int, tokens: Tokens) -> None:
        key, value = np.ascontiguousarray(tokens[0]), np.ascontiguousarray(tokens[1])
        counts = [int(n) for n in tokens[2]]
        if key.shape[2] == 1 and self._options.memory != "sram":
            session.append(key, value, counts, layer)  # on the device
        elif key.shape[2] > 0:
            session.write(key, value, counts, layer)  # by the host

    def _contents(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values held, (batch, n_kv_heads, longest length, head_dim)."""
        longest = int(self._lengths[layer].max())
        if self._session is not None:
            return self._session.read(longest, layer)
        spec = self._spec
        key = np.zeros((spec.batch, spec.n_kv_heads, longest, spec.head_dim), np.float16)
        value = np.zeros_like(key)
        held = np.zeros(spec.batch, np.int64)
        for new_key, new_value, counts in self._pending[layer]:
            for b, n in enumerate(counts):
                key[b, :, held[b] : held[b] + n] = new_key[b, :, :n]
                value[b, :, held[b] : held[b] + n] = new_value[b, :, :n]
            held += counts
        return key, value

    def _flush_pending(self, session: _core.Session, layer: int) -> None:
        while self._pending[layer]:
            self._write(session, layer, self._pending[layer].pop(0))

    def _session_with(self, n_heads: int, wanted: Attention) -> _core.Session:
        """A session that has this program: the one in use, or one compiled now."""
        if self._session is not None and n_heads == self._n_heads and wanted in self._attention:
            return self._session
        every = self._attention if wanted in self._attention else [*self._attention, wanted]
        if wanted.n_recent:  # a session remembers so many steps, or none
            every = [program for program in every if program.n_recent in (0, wanted.n_recent)]
        if self._session is not None:
            # A device serves one session: give it back before the next one wants it.
            held = [(*self._contents(layer), self._lengths[layer]) for layer in range(self._n_layers)]
            self._histories = [self.history(layer) for layer in range(self._n_layers)]
            self._pending = [[tokens] for tokens in held]
            self._session = None
        try:
            session = self._compile(n_heads, every)
        except DoesNotFit:
            if every == [wanted]:
                raise
            session = self._compile(n_heads, [wanted])  # too much with all programs so far: this one then
        for layer in range(self._n_layers):
            self._flush_pending(session, layer)
            history = self._histories[layer]
            if history is not None and history.n_recent == session.n_recent:
                session.set_history(history.steps, layer)
        return session

    def _compile(self, n_heads: int, attention: list[Attention]) -> _core.Session:
        from sparq_ipu import _core

        if self._device == "emulator":
            check_room(self._spec, self._n_layers, host_memory(), "memory of this machine, which emulates it")
        session = _core.Session(
            self._spec,
            n_heads,
            attention=attention,
            device=self._device,
            options=self._options,
            n_layers=self._n_layers,
        )
        self._session, self._n_heads, self._attention = session, n_heads, attention
        return session
