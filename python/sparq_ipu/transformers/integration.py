# SPDX-License-Identifier: Apache-2.0
"""`enable`, `disable` and what goes with them: SparQ or window attention for a model of transformers."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from typing import Any, Mapping, Sequence

import torch
import transformers
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from sparq_ipu.commands.extras import check_version
from sparq_ipu.tokens import MAX_TOKENS
from sparq_ipu.torch.graphs import outside_graphs
from sparq_ipu.transformers.attention import FORWARD_PASS, ForwardPass, is_registered, register
from sparq_ipu.transformers.cache.options import check_names, check_options, host_device
from sparq_ipu.transformers.cache.sparq_cache import (
    PreparedCache,
    SparqCache,
    is_sparq_cache,
    kinds_of,
    sparq_layers,
)
from sparq_ipu.transformers.decoder.lean_step import LeanStep, lean_step_of
from sparq_ipu.transformers.decoder.weights import quantise_weights, weights_of
from sparq_ipu.transformers.settings.layers import (
    PROMPT_BLOCKS,
    LayerSettings,
    ModelSettings,
    settings_of_layers,
)
from sparq_ipu.transformers.supported import (
    LayerKinds,
    attention_modules,
    check_model,
    decoder_of,
    head_dim_of,
    n_layers_of,
    text_config,
)
from sparq_reference import checks
from sparq_reference.prompt import check_blocks

check_version("sparq_ipu.transformers", "transformers", "5.24", transformers.__version__)

#: Attribute of an enabled decoder: what `disable` needs to restore it. There it is seen from the model and
#: from its decoder, and `copy.deepcopy` of a model copies it with the hooks.
_STATE = "_sparq_ipu_enabled"

_log = logging.getLogger("sparq_ipu")


def enable(
    model: PreTrainedModel,
    *,
    layers: Mapping[int, Mapping[str, Any] | None] | None = None,
    published: bool = False,
    device: str = "auto",
    capacity: int | None = None,
    check_finite: bool = True,
    tokens_per_step: int = 1,
    lean: bool = True,
    weights: str | None = None,
    prompt_blocks: float | None = None,
    **options: Any,
) -> None:
    """Decode with SparQ attention: `model.generate` and one-token forward passes, through our KV cache.

    Prefill (several tokens at once) is `prompt_attention` in place of PyTorch's: dense, but for what
    `prompt_blocks` skips. The model's own attention stays for gradients, for padding behind a text and
    without "sdpa". Caches that `generate` makes, and empty `DynamicCache`s that you pass, become caches of
    this kind; they can be kept over turns. Enabling again replaces the settings. Settings that are not given
    are those that docs/settings.md recommends: no mean value in layer 0, a key index of 2 bits, and dense
    attention of texts so short that SparQ would read more. A cache in three tiers cannot attend densely:
    there SparQ decodes at any length. `model.config` becomes a copy: another model may have been built from
    the same object.

    Args:
        model: a causal decoder (Llama, Mistral, Gemma, Qwen, Pythia, OPT, ...: docs/models.md has a table) on
            the CPU, in eval mode. Where some layers see a window of positions, these attend densely: the
            logger "sparq_ipu" reports them in a line.
        options: the settings of all layers: rank, top_k, index_bits and so on, see `LayerSettings`; and
            options of `sparq_ipu.KVCache`.
        published: settings that are not given are those of arXiv:2312.04985: the same in all layers, a key
            index of 16 bits unless the cache has another, SparQ at any length.
        layers: what differs in some layers, by index: None is dense, a mapping replaces settings, e.g. `{0:
            None, 1: {"mean_value": False}, 2: {"index_bits": 8}}`.
        device: of the KV cache; "auto" is the CPU kernels where they are built, else the NumPy reference.
        check_finite: as `sparq_ipu.KVCache`.
        capacity: most positions of one batch row; None grows as needed.
        tokens_per_step: a forward pass of up to this number of tokens (at most 32) on a filled cache is
            several decode steps in one: each token attends as if it came alone. With 1, several tokens are
            prefill. Assisted generation and prompt lookup need more than 1.
        lean: steps of one token take fewer operations than transformers does, with the same bits, in families
            that `decoder.families` describes. False: the model's own forward pass, always.
        prompt_blocks: a token of a prompt with at least 2,048 before it skips blocks of 64 positions that are
            estimated to get less than this share of its attention. Long prompts are read faster, with other
            bits. 0: no block is skipped, as in layers that see a window. None: 0.0015 for a model in
            bfloat16, also with weights of few bits; 0 for other types and with `published`.
        weights: "int8" or "int4": round the weights of linear layers to so few bits, of a model in bfloat16;
            see `quantise_weights`. A model with weights of 4 bits keeps them with either. `disable` does not
            bring the former ones back.

    Raises:
        ValueError: `enable: <argument> must <rule>, got <value>`; also for a model that is not supported; and
            what `sparq_ipu.KVCache` raises for its options. The model is then unchanged.
    """
    check_model("enable", model)
    published = checks.check_bool("enable", "published", published)
    names = [*(field.name for field in dataclasses.fields(LayerSettings)), "layers", "published"]
    said = LayerSettings.take(options)
    check_names("enable", host_device("enable", device), options, names)
    how = dict(published=published, can_be_dense=options.get("memory") != "tiered")
    of_layers = settings_of_layers("enable", said, layers, n_layers_of(model), head_dim_of(model), **how)
    common: dict[str, Any] = dict(capacity=capacity, check_finite=check_finite, lean=lean, weights=weights)
    if prompt_blocks is None and model.dtype == torch.bfloat16 and not published:
        prompt_blocks = PROMPT_BLOCKS
    common.update(device=device, tokens_per_step=tokens_per_step, prompt_blocks=prompt_blocks)
    _enable("enable", model, of_layers, names, **common, **options)


def _enable(
    op: str,
    model: PreTrainedModel,
    layers: ModelSettings,
    names: Sequence[str] = (),
    *,
    device: str = "auto",
    capacity: int | None = None,
    check_finite: bool = True,
    tokens_per_step: int = 1,
    lean: bool = True,
    weights: str | None = None,
    prompt_blocks: float | None = None,
    **options: Any,
) -> None:
    """Decode with these settings. names: further ones that the caller takes; the others as of `enable`."""
    lean = checks.check_bool(op, "lean", lean)
    tokens_per_step = checks.check_integer(op, "tokens_per_step", tokens_per_step, 1, MAX_TOKENS)
    prompt_blocks = check_blocks(op, "prompt_blocks", 0.0 if prompt_blocks is None else prompt_blocks)
    options = check_options(op, device, capacity, check_finite, options, names, layers)
    if weights is not None and weights_of(model) not in (weights, "int4"):
        _log.info("%s: %s", op, quantise_weights(model, weights, op=op))
    _install(op, model, _Hooks(model, layers, options, tokens_per_step, prompt_blocks), lean)


def enable_dense(model: PreTrainedModel, **options: Any) -> None:
    """Decode with dense attention through the same KV cache: the run to compare SparQ with. Options
    are those of `enable` from `device` on; prompts are dense too, unless `prompt_blocks` is given."""
    check_model("enable_dense", model)
    _enable("enable_dense", model, [None] * n_layers_of(model), **options)


def disable(model: PreTrainedModel) -> None:
    """Restore the model as it was before `enable`. A model that is not enabled stays as it is.

    Its SparQ caches can then not be used until it is enabled again. A copy (`copy.deepcopy`) of an enabled
    model is enabled too, and is disabled by itself.
    """
    if not is_enabled(model):
        return
    decoder = decoder_of(model)
    state = getattr(decoder, _STATE)
    delattr(decoder, _STATE)
    if isinstance(vars(decoder).get("forward"), LeanStep):
        del decoder.forward
    for module in attention_modules(model):
        delattr(module, FORWARD_PASS)
    for handle in state["handles"]:
        handle.remove()
    _set_attention(model, state["attn_implementation"])


def is_enabled(model: PreTrainedModel) -> bool:
    """Whether a model, or the model of this decoder, is enabled."""
    return hasattr(model, "base_model") and hasattr(decoder_of(model), _STATE)


def _install(op: str, model: PreTrainedModel, hooks: _Hooks, lean: bool) -> None:
    if is_enabled(model):
        disable(model)
    decoder = decoder_of(model)
    own = decoder.config._attn_implementation
    # "eager" is a function private to each model's file, so its prefill runs as "sdpa": the same mathematics
    name = register(own if own != "eager" and is_registered(own) else "sdpa")
    _own_config(model)
    _set_attention(model, name)
    if model.config._attn_implementation != name:
        checks.fail(op, "model", "accept another attention implementation", type(model).__name__)
    handles = [
        decoder.register_forward_pre_hook(hooks.before, with_kwargs=True),
        decoder.register_forward_hook(hooks.after, with_kwargs=True),
    ]
    if decoder is not model:
        handles.append(model.register_forward_pre_hook(hooks.before_model, with_kwargs=True))
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(output, torch.nn.Module):  # a bare decoder has none
        handles.append(output.register_forward_pre_hook(_usual_strides))
    for module in attention_modules(model):
        setattr(module, FORWARD_PASS, hooks.forward_pass)
    setattr(decoder, _STATE, {"attn_implementation": own, "handles": handles, "hooks": hooks})
    name = "SparQ attention" if any(hooks.settings) else "dense attention"
    _log.info("%s: %s", op, hooks.kinds.describe(name))
    if lean:
        step: LeanStep | str = lean_step_of(decoder)
        if isinstance(step, LeanStep):
            decoder.forward = step
            steps = f"fast: {step}"
        else:
            steps = f"the model's own forward pass, slower for small models: {step}"
        getattr(decoder, _STATE)["steps"] = steps
        _log.info("%s: steps are %s", op, steps)


def steps_of(model: PreTrainedModel) -> str:
    """Whether steps of an enabled model were fast when it was enabled, and if not, why."""
    steps: str = getattr(decoder_of(model), _STATE).get("steps", "the model's own forward pass: lean=False")
    return steps


def _usual_strides(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook of the output layer: the last token of a prompt is a slice, with the strides of the
    whole. PyTorch 2.13 multiplies such a row of bfloat16 40 times as slowly, though both are contiguous."""
    return tuple(x.contiguous().view(x.shape) if isinstance(x, torch.Tensor) else x for x in args)


def decoding(op: str, model: PreTrainedModel) -> _Hooks:
    """How an enabled model decodes."""
    if not is_enabled(model):
        checks.fail(op, "model", "be enabled", "one that is not")
    hooks: _Hooks = getattr(decoder_of(model), _STATE)["hooks"]
    return hooks


def _own_config(model: PreTrainedModel) -> None:
    """Give the model a copy of its config: all models that were built from one object share it, and the name
    of their attention is in it."""
    copies: dict[int, Any] = {}  # by the identity of what was copied: the modules of a model share theirs
    every = (model, *model.modules(), *decoder_of(model).modules())
    for module in {id(module): module for module in every}.values():
        for name, value in list(vars(module).items()):
            if isinstance(value, PretrainedConfig):
                setattr(module, name, copy.deepcopy(value, copies))


def _set_attention(model: PreTrainedModel, name: str) -> None:
    """Set the attention of the model and of its decoder: two configs where only the decoder was enabled."""
    parts: tuple[Any, ...] = (decoder_of(model), model.base_model, model)
    for part in {id(part): part for part in parts}.values():
        part.set_attn_implementation(name)


class _Hooks:
    """Hooks around each forward pass of the decoder: it gets a SparQ cache, which learns which tokens come.

    transformers gives a cache layer keys and values, but no attention mask. So padding is announced here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: ModelSettings,
        options: dict[str, Any],
        tokens_per_step: int,
        prompt_blocks: float,
    ):
        self.kinds = kinds = LayerKinds.of(text_config(model))
        self.settings = [None if index in kinds.dense else each for index, each in enumerate(settings)]
        self.tokens_per_step, self.prompt_blocks = tokens_per_step, prompt_blocks
        #: options of the caches that the hooks make
        self.cache_options = options
        windows = {index: window for index, window in enumerate(kinds.windows) if window is not None}
        self.forward_pass = ForwardPass(windows)

    @outside_graphs
    def before_model(self, module: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of a model with an output layer: does that take the last token alone?"""
        tokens, kept = kwargs.get("input_ids", args[0] if args else None), kwargs.get("logits_to_keep")
        if not isinstance(tokens, torch.Tensor):  # embeddings
            return
        if isinstance(kept, torch.Tensor):
            kept = int(kept.tolist() == [tokens.shape[1] - 1])
        self.forward_pass.state.gives_last_of = tokens if kept == 1 else None

    @outside_graphs
    def before(
        self, module: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Forward pre-hook of the decoder."""
        if module.training:
            checks.fail("sparq_attention", "model", "be in eval mode", "training mode")
        if args:
            kwargs = dict(zip(inspect.signature(module.forward).parameters, args), **kwargs)
        if kwargs.get("output_attentions"):
            checks.fail("sparq_attention", "output_attentions", "be False", True)
        state = self.forward_pass.state
        tokens, state.gives_last_of = state.gives_last_of, None
        is_last = tokens is not None and tokens is kwargs.get("input_ids")
        is_looked_at = len(module._forward_hooks) > 1  # one is ours
        if is_last and not is_looked_at and isinstance(module.forward, LeanStep):
            kwargs["last_only"] = True
        # Its older name. transformers refuses both together.
        if "past_key_values" in kwargs and "cache" not in kwargs:
            kwargs["cache"] = kwargs.pop("past_key_values")
        if isinstance(kwargs.get("cache"), PreparedCache):  # it has been told what comes
            self.forward_pass.state.has_cache = True
            return (), kwargs
        cache = kwargs["cache"] = self._cache(module, kwargs)
        self.forward_pass.state.has_cache = cache is not None
        if cache is not None:
            tokens = kwargs.get("input_ids")
            if tokens is None:
                tokens = kwargs["inputs_embeds"]
            self._announce(cache, kwargs.get("attention_mask"), *tokens.shape[:2])
        return (), kwargs

    @outside_graphs
    def after(
        self, module: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Forward hook of the decoder: every layer must have attended to what it stored."""
        self.forward_pass.state.has_cache = False
        missed = [layer.index for layer in sparq_layers(kwargs.get("cache")) if layer.is_armed]
        if missed:
            raise RuntimeError(
                f"sparq_attention: the model must attend through its cache in every layer, not so in {missed}"
            )

    def _cache(self, module: PreTrainedModel, kwargs: dict[str, Any]) -> Any:
        cache = kwargs.get("cache")
        if cache is None:
            use_cache = kwargs.get("use_cache")
            use_cache = getattr(module.config, "use_cache", True) if use_cache is None else use_cache
            return SparqCache(module.config, **self.cache_options) if use_cache else None
        if is_sparq_cache(cache):
            return cache
        # Made by `generate`, or by the caller, who keeps it over turns: the object stays, its layers change.
        is_ours_to_fill = type(cache) is DynamicCache and not getattr(cache, "offloading", False)
        if is_ours_to_fill and cache.get_seq_length() == 0:
            cache.layers[:] = SparqCache(module.config, **self.cache_options).layers
            cache.layer_class_to_replicate = None
            return cache
        rule = "be a SparqCache, an empty DynamicCache that offloads nothing, or None"
        length = f" of length {cache.get_seq_length()}" if hasattr(cache, "get_seq_length") else ""
        return checks.fail("sparq_attention", "cache", rule, f"{type(cache).__name__}{length}")

    def _announce(self, cache: Any, mask: torch.Tensor | None, batch: int, n_tokens: int) -> None:
        op, layers = "sparq_attention", sparq_layers(cache)
        held = {int(layer.get_seq_length()) for layer in cache.layers}
        if len(held) != 1 or kinds_of(cache) != self.kinds:
            rule = f"hold the same tokens in all {len(self.settings)} layers"
            checks.fail(op, "cache", rule, sorted(held))
        for layer in layers:
            layer.check_options(self.settings[layer.index], self.cache_options.get("row_bits"))
        (past,) = held
        if past and layers[0].batch_size != batch:
            checks.fail(op, "batch", f"be that of the cache, {layers[0].batch_size}", batch)
        real = None
        if mask is not None:
            if not isinstance(mask, torch.Tensor) or mask.shape != (batch, past + n_tokens):
                rule = f"have shape (batch={batch}, n_tokens so far={past + n_tokens})"
                got = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
                checks.fail(op, "attention_mask", rule, got)
            mask = mask.to(torch.bool)
            if past and not torch.equal(mask[:, :past], layers[0].real):
                for layer in layers:  # before any changes
                    layer.check_real(mask[:, :past])
                for layer in layers:  # the caller hides tokens that an earlier mask showed
                    layer.set_real(mask[:, :past])
            real = mask[:, past:]
            if bool(real.all()):
                real = None
        elif past and not layers[0].is_all_real:
            checks.fail(op, "attention_mask", "repeat that of the tokens in the cache", None)
        is_step = past > 0 and real is None and 1 < n_tokens <= self.tokens_per_step
        for layer in layers:
            layer.arm(real, self.settings[layer.index], is_step, self.tokens_per_step > 1)
            layer.prompt_blocks = self.prompt_blocks
