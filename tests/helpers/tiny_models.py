# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, and an attention oracle for them, for the tests of models and benches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparq_ipu.transformers
from sparq_reference import exact, prompt

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402

torch.set_num_threads(1)


def tiny_config(kind: str = "Llama", **changes: Any) -> Any:
    """A configuration of family `kind`: 3 layers, 6 query heads on 2 KV heads, head_dim 16."""
    settings = dict(
        vocab_size=101,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.3,
        pad_token_id=100,
        bos_token_id=99,
        eos_token_id=None,
    )
    return getattr(transformers, f"{kind}Config")(**{**settings, **changes})


def tiny_model(kind: str = "Llama", seed: int = 0, **changes: Any) -> Any:
    """A random causal language model, in eval mode."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(kind, **changes))
    return model.eval().requires_grad_(False)


def of_even_attention(model: Any) -> Any:
    """With scores near one another: far blocks of a prompt get little attention each, and are left out."""
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.mul_(0.25)
    return model


def enable(model: Any, **settings: Any) -> None:
    """SparQ attention with these settings, or of a file, and no recommended ones beside them."""
    if "settings" not in settings:
        settings = {"n_local": 0, "published": True, **settings}
    sparq_ipu.transformers.enable(model, **settings)


def tokens_of(n: int, seed: int = 0, batch: int = 1) -> Any:
    """(batch, n) random tokens, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 99, (batch, n), generator=generator)


def left_padded(rows: list) -> tuple[Any, Any]:
    """Rows (1, n) of several lengths -> tokens and attention mask (batch, longest)."""
    longest = max(row.shape[1] for row in rows)
    tokens = torch.full((len(rows), longest), 100)
    mask = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        tokens[index, longest - row.shape[1] :] = row
        mask[index, longest - row.shape[1] :] = 1
    return tokens, mask


def greedy(model: Any, tokens: Any, n: int, **options: Any) -> Any:
    """(batch, n) new tokens."""
    options.setdefault("attention_mask", torch.ones_like(tokens))
    output = model.generate(tokens, max_new_tokens=n, do_sample=False, **options)
    return output[:, tokens.shape[1] :]


def step_logits(model: Any, tokens: Any, n: int, mask: Any = None, cache: Any = None) -> Any:
    """Logits (n, batch, vocabulary) of n decode steps after a prefill of `tokens`; the same tokens always
    follow."""
    following = tokens_of(n, seed=77, batch=len(tokens))
    mask = torch.ones_like(tokens) if mask is None else mask
    logits = []
    with torch.no_grad():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = model(tokens, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True).cache
        for index in range(n):
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            output = model(
                following[:, index : index + 1],
                attention_mask=mask,
                position_ids=mask.sum(-1, keepdim=True) - 1,
                cache=cache,
                use_cache=True,
            )
            logits.append(output.logits[:, -1])
    return torch.stack(logits)


def tiny_tokenizer() -> Any:
    """Words w0..w98, one token each."""
    import tokenizers

    words = {f"w{index}": index for index in range(99)}
    words.update({"<bos>": 99, "<pad>": 100})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", unk_token="w0"
    )


def save_checkpoint(folder: Path, **changes: Any) -> Path:
    """`folder` with a random model and its tokenizer, and prompt.txt with a text of 60 words."""
    tiny_model(**changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "prompt.txt").write_text(" ".join(f"w{int(token)}" for token in tokens_of(60)[0]))
    return folder


class Oracle:
    """What an enabled model must compute, the slow way: the ordinary DynamicCache, and in each layer, for one
    new token, the reference over the real columns of each row by itself. Keys and values are rounded to
    float16 when they are used.

    Args:
        settings: of each layer: arguments of `exact.sparq_attention`, or None for dense.
        min_seq_len: rows with fewer positions are dense.
    """

    name = "sparq_ipu_test_oracle"

    def __init__(self, settings: list, min_seq_len: int = 0):
        self.settings = settings
        self.min_seq_len = min_seq_len

    def install(self, model: Any) -> Any:
        """The model, which attends so from now on."""
        sdpa = transformers.AttentionInterface()["sdpa"]
        mask = transformers.AttentionMaskInterface()["sdpa"]

        def always_a_mask(*args: Any, **kwargs: Any) -> Any:
            return mask(*args, **{**kwargs, "allow_is_causal_skip": False})

        def attention(module, query, key, value, attention_mask, **kwargs):
            key, value = key.to(torch.float16), value.to(torch.float16)
            n_tokens, shown = query.shape[2], attention_mask[:, 0].bool()
            real = shown.any(1)
            starts = (~real).sum(1)
            if n_tokens > 1 and torch.equal(real, torch.arange(real.shape[1]) >= starts[:, None]):
                arrays = (x.float().numpy() for x in (query, key, value))
                read = prompt.prompt_attention(
                    *arrays,
                    scale=kwargs["scaling"],
                    integers=query.dtype == torch.bfloat16,
                    starts=starts.numpy(),
                )
                return torch.from_numpy(read).to(query.dtype), None
            if n_tokens > 1:
                return sdpa(
                    module, query, key.to(query.dtype), value.to(query.dtype), attention_mask, **kwargs
                )
            rows = [
                self._row(module.layer_idx, b, query, key, value, attention_mask) for b in range(len(query))
            ]
            return torch.from_numpy(np.stack(rows)).to(query.dtype)[:, None], None

        transformers.AttentionInterface.register(self.name, attention)
        transformers.AttentionMaskInterface.register(self.name, always_a_mask)
        model.set_attn_implementation(self.name)
        return model

    def _row(self, layer: int, b: int, query: Any, key: Any, value: Any, mask: Any) -> np.ndarray:
        real = mask[b, 0, 0].bool()
        assert real.shape[0] == key.shape[2]
        q = query[b : b + 1, :, 0].to(torch.float16).numpy()
        k, v = key[b : b + 1, :, real].numpy(), value[b : b + 1, :, real].numpy()
        settings = self.settings[layer]
        if settings is None or k.shape[2] < self.min_seq_len:
            return exact.dense_attention(q, k, v)[0]
        return exact.sparq_attention(q, k, v, **settings)[0]
