# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py --peers: turns, our first token, and which of our rows are kept. No model decodes."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import decode
import peers
import torch

import sparq_ipu.models
import sparq_ipu.transformers

PROGRESS: Any = SimpleNamespace(step=lambda *_: None)
QUIET, BUSY = 0.01, 0.5


class Method:
    """Stands in for a method of decode.py: its steps take nothing."""

    def __init__(self, name: str, model: Any, a: Any):
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

    methods: Any = [("float32", Ordered(name, None, None)) for name in "abcd"]
    rows: Any = {("float32", name): {"error": None} for name in "abcd"}
    a = argparse.Namespace(rounds=2, steps=2)
    decode._rounds(a, 64, methods, torch.arange(6), rows, PROGRESS)
    assert "".join(order) == "abcd" + "bca" + "cab"  # what failed has no further turn
    assert methods[0][1].turns == [([0, 1], False), ([2, 3], True), ([4, 5], True)]
    assert [rows["float32", name]["error"] is None for name in "abcd"] == [True] * 3 + [False]


def test_our_first_token_is_of_the_whole_prompt() -> None:
    """A piece of it warms up, in a cache of its own, and is not counted."""
    now, calls = [0.0], []

    class Model:
        config = None

        def __call__(self, tokens: Any, **given: Any) -> Any:
            now[0] += tokens.shape[1]
            calls.append((tokens.shape[1], next(v for v in given.values() if hasattr(v, "layers"))))
            return SimpleNamespace(logits=torch.zeros(1))

    a = argparse.Namespace(r=1, k=1, local=0, index_bits=4, threads=1, cpu_time=False)
    method = decode.Method("dense", Model(), a)
    method.turn_on = lambda: None  # type: ignore[method-assign]
    method._now = lambda: now[0]
    assert method.first_token(list(range(100))) == 100.0
    assert [n for n, _ in calls] == [peers.WARM_UP[0], 100] and calls[0][1] is not calls[1][1]


def rows_beside_others(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], paces: tuple[float, ...] = (1e9,) * 3
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Rows of two methods, and what was asked of other programs.

    Args:
        shares: of other programs, of one thing that is timed after another.
        paces: of the memory, before and after our rows, and for that of another program.
    """
    left, left_paces, asked = iter(shares), iter(paces), []

    @contextlib.contextmanager
    def others() -> Iterator[Any]:
        share = next(left)
        yield SimpleNamespace(share_of_all=lambda: share)

    def rows_of_peers(a: Any, gguf: Path, seq_len: int, row: Any, times: Any) -> list[Any]:
        asked.append((gguf, seq_len))
        return [{**row("openvino"), "memory_bytes_per_second": next(left_paces)}]

    model = torch.nn.Linear(1, 1)
    sizes = dict(head_dim=1, num_hidden_layers=1, num_key_value_heads=1, vocab_size=97)
    model.config = SimpleNamespace(**sizes)  # type: ignore[assignment]
    monkeypatch.setattr(decode, "load", lambda *_: model)
    monkeypatch.setattr(decode, "memory_rate", lambda n_threads: next(left_paces))
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
    (one, other, peer), asked = rows_beside_others(monkeypatch, [QUIET, BUSY, QUIET, QUIET, BUSY])
    assert one["error"] is None and other["error"] is None
    assert one["tokens_per_second"] == other["tokens_per_second"] == 4.0
    assert one["first_token_seconds"] is None and other["first_token_seconds"] == 64.0
    assert one["seconds_rest"] == 1.0 and other["seconds_rest"] is None
    assert asked == [(Path("smollm2.gguf"), 64)] and peer["weight_bytes"] == one["weight_bytes"]


def test_a_busy_machine_gives_no_rows_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, other, _), _ = rows_beside_others(monkeypatch, [BUSY, QUIET, QUIET])
    for row in (one, other):
        assert "must be quiet" in row["error"] and row["tokens_per_second"] is None


@pytest.mark.parametrize("paces", [(1e9, 1e9, 2e9), (1e9, 2e9, 2e9), (2e9, 1e9, 2e9)])
def test_a_machine_that_changes_gives_no_rows(
    paces: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = rows_beside_others(monkeypatch, [QUIET] * 5, paces)
    assert [row["memory_bytes_per_second"] for row in rows] == [1e9, 1e9, 2e9]
    assert all("the memory must keep its pace" in row["error"] for row in rows)
