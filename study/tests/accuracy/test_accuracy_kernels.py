# SPDX-License-Identifier: Apache-2.0
"""Spans of SparQ by the CPU kernels beside those by the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import tiny_model

import sparq_ipu
from sparq_study.accuracy import kernels
from sparq_study.accuracy.engine import Evaluator
from sparq_study.accuracy.methods import parse_method

try:
    sparq_ipu.KVCache(1, 1, 8, 64, device="cpu")
except (ImportError, ValueError, RuntimeError) as error:
    pytest.skip(f"no CPU kernels: {error}", allow_module_level=True)

CONTEXT, STEPS = 150, 40
TOKENS = np.random.default_rng(0).integers(0, 6000, CONTEXT + STEPS).tolist()


@pytest.fixture(scope="module")
def evaluators():
    return Evaluator(tiny_model()), Evaluator(tiny_model(), kernels=True)


def spans(evaluators, text: str, *, n: int = STEPS):
    formulas, by_kernels = evaluators
    prefix = formulas.prefill(TOKENS[:CONTEXT])
    method = parse_method(text)
    return [
        torch.log_softmax(one.span(prefix, TOKENS[CONTEXT : CONTEXT + n], method), -1).numpy()
        for one in (formulas, by_kernels)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "sparq:r=4,k=24",
        "sparq:r=4,k=24,l=0",
        "sparq:r=4,k=24,mean_from=1",
        "sparq:r=4,k=24,mean_from=-1",
        "sparq:r=4,k=24,index_bits=8",
        "sparq:r=4,k=24,index_bits=4",
        "sparq:r=4,k=24,index_bits=2",
        "sparq:r=8,k=1000",
    ],
)
def test_a_span_is_that_of_the_formulas(evaluators, text):
    """But for float16 rows, which may swap positions of nearly the same weight: most tokens are near.
    More than `MAX_TOKENS` in a span."""
    assert kernels.has_kernel(parse_method(text))
    expected, actual = spans(evaluators, text)
    error = np.abs(actual - expected).max(1)
    assert np.median(error) < 0.1 and error[0] < 0.1, error
    other = text.replace("k=24", "k=6").replace("k=1000", "k=6")  # negative control
    wrong = np.abs(spans(evaluators, other)[1] - expected).max(1)
    assert np.median(wrong) > 5 * np.median(error), (error, wrong)


def test_a_span_leaves_nothing_behind(evaluators):
    """The same span again has the same bits, after another method with the same caches, and a longer span."""
    first = spans(evaluators, "sparq:r=4,k=24,index_bits=4", n=20)[1]
    spans(evaluators, "sparq:r=4,k=6,index_bits=4", n=30)
    prefix = evaluators[0].prefill(TOKENS[:CONTEXT])
    caches = kernels.KernelCaches(prefix, STEPS)
    for _ in range(2):
        made = caches.of(4)
        assert [cache.lengths.tolist() for cache in made] == [[CONTEXT]] * len(made)
        for cache in made:
            token = np.zeros((1, cache.n_kv_heads, 3, cache.head_dim), np.float16)
            cache.append(token, token)
    again = spans(evaluators, "sparq:r=4,k=24,index_bits=4", n=20)[1]
    np.testing.assert_array_equal(first, again)


def test_another_prefix_has_other_caches(evaluators):
    _, by_kernels = evaluators
    method = parse_method("sparq:r=4,k=24,index_bits=4")
    for context in (CONTEXT, CONTEXT - 20):
        prefix = by_kernels.prefill(TOKENS[:context])
        alone = Evaluator(tiny_model(), kernels=True).span(prefix, TOKENS[context : context + 8], method)
        torch.testing.assert_close(by_kernels.span(prefix, TOKENS[context : context + 8], method), alone)
    by_kernels.span(prefix, TOKENS[:300] * 2, method)  # more tokens than there was room for


@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "oracle:k=24",
        "sparq:r=4,k=24,tau=none",
        "sparq:r=4,k=24,kv_bits=8",
        "sparq:r=4,k=24,index_bits=4,rows=int8",
        "sparq:r=4,k=24,components=8",
    ],
)
def test_what_kernels_do_not_have_is_by_the_formulas(evaluators, text):
    assert not kernels.has_kernel(parse_method(text))
    expected, actual = spans(evaluators, text, n=4)
    np.testing.assert_array_equal(expected, actual)


def test_another_scale_is_refused():
    run = kernels.KernelRun(parse_method("sparq:r=4,k=24"), [])
    rows = torch.zeros(1, 1, 8)
    message = r"^accuracy: kernels must have a model whose scale is .*, got 0\.5$"
    with pytest.raises(ValueError, match=message):
        run.attend(0, rows[None], rows, rows, 0.5)
