# SPDX-License-Identifier: Apache-2.0
"""The attention and mask functions that transformers calls, registered through its public interfaces."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from sparq_ipu.torch import prompt
from sparq_ipu.transformers.cache.handover import ATTEND_ONCE
from sparq_ipu.transformers.decoder.step_layer import scores_factor
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
        "cache",
        "output_hidden_states",
        "tokenizer",  # of `generate(stop_strings=...)`
    }
)

#: What the names of attention that replaces PyTorch's begin with.
_OWN_PROMPTS = "sparq_ipu_dense"

#: Attribute of the attention modules of an enabled model: the `ForwardPass` of its decoder.
FORWARD_PASS = "_sparq_ipu_forward_pass"


class PassState(threading.local):
    """State of one forward pass: of the thread that makes it, for several threads may call one model."""

    #: its tokens go to a SparqCache
    has_cache = False
    #: the tokens of which the model that calls the decoder takes the last output alone
    gives_last_of: torch.Tensor | None = None

    def __reduce__(self) -> Any:  # a copied model is in no pass
        return PassState, ()


@dataclasses.dataclass
class ForwardPass:
    """Facts about a forward pass that its attention needs."""

    #: windows of layers, in positions, where they have one
    windows: dict[int, int] = dataclasses.field(default_factory=dict)
    state: PassState = dataclasses.field(default_factory=PassState)


def register(base: str) -> str:
    """Register SparQ attention whose prefill is `base`; returns the name to give a model.

    A mask function is registered with it: without one, transformers passes no mask at all, neither for
    padding nor for prefill on top of a filled cache.
    """
    # transformers looks for "sdpa" in a name, and refuses it for models that have "eager" alone
    name = _OWN_PROMPTS if base == "sdpa" else f"sparq_ipu_{base}"
    AttentionInterface.register(name, _attention_over(_attention_interface()[base], base == "sdpa"))
    AttentionMaskInterface.register(name, _mask_over(_mask_interface()[base]))
    return name


def has_own_prompts(name: str) -> bool:
    """Whether prompts attend by `prompt_attention` in a model with this attention."""
    return name.startswith(_OWN_PROMPTS)


def is_registered(base: str) -> bool:
    """Whether transformers knows both an attention and a mask function of this name."""
    return base in _attention_interface() and base in _mask_interface()


def _mask_over(base: Callable[..., Any]) -> Callable[..., Any]:
    def mask(*args: Any, **kwargs: Any) -> Any:
        """The mask of `base`. None for one token: its attention reads real positions only, from the cache."""
        return None if kwargs.get("q_length") == 1 else base(*args, **kwargs)

    return mask


def _attention_over(base: Callable[..., Any], is_default: bool) -> Callable[..., Any]:
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
        """Attention of one layer. `prompt_attention` replaces PyTorch's for prompts; decode steps read the
        layer's KVCache.

        Args:
            query: (batch, n_heads, n_tokens, head_dim); key, value: what the cache's `update` returned.
        Returns: output (batch, n_tokens, n_heads, head_dim), and None for the weights.
        Raises: ValueError for a feature that SparQ attention does not have, and for a foreign cache.
        """

        def own(key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> Any:
            return base(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)

        forward: ForwardPass = getattr(module, FORWARD_PASS, _NO_FORWARD_PASS)
        index: Any = module.layer_idx
        layer = getattr(key, "sparq_layer", None)
        _check_arguments(kwargs, dropout, forward.windows.get(index))
        if layer is None:
            if forward.state.has_cache:
                got = f"other keys in {type(module).__name__}"
                checks.fail("sparq_attention", "model", ATTEND_ONCE, got)
            if key.shape[2] != query.shape[2]:
                checks.fail("sparq_attention", "cache", "be a SparqCache", "keys of another cache")
        elif query.shape[2] > 1 and not layer.waits:
            layer.attend_prefill(key, value)
            if is_default and prompt.takes(query, key, value):
                attended = layer.attend_prompt(query.detach(), scaling)
                if attended is not None:
                    return attended, None
            key, value = layer.by_column(key, value)
        else:
            layer.check_mask(attention_mask, query.shape[2])
            return layer.attend(query, key, value, scores_factor(scaling, query.shape[-1])), None
        result: tuple[torch.Tensor, None] = own(key, value, attention_mask)
        return result

    return attention


_NO_FORWARD_PASS = ForwardPass()


def _check_arguments(arguments: dict[str, Any], dropout: float, window: int | None) -> None:
    """Refuse arguments that would change the result. `window`: of the layer, which must be given too."""
    for name, argument in arguments.items():
        if name == "sliding_window" and argument is not None and argument == window:
            window = None
        elif name not in _HARMLESS and argument is not None and argument is not False:
            checks.fail("sparq_attention", name, "not be set: it is not supported", repr(argument))
    if window is not None:
        got = arguments.get("sliding_window")
        checks.fail("sparq_attention", "sliding_window", f"be that of the config, {window}", got)
    if dropout:
        checks.fail("sparq_attention", "dropout", "be 0", dropout)
