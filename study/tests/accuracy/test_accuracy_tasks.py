# SPDX-License-Identifier: Apache-2.0
"""Tasks: what they build, where the answers stand, and how they score."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tiny import VOCABULARY, TinyTokenizer

from sparq_study.accuracy import text
from sparq_study.accuracy.plan import Contender, Plan, default_plan, quick_plan
from sparq_study.accuracy.tasks import TASKS, Probe, Words
from sparq_study.accuracy.tasks.item import Item, insert
from sparq_study.accuracy.tasks.words import _distinct

SIZES = {
    "lm": {"length": 300, "span": 20},
    "repetition": {"length": 600},
    "needle": {"lengths": (300, 400)},
    "multikey": {"length": 600},
    "multivalue": {"length": 600},
    "tracking": {"length": 600, "hops": 2},
    "retrieval": {"length": 2400},
    "common": {"rare": 20},
    "frequent": {"length": 100, "vocabulary": 20},
}


def build(name: str, index: int = 0, seed: int = 0, tokenizer=None, **sizes):
    return TASKS[name].build(tokenizer or TinyTokenizer(), index, seed, **{**SIZES[name], **sizes})


@pytest.mark.parametrize("name", TASKS)
def test_items_are_reproducible_and_differ(name):
    tokenizer = TinyTokenizer()
    assert build(name, tokenizer=tokenizer) == build(name, tokenizer=tokenizer)
    assert build(name, tokenizer=tokenizer) != build(name, index=1, tokenizer=tokenizer)
    assert build(name, tokenizer=tokenizer) != build(name, seed=1, tokenizer=tokenizer)


@pytest.mark.parametrize("name", TASKS)
def test_probes_are_well_formed(name):
    item = build(name)
    for probe in item.probes:
        assert probe.prompt and len(probe.target) == len(probe.scored) and any(probe.scored)
    assert item.seq_len == len(item.context) + max(len(probe.prompt) for probe in item.probes)
    assert item.task == name


def test_lm_predicts_the_text_that_follows():
    tokenizer = TinyTokenizer()
    item = build("lm", tokenizer=tokenizer)
    (probe,) = item.probes
    assert len(item.context) == 299 and len(probe.target) == 20
    whole = tokenizer.decode(item.context + probe.prompt + probe.target)
    assert whole in dict(text.excerpts())["play_as_you_like_it"]


def test_repetition_repeats_what_stands_earlier():
    item = build("repetition")
    for probe in item.probes:
        sought = probe.prompt[2:] + probe.target  # after the two line breaks
        starts = [i for i in range(len(item.context)) if item.context[i : i + len(sought)] == sought]
        assert starts and starts[0] + len(sought) + item.distance <= len(item.context)


@pytest.mark.parametrize("name", ["needle", "multikey", "multivalue", "tracking", "retrieval"])
def test_answers_stand_in_the_context_and_outside_the_distance(name):
    tokenizer = TinyTokenizer()
    item = build(name, tokenizer=tokenizer)
    sizes = SIZES[name]
    assert len(item.context) == sizes.get("length", sizes.get("lengths", [0])[0])
    tail = tokenizer.decode(item.context[-item.distance :])
    assert item.distance > 0.35 * len(item.context)
    for probe in item.probes:
        digits = tokenizer.decode(
            [t for t, s in zip(probe.target, probe.scored) if s and Words(tokenizer, "").is_number(t)]
        )
        numbers = [digits[i : i + 5] for i in range(0, len(digits), 5)]
        assert numbers and all(len(number) == 5 for number in numbers)
        for number in numbers:
            assert number in tokenizer.decode(item.context)
            assert number not in tail


def test_needle_cycles_lengths_then_depths():
    labels = [build("needle", index=i, depths=(0.1, 0.5)).probes[0].labels for i in range(5)]
    assert [(label["length"], label["depth"]) for label in labels] == [
        (300, 0.1),
        (400, 0.1),
        (300, 0.5),
        (400, 0.5),
        (300, 0.1),
    ]


def test_retrieval_asks_what_the_three_tasks_ask():
    """In one text, whose pieces are told in turns; a city is told of in one way only."""
    tokenizer = TinyTokenizer()
    item = build("retrieval", tokenizer=tokenizer)
    context, asked = tokenizer.decode(item.context), [tokenizer.decode(probe.prompt) for probe in item.probes]
    heads = ("The secret number of", "A secret number of", "The value of variable")
    assert [[head in text for text in asked].count(True) for head in heads] == [6, 2, 3] and len(asked) == 11
    cities = [text.split()[-2] for text in asked[:8]]
    assert len(set(cities)) == 8
    told = [sentence for sentence in context.split("\n") if sentence.startswith(heads)]
    ends = [(context.index(sentence), context.index(sentence) + len(sentence)) for sentence in told]
    assert all(begin - end > 20 for (_, end), (begin, _) in zip(ends, ends[1:]))  # text between any two
    kinds = [next(i for i, head in enumerate(heads) if sentence.startswith(head)) for sentence in told]
    assert kinds == [0, 1, 2] * 6


@pytest.mark.parametrize("name, hops", [("tracking", 2), ("retrieval", 1)])
def test_tracking_answer_follows_the_chain(name, hops):
    tokenizer = TinyTokenizer()
    item = build(name, tokenizer=tokenizer)
    context = tokenizer.decode(item.context)
    for probe in item.probes[-3:]:
        answer = tokenizer.decode(probe.prompt + probe.target).strip()
        for sentence in answer.split(". "):
            assert f"\n{sentence}.\n" in context
        names = [tokenizer.decode([t]) for t, s in zip(probe.target, probe.scored) if s][:hops]
        assert all(name.strip().isalpha() for name in names)


@pytest.mark.parametrize("name", ["common", "frequent"])
def test_common_words_are_common(name):
    tokenizer = TinyTokenizer()
    item = build(name, tokenizer=tokenizer)
    labels = item.probes[0].labels
    counts = {token: item.context.count(token) for kind in labels.values() for token in kind}
    assert min(counts[t] for t in labels["common"]) > max(counts[t] for t in labels["rare"])
    assert not set(labels["common"]) & set(labels["rare"])


def test_words_that_begin_alike_are_told_apart_by_the_first():
    """A model says the first token of a word alone."""
    by_letter = SimpleNamespace(encode=lambda text: [text[1]])
    assert _distinct(by_letter, ["ant", "axe", "bag", "cat", "cup"], 3) == [
        ("ant", "a"),
        ("bag", "b"),
        ("cat", "c"),
    ]
    with pytest.raises(ValueError, match="rare must leave enough distinct words, got 4 of 4 wanted"):
        _distinct(by_letter, ["ant", "axe", "bag", "cup"], 4)


def test_an_item_is_as_long_as_its_longest_prompt():
    probes = [Probe(prompt, [1], [True]) for prompt in ([1], [1, 2, 3], [1, 2])]
    assert Item("needle", 0, [7, 8], probes).seq_len == 5


def test_insert_puts_pieces_at_their_depth():
    out, rest = insert(list(range(10)), [(0.5, [90, 91]), (0.2, [80])])
    assert out == [0, 1, 80, 2, 3, 4, 90, 91, 5, 6, 7, 8, 9] and rest == 5


def uniform_but(n: int, chosen: dict[int, int], logit: float = 5.0) -> torch.Tensor:
    """Log-probabilities (n, VOCABULARY) of logits 0 but for one token a row."""
    logits = torch.zeros(n, VOCABULARY)
    for row, token in chosen.items():
        logits[row, token] = logit
    return torch.log_softmax(logits, -1)


def test_score_lm():
    tokenizer = TinyTokenizer()
    words = Words(tokenizer, "")
    target = words.encode("some words, here")
    flat = uniform_but(len(target), {})
    sharp = uniform_but(len(target), dict(enumerate(target)))
    probe = Probe([0], target, [True] * len(target))
    sums = TASKS["lm"].score(probe, flat, sharp, words)
    assert sums["bits"] == pytest.approx(len(target) * math.log2(VOCABULARY), rel=1e-5)
    assert sums["chars"] == len("some words, here") and sums["same"] == 0 + target.count(0)
    p = sharp[0].exp().double()
    expected = sum(float(x) * (math.log(float(x)) + math.log(VOCABULARY)) for x in p)
    assert sums["kl"] == pytest.approx(len(target) * expected, rel=1e-4)
    assert TASKS["lm"].score(probe, sharp, sharp, words)["kl"] == 0
    assert TASKS["lm"].score(probe, sharp, flat, words)["kl"] != pytest.approx(sums["kl"], rel=0.01)


def test_score_repetition_counts_characters_before_the_first_miss():
    tokenizer = TinyTokenizer()
    words = Words(tokenizer, "")
    target = words.encode("ab cde f gh")  # pieces of 2, 4, 2, 3 characters
    probe = Probe([0], target, [True] * 4)
    wrong_at = {2: VOCABULARY - 1}
    log_probs = uniform_but(4, {**dict(enumerate(target)), **wrong_at})
    sums = TASKS["repetition"].score(probe, log_probs, None, words)
    assert (sums["n"], sums["hits"], sums["chars"], sums["probes"]) == (4, 3, 11, 1)
    assert sums["run_chars"] == ((2 + 4) + 4) / 2


def test_score_digits():
    words = Words(TinyTokenizer(), "")
    target = words.encode(" 123")
    probe = Probe([0], target, [words.is_number(token) for token in target])
    assert probe.scored == [False, True, True, True]
    right = dict(enumerate(target))
    score = TASKS["needle"].score
    assert score(probe, uniform_but(4, right), None, words) == {"n": 3, "hits": 3, "exact": 1.0, "probes": 1}
    assert (
        score(probe, uniform_but(4, {**right, 0: 99}), None, words)["exact"] == 1.0
    )  # the space does not count
    assert score(probe, uniform_but(4, {**right, 3: 99}), None, words) == {
        "n": 3,
        "hits": 2,
        "exact": 0.0,
        "probes": 1,
    }


def test_score_ranking():
    probe = Probe([0], [1], [True], {"common": [1, 2], "rare": [3, 4]})
    row = torch.full((1, VOCABULARY), -9.0)
    row[0, [1, 2, 3, 4]] = torch.tensor([-1.0, -3.0, -2.0, -3.0])
    # pairs: 1>3, 1>4, 2<3, 2=4
    assert TASKS["common"].score(probe, row, None, Words(TinyTokenizer(), "")) == {
        "auc": 2.5 / 4,
        "top": 1.0,
        "probes": 1,
    }


@pytest.mark.parametrize("texts", text.TEXTS)
def test_excerpts_are_plain_and_mixed(texts):
    names = [name for name, _ in text.excerpts(texts)]
    assert len(names) == len(set(names)) >= 12
    assert [name.split("_")[0] for name in names[:4]] == [*text.TEXTS[texts][1], "play"]
    for name, content in text.excerpts(texts):
        assert content.isascii() and 23_000 < len(content) < 25_000, name
        assert "Gutenberg" not in content, name


def test_sets_of_texts_are_different_works():
    """What confirms a choice was not seen when it was made; every task on text can be given it."""
    study, held_out = (text.excerpts(texts) for texts in ("study", "held_out"))
    assert not {name for name, _ in study} & {name for name, _ in held_out}
    lines = [{line for _, content in found for line in content.splitlines()} for found in (study, held_out)]
    assert not {line for line in lines[0] & lines[1] if len(line) > 40}
    for name in set(TASKS) - {"common", "frequent"}:
        tokenizer = TinyTokenizer()
        item = build(name, index=1, tokenizer=tokenizer, texts="held_out")
        words = tokenizer.decode(item.context)
        starts = range(0, len(words) - 100, 20)
        assert any(words[at : at + 100] in held_out[1][1] for at in starts), name
        assert not any(words[at : at + 100] in study[1][1] for at in starts), name


def test_a_long_text_has_the_excerpts_before_it_in_front():
    """Its end is of its own excerpt, as that of a short one; a text of one excerpt stays as it was."""
    tokenizer = TinyTokenizer()
    found = [content for _, content in text.excerpts("held_out")]
    tokens = [tokenizer(found[i], add_special_tokens=False)["input_ids"] for i in (1, 0, -1)]
    own, before, last = map(tokenizer.decode, tokens)
    assert Words(tokenizer, "x").filler(1, len(tokens[0]), "held_out") == tokens[0]
    long = Words(tokenizer, "x").filler(1, len(tokens[0]) + 500, "held_out")
    assert len(long) == len(tokens[0]) + 500
    assert tokenizer.decode(long)[:200] in before and tokenizer.decode(long)[-200:] in own
    first = tokenizer.decode(Words(tokenizer, "x").filler(0, len(tokens[1]) + 500, "held_out"))
    assert first[:200] in last and first[-200:] in before


def test_filler_error(monkeypatch):
    monkeypatch.setattr("sparq_study.accuracy.tasks.item.excerpts", lambda texts: text.excerpts(texts)[:2])
    with pytest.raises(ValueError, match=r"^accuracy: length must be at most \d+ tokens of text, got 99999$"):
        build("lm", length=99999 - 20)
    message = r"^accuracy: rare must leave enough distinct words, got 505 of \d+ wanted$"
    with pytest.raises(ValueError, match=message):
        build("common", rare=500)


@pytest.mark.parametrize("plan", [default_plan(), quick_plan()], ids=["default", "quick"])
def test_needles_of_the_plans_lie_outside_every_window(plan):
    """Or else a window method gets them for nothing."""
    for name in plan.tasks:
        for index in range(plan.items(name)):
            item = TASKS[name].build(TinyTokenizer(), index, plan.seed, **plan.sizes(name))
            if item.distance is None:
                continue
            for label in plan.methods:
                window = Contender(label).resolve(item.seq_len, 64).window()
                assert window is None or window <= item.distance, (name, label)


def test_contender_matches_at_the_length_of_the_item():
    short, long = (Contender("h2o@sparq:r=16,k=128").resolve(n, 64) for n in (1000, 4000))
    assert short.top_k < long.top_k
    assert Contender("h2o:k=99").resolve(1000, 64).top_k == 99


def test_plan_errors():
    with pytest.raises(ValueError, match=r"^accuracy: task must be one of lm, .*, got 'squad'$"):
        Plan({"squad": {}}, ["dense"])
    with pytest.raises(ValueError, match=r"^parse_method: name must be one of .*, got 'squest'$"):
        Plan({"lm": {}}, ["squest"])
    message = r"^accuracy: method must be METHOD or METHOD@REFERENCE, got 'h2o@sparq@dense'$"
    with pytest.raises(ValueError, match=message):
        Plan({"lm": {}}, ["h2o@sparq@dense"])
    assert Plan({"lm": {}}, ["sparq", "dense", "sparq"]).methods == ["dense", "sparq"]
