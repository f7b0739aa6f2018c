# SPDX-License-Identifier: Apache-2.0
"""A prompt is read by the contract's own attention (E14), in every type, with padding and windows; gradients
are the model's own attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import noted
from lean_steps import skip_trials
from tiny_models import enable, of_even_attention, tiny_model, tokens_of, torch

from sparq_ipu import KVCache
from sparq_ipu import transformers as sparq
from sparq_ipu.serve.contexts import Contexts
from sparq_ipu.serve.places import Places
from sparq_ipu.torch import prompt as of_tensors
from sparq_ipu.transformers.decoder.step_layer import StepLayer
from sparq_reference import prompt as reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_give_the_bits_of_the_reference(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, n, heads, 32, generator=generator).to(dtype).transpose(1, 2)
        for n, heads in ((50, 4), (90, 2), (90, 2))
    )
    got = of_tensors.prompt_attention(query, key, value)
    arrays = (x.float().numpy() for x in (query, key, value))
    exact = reference.prompt_attention(*arrays, integers=dtype == torch.bfloat16)
    assert got.dtype == dtype
    assert torch.equal(got, torch.from_numpy(exact).to(dtype))
    assert np.abs(exact).max() > 0.1


@pytest.mark.parametrize("position", [5, 63, 80])
def test_what_is_no_number_shows(position: int) -> None:
    """A row that sees it is none, the others are as without it."""
    query, key, value = (torch.ones(1, 1, 150, 16) for _ in range(3))
    expected = of_tensors.prompt_attention(query, key, value)
    key[:, :, position, 3] = torch.nan
    got = of_tensors.prompt_attention(query, key, value)
    assert torch.equal(got[:, :position], expected[:, :position])
    assert got[:, position:].isnan().all()


@pytest.mark.parametrize("blocks", [2.0, -0.1])
def test_a_share_that_is_none_is_refused(blocks: float) -> None:
    x = torch.ones(1, 1, 4, 16)
    with pytest.raises(ValueError, match=r"^prompt_attention: blocks must be 0 or in .*, got "):
        of_tensors.prompt_attention(x, x, x, blocks=blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 70])
def test_texts_of_a_cache_side_by_side_in_one_call(dtype: Any, window: int) -> None:
    """Each has the bits that its keys and values give as tensors."""
    generator = torch.Generator().manual_seed(0)
    lengths, counts, heads = [200, 1, 64, 130], [64, 1, 64, 3], (6, 2)
    cache = KVCache(len(lengths), heads[1], 32, 256)
    key, value = (torch.randn(4, heads[1], 200, 32, generator=generator).to(dtype) for _ in range(2))
    cache.append(*(x.to(torch.float16).numpy() for x in (key, value)), np.array(lengths))
    query = torch.randn(1, 150, heads[0], 32, generator=generator).to(dtype).transpose(1, 2)
    tokens = list(zip((8, 0, 86, 2), counts))
    got = of_tensors.attend_cache(query, cache, tokens, 0.3, window)
    inside = torch.zeros(150, dtype=torch.bool)
    for row, (length, (first, n)) in enumerate(zip(lengths, tokens)):
        rows = slice(first, first + n)
        held = (x[row : row + 1, :, :length].to(torch.float16).to(dtype) for x in (key, value))
        alone = of_tensors.prompt_attention(query[:, :, rows], *held, 0.3, window)
        assert torch.equal(got[:, rows], alone), row
        inside[rows] = True
    assert not got[:, ~inside].any() and not inside.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "window"), [(24, 0), (64, 70), (128, 0)])
def test_rows_of_8_bits_are_those_that_a_cache_reads_back(dtype: Any, head_dim: int, window: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    caches = [KVCache(1, 2, head_dim, 256, device="cpu", row_bits=bits) for bits in (8, 16)]
    rows = torch.randn(2, 1, 2, 200, head_dim, generator=generator).to(torch.float16).numpy()
    caches[0].append(*rows)
    caches[1].append(*caches[0].read())
    query = torch.randn(1, 4, 90, head_dim, generator=generator).to(dtype)
    got, expected = (of_tensors.attend_cache(query, cache, [(0, 90)], 0.3, window) for cache in caches)
    assert torch.equal(got, expected)
    caches[1].reset()
    caches[1].append(*rows)
    assert not torch.equal(got, of_tensors.attend_cache(query, caches[1], [(0, 90)], 0.3, window))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(n, seq_len) of each call of prompt attention."""

    def sizes(output: Any, query: Any, cache: Any, *arguments: Any) -> tuple[int, int]:
        return query.shape[2], int(cache.lengths.max())

    skip_trials(monkeypatch)
    return noted(monkeypatch, of_tensors, "attend_cache", sizes)


def enabled(dtype: Any = torch.bfloat16, **changes: Any) -> Any:
    model = tiny_model(**changes).to(dtype)
    enable(model, rank=8, top_k=8)
    return model


def prefill(model: Any, *pieces: Any, mask: Any = None) -> Any:
    cache = sparq.SparqCache(model.config)
    for tokens in pieces:
        logits = model(tokens, attention_mask=mask, cache=cache).logits
    return logits[0, -1].float()


def test_a_prompt_is_read_by_it_in_pieces_too(calls: list[tuple[int, int]]) -> None:
    model, tokens = enabled(), tokens_of(60)
    whole = prefill(model, tokens)
    assert calls == [(60, 60)] * 3
    calls.clear()
    pieces = prefill(model, tokens[:, :40], tokens[:, 40:])
    assert calls == [(40, 40)] * 3 + [(20, 60)] * 3
    assert (pieces - whole).abs().max() < 0.1 * whole.abs().max()


def test_blocks_are_left_out_in_every_kind_of_pass(
    calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transformers' pass, by the lean one and by the server's places, whole and in pieces."""
    monkeypatch.setattr(StepLayer, "prompt_blocks_from", 200)
    tokens = tokens_of(20).repeat_interleave(64, 1)[:, :1200]  # keys that differ from block to block
    found = []
    for lean, blocks in ((True, 0.0), (True, 0.3), (False, 0.3)):
        model = tiny_model(max_position_embeddings=2048)
        sparq.enable_dense(model, prompt_blocks=blocks, lean=lean)
        found.append(prefill(model, tokens))
        pieces = prefill(model, tokens[:, :130], tokens[:, 130:300], tokens[:, 300:])
        assert (pieces - found[-1]).abs().max() < 1e-3 * found[-1].abs().max()  # products are PyTorch's
    assert (found[1] - found[0]).abs().max() > 1e-3 * found[0].abs().max()
    assert torch.allclose(found[1], found[2], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        cache = Places([None] * 3, 2, 2048, dict(device="cpu", n_threads=1), 0.3).tokens([1], [(0, 1200)])
        served = model(tokens, position_ids=torch.arange(1200)[None], cache=cache).logits[0, -1]
    assert torch.allclose(served, found[2], rtol=1e-4, atol=1e-5)


def test_a_long_prompt_leaves_out_blocks_by_default() -> None:
    """From the 2,049th token on; in any pieces, from `generate` and from the server, with the same bits."""
    shape = dict(hidden_size=192, intermediate_size=512, vocab_size=1008, max_position_embeddings=8192)
    model = of_even_attention(tiny_model(**shape)).bfloat16()
    tokens = tokens_of(68).repeat_interleave(64, 1)[:, :2300]  # keys that differ from block to block

    def logits(*pieces: int, **options: Any) -> Any:
        sparq.enable(model, rank=8, top_k=8, weights="int4", **options)
        cache = sparq.SparqCache(model)
        return torch.cat([model(x, cache=cache).logits[0] for x in tokens.split(pieces, 1)])

    default = logits(2300)
    assert torch.equal(logits(100, 1942, 7, 251), default)
    off = logits(2300, prompt_blocks=0.0)
    is_same = (default == off).all(dim=-1)
    assert is_same[:2048].all() and not is_same[2048:].any()
    sparq.enable_dense(model)
    assert torch.equal(model(tokens).logits[0], off)
    sparq.enable(model, rank=8, top_k=8)
    contexts, edges = Contexts(model, 1, 2300), (0, 1024, 2047, 2100, 2300)
    for begin, end in zip(edges, edges[1:]):
        served = contexts.read([0], [tokens[0, begin:end].tolist()], [begin])
    contexts.close()
    assert torch.equal(served[0], default[-1])


def test_it_is_near_the_models_own_attention(calls: list[tuple[int, int]]) -> None:
    tokens = tokens_of(200)
    exact = tiny_model()(tokens).logits[0, -1]
    own = tiny_model().to(torch.bfloat16)(tokens).logits[0, -1].float()
    ours = prefill(enabled(), tokens)
    assert calls and (ours - exact).norm() < 1.5 * (own - exact).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_keep_their_accuracy(dtype: Any, calls: list[tuple[int, int]]) -> None:
    prefill(enabled(dtype), tokens_of(60))
    assert calls == [(60, 60)] * 3
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, heads, 500, 64, generator=generator).to(dtype) for heads in (4, 2, 2)]
    ideal = reference.ideal_prompt_attention(*(x.float().numpy() for x in tensors))
    ours = of_tensors.prompt_attention(*tensors)
    key, value = (x.repeat_interleave(2, 1) for x in tensors[1:])
    own = torch.nn.functional.scaled_dot_product_attention(tensors[0], key, value, is_causal=True)
    errors = [np.linalg.norm(x.double().numpy() - ideal) for x in (ours, own.transpose(1, 2))]
    assert 0 < errors[0] < 1.05 * errors[1]


@pytest.mark.parametrize(("window", "padding"), [(None, 3), (8, 0), (8, 3)])
def test_padding_and_windows_are_those_of_pytorchs_attention(
    window: int | None, padding: int, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = enabled(torch.float32, **(dict(kind="Mistral", sliding_window=window) if window else {}))
    tokens, mask = tokens_of(40), torch.ones(1, 40, dtype=torch.long)
    mask[0, :padding] = 0
    ours = prefill(model, tokens, mask=mask)
    assert calls == [(40, 40 - padding)] * 3
    monkeypatch.setattr(of_tensors, "takes", lambda *tensors: False)
    own = prefill(model, tokens, mask=mask)
    # a difference of float32 turns a few roundings of later keys to float16
    assert (ours - own).norm() < 1e-3 * own.norm()
    causal = prefill(enabled(torch.float32, **(dict(kind="Mistral") if window else {})), tokens)
    assert (causal - own).norm() > 0.05 * own.norm()


def test_a_cache_on_another_device_has_the_same_bits(calls: list[tuple[int, int]]) -> None:
    tokens, mask = tokens_of(40), torch.ones(1, 40, dtype=torch.long)
    mask[0, :3] = 0
    model = enabled()
    here = prefill(model, tokens, mask=mask)
    calls.clear()
    cache = sparq.SparqCache(model.config, device="reference")
    logits = model(tokens, attention_mask=mask, cache=cache).logits
    assert torch.equal(logits[0, -1].float(), here) and calls == []


@pytest.mark.parametrize("kind", ["padding behind", "gradient"])
def test_what_is_not_causal_or_wants_gradients_is_the_models_own(
    kind: str, calls: list[tuple[int, int]]
) -> None:
    model, tokens = enabled(), tokens_of(20)
    if kind == "gradient":
        model.requires_grad_(True)
        model(tokens)
    else:
        mask = torch.ones(1, 20, dtype=torch.long)
        mask[0, -3:] = 0
        prefill(model, tokens, mask=mask)
    assert calls == []
