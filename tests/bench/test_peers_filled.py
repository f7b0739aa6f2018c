# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py --filled: caches that no prompt filled. Modules stand in for the other programs."""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Sequence

import numpy as np
import peers
import pytest
from lib import filled, quiet

ROW = 4  # bytes


def saved(
    tokens: Sequence[int], streams: Sequence[int] = (1,), n_layers: int = 2, transposed: bool = False
) -> bytes:
    """A slot as llama.cpp saves it: each row has its layer, whether it is a value, and its position; of
    transposed values, 3 components of a layer are rows."""

    def words(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}I", *values)

    n = len(tokens)
    parts = [words(0x67677371, 4, n + 4, 0xFFFFFFFF, 1, n, *tokens, 0, len(streams))]
    for is_held in streams:
        parts.append(words(n if is_held else 0))
        if is_held:
            cells = (word for i in range(n) for word in (i, 1, 6))
            parts.append(words(*cells, int(transposed), n_layers, 0, 0))
            for part in range(2 * n_layers):
                n_rows = 3 if transposed and part >= n_layers else 1
                parts.append(words(1, ROW, 0 if n_rows == 1 else n_rows))
                parts += [words(1000 * part + 100 * j + i) for j in range(n_rows) for i in range(n)]
    return b"".join(parts)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("streams", [(1,), (0, 1, 0)])
@pytest.mark.parametrize("n", [3, 5, 12, 15])
def test_rows_are_repeated(n: int, streams: tuple[int, ...], transposed: bool) -> None:
    old, new = list(range(70, 75)), list(range(200, 200 + n))
    made = b"".join(filled.lengthened(saved(old, streams, transposed=transposed), new))
    rows = np.frombuffer(made, np.uint32)
    wanted = np.frombuffer(saved(new, streams, transposed=transposed), np.uint32).copy()
    assert rows.shape == wanted.shape
    at = len(wanted) - (len(streams) - 1 - streams.index(1))  # other slots hold nothing
    for part in reversed(range(4)):
        n_rows = 3 if transposed and part >= 2 else 1
        for j in reversed(range(n_rows)):
            at -= n
            wanted[at : at + n] = [1000 * part + 100 * j + i % 5 for i in range(n)]
        at -= 3
    assert rows.tolist() == wanted.tolist()


@pytest.mark.parametrize("word", [0, 1, 13, 14, 15, 30])
def test_other_files_are_refused(word: int) -> None:
    """Another magic, version, number of cells, kind of cell and number of layers; and one that is cut off."""
    data = saved([7, 8, 9, 10, 11])
    with pytest.raises(ValueError, match="must be one sequence of version 4"):
        list(filled.lengthened(data[:-4], [1, 2]))
    with pytest.raises(ValueError, match="must be one sequence of version 4"):
        list(filled.lengthened(data + b"more", [1, 2]))
    words = np.frombuffer(data, np.uint32).copy()
    words[word] += 1
    with pytest.raises(ValueError, match="must be one sequence of version 4"):
        list(filled.lengthened(words.tobytes(), [1, 2]))


def test_llama_cpp_restores_every_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One reads a short prompt; all get the long one; only steps of all texts together are timed."""
    asked: list[Any] = []
    prompt = list(range(2000, 2300))

    def say(tokens: Sequence[int], n_new: int, slot: int) -> list[float]:
        asked.append((len(tokens), n_new, slot))
        begin = 10.0 + slot  # the second one comes in a step later, and ends one later
        return [10.0, *(begin + i for i in range(n_new))]

    def ask(address: str, slot: int, action: str, name: str) -> dict[str, int]:
        asked.append((address, slot, action, name))
        if action == "save":
            (folder / name).write_bytes(saved(prompt[: filled.SHORT], (1, 0)))
            return {}
        words = np.frombuffer((folder / name).read_bytes(), np.uint32)
        n = int(words[5])
        texts.append(words[6 : 6 + n].tolist())
        return {"n_restored": n - missing}

    folder, missing = tmp_path / "slots", 0
    texts: list[list[int]] = []
    monkeypatch.setattr(filled, "_ask", ask)
    run = filled.llama_cpp(say, "there", folder, 2)
    times = run(prompt, 4)
    assert times == [10.0, 11.0, 12.0, 13.0, 14.0]
    long = [("there", slot, "restore", "long") for slot in range(2)]
    assert asked[:4] == [(filled.SHORT, 1, 0), ("there", 0, "save", "short"), *long]
    assert sorted(asked[4:]) == [(300, 4 + filled.SPARE, slot) for slot in range(2)]
    del asked[:]
    run(prompt, 2)  # it is held already
    assert sorted(asked) == [(300, 2 + filled.SPARE, slot) for slot in range(2)]
    assert texts == [prompt] * 2 and not folder.exists()
    missing = 1
    with pytest.raises(RuntimeError, match=r"llama\.cpp must restore 250 tokens, got 249"):
        run(prompt[:250], 2)


def test_llama_cpp_reads_in_every_slot() -> None:
    """Without a folder nothing is restored; a prompt is read once."""
    asked: list[Any] = []

    def say(tokens: Sequence[int], n_new: int, slot: int) -> list[float]:
        asked.append((len(tokens), n_new, slot))
        return [10.0, *(11.0 + slot + i for i in range(n_new))]

    run = filled.llama_cpp(say, "nowhere", None, 2)
    assert run([7] * 300, 4) == [10.0, 12.0, 13.0, 14.0, 15.0]
    assert asked[:2] == [(300, 1, slot) for slot in range(2)]
    assert run([7] * 300, 2) == [10.0, 12.0, 13.0]
    assert sorted(asked[2:]) == [(300, n + filled.SPARE, slot) for n in (2, 4) for slot in range(2)]


def test_steps_that_some_texts_miss_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first text comes in five steps late: too few steps are shared, which `said` refuses."""

    def say(tokens: Sequence[int], n_new: int, slot: int) -> list[float]:
        begin = 15.0 if slot == 0 else 10.0
        return [10.0, *(begin + i for i in range(n_new))]

    monkeypatch.setattr(filled, "_filling", lambda fill, decode: decode)
    run = filled.llama_cpp(say, "there", Path(), 2)
    assert run([1, 2], 4) == [10.0, 15.0, 16.0]


BLOCK = 4


class Request:
    """Stands in for OpenVINO's: what a token leaves in each cache is itself; the likeliest is 1 more."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []

    def set_tensor(self, name: str, tensor: Any) -> None:
        self.tensors[name] = tensor

    def infer(self) -> None:
        given = {name: tensor for name, tensor in self.tensors.items() if "_cache." not in name}
        self.steps.append({name: values.tolist() for name, values in given.items()})
        for text, past in enumerate(given["past_lens"]):
            tokens = slice(*given["subsequence_begins"][text : text + 2])
            held = given["block_indices"][slice(*given["block_indices_begins"][text : text + 2])]
            ids, positions = given["input_ids"][tokens], given["position_ids"][tokens]
            assert positions.tolist() == list(range(past, past + len(ids)))
            assert len(held) * BLOCK >= given["max_context_len"] == past + len(ids)
            for token, position in zip(ids, positions):
                for name in ("key_cache.0", "value_cache.0"):
                    self.tensors[name][held[position // BLOCK], 0, position % BLOCK] = token

    def get_tensor(self, name: str) -> Any:
        ids = self.tensors["input_ids"]
        return SimpleNamespace(data=np.eye(5000)[ids + 1][:, None])


def a_runtime(monkeypatch: pytest.MonkeyPatch, made: list[Any]) -> Request:
    request = Request()

    def port(name: str, *sizes: int) -> Any:
        shape = [SimpleNamespace(get_length=lambda size=size: size) for size in sizes]
        kind = SimpleNamespace(size=2)
        return SimpleNamespace(
            get_any_name=lambda: name, get_partial_shape=lambda: shape, get_element_type=lambda: kind
        )

    ports = [
        port("input_ids", 1),
        port("key_cache.0", -1, 1, BLOCK, 3),
        port("value_cache.0", -1, 1, BLOCK, 2),
    ]

    class Core:
        def read_model(self, path: str) -> str:
            return path

        def compile_model(self, *words: Any) -> Any:
            made.append(words)
            return SimpleNamespace(inputs=ports, create_infer_request=lambda: request)

    def tensor(array: Any, shape: Any = None, kind: Any = None) -> Any:
        return array if shape is None else array.reshape(shape)  # the same memory

    module = ModuleType("openvino")
    vars(module).update(Core=Core, Tensor=tensor, Shape=list)
    passes = ModuleType("openvino._offline_transformations")
    vars(passes).update(paged_attention_transformation=made.append)
    monkeypatch.setitem(sys.modules, "openvino", module)
    monkeypatch.setitem(sys.modules, passes.__name__, passes)
    monkeypatch.setattr(filled, "_converted", lambda path: path.with_suffix(".xml"))
    monkeypatch.setattr(filled, "SHORT", 2 * BLOCK)
    return request


def test_openvino_has_every_position_of_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    request = a_runtime(monkeypatch, made)
    run = filled.openvino(Path("x.gguf"), seq_len=30, batch=3, threads=5, kv_type="u8")
    assert made == ["x.xml", ("x.xml", "CPU", dict(INFERENCE_NUM_THREADS=5, KV_CACHE_PRECISION="u8"))]
    prompt = list(range(100, 121))
    assert len(run(prompt, 4)) == 5
    short, *steps = request.steps
    assert short["input_ids"] == prompt[:8] * 3 and [step["past_lens"] for step in steps] == [
        [past] * 3 for past in (20, 21, 22, 23)
    ]
    # the last token of the prompt, and then the likeliest ones
    assert [step["input_ids"] for step in steps] == [[token] * 3 for token in (120, 121, 122, 123)]
    for name in ("key_cache.0", "value_cache.0"):
        texts = request.tensors[name][:, 0, :, 0].reshape(3, -1)
        repeated = [prompt[i % 8] for i in range(20)] + [120, 121, 122, 123]
        assert texts[:, :24].tolist() == [repeated] * 3, name
    run(prompt, 2)
    assert len(request.steps) == 1 + 4 + 2  # it is held already
    run(prompt[:20], 1)
    assert len(request.steps) == 1 + 4 + 2 + 1 + 1


def test_openvino_converts_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def convert(command: list[str], **_: Any) -> None:
        link = Path(command[-1])
        assert link.read_text() == "weights"
        calls.append(link.name)
        (link.parent / "openvino_model.xml").write_text("model")

    (tmp_path / "x.gguf").write_text("weights")
    monkeypatch.setattr(filled.subprocess, "run", convert)
    for _ in range(2):
        assert filled._converted(tmp_path / "x.gguf").read_text() == "model"
    assert calls == ["x.gguf"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["openvino_model.xml", "x.gguf", "x.openvino"]


def test_a_process_has_no_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def program(a: argparse.Namespace) -> Callable[..., list[float]]:
        def run(tokens: list[int], n_new: int) -> list[float]:
            lengths.append(len(tokens))
            return [0.0, *(float(i) for i in range(n_new))]

        return run

    monkeypatch.setitem(peers._PROGRAMS, "openvino", program)
    monkeypatch.setattr(peers, "_tokens_elsewhere", lambda model: [1, 2, 3])
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(quiet, "pace", lambda n_threads: quiet.Pace(1e9, 0.0))
    a = peers.parser().parse_args("openvino x.gguf --filled --batch 8 --S 64 --tokens 4".split())
    prompt, turn = peers.said(a, iter(["4\n"]))
    assert prompt["first_token_seconds"] is None and turn == {"steps": [1.0] * 4}
    # with a turn and the spare steps there is room for the text
    assert lengths[1:] == [64 - 4 - 2 - filled.SPARE] * 2
    a.filled = False
    for a.batch, seconds in ((8, None), (1, 0.0)):
        assert next(iter(peers.said(a, iter([]))))["first_token_seconds"] == seconds


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "mistral.rs x --filled",
            "--filled must have one of llama.cpp, llama.cpp-no-flash, openvino, got mistral.rs",
        ),
        ("openvino x --batch 2", "--batch must be at least 1, and 1 without llama.cpp or --filled, got 2"),
        ("llama.cpp x --batch 2 --S 25", "--S must be at least 6 more than --tokens, got 25 and 20"),
        ("openvino x --filled --S 25", "--S must be at least 6 more than --tokens, got 25 and 20"),
    ],
)
def test_refusals(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(words.split())
    assert text in capsys.readouterr().err
