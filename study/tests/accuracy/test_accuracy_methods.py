# SPDX-License-Identifier: Apache-2.0
"""Each method against its loop oracle, its transfer formula, its text form and its errors."""

from __future__ import annotations

import dataclasses
import math

import method_oracles as oracles
import numpy as np
import pytest
import torch

from sparq_reference import transfers
from sparq_study.accuracy import methods
from sparq_study.accuracy.methods import Calibration, History, Span, SparQ, parse_method
from sparq_study.accuracy.plan import DEFAULT_METHODS

HEADS, GROUP, DIM, SEQ, STEPS = 2, 3, 8, 198, 12  # the chunk 128..191 fills during the span
FIRST = SEQ - STEPS


_DRAWN = torch.Generator().manual_seed(9)
#: some channels count more than others, by head, of keys and of queries
CALIBRATION = Calibration(
    torch.randn(HEADS, 150, DIM, generator=_DRAWN) * torch.rand(HEADS, 1, DIM, generator=_DRAWN),
    torch.randn(HEADS, GROUP, 10, DIM, generator=_DRAWN) * torch.rand(HEADS, 1, 1, DIM, generator=_DRAWN),
)


def make_span(seed: int = 0, layer: int = 0) -> Span:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    query, key, value = draw(HEADS, GROUP, SEQ, DIM) * 2, draw(HEADS, SEQ, DIM), draw(HEADS, SEQ, DIM) + 0.5
    full = Span(query[:, :, :FIRST], key[:, :FIRST], value[:, :FIRST], layer, DIM**-0.5)
    weights = torch.softmax(full.scores(), -1).sum(1)
    history = History(weights.sum(1), weights[:, -32:])
    return Span(query[:, :, FIRST:], key, value, layer, DIM**-0.5, history, CALIBRATION), query


def by_steps(span: Span, step) -> np.ndarray:
    """Run a stateless oracle on every KV head and query."""
    out = np.zeros((HEADS, GROUP, STEPS, DIM))
    for head in range(HEADS):
        for i in range(STEPS):
            seen = FIRST + i + 1
            arrays = (span.query[head, :, i], span.key[head, :seen], span.value[head, :seen])
            out[head, :, i] = step(*[array.double().numpy() for array in arrays], head=head)
    return out


def without_head(oracle, **options):
    return lambda query, key, value, head: oracle(query, key, value, **options)


def low_rank(method, **options):
    def step(query, key, value, head):
        projection = method.projection(0, HEADS, DIM)[head].double().numpy()
        scores = (query @ projection) @ (key @ projection).T * DIM / method.rank / math.sqrt(DIM)
        return oracles.sparq(query, key, value, rank=DIM, top_k=20, n_local=5, scores=scores, **options)

    return step


def calibrated(choose):
    """SparQ without the mean value over channels that `choose` takes from a head's calibration."""
    arrays = (CALIBRATION.query.double().numpy(), CALIBRATION.key.double().numpy())
    components = [choose(queries, keys) for queries, keys in zip(*arrays)]

    def step(query, key, value, head, **options):
        return oracles.sparq(
            query, key, value, mean_value=False, components=components[head], **SPARQ, **options
        )

    return step


SPARQ = {"rank": 4, "top_k": 20, "n_local": 5}
IMPORTANT = calibrated(lambda queries, keys: oracles.important(queries, keys, 4))
STATELESS = {
    "dense": without_head(oracles.dense),
    "sparq:r=4,k=20": without_head(oracles.sparq, **SPARQ),
    "sparq:r=4,k=20,l=0": without_head(oracles.sparq, rank=4, top_k=20, n_local=0),
    "sparq:r=4,k=20,l=20": without_head(oracles.sparq, rank=4, top_k=20, n_local=20),
    "sparq:r=8,k=1": without_head(oracles.sparq, rank=8, top_k=1, n_local=0),
    "sparq:r=4,k=20,mean_from=-1": without_head(oracles.sparq, mean_value=False, **SPARQ),
    "sparq:r=4,k=20,mean_from=1": without_head(oracles.sparq, mean_value=False, **SPARQ),
    "sparq:r=4,k=20,tau=sqrt_d": without_head(oracles.sparq, temperature="sqrt_d", **SPARQ),
    "sparq:r=4,k=20,tau=sqrt_r": without_head(oracles.sparq, temperature="sqrt_r", **SPARQ),
    "sparq:r=4,k=20,tau=none": without_head(oracles.sparq, temperature="none", **SPARQ),
    "sparq:r=4,k=20,index_bits=4": without_head(oracles.sparq, index_bits=4, **SPARQ),
    "sparq:r=4,k=20,index_bits=2": without_head(oracles.sparq, index_bits=2, **SPARQ),
    "sparq:r=4,k=20,index_bits=8": without_head(oracles.sparq, index_bits=8, **SPARQ),
    "oracle:k=20,mean_from=1": lambda q, k, v, head: oracles.sparq(
        q, k, v, scores=oracles.exact_scores(q, k), mean_value=False, **SPARQ
    ),
    "low_rank:r=4,k=20,mean_from=1": low_rank(parse_method("low_rank:r=4,k=20"), mean_value=False),
    "sparq:r=4,k=20,mean_from=1,index_bits=4": without_head(
        oracles.sparq, mean_value=False, index_bits=4, **SPARQ
    ),
    "sparq:r=4,k=20,mean_from=1,index_bits=8": without_head(
        oracles.sparq, mean_value=False, index_bits=8, **SPARQ
    ),
    "oracle:k=20": lambda q, k, v, head: oracles.sparq(q, k, v, scores=oracles.exact_scores(q, k), **SPARQ),
    "low_rank:r=4,k=20": low_rank(parse_method("low_rank:r=4,k=20")),
    "flexgen:k=20": without_head(oracles.flexgen, top_k=20),
    "lm_infinite:k=40": without_head(oracles.lm_infinite, top_k=40, sinks=16),
    "local:k=20": without_head(oracles.local, top_k=20),
    "strided:k=19": without_head(oracles.strided, top_k=19),  # of 190 positions exactly every tenth
    "quest:k=48": without_head(oracles.quest, top_k=48, page=16),
    "quest:k=20,page=3": without_head(oracles.quest, top_k=20, page=3),
    "double_sparsity:r=4,k=20": IMPORTANT,
    "double_sparsity:r=4,k=20,index_bits=4": lambda q, k, v, head: IMPORTANT(q, k, v, head, index_bits=4),
}
STATEFUL = {
    "h2o:k=20": (oracles.h2o, {"top_k": 20, "n_local": 5}),
    "h2o:k=20,l=1": (oracles.h2o, {"top_k": 20, "n_local": 1}),
    "alisa:k=20": (oracles.alisa, {"top_k": 20, "n_recent": 32}),
    "alisa:k=21,n_recent=4": (oracles.alisa, {"top_k": 21, "n_recent": 4}),
}


def stateful(oracle, span, query, prefilled=None, **options) -> np.ndarray:
    """prefilled: keys of the dense prefill, where they differ from the cached ones."""
    out = []
    prefilled = span.key if prefilled is None else prefilled
    for head in range(HEADS):
        q, k, v = (array[head].double().numpy() for array in (query, span.key, span.value))
        rows = oracles.prefill_weights(q[:, :FIRST], prefilled[head, :FIRST].double().numpy())
        out.append(oracle(q[:, FIRST:], k, v, FIRST, rows, **options))
    return np.stack(out)


@pytest.mark.parametrize("text", STATELESS)
def test_stateless_method_agrees_with_its_oracle(text):
    span, _ = make_span()
    expected = by_steps(span, STATELESS[text])
    np.testing.assert_allclose(parse_method(text).attend(span).numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("text", STATEFUL)
def test_stateful_method_agrees_with_its_oracle(text):
    span, query = make_span()
    oracle, options = STATEFUL[text]
    expected = stateful(oracle, span, query, **options)
    np.testing.assert_allclose(parse_method(text).attend(span).numpy(), expected, atol=2e-5)


def test_h2o_keeps_what_decode_steps_attend_to():
    """The prompt's two positions have sums of 0.9 and 0.8. The third position, which the first decode step
    attends to, then has 1: the second one is evicted, not the third."""
    key, value = torch.zeros(1, 4, 8), torch.eye(8)[None, :4]
    key[0, 2, 0] = 20
    query = torch.zeros(1, 1, 2, 8)
    query[..., 0] = 1
    span = Span(query, key, value, 0, 1.0, History(torch.tensor([[0.9, 0.8]])))
    output = parse_method("h2o:k=3,l=1").attend(span)
    assert torch.allclose(output[0, 0], value[0, 2].expand(2, 8), atol=1e-6)
    assert span.history.state["index"].tolist() == [[0, 2, 3]]


def test_oracles_of_different_methods_disagree():
    """Negative control: the tolerance above tells every pair of methods apart (but those that are the same
    thing in layer 0)."""
    span, query = make_span()
    outputs = {text: by_steps(span, step) for text, step in STATELESS.items()}
    outputs.update({text: stateful(oracle, span, query, **o) for text, (oracle, o) in STATEFUL.items()})
    same = {frozenset(("sparq:r=4,k=20,mean_from=-1", "sparq:r=4,k=20,mean_from=1"))}
    for a in outputs:
        for b in outputs:
            if a < b and frozenset((a, b)) not in same:
                assert np.abs(outputs[a] - outputs[b]).max() > 1e-3, (a, b)


def test_mean_value_from_acts_by_layer():
    on, off = parse_method("sparq:r=4,k=20"), parse_method("sparq:r=4,k=20,mean_from=-1")
    late = parse_method("sparq:r=4,k=20,mean_from=2")
    for layer, equal in ((0, off), (1, off), (2, on), (3, on)):
        span, _ = make_span(layer=layer)
        torch.testing.assert_close(late.attend(span), equal.attend(span), rtol=0, atol=0)
    assert not torch.allclose(on.attend(span), off.attend(span), atol=1e-3)


@pytest.mark.parametrize("text", [*STATELESS, *STATEFUL])
@pytest.mark.parametrize("bits", [4, 8])
def test_kv_bits_of_every_method_agree_with_its_oracle_on_a_rounded_cache(text, bits):
    """ALISA's compression with each method; the weights that h2o and alisa start from are those of the exact
    prefill."""
    span, query = make_span()
    rounded = dataclasses.replace(
        span,
        **{
            name: torch.tensor(
                np.stack([oracles.channel_int(t[h].numpy(), FIRST, bits) for h in range(HEADS)])
            )
            for name, t in (("key", span.key), ("value", span.value))
        },
    )
    if text in STATELESS:
        expected = by_steps(rounded, STATELESS[text])
    else:
        oracle, options = STATEFUL[text]
        expected = stateful(oracle, rounded, query, prefilled=span.key, **options)
    method = dataclasses.replace(parse_method(text), kv_bits=bits)
    actual = method.attend(dataclasses.replace(span, history=_copy(span.history))).numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-5)
    unrounded = parse_method(text).attend(dataclasses.replace(span, history=_copy(span.history))).numpy()
    assert np.abs(actual - unrounded).max() > 1e-3  # negative control


def test_every_method_and_option_of_the_default_plan_has_an_oracle():
    """By class, and for each class by the options that it has in the plan."""
    tested = {}
    for text in [*STATELESS, *STATEFUL]:
        method = parse_method(text)
        tested.setdefault(method.name, []).append(method)
    assert set(tested) == set(methods.METHODS)
    numbers = {"rank", "top_k", "kv_bits"}  # tested with every method, or mere sizes
    for label in DEFAULT_METHODS:
        method = parse_method(label.partition("@")[0])
        for field in dataclasses.fields(method):
            if field.name not in numbers and getattr(method, field.name) != field.default:
                values = {getattr(other, field.name) for other in tested[method.name]}
                assert getattr(method, field.name) in values, (label, field.name)


def _copy(history: History) -> History:
    return History(history.weight_sum, history.recent_weights)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("text", [*STATELESS, *STATEFUL])
def test_one_query_at_a_time_equals_all_at_once(text, bits):
    """The state carried from call to call is complete, and no query sees the future."""
    span, _ = make_span()
    method = dataclasses.replace(parse_method(text), kv_bits=bits)
    together = method.attend(dataclasses.replace(span, history=_copy(span.history)))
    history = _copy(span.history)
    for i in range(STEPS):
        seen = FIRST + i + 1
        rows = {"key": span.key[:, :seen], "value": span.value[:, :seen], "history": history}
        one = dataclasses.replace(span, query=span.query[:, :, i : i + 1], **rows)
        torch.testing.assert_close(method.attend(one)[:, :, 0], together[:, :, i], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "text", ["sparq:r=4", "sparq:r=8,k=20,tau=sqrt_r", "flexgen", "oracle", "h2o", "alisa", "local"]
)
def test_top_k_beyond_the_length_is_dense_attention(text):
    span, _ = make_span()
    method = dataclasses.replace(parse_method(text), top_k=4 * SEQ)
    torch.testing.assert_close(method.attend(span), parse_method("dense").attend(span), rtol=0, atol=1e-5)


def test_zero_query_is_defined():
    span, _ = make_span()
    span = dataclasses.replace(span, query=torch.zeros_like(span.query))
    for text in STATELESS:
        assert torch.isfinite(parse_method(text).attend(span)).all(), text


def test_group_of_heads_shares_one_selection():
    span, _ = make_span()
    selected, _ = parse_method("sparq:r=4,k=20").select(span)
    assert selected.shape == (HEADS, STEPS, SEQ)
    assert (selected.sum(-1) == 20).all()


S, D = 4096, 64


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("dense", 2 * S * D + 2 * D),
        ("sparq:r=32,k=128", S * 32 + 2 * 128 * D + 4 * D),
        ("sparq:r=32,k=128,mean_from=-1", S * 32 + 2 * 128 * D + 2 * D),
        ("sparq:r=16,k=64,l=3", S * 16 + 2 * 64 * D + 4 * D),
        ("sparq:r=32,k=128,index_bits=8", S * 16 + S // 64 * 64 + 2 * 128 * D + 4 * D),
        ("sparq:r=32,k=128,index_bits=4", S * 8 + S // 64 * 64 + 2 * 128 * D + 4 * D),
        ("sparq:r=32,k=128,kv_bits=8", S * 16 + 128 * D + D + 2 * D),
        ("sparq:r=32,k=128,index_bits=4,kv_bits=8", S * 8 + S // 64 * 64 + 128 * D + D + 2 * D),
        ("oracle:k=128", 2 * 128 * D + 4 * D),
        ("low_rank:r=16,k=128", S * 16 + 2 * 128 * D + 4 * D),
        ("flexgen:k=128", S * D + 128 * D + 2 * D),
        ("h2o:k=128", 2 * 128 * D + 2 * D + 2 * S),
        ("alisa:k=128", 2 * 128 * D + 2 * D + 2 * S),
        ("alisa:k=128,kv_bits=8", 128 * D + D + 2 * S),
        ("lm_infinite:k=128", 2 * 128 * D + 2 * D),
        ("local:k=128", 2 * 128 * D + 2 * D),
        ("strided:k=128", 2 * 128 * D + 2 * D),
        ("quest:k=128", S // 16 * 2 * D + 2 * 128 * D + 2 * D),
        ("quest:k=100,page=7", 586 * 2 * D + 2 * 98 * D + 2 * D),
        ("double_sparsity:r=16,k=128", S * 16 + 2 * 128 * D + 2 * D),
        ("double_sparsity:r=16,k=128,index_bits=4", S * 4 + S // 64 * 32 + 2 * 128 * D + 2 * D),
        ("dense:kv_bits=8", S * D + D),
    ],
)
def test_transfer_formula(text, elements):
    assert parse_method(text).transfer(S, D) == elements
    assert parse_method(text).compression(S, D) == (2 * S * D + 2 * D) / elements


def test_transfer_of_the_usual_example():
    """S=16384, d=128, r=32, k=128, about 7.5 times less than dense."""
    assert parse_method("sparq:r=32,k=128").compression(16384, 128) == 4194560 / 557568


def test_transfer_of_a_key_index_is_that_of_its_bytes():
    """200 positions: three full blocks of codes, low and step, and 8 positions that are read from K."""
    rank, rest = 16, 2 * 8 * D + 4 * D
    for bits in (8, 4):
        in_blocks = 3 * rank * (64 * bits // 8 + 4)  # bytes
        expected = (in_blocks + 8 * rank * 2) / 2 + rest
        elements = parse_method(f"sparq:r={rank},k=8,index_bits={bits}").transfer(200, D)
        assert elements == expected == transfers.sparq_bytes(200, D, rank, 8, bits) / 2
    # only what is read from K itself shrinks with it
    both = parse_method(f"sparq:r={rank},k=8,index_bits=4,kv_bits=8").transfer(200, D)
    assert both == 3 * rank * (32 + 4) / 2 + (8 * rank + 2 * 8 * D + 2 * D) / 2 + 2 * D


@pytest.mark.parametrize("text", ["h2o", "lm_infinite", "alisa", "local", "strided", "alisa:kv_bits=8"])
def test_matched_is_the_largest_that_fits(text):
    reference = parse_method("sparq:r=16,k=128")
    method = parse_method(text).matched(reference, S, D)
    larger = dataclasses.replace(method, top_k=method.top_k + 1)
    assert method.transfer(S, D) <= reference.transfer(S, D) < larger.transfer(S, D)
    assert dataclasses.replace(method, top_k=parse_method(text).top_k) == parse_method(text)


@pytest.mark.parametrize("text", [*STATELESS, *STATEFUL, "sparq:r=16,k=64,tau=none,kv_bits=8", "h2o"])
def test_text_form_round_trips(text):
    method = parse_method(text)
    assert parse_method(str(method)) == method


NO_MEAN = {"mean_value": False}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rank": 32, "top_k": 128, "n_local": 32, "layers": {0: NO_MEAN}}, "sparq:mean_from=1"),
        ({"rank": 8, "top_k": 64}, "sparq:r=8,k=64,l=0"),
        ({"rank": 16, "top_k": 3, "n_local": 2, "mean_value": True}, "sparq:r=16,k=3,l=2"),
        ({"rank": 16, "top_k": 128, "n_local": 32, "mean_value": False}, "sparq:r=16,mean_from=-1"),
        (
            {"rank": 16, "top_k": 128, "n_local": 32, "mean_value": False, "layers": {0: NO_MEAN}},
            "sparq:r=16,mean_from=-1",
        ),
        ({"rank": 16, "top_k": 64, "layers": {1: NO_MEAN, 0: NO_MEAN}}, "sparq:r=16,k=64,l=0,mean_from=2"),
        ({"rank": 8, "top_k": 64, "index_bits": 16}, "sparq:r=8,k=64,l=0"),
        (
            {"rank": 32, "top_k": 128, "n_local": 32, "index_bits": 4, "layers": {0: NO_MEAN}},
            "sparq:mean_from=1,index_bits=4",
        ),
    ],
)
def test_method_of_the_settings_of_kernels(settings, text):
    method = SparQ.from_settings(**settings)
    assert str(method) == text
    assert method.index_bits == settings.get("index_bits", 16)
    assert method.local == settings.get("n_local", 0)  # the number, whatever -1 means in the text form
    for layer in range(4):
        of_layer = {**settings, **settings.get("layers", {}).get(layer, {})}
        assert of_layer.get("mean_value", True) == (0 <= method.mean_value_from <= layer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_local": -1}, r"n_local must be in \[0, top_k=64\], got -1"),
        ({"n_local": 65}, r"n_local must be in \[0, top_k=64\], got 65"),
        ({"top_k": 0}, r"top_k must be in \[1, 16777216\], got 0"),
        ({"layers": {1: NO_MEAN}}, r"layers must be .*, or empty, got \{1: .*\}"),
        ({"layers": {0: None}}, r"layers must be .*, or empty, got \{0: None\}"),
        ({"layers": {0: {"rank": 8}}}, r"layers must be .*, or empty, got \{0: .*\}"),
        ({"index_bits": 5}, "index_bits must be 4, 8 or 16, got 5"),
        ({"index_bits": "4"}, "index_bits must be 4, 8 or 16, got '4'"),
    ],
)
def test_errors_of_the_settings_of_kernels(settings, message):
    with pytest.raises(ValueError, match=r"^sparq: from_settings: " + message + "$"):
        SparQ.from_settings(**{"rank": 8, "top_k": 64, **settings})


def test_describe_methods_names_every_parameter():
    text = methods.describe_methods()
    for name, cls in methods.METHODS.items():
        line = next(line for line in text.splitlines() if line.startswith(name + ":"))
        assert all(f"{field.metadata['short']}=" in line for field in dataclasses.fields(cls))
    assert all(summary.endswith(".") for summary in text.splitlines()[1::2])  # whole sentences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparq:r=0", r"sparq: rank must be in \[1, 16777216\], got 0"),
        ("sparq:k=0", r"sparq: top_k must be in \[1, 16777216\], got 0"),
        ("sparq:k=8,l=9", r"sparq: n_local must be in \[-1, top_k=8\], got 9"),
        ("sparq:mean_from=-2", r"sparq: mean_value_from must be in \[-1, 16777216\], got -2"),
        ("sparq:tau=hot", "sparq: temperature must be one of sparq, sqrt_d, sqrt_r, none, got 'hot'"),
        ("sparq:index_bits=5", "sparq: index_bits must be 4, 8 or 16, got 5"),
        (
            "oracle:index_bits=4",
            "oracle: index_bits must be 16, as scores are not made from a key index, got 4",
        ),
        (
            "low_rank:r=16,index_bits=8",
            "low_rank: index_bits must be 16, as scores are not made from a key index, got 8",
        ),
        ("dense:kv_bits=5", "dense: kv_bits must be 4, 8 or 16, got 5"),
        ("flexgen:k=0", r"flexgen: top_k must be in \[1, 16777216\], got 0"),
        ("local:k=0", r"local: top_k must be in \[1, 16777216\], got 0"),
        ("lm_infinite:sinks=-1", r"lm_infinite: sinks must be in \[0, 16777215\], got -1"),
        ("lm_infinite:k=16", r"lm_infinite: top_k must be in \[17, 16777216\], got 16"),
        ("h2o:k=1", r"h2o: top_k must be in \[2, 16777216\], got 1"),
        ("h2o:k=8,l=8", r"h2o: n_local must be in \[-1, top_k=8\), got 8"),
        ("alisa:n_recent=0", r"alisa: n_recent must be in \[1, 16777216\], got 0"),
        ("quests", "parse_method: name must be one of dense, .*, got 'quests'"),
        ("quest:k=8", r"quest: top_k must be in \[16, 16777216\], got 8"),
        ("sparq:q=1", "parse_method: parameter of sparq must be one of .*, got 'q=1'"),
        ("sparq:r", "parse_method: parameter of sparq must be one of .*, got 'r'"),
        ("sparq:r=x", "parse_method: r must be of type int, got 'x'"),
    ],
)
def test_errors_of_parameters(text, message):
    with pytest.raises(ValueError, match=r"^" + message + "$"):
        parse_method(text)


def test_errors_of_inputs():
    span, _ = make_span()
    with pytest.raises(ValueError, match=r"^sparq: rank must be in \[1, head_dim=8\], got 9$"):
        parse_method("sparq:r=9").attend(span)
    with pytest.raises(ValueError, match=r"^low_rank: rank must be in \[1, head_dim=8\], got 9$"):
        parse_method("low_rank:r=9").attend(span)
    bare = dataclasses.replace(span, history=History())
    message = r"^h2o: history.weight_sum must be recorded by the prefill, got None$"
    with pytest.raises(ValueError, match=message):
        parse_method("h2o").attend(bare)
    message = r"^alisa: history.recent_weights must be recorded by the prefill, got None$"
    with pytest.raises(ValueError, match=message):
        parse_method("alisa").attend(bare)
    with pytest.raises(ValueError, match=r"^dense: top_k must be a parameter of a matched method, got None$"):
        parse_method("dense").matched(parse_method("sparq"), S, D)
    with pytest.raises(ValueError, match=r"^h2o: transfer must fit the .* elements of local:k=1, got None$"):
        parse_method("h2o").matched(parse_method("local:k=1"), S, D)
    empty = Span(span.query, span.key[:, FIRST:], span.value[:, FIRST:], 0, span.scale)
    message = r"^quantise: n_positions must be at least 1 before the first decode step, got 0$"
    with pytest.raises(ValueError, match=message):
        parse_method("dense:kv_bits=8").attend(empty)
