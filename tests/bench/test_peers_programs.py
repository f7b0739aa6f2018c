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


def asked(program: str, kv: str, batch: int = 1) -> argparse.Namespace:
    values = dict(program=program, model=Path("x.gguf"), kv=kv, S=64, threads=3, batch=batch, filled=False)
    return argparse.Namespace(**values)


def test_llama_cpp(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    """All its threads, both caches, and the prompt kept; a part without a token is no time."""
    bodies, servers = [], []

    class Server:
        listening_address = "there"

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
    states = dict(LLAMA_FLASH_ATTN_TYPE_ENABLED="on", LLAMA_FLASH_ATTN_TYPE_DISABLED="off")
    flash = SimpleNamespace(**states)
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

    assert given.flash_attn_type == "on"
    peers._llama(asked("llama.cpp-no-flash", "f16"))
    assert servers[1].flash_attn_type == "off" and servers[1].cache_type_k == "16 bits"

    monkeypatch.setattr(peers.filled, "llama_cpp", lambda run, *words: words)
    assert peers._llama(asked("llama.cpp", "f16", batch=2)) == ("there", None, 2)  # each slot reads
    assert servers[2].n_parallel == 2 and servers[2].n_ctx == 128

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

    sparse = dict(SparseAttentionConfig=lambda mode: f"defaults of {mode}", SchedulerConfig=SimpleNamespace)
    modes = SimpleNamespace(XATTENTION="xattention")
    words = dict(TokenizedInputs=lambda ids, mask: ids, SparseAttentionMode=modes)
    module(monkeypatch, "openvino_genai", **words, **names, **sparse)
    peers._openvino(asked("openvino-xattention", "f16"))
    scheduler = pipes[1][1]["scheduler_config"]
    assert scheduler.use_sparse_attention and scheduler.enable_prefix_caching
    assert scheduler.sparse_attention_config == "defaults of xattention"


def test_mistral_rs(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    """The template's tokens are left out of the words; a prompt of another length is an error."""
    runners, prompts, extra = [], [], [30]

    class Runner:
        def __init__(self, which: Any):
            runners.append(which)

        def send_chat_completion_request(self, request: Any) -> Any:
            (message,), _ = request
            prompts.append(message["content"].split())
            for _ in range(2):
                clock.now += 2.0
                yield SimpleNamespace(usage=None)
            clock.now += 1.0
            yield SimpleNamespace(usage=SimpleNamespace(prompt_tokens=len(prompts[-1]) + extra[0]))

    which = SimpleNamespace(GGUF=lambda folder, name: name)
    requests = dict(ChatCompletionRequest=lambda messages, model, **_: (messages, model))
    module(monkeypatch, "mistralrs", Runner=Runner, Which=which, **requests)
    run = peers._mistral(asked("mistral.rs", "f16"))
    run(list(range(48)), 3)
    times = run(list(range(100)), 3)
    assert [after - before for before, after in zip(times, times[1:])] == [2.0, 2.0, 1.0]
    assert runners == ["x.gguf"] and [len(words) for words in prompts] == [48, 70]
    extra[0] = 50
    with pytest.raises(RuntimeError, match=r"mistral.rs must read 100 tokens, got 120"):
        run(list(range(100)), 3)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("llama.cpp x.gguf", "xllamacpp must be installed"),
        ("openvino x.gguf", "openvino-genai must be installed"),
        ("mistral.rs x.gguf", "mistralrs must be installed"),
        ("openvino x.gguf --kv q8_0", "--kv must be one of f16, u8 with openvino, got q8_0"),
        ("llama.cpp x.gguf --S 22", "--S must be at least 3 more than --tokens, got 22 and 20"),
    ],
)
def test_refusals(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "_tokens_elsewhere", lambda model: [1, 2, 3])
    for name in ("xllamacpp", "openvino", "openvino_genai", "mistralrs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit):
        peers.main(words.split())
    said = capsys.readouterr().err
    assert text in said and ("pip install '.[peers]'" in said) == ("installed" in text)


def test_a_missing_kernel_is_not_a_missing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(a: Any) -> Any:
        raise ModuleNotFoundError("No module named 'sparq_ipu._cpu'", name="sparq_ipu._cpu")

    monkeypatch.setattr(peers, "_tokens_elsewhere", lambda model: [1, 2, 3])
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
