# SPDX-License-Identifier: Apache-2.0
"""The name of the cache among arguments and outputs, which transformers changed in 5.24: no call of ours has
the older one. transformers says so once in a process, which is looked for here. (Where it is a warning,
pyproject.toml makes it an error in all tests.)"""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any, Iterator

import pytest
from tiny_models import enable, greedy, tiny_model, tiny_tokenizer, tokens_of, torch, transformers

from sparq_ipu.serve.places import Places
from sparq_ipu.transformers import SparqCache, enable_dense
from sparq_ipu.transformers.generation.runs import forced_predictions, generate

OLDER = "past_key_values"
SETTINGS = dict(rank=4, top_k=12)


@contextlib.contextmanager
def remarks() -> Iterator[list[str]]:
    """What transformers says of the older name, as warnings and in its log."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("transformers")
    once: Any = logging.Logger.warning_once  # transformers puts it there
    once.cache_clear()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        logger.removeHandler(handler)
        said += [str(warning.message) for warning in caught]
        said[:] = [remark for remark in said if OLDER in remark]


def a_cache_that_the_model_makes(model: Any) -> None:
    with torch.no_grad():
        made = model(tokens_of(20)).cache
        assert model(tokens_of(1), cache=made).cache is made


def places(model: Any) -> None:
    enable_dense(model)
    piece = Places([None] * 3, 2, 64, dict(device="cpu", n_threads=1)).tokens([1], [(0, 20)])
    with torch.no_grad():
        model(tokens_of(20), cache=piece, position_ids=torch.arange(20)[None])


CALLS = [
    lambda model: generate(model, tiny_tokenizer(), tokens_of(20), 4),
    lambda model: greedy(model, tokens_of(20), 4),
    lambda model: forced_predictions(model, tokens_of(20), tokens_of(3)),
    a_cache_that_the_model_makes,
    places,
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_have_the_name_of_this_release(call: Any, model: Any) -> None:
    enable(model, **SETTINGS)
    with remarks() as said:
        call(model)
    assert said == []


def test_the_older_name_is_seen() -> None:
    """As an argument, of outputs, and where an output is made: what the tests above look for."""
    model = tiny_model()
    for call in (
        lambda: model(tokens_of(3), **{OLDER: transformers.DynamicCache(config=model.config)}),
        lambda: getattr(model(tokens_of(3)), OLDER),
        lambda: transformers.modeling_outputs.BaseModelOutputWithPast(**{OLDER: None}),
    ):
        with remarks() as said:
            call()
        assert len(said) >= 1


def test_a_warning_of_it_is_an_error_in_tests(model: Any) -> None:
    with pytest.raises(FutureWarning, match=f"`{OLDER}` is deprecated"):
        model(tokens_of(3), **{OLDER: SparqCache(model)})


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("name", ["cache", OLDER])
def test_a_caller_may_use_either(name: str, lean: bool, model: Any) -> None:
    """Of a model and of its decoder; what is given is what is filled, by the same bits."""
    enable(model, **SETTINGS, lean=lean)
    of_model, of_decoder, expected = SparqCache(model), SparqCache(model), SparqCache(model)
    with torch.no_grad(), warnings.catch_warnings():
        model(tokens_of(20), cache=expected)
        logits = model(tokens_of(1), cache=expected).logits
        warnings.simplefilter("ignore", FutureWarning)
        for n in (20, 1):
            said = model(tokens_of(n), **{name: of_model}).logits
            hidden = model.model(tokens_of(n), **{name: of_decoder}).last_hidden_state
    assert of_model.get_seq_length() == of_decoder.get_seq_length() == 21
    assert torch.equal(said, logits)
    assert torch.equal(model.lm_head(hidden), logits)
