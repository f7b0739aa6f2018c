# SPDX-License-Identifier: Apache-2.0
"""Modules: decode attention, one token at a time, with the KV cache inside."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Sequence

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.devices import check_option_names, resolve_device
from sparq_ipu.torch.graphs import outside_graphs
from sparq_ipu.torch.tensors import check_floating_tensor, check_integer_tensor, check_on_cpu, halves
from sparq_reference import checks
from sparq_reference.settings import CacheSpec, HasSpec, SparqSettings, op_of

FLOAT16_MAX = torch.finfo(torch.float16).max


class _StreamingAttention(HasSpec, torch.nn.Module):
    """A KV cache, how it is fed, and attention over it. Arguments: as `DenseAttention`."""

    #: settings of SparQ attention; None: dense attention
    settings: SparqSettings | None

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        device: str = "auto",
        **options: Any,
    ):
        super().__init__()
        op = type(self).__name__
        spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op=op, **CacheSpec.take(options))
        of_settings = {name: options.pop(name) for name in self._settings_names if name in options}
        # before a setting that is missing: it may be here, misspelled
        names = [*self._settings_names, *CacheSpec.options(), "device", "check_finite"]
        of_backend = {name: options[name] for name in options if name != "check_finite"}
        check_option_names(op, resolve_device(op, device), of_backend, names)
        self.spec = spec
        self.settings = self.settings_of(op, spec, of_settings)
        #: the name of the attention in messages
        self._op = op_of(self.settings)
        # A plain tuple, because torch.compile may not be able to trace the methods of dataclasses.
        self._row = (spec.batch, spec.n_kv_heads, spec.head_dim)
        self.cache = KVCache(**dataclasses.asdict(spec), device=device, **options)
        # Here: the first step would store its token before attention refuses.
        self.cache.check_settings(op, self.settings)

    #: names of the settings; none: dense attention
    _settings_names: ClassVar[Sequence[str]] = ()

    @classmethod
    def settings_of(cls, op: str, spec: CacheSpec, arguments: dict[str, Any]) -> SparqSettings | None:
        """The settings, from keyword arguments of these names."""
        if cls._settings_names:
            return SparqSettings.of(op, spec.head_dim, arguments)
        for name in arguments:
            checks.fail(op, "settings", "be none", repr(name))
        return None

    def held(self) -> torch.Tensor:
        """Positions held by each row, (batch,) int64."""
        return torch.from_numpy(self.cache.lengths)

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        """Append many tokens: a prompt.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.
            lengths: (batch,) integers, how many of the n_tokens are real in each row, from the first; None:
                all.
        """
        check_floating_tensor("append", "key", key)
        check_floating_tensor("append", "value", value)
        if lengths is not None:
            check_integer_tensor("append", "lengths", lengths)
        check_on_cpu("append", key=key, value=value, lengths=lengths)
        _append(self.cache, key, value, lengths)

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
            ValueError: as `KVCache.append`, or of the query; a row that holds nothing. The cache is then
                unchanged.
        """
        check_floating_tensor(self._op, "query", query)
        for name, tensor in (("key", key), ("value", value)):
            check_floating_tensor(self._op, name, tensor)
            if tensor.shape != self._row:
                sizes = f"(batch={self.batch}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim})"
                checks.fail(self._op, name, f"have shape {sizes}", tuple(tensor.shape))
        if active is not None:
            check_integer_tensor(self._op, "active", active, allow_bool=True)
            if active.shape != self._row[:1]:
                checks.fail(self._op, "active", f"have shape (batch={self.batch},)", tuple(active.shape))
        check_on_cpu(self._op, query=query, key=key, value=value, active=active)
        return _step(self, query, key, value, active)

    def reset(self) -> None:
        """Forget every position."""
        self.cache.reset()

    def reorder(self, index: torch.Tensor) -> None:
        """Row b becomes a copy of what row index[b] was, (batch,) integers: beam search."""
        check_integer_tensor("reorder", "index", index)
        check_on_cpu("reorder", index=index)
        self.cache.reorder(index.numpy())

    def extra_repr(self) -> str:
        settings = {} if self.settings is None else self.settings.arguments()
        values = {**dataclasses.asdict(self.spec), **settings}
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


class DenseAttention(_StreamingAttention):
    """Dense decode attention, y = softmax(q K^T / sqrt(head_dim)) V, with a streaming KV cache. Arguments are
    those of `sparq_ipu.KVCache`."""


class SparqAttention(_StreamingAttention):
    """SparQ decode attention (arXiv:2312.04985, Algorithm 1) with a streaming KV cache. Arguments are those
    of `sparq_ipu.KVCache`, and the settings of `sparq_ipu.sparq_attention`: rank, top_k and so on."""

    settings: SparqSettings

    _settings_names = tuple(field.name for field in dataclasses.fields(SparqSettings))


@outside_graphs
def _append(cache: KVCache, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None) -> None:
    try:
        cache.append(halves(key), halves(value), None if lengths is None else lengths.detach().numpy())
    except ValueError:
        _check_range("append", key=key, value=value)
        raise


@outside_graphs
def _step(
    module: _StreamingAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    active: torch.Tensor | None,
) -> torch.Tensor:
    half, cache = halves(query), module.cache
    counts = None if active is None else (active.detach().numpy() != 0).astype(np.int64)
    try:
        # Attention's own checks come before the token is stored; then the backend is called directly.
        cache.check_query(half, module.settings, n_new=1 if counts is None else counts)
        if module.settings is not None:
            module.settings.check_heads(module._op, half.shape[1])
        cache.append(halves(key)[:, :, None], halves(value)[:, :, None], counts)
    except ValueError:
        _check_range(module._op, query=query, key=key, value=value)
        raise
    output = torch.from_numpy(cache.one_layer(module._op).attend(half, module.settings))
    return output if query.dtype == torch.float16 else output.to(query.dtype)


def _check_range(op: str, **tensors: torch.Tensor) -> None:
    """Whether a number was refused that is finite, but not in float16."""
    for name, tensor in tensors.items():
        beyond = tensor.isfinite() & tensor.to(torch.float16).isinf()
        if beyond.any():
            at = beyond.nonzero()[0].tolist()
            rule = f"be at most {FLOAT16_MAX:.0f} in magnitude, the largest float16"
            checks.fail(op, name, rule, f"{tensor[tuple(at)].item()} at {at}")
