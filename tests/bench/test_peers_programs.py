# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py: what other programs are asked for and how they are timed. Modules stand in for them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

import peers
import pytest

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

        def generate(self, inputs: Any, config: Any) -> Any:
            configs.append((inputs.tolist(), config))
            times = dict(m_times_to_first_token=[3e6], m_durations=[3e6, 5e5, 2.5e5])
            return SimpleNamespace(perf_metrics=SimpleNamespace(raw_metrics=SimpleNamespace(**times)))

    names = dict(LLMPipeline=Pipeline, GenerationConfig=SimpleNamespace)
    module(monkeypatch, "openvino", Tensor=lambda array: array)
    module(monkeypatch, "openvino_genai", TokenizedInputs=lambda ids, mask: ids, **names)

    run = peers._openvino(asked("openvino", "u8"))
    assert run(TOKENS, 3) == [10.0, 13.0, 13.5, 13.75]
    assert pipes == [(("x.gguf", "CPU"), dict(INFERENCE_NUM_THREADS=3, KV_CACHE_PRECISION="u8"))]
    ((ids, config),) = configs
    assert ids == [TOKENS] and config.ignore_eos and not config.do_sample and config.max_new_tokens == 3
    assert run(TOKENS, 1) == [10.0, 13.0]


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


def test_a_missing_kernel_is_not_a_missing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(a: Any) -> Any:
        raise ModuleNotFoundError("No module named 'sparq_ipu._cpu'", name="sparq_ipu._cpu")

    monkeypatch.setitem(peers._PROGRAMS, "openvino", no_kernels)
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        peers.main(["openvino", "x.gguf"])


def test_the_command_answers_every_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", ["2\n", "1\n"])
    monkeypatch.setattr(
        peers, "said", lambda a, asked: [dict(of=a.tokens), *(dict(n=line) for line in asked)]
    )
    assert peers.main(["openvino", "x.gguf", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.splitlines() == ['{"of": 5}', '{"n": "2\\n"}', '{"n": "1\\n"}']
