# SPDX-License-Identifier: Apache-2.0
"""Modules: decode attention, one token at a time, with the KV cache inside."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_ipu.attention import check_call
from sparq_ipu.torch import ops
from sparq_reference import checks

#: where the cache may live
STATES = ("device", "tensors")


class _StreamingAttention(torch.nn.Module):
    """A KV cache, and how it is fed; subclasses attend to it. Arguments: see `DenseAttention`."""

    #: the attention, as messages call it
    _op: str

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        state: str = "device",
        device: str = "auto",
        **options: Any,
    ):
        super().__init__()
        op = type(self).__name__
        checks.check_cache(op, batch, n_kv_heads, head_dim, capacity)
        if state not in STATES:
            checks.fail(op, "state", f"be one of {', '.join(STATES)}", repr(state))
        self.batch, self.n_kv_heads = int(batch), int(n_kv_heads)
        self.head_dim, self.capacity = int(head_dim), int(capacity)
        self.state = state
        if state == "device":
            self._cache = KVCache(batch, n_kv_heads, head_dim, capacity, device=device, **options)
        else:
            if device != "auto":
                checks.fail(op, "device", 'be "auto" for state="tensors"', repr(device))
            for name, value in options.items():
                checks.fail(op, name, 'be left out for state="tensors"', repr(value))
            for name, tensor in ops.empty_cache(batch, n_kv_heads, head_dim, capacity).items():
                self.register_buffer(name, tensor, persistent=False)

    def held(self) -> torch.Tensor:
        """Positions held by each row, (batch,) int64."""
        return torch.from_numpy(self._cache.lengths) if self.state == "device" else self.lengths.clone()

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        """Append many tokens: a prompt.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.
            lengths: (batch,) integers, how many of the n_tokens are real in each row, from the first; None:
                all.

        Raises:
            ValueError: wrong shape, NaN or infinity, more tokens than there is room for; the cache is then
                unchanged.
        """
        ops.check_tensor("append", "key", key)
        ops.check_tensor("append", "value", value)
        if lengths is not None:
            ops.check_integer_tensor("append", "lengths", lengths)
        key, value = key.to(torch.float16), value.to(torch.float16)
        if self.state == "tensors":
            ops.cache_append(*self._tensors(), key, value, lengths)
        else:
            _append(self._cache, key, value, lengths)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, active: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One decode step: append a token to every row, then attend to all its positions.

        Args:
            query: (batch, n_heads, head_dim), rounded to float16; n_heads a multiple of n_kv_heads.
            key, value: (batch, n_kv_heads, head_dim) of the new token, rounded to float16.
            active: (batch,) bool or integer; rows where it is 0 get no token and attend to what they hold.
                None: all active.

        Returns:
            (batch, n_heads, head_dim) in the dtype of the query.

        Raises:
            ValueError: as `append`, or of the query; a row that holds nothing. The cache is then unchanged.
        """
        ops.check_tensor(self._op, "query", query)
        for name, tensor in (("key", key), ("value", value)):
            ops.check_tensor(self._op, name, tensor)
            if tuple(tensor.shape) != (self.batch, self.n_kv_heads, self.head_dim):
                sizes = f"(batch={self.batch}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim})"
                checks.fail(self._op, name, f"have shape {sizes}", tuple(tensor.shape))
        counts = None
        if active is not None:
            ops.check_integer_tensor(self._op, "active", active, allow_bool=True)
            if tuple(active.shape) != (self.batch,):
                checks.fail(self._op, "active", f"have shape (batch={self.batch},)", tuple(active.shape))
            counts = active.ne(0).to(torch.int64)
        half = query.to(torch.float16)
        new = key.to(torch.float16).unsqueeze(2), value.to(torch.float16).unsqueeze(2)
        if self.state == "device":
            return _step(self, half, *new, counts).to(query.dtype)
        ops.cache_append(*self._tensors(), *new, counts, half, self._op)
        return self._attend_tensors(half).to(query.dtype)

    def reset(self) -> None:
        """Forget every position."""
        if self.state == "device":
            self._cache.reset()
        else:
            self.value_sum.zero_()
            self.lengths.zero_()

    def reorder(self, index: torch.Tensor) -> None:
        """Row b becomes a copy of what row index[b] was, (batch,) integers: beam search.

        Raises:
            ValueError: wrong shape, or an index out of range; the cache is then unchanged.
        """
        ops.check_integer_tensor("reorder", "index", index)
        if self.state == "device":
            self._cache.reorder(index.numpy())
            return
        # int64: an index of uint8 is a mask to torch
        rows = torch.from_numpy(checks.check_reorder("reorder", index.numpy(), self.batch))
        for tensor in self._tensors():
            tensor.copy_(tensor[rows])

    def extra_repr(self) -> str:
        sizes = ("batch", "n_kv_heads", "head_dim", "capacity", "state")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in sizes)

    def _apply(self, fn: Callable, *args: Any, **options: Any) -> torch.nn.Module:
        """The cache moves with the model, but keeps its dtypes: `model.to(torch.bfloat16)` is for weights."""
        cache = [id(tensor) for tensor in self._tensors()] if self.state == "tensors" else []

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            result = fn(tensor)
            keep = id(tensor) in cache and result.dtype != tensor.dtype
            return tensor.to(result.device) if keep else result

        return super()._apply(moved, *args, **options)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.key_cache, self.value_cache, self.value_sum, self.lengths

    def _attend_device(self, query: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _attend_tensors(self, query: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class DenseAttention(_StreamingAttention):
    """Dense decode attention, y = softmax(q K^T / sqrt(head_dim)) V, with a streaming KV cache.

    Args:
        batch, n_kv_heads, head_dim, capacity: shape of the cache, as `sparq_ipu.KVCache`.
        state: "device": the cache is a `sparq_ipu.KVCache`, the fast way. "tensors": it is the buffers
            `key_cache`, `value_cache`, `value_sum` and `lengths` of the module, for
            torch.compile(fullgraph=True) and torch.export; their contents are copied to the kernels at every
            call, so this is slower.
        device, options: as `sparq_ipu.KVCache`; for state="device".

    Raises:
        ValueError: an argument out of range.
        RuntimeError: the device is not available here.
    """

    _op = "dense_attention"

    def _attend_device(self, query: np.ndarray) -> np.ndarray:
        return dense_attention(query, self._cache)

    def _attend_tensors(self, query: torch.Tensor) -> torch.Tensor:
        return ops.dense_attention(query, self.key_cache, self.value_cache, self.lengths)


class SparqAttention(_StreamingAttention):
    """SparQ decode attention (arXiv:2312.04985, Algorithm 1) with a streaming KV cache.

    Args:
        batch, n_kv_heads, head_dim, capacity: shape of the cache, as `sparq_ipu.KVCache`.
        rank, top_k, n_local, mean_value: as `sparq_ipu.sparq_attention`.
        state, device, options: where the cache lives: "device" (fast) or "tensors" (torch.export); see
            `DenseAttention`.

    Raises:
        ValueError: an argument out of range.
    """

    _op = "sparq_attention"

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        rank: int,
        top_k: int,
        n_local: int = 0,
        mean_value: bool = True,
        state: str = "device",
        device: str = "auto",
        **options: Any,
    ):
        super().__init__(batch, n_kv_heads, head_dim, capacity, state=state, device=device, **options)
        checks.check_sparq_settings(
            type(self).__name__, rank, top_k, n_local, head_dim=head_dim, mean_value=mean_value
        )
        if options.get("memory") == "sram":  # at the first step, it would have stored the token
            checks.fail(type(self).__name__, "memory", "be 'streaming'", "'sram'")
        self.rank, self.top_k, self.n_local = int(rank), int(top_k), int(n_local)
        self.mean_value = bool(mean_value)

    @property
    def settings(self) -> dict:
        """rank, top_k, n_local and mean_value, by name."""
        names = ("rank", "top_k", "n_local", "mean_value")
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        return super().extra_repr() + "".join(f", {name}={value!r}" for name, value in self.settings.items())

    def _attend_device(self, query: np.ndarray) -> np.ndarray:
        return sparq_attention(query, self._cache, **self.settings)

    def _attend_tensors(self, query: torch.Tensor) -> torch.Tensor:
        return ops.sparq_attention(query, *self._tensors(), **self.settings)


def _outside_graphs(function: Any) -> Any:
    """A NumPy call: torch.compile leaves its graph there, and says so if it may not."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # torch 2.0 has no torch.compiler
    return disable(function) if disable else function


@_outside_graphs
def _append(cache: KVCache, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None) -> None:
    counts = None if lengths is None else lengths.detach().numpy()
    cache.append(key.detach().contiguous().numpy(), value.detach().contiguous().numpy(), counts)


@_outside_graphs
def _step(
    module: _StreamingAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    counts: torch.Tensor | None,
) -> torch.Tensor:
    array = query.detach().contiguous().numpy()
    # What attention would refuse is refused before the token is stored.
    check_call(module._op, array, module._cache, 1 if counts is None else counts.numpy())
    _append(module._cache, key, value, counts)
    return torch.from_numpy(module._attend_device(array))
