# SPDX-License-Identifier: Apache-2.0
"""The KV cache: keys and values of every position so far, where attention reads them."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
from typing import TYPE_CHECKING, Any, Sequence, cast

import numpy as np

from sparq_ipu.devices import backend_module, check_option_names, resolve_device
from sparq_ipu.kernels import Settings
from sparq_reference import checks
from sparq_reference.settings import CacheSpec, HasSpec, WindowSettings, op_of

if TYPE_CHECKING:
    from sparq_ipu.backends import Backend
    from sparq_ipu.backends.cpu import CPUBackend


class KVCache(HasSpec):
    """A KV cache on any device, for one attention layer or for all layers of a model that have one shape. On
    an IPU or the emulator, keys and values live in streaming memory: rows of K and V, and K once more by
    component for the score step (docs/design_ipu.md). Elements of the batch have lengths of their own.

    Args:
        batch, n_kv_heads, head_dim, capacity: see `sparq_reference.CacheSpec`; query heads h belong to KV
            head h // (n_heads // n_kv_heads).
        n_layers: layers, in [1, 1024]; `layer(i)` is the cache of one of them, to append and attend to. On an
            IPU they share one program and one pair of buffers, so that code does not grow with them.
        device: "auto" (the best one here), "ipu", "cpu", "emulator" or "reference".
        check_finite: refuse NaN and infinity in keys, values and queries. Off is faster; the result is then
            unspecified for such input.
        options: of the cache, see `CacheSpec`: `index_bits`; `row_bits` and `index_components`, on "ipu" and
            "emulator" only with `memory="tiered"`. And of the device: on "cpu" `n_threads` and `isa`
            (docs/cpu.md); on "ipu" and "emulator" those of `sparq_ipu.device_options.DeviceOptions`.

    With several layers `reset` and `reorder` are for all of them; `append`, `read` and attention want one. A
    copy (`copy.copy`, `copy.deepcopy`) and an unpickled cache hold the same positions on the same device, and
    share nothing with this one.

    Raises:
        ValueError: an argument out of range, an option that the device's backend does not have.
        RuntimeError: the device is not available here; the message says why.
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        n_layers: int = 1,
        device: str = "auto",
        check_finite: bool = True,
        **options: Any,
    ):
        of_spec = CacheSpec.take(options)
        self.spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op="KVCache", **of_spec)
        self.device = resolve_device("KVCache", device)
        self.check_finite = checks.check_bool("KVCache", "check_finite", check_finite)
        self._options = options
        more = [*CacheSpec.options(), "n_layers", "device", "check_finite"]
        check_option_names("KVCache", self.device, options, more)
        n_layers = checks.check_integer("KVCache", "n_layers", n_layers, 1, checks.MAX_LAYERS)
        module = backend_module(self.device)
        of_device = module.Options(**options, op="KVCache")
        self._backends: list[Backend] = module.create(self.device, self.spec, n_layers, of_device)

    @property
    def n_layers(self) -> int:
        """Layers; 1 for the cache of one layer."""
        return len(self._backends)

    def layer(self, index: int) -> KVCache:
        """The cache of layer `index` in [0, n_layers): not a copy, its tokens are in this one too."""
        index = checks.check_integer("layer", "index", index, 0, self.n_layers - 1)
        return self if self.n_layers == 1 else _Part(self, self.spec, [self._backends[index]])

    def rows(self, index: Sequence[int]) -> KVCache:
        """The batch elements `index`, different integers in [0, batch), as a cache on "cpu": not a copy, what
        happens to one happens to the other. So a step can be one of some elements only, and `reorder` copies
        among these."""
        if self.device != "cpu":
            checks.fail("rows", "device", "be 'cpu'", repr(self.device))
        index = [int(b) for b in index]
        backends = [cast("CPUBackend", backend).rows(index) for backend in self._backends]
        return _Part(self, dataclasses.replace(self.spec, batch=len(index)), backends)

    def one_layer(self, op: str) -> Backend:
        """The backend of a cache of one layer. One of several is refused; the message begins with `op`."""
        if len(self._backends) != 1:
            rule = "be of one layer, as `layer(i)` of this one is"
            checks.fail(op, "cache", rule, f"n_layers={self.n_layers}")
        return self._backends[0]

    @property
    def lengths(self) -> np.ndarray:
        """Positions held, (batch,) int64; with several layers (n_layers, batch)."""
        if len(self._backends) == 1:
            return np.array(self._backends[0].lengths, dtype=np.int64)
        return np.array([backend.lengths for backend in self._backends], dtype=np.int64)

    def check_settings(self, op: str, settings: Settings) -> None:
        """Refuse settings that attention over this cache can not have; None: dense attention."""
        if settings is not None:
            settings.check(op, self.head_dim, self.index_components)
        self._backends[0].check_settings(op, settings)

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray | None = None) -> None:
        """Append tokens: one while decoding, many to fill a prompt. The same tokens in any number of calls
        give the same cache.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
            lengths: (batch,) integers, how many of the n_tokens are real in each element (from the first);
                None: all.

        Raises:
            ValueError: wrong shape or dtype, NaN or infinity, or more tokens than the capacity has room for;
                the cache is then unchanged.
        """
        checked = self.check_tokens(key, value, lengths)
        self.one_layer("append").append(key, value, checked)

    def check_tokens(
        self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray | None = None, op: str = "append"
    ) -> np.ndarray:
        """Refuse tokens that `append` refuses; returns how many are real in each element, (batch,) int64."""
        held, finite = self.one_layer(op).lengths, self.check_finite
        return checks.check_append(op, key, value, self.spec, held, lengths=lengths, check_finite=finite)

    def check_query(self, query: np.ndarray, settings: Settings, n_new: int | np.ndarray = 0) -> None:
        """Refuse a query (batch, n_heads, head_dim) that can not attend with these settings, once `n_new`
        more positions (of each element) are held."""
        op = op_of(settings)
        checks.check_query(op, query, self.spec, check_finite=self.check_finite)
        checks.check_not_empty(op, self.one_layer(op).lengths + n_new)
        if settings is not None:
            settings.check(op, self.head_dim, self.index_components)

    def read(self, start: int = 0, stop: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the positions from `start` to before `stop`; None: all that are held.

        Returns:
            key, value: (batch, n_kv_heads, stop - start, head_dim) float16, copies; 0 at positions that an
            element of the batch does not hold.
        """
        backend = self.one_layer("read")
        longest = int(self.lengths.max())
        stop = longest if stop is None else checks.check_integer("read", "stop", stop, 0, longest)
        start = checks.check_integer("read", "start", start, 0, stop)
        return backend.read(start, stop)

    def truncate(self, lengths: np.ndarray) -> None:
        """Keep the first lengths[b] positions of each element, (batch,) integers. What is left is, to the
        bit, the cache that never had the others; but steps of window attention that its history had dropped
        by then do not come back (docs/exactness.md E11)."""
        backend = self.one_layer("truncate")
        backend.truncate(checks.check_truncate("truncate", lengths, self.lengths))

    def observe(
        self, query: np.ndarray, *, top_k: int, n_local: int | None = None, n_recent: int = 32
    ) -> None:
        """Put the dense attention of the last tokens held into the history that window attention selects by.

        Call it after a prompt, with the queries (batch, n_heads, n_tokens, head_dim) float16 of its last
        n_recent tokens (of more, the last count), before the first `window_attention` of these settings.
        Settings without a history: nothing happens. For a cache on an IPU or the emulator the host computes
        it, from the rows of the prompt.
        """
        op = "observe"
        settings = WindowSettings(top_k, n_local, n_recent, op=op)  # type: ignore[arg-type]  # None: half
        backend = self.one_layer(op)
        checks.check_tokens(op, query, self.spec, backend.lengths, check_finite=self.check_finite)
        settings.check_heads(op, query.shape[1])
        backend.check_settings(op, settings)
        backend.observe(query, settings)

    def reset(self) -> None:
        """Forget every position, of every layer."""
        for backend in self._backends:
            backend.reset()

    def reorder(self, index: np.ndarray) -> None:
        """Batch element b becomes a copy of what element index[b] was, in every layer: beam search."""
        checked = checks.check_reorder("reorder", index, self.batch)
        for backend in self._backends:
            backend.reorder(checked)

    def __getstate__(self) -> dict[str, Any]:
        arguments = {
            **dataclasses.asdict(self.spec),
            "n_layers": self.n_layers,
            "device": self.device,
            "check_finite": self.check_finite,
        }
        layers = [self.layer(i) for i in range(self.n_layers)]
        held = [(*layer.read(), layer.lengths) for layer in layers]
        histories = [backend.history() for backend in self._backends]
        return {"arguments": {**arguments, **self._options}, "layers": held, "histories": histories}

    def __setstate__(self, state: dict[str, Any]) -> None:
        KVCache.__init__(self, **state["arguments"])
        for backend, (key, value, lengths) in zip(self._backends, state["layers"]):
            if lengths.any():  # they were looked at when they came first
                backend.append(key, value, lengths)
        for backend, history in zip(self._backends, state.get("histories", ())):
            if history is not None:
                backend.set_history(history)

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return copy.copy(self)  # by its state, which is new

    def __repr__(self) -> str:
        return (
            f"KVCache(batch={self.batch}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}, "
            f"capacity={self.capacity}, index_bits={self.index_bits}"
            + (f", index_components={self.index_components}" if self.index_components else "")
            + (f", row_bits={self.row_bits}" if self.row_bits != 16 else "")
            + (f", n_layers={self.n_layers}" if self.n_layers != 1 else "")
            + f", device={self.device!r}"
            + "".join(f", {name}={value!r}" for name, value in self._options.items())
            + ")"
        )


class _Part(KVCache):
    """A part of a cache: all that it has, it shares with that."""

    def __init__(self, whole: KVCache, spec: CacheSpec, backends: Sequence[Backend]):
        self.spec, self.device, self.check_finite = spec, whole.device, whole.check_finite
        self._options = whole._options
        self._backends = list(backends)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy shares nothing: it is a cache of its own."""
        return copyreg.__newobj__, (KVCache,), self.__getstate__()  # type: ignore[attr-defined]
