# SPDX-License-Identifier: Apache-2.0
"""The example of a Pod: its tokens are those of transformers with the same weights, here and through a
stand-in for PopTorch whose operators run on the emulator, a session for each IPU."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import greedy, tiny_model, tokens_of, torch
from vertex import assert_bits

from sparq_ipu import transformers as sparq
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import attention_over
from sparq_ipu.poptorch import attention as poptorch_attention
from sparq_ipu.transformers import SparqCache
from sparq_reference import exact

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = dict(rank=6, top_k=8, n_local=2)
LENGTHS = (13, 4, 20, 1, 17)
BATCH, CAPACITY, PROMPT, NEW = 2, 48, 20, 6


def example() -> Any:
    path = ROOT / "examples" / "poptorch_pod.py"
    spec = importlib.util.spec_from_file_location("poptorch_pod", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["poptorch_pod"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def llama() -> Any:
    model = tiny_model()
    for layer in model.model.layers:  # random weights hardly look at their context: make them
        layer.self_attn.q_proj.weight.data.mul_(8)
        layer.self_attn.o_proj.weight.data.mul_(8)
    return model


def prompts() -> list[list[int]]:
    return [tokens_of(n, seed=n)[0].tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def expected(llama: Any) -> dict[str, list[list[int]]]:
    """Of transformers, each text alone."""

    def texts() -> list[list[int]]:
        return [greedy(llama, torch.tensor([p]), NEW, cache=SparqCache(llama))[0].tolist() for p in prompts()]

    sparq.enable(llama, published=True, **SETTINGS)
    few = texts()
    sparq.disable(llama)
    dense = [greedy(llama, torch.tensor([p]), NEW)[0].tolist() for p in prompts()]
    assert few != dense
    return {"few": few, "dense": dense}


class Emulated(types.ModuleType):
    """PopTorch where the operators run on the emulator: a session for each IPU, whose layers are the caches
    of that IPU. What attention gives is held against the specification.

    As strict as PopTorch and PopART 3.3: an operator in a branch needs one of its domain outside, and one
    whose results nobody uses is dropped, which counts as a failure here."""

    def __init__(self, decoder: Any, n_heads: int):
        super().__init__("poptorch")
        from sparq_ipu import _core

        self.ipu_of: dict[str, int] = {}
        self.placed: list[tuple[str, int]] = []
        self.calls: list[str] = []
        self.in_branch = False
        self.known_domains: set[str] = set()
        #: first results of fills and Begin that nothing has taken yet
        self.unused: list[Any] = []
        first = decoder.model.layers[0].self_attn.attention
        self.settings = first.settings
        self.rows: dict[str, list[list[np.ndarray]]] = {}
        self.layer_of: dict[str, int] = {}
        counts = [0] * (1 + max(decoder.ipus))
        for layer, ipu in zip(decoder.model.layers, decoder.ipus):
            name = layer.self_attn.attention.cache_name
            self.layer_of[name] = counts[ipu]
            nothing = np.zeros((first.spec.n_kv_heads, 0, first.spec.head_dim), np.float16)
            self.rows[name] = [[nothing, nothing] for _ in range(BATCH)]
            counts[ipu] += 1
        self.spec = first.spec
        attention = [attention_over(first.options.memory, first.settings)]
        self.sessions = [
            _core.Session(
                first.spec,
                n_heads,
                attention=attention,
                options=DeviceOptions(n_tiles=8, hot_rows=first.options.hot_rows),
                n_layers=n,
            )
            for n in counts
        ]

    def isRunningOnIpu(self) -> bool:
        return True

    def BeginBlock(self, module: Any, user_id: str, ipu_id: int) -> Any:
        self.placed.append((type(module).__name__, ipu_id))
        if hasattr(module, "self_attn"):
            self.ipu_of[module.self_attn.attention.cache_name] = ipu_id
        return module

    def cond(self, condition: Any, then_body: Any, then_inps: list, else_body: Any, else_inps: list) -> Any:
        assert condition.shape == () and condition.dtype == torch.bool
        self.in_branch = True
        results = then_body(*then_inps) if condition else else_body(*else_inps)
        self.in_branch = False
        return results

    def custom_op(
        self,
        inputs: Any,
        name: str,
        domain: str,
        domain_version: int,
        example_outputs: Any,
        attributes: Any = None,
    ) -> list[Any]:
        if not self.in_branch:
            self.known_domains.add(domain)
        assert domain in self.known_domains, "No default opset version defined for domain 'ai.sparq'"
        self.take(*inputs)
        results = self.run(name, [t.numpy() for t in inputs], attributes)
        self.unused.append(results[-1])
        return results

    def take(self, *used: Any) -> None:
        self.unused = [each for each in self.unused if all(each is not other for other in used)]

    def run(self, name: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> list[Any]:
        if name == "Begin":
            return [torch.tensor(arrays[0])]
        cache = attributes["cache_name"]
        session, layer = self.sessions[self.ipu_of[cache]], self.layer_of[cache]
        self.calls.append(name)
        if name == "CacheFill":
            key, value, lengths = arrays[:3]
            for b, n in enumerate(lengths):
                if n >= 0:
                    self.rows[cache][b] = [key[b, :, :n], value[b, :, :n]]
            counts = [rows[0].shape[1] for rows in self.rows[cache]]
            whole = np.zeros((2, BATCH, key.shape[1], max(counts), key.shape[3]), np.float16)
            for b, rows in enumerate(self.rows[cache]):
                whole[:, b, :, : counts[b]] = rows
            session.reset(layer)
            session.write(*whole, counts, layer)
            return [torch.tensor(session.lengths(layer), dtype=torch.int32)]
        assert name == "SparqDecode"
        query, key, value, active = arrays[:4]
        token = [np.ascontiguousarray(x[:, :, None]) for x in (key, value)]
        session.append(*token, active.tolist(), layer)
        output = session.attention(0, np.ascontiguousarray(query), layer=layer)
        for b in range(BATCH):
            if active[b]:
                pairs = zip(self.rows[cache][b], token)
                self.rows[cache][b] = [np.concatenate([held, new[b]], axis=1) for held, new in pairs]
            k, v = self.rows[cache][b]
            alone = query[b : b + 1], k[None], v[None]
            assert_bits(output[b : b + 1], exact.attention(*alone, self.settings, self.spec))
        return [torch.from_numpy(output), torch.tensor(session.lengths(layer), dtype=torch.int32)]


@pytest.mark.parametrize("kind", ["few", "dense"])
def test_tokens_are_those_of_transformers(llama: Any, expected: dict[str, Any], kind: str) -> None:
    """Five texts of several lengths in two rows: rows begin new texts while others wait."""
    pod = example()
    decoder = pod.Decoder.like(llama, BATCH, CAPACITY, PROMPT, SETTINGS if kind == "few" else None)
    with torch.no_grad():
        texts = pod.generate(decoder, BATCH, PROMPT, prompts(), NEW)
        assert texts == expected[kind]
        assert pod.generate(decoder, BATCH, PROMPT, prompts()[:1], NEW) == expected[kind][:1]  # a row idles
        end = texts[0][2]
        assert pod.generate(decoder, BATCH, PROMPT, prompts()[:1], NEW, end=end) == [
            texts[0][: texts[0].index(end) + 1]
        ]


@pytest.mark.parametrize("options", [{}, dict(memory="tiered", index_bits=4, hot_rows=12)], ids=str)
def test_over_two_emulated_ipus(
    llama: Any, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Texts are shorter than a block of the key index, so its bits change none of them."""
    pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
    pod = example()
    decoder = pod.Decoder.like(llama, BATCH, CAPACITY, PROMPT, {**SETTINGS, **options}, n_ipus=2)
    stand_in = Emulated(decoder, llama.config.num_attention_heads)
    monkeypatch.setattr(poptorch_attention, "poptorch", stand_in)
    monkeypatch.setattr(poptorch_attention, "load_library", lambda: None)
    monkeypatch.setattr(pod, "poptorch", stand_in)
    decoder.place()
    assert decoder.ipus == [0, 0, 1]
    assert stand_in.placed == [("Embedding", 0), ("Layer", 0), ("Layer", 0), ("Layer", 1), ("Norm", 1)]

    def step(*arguments: Any) -> Any:
        logits, held = decoder(*arguments)
        stand_in.take(held)
        assert not stand_in.unused
        return logits, held

    with torch.no_grad():
        assert pod.generate(step, BATCH, PROMPT, prompts(), NEW) == expected["few"]
    assert set(stand_in.calls) == {"CacheFill", "SparqDecode"}
    assert [session.n_layers for session in stand_in.sessions] == [2, 1]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--checkpoint", "nodir"], "--checkpoint must be a folder with a config.json, got nodir"),
        (["--ipu"], "--ipu must have PopTorch, which comes with the Poplar SDK"),
    ],
)
def test_bad_usage(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pod = example()
    monkeypatch.setattr(pod, "poptorch", None)
    monkeypatch.setattr(pod, "Decoder", None)
    monkeypatch.setattr("sys.argv", ["poptorch_pod.py", *words])
    with pytest.raises(SystemExit) as stop:
        pod.main()
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_sampling() -> None:
    pod = example()
    logits = torch.tensor([[0.0, 8.0, 0.0], [9.0, 0.0, 0.0]])
    assert pod.greedy(logits).tolist() == [1, 0]
    assert pod.sampler(0.1, 0)(logits).tolist() == [1, 0]
    drawn = torch.stack([pod.sampler(100.0, seed)(logits) for seed in range(40)])
    assert set(drawn.flatten().tolist()) == {0, 1, 2}
    assert torch.equal(pod.sampler(100.0, 3)(logits), pod.sampler(100.0, 3)(logits))
