# SPDX-License-Identifier: Apache-2.0
"""The evaluator against the model's own attention, true decoding, and oracles in the place of each method."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import method_oracles as oracles
import numpy as np
import pytest
import torch
from tiny import tiny_model

from sparq_study.accuracy.engine import Evaluator
from sparq_study.accuracy.methods import METHODS, Method, parse_method

CONTEXT, STEPS = 90, 10
TOKENS = np.random.default_rng(0).integers(0, 6000, CONTEXT + STEPS).tolist()


@pytest.fixture(scope="module")
def evaluator():
    evaluator = Evaluator(tiny_model())
    evaluator.calibrate(np.random.default_rng(1).integers(0, 6000, 80).tolist())
    return evaluator


def log_probs(logits: torch.Tensor) -> np.ndarray:
    return torch.log_softmax(logits, -1).numpy()


def test_dense_is_the_models_own_attention(evaluator):
    reference = tiny_model()
    expected = log_probs(reference(torch.tensor([TOKENS])).logits[0])[CONTEXT:]
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    actual = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], parse_method("dense")))
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    wrong = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], parse_method("local:k=16")))
    assert np.abs(wrong - expected).max() > 1


METHOD_TEXTS = [
    "dense",
    "sparq:r=4,k=24",
    "sparq:r=4,k=24,mean_from=1",
    "sparq:r=4,k=24,mean_from=-1",
    "sparq:r=4,k=24,tau=sqrt_d",
    "sparq:r=4,k=24,tau=sqrt_r",
    "sparq:r=4,k=24,tau=none",
    "sparq:r=4,k=24,index_bits=4",
    "sparq:r=4,k=24,index_bits=8",
    "sparq:r=4,k=24,components=8",
    "oracle:k=24",
    "oracle:k=24,mean_from=1",
    "low_rank:r=4,k=24",
    "low_rank:r=4,k=24,mean_from=1",
    "flexgen:k=24",
    "h2o:k=24",
    "lm_infinite:k=24",
    "alisa:k=24",
    "local:k=24",
    "strided:k=24",
    "quest:k=24,page=4",
    "double_sparsity:r=4,k=24",
]


def test_every_method_is_checked_against_decoding():
    assert {text.split(":")[0] for text in METHOD_TEXTS} == set(METHODS)


@pytest.mark.parametrize("text", METHOD_TEXTS)
def test_all_queries_at_once_equal_step_by_step_decoding(evaluator, text):
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    together = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], parse_method(text)))
    stepped = log_probs(evaluator.decode(TOKENS[:CONTEXT], TOKENS[CONTEXT:], parse_method(text)))
    np.testing.assert_allclose(together, stepped, atol=2e-3)


@pytest.mark.parametrize("text", METHOD_TEXTS)
@pytest.mark.parametrize("bits", [4, 8])
def test_kv_bits_agree_with_decoding_up_to_one_rounding(evaluator, text, bits):
    """A difference of 1e-6 before rounding may become one step of the code: looser, but far from no rounding
    at all. (That the method itself is the same step by step is exact: see test_accuracy_methods.py.)"""
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    plain = parse_method(text)
    coarse = dataclasses.replace(plain, kv_bits=bits)
    together = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], coarse))
    stepped = log_probs(evaluator.decode(TOKENS[:CONTEXT], TOKENS[CONTEXT:], coarse))
    exact = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], plain))
    assert np.abs(together - stepped).mean() < 0.2 * np.abs(together - exact).mean()


@pytest.mark.parametrize("bits", [4, 8])
def test_index_bits_agree_with_decoding_up_to_one_rounding(evaluator, bits):
    """The same of the key index: a coefficient or a code may be the next one."""
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    plain = parse_method("sparq:r=8,k=24")
    coarse = dataclasses.replace(plain, index_bits=bits)
    together = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], coarse))
    stepped = log_probs(evaluator.decode(TOKENS[:CONTEXT], TOKENS[CONTEXT:], coarse))
    exact = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], plain))
    assert np.abs(together - stepped).mean() < 0.2 * np.abs(together - exact).mean()


@dataclasses.dataclass(frozen=True)
class OracleMethod(Method):
    """SparQ by the loop oracle, as a method: the model is decoded with nothing of the tested code but the
    evaluator."""

    name: ClassVar[str] = "oracle_method"
    rank: int = dataclasses.field(default=4, metadata={"short": "r"})

    def _attend(self, span):
        out = torch.zeros_like(span.query)
        for head in range(span.key.shape[0]):
            for i in range(span.n_queries):
                seen = span.first + i + 1
                arrays = (span.query[head, :, i], span.key[head, :seen], span.value[head, :seen])
                arrays = [array.double().numpy() for array in arrays]
                out[head, :, i] = torch.tensor(oracles.sparq(*arrays, rank=self.rank, top_k=24, n_local=6))
        return out


def test_model_decoded_by_an_oracle_gives_the_same_predictions(evaluator):
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    actual = log_probs(evaluator.span(prefix, TOKENS[CONTEXT:], parse_method("sparq:r=4,k=24")))
    decoded = log_probs(evaluator.decode(TOKENS[:CONTEXT], TOKENS[CONTEXT:], OracleMethod()))
    np.testing.assert_allclose(actual, decoded, atol=2e-3)
    other = log_probs(evaluator.decode(TOKENS[:CONTEXT], TOKENS[CONTEXT:], OracleMethod(rank=5)))
    assert np.abs(actual - other).max() > 0.1


@pytest.mark.parametrize("length", [50, CONTEXT - 10])  # fewer tokens follow than rows are kept of
def test_prefill_in_parts_equals_prefill_at_once(evaluator, length):
    whole = evaluator.prefill(TOKENS[:CONTEXT])
    first = evaluator.prefill(TOKENS[:length])
    parts = evaluator.prefill(TOKENS[length:CONTEXT], first)
    assert first.length == length and parts.length == CONTEXT
    assert evaluator.prefill([], parts) is parts
    for layer, cache in whole.layers.items():
        other = parts.layers[layer]
        for name in ("weight_sum", "recent_weights"):
            torch.testing.assert_close(getattr(cache, name), getattr(other, name), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(torch.cat(cache.keys, 1), torch.cat(other.keys, 1), rtol=1e-3, atol=1e-4)


def test_prefill_records_what_stateful_methods_start_from(evaluator):
    layer = evaluator.prefill(TOKENS[:40]).layers[0]
    config = evaluator.model.config
    weight = layer.weight_sum
    # every query hands out weight 1 per query head of the group
    assert weight.sum(1).numpy() == pytest.approx([40 * config.num_attention_heads / 2] * 2, rel=1e-4)
    assert layer.recent_weights.shape == (2, 32, 40)
    assert layer.recent_weights[:, 0, 9:].abs().max() == 0  # the row of position 8 sees 0..8
    torch.testing.assert_close(layer.recent_weights.sum(-1), torch.full((2, 32), 2.0))


def test_spans_do_not_disturb_each_other(evaluator):
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    for text in ("h2o:k=24", "alisa:k=24", "dense:kv_bits=8"):
        first = evaluator.span(prefix, TOKENS[CONTEXT:], parse_method(text))
        again = evaluator.span(prefix, TOKENS[CONTEXT:], parse_method(text))
        assert torch.equal(first, again)


def test_errors(evaluator):
    prefix = evaluator.prefill(TOKENS[:CONTEXT])
    with pytest.raises(ValueError, match=r"^accuracy: n_recent must be at most 32, got 33$"):
        evaluator.span(prefix, TOKENS[CONTEXT:], parse_method("alisa:n_recent=33"))
    with pytest.raises(ValueError, match=r"^accuracy: tokens must not be empty without a prefix, got 0$"):
        evaluator.prefill([])
    message = r"^accuracy: sparq_ipu_accuracy must be called by Evaluator with batch 1, got batch 1$"
    with pytest.raises(ValueError, match=message):
        evaluator.model(torch.tensor([TOKENS]))
    with pytest.raises(ValueError, match=r"^accuracy: model dtype must be float32, got torch.float16$"):
        Evaluator(tiny_model().half())
    message = r"^accuracy: sliding_window must be absent from the model's attention, got 8$"
    with pytest.raises(ValueError, match=message):
        evaluator.model(torch.tensor([TOKENS]), sliding_window=8)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("sparq:r=8,k=24", {}),
        ("sparq:r=8,k=24,l=3", {"n_local": 3}),
        ("sparq:r=8,k=24,mean_from=1", {"layers": {0: {"mean_value": False}}}),
        ("sparq:r=8,k=24,mean_from=-1", {"mean_value": False}),
        ("sparq:r=8,k=24,index_bits=8", {"index_bits": 8}),
        ("sparq:r=8,k=24,index_bits=4", {"index_bits": 4}),
    ],
)
def test_sparq_agrees_with_the_transformers_integration(evaluator, text, settings):
    """Same method, other code: fp16 cache, exact arithmetic, real decoding. fp16 rounding is what may
    differ."""
    integration = pytest.importorskip("sparq_ipu.transformers")
    model = tiny_model()
    context, tokens = TOKENS[:CONTEXT], TOKENS[CONTEXT:]
    expected = log_probs(evaluator.span(evaluator.prefill(context), tokens, parse_method(text)))
    integration.enable(model, published=True, **{"rank": 8, "top_k": 24, "n_local": 6, **settings})
    try:
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            # the model is prefilled and decoded through whatever cache `enable` makes of this one
            output = model(torch.tensor([context]), cache=cache, use_cache=True)
            rows = []
            for token in tokens:
                output = model(torch.tensor([[token]]), cache=output.cache, use_cache=True)
                rows.append(output.logits[0])
    finally:
        integration.disable(model)
    actual = log_probs(torch.cat(rows))
    different = log_probs(evaluator.span(evaluator.prefill(context), tokens, parse_method("sparq:r=7,k=24")))
    error = np.abs(actual - expected)
    # rounding may swap a position at the edge of the selection, hence the median; another rank is another
    # method
    assert np.median(error) < 0.1 * np.median(np.abs(different - expected))


@pytest.mark.parametrize("start", [0, 23])
def test_a_prefill_without_a_record_is_the_same(evaluator, start):
    """Keys and values of every layer, at once and after a prefix; the weights are left out."""
    tokens = list(range(100, 140))
    recorded = plain = None
    if start:
        recorded, plain = evaluator.prefill(tokens[:start]), evaluator.prefill(tokens[:start], record=False)
    recorded = evaluator.prefill(tokens[start:], recorded)
    plain = evaluator.prefill(tokens[start:], plain, record=False)
    assert recorded.length == plain.length == 40
    for layer, cache in recorded.layers.items():
        other = plain.layers[layer]
        assert other.weight_sum is None and other.recent_weights is None
        for name in ("keys", "values"):
            pieces = torch.cat(getattr(cache, name), 1), torch.cat(getattr(other, name), 1)
            torch.testing.assert_close(*pieces, atol=1e-4, rtol=1e-4)
    sparse = parse_method("sparq:r=4,k=8")
    spans = [evaluator.span(prefix, [7, 8, 9], sparse) for prefix in (recorded, plain)]
    torch.testing.assert_close(*spans, atol=2e-3, rtol=0)
    for name in ("h2o:k=8", "alisa:k=8"):
        assert parse_method(name).needs_history
        with pytest.raises(ValueError, match="must be recorded by the prefill"):
            evaluator.span(plain, [7], parse_method(name))


def test_a_prefill_in_bfloat16_is_near_and_what_follows_is_float32():
    """Keys are near those of float32, not equal; a prefill that is recorded stays in float32."""
    exact, short = Evaluator(tiny_model()), Evaluator(tiny_model(), prefill_bits=16)
    context, tokens = TOKENS[:CONTEXT], TOKENS[CONTEXT:]
    expected, actual = exact.prefill(context, record=False), short.prefill(context, record=False)
    for layer in actual.layers:
        for name in ("keys", "values"):
            pieces = (torch.cat(getattr(of.layers[layer], name), 1) for of in (actual, expected))
            one, other = pieces
            assert one.dtype == torch.float32
            error = (one - other).norm() / other.norm()
            # Two layers of random weights attend sharply, so the second has larger errors.
            assert 1e-4 < error < (0.01 if layer == 0 else 0.1)
    recorded = short.prefill(context)
    torch.testing.assert_close(
        torch.cat(recorded.layers[0].keys, 1), torch.cat(expected.layers[0].keys, 1), rtol=1e-4, atol=1e-5
    )
    dense = parse_method("dense")
    torch.testing.assert_close(short.span(expected, tokens, dense), exact.span(expected, tokens, dense))
    continued = short.prefill(tokens[:4], actual, record=False)
    assert continued.length == CONTEXT + 4
