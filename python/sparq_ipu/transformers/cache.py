# SPDX-License-Identifier: Apache-2.0
"""The cache that transformers carries from token to token: one `sparq_ipu.KVCache` per layer.

transformers counts *columns*: padding and real tokens alike, the same number in every row of the batch. A
KVCache holds the real tokens only, each row with a length of its own, so a padded row is what it would be
alone. A layer therefore keeps the KVCache and which columns are real. Where the model's own attention wants
keys and values as plain tensors - several tokens on top of a filled cache: another turn of a chat, prefill in
chunks - they are read back from the KVCache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import Cache, CacheLayerMixin, PretrainedConfig

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_ipu.devices import resolve_device
from sparq_ipu.transformers.settings import SparqSettings
from sparq_reference import checks, transfers

#: columns of room that a new layer has beyond its first tokens; from there it grows by doubling
_FIRST_ROOM = 256
#: positions that move at once from one KVCache to another
_MOVED = 4096


def host_device(op: str, device: str) -> str:
    """The device of a model's caches: "auto" is the CPU kernels where they are built, else the reference.

    Never an IPU or its emulator, unless asked for by name: a model's layers would each need a program there.

    Raises: as `sparq_ipu.KVCache` for a device that is unknown, or not available here.
    """
    if device != "auto":
        return resolve_device(op, device)
    try:
        return resolve_device(op, "cpu")
    except RuntimeError:
        return resolve_device(op, "reference")


def check_options(op: str, device: str, capacity: int | None, check_finite: bool, **options: Any) -> dict:
    """Options of a model's caches, by name, with the device resolved: what is wrong shows here, not in the
    middle of a prompt.

    Raises:
        ValueError: an option that is unknown or out of range; RuntimeError: the device is not available.
    """
    device = host_device(op, device)
    if capacity is not None:
        checks.check_integer(op, "capacity", capacity, 1, checks.MAX_CAPACITY)
    options.update(device=device, check_finite=check_finite)
    KVCache(1, 1, checks.HEAD_DIM_MULTIPLE, 1, **options)  # thrown away: only it knows its options
    return dict(options, capacity=capacity)


class _NoBackward(torch.autograd.Function):
    """The identity, on what was computed outside autograd: a backward pass through it would be silently
    wrong."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *origins: torch.Tensor) -> torch.Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise RuntimeError(
            "sparq_attention: model must be disabled, or called with use_cache=False, for gradients, "
            "got a backward pass through its float16 cache"
        )


def _without_backward(result: torch.Tensor, *origins: torch.Tensor) -> torch.Tensor:
    """`result`, through which a backward pass raises if any of the tensors it came from wants a gradient."""
    if torch.is_grad_enabled() and any(origin.requires_grad for origin in origins):
        return _NoBackward.apply(result, *origins)
    return result


class SparqLayer(CacheLayerMixin):
    """Keys and values of one layer.

    Args:
        index: of the layer, for messages.
        capacity: most positions of one row; None grows by doubling (the device's copy is then written anew,
            at amortised cost).
        device, check_finite, options: as `sparq_ipu.KVCache`.
    """

    is_compileable = False
    is_sliding = False
    is_croppable = False
    supports_early_init = False

    def __init__(
        self,
        index: int,
        capacity: int | None = None,
        device: str = "auto",
        check_finite: bool = True,
        **options: Any,
    ):
        super().__init__()
        self.index = index
        self.capacity = capacity
        self._options = dict(options, device=device, check_finite=check_finite)
        self._clear()

    def _clear(self) -> None:
        self.is_initialized = False
        self.cache: KVCache | None = None
        self._real = torch.empty(0)
        self._n_columns = 0
        #: decode steps so far, and the bytes of keys, values and outputs they moved against dense attention
        self.n_steps = self.bytes_read = self.bytes_dense = 0
        self.disarm()

    # By the names that transformers looks for; it says None when a layer is made.

    @property
    def keys(self) -> torch.Tensor | None:
        """(batch, n_kv_heads, n_columns, head_dim) float16, read from the KVCache; 0 where padding is."""
        return self._columns()[0] if self.is_initialized else None

    @keys.setter
    def keys(self, _: None) -> None:
        pass

    @property
    def values(self) -> torch.Tensor | None:
        """As `keys`."""
        return self._columns()[1] if self.is_initialized else None

    @values.setter
    def values(self, _: None) -> None:
        pass

    # What the model's forward hook says before each forward pass.

    def arm(self, real: torch.Tensor | None, settings: SparqSettings | None) -> None:
        """Announce new tokens: which columns are real (batch, n_tokens) bool, None for all; and how to attend
        to them."""
        self._armed, self._arriving, self._settings = True, real, settings

    def disarm(self) -> None:
        """Take the announcement back."""
        self._armed, self._arriving, self._settings = False, None, None

    @property
    def is_armed(self) -> bool:
        """An announced token has not come to attention yet."""
        return self._armed

    # What transformers asks of a cache layer.

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        """Allocate for the shape of key_states (batch, n_kv_heads, n_tokens, head_dim)."""
        batch, n_kv_heads, n_tokens, head_dim = key_states.shape
        self.batch_size = self.max_batch_size = batch
        capacity = self.capacity
        if capacity is None:
            capacity = min(n_tokens + _FIRST_ROOM, checks.MAX_CAPACITY)
        self.cache = KVCache(batch, n_kv_heads, head_dim, capacity, **self._options)
        self._real = torch.empty((batch, max(capacity, n_tokens)), dtype=torch.bool)
        self.is_initialized = True

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.

        Returns:
            Keys and values of all columns for several tokens (prefill). For one token (a decode step), that
            token only: the attention function finds the rest in `cache`, through the attribute `sparq_layer`
            of the keys.

        Raises:
            RuntimeError: the model is not enabled.
            ValueError: no room in `capacity`, NaN or infinity (float16 ends at 65504).
        """
        if not self._armed:
            raise RuntimeError(
                "SparqCache: the model must be enabled by sparq_ipu.transformers.enable, "
                "got a call from one that is not"
            )
        is_new = not self.is_initialized
        if is_new:
            self.lazy_initialization(key_states, value_states)
        key = key_states.detach().to(torch.float16).contiguous()
        value = value_states.detach().to(torch.float16).contiguous()
        self._reserve(self._n_columns + key.shape[2])
        try:
            self._append(self.cache, key, value, self._arriving)
        except ValueError as error:
            if is_new:  # nothing is held, not even a batch size
                self._clear()
            if " must be finite, " not in str(error):
                raise
            raise ValueError(f"{error} (layer {self.index}; the cache is float16)") from error
        start, self._n_columns = self._n_columns, self._n_columns + key.shape[2]
        self._real[:, start : self._n_columns] = True if self._arriving is None else self._arriving
        if key.shape[2] == 1:
            keys, values = key_states, value_states
        else:
            keys, values = (key, value) if start == 0 else self._columns()
            keys = _without_backward(keys.to(key_states.dtype), key_states)
            values = _without_backward(values.to(value_states.dtype), value_states)
        keys.sparq_layer = self
        return keys, values

    def get_seq_length(self, *args: Any) -> int:
        """Columns held, padding included."""
        return self._n_columns

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """(columns after `query_length` more tokens, 0). Older transformers pass the positions of the tokens
        instead."""
        n_tokens = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self._n_columns + n_tokens, 0

    def get_max_length(self) -> int:
        """The capacity, -1 without one."""
        return -1 if self.capacity is None else self.capacity

    def get_max_cache_shape(self) -> int:
        """As `get_max_length`, by its older name."""
        return self.get_max_length()

    def reset(self) -> None:
        """Forget everything."""
        self._clear()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row b becomes what row beam_idx[b] was: beam search."""
        if not self.is_initialized:
            return
        self.cache.reorder(beam_idx.numpy())
        n = self._n_columns
        self._real[:, :n] = self._real[beam_idx, :n]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times."""
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices` only, in that order."""
        if not self.is_initialized:
            return
        index = torch.arange(self.batch_size)[indices]
        self._real = self._real[index]
        self.batch_size = self.max_batch_size = len(index)
        self.cache = self._moved(self.cache.capacity, index.numpy())

    def crop(self, *args: Any) -> None:
        """Refused: see Raises.

        Raises:
            NotImplementedError: always. Who crops a cache (assisted generation, prompt lookup) also verifies
                several tokens per step, which is dense attention: there would be no SparQ in it.
        """
        raise NotImplementedError(
            "SparqCache: crop must not be called, got a request to drop tokens; assisted generation and "
            "prompt lookup decode several tokens per step, which SparQ attention does not do"
        )

    def __deepcopy__(self, memo: dict) -> SparqLayer:
        """A copy that shares nothing: continue one prompt in two ways."""
        copy = SparqLayer(self.index, self.capacity, **self._options)
        if self.is_initialized:
            copy._real, copy._n_columns = self._real.clone(), self._n_columns
            copy.batch_size = copy.max_batch_size = self.batch_size
            copy.is_initialized = True
            copy.cache = self._moved(self.cache.capacity)
        return copy

    # What the attention function asks.

    @property
    def real(self) -> torch.Tensor:
        """Which columns hold real tokens, (batch, n_columns) bool."""
        return self._real[:, : self._n_columns]

    def check_real(self, real: torch.Tensor) -> None:
        """Whether `set_real` can be done.

        Raises:
            ValueError: a column that was not real would be again: its key and value are gone.
        """
        if bool((real & ~self.real).any()):
            row, column = (real & ~self.real).nonzero()[0].tolist()
            checks.fail(
                "sparq_attention",
                "attention_mask",
                "keep hidden what it hid of the tokens in past_key_values",
                f"1 for token {column} of row {row}",
            )

    def set_real(self, real: torch.Tensor) -> None:
        """Say anew which of the columns are real, (batch, n_columns) bool; `check_real` allows it. The
        others leave the KVCache."""
        key, value = self._columns()
        cache = self._new_cache(self.batch_size, self.cache.capacity)
        self._append(cache, key, value, real)
        self._real[:, : self._n_columns] = real
        self.cache = cache

    @torch.compiler.disable
    def attend_prefill(self) -> None:
        """Several tokens came to attention, which is the model's own."""
        self.disarm()

    @torch.compiler.disable
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """One decode step: query (batch, n_heads, 1, head_dim) -> (batch, 1, n_heads, head_dim), in the dtype
        of the query. key, value: what `update` returned.

        Raises:
            ValueError: a row without any real token, NaN or infinity in the query.
        """
        settings = self._settings
        lengths = self.cache.lengths
        if not lengths.all():
            raise ValueError(
                "SparqCache: attention_mask must leave a real token in every row before one is decoded, "
                f"got lengths {lengths.tolist()}"
            )
        half = query.detach()[:, :, 0].to(torch.float16).contiguous().numpy()
        dense = np.ones(len(lengths), bool) if settings is None else lengths < settings.min_seq_len
        if dense.all():
            output = dense_attention(half, self.cache)
        else:
            output = sparq_attention(
                half,
                self.cache,
                rank=settings.rank,
                top_k=settings.top_k,
                n_local=settings.n_local,
                mean_value=settings.mean_value,
            )
            if dense.any():  # rows below and above min_seq_len: a call serves all rows, so pick
                output = np.where(dense[:, None, None], dense_attention(half, self.cache), output)
        self._count(lengths, dense)
        self.disarm()
        return _without_backward(torch.from_numpy(output).to(query.dtype).unsqueeze(1), query, key, value)

    # Inside.

    def _count(self, lengths: np.ndarray, dense: np.ndarray) -> None:
        """Add the traffic of one step by the formulas of `sparq_reference.transfers`, 2 bytes an element."""
        d, settings = self.cache.head_dim, self._settings
        for seq_len, is_dense in zip(lengths.tolist(), dense.tolist()):
            full = transfers.dense_elements(seq_len, d)
            part = full
            if not is_dense:
                part = transfers.sparq_elements(seq_len, d, settings.rank, min(settings.top_k, seq_len))
            self.bytes_dense += 2 * self.cache.n_kv_heads * full
            self.bytes_read += 2 * self.cache.n_kv_heads * part
        self.n_steps += 1

    def _columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values by column, (batch, n_kv_heads, n_columns, head_dim) float16."""
        real = self.real
        held = [torch.from_numpy(x) for x in self.cache.read()]
        if bool(real.all()):
            return held[0], held[1]
        columns = []
        for rows in held:
            shape = list(rows.shape)
            shape[2] = self._n_columns
            columns.append(torch.zeros(shape, dtype=rows.dtype))
            for b, length in enumerate(self.cache.lengths.tolist()):
                columns[-1][b][:, real[b]] = rows[b, :, :length]
        return columns[0], columns[1]

    def _reserve(self, n_columns: int) -> None:
        """Room for `n_columns` columns, and for as many positions in the KVCache unless its capacity is
        fixed."""
        if n_columns > self._real.shape[1]:
            real = torch.empty((self.batch_size, max(n_columns, 2 * self._real.shape[1])), dtype=torch.bool)
            real[:, : self._n_columns] = self.real
            self._real = real
        if self.capacity is None and n_columns > self.cache.capacity:
            self.cache = self._moved(min(max(n_columns, 2 * self.cache.capacity), checks.MAX_CAPACITY))

    def _new_cache(self, batch: int, capacity: int) -> KVCache:
        return KVCache(batch, self.cache.n_kv_heads, self.cache.head_dim, capacity, **self._options)

    def _moved(self, capacity: int, index: np.ndarray | None = None) -> KVCache:
        """A new KVCache with what the rows `index` (None: all) of this one hold, a piece at a time."""
        index = np.arange(self.cache.batch) if index is None else index
        lengths = self.cache.lengths[index]
        cache = self._new_cache(len(index), capacity)
        longest = int(self.cache.lengths.max())
        for start in range(0, longest, _MOVED):
            stop = min(start + _MOVED, longest)
            key, value = (x[index] for x in self.cache.read(start, stop))
            cache.append(key, value, np.clip(lengths - start, 0, stop - start))
        return cache

    @staticmethod
    def _append(cache: KVCache, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor | None) -> None:
        """Append the real ones among the columns of key, value (batch, n_kv_heads, n_tokens, head_dim)
        float16."""
        if real is None or bool(real.all()):
            cache.append(key.numpy(), value.numpy())
            return
        counts = real.sum(dim=1)
        most = int(counts.max())
        if most == 0:
            return
        # padding stands anywhere (mostly left): move the real tokens of each row to the front, in their order
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, None, :most, None]
        order = order.expand(-1, key.shape[1], -1, key.shape[3])
        cache.append(key.gather(2, order).numpy(), value.gather(2, order).numpy(), counts.numpy())


class SparqCache(Cache):
    """A cache for a model that `sparq_ipu.transformers.enable` has enabled: pass it as `past_key_values`.

    `generate` makes its own, so this is needed only to choose a capacity or device for one run, or to keep a
    cache over turns.

    Args:
        config: of the model (or the model itself).
        capacity: most positions of one row; None grows as needed.
        device: "auto" is the CPU kernels where they are built, else the NumPy reference.
        check_finite, options: as `sparq_ipu.KVCache`.

    Raises:
        ValueError: an option that is unknown or out of range; RuntimeError: the device is not available.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        capacity: int | None = None,
        device: str = "auto",
        check_finite: bool = True,
        **options: Any,
    ):
        config = getattr(config, "config", config).get_text_config(decoder=True)
        options = check_options("SparqCache", device, capacity, check_finite, **options)
        super().__init__(layers=[SparqLayer(index, **options) for index in range(config.num_hidden_layers)])


def is_sparq_cache(cache: object) -> bool:
    """Whether every layer of a transformers cache is a `SparqLayer`."""
    layers = getattr(cache, "layers", [])
    return len(layers) > 0 and all(isinstance(layer, SparqLayer) for layer in layers)


def cache_traffic(cache: Cache) -> dict:
    """What the decode steps of a run moved.

    Returns:
        n_steps: decode steps; bytes_read: bytes of the KV cache, queries and outputs that they moved, over
        all layers, by the formulas of `sparq_reference.transfers` at 2 bytes an element (counted, not
        measured); bytes_dense: what dense attention would have.

    Raises:
        ValueError: not a cache of an enabled model.
    """
    if not is_sparq_cache(cache):
        checks.fail("cache_traffic", "cache", "be one of an enabled model", type(cache).__name__)
    return {
        "n_steps": cache.layers[0].n_steps,
        "bytes_read": sum(layer.bytes_read for layer in cache.layers),
        "bytes_dense": sum(layer.bytes_dense for layer in cache.layers),
    }
