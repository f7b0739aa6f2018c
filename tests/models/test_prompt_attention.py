# SPDX-License-Identifier: Apache-2.0
"""A prompt is read by the contract's own attention (E14) where that is as accurate as the model's, and by the
model's attention elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import enable, tiny_model, tokens_of  # noqa: E402

from sparq_ipu import transformers as sparq  # noqa: E402
from sparq_ipu.torch import prompt as of_tensors  # noqa: E402
from sparq_ipu.transformers.cache_name import with_cache  # noqa: E402
from sparq_reference import prompt as reference  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_give_the_bits_of_the_reference(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, n, heads, 32, generator=generator).to(dtype).transpose(1, 2)
        for n, heads in ((50, 4), (90, 2), (90, 2))
    )
    got = of_tensors.prompt_attention(query, key, value)
    exact = reference.prompt_attention(*(x.float().numpy() for x in (query, key, value)))
    assert got.dtype == dtype
    assert torch.equal(got, torch.from_numpy(exact).to(dtype))
    assert np.abs(exact).max() > 0.1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(n, seq_len) of each call of prompt attention."""
    seen: list[tuple[int, int]] = []
    original = of_tensors.prompt_attention

    def counted(query: Any, key: Any, *arguments: Any) -> Any:
        seen.append((query.shape[2], key.shape[2]))
        return original(query, key, *arguments)

    monkeypatch.setattr(of_tensors, "prompt_attention", counted)
    return seen


def enabled(dtype: Any = torch.bfloat16, **changes: Any) -> Any:
    model = tiny_model(**changes).to(dtype)
    enable(model, rank=8, top_k=8)
    return model


def prefill(model: Any, *pieces: Any, mask: Any = None) -> Any:
    cache = sparq.SparqCache(model.config)
    for tokens in pieces:
        logits = model(tokens, attention_mask=mask, **with_cache(cache)).logits
    return logits[0, -1].float()


def test_a_prompt_is_read_by_it_in_pieces_too(calls: list[tuple[int, int]]) -> None:
    model, tokens = enabled(), tokens_of(60)
    whole = prefill(model, tokens)
    assert calls == [(60, 60)] * 3
    calls.clear()
    pieces = prefill(model, tokens[:, :40], tokens[:, 40:])
    assert calls == [(40, 40)] * 3 + [(20, 60)] * 3
    assert (pieces - whole).abs().max() < 0.1 * whole.abs().max()


def test_it_is_near_the_models_own_attention(calls: list[tuple[int, int]]) -> None:
    tokens = tokens_of(200)
    exact = tiny_model()(tokens).logits[0, -1]
    own = tiny_model().to(torch.bfloat16)(tokens).logits[0, -1].float()
    ours = prefill(enabled(), tokens)
    assert calls and (ours - exact).norm() < 1.5 * (own - exact).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_keep_their_accuracy(dtype: Any, calls: list[tuple[int, int]]) -> None:
    prefill(enabled(dtype), tokens_of(60))
    assert calls == []


@pytest.mark.parametrize("kind", ["padding", "window", "gradient"])
def test_what_is_not_causal_or_not_asked_for_is_the_models_own(
    kind: str, calls: list[tuple[int, int]]
) -> None:
    model = enabled(**(dict(kind="Mistral", sliding_window=8) if kind == "window" else {}))
    tokens, mask = tokens_of(20), None
    if kind == "padding":
        mask = torch.ones(1, 20, dtype=torch.long)
        mask[0, :3] = 0
    elif kind == "gradient":
        model.requires_grad_(True)
        model(tokens)
    if kind != "gradient":
        prefill(model, tokens, mask=mask)
    assert calls == []
