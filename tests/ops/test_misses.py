# SPDX-License-Identifier: Apache-2.0
"""Rows from streaming memory: whichever heads miss however many, the bits are those of the reference, and
steps and time those of a plan with as many misses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from emulated import _core
from vertex import assert_bits

import sparq_ipu
from sparq_ipu import KVCache, SparqSettings, sparq_attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec

HEAD_DIM, TOP_K, SEQ_LEN, N_TILES = 24, 16, 256, 40
SETTINGS = SparqSettings(rank=8, top_k=TOP_K)


class Heads:
    """KV heads of which each misses as many rows as it is told to. A query is one component: of component 0
    the first TOP_K keys are large, of component n the same but for n that no other has."""

    def __init__(
        self,
        n_kv_heads: int,
        batch: int = 1,
        n_layers: int = 1,
        group_size: int = 1,
        row_bits: int = 16,
        **options: Any,
    ):
        self.batch, self.n_kv_heads, self.group_size = batch, n_kv_heads, group_size
        self.n_layers, self.options = n_layers, dict(options, row_bits=row_bits)
        rng = np.random.default_rng(n_kv_heads)
        shape = batch, n_kv_heads, SEQ_LEN, HEAD_DIM
        key = (rng.random(shape) / 64).astype(np.float16)
        value = rng.standard_normal(shape).astype(np.float16)
        unused = TOP_K
        for n in range(TOP_K + 1):
            key[:, :, [*range(n, TOP_K), *range(unused, unused + n)], n] += np.float16(4)
            unused += n
        spec: dict[str, Any] = dict(
            batch=batch,
            n_kv_heads=n_kv_heads,
            head_dim=HEAD_DIM,
            capacity=SEQ_LEN,
            index_bits=4,
            row_bits=row_bits,
        )
        self.session = _core.Session(
            CacheSpec(**spec),
            n_kv_heads * group_size,
            attention=[Attention("sparq-tiered", SETTINGS)],
            append=False,
            n_layers=n_layers,
            options=DeviceOptions(N_TILES, **options),
        )
        for layer in range(n_layers):
            self.session.write(key, value, [SEQ_LEN] * batch, layer=layer)
        self.reference = KVCache(**spec, device="reference")
        self.reference.append(key, value)

    def attend(self, misses: np.ndarray, layer: int = 0) -> dict[str, Any]:
        """What a call counts in which each head misses so many."""
        query = np.where(misses[..., None] == np.arange(HEAD_DIM), 8, 0).astype(np.float16)
        query = np.repeat(query, self.group_size, axis=1)
        expected = sparq_attention(query, self.reference, rank=SETTINGS.rank, top_k=TOP_K)
        assert_bits(self.session.attention(0, query, layer=layer), expected)
        counts: dict[str, Any] = _core.emulator_last_run(self.session, {"tiles": N_TILES})
        return counts

    def run(self, misses: np.ndarray, layer: int = 0) -> list[tuple[str, int]]:
        """The steps of a call with what component 0 selects hot, and nothing else; they and their time are
        those of a plan."""
        self.session.forget_hot()
        self.attend(np.zeros_like(misses), layer)
        assert self.session.misses() == [TOP_K] * misses.size
        counts = self.attend(misses, layer)
        assert self.session.misses() == misses.ravel().tolist()
        plan = sparq_ipu.plan(
            batch=self.batch,
            n_heads=self.n_kv_heads * self.group_size,
            n_kv_heads=self.n_kv_heads,
            head_dim=HEAD_DIM,
            seq_len=SEQ_LEN,
            kernel="sparq-tiered",
            index_bits=4,
            n_tiles=N_TILES,
            n_layers=self.n_layers,
            misses=misses.ravel().tolist(),
            rank=SETTINGS.rank,
            top_k=TOP_K,
            baseline=False,
            **self.options,
        )
        steps = [(step["name"].split("/", 1)[1], step["executions"]) for step in counts["steps"]]
        assert steps == [(stage.name.split("/", 1)[1], stage.executions) for stage in plan.stages]
        assert counts["seconds"]["total"] == plan.seconds_per_query
        return steps


def of_heads(*counts: int, n: int = 18) -> np.ndarray:
    return np.array([[*counts, *[0] * (n - len(counts))]])


#: two lists of nine heads; a wave has 32 rows of a list, or of all, read by fours, a small one the last two
PATTERNS = {
    "none": of_heads(),
    "one row": of_heads(1),
    "two rows of two heads": of_heads(1, *[0] * 16, 1),
    "three rows": of_heads(1, 0, 2),
    "a read": of_heads(1, 0, 3),
    "a read and a row": of_heads(1, 1, 3),
    "one head has all": of_heads(*[0] * 7, TOP_K),
    "a wave": of_heads(TOP_K, 0, TOP_K),
    "a wave and a row": of_heads(TOP_K, 0, TOP_K, *[0] * 14, 1),
    "a wave and a read": of_heads(TOP_K, 0, TOP_K, 0, 3),
    "one list has half": of_heads(*[7] * 9),
    "one list has all": of_heads(*[14] * 9),
    "every head as many": of_heads(*[7] * 18),
    "lists that differ": of_heads(*[7] * 9, 5, 0, 9, 1, 12, 3, 2, 0, 0),
    "all": of_heads(*[TOP_K] * 18),
}


@pytest.fixture(scope="module")
def heads() -> Heads:
    return Heads(18)


@pytest.mark.parametrize("name", PATTERNS)
def test_misses_of_heads(heads: Heads, name: str) -> None:
    heads.run(PATTERNS[name])


@pytest.mark.parametrize(
    "shape",
    [
        dict(n_kv_heads=8, group_size=4),  # one list
        dict(n_kv_heads=9, batch=2, row_bits=8),
        dict(n_kv_heads=24, batch=2, n_layers=2),  # two rounds of heads
        dict(n_kv_heads=5, n_layers=2, hot_rows=20),
        dict(n_kv_heads=20),  # two lists
    ],
    ids=lambda shape: " ".join(f"{name}={value}" for name, value in shape.items()),
)
def test_misses_that_differ(shape: dict[str, Any]) -> None:
    heads, rng = Heads(**shape), np.random.default_rng(0)
    for most in (1, 3, TOP_K):
        for layer in range(heads.n_layers):
            heads.run(rng.integers(0, most + 1, (heads.batch, heads.n_kv_heads)), layer)


def test_patterns_take_every_way(heads: Heads) -> None:
    """How many waves of lists, of all, and of these how many are small; wide ones."""
    expected = {
        "none": (0, 0, 0, 0),
        "two rows of two heads": (0, 1, 1, 0),
        "three rows": (0, 1, 0, 0),
        "a wave": (0, 1, 0, 0),
        "one list has half": (0, 2, 0, 0),
        "one list has all": (0, 0, 0, 1),  # fewer than half of all rows, but four waves
        "every head as many": (2, 0, 0, 0),
        "lists that differ": (1, 1, 0, 0),
        "all": (0, 0, 0, 1),
    }
    for name, ways in expected.items():
        n: Counter[str] = Counter()
        for step, executions in heads.run(PATTERNS[name]):
            n[step] += executions
        of_lists, of_all = max(n["lists"], 1) - 1, n["misses"] - 1
        few = of_lists + of_all - n["read_some"]
        assert (of_lists, of_all, few, n["head_rows"]) == ways, name
