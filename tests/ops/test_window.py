# SPDX-License-Identifier: Apache-2.0
"""Window attention by a device program: the bits and the history of the reference, in streaming memory and in
three tiers, whatever is hot."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
from calls import refusal
from emulated import _core
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import KINDS, fewer, tensors
from vertex import assert_bits

import sparq_ipu
from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, WindowSettings

CAPACITY = 200
_SPLIT = "split must be 'layers' where heads of one history of window attention would be split, got 'heads'"
SHAPES = st.sampled_from([(1, 1, 1, 8), (2, 2, 3, 16), (3, 1, 4, 24), (1, 3, 2, 80)])
SETTINGS = st.sampled_from(
    [(7, None, 3), (20, 4, 2), (1, 0, 2), (8, 8, 3), (9, 0, 0), (9, 4, 0), (64, None, 5), (300, None, 4)]
)
MEMORIES: tuple[dict[str, Any], ...] = (
    dict(memory="tiered", index_bits=4, row_bits=8),
    dict(memory="tiered", hot_rows=300, index_bits=8),
    dict(memory="streaming"),
)
STEPS = st.lists(
    st.sampled_from(
        ["token", "token", "token", "append", "attend", "truncate", "reorder", "observe", "sparq"]
    ),
    max_size=9,
)


def histories(cache: KVCache) -> list[list[list[int]]] | None:
    """The shares of each step of each batch element."""
    held = cache.one_layer("test").history()
    return None if held is None else [[s.tolist() for s in steps] for steps in held.steps]


class Pair:
    """The same layers on the emulator and in the reference."""

    def __init__(self, shape: tuple[int, int, int, int], n_layers: int, seed: int, **options: Any):
        self.batch, self.n_kv_heads, self.group_size, self.head_dim = shape
        sizes = (self.batch, self.n_kv_heads, self.head_dim, CAPACITY)
        of_spec = {name: options[name] for name in ("index_bits", "row_bits") if name in options}
        self.caches = [
            KVCache(*sizes, device="emulator", n_layers=n_layers, **options),
            KVCache(*sizes, device="reference", n_layers=n_layers, **of_spec),
        ]
        self.rng = np.random.default_rng(seed)

    def of_layer(self, layer: int) -> list[KVCache]:
        return [cache.layer(layer) for cache in self.caches]

    def tokens(self, n: int, kind: str, n_heads: int) -> np.ndarray:
        return tensors(kind, (self.batch, n_heads, n, self.head_dim), self.rng)

    def append(self, layer: int, n: int, kind: str, ragged: bool = False) -> None:
        n = min(n, CAPACITY - int(self.caches[1].layer(layer).lengths.max()))
        lengths = self.rng.integers(1, n + 1, self.batch) if ragged and n else None
        key, value = (self.tokens(n, kind, self.n_kv_heads) for _ in "kv")
        for cache in self.of_layer(layer):
            cache.append(key, value, lengths)

    def attend(self, layer: int, settings: SparqSettings | WindowSettings) -> None:
        query = 2 * self.tokens(1, "normal", self.n_kv_heads * self.group_size)[:, :, 0]
        assert_bits(*(attention(query, cache, settings) for cache in self.of_layer(layer)))
        own, expected = (histories(cache) for cache in self.of_layer(layer))
        assert own == expected

    def change(self, layer: int, kind: str, settings: WindowSettings) -> None:
        caches = self.of_layer(layer)
        if kind == "truncate":
            lengths = self.rng.integers(1, caches[1].lengths + 1)
            for cache in caches:
                cache.truncate(lengths)
        elif kind == "reorder":
            index = self.rng.integers(0, self.batch, self.batch)
            for cache in caches:
                cache.reorder(index)
        elif kind == "observe":
            n = int(min(4, caches[1].lengths.min()))
            query = self.tokens(n, "normal", self.n_kv_heads * self.group_size)
            for cache in caches:
                cache.observe(query, **settings.arguments())


@fewer(3)
@example(((2, 2, 3, 16)), (7, None, 3), MEMORIES[2], 2, 1, 5, ["token"] * 4)  # two rounds
@example(((2, 2, 3, 16)), (7, None, 3), MEMORIES[0], 2, 1, 5, ["token"] * 2)
@example(((2, 2, 3, 16)), (7, None, 3), MEMORIES[0], 24, 2, 5, ["token", "truncate", "token", "reorder"] * 2)
@example(((1, 3, 2, 80)), (9, 0, 0), MEMORIES[1], 24, 1, 5, ["token", "sparq", "token"])
@given(
    shape=SHAPES,
    settings=SETTINGS,
    memory=st.sampled_from(MEMORIES),
    n_tiles=st.sampled_from([24, 4, 7, 64]),
    n_layers=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
    steps=STEPS,
)
def test_bits_and_history(
    shape: tuple[int, int, int, int],
    settings: tuple[int, int | None, int],
    memory: dict[str, Any],
    n_tiles: int,
    n_layers: int,
    seed: int,
    steps: list[str],
) -> None:
    """Steps after a prompt, with all that changes a cache between them."""
    window = WindowSettings(*settings)  # type: ignore[arg-type]  # None: half
    pair = Pair(shape, n_layers, seed, n_tiles=n_tiles, **memory)
    kinds = np.random.default_rng(seed).choice(KINDS, n_layers)
    for layer in range(n_layers):
        pair.append(layer, 90, kinds[layer], ragged=True)
        pair.change(layer, "observe", window)
        pair.attend(layer, window)
    for number, step in enumerate(steps):
        layer = number % n_layers
        if step in ("token", "append"):
            pair.append(layer, 1 if step == "token" else 30, kinds[layer], ragged=step == "append")
        pair.change(layer, step, window)
        pair.attend(layer, SparqSettings(4, 6, 2) if step == "sparq" else window)
        if step == "sparq":
            pair.attend(layer, window)
    for cache in pair.caches:
        cache.layer(0).reset()
        assert histories(cache.layer(0)) is None
    pair.append(0, 20, "normal")
    pair.attend(0, window)


def test_a_copy_remembers_and_another_n_recent_is_another_program() -> None:
    pair = Pair((2, 2, 2, 16), 2, 0, n_tiles=8)
    short, long = WindowSettings(6, n_recent=2), WindowSettings(6, n_recent=5)
    for layer, settings in enumerate((short, long)):
        pair.append(layer, 30, "normal")
        for _ in range(3):
            pair.append(layer, 1, "normal")
            pair.attend(layer, settings)
    pair.caches[0] = copy.copy(pair.caches[0])
    for layer, settings in ((0, short), (1, long), (0, short)):
        pair.append(layer, 1, "normal")
        pair.attend(layer, settings)


def test_sums_of_31_bits() -> None:
    """A position that has had nearly all attention of 16384 heads and steps goes first."""
    pair = Pair((1, 1, 8, 8), 1, 0, n_tiles=4)
    window = WindowSettings(3, 1, 2048)
    pair.append(0, 90, "normal")
    shares = np.zeros(90, np.uint32)
    shares[[70, 12, 80]] = 2**30 + 5, 2**30 - 1, 2**30 + 4
    for cache in pair.caches:
        cache.one_layer("test").set_history(sparq_ipu.backends.History(2048, [[shares]]))
    pair.attend(0, window)
    newest = pair.caches[0].one_layer("test").history().steps[0][-1]  # type: ignore[union-attr]
    assert np.flatnonzero(newest).tolist() == [70, 80, 89]


def test_refusals_leave_all_as_it_was() -> None:
    pair = Pair((2, 2, 2, 8), 1, 0, n_tiles=4)
    cache = pair.caches[0]
    pair.append(0, 20, "normal")
    pair.attend(0, WindowSettings(4, n_recent=3))
    before = histories(cache)
    query = pair.tokens(9, "normal", 4)
    token = pair.tokens(1, "normal", 2)
    for call, words in (
        (dict(top_k=4, n_recent=2), "n_recent must be the n_recent=3 of the steps so far, got 2"),
        (dict(top_k=4, n_recent=9000), "n_recent must be in [0, 8191] for n_heads=4, got 9000"),
    ):
        for op, refused in (
            ("window_attention", partial(sparq_ipu.window_attention, query[:, :, 8], cache, **call)),
            ("observe", partial(cache.observe, query, **call)),
        ):
            assert refusal(refused) == f"{op}: {words}"
    assert histories(cache) == before
    others = {
        "memory must be 'streaming' or 'tiered', got 'sram'": dict(memory="sram"),
        _SPLIT: dict(n_ipus=2, split="heads"),
        "hot_rows must be 0 or at least top_k=4, got 3": dict(memory="tiered", index_bits=4, hot_rows=3),
    }
    for words, options in others.items():
        other = KVCache(2, 2, 8, 64, device="emulator", n_tiles=4, **options)  # type: ignore[arg-type]
        other.append(token, token)
        four = WindowSettings(4)
        first = query[:, :, :1]
        for op, call in (
            ("window_attention", partial(attention, query[:, :, 0], other, four)),
            ("observe", partial(other.observe, first, top_k=4)),
            ("enable", partial(other.check_settings, "enable", four)),
            ("window_attention", partial(sparq_ipu.append_and_attend, first, token, token, other, four)),
        ):
            assert refusal(call) == f"{op}: {words}"
        assert other.lengths.tolist() == [1, 1]


def test_what_a_session_refuses() -> None:
    spec = CacheSpec(2, 2, 8, 64)

    def session(*settings: WindowSettings) -> Any:
        return _core.Session(
            spec,
            4,
            attention=[Attention("window-streaming", s) for s in settings],
            options=DeviceOptions(n_tiles=2),
        )

    words = "plan: n_recent must be in [0, 8191] for n_heads=4, got 8192"
    assert refusal(lambda: session(WindowSettings(5, n_recent=8192))) == words
    made = session(WindowSettings(5, n_recent=3), WindowSettings(5, 5, 4), WindowSettings(4, 0, 0))
    assert made.n_recent == 3
    for steps, words in (
        ([[]], "steps must be of each of batch=2, got 1"),
        ([[], [[1]] * 4], "steps must be at most n_recent=3, got 4"),
        ([[], [[1] * 65]], "a step must have at most capacity=64, got 65"),
    ):
        assert refusal(partial(made.set_history, steps)) == f"set_history: {words}"
    assert made.history() == [[], []]
    made.set_history([[], [[1, 2], [3, 4, 5]]])  # negative control
    assert [[s.tolist() for s in steps] for steps in made.history()] == [[], [[1, 2], [3, 4, 5]]]
    split = DeviceOptions(n_ipus=2, split="heads")
    strided = Attention("window-streaming", WindowSettings(5, n_recent=0))
    forgets = _core.Session(spec, 4, attention=[strided], options=split)
    assert forgets.n_recent == 0
    forgets.set_history([[], []])
    words = "plan: lengths must have shape (batch=2,), got (1,)"
    assert refusal(lambda: _core.emulator_plan(spec, 4, strided, [64])) == words
    words = "set_history: steps must be at most n_recent=0, got 1"
    assert refusal(lambda: forgets.set_history([[], [[1]]])) == words


def test_a_history_is_written_for_its_layer_alone() -> None:
    """The others of a deep model would be gigabytes."""
    program = Attention("window-streaming", WindowSettings(5, n_recent=3))
    options = DeviceOptions(n_tiles=2)
    session = _core.Session(CacheSpec(2, 2, 8, 64), 4, attention=[program], options=options, n_layers=2)
    before = _core.emulator_host_calls(session)
    written = [[[[1]], [[2, 3], [4]]], [[], [[5]]]]
    for layer, steps in enumerate(written):
        session.set_history(steps, layer)
    calls = {name: n - before[name] for name, n in _core.emulator_host_calls(session).items()}
    assert calls["tensor_reads"] == 0 and calls["tensor_writes"] == 6
    for layer, steps in enumerate(written):
        assert [[s.tolist() for s in of] for of in session.history(layer)] == steps
