# SPDX-License-Identifier: Apache-2.0
"""The engine of `sparq-ipu serve`: many texts at once, each as if it were alone; what is held; what fails."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import numpy as np
import pytest
from calls import noted
from tiny_models import greedy, of_even_attention, tiny_model, tiny_tokenizer, tokens_of, torch
from tiny_server import CONTEXT, Asked, running_engine, served_model

import sparq_ipu.transformers
from sparq_ipu.serve import engine as engine_module
from sparq_ipu.serve.contexts import Contexts
from sparq_ipu.serve.engine import Done, Engine, Failed, Refused
from sparq_ipu.serve.metrics import Metrics
from sparq_ipu.serve.sampling import Sampling
from sparq_ipu.transformers.decoder.lean_step import LeanStep
from sparq_ipu.transformers.decoder.step_layer import StepLayer

pytest.importorskip("sparq_ipu._cpu")

LENGTHS = (5, 33, 64, 127, 128, 129, 301, 512)


@pytest.fixture
def engine() -> Any:
    with running_engine() as engine:
        yield engine


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" if token < 99 else "" for token in tokens)


FAMILIES: dict = {
    "sparq": dict(kind="Llama"),
    "dense": dict(kind="Llama"),
    "GPTNeoX": dict(kind="GPTNeoX", rotary_pct=1.0),
    "OPT": dict(kind="OPT", ffn_dim=64, word_embed_proj_dim=96),
    "Qwen3": dict(kind="Qwen3"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_has_the_tokens_of_generate(family: str, monkeypatch: Any) -> None:
    """With the products of `generate`: those of as many rows as there are."""
    model = tiny_model(**FAMILIES[family])
    if family == "dense":
        sparq_ipu.transformers.enable_dense(model)
    else:
        sparq_ipu.transformers.enable(model, rank=8, top_k=16, min_seq_len=40)
    prompts = [tokens_of(n, seed=n) for n in LENGTHS]
    expected = [greedy(model, prompt, 25)[0].tolist() for prompt in prompts]
    with running_engine(model) as engine:
        monkeypatch.setattr(engine.contexts, "piece_rows", 1)
        monkeypatch.setattr(engine_module, "PIECE", 400)
        monkeypatch.setattr(Contexts, "_rows", lambda *_: contextlib.nullcontext())
        assert [Asked(engine, prompt, 25).tokens for prompt in prompts] == expected


def cut(rng: np.random.Generator, n: int, multiple_of: int) -> list[slice]:
    """Random pieces of n tokens, which begin at multiples."""
    inner = rng.permutation(np.arange(multiple_of, n, multiple_of))[: rng.integers(0, 6)]
    edges = [0, *sorted(inner.tolist()), n]
    return [slice(a, b) for a, b in zip(edges, edges[1:])]


def logits_of_cuts(contexts: Contexts, rng: np.random.Generator) -> list[bytes]:
    """Of four prompts, after each: read in random pieces, some together."""
    prompts = [tokens_of(n, seed=n)[0].tolist() for n in (400, 37, 200, 131)]
    waiting = [cut(rng, len(prompt), contexts.piece_rows) for prompt in prompts]
    last: list[bytes] = [b""] * len(prompts)
    while any(waiting):
        ready = [place for place, pieces in enumerate(waiting) if pieces]
        places = rng.permutation(ready)[: rng.integers(1, len(ready) + 1)].tolist()
        pieces = [waiting[place].pop(0) for place in places]
        tokens = [prompts[place][piece] for place, piece in zip(places, pieces)]
        logits = contexts.read(places, tokens, [piece.start for piece in pieces])
        for place, row in zip(places, logits):
            last[place] = row.numpy().tobytes()
    contexts.cache.keep(range(4), [0] * 4)
    return last


@pytest.mark.parametrize(
    ("dtype", "weights", "row_bits", "rows"),
    [
        ("float32", None, 16, 128),
        ("bfloat16", None, 16, 128),
        ("bfloat16", "int8", 16, 1),
        ("bfloat16", "int4", 16, 1),
        ("bfloat16", "int4", 8, 1),
    ],
)
def test_prompts_have_the_same_bits_in_any_pieces(
    dtype: str, weights: str | None, row_bits: int, rows: int, monkeypatch: Any
) -> None:
    """Some tokens leave out blocks, some do not."""
    monkeypatch.setattr(StepLayer, "prompt_blocks_from", 270)
    model = tiny_model(hidden_size=192, intermediate_size=512, vocab_size=1008)
    model = of_even_attention(model).to(getattr(torch, dtype))
    seen: list = []
    for share, n_cuts in ((0.1, 12), (0.0, 1)):
        options: dict = dict(weights=weights, row_bits=row_bits, prompt_blocks=share)
        sparq_ipu.transformers.enable(model, rank=8, top_k=16, **options)
        contexts = Contexts(model, 4, CONTEXT)
        assert contexts.piece_rows == rows
        seen += [logits_of_cuts(contexts, np.random.default_rng(seed)) for seed in range(n_cuts)]
        contexts.close()
    *seen, whole = seen
    assert all(other == seen[0] for other in seen)
    assert [a == b for a, b in zip(seen[0], whole)] == [False, True, True, True]


def read_by(engine: Engine, monkeypatch: Any) -> list[list[int]]:
    """Lengths of the pieces of each pass from now on."""

    def lengths(logits: Any, places: Any, pieces: Any, *more: Any) -> list[int]:
        return [len(piece) for piece in pieces]

    return noted(monkeypatch, engine.contexts, "read", lengths)


def fail_pieces_of(n_tokens: int, engine: Engine, monkeypatch: Any) -> None:
    """Passes with such a piece fail from now on, when they have been made."""
    read = engine.contexts.read

    def bad_read(places: Any, pieces: Any, *more: Any) -> Any:
        logits = read(places, pieces, *more)
        if any(len(piece) == n_tokens for piece in pieces):
            raise RuntimeError
        return logits

    monkeypatch.setattr(engine.contexts, "read", bad_read)


def all_at_once(engine: Engine, prompts: list[Any], n_new: int) -> list[Asked]:
    """Requests that come while the engine takes none."""
    with engine._wake:
        return [Asked(engine, prompt, n_new) for prompt in prompts]


def test_short_prompts_are_read_together(engine: Any, monkeypatch: Any) -> None:
    prompts = [tokens_of(n, seed=n) for n in (37, 40, 300, 38)]
    expected = [Asked(engine, prompt, 5).tokens for prompt in prompts]
    passes = read_by(engine, monkeypatch)
    others = [tokens_of(n, seed=n + 1) for n in (37, 40, 300, 38)]
    for asked in all_at_once(engine, others, 2):
        asked.end()
    assert passes == [[37, 40, 300, 38]]
    again = all_at_once(engine, prompts, 5)
    assert [asked.tokens for asked in again] == expected


def test_a_pass_of_some_prompts_that_fails_is_made_again_with_each(engine: Any, monkeypatch: Any) -> None:
    prompts = [tokens_of(n, seed=n) for n in (37, 40, 38)]
    expected = [Asked(engine, prompt, 5).tokens for prompt in prompts]
    for place in engine._places:
        place.tokens = place.tokens[:0]
    fail_pieces_of(40, engine, monkeypatch)
    first, bad, last = all_at_once(engine, prompts, 5)
    assert isinstance(bad.end(), Failed)
    assert [first.tokens, last.tokens] == [expected[0], expected[2]]


def test_the_tokens_of_generate_in_company() -> None:
    """With products of a fixed number of rows: rounded otherwise, which seldom shows."""
    model = served_model()
    prompts = [tokens_of(n, seed=n) for n in LENGTHS]
    expected = [greedy(model, prompt, 25)[0].tolist() for prompt in prompts]
    with running_engine(model) as engine:
        asked = [Asked(engine, prompt, 25) for prompt in prompts]
        assert [one.tokens for one in asked] == expected
        assert asked[0].end() == Done("length", LENGTHS[0], 0, 25)


def logits_of_all(contexts: Contexts, company: bool) -> list[np.ndarray]:
    """Of a prompt and ten tokens after it; with other texts in the passes, or alone, in other pieces."""
    prompt = tokens_of(400, seed=3)[0].tolist()
    seen = []
    pieces = (128, 256) if company else (384,)
    at = 0
    for n in (*pieces, 16):
        seen = [contexts.read([2], [prompt[at : at + n]], [at])[0]]
        at += n
    others = [0, 1, 3] if company else []
    for place in others:
        contexts.read([place], [tokens_of(50 + 100 * place, seed=place)[0].tolist()], [0])
    held = {0: 50, 1: 150, 3: 350}
    for step in range(10):
        places = [*others[:2], 2, *others[2:]]
        lengths = [400 + step if place == 2 else held[place] + step for place in places]
        logits = contexts.step(places, [7 + step] * len(places), lengths)
        seen.append(logits[places.index(2)])
    contexts.cache.keep([0, 1, 2, 3], [0] * 4)
    return [row.numpy() for row in seen]


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [("float32", None), ("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "int4")],
)
def test_logits_are_the_same_bits_in_any_company(dtype: str, weights: str | None) -> None:
    model = tiny_model(hidden_size=192, intermediate_size=512, vocab_size=1008).to(getattr(torch, dtype))
    sparq_ipu.transformers.enable(model, rank=8, top_k=16, min_seq_len=40, weights=weights)
    contexts = Contexts(model, 4, CONTEXT)
    alone, together = (logits_of_all(contexts, company) for company in (False, True))
    contexts.close()
    for one, other in zip(alone, together):
        assert one.tobytes() == other.tobytes()


def test_a_request_comes_before_places_are_touched(monkeypatch: Any) -> None:
    touched: list[int] = []
    go_on = threading.Event()
    touch = Contexts.touch

    def slow(self: Any, place: int) -> None:
        if threading.current_thread().name == "sparq-ipu-serve":
            go_on.wait(10)
        touched.append(place)
        touch(self, place)

    monkeypatch.setattr(Contexts, "touch", slow)
    contexts = Contexts(served_model(), 4, CONTEXT)
    assert touched == [0]  # the server starts after that
    engine = Engine(contexts, tiny_tokenizer(), 100, Metrics())
    try:
        asked = [Asked(engine, tokens_of(50), 9) for _ in range(3)]
        go_on.set()
        assert all(one.tokens == asked[0].tokens and len(one.tokens) == 9 for one in asked)
        while engine._untouched:
            time.sleep(0.001)
        assert all(layer.cache.lengths[3] == 0 for layer in contexts.cache._layers)
        assert touched == [0, 1, 3]  # 2 had a request meanwhile
        assert Asked(engine, tokens_of(50), 9).tokens == asked[0].tokens
    finally:
        engine.stop()
        contexts.close()


def test_steps_are_lean(monkeypatch: Any) -> None:
    steps = noted(monkeypatch, LeanStep, "step", lambda *_: True)
    with running_engine() as engine:
        steps.clear()
        assert len(Asked(engine, tokens_of(50), 9).tokens) == 9
        assert len(steps) == 8


def test_short_texts_come_first_in_a_step(engine: Any, monkeypatch: Any) -> None:
    def lengths(_: Any, contexts: Any, places: Any, tokens: Any, held: Any) -> list[int] | None:
        return list(held) if len(set(places)) == len(places) else None  # None: with drafts

    seen = noted(monkeypatch, Contexts, "step", lengths)
    asked = [Asked(engine, tokens_of(n), 60) for n in (200, 5, 90)]
    assert [len(one.tokens) for one in asked] == [60] * 3
    assert max(map(len, seen)) == 3
    assert all(held == sorted(held) for held in seen)


def test_alone_and_among_31_others() -> None:
    model = served_model()
    prompts = [tokens_of(30 + 17 * index, seed=index)[0] for index in range(32)]
    with running_engine(model, n_places=32) as engine:
        alone = [Asked(engine, prompt, 12).tokens for prompt in prompts]
    with running_engine(model, n_places=32) as engine:
        asked = [Asked(engine, prompt, 12) for prompt in prompts]
        assert [one.tokens for one in asked] == alone


def test_seeds_draw_the_same_in_any_company(engine: Any) -> None:
    sampling = Sampling(1.5, 0.9, seed=5)
    alone = Asked(engine, tokens_of(50), 30, sampling).tokens
    others = [Asked(engine, tokens_of(40, seed=i), 40, Sampling(1.0, 1.0, i)) for i in range(3)]
    assert Asked(engine, tokens_of(50), 30, sampling).tokens == alone
    assert Asked(engine, tokens_of(50), 30, Sampling(1.5, 0.9, seed=6)).tokens != alone
    for other in others:
        assert len(other.tokens) == 40


def test_a_prefix_is_not_read_again(engine: Any) -> None:
    shared = tokens_of(300, seed=1)[0].tolist()
    first = Asked(engine, [*shared, 1, 2], 10)
    answer = first.tokens
    again = Asked(engine, [*shared, 1, 2], 10)
    assert again.tokens == answer and again.end().n_held == 256
    longer = [*shared, 1, 2, *answer, 5, 6]
    with_held = Asked(engine, longer, 10)
    assert with_held.end().n_held == 256
    with running_engine() as fresh:
        assert Asked(fresh, longer, 10).tokens == with_held.tokens


def test_requests_at_once_read_what_they_share_once(engine: Any) -> None:
    shared = tokens_of(600, seed=1)[0].tolist()
    asked = [Asked(engine, [*shared, index], 5) for index in range(4)]
    ends = [one.end() for one in asked]
    assert sorted(end.n_held for end in ends) == [0, 512, 512, 512]
    answers = [one.tokens for one in asked]
    with running_engine() as fresh:
        assert [Asked(fresh, [*shared, index], 5).tokens for index in range(4)] == answers


def test_a_beginning_is_copied_from_a_longer_text(engine: Any) -> None:
    text = tokens_of(600, seed=1)[0].tolist()
    answer = Asked(engine, text, 10).tokens
    other = [*text[:300], *tokens_of(90, seed=2)[0].tolist()]
    asked = Asked(engine, other, 10)
    assert asked.end().n_held == 256
    assert Asked(engine, text, 10).tokens == answer
    with running_engine() as fresh:
        assert Asked(fresh, other, 10).tokens == asked.tokens


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    with running_engine(n_places=2) as engine:
        texts = [tokens_of(200, seed=seed)[0].tolist() for seed in range(3)]
        held = [Asked(engine, texts[i], 1).end().n_held for i in (0, 1, 0, 2, 0, 1)]
    assert held == [0, 0, 128, 0, 128, 0]


def test_a_long_prompt_does_not_hold_up_others(engine: Any, monkeypatch: Any) -> None:
    """Tokens come while a prompt is read, also within a piece; a short prompt overtakes a long one."""
    read = engine.contexts.read

    def slow(place: int, tokens: Any, held: int, between: Any, *more: Any) -> Any:
        def slowly() -> None:  # before each layer
            time.sleep(0.05)
            engine._step_seconds = 0.01  # whatever else the machine does
            between()

        n_steps.append(len(writer.request.new))
        logits = read(place, tokens, held, slowly, *more)
        n_steps.append(len(writer.request.new))
        return logits

    n_steps: list[int] = []
    writer = Asked(engine, tokens_of(20), 900)
    while len(writer.request.new) < 5:  # a first step takes longer
        time.sleep(0.01)
    monkeypatch.setattr(engine.contexts, "read", slow)
    reader = Asked(engine, tokens_of(900, seed=2), 1)
    short = Asked(engine, tokens_of(10, seed=3), 1)
    reader.end(), short.end()
    engine.cancel(writer.request)
    assert short.request.last_at < reader.request.last_at
    assert len(n_steps) >= 6 and all(end > begin for begin, end in zip(n_steps[::2], n_steps[1::2]))


def test_prompts_are_read_in_turn_piece_by_piece(engine: Any, monkeypatch: Any) -> None:
    sizes = []
    read = engine.contexts.read

    def counted(places: Any, pieces: Any, *more: Any) -> Any:
        sizes.extend(map(len, pieces))
        if len(sizes) == 1:
            asked.append(Asked(engine, tokens_of(900, seed=2), 1))
        return read(places, pieces, *more)

    monkeypatch.setattr(engine.contexts, "read", counted)
    monkeypatch.setattr(engine_module, "PIECE", 384)
    asked: list = []  # before the engine reads
    asked.append(Asked(engine, tokens_of(1000), 1))
    asked[0].end()
    for one in asked:
        one.end()
    assert sizes == [384, 384, 384, 232, 384, 132]


def test_a_layer_takes_no_longer_than_others_wait(engine: Any, monkeypatch: Any) -> None:
    """And these wait longer where more are read than written, up to a limit."""
    monkeypatch.setattr(engine, "_step_seconds", 1.0)
    monkeypatch.setattr(engine, "_token_seconds", engine_module.PIECE_STEPS / 300)
    monkeypatch.setattr(engine_module, "MOST_READERS", 2.0)

    def n_tokens(n_reading: int, n_writing: int) -> int:
        monkeypatch.setattr(engine, "_reading", [None] * n_reading)
        monkeypatch.setattr(engine, "_writing", [None] * n_writing)
        n: int = engine._piece_tokens()
        return n

    try:
        assert n_tokens(1, 0) == engine_module.PIECE
        assert n_tokens(1, 1) == n_tokens(1, 4) == n_tokens(3, 3) == 256
        assert n_tokens(3, 2) == 384
        assert n_tokens(2, 1) == n_tokens(9, 1) == 512
        monkeypatch.setattr(engine, "_token_seconds", 1e9)
        assert n_tokens(1, 1) == 128
        monkeypatch.setattr(engine, "_token_seconds", 1e-9)
        assert n_tokens(1, 1) == engine_module.PIECE
    finally:
        monkeypatch.undo()


def test_a_step_comes_before_the_layer_that_would_end_too_late(engine: Any, monkeypatch: Any) -> None:
    now, at = 0.0, []

    def step(requests: Any) -> None:
        nonlocal now
        at.append(now)
        now += 1.0

    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: now)
    monkeypatch.setattr(engine, "_write", step)
    engine._writing, engine._step_seconds = [None], 1.0
    engine._step_at = engine._layer_at = engine._layer_seconds = 0.0
    try:
        for _ in range(12):
            now += 0.4 * engine_module.PIECE_STEPS  # two layers fit, three do not
            engine._between_layers()
    finally:
        engine._writing = []
    pieces = np.diff([-1.0, *at]) - 1.0
    np.testing.assert_allclose(pieces, 0.8 * engine_module.PIECE_STEPS)
    assert len(at) == 6


def test_more_than_may_wait_are_refused() -> None:
    with running_engine(n_places=1, max_waiting=2) as engine:
        running = Asked(engine, tokens_of(20), 900)
        assert running.begun.wait(60)
        waiting = [Asked(engine, tokens_of(20), 1) for _ in range(2)]
        with pytest.raises(Refused) as refused:
            Asked(engine, tokens_of(20), 1)
        assert not refused.value.is_closing
        engine.cancel(waiting[0].request)  # makes room
        third = Asked(engine, tokens_of(20), 1)
        engine.cancel(running.request)  # its place is free at once
        assert isinstance(waiting[1].end(), Done) and isinstance(third.end(), Done)
        assert not waiting[0].events


def test_requests_are_served_in_their_order() -> None:
    """With one place: the first event of each comes after the last one of that before it."""
    with running_engine(n_places=1) as engine:
        asked = [Asked(engine, tokens_of(20, seed=i), 2) for i in range(6)]
        for one in asked:
            one.end()
    assert all(one.times[-1] < after.times[0] for one, after in zip(asked, asked[1:]))


class Broken:
    """Makes forward passes of some texts fail."""

    def __init__(self, engine: Any, monkeypatch: Any, how: str):
        self.victim: Any = None
        step = engine.contexts.step

        def bad_step(places: Any, tokens: Any, held: Any, *more: Any) -> Any:
            if self.victim is None or self.victim.request.place.index not in places:
                return step(places, tokens, held, *more)
            if how == "memory":
                raise MemoryError
            if how == "nan":
                logits = step(places, tokens, held, *more).clone()
                logits[places.index(self.victim.request.place.index)] = np.nan
                return logits
            step(places, tokens, held, *more)  # all have a token more in their places, which must go again
            raise RuntimeError("w13 w14, secret")

        monkeypatch.setattr(engine.contexts, "step", bad_step)


@pytest.mark.parametrize("how", ["error", "memory", "nan"])
def test_an_error_in_a_step_fails_one_request(engine: Any, monkeypatch: Any, caplog: Any, how: str) -> None:
    prompts = [tokens_of(60 + i, seed=i) for i in range(3)]
    alone = [Asked(engine, prompt, 60).tokens for prompt in prompts]
    broken = Broken(engine, monkeypatch, how)
    with caplog.at_level(logging.INFO, "sparq_ipu"):
        asked = [Asked(engine, prompt, 60) for prompt in prompts]
        assert asked[1].begun.wait(60)
        broken.victim = asked[1]
        assert isinstance(asked[1].end(), Failed)
        assert [asked[0].tokens, asked[2].tokens] == [alone[0], alone[2]]
        broken.victim = None
        assert Asked(engine, prompts[1], 60).tokens == alone[1]
    assert "request failed" in caplog.text and "secret" not in caplog.text


def test_an_error_in_a_prompt_fails_one_request(engine: Any, monkeypatch: Any) -> None:
    alone = Asked(engine, tokens_of(60), 60).tokens
    fail_pieces_of(77, engine, monkeypatch)
    good, bad = Asked(engine, tokens_of(60), 60), Asked(engine, tokens_of(77, seed=4), 5)
    assert isinstance(bad.end(), Failed) and good.tokens == alone
    assert isinstance(Asked(engine, tokens_of(76, seed=4), 5).end(), Done)


def test_who_takes_an_answer_may_fail(engine: Any) -> None:
    def gone(event: Any) -> None:
        raise RuntimeError("the loop is closed")

    asked = Asked(engine, tokens_of(20), 500)
    asked.request.emit = gone
    assert isinstance(Asked(engine, tokens_of(21), 5).end(), Done)
    deadline = time.monotonic() + 60
    while not all(place.is_free for place in engine._places):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_finishes_what_runs_and_refuses_what_waits() -> None:
    with running_engine(n_places=1) as engine:
        running = Asked(engine, tokens_of(20), 100)
        assert running.begun.wait(60)
        waiting = Asked(engine, tokens_of(20), 1)
        engine.close()
        assert waiting.end() == Failed("the server is shutting down", is_refused=True)
        with pytest.raises(Refused) as refused:
            Asked(engine, tokens_of(20), 1)
        assert refused.value.is_closing and not engine.is_alive
        engine.stop(60)
        assert len(running.tokens) == 100


def test_stopping_at_once_fails_what_runs() -> None:
    with running_engine(n_places=1) as engine:
        running = Asked(engine, tokens_of(20), 900)
        assert running.begun.wait(60)
        engine.stop()
        assert isinstance(running.end(), Failed)


def test_stop_strings_and_stop_tokens(engine: Any) -> None:
    full = Asked(engine, tokens_of(40), 30).tokens
    stop = words(full[9:11])
    asked = Asked(engine, tokens_of(40), 30, stops=[stop])
    assert asked.end().reason == "stop"
    assert asked.text == words(full[: asked.end().n_new]).partition(stop)[0]
    at = full.index(full[6])
    by_token = Asked(engine, tokens_of(40), 30, stop_tokens=[full[6]])
    assert by_token.end().reason == "stop" and by_token.tokens == full[:at]


def test_memory_is_bounded(engine: Any) -> None:
    held = engine.contexts.cache.bytes
    for seed in range(12):
        Asked(engine, tokens_of(500, seed=seed), 3).end()
    assert engine.contexts.cache.bytes == held
    per_place = held / 4
    assert per_place < CONTEXT * 3 * 2 * 16 * (2 + 2 + 2) * 1.2


def test_models_that_can_not_be_served() -> None:
    with pytest.raises(ValueError, match="serve: model must be enabled"):
        Contexts(tiny_model(), 1, 8)
    slow = tiny_model()
    sparq_ipu.transformers.enable(slow, device="reference")
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        Contexts(slow, 1, 8)
    with pytest.raises((ValueError, MemoryError)):
        Contexts(served_model(), 1024, 1 << 24)
