# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py --peers: turns, our first token, and which of our rows are kept. No model decodes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, Iterator, Mapping, Sequence

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import decode
import peers
import torch
from lib import decode_method, quiet
from lib.quiet import Pace

import sparq_ipu.models
import sparq_ipu.transformers

PROGRESS: Any = SimpleNamespace(step=lambda *_: None)
QUIET, BUSY = 0.01, 0.5


class Method:
    """Stands in for a method of decode.py: its steps take nothing."""

    def __init__(self, name: str, model: Any, a: Any, seq_len: int):
        self.name, self.model, self.cache = name, model, None
        self.seconds: list[float] = []
        #: tokens of a turn, and whether it counts
        self.turns: list[tuple[list[int], bool]] = []
        self.prompts: list[list[int]] = []

    def turn_on(self) -> None:
        pass

    def fill(self, tensors: Any, n_more: int) -> None:
        pass

    def cache_bytes(self) -> int:
        return 1

    def first_token(self, prompt: list[int]) -> float:
        self.prompts.append(prompt)
        return len(prompt) / 64 + len(self.prompts)

    def decode(self, tokens: Any, is_counted: bool) -> Any:
        self.turns.append((tokens.tolist(), is_counted))
        self.seconds += [0.25] * len(tokens) if is_counted else []
        return torch.ones(1)


def test_each_round_begins_with_another() -> None:
    order = []

    class Ordered(Method):
        def decode(self, tokens: Any, is_counted: bool) -> Any:
            order.append(self.name)
            if self.name == "d":
                raise RuntimeError("no more")
            return super().decode(tokens, is_counted)

    methods: Any = [({"error": None}, Ordered(name, None, None, 64)) for name in "abcd"]
    a = argparse.Namespace(rounds=2, steps=2)
    decode._rounds(a, 64, methods, torch.arange(6), PROGRESS)
    assert "".join(order) == "abcd" + "bca" + "cab"  # what failed has no further turn
    assert methods[0][1].turns == [([0, 1], False), ([2, 3], True), ([4, 5], True)]
    assert [row["error"] for row, _ in methods] == [None] * 3 + ["RuntimeError: no more"]
    assert methods[1][0]["logits_differ"] == 0.0


def test_other_programs_say_no_logits() -> None:
    """Those of the first method that has some are what others differ from."""

    class Peer(Method):
        def decode(self, tokens: Any, is_counted: bool) -> Any:
            return super().decode(tokens, is_counted) and None

    class Other(Method):
        def decode(self, tokens: Any, is_counted: bool) -> Any:
            return super().decode(tokens, is_counted) * 1.5

    kinds = (Peer, Method, Other)
    methods: Any = [({"error": None}, kind("a", None, None, 64)) for kind in kinds]
    decode._rounds(argparse.Namespace(rounds=1, steps=1), 64, methods, torch.arange(2), PROGRESS)
    assert [row.get("logits_differ") for row, _ in methods] == [None, 0.0, 0.5]
    assert [method.turns for _, method in methods] == [[([0], False), ([1], True)]] * 3


@pytest.mark.parametrize("name", ["dense", "plain-sdpa"])
def test_our_first_token_is_of_the_whole_prompt(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A piece of it warms up, in a cache of its own, and is not counted. Ours is read with our cache."""
    ours = SimpleNamespace(layers=[], is_ours=True)
    monkeypatch.setattr(sparq_ipu.transformers, "SparqCache", lambda _: SimpleNamespace(**vars(ours)))
    monkeypatch.setattr(decode_method, "head_dim_of", lambda config: 8)
    now, calls = [0.0], []

    class Model:
        config = None

        def __call__(self, tokens: Any, **given: Any) -> Any:
            now[0] += tokens.shape[1]
            calls.append((tokens.shape[1], next(v for v in given.values() if hasattr(v, "layers"))))
            return SimpleNamespace(logits=torch.zeros(1))

    a = decode.parser().parse_args(["--r", "1", "--k", "1", "--local", "0", "--threads", "1"])
    method = decode_method.Method(name, Model(), a, 100)
    method.turn_on = lambda: None  # type: ignore[method-assign]
    method._now = lambda: now[0]
    assert method.first_token(list(range(100))) == 100.0
    assert [n for n, _ in calls] == [peers.WARM_UP[0], 100] and calls[0][1] is not calls[1][1]
    assert hasattr(calls[1][1], "is_ours") == (name == "dense")


class Peer(Method):
    """Stands in for a process of another program; its name says which one has no room."""

    prompt: ClassVar[dict[str, Any]] = {}
    made: ClassVar[list[Peer]] = []

    def __init__(self, program: str, kv_type: str, *words: Any):
        if kv_type == "q8_0":
            raise RuntimeError("no room")
        super().__init__(program, None, None, 0)
        self.kv_type, self.words, self.pid, self.is_open = kv_type, words, 70 + len(self.made), True
        self.made.append(self)

    def decode(self, tokens: Any, is_counted: bool) -> None:
        assert self.is_open
        super().decode(tokens, is_counted)

    def close(self) -> None:
        self.is_open = False


def rows_beside_others(
    monkeypatch: pytest.MonkeyPatch,
    shares: list[float],
    paused: Sequence[float] = (),
    words: str = "--peers openvino --kv f16",
    prompt: Mapping[str, float] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rows of two methods, and those of other programs.

    Args:
        shares: of others, of one thing that is timed after another; the last one for all that follow.
        paused: as that, of the looks at the machine.
        prompt: what a process says of its prompt.
    """

    def endless(values: Sequence[float]) -> Iterator[float]:
        return itertools.chain(values, itertools.repeat(values[-1]))

    left, left_paused, pids = endless(shares), endless(paused or [0.0]), []

    @contextlib.contextmanager
    def others(of: Sequence[int] = ()) -> Iterator[Any]:
        share = next(left)
        pids.append(list(of))
        yield SimpleNamespace(share_of_all=lambda: share)

    model = torch.nn.Linear(1, 1)
    sizes = dict(head_dim=1, num_hidden_layers=1, num_key_value_heads=1, vocab_size=97)
    model.config = SimpleNamespace(**sizes)  # type: ignore[assignment]
    said = dict(first_token_seconds=3.0, first_token_trials=2, others=QUIET, paused=QUIET, version="7")
    monkeypatch.setattr(Peer, "prompt", {**said, **prompt})
    monkeypatch.setattr(Peer, "made", [])
    monkeypatch.setattr(decode, "load", lambda *_: model)
    monkeypatch.setattr(decode, "text_tokens", lambda model: [1, 2, 3])
    monkeypatch.setattr(quiet, "pace", lambda n_threads: Pace(1e9, next(left_paused)))
    monkeypatch.setattr(decode, "Method", Method)
    monkeypatch.setattr(decode, "Peer", Peer)
    monkeypatch.setattr(quiet, "others", others)
    monkeypatch.setattr(sparq_ipu.transformers, "is_enabled", lambda model: False)
    monkeypatch.setattr(sparq_ipu.models, "smollm2_path", lambda: Path("smollm2.gguf"))
    words += " --model smollm2 --steps 2 --rounds 1 --methods dense sparq --dtypes bfloat16 --seed 3"
    rows = decode.rows_of(decode.parser().parse_args(words.split()), 64, PROGRESS, "c")
    assert [(row["method"], row["dtype"]) for row in rows[:2]] == [
        ("dense", "bfloat16"),
        ("sparq", "bfloat16"),
    ]
    # their turns are not work of others
    is_filled = "--filled" in words
    first_tokens = [] if is_filled else [[], []]
    turns = [peer.pid for peer in Peer.made]
    assert pids == [*first_tokens, turns, *[[]] * (len(pids) - len(first_tokens) - 1)]
    for peer in Peer.made:
        batch = 3 if is_filled else 1
        assert not peer.is_open and peer.words == (Path("smollm2.gguf"), 64, 2, 2, 3, batch, is_filled)
    return rows


def test_rows_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_beside_others(monkeypatch, [QUIET], words="--peers")[2:]
    assert [(row["method"], row["kv_type"], row["dtype"], row["error"]) for row in rows] == [
        ("llama.cpp", "f16", "gguf", None),
        ("llama.cpp", "q8_0", "gguf", "RuntimeError: no room"),
        ("llama.cpp-no-flash", "f16", "gguf", None),
        ("openvino", "f16", "gguf", None),
        ("openvino", "u8", "gguf", None),
        ("openvino-xattention", "f16", "gguf", None),
        ("openvino-xattention", "u8", "gguf", None),
        ("mistral.rs", "f16", "gguf", None),
    ]
    assert [row["prompt"] for row in rows] == ["text"] * 7 + ["common words"]
    for row in (rows[0], *rows[2:]):
        assert row["tokens_per_second"] == 4.0 and row["n_steps"] == 2 and row["version"] == "7"
        assert (row["first_token_seconds"], row["first_token_trials"]) == (3.0, 2)
        assert (row["others"], row["paused"]) == (QUIET, 0.0)
    assert rows[1]["tokens_per_second"] is rows[1]["first_token_seconds"] is None
    assert [(peer.name, peer.kv_type) for peer in Peer.made] == [
        (row["method"], row["kv_type"]) for row in (rows[0], *rows[2:])
    ]
    some = rows_beside_others(monkeypatch, [QUIET], words="--peers --kv f16 u8")[2:]
    assert [(row["method"], row["kv_type"]) for row in some] == [
        (row["method"], row["kv_type"]) for row in (rows[0], *rows[2:])
    ]


def test_filled_caches_have_no_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "peak_bytes", lambda pid: pid)
    words = "--peers openvino --kv f16 --filled --batch 3"
    rows = rows_beside_others(monkeypatch, [QUIET], words=words, prompt=dict(first_token_seconds=None))
    assert [row["first_token_seconds"] for row in rows] == [None] * 3
    assert [row["filled"] for row in rows] == [False, False, True]
    assert [row["tokens_per_second"] for row in rows] == [12.0] * 3
    assert [row["peak_bytes"] for row in rows] == [os.getpid()] * 2 + [70]


def test_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our methods first, then each other program without them: no model of ours is loaded for it."""
    words = (
        "--model smollm2 --S 64 --steps 2 --rounds 1 --methods dense --peers openvino llama.cpp --kv f16 u8"
    )
    asked = []

    def rows_of(a: argparse.Namespace, *_: Any) -> list[Any]:
        asked.append(a)
        return []

    with monkeypatch.context() as patch:
        patch.setattr(decode, "rows_of", rows_of)
        assert decode.main([*words.split(), "--apart"]) == 0
        assert [(a.methods, a.peers, a.kv) for a in asked] == [
            (["dense"], ["openvino", "llama.cpp"], []),
            ([], ["openvino"], ["f16"]),
            ([], ["openvino"], ["u8"]),
            ([], ["llama.cpp"], ["f16"]),
        ]
        assert decode.main(words.split()) == 0 and len(asked) == 5  # all together
        assert not asked[-1].apart
    rows_beside_others(monkeypatch, [QUIET])
    monkeypatch.setattr(decode, "load", None)
    (row,) = decode.rows_of(asked[1], 64, PROGRESS, "c")
    assert (row["method"], row["kv_type"], row["apart"], row["weight_bytes"]) == (
        "openvino",
        "f16",
        True,
        None,
    )
    assert row["tokens_per_second"] == 4.0 and row["error"] is None
    ours = decode._runs(decode.parser().parse_args("--peers --apart --kv f16 --methods".split()))
    assert all(not a.methods and len(a.kv) == 1 for a in ours)


@pytest.mark.parametrize("noise", [dict(others=BUSY), dict(paused=BUSY)])
def test_their_first_token_while_others_ran(noise: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_beside_others(monkeypatch, [QUIET], prompt=noise)[2]
    assert row["first_token_seconds"] is None and row["tokens_per_second"] == 4.0 and row["error"] is None


def test_what_is_kept_of_our_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others ran beside the first token of one method."""
    (one, other, peer) = rows_beside_others(monkeypatch, [BUSY, QUIET, QUIET])
    assert one["error"] is other["error"] is None
    assert one["tokens_per_second"] == other["tokens_per_second"] == peer["tokens_per_second"] == 4.0
    assert one["first_token_seconds"] is None and other["first_token_seconds"] == 3.0
    assert peer["weight_bytes"] == one["weight_bytes"]


@pytest.mark.parametrize(
    ("paused", "kept"), [([BUSY, 0], [False, True]), ([0, 0, 0, BUSY, 0], [True, False])]
)
def test_first_tokens_where_the_processors_stood_still(
    paused: list[float], kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_beside_others(monkeypatch, [QUIET], paused)[:2]
    assert [row["first_token_seconds"] is not None for row in rows] == kept
    assert all(row["error"] is None and row["paused"] == 0 for row in rows)


def test_a_busy_machine_gives_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in rows_beside_others(monkeypatch, [QUIET, QUIET, BUSY, QUIET]):
        assert "must be quiet" in row["error"] and row["tokens_per_second"] is None


@pytest.mark.parametrize("around", [(0.0, BUSY), (BUSY, 0.0)])
def test_processors_that_stand_still_give_no_rows(
    around: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in rows_beside_others(monkeypatch, [QUIET], [0, 0, 0, 0, *around]):
        assert "may stand still" in row["error"] and row["tokens_per_second"] is None


def test_processes_are_ended_when_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decode, "_rounds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rows_beside_others(monkeypatch, [QUIET])
    assert [peer.is_open for peer in Peer.made] == [False]
