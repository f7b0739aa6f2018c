# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py --peers: turns, our first token, and which of our rows are kept. No model decodes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, Sequence

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import decode
import peers
import torch
from processor import Pace

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

    def turn_on(self) -> None:
        pass

    def fill(self, tensors: Any, n_more: int) -> None:
        pass

    def cache_bytes(self) -> int:
        return 1

    def first_token(self, prompt: list[int]) -> float:
        return float(len(prompt))

    def parts(self, tokens: Any) -> dict[str, float]:
        return dict(seconds_products=1.0, seconds_attention=1.0, seconds_rest=1.0)

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

    methods: Any = [("float32", Ordered(name, None, None, 64)) for name in "abcd"]
    rows: Any = {("float32", name): {"error": None} for name in "abcd"}
    a = argparse.Namespace(rounds=2, steps=2)
    decode._rounds(a, 64, methods, torch.arange(6), rows, PROGRESS)
    assert "".join(order) == "abcd" + "bca" + "cab"  # what failed has no further turn
    assert methods[0][1].turns == [([0, 1], False), ([2, 3], True), ([4, 5], True)]
    assert [rows["float32", name]["error"] is None for name in "abcd"] == [True] * 3 + [False]


def test_our_first_token_is_of_the_whole_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of it warms up, in a cache of its own, and is not counted."""
    monkeypatch.setattr(decode, "_head_dim", lambda config: 8)
    now, calls = [0.0], []

    class Model:
        config = None

        def __call__(self, tokens: Any, **given: Any) -> Any:
            now[0] += tokens.shape[1]
            calls.append((tokens.shape[1], next(v for v in given.values() if hasattr(v, "layers"))))
            return SimpleNamespace(logits=torch.zeros(1))

    a = argparse.Namespace(r=1, k=1, local=0, index_bits=4, threads=1, cpu_time=False)
    method = decode.Method("dense", Model(), a, 100)
    method.turn_on = lambda: None  # type: ignore[method-assign]
    method._now = lambda: now[0]
    assert method.first_token(list(range(100))) == 100.0
    assert [n for n, _ in calls] == [peers.WARM_UP[0], 100] and calls[0][1] is not calls[1][1]


def rows_beside_others(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], paces: Sequence[tuple[float, float]] = ()
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Rows of two methods, and what was asked of other programs.

    Args:
        shares: of other programs, of one thing that is timed after another.
        paces: of the machine before and after our steps, after the first token of each method, and for the
            row of another program; the last one for all that follow.
    """
    left, asked = iter(shares), []
    left_paces = itertools.chain(paces or [(1e9, 0.0)], itertools.repeat(paces[-1] if paces else (1e9, 0.0)))

    @contextlib.contextmanager
    def others() -> Iterator[Any]:
        share = next(left)
        yield SimpleNamespace(share_of_all=lambda: share)

    def rows_of_peers(a: Any, gguf: Path, seq_len: int, row: Any, times: Any) -> list[Any]:
        asked.append((gguf, seq_len))
        return [{**row("openvino"), **Pace(*next(left_paces))._asdict()}]

    model = torch.nn.Linear(1, 1)
    sizes = dict(head_dim=1, num_hidden_layers=1, num_key_value_heads=1, vocab_size=97)
    model.config = SimpleNamespace(**sizes)  # type: ignore[assignment]
    monkeypatch.setattr(decode, "load", lambda *_: model)
    monkeypatch.setattr(decode, "pace", lambda n_threads: Pace(*next(left_paces)))
    monkeypatch.setattr(decode, "Method", Method)
    monkeypatch.setattr(decode, "others", others)
    monkeypatch.setattr(decode, "rows_of_peers", rows_of_peers)
    monkeypatch.setattr(sparq_ipu.transformers, "is_enabled", lambda model: False)
    monkeypatch.setattr(sparq_ipu.models, "smollm2_path", lambda: Path("smollm2.gguf"))
    words = "--peers --model smollm2 --steps 2 --rounds 1 --methods dense sparq --dtypes bfloat16"
    rows = decode.rows_of(decode.parser().parse_args(words.split()), 64, PROGRESS, "c")
    assert [(row["method"], row["dtype"]) for row in rows] == [
        ("dense", "bfloat16"),
        ("sparq", "bfloat16"),
        ("openvino", "gguf"),
    ]
    return rows, asked


def test_what_is_kept_of_our_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others ran beside the first token of one method, and beside the parts of the other."""
    (one, other, peer), asked = rows_beside_others(monkeypatch, [QUIET, QUIET, BUSY, BUSY, QUIET])
    assert one["error"] is None and other["error"] is None
    assert one["tokens_per_second"] == other["tokens_per_second"] == 4.0
    assert one["first_token_seconds"] is None and other["first_token_seconds"] == 64.0
    assert one["seconds_rest"] == 1.0 and other["seconds_rest"] is None
    assert asked == [(Path("smollm2.gguf"), 64)] and peer["weight_bytes"] == one["weight_bytes"]


def test_what_is_kept_where_the_processors_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the first method's first token on: neither has that, and only one has its parts."""
    paces = [(1e9, QUIET), (1e9, 0.0), (1e9, BUSY)]
    (one, other, _), _ = rows_beside_others(monkeypatch, [QUIET] * 5, paces)
    assert one["error"] is None and other["error"] is None and one["paused"] == other["paused"] == QUIET
    assert one["first_token_seconds"] is None and other["first_token_seconds"] is None
    assert one["seconds_rest"] == 1.0 and other["seconds_rest"] is None


def test_a_busy_machine_gives_no_rows_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, other, _), _ = rows_beside_others(monkeypatch, [BUSY])
    for row in (one, other):
        assert "must be quiet" in row["error"] and row["tokens_per_second"] is None


@pytest.mark.parametrize("still", [(0.0, BUSY), (BUSY, 0.0)])
def test_processors_that_stand_still_give_no_rows_of_ours(
    still: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, other, _), _ = rows_beside_others(monkeypatch, [QUIET], [(1e9, share) for share in still])
    for row in (one, other):
        assert "may stand still" in row["error"] and row["tokens_per_second"] is None


@pytest.mark.parametrize("paces", [(1e9, 1e9, 2e9), (1e9, 2e9, 2e9), (2e9, 1e9, 2e9)])
def test_a_machine_that_changes_gives_no_rows(
    paces: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = rows_beside_others(monkeypatch, [QUIET] * 5, [(each, 0.0) for each in paces])
    assert [row["memory_bytes_per_second"] for row in rows] == [1e9, 1e9, 2e9]
    assert all("the memory must keep its pace" in row["error"] for row in rows)
