# SPDX-License-Identifier: Apache-2.0
"""All that a session on one IPU can, one over several can: window attention with its history, prefill,
misses, cycles, options of hot rows, all layers in one launch. The same bits as the reference; or refused by
name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import refusal
from vertex import _core, assert_bits

from sparq_ipu import KVCache, sparq_attention, window_attention
from sparq_ipu.attention import attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, WindowSettings

pytestmark = pytest.mark.skipif(
    bool(_core.device_unavailable("emulator")), reason="the emulator is not available here"
)

N_LAYERS = 4
TOP_K = 24
SPARQ = SparqSettings(rank=8, top_k=TOP_K, n_local=4)
TIERED: dict[str, Any] = dict(memory="tiered", index_bits=4)
SPLITS = [(2, "layers"), (4, "layers"), (2, "heads"), (4, "heads")]


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


class Pair:
    """The same layers over emulated IPUs and in the reference; of 4 batch elements, or 2 KV heads of 2."""

    def __init__(self, n_ipus: int, split: str, n_kv_heads: int, capacity: int = 150, **options: Any):
        self.batch, self.n_kv_heads = 4 // n_kv_heads, n_kv_heads
        sizes = (self.batch, n_kv_heads, 16, capacity)
        of_spec = {name: options[name] for name in CacheSpec.options() if name in options}
        self.pod = KVCache(
            *sizes, n_layers=N_LAYERS, n_ipus=n_ipus, split=split, device="emulator", n_tiles=8, **options
        )
        self.reference = KVCache(*sizes, n_layers=N_LAYERS, device="reference", **of_spec)
        self.rng = np.random.default_rng(n_ipus)

    def layers(self, layer: int) -> list[KVCache]:
        return [cache.layer(layer) for cache in (self.pod, self.reference)]

    def append(self, layer: int, n: int) -> None:
        """n tokens, fewer to the elements behind the first."""
        key, value = (numbers(self.rng, self.batch, self.n_kv_heads, n, 16) for _ in "kv")
        lengths = None if n == 1 else n - 7 * np.arange(self.batch)
        for cache in self.layers(layer):
            cache.append(key, value, lengths)

    def attend(self, layer: int, settings: SparqSettings | WindowSettings) -> None:
        query = 2 * numbers(self.rng, self.batch, 2 * self.n_kv_heads, 16)
        assert_bits(*(attention(query, cache, settings) for cache in self.layers(layer)))

    def check_history(self, layer: int, n_steps: int) -> None:
        own, expected = (cache.one_layer("test").history() for cache in self.layers(layer))
        assert own is not None and expected is not None
        assert [len(steps) for steps in expected.steps] == [n_steps] * self.batch
        for steps, same in zip(own.steps, expected.steps):
            assert [s.tolist() for s in steps] == [s.tolist() for s in same]


@pytest.mark.parametrize("memory", [{}, dict(TIERED, row_bits=8)], ids=str)
@pytest.mark.parametrize(("n_ipus", "split"), SPLITS)
def test_window_attention_and_its_history(n_ipus: int, split: str, memory: dict[str, Any]) -> None:
    """Where heads are split, over the batch: a history is of all heads of an element."""
    pair = Pair(n_ipus, split, n_kv_heads=1 if split == "heads" else 2, **memory)
    settings = WindowSettings(9, 4, 3)
    for layer, n in ((0, 40), (3, 90)):
        pair.append(layer, n)
        for cache in pair.layers(layer):
            query = numbers(np.random.default_rng(layer), pair.batch, 2 * pair.n_kv_heads, 2, 16)
            cache.observe(query, **settings.arguments())
        for _ in range(3):
            pair.append(layer, 1)
            pair.attend(layer, settings)
        pair.check_history(layer, 3)
        pair.attend(layer, SPARQ)  # compiled again: the history moves
        pair.check_history(layer, 3)
    for cache in (pair.pod, pair.reference):
        cache.reorder(np.arange(pair.batch)[::-1])
        cache.layer(3).truncate(cache.layer(3).lengths - 1)
    for layer, n_steps in ((0, 3), (3, 2)):
        pair.check_history(layer, n_steps)
        pair.attend(layer, settings)
    for cache in (pair.pod, pair.reference):
        cache.reset()
    pair.append(0, 30)
    pair.attend(0, settings)
    pair.check_history(0, 1)


@pytest.mark.parametrize("n_ipus", [2, 4])
def test_heads_without_a_history_can_be_split(n_ipus: int) -> None:
    pair = Pair(n_ipus, "heads", n_kv_heads=2)
    for layer in (0, 3):
        pair.append(layer, 50)
        pair.attend(layer, WindowSettings(9, 4, 0))


@pytest.mark.parametrize(("n_ipus", "split"), SPLITS)
def test_options_of_hot_rows(n_ipus: int, split: str) -> None:
    pair = Pair(n_ipus, split, n_kv_heads=2, hot_rows=40, **TIERED)
    for layer in (1, 2):
        pair.append(layer, 100)
        for _ in range(3):
            pair.attend(layer, SPARQ)
            pair.append(layer, 1)


def session_of(kernel: str, n_ipus: int, split: str, **options: Any) -> Any:
    """Of 2 batch elements, 2 KV heads and 4 heads."""
    tiers = {name: options.pop(name) for name in ("hot_rows",) if name in options}
    settings = WindowSettings(9, 4, 3) if kernel.startswith("window") else SPARQ
    return _core.Session(
        CacheSpec(2, 2, 16, 150, index_bits=4),
        4,
        attention=[Attention(kernel, settings)],
        options=DeviceOptions(8, n_ipus=n_ipus, split=split, **tiers),
        n_layers=N_LAYERS,
        **options,
    )


def filled(session: Any) -> list[KVCache]:
    """A reference for each layer; both with the same tokens."""
    rng = np.random.default_rng(3)
    references = []
    for layer in range(N_LAYERS):
        key, value = (numbers(rng, 2, 2, 100 + layer, 16) for _ in "kv")
        lengths = [100 + layer, 10 + layer]  # the second has fewer than top_k
        session.write(key, value, lengths, layer)
        references.append(KVCache(2, 2, 16, 150, index_bits=4, device="reference"))
        references[-1].append(key, value, np.array(lengths))
    return references


def executions_of(step: str, session: Any) -> int:
    """In the last run: of IPUs that copy at once, by one of them."""
    steps = _core.emulator_last_run(session)["steps"]
    return sum(s["executions"] for s in steps if s["name"].endswith(f"/{step}") and not s["beside"])


@pytest.mark.parametrize(("n_ipus", "split"), SPLITS)
def test_misses_are_of_the_last_call(n_ipus: int, split: str) -> None:
    session = session_of("sparq-tiered", n_ipus, split, hot_rows=64)
    references = filled(session)
    query = numbers(np.random.default_rng(5), 2, 4, 16)
    for layer in (3, 0, 2):
        expected = sparq_attention(query, references[layer], **SPARQ.arguments())
        for n_missing in (TOP_K, 0):  # at first nothing is hot
            assert_bits(session.attention(0, query, layer=layer), expected)
            assert session.misses() == [min(n_missing, n) for n in (100, 100, 10 + layer, 10 + layer)]
            assert (executions_of("read_rows", session) != 0) == (n_missing != 0)
    other = query.copy()
    other[0, 2:] *= -1  # the second KV head of the first element
    session.attention(0, other, layer=2)
    first, second, *rest = session.misses()
    assert second > 0 and first == 0 and rest == [0, 0]
    session = session_of("sparq-streaming", n_ipus, split)
    assert refusal(session.misses) == "misses: memory must be 'tiered', got 'streaming'"


@pytest.mark.parametrize(("n_ipus", "split"), SPLITS)
def test_the_device_counts_the_cycles_of_a_call(n_ipus: int, split: str) -> None:
    session = session_of("sparq-tiered", n_ipus, split, hot_rows=64, timed=True)
    references = filled(session)
    query = numbers(np.random.default_rng(5), 2, 4, 16)
    for layer in (0, 3):
        expected = sparq_attention(query, references[layer], **SPARQ.arguments())
        counted = []
        for _ in range(2):  # cold, then hot
            assert_bits(session.attention(0, query, layer=layer), expected)
            counted.append(session.cycles())
            run = _core.emulator_last_run(session)
            assert counted[-1] == pytest.approx(run["seconds"]["total"] * session.clock_hz, rel=0.02, abs=2)
        assert counted[1] < counted[0]
    message = "cycles: the session must have been made with timed=True, got False"
    assert refusal(session_of("sparq-tiered", n_ipus, split, hot_rows=64).cycles).startswith(message)


@pytest.mark.parametrize(("n_ipus", "split"), SPLITS)
def test_nothing_is_hot_after_it_was_forgotten(n_ipus: int, split: str) -> None:
    session = session_of("sparq-tiered", n_ipus, split, hot_rows=64)
    references = filled(session)
    query = numbers(np.random.default_rng(5), 2, 4, 16)
    missed = []
    for forget in (False, False, True):
        if forget:
            session.forget_hot()
        for layer in (0, 3):
            expected = sparq_attention(query, references[layer], **SPARQ.arguments())
            assert_bits(session.attention(0, query, layer=layer), expected)
            missed.append(sum(session.misses()))
    assert missed[:2] == missed[4:] and min(missed[:2]) > 0 and missed[2:4] == [0, 0]
    with pytest.raises(ValueError, match=r"^forget_hot: memory must be 'tiered', got 'streaming'$"):
        session_of("sparq-streaming", n_ipus, split).forget_hot()


@pytest.mark.parametrize(("n_ipus", "split"), [(1, "layers"), *SPLITS[:2]])
@pytest.mark.parametrize("kernel", ["window-streaming", "sparq-tiered"])
def test_all_layers_in_one_launch(n_ipus: int, split: str, kernel: str) -> None:
    """What it remembers, and what it missed, is as if layer had followed layer."""
    session = session_of(kernel, n_ipus, split, stacked=True)
    references = filled(session)
    settings = WindowSettings(9, 4, 3) if kernel.startswith("window") else SPARQ
    rng = np.random.default_rng(5)
    for n_steps in (1, 2):
        expected = query = numbers(rng, 2, 4, 16)
        for cache in references:
            expected = attention(expected, cache, settings)
        assert_bits(session.attend_all(0, query), expected)
        for layer, cache in enumerate(references if kernel.startswith("window") else []):
            steps = cache.one_layer("test").history().steps  # type: ignore[union-attr]
            for own, same in zip(session.history(layer), steps):
                assert len(own) == n_steps and [s.tolist() for s in own] == [s.tolist() for s in same]
    if kernel == "sparq-tiered":
        assert session.misses() != [0] * 4
        session.attend_all(0, query)
        assert session.misses() == [0] * 4


def test_a_history_that_is_refused_is_written_nowhere() -> None:
    """Not on the IPUs before the one with the bad element either."""
    program = Attention("window-streaming", WindowSettings(9, 4, 3))
    options = DeviceOptions(8, n_ipus=2, split="heads")
    session = _core.Session(CacheSpec(2, 1, 16, 64), 2, attention=[program], options=options)
    for steps, words in (
        ([[[1]]], "steps must be of each of batch=2, got 1"),
        ([[[1]], [[1]] * 4], "steps must be at most n_recent=3, got 4"),
        ([[[1]], [[1] * 65]], "a step must have at most capacity=64, got 65"),
    ):
        assert refusal(session.set_history, steps) == f"set_history: {words}"
        assert session.history() == [[], []]
    session.set_history([[[1]], [[2, 3]]])  # negative control
    assert [[s.tolist() for s in steps] for steps in session.history()] == [[[1]], [[2, 3]]]


@pytest.mark.parametrize("n_ipus", [2, 4])
def test_a_history_over_split_heads_is_refused(n_ipus: int) -> None:
    rule = "split must be 'layers' where heads of one history of window attention would be split, got 'heads'"
    pair = Pair(n_ipus, "heads", n_kv_heads=2)
    pair.append(0, 20)
    before = pair.pod.layer(0).read()
    query = numbers(pair.rng, 2, 4, 16)
    assert refusal(window_attention, query, pair.pod.layer(0), top_k=4) == f"window_attention: {rule}"
    for rows, same in zip(pair.pod.layer(0).read(), before):
        assert_bits(rows, same)
