# SPDX-License-Identifier: Apache-2.0
"""The families of models that docs/models.md names, as tiny models with random weights. Needs no torch."""

from __future__ import annotations

from typing import Any, NamedTuple

#: positions of the windows
WINDOW = 24
_ALTERNATING = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
_OPT = dict(ffn_dim=64, word_embed_proj_dim=96)


class Family(NamedTuple):
    """One row of the table.

    Attributes:
        kind: of transformers' config and model, for `tiny_models.tiny_config`.
        changes: of the config.
        layers: what the table says of its layers.
        is_fast: steps are lean.
        gguf: transformers' name of the architecture in GGUF files, if it reads them.
    """

    kind: str
    changes: dict[str, Any]
    layers: str = "all"
    is_fast: bool = False
    gguf: str | None = None


_WITHIN = "all, within the window"
_FULL = "those without a window"

#: with the short factors at any length that a test of all families has
_LONG_ROPE: dict = dict(
    rope_scaling=dict(type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[4.0, 5.0, 6.0, 7.0]),
    original_max_position_embeddings=1024,
    max_position_embeddings=2048,
    partial_rotary_factor=0.5,
    sliding_window=None,
)

FAMILIES = {
    "Llama 2": Family("Llama", dict(num_key_value_heads=6), is_fast=True, gguf="llama"),
    "Llama 3": Family(
        "Llama",
        dict(
            rope_scaling=dict(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
            tie_word_embeddings=True,
        ),
        is_fast=True,
        gguf="llama",
    ),
    "Mistral": Family("Mistral", dict(sliding_window=None), is_fast=True, gguf="llama"),
    "Mistral with a sliding window": Family("Mistral", dict(sliding_window=WINDOW), _WITHIN, True, "llama"),
    "Gemma": Family("Gemma", {}, is_fast=True),
    "Gemma 2 without soft-capping": Family(
        "Gemma2",
        dict(_ALTERNATING, sliding_window=WINDOW, attn_logit_softcapping=None, query_pre_attn_scalar=32),
        _FULL,
        is_fast=True,
    ),
    "Gemma 3": Family(
        "Gemma3Text",
        dict(_ALTERNATING, sliding_window=WINDOW, query_pre_attn_scalar=32),
        _FULL,
        True,
        "gemma3",
    ),
    "Pythia, GPT-NeoX": Family("GPTNeoX", {}),
    "OPT": Family("OPT", _OPT),
    "GPT-2": Family(
        "GPT2", dict(n_layer=3, n_head=6, n_embd=96, n_positions=1024, scale_attn_by_inverse_layer_idx=True)
    ),
    "Phi": Family("Phi", {}),
    "Phi-3": Family("Phi3", dict(sliding_window=None, partial_rotary_factor=0.5), is_fast=True, gguf="phi3"),
    "Phi-3 with a sliding window": Family("Phi3", dict(sliding_window=WINDOW), _WITHIN, True, "phi3"),
    "Phi-4-mini": Family("Phi3", _LONG_ROPE, is_fast=True),
    "Qwen 2": Family("Qwen2", {}, is_fast=True, gguf="qwen2"),
    "Qwen 2 with sliding windows": Family(
        "Qwen2", dict(_ALTERNATING, use_sliding_window=True, sliding_window=WINDOW), _FULL, True
    ),
    "Qwen 3": Family("Qwen3", {}, is_fast=True, gguf="qwen3"),
    "SmolLM 3": Family("SmolLM3", dict(no_rope_layers=[1, 0, 1]), is_fast=True),
    "OLMo 2": Family("Olmo2", {}, is_fast=True),
    "Granite": Family(
        "Granite",
        dict(attention_multiplier=0.5, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0),
        is_fast=True,
    ),
    "Cohere": Family("Cohere", {}),
    "StarCoder 2": Family("Starcoder2", {}),
}
