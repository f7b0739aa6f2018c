# SPDX-License-Identifier: Apache-2.0
"""Results do not depend on who computes: tiles, host threads, rounds, waves."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import make_attention

import sparq_ipu
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, exact
from sparq_reference.settings import op_of

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

DENSE = Attention("dense-streaming", None)
SETTINGS = dict(rank=16, top_k=100, n_local=10)


def sparq(rank: int, top_k: int, n_local: int = 0) -> Attention:
    return Attention("sparq-streaming", SparqSettings(rank, top_k, n_local))


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
@pytest.mark.parametrize("n_tiles", [1, 3, 7, 64, 1472])
def test_any_number_of_tiles(n_tiles: int, index_bits: int) -> None:
    """Six tasks: on one tile six rounds, on 1472 one; grouped queries; lengths on both sides of chunks."""
    rng = np.random.default_rng(0)
    a = make_attention(
        rng, batch=3, n_kv_heads=2, group_size=3, seq_len=1200, head_dim=64, lengths=np.array([513, 1200, 64])
    )
    cache = sparq_ipu.KVCache(3, 2, 64, 1200, device="emulator", n_tiles=n_tiles, index_bits=index_bits)
    cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), a.lengths)
    for name, output in (
        ("sparq", sparq_ipu.sparq_attention(a.query, cache, **SETTINGS)),
        ("dense", sparq_ipu.dense_attention(a.query, cache)),
    ):
        settings = dict(SETTINGS, index_bits=index_bits) if name == "sparq" else {}
        expected = getattr(exact, f"{name}_attention")(*a.qkv, lengths=a.lengths, **settings)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("lengths", [[64, 9000], [9000, 64], [1, 9000, 640]])
@pytest.mark.parametrize(
    ("attention", "step"), [(sparq(32, 100, 10), "read_key_columns"), (DENSE, "read_key_rows")]
)
def test_each_round_reads_as_far_as_its_own_elements(
    attention: Attention, step: str, lengths: list[int]
) -> None:
    """On one tile the elements take turns, and come wave by wave: as many waves as each is long."""
    batch = len(lengths)
    a = make_attention(np.random.default_rng(4), batch=batch, seq_len=9000, head_dim=64, lengths=lengths)
    spec = CacheSpec(batch, 1, 64, 9000)
    session = _core.Session(spec, 1, attention=[attention], options=DeviceOptions(n_tiles=1))
    session.write(a.key, a.value, lengths)
    output = session.attention(0, a.query)
    mapping = _core.emulator_plan(spec, 1, attention, lengths, options=DeviceOptions(1))["mapping"]
    assert mapping["rounds"] == batch and mapping["waves"]["n_waves"] > 5
    settings = {} if attention.settings is None else attention.settings.arguments()
    expected = getattr(exact, op_of(attention.settings))(*a.qkv, lengths=a.lengths, **settings)
    np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))

    chunk, per_wave = max(mapping["chunk"], 1), mapping["waves"]["positions_per_wave"]
    waves = [-(-(n - n % chunk) // per_wave) for n in lengths]  # what is not in full chunks is on chip
    reads = [s for s in _core.emulator_last_run(session)["steps"] if s["name"].endswith(step)]
    assert [s["executions"] for s in reads] == [n for n in waves if n]


def test_waves_read_no_more_than_is_there() -> None:
    """Four blocks of such rows fit at a time. Three waves would read 12 for a cache of ten: five read 10."""
    spec = CacheSpec(1, 1, 128, 640)
    waves = _core.emulator_plan(spec, 1, DENSE, [640], options=DeviceOptions(1))["mapping"]["waves"]
    assert (waves["n_waves"], waves["positions_per_wave"]) == (5, 128)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_any_number_of_host_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARQ_EMULATOR_THREADS", threads)
    test_any_number_of_tiles(64, 4)


def test_waves_stop_behind_the_longest_element() -> None:
    """A cache of 65536 positions that holds 700 is not read to its end."""
    rng = np.random.default_rng(1)
    capacity, rank = 65536, 64
    a = make_attention(rng, n_kv_heads=2, seq_len=capacity, head_dim=64)
    streamed = {}
    for length in (700, capacity):
        session = _core.Session(
            CacheSpec(1, 2, 64, capacity), 2, attention=[sparq(rank, 32)], options=DeviceOptions(n_tiles=64)
        )
        key, value = a.key[:, :, :length].copy(), a.value[:, :, :length].copy()
        session.write(key, value, [length])
        output = session.attention(0, a.query)
        expected = exact.sparq_attention(a.query, key, value, rank=rank, top_k=32)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))
        steps = _core.emulator_last_run(session)["steps"]
        columns = [s for s in steps if s["name"].endswith("read_key_columns")]
        streamed[length] = sum(s["bytes"] * s["executions"] for s in columns)
    assert streamed[capacity] == capacity * 2 * rank * 2
    assert streamed[700] <= streamed[capacity] / 4


def test_streamed_bytes_are_the_formula_of_the_paper() -> None:
    """S r + 2 k d elements of K and V per KV head (equation 11; the 4 d are not read from the cache)."""
    rng = np.random.default_rng(2)
    a = make_attention(rng, batch=2, n_kv_heads=2, seq_len=1024, head_dim=64)
    session = _core.Session(
        CacheSpec(2, 2, 64, 1024), 2, attention=[sparq(8, 48)], options=DeviceOptions(n_tiles=64)
    )
    session.write(a.key, a.value, [1024, 1024])
    session.attention(0, a.query)
    steps = _core.emulator_last_run(session)["steps"]
    streamed = sum(s["bytes"] * s["executions"] for s in steps if s["kind"] == "remote-read")
    assert streamed == 2 * 2 * (1024 * 8 + 2 * 48 * 64) * 2


@pytest.mark.parametrize(("index_bits", "block"), [(8, 64 + 4), (4, 32 + 4)])
def test_streamed_bytes_of_an_index(index_bits: int, block: int) -> None:
    """A block of 64 positions of a component takes its codes and four bytes more (contract E9)."""
    a = make_attention(np.random.default_rng(2), batch=2, n_kv_heads=2, seq_len=1024, head_dim=64)
    spec = CacheSpec(2, 2, 64, 1024, index_bits=index_bits)
    session = _core.Session(spec, 2, attention=[sparq(8, 48)], options=DeviceOptions(n_tiles=64))
    session.write(a.key, a.value, [1024, 1024])
    session.attention(0, a.query)
    steps = _core.emulator_last_run(session)["steps"]
    streamed = sum(s["bytes"] * s["executions"] for s in steps if s["kind"] == "remote-read")
    assert streamed == 2 * 2 * (1024 // 64 * 8 * block + 2 * 48 * 64 * 2)


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_every_vertex_has_an_estimate(index_bits: int) -> None:
    a = make_attention(np.random.default_rng(3), seq_len=191, head_dim=16)
    spec = CacheSpec(1, 1, 16, 300, index_bits=index_bits)
    session = _core.Session(spec, 1, attention=[DENSE, sparq(4, 20, 2)], options=DeviceOptions(n_tiles=8))
    session.write(a.key, a.value, [191])
    for run in (
        lambda: session.attention(0, a.query),
        lambda: session.attention(1, a.query),
        lambda: session.append(a.key[:, :, :1].copy(), a.value[:, :, :1].copy(), [1]),
    ):
        run()
        steps = _core.emulator_last_run(session)["steps"]
        assert sum(s["vertices"] for s in steps) > 0
        assert sum(s["vertices_without_estimate"] for s in steps) == 0


#: what lives on between two programs: the cache, what the host writes for them, what it reads of them
KEPT = ("cache/", "append/", "query", "dense/output", "sparq0/output")


@pytest.mark.parametrize("index_bits", [16, 4])
@pytest.mark.parametrize("n_layers", [1, 4])
@pytest.mark.parametrize("n_tiles", [24, 5])  # one round, several
def test_working_tensors_live_within_a_program(n_tiles: int, n_layers: int, index_bits: int) -> None:
    """Else Poplar would keep their memory for them alone, in every layer."""
    session = _core.Session(
        CacheSpec(2, 4, 16, 700, index_bits=index_bits),
        8,
        attention=[DENSE, sparq(4, 16)],
        options=DeviceOptions(n_tiles=n_tiles),
        n_layers=n_layers,
    )
    live = [name for name, _ in _core.emulator_memory(session)["always_live"]]
    assert "cache/tail" in live  # control: there is something that does
    assert [name for name in live if not name.startswith(KEPT)] == []
