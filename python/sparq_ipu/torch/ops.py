# SPDX-License-Identifier: Apache-2.0
"""Torch operators over a KV cache that is made of tensors.

The cache of one attention layer is four tensors:

    key_cache, value_cache   (batch, n_kv_heads, capacity, head_dim) float16
    value_sum                (batch, n_kv_heads, head_dim) float32     running sum of the value rows
    lengths                  (batch,) int64                            positions held by each row

`cache_append` mutates them, and says so in its schema; the attention operators are functions. All have a meta
implementation, so torch.compile and torch.export trace them. Results are bit for bit those of
`sparq_reference.exact`.

They are defined with `torch.library.Library`, which torch 2.0 has, not with the decorators that came later.
"""

from __future__ import annotations

import numpy as np
import torch

from sparq_ipu import KVCache, available_devices
from sparq_ipu import dense_attention as dense_attention_over
from sparq_ipu import sparq_attention as sparq_attention_over
from sparq_reference import checks, exact

_library = torch.library.Library("sparq_ipu", "DEF")
_library.define(
    "cache_append(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor(c!) value_sum, Tensor(d!) lengths, "
    "Tensor key, Tensor value, Tensor? counts=None, Tensor? query=None, str attention='attention') -> ()"
)
_library.define(
    "dense_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor lengths) -> Tensor"
)
_library.define(
    "sparq_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor value_sum, Tensor lengths, "
    "int rank, int top_k, int n_local, bool mean_value) -> Tensor"
)


def empty_cache(batch: int, n_kv_heads: int, head_dim: int, capacity: int) -> dict:
    """The tensors of an empty cache, by name.

    Raises:
        ValueError: `empty_cache: <argument> must <rule>, got <value>`.
    """
    checks.check_cache("empty_cache", batch, n_kv_heads, head_dim, capacity)
    shape = (batch, n_kv_heads, capacity, head_dim)
    return {
        "key_cache": torch.zeros(shape, dtype=torch.float16),
        "value_cache": torch.zeros(shape, dtype=torch.float16),
        "value_sum": torch.zeros((batch, n_kv_heads, head_dim), dtype=torch.float32),
        "lengths": torch.zeros(batch, dtype=torch.int64),
    }


def cache_append(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    value_sum: torch.Tensor,
    lengths: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    counts: torch.Tensor | None = None,
    query: torch.Tensor | None = None,
    attention: str = "attention",
) -> None:
    """Append tokens in place: the first `counts[b]` of each row, all of them by default.

    Args:
        key_cache, value_cache, value_sum, lengths: the cache, changed in place.
        key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
        counts: (batch,) integers in [0, n_tokens], or None.
        query: of the attention that comes next, (batch, n_heads, head_dim) float16, or None. With it, what
            that attention would refuse is refused here: the query, or a row that holds nothing.
        attention: the name of that attention in such a message.

    Raises:
        ValueError: `append: <argument> must <rule>, got <value>`, also past the capacity; the cache is then
            unchanged.
    """
    torch.ops.sparq_ipu.cache_append(
        key_cache, value_cache, value_sum, lengths, key, value, counts, query, attention
    )


def dense_attention(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Dense attention of one token per row, softmax(q . K^T / sqrt(head_dim)) . V, over the positions held.

    Args:
        query: (batch, n_heads, head_dim) float16. The others: the cache.
    Returns: (batch, n_heads, head_dim) float16.
    Raises: ValueError, `dense_attention: <argument> must <rule>, got <value>`.
    """
    return torch.ops.sparq_ipu.dense_attention(query, key_cache, value_cache, lengths)


def sparq_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    value_sum: torch.Tensor,
    lengths: torch.Tensor,
    *,
    rank: int,
    top_k: int,
    n_local: int = 0,
    mean_value: bool = True,
) -> torch.Tensor:
    """SparQ attention (arXiv:2312.04985, Algorithm 1) of one token per row, over the positions held.

    Args:
        query: (batch, n_heads, head_dim) float16. The next four: the cache. The settings: as
            `sparq_ipu.sparq_attention`.
    Returns: (batch, n_heads, head_dim) float16.
    Raises: ValueError, `sparq_attention: <argument> must <rule>, got <value>`.
    """
    return torch.ops.sparq_ipu.sparq_attention(
        query, key_cache, value_cache, value_sum, lengths, rank, top_k, n_local, mean_value
    )


def check_tensor(op: str, argument: str, tensor: object, dtype: torch.dtype | None = None) -> None:
    """`tensor` is a tensor, of `dtype` if one is given (NumPy has no bfloat16 to look at)."""
    if not isinstance(tensor, torch.Tensor):
        checks.fail(op, argument, "be a tensor", type(tensor).__name__)
    if dtype is not None and tensor.dtype != dtype:
        checks.fail(op, argument, f"be {_dtype_name(dtype)}", _dtype_name(tensor.dtype))


def check_integer_tensor(op: str, argument: str, tensor: object, *, allow_bool: bool = False) -> None:
    """`tensor` is a tensor of integers, or of bool if allowed."""
    check_tensor(op, argument, tensor)
    is_bool = tensor.dtype == torch.bool
    if tensor.is_floating_point() or tensor.is_complex() or (is_bool and not allow_bool):
        rule = "be integers or bool" if allow_bool else "be integers"
        checks.fail(op, argument, rule, _dtype_name(tensor.dtype))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _check_cache(op, key_cache, value_cache, value_sum, lengths):
    """The tensors are a cache; `value_sum` may be None."""
    for name, tensor, dtype in (
        ("key_cache", key_cache, torch.float16),
        ("value_cache", value_cache, torch.float16),
        ("value_sum", value_sum, torch.float32),
        ("lengths", lengths, torch.int64),
    ):
        if tensor is not None:
            check_tensor(op, name, tensor, dtype)
    shape = tuple(key_cache.shape)
    if len(shape) != 4:
        checks.fail(op, "key_cache", "have shape (batch, n_kv_heads, capacity, head_dim)", shape)
    batch, n_kv_heads, capacity, head_dim = shape
    checks.check_cache(op, batch, n_kv_heads, head_dim, capacity)
    if tuple(value_cache.shape) != shape:
        checks.fail(op, "value_cache", f"have the shape of key_cache, {shape}", tuple(value_cache.shape))
    if value_sum is not None and tuple(value_sum.shape) != (batch, n_kv_heads, head_dim):
        sizes = f"(batch={batch}, n_kv_heads={n_kv_heads}, head_dim={head_dim})"
        checks.fail(op, "value_sum", f"have shape {sizes}", tuple(value_sum.shape))
    most = np.full(batch, capacity)
    checks.check_integers(op, "lengths", lengths.numpy(), batch, 0, most, f"[0, capacity={capacity}]")


def _append_cpu(
    key_cache, value_cache, value_sum, lengths, key, value, counts=None, query=None, attention="attention"
):
    _check_cache("append", key_cache, value_cache, value_sum, lengths)
    batch, n_kv_heads, capacity, head_dim = key_cache.shape
    if query is not None:
        check_tensor(attention, "query", query, torch.float16)
        checks.check_query(
            attention, query.detach().numpy(), batch=batch, n_kv_heads=n_kv_heads, head_dim=head_dim
        )
    for name, tensor in (("key", key), ("value", value)):
        check_tensor("append", name, tensor, torch.float16)
    if counts is not None:
        check_integer_tensor("append", "lengths", counts)
    key, value = key.detach(), value.detach()  # else the cache would join a graph of gradients
    new_key, new_value = key.numpy(), value.numpy()
    held = lengths.numpy()
    n_new = checks.check_append(
        "append",
        new_key,
        new_value,
        batch=batch,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        cache_lengths=held,
        capacity=capacity,
        lengths=None if counts is None else counts.numpy(),
    )
    if query is not None:
        checks.check_not_empty(attention, held + n_new)
    sums = exact.sum_values(new_value, lengths=n_new, initial=value_sum.numpy())
    for b, (start, n) in enumerate(zip(held.tolist(), n_new.tolist())):
        key_cache[b, :, start : start + n] = key[b, :, :n]
        value_cache[b, :, start : start + n] = value[b, :, :n]
    value_sum.copy_(torch.from_numpy(sums))
    lengths.add_(torch.from_numpy(n_new))


def _load(key_cache: torch.Tensor, value_cache: torch.Tensor, lengths: torch.Tensor) -> KVCache:
    """The tensors' cache on the CPU kernels: a copy, and still much faster than NumPy."""
    batch, n_kv_heads, _, head_dim = key_cache.shape
    most = max(int(lengths.max()), 1)
    cache = KVCache(batch, n_kv_heads, head_dim, most, device="cpu")
    cache.append(key_cache[:, :, :most].numpy(), value_cache[:, :, :most].numpy(), lengths.numpy())
    return cache


def _has_kernels() -> bool:
    return "cpu" in available_devices()


def _dense_cpu(query, key_cache, value_cache, lengths):
    _check_cache("dense_attention", key_cache, value_cache, None, lengths)
    check_tensor("dense_attention", "query", query, torch.float16)
    checks.check_not_empty("dense_attention", lengths.numpy())
    if _has_kernels():
        return torch.from_numpy(
            dense_attention_over(query.detach().numpy(), _load(key_cache, value_cache, lengths))
        )
    key, value, held = _views(key_cache, value_cache, lengths)
    return torch.from_numpy(exact.dense_attention(query.detach().numpy(), key, value, lengths=held))


def _sparq_cpu(query, key_cache, value_cache, value_sum, lengths, rank, top_k, n_local, mean_value):
    _check_cache("sparq_attention", key_cache, value_cache, value_sum, lengths)
    check_tensor("sparq_attention", "query", query, torch.float16)
    checks.check_not_empty("sparq_attention", lengths.numpy())
    settings = {"rank": rank, "top_k": top_k, "n_local": n_local, "mean_value": mean_value}
    if _has_kernels():
        cache = _load(key_cache, value_cache, lengths)
        return torch.from_numpy(sparq_attention_over(query.detach().numpy(), cache, **settings))
    key, value, held = _views(key_cache, value_cache, lengths)
    return torch.from_numpy(
        exact.sparq_attention(
            query.detach().numpy(), key, value, lengths=held, value_sum=value_sum.numpy(), **settings
        )
    )


def _views(
    key_cache: torch.Tensor, value_cache: torch.Tensor, lengths: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    most = int(lengths.max())
    return key_cache[:, :, :most].numpy(), value_cache[:, :, :most].numpy(), lengths.numpy()


def _append_meta(
    key_cache, value_cache, value_sum, lengths, key, value, counts=None, query=None, attention="attention"
):
    return None


def _dense_meta(query, key_cache, value_cache, lengths):
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def _sparq_meta(query, key_cache, value_cache, value_sum, lengths, rank, top_k, n_local, mean_value):
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


for _name, _cpu, _meta in (
    ("cache_append", _append_cpu, _append_meta),
    ("dense_attention", _dense_cpu, _dense_meta),
    ("sparq_attention", _sparq_cpu, _sparq_meta),
):
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _meta, "Meta")
