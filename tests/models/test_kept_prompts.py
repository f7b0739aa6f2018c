# SPDX-License-Identifier: Apache-2.0
"""`--cache-dir` of `sparq-ipu serve` and `generate`: a prompt from disk has the bits of one that is read."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import signal
import time
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from families import FAMILIES, WINDOW
from server_process import Process
from tiny_models import of_even_attention, tiny_model, tokens_of, torch
from tiny_server import CONTEXT, Asked, served_model
from tiny_server import tiny_tokenizer as tokenizer

import sparq_ipu.transformers
from sparq_ipu import generate
from sparq_ipu.kept_prefixes import BLOCK, KeptPrefixes
from sparq_ipu.serve import command
from sparq_ipu.serve.contexts import Contexts
from sparq_ipu.serve.engine import Done, Engine
from sparq_ipu.serve.metrics import Metrics
from sparq_ipu.transformers.cache import windows
from sparq_ipu.transformers.decoder.step_layer import StepLayer
from sparq_ipu.transformers.generation import beginning, runs
from sparq_ipu.transformers.generation.version import version_of

httpx = pytest.importorskip("httpx")
pytest.importorskip("sparq_ipu._cpu")


@contextlib.contextmanager
def started(model: Any, folder: Path, n_places: int = 3) -> Iterator[Engine]:
    """A server that was just started: it holds nothing but what is on disk."""
    contexts = Contexts(model, n_places, CONTEXT)
    kept = KeptPrefixes(folder, version_of(model, "serve"), 1e9)
    engine = Engine(contexts, tokenizer(), 100, Metrics(), kept=kept)
    try:
        yield engine
    finally:
        engine.stop()
        contexts.close()


def held_by(asked: Asked) -> int:
    end = asked.end()
    assert isinstance(end, Done), end
    return end.n_held


def bits_of(engine: Engine, asked: Asked) -> list[bytes]:
    """Rows of the prompt in the place of a request, and through attention its key index and sums."""
    place = asked.request.place
    assert place is not None
    bits = []
    for layer in engine.contexts.cache._layers:
        rows = layer.rows((place.index,))
        assert rows.lengths.tolist() == [len(asked.request.tokens)]
        bits += [x.tobytes() for x in rows.read()]
        query = np.random.default_rng(0).standard_normal((1, 6, rows.head_dim)).astype(np.float16)
        settings = engine.contexts.cache._settings[0]
        bits.append(sparq_ipu.attention.attention(query, rows, settings.attention).tobytes())
    return bits


@pytest.mark.parametrize("seed", range(6))
def test_a_prompt_from_disk_has_the_bits_of_a_fresh_one(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    model = served_model()
    if seed % 2:
        model = served_model().to(torch.bfloat16)
    base = tokens_of(900, seed=seed)[0].tolist()
    prompts = []
    for index in range(4):
        n = draw.randrange(1, 800)
        prompts.append(base[:n] + tokens_of(draw.randrange(1, 100), seed=100 * seed + index)[0].tolist())
    expected = []
    for index, prompt in enumerate(prompts):  # each by a server of its own, with nothing kept
        with started(model, tmp_path / f"none{index}", 1) as engine:
            asked = Asked(engine, prompt, 8)
            expected.append((asked.tokens, bits_of(engine, asked)))
    for turn in range(2):
        for index in draw.sample(range(4), 4):
            with started(model, tmp_path / "kept", 1) as engine:
                asked = Asked(engine, prompts[index], 8)
                assert (asked.tokens, bits_of(engine, asked)) == expected[index]
                if turn:
                    assert held_by(asked) == (len(prompts[index]) - 1) // BLOCK * BLOCK


def test_many_at_once_from_disk(tmp_path: Path) -> None:
    model, base = served_model(), tokens_of(700)[0].tolist()
    prompts = [base[:n] + [n % 90] * 20 for n in (10, 130, 300, 400, 650, 700)]
    with started(model, tmp_path) as engine:
        expected = [asked.tokens for asked in [Asked(engine, prompt, 20) for prompt in prompts]]
    with started(model, tmp_path) as engine:
        again = [Asked(engine, prompt, 20) for prompt in prompts]
        assert [asked.tokens for asked in again] == expected
        for asked, prompt in zip(again, prompts):
            assert held_by(asked) == (len(prompt) - 1) // BLOCK * BLOCK


def test_a_damaged_file_is_read_as_a_prompt(tmp_path: Path, caplog: Any) -> None:
    model, prompt = served_model(), tokens_of(600)[0].tolist()
    with started(model, tmp_path) as engine:
        expected = Asked(engine, prompt, 20).tokens
    for path in tmp_path.iterdir():
        *rest, last = path.read_bytes()
        path.write_bytes(bytes([*rest, last ^ 1]))
    for n_held in (0, 512):
        with started(model, tmp_path) as engine:
            asked = Asked(engine, prompt, 20)
            assert asked.tokens == expected and held_by(asked) == n_held
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "is ignored: its checksum is wrong" in caplog.text


@pytest.mark.parametrize("what", ["weights", "config", "row_bits", "threads", "prompt_blocks"])
def test_prompts_of_another_model_are_read(tmp_path: Path, what: str) -> None:
    prompt = tokens_of(300)[0].tolist()
    with started(served_model(), tmp_path) as engine:
        Asked(engine, prompt, 2).end()
    n_threads = torch.get_num_threads()
    settings = {"row_bits": dict(row_bits=8), "prompt_blocks": dict(prompt_blocks=0.01)}
    model = served_model(**settings.get(what, {}))
    if what == "weights":
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 4] += 1
    elif what == "config":
        model.config.rope_theta = 1e6
    elif what == "threads":
        torch.set_num_threads(n_threads + 1)
    try:
        with started(model, tmp_path) as engine:
            assert held_by(Asked(engine, prompt, 2)) == 0
    finally:
        torch.set_num_threads(n_threads)


def test_other_settings_of_sparq_share_prompts(tmp_path: Path) -> None:
    """Prompts are read densely, whatever decodes."""
    prompt, expected = tokens_of(300)[0].tolist(), []
    for folder, n_held in (("a", 0), ("b", 0), ("b", 256)):
        for settings in ({}, {"top_k": 32, "index_bits": 4}) if n_held else ({"top_k": 32, "index_bits": 4},):
            with started(served_model(**settings), tmp_path / folder) as engine:
                asked = Asked(engine, prompt, 30)
                if settings:
                    expected.append(asked.tokens)
                assert held_by(asked) == n_held
    assert expected[0] == expected[1] == expected[2]


def cached_tokens(url: str, prompt: str) -> tuple[str, int]:
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_server_that_was_restarted_finds_its_prompts(checkpoint: Path, tmp_path: Path) -> None:
    """Also two at a time on one folder, and one that was killed while it wrote."""
    prompt = " ".join(f"w{2 + i * i % 90}" for i in range(700))
    words = ("--context", "1024", "--cache-dir", str(tmp_path / "kept"), "--cache-gb", "0.5")
    with Process(checkpoint, *words) as server, Process(checkpoint, *words) as other:
        text, n_held = cached_tokens(server.url, prompt)
        assert n_held == 0
        assert cached_tokens(other.url, prompt)[0] == text
        server.send(signal.SIGTERM)
        assert server.end() == 0
        other.process.kill()
    with Process(checkpoint, *words) as server:
        assert cached_tokens(server.url, prompt) == (text, 640)


def test_what_is_refused_before_it_starts(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    for op, main in (("serve", command.main), ("generate", generate.main)):
        prompt = [] if op == "serve" else ["--prompt", "w1"]
        for words, message in (
            (
                ["--cache-dir", str(tmp_path / "file")],
                "--cache-dir must be a folder that can be written, got",
            ),
            (["--cache-gb", "2"], "--cache-gb must be with --cache-dir, got 2 alone"),
        ):
            assert main(["--model", str(checkpoint), *prompt, *words]) == 2
            assert f"{op}: {message}" in capsys.readouterr().err


# `generate`


def run_of(
    model: Any, tokens: Any, folder: Path | None, last: int = 10**6, **options: Any
) -> tuple[Any, list[bytes]]:
    """A run of 12 tokens, and the bits of the `last` tokens of the cache after its prompt."""
    kept = None if folder is None else KeptPrefixes(folder, version_of(model, "generate"), 1e9)
    run = runs.generate(model, tokenizer(), tokens, 12, kept=kept, keep_read=True, **options)
    if kept is not None:
        kept.close()
    bits = []
    for layer in run.read.layers:
        assert layer.real.shape == (1, tokens.shape[1]) and layer.is_all_real
        bits += [x.tobytes() for x in layer.read_rows(max(0, tokens.shape[1] - last), tokens.shape[1])]
    return run, bits


@pytest.mark.parametrize(
    "settings",
    [dict(rank=8, top_k=16, min_seq_len=40), {}],
    ids=["sparq", "dense"],
)
def test_generate_continues_from_disk(tmp_path: Path, monkeypatch: Any, settings: Any) -> None:
    monkeypatch.setattr(beginning, "PIECE", 512)
    model = tiny_model(max_position_embeddings=4096)
    kind = "" if settings else "_dense"
    getattr(sparq_ipu.transformers, f"enable{kind}")(model, **settings)
    first = tokens_of(1700, seed=1)
    other = torch.cat([first[:, :1200], tokens_of(100, seed=2)], dim=1)
    prompts = [first, other, first[:, : 1024 + 33], first[:, : 1023 + 33], first[:, :30]]
    found = [1536, 1024, 1024, 512, 0]
    expected = [run_of(model, prompt, tmp_path / f"none{i}") for i, prompt in enumerate(prompts)]
    assert expected[0][0].n_held == 0
    assert run_of(model, first, tmp_path / "kept")[0].n_held == 0
    for prompt, n_held, (run, bits) in zip(prompts, found, expected):
        again, again_bits = run_of(model, prompt, tmp_path / "kept")
        assert (again.n_held, again.tokens, again_bits) == (n_held, run.tokens, bits)


def test_weights_of_few_bits_continue_from_every_block(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(beginning, "PIECE", 300)
    monkeypatch.setattr(StepLayer, "prompt_blocks_from", 500)
    shape = dict(hidden_size=192, intermediate_size=512, vocab_size=1008, max_position_embeddings=4096)
    model = of_even_attention(tiny_model(**shape)).bfloat16()
    sparq_ipu.transformers.enable(model, rank=8, top_k=16, weights="int4", prompt_blocks=0.1)
    first = tokens_of(900, seed=1)
    other = torch.cat([first[:, :700], tokens_of(100, seed=2)], dim=1)
    expected = [run_of(model, prompt, None) for prompt in (first, other)]
    found = []
    for prompt, (run, bits) in zip((first, first, other), (expected[0], *expected)):
        again, again_bits = run_of(model, prompt, tmp_path)
        found.append(again.n_held)
        assert (again.tokens, again_bits) == (run.tokens, bits)
    assert found == [0, (900 - 33) // BLOCK * BLOCK, 700 // BLOCK * BLOCK]
    sparq_ipu.transformers.enable(model, rank=8, top_k=16)  # another share
    whole, whole_bits = run_of(model, first, tmp_path)
    assert whole.n_held == 0 and whole_bits != expected[0][1]


def test_a_file_that_goes_after_it_was_read_is_written_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(beginning, "PIECE", 512)
    model, tokens, read = tiny_model(max_position_embeddings=4096), tokens_of(1100), beginning._from_disk
    sparq_ipu.transformers.enable_dense(model)
    assert run_of(model, tokens, tmp_path)[0].n_held == 0

    def read_and_delete(prompt: Any, cache: Any, settings: Any, kept: KeptPrefixes, whole: int) -> int:
        n_held: int = read(prompt, cache, settings, kept, whole)
        name = kept._names(prompt)[2]
        (tmp_path / name).unlink()
        kept._known.discard(name)
        return n_held

    with monkeypatch.context() as patch:
        patch.setattr(beginning, "_from_disk", read_and_delete)
        assert run_of(model, tokens, tmp_path)[0].n_held == 1024
    assert run_of(model, tokens, tmp_path)[0].n_held == 1024


def test_layers_with_windows_continue_from_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """Also where their positions are dropped before the prompt is read."""
    monkeypatch.setattr(beginning, "PIECE", 512)
    monkeypatch.setattr(windows, "BACK", 64)
    monkeypatch.setattr(windows, "_MORE", 700)
    family = FAMILIES["Gemma 3"]
    model = tiny_model(family.kind, max_position_embeddings=4096, **family.changes)
    sparq_ipu.transformers.enable(model, rank=2, top_k=16)
    prompt = tokens_of(1100)
    expected, bits = run_of(model, prompt, tmp_path / "none", WINDOW)
    run_of(model, prompt, tmp_path / "kept", WINDOW)
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert len(names) == 8
    again, again_bits = run_of(model, prompt, tmp_path / "kept", WINDOW)
    assert (again.n_held, again.tokens, again_bits) == (1024, expected.tokens, bits)
    (tmp_path / "kept" / names[0]).unlink()  # whichever block it is
    again, again_bits = run_of(model, prompt, tmp_path / "kept", WINDOW)
    assert (again.n_held < 1024, again.tokens, again_bits) == (True, expected.tokens, bits)


def test_the_command_says_what_came_from_disk(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "long.txt"
    words = ["--model", str(checkpoint), "--prompt-file", str(path), "--new-tokens", "4"]
    words += ["--cache-dir", str(tmp_path / "kept")]
    text, said = " ".join(f"w{2 + i * i % 90}" for i in range(1100)), []
    for end in ("w1", "w1 w2", "w1"):
        path.write_text(f"{text} {end}")
        assert generate.main(words) == 0
        said.append(capsys.readouterr().out)
        deadline = time.monotonic() + 60  # a process ends when all is written
        while sum(path.name[0] != "." for path in (tmp_path / "kept").iterdir()) < 1024 // BLOCK:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert "from disk" not in said[0]
    assert re.search(r"^prompt    1102 tokens, 1024 of them from disk, read in", said[1], re.M)
    assert said[0].splitlines()[0] == said[2].splitlines()[0]


def test_a_dense_run_to_compare_with_has_a_prompt_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    """On disk too: it skips no blocks."""
    (tmp_path / "long.txt").write_text(" ".join(f"w{2 + i * i % 90}" for i in range(1100)))
    words = ["--model", str(checkpoint), "--prompt-file", str(tmp_path / "long.txt"), "--new-tokens", "4"]
    words += ["--cache-dir", str(tmp_path / "kept"), "--prompt-blocks", "0.1", "--compare-dense"]
    assert generate.main(words) == 0
    deadline = time.monotonic() + 60  # until all is written
    while sum(path.name[0] != "." for path in (tmp_path / "kept").iterdir()) < 2 * 1024 // BLOCK:
        assert time.monotonic() < deadline
        time.sleep(0.01)
