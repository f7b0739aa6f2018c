# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py: what other programs are asked for and how they are timed. Modules stand in for them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Iterator

import peers
import pytest
from processor import Pace

TOKENS = [1001, 1002, 1003]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What peers.py takes for the time: `now`, which only the stand-ins change."""
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    made = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)


def asked(program: str, kv: str) -> argparse.Namespace:
    return argparse.Namespace(program=program, model=Path("x.gguf"), kv=kv, S=64, threads=3)


def test_llama_cpp(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    """All its threads, both caches, and the prompt kept; a part without a token is no time."""
    bodies, servers = [], []

    class Server:
        def __init__(self, params: Any):
            servers.append(params)

        def handle_completions(self, body: dict[str, Any], came: Callable[[Any], None]) -> None:
            bodies.append(body)
            for seconds in [3.0] + [0.5] * (body["n_predict"] - 1):
                clock.now += seconds
                came({"choices": [{"finish_reason": None}]})
            clock.now += 7.0
            came({"choices": [{"finish_reason": "length"}]})

    def params() -> SimpleNamespace:
        parts = {name: SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return SimpleNamespace(**parts)

    kinds = SimpleNamespace(GGML_TYPE_F16="16 bits", GGML_TYPE_Q8_0="8 bits")
    flash = SimpleNamespace(LLAMA_FLASH_ATTN_TYPE_ENABLED="on")
    names = dict(ggml_type=kinds, llama_flash_attn_type=flash, Server=Server)
    module(monkeypatch, "xllamacpp", CommonParams=params, **names)

    run = peers._llama(asked("llama.cpp", "q8_0"))
    assert run(TOKENS, 4) == [10.0, 13.0, 13.5, 14.0, 14.5]
    (given,) = servers
    assert given.model.path == "x.gguf" and given.n_ctx == 64
    assert given.cpuparams.n_threads == given.cpuparams_batch.n_threads == 3
    assert given.cache_type_k == given.cache_type_v == "8 bits"
    (body,) = bodies
    assert body["prompt"] == TOKENS and body["ignore_eos"] is True and body["cache_prompt"] is True

    def fails(self: Any, body: Any, came: Callable[[Any], None]) -> None:
        came({"error": "too long"})

    monkeypatch.setattr(Server, "handle_completions", fails)
    with pytest.raises(RuntimeError, match=r"llama\.cpp: too long"):
        run(TOKENS, 4)


def test_openvino(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    """It says its times itself, in microseconds; of its durations the last are those between tokens."""
    pipes, configs = [], []

    class Pipeline:
        def __init__(self, *words: Any, **options: Any):
            pipes.append((words, options))

        def generate(self, inputs: Any, config: Any, streamer: Any) -> Any:
            configs.append((inputs.tolist(), config))
            for token in range(config.max_new_tokens):
                assert streamer.write(token) == "go on"
            streamer.end()
            times = dict(m_times_to_first_token=[3e6], m_durations=[3e6, 5e5, 2.5e5])
            return SimpleNamespace(perf_metrics=SimpleNamespace(raw_metrics=SimpleNamespace(**times)))

    names = dict(LLMPipeline=Pipeline, StreamerBase=object, GenerationConfig=SimpleNamespace)
    names.update(StreamingStatus=SimpleNamespace(RUNNING="go on"))
    module(monkeypatch, "openvino", Tensor=lambda array: array)
    module(monkeypatch, "openvino_genai", TokenizedInputs=lambda ids, mask: ids, **names)

    run = peers._openvino(asked("openvino", "u8"))
    assert run(TOKENS, 3) == [10.0, 13.0, 13.5, 13.75]
    assert pipes == [(("x.gguf", "CPU"), dict(INFERENCE_NUM_THREADS=3, KV_CACHE_PRECISION="u8"))]
    ((ids, config),) = configs
    assert ids == [TOKENS] and config.ignore_eos and not config.do_sample


def test_others_are_looked_for_in_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran while the prompt was read and while it was looked up again, not while tokens were said."""

    class Seen(peers.Others):
        @contextlib.contextmanager
        def watching(self) -> Iterator[None]:
            self.samples = [(10.0, 0.0, 0.0), (13.0, 3.0, 6.0), (20.0, 13.0, 20.0), (35.0, 13.0, 50.0)]
            yield

    monkeypatch.setattr(peers, "Others", Seen)
    times = {1: [10.0, 13.0], 3: [19.0, 20.0, 34.0, 35.0]}
    monkeypatch.setitem(peers._PROGRAMS, "openvino", lambda a: lambda _, n_new: times.get(n_new))
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(peers, "pace", lambda n_threads: Pace(1e9, 0.25))
    row = peers.measure(argparse.Namespace(program="openvino", S=9, tokens=2, seed=0, threads=1, rest=0))
    assert row["first"] == [0.5, 0.25] and row["others"] == 0.0 and row["paused"] == 0.25


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("llama.cpp x.gguf", "xllamacpp must be installed"),
        ("openvino x.gguf", "openvino-genai must be installed"),
        ("openvino x.gguf --kv q8_0", "--kv must be one of f16, u8 with openvino, got q8_0"),
        ("llama.cpp x.gguf --S 22", "--S must be at least 3 more than --tokens, got 22 and 20"),
    ],
)
def test_refusals(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("xllamacpp", "openvino", "openvino_genai"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit):
        peers.main(words.split())
    said = capsys.readouterr().err
    assert text in said and ("pip install '.[peers]'" in said) == ("installed" in text)
