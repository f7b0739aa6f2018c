# SPDX-License-Identifier: Apache-2.0
"""A cache in three tiers: the same bits as the reference whatever is hot, and what is hot by its rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import refusal
from emulated import _core
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, fewer, tensors
from vertex import assert_bits

import sparq_ipu
from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, row_codes

CAPACITY = 330
SHAPES = st.tuples(
    st.sampled_from([16, 8, 24, 80]),  # head_dim
    st.sampled_from([2, 1, 3]),  # n_kv_heads
    st.sampled_from([1, 2, 4]),  # group_size
    st.integers(1, 2),  # batch
)
TIERS = st.fixed_dictionaries(
    dict(
        hot_rows=st.sampled_from([0, 20, 33, 64, 400]),
        n_tiles=st.sampled_from([24, 4, 7, 64]),
        n_layers=st.sampled_from([1, 2, 3]),
        index_bits=st.sampled_from([4, 8, 2]),
        row_bits=st.sampled_from([8, 16]),
        index_components=st.sampled_from([0, 8, 16, 40]),  # where a head has so many
    )
)
TIERED_ON_FEW_TILES: tuple[dict[str, Any], ...] = (
    dict(device="emulator", memory="tiered", n_tiles=6),
    dict(device="reference"),
)
STEP = st.tuples(
    st.sampled_from(["append", "token", "token", "reset", "reorder", "attend"]),
    st.integers(0, 2),
    st.one_of(st.integers(1, 90), st.sampled_from([63, 64, 65, 128, 191])),
    st.sampled_from(KINDS),
)


class Pair:
    """The same layers on the emulator, in three tiers, and in the reference."""

    def __init__(self, shape: tuple[int, int, int, int], tiers: dict[str, Any], seed: int):
        self.head_dim, self.n_kv_heads, group_size, self.batch = shape
        self.n_heads = self.n_kv_heads * group_size
        sizes = (self.batch, self.n_kv_heads, self.head_dim, CAPACITY)
        self.index_components = min(tiers.get("index_components", 0), self.head_dim)
        tiers = {**tiers, "index_components": self.index_components}
        self.caches = [
            KVCache(*sizes, device="emulator", memory="tiered", **tiers),
            KVCache(
                *sizes,
                device="reference",
                **{name: tiers[name] for name in ("n_layers", "index_bits", "row_bits", "index_components")},
            ),
        ]
        self.n_layers = tiers["n_layers"]
        self.rng = np.random.default_rng(seed)

    def append(self, layer: int, n: int, kind: str) -> None:
        held = self.caches[1].layer(layer).lengths
        n = min(n, CAPACITY - int(held.max()))
        if n == 0:
            return
        counts = self.rng.integers(0, n + 1, self.batch)
        counts[self.rng.integers(self.batch)] = n  # any element may be the longest
        key, value = (tensors(kind, (self.batch, self.n_kv_heads, n, self.head_dim), self.rng) for _ in "kv")
        for cache in self.caches:
            cache.layer(layer).append(key, value, counts)

    def reset(self, layer: int) -> None:
        for cache in self.caches:
            cache.layer(layer).reset()

    def reorder(self, layer: int) -> None:
        index = self.rng.integers(0, self.batch, self.batch)
        for cache in self.caches:
            cache.layer(layer).reorder(index)

    def attend(self, layer: int, settings: SparqSettings) -> None:
        if not self.caches[1].layer(layer).lengths.all():
            return
        query = tensors("normal", (self.batch, self.n_heads, self.head_dim), self.rng)
        outputs = [sparq_attention(query, c.layer(layer), **settings.arguments()) for c in self.caches]
        assert_bits(*outputs)

    def read(self, layer: int) -> None:
        if self.caches[1].layer(layer).lengths.any():
            for actual, expected in zip(*(c.layer(layer).read() for c in self.caches)):
                assert_bits(actual, expected)


@fewer(3)
@given(shape=SHAPES, tiers=TIERS, data=st.data())
def test_results_do_not_depend_on_what_is_hot(
    shape: tuple[int, int, int, int], tiers: dict[str, Any], data: st.DataObject
) -> None:
    top_k = data.draw(st.sampled_from([16, 1, 5, 20]))
    pair = Pair(shape, tiers, data.draw(st.integers(0, 99)))
    settings_ = SparqSettings(
        rank=data.draw(st.integers(1, pair.index_components or pair.head_dim)),
        top_k=top_k,
        n_local=data.draw(st.integers(0, top_k)),
        mean_value=data.draw(st.booleans()),
    )
    for layer in data.draw(st.permutations(range(pair.n_layers))):
        pair.append(layer, data.draw(st.integers(1, 200)), "normal")
        pair.attend(layer, settings_)
    for kind, at, n, contents in data.draw(st.lists(STEP, max_size=14)):
        layer = at % pair.n_layers
        if kind in ("append", "token"):
            pair.append(layer, 1 if kind == "token" else n, contents)
        elif kind == "reset":
            pair.reset(layer)
        elif kind == "reorder":
            pair.reorder(layer)
        pair.attend(layer, settings_)
    for layer in range(pair.n_layers):
        pair.attend(layer, settings_)
        pair.read(layer)


def session_of(top_k: int, n_local: int = 0, **tiers: Any) -> Any:
    """A session with one KV head and 200 positions, head_dim 16."""
    rng = np.random.default_rng(0)
    attention = [Attention("sparq-tiered", SparqSettings(rank=8, top_k=top_k, n_local=n_local))]
    session = _core.Session(
        CacheSpec(1, 1, 16, 400, index_bits=4), 1, attention=attention, options=DeviceOptions(8, **tiers)
    )
    key, value = (rng.standard_normal((1, 1, 200, 16)).astype(np.float16) for _ in "kv")
    session.write(key, value, [200])
    return session


def misses_of(session: Any, query: np.ndarray) -> int:
    session.attention(0, query.reshape(1, 1, 16))
    (misses,) = session.misses()
    return int(misses)


def queries(n: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, 16)).astype(np.float16)


def test_rows_that_were_selected_are_hot() -> None:
    session = session_of(top_k=16)
    query = queries(2)
    assert misses_of(session, query[0]) == 16  # nothing is hot yet
    assert misses_of(session, query[0]) == 0
    between = misses_of(session, query[1])
    assert 0 < between <= 16
    assert misses_of(session, query[0]) == 0  # four times top_k have room


def test_a_buffer_of_top_k_rows_forgets() -> None:
    session = session_of(top_k=16, hot_rows=16)
    query = queries(2)
    misses_of(session, query[0])
    missed = misses_of(session, query[1])
    assert missed > 0
    assert misses_of(session, query[0]) == missed  # as many as the other query has displaced


def test_reset_forgets_what_was_hot() -> None:
    session = session_of(top_k=16)
    query = queries(1)[0]
    misses_of(session, query)
    rng = np.random.default_rng(0)
    key, value = (rng.standard_normal((1, 1, 200, 16)).astype(np.float16) for _ in "kv")
    session.reset()
    session.write(key, value, [200])
    assert misses_of(session, query) == 16


def test_tokens_that_are_appended_are_hot() -> None:
    session = session_of(top_k=16, n_local=16)
    query = queries(1)[0]
    assert misses_of(session, query) == 16
    rng = np.random.default_rng(2)
    for _ in range(40):  # more than a block, and no attention between
        key, value = (rng.standard_normal((1, 1, 1, 16)).astype(np.float16) for _ in "kv")
        session.append(key, value, [1])
    assert misses_of(session, query) == 0


def test_rows_that_are_selected_again_stay_hot() -> None:
    """Old rows, among the rows of 60 tokens that are not selected."""
    session = session_of(top_k=16, hot_rows=32)
    query = queries(1)[0]
    misses_of(session, query)  # 16 rows of all positions
    rng = np.random.default_rng(3)
    for _ in range(60):
        key = np.zeros((1, 1, 1, 16), np.float16)  # never among the best
        value = rng.standard_normal((1, 1, 1, 16)).astype(np.float16)
        session.append(key, value, [1])
        assert misses_of(session, query) == 0


@pytest.mark.parametrize("split", ["layers", "heads"])
def test_several_ipus(split: str) -> None:
    rng = np.random.default_rng(5)
    sizes = (1, 2, 16, 130)
    same: dict[str, Any] = dict(n_layers=2, index_bits=4, row_bits=8, index_components=8)
    pod = KVCache(*sizes, device="emulator", memory="tiered", n_tiles=6, n_ipus=2, split=split, **same)
    reference = KVCache(*sizes, device="reference", **same)
    for step in range(6):
        for layer in (1, 0):
            n = 100 if step == 0 else 1
            key, value = (rng.standard_normal((1, 2, n, 16)).astype(np.float16) for _ in "kv")
            query = rng.standard_normal((1, 4, 16)).astype(np.float16)
            outputs = []
            for cache in (pod, reference):
                cache.layer(layer).append(key, value)
                outputs.append(sparq_attention(query, cache.layer(layer), rank=8, top_k=16, n_local=2))
            assert_bits(*outputs)


def tiered(**options: Any) -> KVCache:
    arguments: dict[str, Any] = dict(device="emulator", memory="tiered", index_bits=4, n_tiles=4)
    return KVCache(1, 1, 16, 128, **{**arguments, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(index_bits=16), "KVCache: index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
        (
            dict(memory="streaming", row_bits=8),
            "KVCache: row_bits must be 16 unless memory is 'tiered', got 8",
        ),
        (dict(memory="sram", row_bits=8), "KVCache: row_bits must be 16 unless memory is 'tiered', got 8"),
        (
            dict(memory="streaming", index_components=8),
            "KVCache: index_components must be 0 unless memory is 'tiered', got 8",
        ),
        (dict(row_bits=4), "KVCache: row_bits must be one of 16, 8, got 4"),
        (dict(hot_rows=-1), "KVCache: hot_rows must be in [0, 65536], got -1"),
        (
            dict(memory="streaming", hot_rows=8),
            "KVCache: memory must be 'tiered' where hot rows are asked for, got 'streaming'",
        ),
        (
            dict(memory="three tiers"),
            "KVCache: memory must be 'streaming' or 'sram' or 'tiered', got 'three tiers'",
        ),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    assert refusal(tiered, **options) == message


def test_bad_calls_are_refused_and_leave_the_cache() -> None:
    cache = tiered(hot_rows=8)
    rng = np.random.default_rng(6)
    key, value = (rng.standard_normal((1, 1, 70, 16)).astype(np.float16) for _ in "kv")
    query = rng.standard_normal((1, 2, 16)).astype(np.float16)
    cache.append(key, value)
    with pytest.raises(
        ValueError, match=r"^dense_attention: memory must be 'sram' or 'streaming', got 'tiered'$"
    ):
        dense_attention(query, cache)
    with pytest.raises(ValueError, match=r"^sparq_attention: hot_rows must be 0 or at least top_k=9, got 8$"):
        sparq_attention(query, cache, rank=8, top_k=9)
    reference = KVCache(1, 1, 16, 128, device="reference", index_bits=4)
    reference.append(key, value)
    outputs = [sparq_attention(query, c, rank=8, top_k=8) for c in (cache, reference)]
    assert_bits(*outputs)


def test_rows_of_8_bits_move_fewer_bytes() -> None:
    """Of a row 2 * 16 bytes of codes and 2 * 2 scales of 2 bytes; both caches hold rounded rows before and
    after the program is compiled."""
    rng = np.random.default_rng(8)
    key, value = (rng.standard_normal((1, 1, 70, 16)).astype(np.float16) for _ in "kv")
    query = rng.standard_normal((1, 2, 16)).astype(np.float16)
    moved, held = {}, {}
    for row_bits in (16, 8):
        cache = tiered(row_bits=row_bits)
        cache.append(key, value)
        before = cache.read()
        sparq_attention(query, cache, rank=8, top_k=8)
        report = _core.emulator_last_run(cache._backends[0].session)
        moved[row_bits] = {
            s["name"]: s["bytes"] for s in report["steps"] if s["kind"] == "remote-read" and s["executions"]
        }
        for rows, same, given_ in zip(cache.read(), before, (key, value)):
            assert_bits(rows, same)
            assert_bits(rows, row_codes.round_rows(given_, row_bits))
        (held[row_bits],) = cache._backends[0].session.streaming_memory_bytes
    of_wave = {row_bits: next(iter(steps.values())) for row_bits, steps in moved.items()}
    assert of_wave[8] / of_wave[16] == (2 * 16 + 2 * 2 * 2) / (2 * 2 * 16) == held[8] / held[16]


def test_misses_are_of_tiers_alone() -> None:
    attention = [Attention("sparq-streaming", SparqSettings(rank=8, top_k=4))]
    session = _core.Session(CacheSpec(1, 1, 16, 64), 1, attention=attention, options=DeviceOptions(n_tiles=2))
    with pytest.raises(ValueError, match=r"^misses: memory must be 'tiered', got 'streaming'$"):
        session.misses()


def test_a_plan_takes_a_hit_rate() -> None:
    shape: dict[str, Any] = dict(n_heads=4, seq_len=1024, head_dim=32, rank=8, top_k=32)
    shape.update(index_bits=4, baseline=False)
    cold, hot = (sparq_ipu.plan(**shape, kernel="sparq-tiered", n_tiles=64, hit_rate=h) for h in (0.0, 1.0))
    assert cold.request.options == {"index_bits": 4, "index_components": 0, "row_bits": 16}
    assert hot.streamed_bytes == 0 < cold.streamed_bytes
    assert cold.streamed_bytes == 4 * 32 * 2 * 32 * 2  # every selected row, and no other
    few = sparq_ipu.plan(**shape, kernel="sparq-tiered", n_tiles=64, hit_rate=0.6)  # 52 misses of 128
    steps = [[stage.name.split("/")[-1] for stage in planned.stages] for planned in (cold, few, hot)]
    assert ["head_rows" in names for names in steps] == [True, False, False]
    assert ["rows_of_wave" in names for names in steps] == [False, True, False]
    for hit_rate in (-0.1, 1.1, "1", True):
        with pytest.raises(ValueError, match=r"^plan: hit_rate must be in \[0, 1\], got "):
            sparq_ipu.plan(**shape, kernel="sparq-tiered", hit_rate=hit_rate)  # type: ignore[arg-type]


def test_a_plan_counts_as_a_run_does() -> None:
    """With nothing hot: waves, bytes and seconds of the plan are those of the first call."""
    settings_ = SparqSettings(rank=8, top_k=32)
    spec = CacheSpec(1, 4, 32, 1024, index_bits=4)
    session = _core.Session(
        spec, 4, attention=[Attention("sparq-tiered", settings_)], append=False, options=DeviceOptions(64)
    )
    rng = np.random.default_rng(7)
    session.write(*(rng.standard_normal((1, 4, 1024, 32)).astype(np.float16) for _ in "kv"), [1024])
    session.attention(0, rng.standard_normal((1, 4, 32)).astype(np.float16))
    run = _core.emulator_last_run(session, {"tiles": 64})
    given: dict[str, Any] = dict(kernel="sparq-tiered", index_bits=4, n_tiles=64, rank=8, top_k=32)
    planned = sparq_ipu.plan(1, 4, 4, 32, 1024, baseline=False, **given)
    assert planned.seconds_per_query == run["seconds"]["total"]
    executions = [(s["name"], s["executions"]) for s in run["steps"]]
    assert executions == [(s.name, s.executions) for s in planned.stages]
    some = sparq_ipu.plan(1, 4, 4, 32, 1024, baseline=False, hit_rate=0.5, **given)
    assert executions != [(s.name, s.executions) for s in some.stages]  # negative control


def test_wide_waves_follow_one_another() -> None:
    """Every head fetches its own rows, more than fit on a tile at once."""
    rng, settings_ = np.random.default_rng(5), dict(rank=16, top_k=96, n_local=4)
    spec: dict[str, Any] = dict(batch=1, n_kv_heads=3, head_dim=256, capacity=128, index_bits=4)
    caches = [KVCache(**spec, **options) for options in TIERED_ON_FEW_TILES]
    rows = [rng.standard_normal((1, 3, 100, 256)).astype(np.float16) for _ in "kv"]
    query = rng.standard_normal((1, 3, 256)).astype(np.float16)
    for cache in caches:
        cache.append(*rows)
    assert_bits(*(sparq_attention(query, cache, **settings_) for cache in caches))
    plan = sparq_ipu.plan(
        1, 3, 3, 256, 128, kernel="sparq-tiered", n_tiles=6, rank=16, top_k=96, hit_rate=0.0, baseline=False
    )
    assert [stage.executions for stage in plan.stages if stage.name.endswith("head_rows")] == [2]


def test_one_tile_does_it_all() -> None:
    pair = Pair((16, 1, 2, 1), dict(n_tiles=1, n_layers=2, index_bits=4, row_bits=16), 0)
    settings_ = SparqSettings(rank=8, top_k=9, n_local=2)
    for step in range(6):
        for layer in (1, 0):
            pair.append(layer, 150 if step == 0 else 1, "normal")
            pair.attend(layer, settings_)


def test_one_kv_head_has_a_tile_for_each_block() -> None:
    """More than of a streamed cache; the last tiles share the open block."""
    shape: dict[str, Any] = dict(n_heads=2, n_kv_heads=1, head_dim=32, seq_len=16384, rank=8, top_k=64)
    options: dict[str, Any] = dict(append=True, baseline=False)
    planned = sparq_ipu.plan(**shape, kernel="sparq-tiered", **options)
    assert planned.mapping["parts"] == 16384 // 64 + 56
    assert sparq_ipu.plan(**shape, kernel="sparq-streaming", **options).mapping["parts"] == 128
    rng = np.random.default_rng(2)
    rows = [rng.standard_normal((1, 1, 16001, 32)).astype(np.float16) for _ in "kv"]
    query = rng.standard_normal((1, 2, 32)).astype(np.float16)
    outputs = []
    for how in (dict(device="emulator", memory="tiered"), dict(device="reference")):
        cache = KVCache(1, 1, 32, 16384, index_bits=2, **how)  # type: ignore[arg-type]
        cache.append(*(of[:, :, :-1] for of in rows))
        cache.append(*(of[:, :, -1:] for of in rows))
        outputs.append(sparq_attention(query, cache, rank=8, top_k=64, n_local=8))
    assert_bits(*outputs)
