# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of transformers whose tokens are bytes."""

from __future__ import annotations

from typing import Any, Sequence

import pytest

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def byte_tokenizer(template: str, special: Sequence[str], adds_bos: bool = True) -> Any:
    """As GPT-2's without merges; it may put <s> before a text. The first two of `special` are <s>, </s>."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: at for at, character in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(special))
    if adds_bos:
        begin = ("<s>", made.token_to_id("<s>"))
        made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[begin])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", additional_special_tokens=list(special[2:])
    )
    tokenizer.chat_template = template
    return tokenizer
