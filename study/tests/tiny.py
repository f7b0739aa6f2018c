# SPDX-License-Identifier: Apache-2.0
"""A random Llama of three layers and a tokenizer of words and single digits: everything runs, nothing is
learned."""

from __future__ import annotations

import re

import torch

VOCABULARY = 6000


class TinyTokenizer:
    """Words (with the space before them), digits and other characters; ids are given out as they appear."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.ids: dict[str, int] = {}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not add_special_tokens
        ids = []
        for piece in re.findall(r" ?[A-Za-z]+|\d|.", text, re.DOTALL):
            if piece not in self.ids:
                self.ids[piece] = len(self.pieces)
                self.pieces.append(piece)
            ids.append(self.ids[piece])
        assert len(self.pieces) <= VOCABULARY
        return {"input_ids": ids}

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


def tiny_model(seed: int = 0):
    """LlamaForCausalLM: 3 layers, 4 query heads, 2 KV heads, head_dim 16; large weights, so that attention is
    peaked."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        initializer_range=0.3,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)
