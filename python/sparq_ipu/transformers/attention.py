# SPDX-License-Identifier: Apache-2.0
"""The attention and mask functions that transformers calls, registered through its public interfaces."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from sparq_ipu.transformers.cache import ATTEND_ONCE
from sparq_reference import checks

# `Any`: transformers gives their constructors no types.
_attention_interface: Any = AttentionInterface
_mask_interface: Any = AttentionMaskInterface

#: Arguments of attention that change nothing here. Any other is refused, unless it is None or False.
_HARMLESS = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "is_causal",
        "num_items_in_batch",
        "past_key_values",
        "output_hidden_states",
    }
)

#: Attribute of the attention modules of an enabled model: the `ForwardPass` of its decoder.
FORWARD_PASS = "_sparq_ipu_forward_pass"


@dataclasses.dataclass
class ForwardPass:
    """What attention must know of the forward pass that it is called in."""

    #: its tokens go to a SparqCache
    has_cache: bool = False


def register(base: str) -> str:
    """Register SparQ attention whose prefill is `base`; returns the name to give a model.

    A mask function is registered with it: without one, transformers passes no mask at all, neither for
    padding nor for prefill on top of a filled cache.
    """
    name = f"sparq_ipu_{base}"
    AttentionInterface.register(name, _attention_over(_attention_interface()[base]))
    AttentionMaskInterface.register(name, _mask_over(_mask_interface()[base]))
    return name


def is_registered(base: str) -> bool:
    """Whether transformers knows both an attention and a mask function of this name."""
    return base in _attention_interface() and base in _mask_interface()


def check_scaling(op: str, scaling: float | None, head_dim: int) -> None:
    """The kernels scale scores by 1/sqrt(head_dim), so nothing else will do."""
    expected = head_dim**-0.5
    if scaling is not None and abs(scaling - expected) > 1e-6 * expected:
        checks.fail(op, "scaling", f"be 1/sqrt(head_dim={head_dim})={expected:.6g}", scaling)


def _mask_over(base: Callable[..., Any]) -> Callable[..., Any]:
    def mask(*args: Any, **kwargs: Any) -> Any:
        """The mask of `base`. None for one token: its attention reads real positions only, from the cache."""
        q_length = kwargs.get("q_length")
        if q_length is None and kwargs.get("cache_position") is not None:  # transformers 4
            q_length = kwargs["cache_position"].shape[0]
        return None if q_length == 1 else base(*args, **kwargs)

    return mask


def _attention_over(base: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention of one layer: `base` for several tokens, the layer's KVCache for one.

        Args:
            query: (batch, n_heads, n_tokens, head_dim); key, value: what the cache's `update` returned.
        Returns: output (batch, n_tokens, n_heads, head_dim), and None for the weights.
        Raises: ValueError for a feature that SparQ attention does not have, and for a foreign cache.
        """
        for name, argument in kwargs.items():
            if name not in _HARMLESS and argument is not None and argument is not False:
                checks.fail("sparq_attention", name, "not be set: it is not supported", repr(argument))
        if dropout:
            checks.fail("sparq_attention", "dropout", "be 0", dropout)
        check_scaling("sparq_attention", scaling, query.shape[-1])
        layer = getattr(key, "sparq_layer", None)
        if layer is not None and query.shape[2] == 1:
            if attention_mask is not None:  # `_mask_over` makes none: it is one of the model's own
                checks.fail("sparq_attention", "attention_mask", "be None for one token", "one of the model")
            return layer.attend(query, key, value), None
        forward = getattr(module, FORWARD_PASS, None)
        if layer is not None:
            layer.attend_prefill(key, value)
        elif forward is not None and forward.has_cache:
            got = f"other keys in {type(module).__name__}"
            checks.fail("sparq_attention", "model", ATTEND_ONCE, got)
        elif key.shape[2] != query.shape[2]:
            checks.fail("sparq_attention", "past_key_values", "be a SparqCache", "keys of another cache")
        result: tuple[torch.Tensor, None] = base(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return result

    return attention
