# SPDX-License-Identifier: Apache-2.0
"""Attention modules for a model that PopTorch compiles: PopART operators on the IPU, the same elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np
import torch

import sparq_ipu.torch
from sparq_ipu.devices import available_devices
from sparq_ipu.poptorch import contract
from sparq_ipu.poptorch.library import load_library
from sparq_ipu.torch.tensors import check_integer_tensor, check_tensor, halves
from sparq_reference import checks
from sparq_reference.settings import CacheSpec, HasSpec

try:
    import poptorch
except ImportError:
    poptorch = None


def running_on_ipu() -> bool:
    """True while PopTorch traces or runs the model for the IPU (never while it is constructed)."""
    return poptorch is not None and bool(poptorch.isRunningOnIpu())


def custom_op(
    op: str, inputs: Sequence[torch.Tensor], example_outputs: Sequence[torch.Tensor], **attributes: Any
) -> tuple[torch.Tensor, ...]:
    """Call an operator of the contract. PopART checks its inputs when it compiles the model."""
    load_library()
    outputs = poptorch.custom_op(
        inputs=list(inputs),
        name=op,
        domain=contract.DOMAIN,
        domain_version=contract.VERSION,
        example_outputs=list(example_outputs),
        attributes=attributes,
    )
    return tuple(outputs)


def begin(held: torch.Tensor) -> torch.Tensor:
    """Call once, before a model whose attention is only in branches (`poptorch.cond`) or loop bodies
    (`poptorch.for_loop`): PopART takes operators there only if it has seen one outside.

    Args:
        held: (batch,) integers, from an input of the model, not a constant.

    Returns:
        The same as int32. Pass it on as `held` to the first operator: PopTorch drops unused results.
    """
    check_integer_tensor(contract.BEGIN, "held", held)
    held = held.to(torch.int32)
    if not running_on_ipu():
        return held
    return custom_op(contract.BEGIN, (held,), (held,))[0]


class _Attention(HasSpec, torch.nn.Module):
    """Decode attention whose KV cache belongs to the PopART operators and is found by its name. Arguments: as
    `DenseAttention`."""

    #: the operator of a decode step
    decode_op: str
    #: the module used when this one does not run on an IPU
    module_elsewhere: type[sparq_ipu.torch.DenseAttention] | type[sparq_ipu.torch.SparqAttention]

    def __init__(
        self, batch: int, n_kv_heads: int, head_dim: int, capacity: int, *, cache_name: str, **options: Any
    ):
        super().__init__()
        op = type(self).__name__
        self.spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op=op, **CacheSpec.take(options))
        self.options = contract.take_options(op, options)
        self.settings = self.module_elsewhere.settings_of(op, self.spec, options)
        if not isinstance(cache_name, str) or not (cache_name and cache_name.isascii()):
            rule = "be a string of ASCII characters, not empty"
            checks.fail(op, "cache_name", rule, repr(cache_name))
        contract.check_cache(op, self.spec, self.options, self.settings, dense=self.settings is None)
        self.cache_name = cache_name
        # In a list, which hides it from PopTorch: it is no part of the model on the IPU.
        self._elsewhere: list[sparq_ipu.torch.DenseAttention | sparq_ipu.torch.SparqAttention] = []

    @property
    def elsewhere(self) -> sparq_ipu.torch.DenseAttention | sparq_ipu.torch.SparqAttention:
        """The module of `sparq_ipu.torch` used when this one does not run on an IPU."""
        if not self._elsewhere:
            settings = {} if self.settings is None else self.settings.arguments()
            # only the reference has an index of fewer components
            has_kernels = "cpu" in available_devices() and not self.spec.index_components
            arguments = {**dataclasses.asdict(self.spec), **settings}
            module = self.module_elsewhere(**arguments, device="cpu" if has_kernels else "reference")
            self._elsewhere.append(module)
        return self._elsewhere[0]

    def _custom_op(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        held: torch.Tensor | None,
        example_outputs: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        if held is None:  # nothing to wait for
            held = torch.zeros(self.batch, dtype=torch.int32)
        check_integer_tensor(op, "held", held)
        attributes = contract.attributes_of(op, self.spec, self.cache_name, self.settings, self.options)
        return custom_op(op, (*inputs, held.to(torch.int32)), example_outputs, **attributes)

    def fill(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None = None,
        held: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Prefill: a row then holds these tokens and no others.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.
            lengths: (batch,) integers: row b holds its first lengths[b] tokens; 0 empties it, -1 leaves it as
                it is. None: all.
            held: as of `step`.

        Returns:
            Positions held, (batch,) int32. Pass it on as `held` to what comes next on this cache: on the IPU,
            that makes it wait. Where nothing comes next, pass it on to another cache or return it from the
            model: PopTorch drops an operator whose results nobody uses, and the cache would not be filled.

        Raises:
            ValueError: wrong shape; off the IPU also NaN, infinity, a length out of range or above the
                capacity. The cache is then unchanged.
        """
        op = contract.CACHE_FILL
        check_tensor(op, "key", key)
        check_tensor(op, "value", value)
        shape = tuple(key.shape)
        if len(shape) != 4 or (*shape[:2], shape[3]) != (self.batch, self.n_kv_heads, self.head_dim):
            sizes = f"(batch={self.batch}, n_kv_heads={self.n_kv_heads}, n_tokens, head_dim={self.head_dim})"
            checks.fail(op, "key", f"have shape {sizes}", shape)
        if lengths is None:
            lengths = torch.full((self.batch,), shape[2], dtype=torch.int32)
        check_integer_tensor(op, "lengths", lengths)
        if not running_on_ipu():
            return self._fill_elsewhere(key, value, lengths)
        lengths = lengths.to(torch.int32)
        inputs = (key.to(torch.float16), value.to(torch.float16), lengths)
        (filled,) = self._custom_op(contract.CACHE_FILL, inputs, held, (lengths,))
        return filled

    def _fill_elsewhere(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        op, cache, new = contract.CACHE_FILL, self.elsewhere.cache, lengths.numpy()
        interval = f"[-1, n_tokens={key.shape[2]}]"
        checks.check_integers(op, "lengths", new, self.batch, -1, np.full(self.batch, key.shape[2]), interval)
        kept, counts = np.where(new < 0, cache.lengths, 0), new.clip(min=0)
        tokens = halves(key), halves(value)
        # before anything is forgotten
        checks.check_append("append", *tokens, self.spec, kept, lengths=counts, check_finite=True)
        cache.truncate(kept)
        cache.append(*tokens, counts)
        return self.elsewhere.held().to(torch.int32)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        active: torch.Tensor | None = None,
        held: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output of `step`, for models that have one step on this cache, as the last operator on it."""
        return self.step(query, key, value, active, held)[0]

    def step(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        active: torch.Tensor | None = None,
        held: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One decode step: append a token to every active row, then attend to all that each row holds.

        Args:
            query, key, value, active: as of the modules of `sparq_ipu.torch`.
            held: (batch,) integers: what `fill` or `step` returned for this cache before, in the same model.
                Makes this step come after it, also where one of them is in the body of a loop. No value of it
                is read.

        Returns:
            (batch, n_heads, head_dim) in the dtype of the query, and the positions held afterwards, (batch,)
            int32. On the IPU, a row that holds nothing has no defined output.

        Raises:
            ValueError: wrong shape; off the IPU also NaN, infinity, no room left, a row that holds nothing.
        """
        if not running_on_ipu():
            attended: torch.Tensor = self.elsewhere(query, key, value, active)
            return attended, self.elsewhere.held().to(torch.int32)
        if active is None:
            active = torch.ones(query.shape[0], dtype=torch.int32)
        check_integer_tensor(self.decode_op, "active", active, allow_bool=True)
        active = active.to(torch.int32)
        half = query.to(torch.float16)
        inputs = (half, key.to(torch.float16), value.to(torch.float16), active)
        output, lengths = self._custom_op(self.decode_op, inputs, held, (half, active))
        return output.to(query.dtype), lengths

    def extra_repr(self) -> str:
        settings = {} if self.settings is None else self.settings.arguments()
        values = {**dataclasses.asdict(self.spec), "cache_name": self.cache_name, **settings}
        if self.options.memory == "tiered":
            values.update(memory="tiered", hot_rows=self.options.hot_rows)
        return ", ".join(f"{name}={value!r}" for name, value in values.items())


class DenseAttention(_Attention):
    """Dense decode attention: operator DenseDecode on the IPU, `sparq_ipu.torch.DenseAttention` elsewhere.

    Args:
        batch, n_kv_heads, head_dim, capacity: shape of the cache, as `sparq_ipu.KVCache`.
        cache_name: of the KV cache on the IPU; modules of one name share one cache, so give each layer its
            own. They must agree on all options.
        options: of the cache, as `sparq_ipu.KVCache`: index_bits.
    """

    decode_op = contract.DENSE_DECODE
    module_elsewhere = sparq_ipu.torch.DenseAttention


class SparqAttention(_Attention):
    """SparQ decode attention: operator SparqDecode on the IPU, `sparq_ipu.torch.SparqAttention` elsewhere.

    Args:
        batch, n_kv_heads, head_dim, capacity, cache_name: as of `DenseAttention`.
        options: the settings of `sparq_ipu.sparq_attention`: rank, top_k and so on; and options of the cache,
            as `sparq_ipu.KVCache`: index_bits; memory, "streaming" or "tiered", and with "tiered" hot_rows.
            Where the cache is changes no result, and nothing off the IPU.
    """

    decode_op = contract.SPARQ_DECODE
    module_elsewhere = sparq_ipu.torch.SparqAttention
