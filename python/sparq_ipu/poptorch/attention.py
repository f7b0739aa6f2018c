# SPDX-License-Identifier: Apache-2.0
"""Attention modules for a model that PopTorch compiles: PopART operators on the IPU, the same elsewhere."""

from __future__ import annotations

from typing import Any, Sequence

import torch

import sparq_ipu.torch
from sparq_ipu.poptorch import contract
from sparq_ipu.poptorch.library import load_library
from sparq_ipu.torch import ops
from sparq_reference import checks

try:
    import poptorch
except ImportError:
    poptorch = None


def running_on_ipu() -> bool:
    """True while PopTorch traces or runs the model for the IPU (never while it is constructed)."""
    return poptorch is not None and poptorch.isRunningOnIpu()


def custom_op(
    op: contract.OpContract,
    inputs: Sequence[torch.Tensor],
    example_outputs: Sequence[torch.Tensor],
    **attributes: Any,
) -> tuple[torch.Tensor, ...]:
    """Call a PopART operator of the contract.

    Raises: as `contract.arguments` and `load_library`.
    """
    checked = contract.arguments(op, inputs, example_outputs, attributes)
    load_library()
    return tuple(poptorch.custom_op(**checked))


class _Attention(torch.nn.Module):
    """A decode attention whose KV cache is the operators' own, in streaming memory, known by name."""

    decode_op: contract.OpContract

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        cache_name: str,
        settings: dict,
        elsewhere: type,
    ):
        super().__init__()
        op = type(self).__name__
        checks.check_cache(op, batch, n_kv_heads, head_dim, capacity)
        if not isinstance(cache_name, str) or not (cache_name and cache_name.isascii()):
            checks.fail(op, "cache_name", "be a string of ASCII characters, not empty", repr(cache_name))
        self.batch, self.n_kv_heads = int(batch), int(n_kv_heads)
        self.head_dim, self.capacity = int(head_dim), int(capacity)
        self.cache_name = cache_name
        self.settings = settings
        self._elsewhere_class = elsewhere
        # In a list, and made when first needed: PopTorch would send buffers of a submodule to the IPU.
        self._elsewhere: list = []

    @property
    def elsewhere(self) -> torch.nn.Module:
        """The module of `sparq_ipu.torch` that this one is when it does not run on an IPU."""
        if not self._elsewhere:
            shape = (self.batch, self.n_kv_heads, self.head_dim, self.capacity)
            self._elsewhere.append(self._elsewhere_class(*shape, state="tensors", **self.settings))
        return self._elsewhere[0]

    def fill(
        self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Prefill: a row then holds these tokens and no others.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.
            lengths: (batch,) integers: row b holds its first lengths[b] tokens; 0 empties it, -1 leaves it as
                it is. None: all.

        Returns:
            Positions held, (batch,) int32. Pass it to `forward` as `held`: on the IPU, that makes the decode
            step wait.

        Raises:
            ValueError: wrong shape; off the IPU also NaN, infinity, a length out of range or above the
                capacity. The cache is then unchanged.
        """
        op = contract.CACHE_FILL.name
        ops.check_tensor(op, "key", key)
        ops.check_tensor(op, "value", value)
        shape = tuple(key.shape)
        if len(shape) != 4 or (*shape[:2], shape[3]) != (self.batch, self.n_kv_heads, self.head_dim):
            sizes = f"(batch={self.batch}, n_kv_heads={self.n_kv_heads}, n_tokens, head_dim={self.head_dim})"
            checks.fail(op, "key", f"have shape {sizes}", shape)
        if lengths is None:
            lengths = torch.full((self.batch,), shape[2], dtype=torch.int32)
        ops.check_integer_tensor(op, "lengths", lengths)
        if not running_on_ipu():
            return self._fill_elsewhere(key, value, lengths)
        lengths = lengths.to(torch.int32)
        inputs = (key.to(torch.float16), value.to(torch.float16), lengths)
        (held,) = custom_op(
            contract.CACHE_FILL, inputs, (lengths,), capacity=self.capacity, cache_name=self.cache_name
        )
        return held

    def _fill_elsewhere(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        n_tokens, cache = key.shape[2], self.elsewhere
        high = torch.full((self.batch,), n_tokens).numpy()
        checks.check_integers(
            "CacheFill", "lengths", lengths.numpy(), self.batch, -1, high, f"[-1, n_tokens={n_tokens}]"
        )
        replaced = lengths >= 0
        before = cache.lengths.clone(), cache.value_sum.clone()
        cache.lengths[replaced] = 0
        cache.value_sum[replaced] = 0
        try:
            cache.append(key, value, lengths.clamp(min=0))
        except Exception:
            cache.lengths.copy_(before[0])
            cache.value_sum.copy_(before[1])
            raise
        return cache.held().to(torch.int32)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        active: torch.Tensor | None = None,
        held: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One decode step: append a token to every active row, then attend to all that each row holds.

        Args:
            query: (batch, n_heads, head_dim); key, value: (batch, n_kv_heads, head_dim). All rounded to
                float16.
            active: (batch,) bool or integer; rows where it is 0 get no token. None: all active.
            held: what `fill` returned, if it is called in the same model: makes this step come after it.

        Returns:
            (batch, n_heads, head_dim) in the dtype of the query. On the IPU, a row that holds nothing has no
            defined output.

        Raises:
            ValueError: wrong shape; off the IPU also NaN, infinity, no room left, a row that holds nothing.
        """
        if not running_on_ipu():
            return self.elsewhere(query, key, value, active)
        if active is None:
            active = torch.ones(query.shape[0], dtype=torch.int32)
        ops.check_integer_tensor(self.decode_op.name, "active", active, allow_bool=True)
        active = active.to(torch.int32)
        if held is not None:
            active = active * (held >= 0).to(
                torch.int32
            )  # a length is never negative: only the order matters
        half = query.to(torch.float16)
        (output,) = custom_op(
            self.decode_op,
            (half, key.to(torch.float16), value.to(torch.float16), active),
            (half,),
            **self.settings,
            capacity=self.capacity,
            n_kv_heads=self.n_kv_heads,
            cache_name=self.cache_name,
        )
        return output.to(query.dtype)

    def extra_repr(self) -> str:
        names = ("batch", "n_kv_heads", "head_dim", "capacity", "cache_name")
        values = {**{name: getattr(self, name) for name in names}, **self.settings}
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


class DenseAttention(_Attention):
    """Dense decode attention: operator DenseDecode on the IPU, `sparq_ipu.torch.DenseAttention` elsewhere.

    Args:
        batch, n_kv_heads, head_dim, capacity: shape of the cache, as `sparq_ipu.KVCache`.
        cache_name: of the KV cache on the IPU; modules of one name share one cache, so give each layer its
            own.

    Raises:
        ValueError: an argument out of range.
    """

    decode_op = contract.DENSE_DECODE

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, capacity: int, *, cache_name: str):
        super().__init__(
            batch,
            n_kv_heads,
            head_dim,
            capacity,
            cache_name=cache_name,
            settings={},
            elsewhere=sparq_ipu.torch.DenseAttention,
        )


class SparqAttention(_Attention):
    """SparQ decode attention: operator SparqDecode on the IPU, `sparq_ipu.torch.SparqAttention` elsewhere.

    Args:
        batch, n_kv_heads, head_dim, capacity: shape of the cache, as `sparq_ipu.KVCache`.
        rank, top_k, n_local, mean_value: as `sparq_ipu.sparq_attention`.
        cache_name: of the KV cache on the IPU; modules of one name share one cache, so give each layer its
            own.

    Raises:
        ValueError: an argument out of range.
    """

    decode_op = contract.SPARQ_DECODE

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        cache_name: str,
        rank: int,
        top_k: int,
        n_local: int = 0,
        mean_value: bool = True,
    ):
        settings = {"rank": rank, "top_k": top_k, "n_local": n_local, "mean_value": mean_value}
        checks.check_sparq_settings(type(self).__name__, **settings, head_dim=head_dim)
        settings = {name: bool(x) if name == "mean_value" else int(x) for name, x in settings.items()}
        super().__init__(
            batch,
            n_kv_heads,
            head_dim,
            capacity,
            cache_name=cache_name,
            settings=settings,
            elsewhere=sparq_ipu.torch.SparqAttention,
        )
