# SPDX-License-Identifier: Apache-2.0
"""A key index of some components (rule E13 of docs/exactness.md): what the study chooses by the prompt, and
that the rest is what the reference computes of keys and queries that were put in that order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model

from sparq_reference import SparqSettings, component_order, exact, ideal
from sparq_study.accuracy import engine
from sparq_study.accuracy.methods import History, Span, SparQ, base, parse_method
from sparq_study.accuracy.methods.rows import as_held

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_hamlet.npz"
KV_HEADS, GROUP, DIM, STEPS = 3, 3, 64, 4
#: the last query completes a block; a block is complete from the second one on; one block is open throughout
LENGTHS = (768, 642, 200)
LAYERS = (2, 23)


def real(layer: int, name: str) -> np.ndarray:
    with np.load(REAL) as arrays:
        return arrays[f"{name}_{layer}"]


def prompt_queries(layer: int) -> np.ndarray:
    """(1, n_heads, 90, DIM) float16 about as large as the real ones, by component."""
    rng = np.random.default_rng(layer)
    size = np.abs(real(layer, "query").astype(np.float64)).mean(0)
    noise = rng.standard_normal((len(size), 90, DIM))
    return (noise * size[:, None])[None].astype(np.float16)


def weight_of(queries: np.ndarray) -> torch.Tensor:
    """History.query_weight of these, in plain words."""
    _, _, n, _ = queries.shape
    grouped = np.abs(queries[0].astype(np.float64)).reshape(KV_HEADS, GROUP, n, DIM)
    return torch.from_numpy(grouped.sum(1).mean(1))


def span_of(layer: int, seq_len: int) -> Span:
    """The four real queries as the last ones of `seq_len` positions, after a prompt of all before them."""
    names = ("query", "key", "value")
    query, key, value = (torch.from_numpy(real(layer, name).astype(np.float32)) for name in names)
    query = query.reshape(STEPS, KV_HEADS, GROUP, DIM).permute(1, 2, 0, 3)
    history = History(query_weight=weight_of(prompt_queries(layer)))
    return Span(query, key[:, :seq_len], value[:, :seq_len], layer, DIM**-0.5, history)


@pytest.mark.parametrize(("index_components", "rank"), [(32, 32), (48, 32), (64, 16), (24, 8)])
@pytest.mark.parametrize("index_bits", [16, 4, 2])
@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_it_is_the_reference_with_components_in_the_order_of_the_prompt(
    layer, seq_len, index_bits, index_components, rank
):
    settings = SparqSettings(rank, 64, 16)
    options = {"index_bits": index_bits, "index_components": index_components}
    method = SparQ.from_settings(**settings.arguments(), **options)
    span = span_of(layer, seq_len)
    used, scores = method.components(span), method.approx_scores(span)
    (selected, _), outputs = method.select(span), method.attend(span)

    prompt = real(layer, "key")[None, :, : span.first]
    order = component_order.by_prompt(prompt_queries(layer), prompt)
    for i in range(STEPS):
        length = span.first + i + 1
        query = component_order.reorder(real(layer, "query")[i : i + 1], order)
        key = component_order.reorder(real(layer, "key")[None, :, :length], order)
        value = real(layer, "value")[None, :, :length]
        steps = exact.sparq_steps(query, key, value, settings, **options)
        in_place = np.sort(np.take_along_axis(order, steps.components, -1), -1)
        for head in range(KV_HEADS):
            assert np.flatnonzero(used[head, i]).tolist() == in_place[0, head].tolist()
            positions = np.flatnonzero(selected[head, i].numpy())
            assert positions.tolist() == steps.positions[0, head].tolist()
        # Sums over components are in another order here.
        found = scores[:, :, i, :length].reshape(KV_HEADS * GROUP, length)
        np.testing.assert_allclose(found, steps.scores[0], atol=2e-5)
        found = outputs[:, :, i].reshape(KV_HEADS * GROUP, DIM)
        np.testing.assert_allclose(found, steps.output[0].astype(np.float32), atol=1e-5, rtol=2**-10)
        if index_bits == 16:  # with fewer bits it does not round the query, and may select others
            wanted = ideal.sparq_attention(query, key, value, **settings.arguments(), **options)[0]
            np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_choice_of_components_matters(layer):
    """Negative control of the test above: all components, and others, select other positions."""
    method = SparQ(rank=16, top_k=64, index_bits=2, index_components=24)
    span = span_of(layer, LENGTHS[0])
    selected = method.select(span)[0]
    assert not torch.equal(selected, dataclasses.replace(method, index_components=0).select(span)[0])
    other = dataclasses.replace(span, history=History(query_weight=1 / span.history.query_weight))
    assert not torch.equal(selected, method.select(other)[0])


@pytest.mark.parametrize("index_bits", [16, 2])
def test_all_components_are_as_none_named(index_bits):
    every, all_named = (SparQ(rank=16, top_k=64, index_bits=index_bits, index_components=n) for n in (0, DIM))
    span = span_of(2, LENGTHS[1])
    assert torch.equal(every.attend(span), all_named.attend(span))


def test_the_keys_that_follow_the_prompt_change_nothing(monkeypatch):
    """In a cache the order is settled when the prompt has been processed."""
    method = SparQ(rank=16, top_k=64, index_bits=4, index_components=24)
    span = span_of(23, LENGTHS[1])
    # The decoded keys would have other components.
    key = span.key.clone()
    key[:, span.first :] *= torch.linspace(-30, 30, DIM)
    span = dataclasses.replace(span, key=key)
    together = method.attend(span)
    late = dataclasses.replace(span, history=History(query_weight=span.history.query_weight))
    late = dataclasses.replace(late, query=span.query[:, :, 3:])
    assert not torch.equal(
        method.indexed(late), method.indexed(span)
    )  # with them in the prompt it is another
    history = History(query_weight=span.history.query_weight)
    for i in range(STEPS):
        end = span.first + i + 1
        one = Span(span.query[:, :, i : i + 1], key[:, :end], span.value[:, :end], 1, span.scale, history)
        torch.testing.assert_close(method.attend(one)[:, :, 0], together[:, :, i], rtol=0, atol=1e-5)
    monkeypatch.setattr(base, "_SCORES_IN_CACHE", 1)
    monkeypatch.setattr(base, "_LEAST_QUERIES", 1)
    fresh = dataclasses.replace(span, history=History(query_weight=history.query_weight))
    parts = fresh.parts()
    assert len(parts) == STEPS
    torch.testing.assert_close(torch.cat([method.attend(part) for part in parts], 2), together)


def test_components_are_chosen_by_the_keys_before_they_are_rounded():
    generator = torch.Generator().manual_seed(3)
    key = torch.randn(KV_HEADS, 200, DIM, generator=generator)
    key[..., 0] *= 50  # the others are rounded coarsely
    query = torch.randn(KV_HEADS, GROUP, 1, DIM, generator=generator)
    span = Span(query, key, key, 0, DIM**-0.5, History(query_weight=torch.ones(KV_HEADS, DIM).double()))
    method = SparQ(rank=16, top_k=64, rows="int8", index_components=32)
    method.attend(span)
    exactly, rounded = (
        SparQ(rank=16, index_components=32).indexed(
            dataclasses.replace(span, key=k, history=History(query_weight=span.history.query_weight))
        )
        for k in (key, as_held(key))
    )
    assert torch.equal(span.history.indexed, exactly)
    assert not torch.equal(exactly, rounded)


class _Queries(engine._Plain):
    """Dense attention that keeps the queries."""

    def __init__(self):
        super().__init__(None)
        self.queries = {}

    def attend(self, layer, query, key, value, scale):
        self.queries[layer] = query.clone()
        return super().attend(layer, query, key, value, scale)


TOKENS = np.random.default_rng(5).integers(0, 6000, 90).tolist()


@pytest.fixture(scope="module")
def evaluator():
    return engine.Evaluator(tiny_model())


def wanted_weights(evaluator, tokens, n):
    run = _Queries()
    with torch.inference_mode():
        evaluator._forward(tokens, 0, run, logits_to_keep=1)
    return {layer: query[:, :, -n:].abs().double().mean(2).sum(1) for layer, query in run.queries.items()}


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("pieces", [[90], [10, 80], [70, 20], [50, 8, 12, 20], [89, 1]])
@pytest.mark.parametrize("last", [30, 90, 512])
def test_the_last_queries_of_a_prompt_are_recorded(evaluator, monkeypatch, last, pieces, record):
    """However the prompt is cut, with a record of weights and without; fewer than `last` if it is shorter."""
    monkeypatch.setattr(engine, "LAST_QUERIES", last)
    prefix, start = None, 0
    for piece in pieces:
        prefix = evaluator.prefill(TOKENS[start : start + piece], prefix, record=record)
        start += piece
    histories = evaluator._histories(prefix.layers)
    for layer, wanted in wanted_weights(evaluator, TOKENS, last).items():
        torch.testing.assert_close(histories[layer].query_weight, wanted, rtol=1e-3, atol=1e-4)
        if last == 30:  # negative control: all queries are another weight
            other = wanted_weights(evaluator, TOKENS, 90)[layer]
            assert (wanted - other).abs().max() > 0.05


def test_as_many_queries_as_the_documents_say():
    assert engine.LAST_QUERIES == 512


TEXTS = ["sparq:r=8,k=24,components=8", "sparq:r=4,k=24,mean_from=1,index_bits=2,components=8"]


@pytest.mark.parametrize("text", TEXTS)
def test_spans_choose_by_the_prompt_alone(evaluator, monkeypatch, text):
    """A span, and token by token: with the weights of the prompt, whose keys are those before the span."""
    seen = []
    order = component_order.by_prompt
    monkeypatch.setattr(
        component_order, "by_prompt", lambda q, k: seen.append((q.copy(), k.copy())) or order(q, k)
    )
    method = parse_method(text)
    context, tokens = TOKENS[:80], TOKENS[80:]
    prefix = evaluator.prefill(context, record=False)
    one = evaluator.span(prefix, tokens, method)
    at_once, seen[:] = list(seen), []
    other = evaluator.decode(context, tokens, method)
    n_layers = evaluator.model.config.num_hidden_layers
    assert len(seen) == len(at_once) == n_layers  # once a layer
    wanted = wanted_weights(evaluator, context, 512)
    for layer in range(n_layers):
        for query, key in (at_once[layer], seen[layer]):
            np.testing.assert_allclose(query[0, :, 0], wanted[layer], rtol=1e-3, atol=1e-4)
            keys = torch.cat(prefix.layers[layer].keys, 1)
            np.testing.assert_allclose(key[0], keys, rtol=1e-3, atol=1e-4)
    error = (torch.log_softmax(one, -1) - torch.log_softmax(other, -1)).abs()
    assert error.median() < 2e-3
    plain = evaluator.span(prefix, tokens, dataclasses.replace(method, index_components=0))
    assert (one - plain).abs().max() > 0.1


def test_no_bytes_are_saved_and_texts_stay_as_they_were():
    """It is memory that is saved: as many components are read."""
    text = "sparq:k=256,mean_from=1,index_bits=2"
    method, half = parse_method(text), parse_method(f"{text},components=32")
    assert str(method) == text and str(half) == f"{text},components=32"
    for seq_len in (100, 3584, 16000):
        assert half.transfer(seq_len, DIM) == method.transfer(seq_len, DIM)
    settings = {"rank": 32, "top_k": 256, "n_local": 64, "index_bits": 2, "index_components": 32}
    first_without_mean = {0: {"mean_value": False}}
    assert SparQ.from_settings(**settings, layers=first_without_mean) == half


REFUSED = "index_components must be 0, as the query does not choose among components of a key index, got 32"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparq:components=-8", r"sparq: index_components must be in \[0, 16777216\], got -8"),
        ("sparq:r=8,components=12", "sparq: index_components must be a multiple of 8, got 12"),
        ("sparq:components=24", r"sparq: rank must be in \[1, index_components=24\], got 32"),
        *(
            (f"{name}:components=32", f"{name}: {REFUSED}")
            for name in ("oracle", "low_rank", "double_sparsity")
        ),
    ],
)
def test_errors_of_parameters(text, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_method(text)


def test_errors_of_inputs():
    span = span_of(2, 200)
    with pytest.raises(ValueError, match=r"^sparq: index_components must be in \[0, head_dim=64\], got 72$"):
        SparQ(index_components=72).attend(span)
    bare = dataclasses.replace(span, history=History())
    wanted = r"^sparq: history.query_weight must be recorded by the prefill, got None$"
    with pytest.raises(ValueError, match=wanted):
        SparQ(index_components=32).attend(bare)
    SparQ().attend(bare)  # negative control: nothing is needed without components
