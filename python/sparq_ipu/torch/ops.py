# SPDX-License-Identifier: Apache-2.0
"""Torch operators over a KV cache that is made of tensors.

The cache of one attention layer is four tensors:

    key_cache, value_cache   (batch, n_kv_heads, capacity, head_dim) float16
    value_sum                (batch, n_kv_heads, head_dim) float32     running sum of the value rows
    lengths                  (batch,) int64                            positions held by each row

`cache_append` mutates them, as its schema declares; the attention operators are functions. All have a meta
implementation, so torch.compile and torch.export trace them. Results are bit for bit those of
`sparq_reference.exact`.

These tensors hold no key index. Where index_bits is below 16, `sparq_attention` makes one of the keys at
every call: it depends on them and on the lengths alone (docs/exactness.md E9).

They are defined with `torch.library.Library`, which torch 2.0 has, not with the decorators that came later.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any, Mapping

import numpy as np
import torch

from sparq_ipu import KVCache, available_devices
from sparq_ipu.attention import attention as attention_over
from sparq_reference import checks, exact
from sparq_reference.settings import CacheSpec, SparqSettings, op_of

#: how an operator takes the settings: their names, in the order of its schema
_SETTINGS = {field.name: field.type for field in dataclasses.fields(SparqSettings)}
#: behind them the options of the cache, each with its default: a call from before there was one stays valid
_OPTIONS = {f.name: f for f in dataclasses.fields(CacheSpec) if f.name in CacheSpec.options()}

_Library: Any = torch.library.Library  # without types in torch
_library = _Library("sparq_ipu", "DEF")
_library.define(
    "cache_append(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor(c!) value_sum, Tensor(d!) lengths, "
    "Tensor key, Tensor value, Tensor? counts=None, Tensor? query=None, str attention='attention') -> ()"
)
_library.define(
    "dense_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor lengths) -> Tensor"
)
_library.define(
    "sparq_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor value_sum, Tensor lengths, "
    + "".join(f"{type_} {name}, " for name, type_ in _SETTINGS.items())  # "int rank, int top_k, ..."
    + ", ".join(f"{field.type} {name}={field.default}" for name, field in _OPTIONS.items())
    + ") -> Tensor"
)


def empty_cache(batch: int, n_kv_heads: int, head_dim: int, capacity: int) -> dict[str, torch.Tensor]:
    """The tensors of an empty cache, by name.

    Raises:
        ValueError: `empty_cache: <argument> must <rule>, got <value>`.
    """
    return empty_tensors(CacheSpec(batch, n_kv_heads, head_dim, capacity, op="empty_cache"))


def empty_tensors(spec: CacheSpec) -> dict[str, torch.Tensor]:
    """`empty_cache` of a cache that is described already."""
    shape = (spec.batch, spec.n_kv_heads, spec.capacity, spec.head_dim)
    return {
        "key_cache": torch.zeros(shape, dtype=torch.float16),
        "value_cache": torch.zeros(shape, dtype=torch.float16),
        "value_sum": torch.zeros((spec.batch, spec.n_kv_heads, spec.head_dim), dtype=torch.float32),
        "lengths": torch.zeros(spec.batch, dtype=torch.int64),
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
    output: torch.Tensor = torch.ops.sparq_ipu.dense_attention(query, key_cache, value_cache, lengths)
    return output


def sparq_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    value_sum: torch.Tensor,
    lengths: torch.Tensor,
    *,
    index_bits: int = 16,
    **settings: Any,
) -> torch.Tensor:
    """SparQ attention (arXiv:2312.04985, Algorithm 1) of one token per row, over the positions held.

    Args:
        query: (batch, n_heads, head_dim) float16. The next four: the cache.
        index_bits: of a number of the key index that positions are scored from: 16, 8, 4 or 2.
        settings: those of `sparq_ipu.sparq_attention`: rank, top_k and so on.
    Returns: (batch, n_heads, head_dim) float16.
    Raises: ValueError, `sparq_attention: <argument> must <rule>, got <value>`.
    """
    # Here for its type, which torch would refuse in other words. The operator holds it to head_dim.
    index_bits = checks.check_index_bits("sparq_attention", index_bits, checks.HEAD_DIM_MULTIPLE)
    values = SparqSettings.of("sparq_attention", None, settings).arguments().values()
    output: torch.Tensor = torch.ops.sparq_ipu.sparq_attention(
        query, key_cache, value_cache, value_sum, lengths, *values, index_bits
    )
    return output


def check_tensor(op: str, argument: str, tensor: Any, dtype: torch.dtype | None = None) -> None:
    """`tensor` is a tensor, of `dtype` if one is given (NumPy has no bfloat16 to look at)."""
    if not isinstance(tensor, torch.Tensor):
        checks.fail(op, argument, "be a tensor", type(tensor).__name__)
    if dtype is not None and tensor.dtype != dtype:
        checks.fail(op, argument, f"be {_dtype_name(dtype)}", _dtype_name(tensor.dtype))


def check_floating_tensor(op: str, argument: str, tensor: Any) -> None:
    """`tensor` is a tensor of floating-point numbers: codes of a quantised one would be taken for values."""
    check_tensor(op, argument, tensor)
    if not tensor.is_floating_point():
        checks.fail(op, argument, "be floating point", _dtype_name(tensor.dtype))


def check_on_cpu(op: str, **tensors: torch.Tensor | None) -> None:
    """These tensors, by argument, are in the memory of the host."""
    for argument, tensor in tensors.items():
        if tensor is not None and tensor.device.type != "cpu":
            checks.fail(op, argument, "be on the CPU", tensor.device.type)


def check_integer_tensor(op: str, argument: str, tensor: Any, *, allow_bool: bool = False) -> None:
    """`tensor` is a tensor of integers, or of bool if allowed."""
    check_tensor(op, argument, tensor)
    is_bool = tensor.dtype == torch.bool
    if tensor.is_floating_point() or tensor.is_complex() or (is_bool and not allow_bool):
        rule = "be integers or bool" if allow_bool else "be integers"
        checks.fail(op, argument, rule, _dtype_name(tensor.dtype))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _spec_of(
    op: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    value_sum: torch.Tensor | None,
    lengths: torch.Tensor,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> CacheSpec:
    """The cache that these tensors are, with these options; dense attention has no `value_sum`.

    Raises:
        ValueError: they are none; an option out of range.
    """
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
    spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op=op, **options)
    if tuple(value_cache.shape) != shape:
        checks.fail(op, "value_cache", f"have the shape of key_cache, {shape}", tuple(value_cache.shape))
    if value_sum is not None and tuple(value_sum.shape) != (batch, n_kv_heads, head_dim):
        sizes = f"(batch={batch}, n_kv_heads={n_kv_heads}, head_dim={head_dim})"
        checks.fail(op, "value_sum", f"have shape {sizes}", tuple(value_sum.shape))
    most = np.full(batch, capacity)
    checks.check_integers(op, "lengths", lengths.numpy(), batch, 0, most, f"[0, capacity={capacity}]")
    return spec


def _append_cpu(
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
    spec = _spec_of("append", key_cache, value_cache, value_sum, lengths)
    if query is not None:
        check_tensor(attention, "query", query, torch.float16)
        checks.check_query(attention, query.detach().numpy(), spec)
    for name, tensor in (("key", key), ("value", value)):
        check_tensor("append", name, tensor, torch.float16)
    if counts is not None:
        check_integer_tensor("append", "lengths", counts)
    key, value = key.detach(), value.detach()  # else the cache would join a graph of gradients
    new_key, new_value, held = key.numpy(), value.numpy(), lengths.numpy()
    new_lengths = None if counts is None else counts.numpy()
    n_new = checks.check_append("append", new_key, new_value, spec, held, lengths=new_lengths)
    if query is not None:
        checks.check_not_empty(attention, held + n_new)
    sums = exact.sum_values(new_value, lengths=n_new, initial=value_sum.numpy())
    for b, (start, n) in enumerate(zip(held.tolist(), n_new.tolist())):
        key_cache[b, :, start : start + n] = key[b, :, :n]
        value_cache[b, :, start : start + n] = value[b, :, :n]
    value_sum.copy_(torch.from_numpy(sums))
    lengths.add_(torch.from_numpy(n_new))


def _dense_cpu(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    spec = _spec_of("dense_attention", key_cache, value_cache, None, lengths)
    return _attend(query, spec, key_cache, value_cache, lengths, None)


def _sparq_cpu(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    value_sum: torch.Tensor,
    lengths: torch.Tensor,
    *values: Any,
) -> torch.Tensor:
    named = dict(zip((*_SETTINGS, *_OPTIONS), values))  # without what torch leaves out: defaults
    options = CacheSpec.take(named)
    spec = _spec_of("sparq_attention", key_cache, value_cache, value_sum, lengths, options)
    settings = SparqSettings.of("sparq_attention", spec.head_dim, named)
    return _attend(query, spec, key_cache, value_cache, lengths, settings)


def _attend(
    query: torch.Tensor,
    spec: CacheSpec,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    lengths: torch.Tensor,
    settings: SparqSettings | None,
) -> torch.Tensor:
    op, held = op_of(settings), lengths.numpy()
    check_tensor(op, "query", query, torch.float16)
    checks.check_not_empty(op, held)
    # The kernels get a copy, which is still much faster than NumPy over the tensors themselves.
    device = "cpu" if "cpu" in available_devices() else "reference"
    most = int(held.max())
    cache = KVCache(**dict(dataclasses.asdict(spec), capacity=most), device=device)
    cache.append(key_cache[:, :, :most].numpy(), value_cache[:, :, :most].numpy(), held)
    return torch.from_numpy(attention_over(query.detach().numpy(), cache, settings))


def _append_meta(*arguments: Any) -> None:
    return None


def _attention_meta(query: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


for _name, _cpu, _meta in (
    ("cache_append", _append_cpu, _append_meta),
    ("dense_attention", _dense_cpu, _attention_meta),
    ("sparq_attention", _sparq_cpu, _attention_meta),
):
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _meta, "Meta")
