# SPDX-License-Identifier: Apache-2.0
"""Drafts from the text itself: which tokens, when they pay, and that they change no token."""

from __future__ import annotations

from typing import Any

import pytest

from sparq_ipu.drafts import MOST, Drafts, Pace


def a_pace(**seconds: float) -> Pace:
    pace = Pace()
    for name, value in seconds.items():
        for _ in range(2):  # the first one does not count
            pace.took(int(name[1:]), value)
    return pace


def test_what_followed_the_last_tokens() -> None:
    free = a_pace(_1=1.0)
    assert Drafts([1, 2, 3, 4, 5, 6, 1, 2, 3], free).draft(MOST) == [4, 5, 6, 1, 2, 3]
    assert Drafts([1, 2, 3, 4, 1, 2, 3, 5, 6, 1, 2, 3], free).draft(2) == [5, 6]  # the last time
    assert Drafts([1, 2, 3, 4, 5, 2, 3], free).draft(MOST) == []
    assert Drafts([1, 2], free).draft(MOST) == []
    assert Drafts([1, 2, 3, 4, 1, 2, 3], free).draft(0) == []
    assert len(Drafts([*range(30), 0, 1, 2], free).draft(100)) == MOST


def test_nothing_is_drafted_before_a_pass_was_timed() -> None:
    pace = Pace()
    drafts = Drafts([1, 2, 3, 4, 1, 2, 3], pace)
    assert drafts.draft(4) == []
    pace.took(1, 5.0)
    assert drafts.draft(4) == []
    pace.took(1, 1.0)
    assert drafts.draft(4) == [4, 1, 2, 3]


def test_a_draft_that_does_not_pay_is_not_made_and_is_tried_again() -> None:
    text = list(range(20)) * 2
    drafts = Drafts(text, a_pace(_1=1.0, _2=1.5, _16=3.0))
    assert drafts.draft(MOST)
    for _ in range(20):
        drafts.took(4, 0)
    assert drafts.draft(MOST) == []
    tries = 0
    while not drafts.draft(MOST):
        tries += 1
    assert 20 < tries < 1000
    for _ in range(10):
        drafts.took(MOST, MOST)
    assert len(drafts.draft(MOST)) == MOST
    assert (drafts.n_drafted, drafts.n_accepted) == (80 + 10 * MOST, 10 * MOST)
    # other texts in the pass: what it takes longer is their loss too
    assert Drafts(text, a_pace(_8=1.0, _9=1.5, _23=8.0)).draft(MOST, 8) == []


def parrot(weights: str | None, window: int | None = None) -> Any:
    """A model that mostly says its last token again."""
    import torch
    from tiny_models import tiny_model

    import sparq_ipu.transformers

    shape = dict(hidden_size=128, intermediate_size=128, num_attention_heads=8, num_key_value_heads=4)
    model = tiny_model("Mistral", **shape, vocab_size=112, tie_word_embeddings=True, sliding_window=window)
    for layer in model.model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            linear.weight.data *= 0.01
    if weights is not None:
        sparq_ipu.transformers.quantise_weights(model.to(torch.bfloat16), weights)
    return model


@pytest.fixture
def _always(monkeypatch: Any) -> None:
    """Drafts always pay."""
    monkeypatch.setattr(Pace, "__bool__", lambda pace: True)
    monkeypatch.setattr(Pace, "seconds", lambda pace, n: 1.0)


@pytest.fixture(params=["parrot", "random"])
def make(request: Any, monkeypatch: Any) -> Any:
    """Makes a model: one that has most drafts right, or one whose tokens depend on all earlier ones."""
    for name in ("torch", "transformers", "sparq_ipu._cpu"):
        pytest.importorskip(name)
    if request.param == "parrot":
        return parrot
    from lean_steps import a_wide_model
    from tiny_models import tiny_model

    monkeypatch.setattr("sparq_ipu.drafts._NGRAM", 1)  # so that there are drafts, of which most are wrong

    def random(weights: str | None, window: int | None = None) -> Any:
        changes = dict(vocab_size=112, initializer_range=0.15, sliding_window=window)
        if weights is None:
            return tiny_model("Mistral", **changes)
        return a_wide_model(weights, "Mistral", **changes)

    return random


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize(
    "sampling", [{}, dict(do_sample=True, temperature=0.5), dict(repetition_penalty=1.3)]
)
def test_generate_draws_the_same_tokens(make: Any, sampling: dict[str, Any], window: int | None) -> None:
    import torch
    from lean_steps import SETTINGS
    from tiny_models import tiny_tokenizer, tokens_of

    import sparq_ipu.transformers
    from sparq_ipu.transformers.generation.runs import generate

    model = make("int4", window)
    runs = []
    for tokens_per_step in (1, 1 + MOST):
        sparq_ipu.transformers.enable(model, tokens_per_step=tokens_per_step, **SETTINGS)
        torch.manual_seed(0)
        runs.append(generate(model, tiny_tokenizer(), tokens_of(60), 40, **sampling))
    assert runs[0].tokens == runs[1].tokens
    assert (runs[0].n_drafted, len(runs[1].step_seconds)) == (0, 39)
    assert 0 < runs[1].n_drafted
    for plain, drafted in zip(*(run.cache.layers for run in runs)):
        assert torch.equal(plain.keys, drafted.keys)
    if not sampling and make is parrot:
        assert runs[1].n_accepted > 10


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("weights", ["int4", None])
def test_the_server_draws_the_same_tokens(make: Any, weights: str | None) -> None:
    pytest.importorskip("fastapi")
    from tiny_models import tokens_of
    from tiny_server import Asked, running_engine

    import sparq_ipu.transformers
    from sparq_ipu.serve.answers import usage
    from sparq_ipu.serve.sampling import Sampling

    model = make(weights)
    sparq_ipu.transformers.enable(model, rank=8, top_k=16, min_seq_len=70)
    said = []
    for looks_up in (False, True):
        with running_engine(model, looks_up=looks_up) as engine:
            asked = [
                Asked(engine, tokens_of(60), 40),
                Asked(engine, tokens_of(30), 20),
                Asked(engine, tokens_of(40, seed=1), 30, Sampling(0.5, seed=3)),
            ]
            said.append([one.tokens for one in asked])
            ends: Any = [one.end() for one in asked]
    assert said[0] == said[1]
    assert ends[0].n_drafted >= ends[0].n_accepted >= (11 if make is parrot else 0)
    assert ends[0].n_drafted > 0
    details = usage(ends[:1], 1)["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == ends[0].n_accepted
    assert sum(details.values()) == ends[0].n_drafted


@pytest.mark.usefixtures("_always")
def test_the_switch_of_both_commands(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    for name in ("torch", "transformers", "sparq_ipu._cpu", "fastapi"):
        pytest.importorskip(name)
    from tiny_models import save_checkpoint, tiny_model

    from sparq_ipu import generate
    from sparq_ipu.serve import command

    monkeypatch.setattr("sparq_ipu.drafts._NGRAM", 1)
    folder = str(save_checkpoint(tmp_path))
    tiny_model("Qwen2", hidden_size=128, intermediate_size=128, vocab_size=112).save_pretrained(folder)
    words = ["--model", folder, "--weights", "int4", "--min-seq-len", "0", "--rank", "8", "--top-k", "8"]
    said = []
    for more in ([], ["--no-drafts"]):
        prompt = ["--prompt", " ".join(f"w{i % 9}" for i in range(40)), "--new-tokens", "30"]
        assert generate.main([*words, *prompt, *more]) == 0
        said.append(capsys.readouterr().out)
        _, engine = command.build(command.parsed([*words, "--places", "1", "--context", "128", *more]))
        assert engine._looks_up == (not more)
        engine.stop()
        engine.contexts.close()
    assert ["drafts " in text for text in said] == [True, False]
    assert said[0].split("\n\n")[0] == said[1].split("\n\n")[0]
