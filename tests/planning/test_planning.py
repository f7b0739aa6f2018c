# SPDX-License-Identifier: Apache-2.0
"""Plans: equal to what a real emulated run reports, refusals with the limit and the need, several IPUs."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import sys
import time
from pathlib import Path

import numpy as np
import published_plans
import pytest
from emulated import _core as core

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import KERNELS, Attention
from sparq_ipu.planning import planner
from sparq_ipu.planning.device_model import FACTORS, device_model
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings

BENCHMARKS = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"

#: batch, n_heads, n_kv_heads, head_dim, capacity, tiles, lengths
SHAPES = [
    (1, 1, 1, 8, 64, 1, [1]),
    (1, 2, 1, 16, 200, 3, [200]),
    (2, 4, 2, 32, 300, 16, [17, 290]),
    (3, 6, 3, 64, 700, 64, [1, 700, 512]),
    (1, 4, 4, 64, 2048, 64, [2048]),
    (1, 4, 4, 64, 2048, 64, [600]),
    (4, 8, 2, 32, 1100, 5, [65, 900, 1100, 64]),
    (2, 8, 8, 128, 1500, 1472, [1024, 1500]),
    (1, 32, 8, 128, 4096, 1472, [4096]),
    # several waves: all of them, some of them, of several rounds
    (1, 1, 1, 128, 9000, 1, [9000]),
    (1, 1, 1, 128, 9000, 1, [300]),
    (4, 2, 2, 128, 5000, 4, [600, 4097, 1, 5000]),
]
SETTINGS = SparqSettings(8, 24, 3, True)


#: of all tiles of an IPU, which takes long, without appended tokens or with them
SHAPES_AND_APPENDS = [
    (shape, append)
    for shape in SHAPES
    for append in (False, True)
    if shape[5] < 1472 or append == (shape[0] == 1)
]


#: kernels, and key indices of those that take settings
VARIANTS = [
    (name, bits)
    for name, k in KERNELS.items()
    if k.takes != "window"
    for bits in ((16,) if k.is_dense else (16, 8, 4))
    if k.memory != "tiered" or bits != 16
]


def run(shape, kernel, append, model, index_bits=16, **how):
    """The counts of a real emulated run."""
    batch, n_heads, n_kv_heads, head_dim, capacity, tiles, lengths = shape
    rng = np.random.default_rng(1)
    session = core.Session(
        CacheSpec(batch, n_kv_heads, head_dim, capacity, index_bits),
        n_heads,
        attention=[Attention(kernel, KERNELS[kernel].settings(SETTINGS))],
        append=append,
        device="emulator",
        options=DeviceOptions(tiles),
        **how,
    )
    key, value = rng.normal(size=(2, batch, n_kv_heads, max(lengths), head_dim)).astype(np.float16)
    session.write(key, value, lengths)
    query = rng.normal(size=(batch, n_heads, head_dim)).astype(np.float16)
    session.attention(0, query)
    return core.emulator_last_run(session, model.parameters()), core.emulator_memory(session)


def planned(shape, kernel, append, **options):
    batch, n_heads, n_kv_heads, head_dim, capacity, tiles, lengths = shape
    return published_plans.plan(
        batch,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        kernel=kernel,
        **SETTINGS.arguments(),
        lengths=lengths,
        n_tiles=tiles,
        append=append,
        baseline=False,
        **options,
    )


def cases():
    """Of each shape two variants without appended tokens and two others with them, so that each variant has
    several shapes of both."""
    for i, (shape, append) in enumerate(SHAPES_AND_APPENDS):
        for j, variant in enumerate(VARIANTS):
            if (3 * i + j) % len(VARIANTS) < 2:
                yield pytest.param(shape, append, *variant)


@pytest.mark.parametrize(
    "shape, append, kernel, index_bits",
    cases(),
    ids=lambda x: "-".join(map(str, x[:6])) if isinstance(x, tuple) else x,
)
def test_a_plan_is_what_a_run_reports(shape, kernel, index_bits, append):
    model = device_model("gc200")
    try:
        plan = planned(shape, kernel, append, device=model, index_bits=index_bits)
    except DoesNotFit as refused:
        # What the plan refuses does not compile either.
        with pytest.raises(DoesNotFit) as also_refused:
            run(shape, kernel, append, model, index_bits)
        for error in (refused, also_refused.value):
            assert error.resource == "tile memory" and error.need > error.room == 638976
        return
    counted, memory = run(shape, kernel, append, dataclasses.replace(model, tiles=shape[5]), index_bits)
    tiered = KERNELS[kernel].memory == "tiered"
    if tiered and min(shape[6]) < SETTINGS.top_k:
        assert plan.streamed_bytes >= streamed_bytes(counted)
        return
    if not KERNELS[kernel].is_dense:
        # A plan takes no selection to begin again, which is a constant of 24 bytes, and as many rows to be
        # missing of every KV head, which is another: 4 bytes, and 4 of code for each of the three times that
        # the tile which counts waves gets them.
        assumed = 24 + (4 + 3 * 4 if tiered else 0)
        more = [a - b for a, b in zip(plan.memory["bytes_per_tile"], memory["bytes_per_tile"])]
        assert all(0 <= n <= assumed * plan.mapping["rounds"] for n in more)
        assert sum(n > 0 for n in more) <= (1 + tiered) * plan.mapping["slots"]
        same = ("vertex_code", "exchange_code", "control_code", "vertices", "stacks", "temporaries", "limit")
        memory = {**plan.memory, **{name: memory[name] for name in same}}
    assert plan.steps == counted["steps"]
    assert plan.seconds_by_category == counted["seconds"]
    assert plan.memory == memory
    assert plan.seconds_per_query == counted["seconds"]["total"]
    assert plan.streamed_bytes == streamed_bytes(counted)


@pytest.mark.parametrize("append", [False, True])
def test_rows_in_sram_are_in_fp32_if_they_may_be(append):
    """Plans are what runs report, in fp16 too; fp32 takes less time and twice the memory of the rows."""
    shape = (1, 4, 4, 64, 2048, 64, [600])
    model = dataclasses.replace(device_model(), tiles=64)
    wide = planned(shape, "dense-sram", append)
    narrow = planner.planned(dataclasses.replace(wide.request, may_widen=False))
    for plan, may_widen, words in ((wide, True, "fp32 in SRAM"), (narrow, False, "fp16 in SRAM")):
        counted, memory = run(shape, "dense-sram", append, model, may_widen=may_widen)
        assert (plan.steps, plan.memory) == (counted["steps"], memory)
        assert plan.wide_rows == plan.row()["mapping"]["wide_rows"] == may_widen and words in str(plan)
    assert wide.seconds_per_query < 0.95 * narrow.seconds_per_query
    assert wide.memory["variables"] - narrow.memory["variables"] == 2048 * 4 * 64 * 2 * 2 / 64


def test_rows_in_sram_are_in_fp32_up_to_three_quarters_of_a_tile():
    """512 bytes a position of one head; beside them its query, two scores, a partial sum and a weight."""
    for seq_len, wide in ((896, True), (960, False)):
        working = seq_len * 4 * 4 + 4 * (2 * 64 + 64 + seq_len // 64)
        plan = published_plans.plan(1, 1, 1, 64, seq_len, kernel="dense-sram", baseline=False, n_tiles=1)
        assert (working + 512 * seq_len <= 0.75 * 638976) == plan.wide_rows == wide, seq_len


def test_keys_and_values_in_sram_count_when_rounds_are_chosen():
    """Above 70 % of what keys and values leave of a tile, 256 bytes for each position, two tasks of two tiles
    take turns: scores, partial sums and what arrives for one step, of 64 bytes each, 4 more, and some."""
    shape = dict(batch=2, n_heads=16, n_kv_heads=1, head_dim=64, n_tiles=2)
    for seq_len, rounds in ((1152, 1), (1216, 2), (1408, 2)):
        working = seq_len * (3 * 64 + 4) + 4 * 16 * (64 + 2 * 64)
        assert (working > 0.7 * (638976 - 256 * seq_len)) == (rounds == 2)
        plan = published_plans.plan(**shape, seq_len=seq_len, kernel="dense-sram", baseline=False)
        assert plan.mapping["rounds"] == rounds, seq_len


def test_sums_of_blocks_are_folded_on_several_tiles():
    """Those of 200 heads and 32,768 positions take 400 KiB, which one tile had to hold beside its weights."""
    plan = published_plans.plan(1, 200, 1, 8, 32768, kernel="dense-sram", baseline=False, n_tiles=368)
    assert plan.max_tile_bytes < 400_000


def streamed_bytes(counted):
    return sum(s["bytes"] * s["executions"] for s in counted["steps"] if s["kind"].startswith("remote"))


@pytest.mark.parametrize("kernel", ["dense-streaming", "sparq-streaming"])
def test_the_comparison_can_fail(kernel):
    # Negative control: a shorter cache takes fewer waves, so the counts of another length are not equal.
    full, short = SHAPES[-3], SHAPES[-2]
    assert full[:6] == short[:6]
    counted, _ = run(full, kernel, False, device_model())
    plan = planned(short, kernel, False)
    assert plan.steps != counted["steps"]
    if not KERNELS[kernel].is_dense:  # and another key index is another program
        assert len({repr(planned(full, kernel, False, index_bits=bits).steps) for bits in (16, 8, 4)}) == 3
    assert plan.streamed_bytes < planned(full, kernel, False).streamed_bytes


@pytest.mark.parametrize("top_k, copies", [(64, ["read_rows"]), (512, ["read_key_rows", "read_value_rows"])])
def test_selected_rows_come_in_one_copy_where_a_stream_may_carry_it(top_k, copies):
    # 1024 tasks at a time: 33.5 MB of rows, or 268 MB, of at most 128 MiB
    plan = published_plans.plan(64, 32, 32, 128, 1024, kernel="sparq-streaming", top_k=top_k, baseline=False)
    names = [step["name"].split("/")[-1] for step in plan.steps if step["kind"].startswith("remote")]
    assert [name for name in dict.fromkeys(names) if name != "read_key_columns"] == copies


def test_remote_copies_stay_within_what_a_stream_may_carry():
    # columns of 1472 tasks at a time, 138 MiB of them
    plan = published_plans.plan(
        46, 32, 32, 96, 1024, kernel="sparq-streaming", rank=96, top_k=64, baseline=False
    )
    reads = [step for step in plan.steps if step["name"].endswith("/read_key_columns")]
    assert sum(step["bytes"] for step in reads) > 128 * 2**20
    assert len(reads) == 2 and max(step["bytes"] for step in reads) <= 128 * 2**20


def test_a_dry_run_leaves_later_sessions_alone():
    planned(SHAPES[2], "sparq-streaming", False)
    counted, _ = run(SHAPES[2], "sparq-streaming", False, device_model())
    assert counted["steps"]  # Session.write would have thrown on a dry engine


def test_what_is_planned_twice_is_counted_once(monkeypatch):
    """And each plan is its caller's own, to change as it likes."""
    shape = dict(batch=1, n_heads=3, head_dim=24, seq_len=333, rank=5, top_k=7)
    first = published_plans.plan(**shape)
    expected = first.row()
    first.memory.clear()
    first.steps.clear()
    really, counted = core.emulator_plan, []
    monkeypatch.setattr(core, "emulator_plan", lambda *a, **k: counted.append(a) or really(*a, **k))
    again = published_plans.plan(**shape)
    assert not counted and again.row() == expected and again.steps and again.memory
    assert (
        published_plans.plan(**shape, index_bits=4).row() != expected and len(counted) == 1
    )  # dense is the same
    slow = dataclasses.replace(device_model(), streaming_bytes_per_second=1e9)
    assert published_plans.plan(**shape, device=slow).row() != expected
    assert len(counted) == 5  # with the two dense kernels, one of them in fp16 and in fp32


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            dict(batch=64, seq_len=65536, kernel="dense-streaming"),
            r"plan: streaming memory of an IPU must be at most 64000000000 bytes, got 687\d+ \(cache/",
        ),
        (
            dict(batch=3, seq_len=18000, kernel="dense-sram"),
            r"plan: tile memory: tile \d+ .*at most 638976 bytes, got \d{6,} \(largest: ",
        ),
        (
            dict(batch=65536, seq_len=65536, kernel="dense-sram"),
            r"plan: tile memory: the fullest tile must need at most 638976 bytes, got \d{7,} \(of the cache ",
        ),
        (dict(kernel="dense"), r"plan: kernel must be one of .*, got 'dense'"),
        (dict(seq_len=1.5), r"plan: seq_len must be an integer in \[1, 16777216\], got 1.5"),
        (dict(n_tiles=1473), r"plan: n_tiles must be in \[0, 1472\], got 1473"),
        (dict(n_heads=32, n_kv_heads=5), r"plan: n_heads must be a multiple of n_kv_heads=5, got 32"),
        (dict(mean_value="no"), r"plan: mean_value must be True or False, got 'no'"),
        (dict(index_bits=4.0, kernel="dense-sram"), r"plan: index_bits must be one of 16, 8, 4, 2, got 4.0$"),
        (
            dict(bits=4),
            r"plan: options must be among \['kernel', .*'rank', .*'index_components'\], got 'bits'",
        ),
        (
            dict(hit_rate=0.9),
            "plan: hit_rate must be 0 for kernel 'sparq-streaming', which has no hot rows, got 0.9",
        ),
        (
            dict(misses=[1] * 32),
            "plan: misses must be None for kernel 'sparq-streaming', which has no hot rows, got ",
        ),
        (
            dict(misses=[1] * 32, kernel="sparq-tiered", hit_rate=0.5),
            "plan: misses must be None where hit_rate is given, got ",
        ),
        (
            dict(misses=[1] * 31 + [129], kernel="sparq-tiered"),
            r"plan: misses must be in \[0, top_k=128\], got ",
        ),
        (
            dict(misses=[1] * 31, kernel="sparq-tiered"),
            r"plan: misses must have shape \(batch \* n_kv_heads=32,\), got \(31,\)",
        ),
        (
            dict(hot_rows=9, kernel="dense-sram"),
            "plan: hot_rows must be 0 for kernel 'dense-sram', which has .*, got 9",
        ),
        (dict(append="x"), "plan: append must be True or False, got 'x'"),
        (dict(baseline=1), "plan: baseline must be True or False, got 1"),
        (dict(rank=129), r"plan: rank must be in \[1, head_dim=128\], got 129"),
        (dict(lengths=[1, 2]), r"plan: lengths must have shape \(batch=1,\), got \(2,\)"),
        (dict(lengths=5), r"plan: lengths must have shape \(batch=1,\), got \(\)"),
        (dict(lengths=[16385]), r"plan: lengths must be in \[1, seq_len=16384\], got 16385"),
        (dict(lengths=[-1]), r"plan: lengths must be in \[1, seq_len=16384\], got -1"),
        (dict(device=None), r"device_model: name must be one of bow, gc200, got None"),
        (dict(device="gc2"), r"device_model: name must be one of bow, gc200, got 'gc2'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        published_plans.plan(**arguments)


def test_the_refused_need_is_what_the_cache_takes():
    with pytest.raises(ValueError) as refused:
        published_plans.plan(batch=64, seq_len=65536, kernel="dense-streaming")
    need = int(re.search(r"got (\d+) ", str(refused.value)).group(1))
    rows = 2 * 64 * 32 * 65536 * 128 * 2  # K and V
    assert rows <= need < 1.001 * rows  # and scratch rows


def test_what_can_not_fit_is_refused_before_the_dry_run(monkeypatch):
    """And the need is a part of what the dry run finds."""
    monkeypatch.setattr(core, "emulator_plan", lambda *a: pytest.fail("a dry run"))
    message = r"^plan: streaming memory of an IPU must be at most 64000000000 bytes, got (\d+) \(cache/rows "
    for arguments, elements in (
        (dict(batch=65536, seq_len=65536), 3 * 65536 * 32 * 65536 * 128),
        (dict(batch=65536, seq_len=65536, n_kv_heads=8, kernel="dense-streaming"), 2 * 65536**2 * 8 * 128),
        # keys and values, and of each key a byte or half of one, and 1 / 16 of a byte for low and step
        (dict(batch=65536, seq_len=65536, index_bits=8), 65536 * 32 * 65536 * 128 * (4 + 17 / 16) / 2),
        (dict(batch=65536, seq_len=65536, index_bits=4), 65536 * 32 * 65536 * 128 * (4 + 9 / 16) / 2),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            published_plans.plan(**arguments)
        assert int(re.search(message, str(refused.value)).group(1)) == 2 * elements


@pytest.mark.parametrize(("kernel", "index_bits"), [v for v in VARIANTS if v[0] != "dense-sram"])
def test_the_early_check_is_a_lower_bound(kernel, index_bits):
    for heads, seq_len, near in ((6, 16384, 0.9), (67, 63, 0), (178, 255, 0), (22, 1087, 0)):
        found = published_plans.plan(
            1,
            heads,
            heads,
            128,
            seq_len,
            kernel=kernel,
            rank=8,
            top_k=8,
            baseline=False,
            index_bits=index_bits,
            n_tiles=64,
        ).streaming_memory
        early = KERNELS[kernel].cache_bytes(CacheSpec(1, heads, 128, seq_len, index_bits))[0]
        assert list(early) == list(found)
        assert all(near * found[name] <= n < found[name] for name, n in early.items()), (
            seq_len,
            early,
            found,
        )


def test_a_need_above_its_lower_bound_is_refused():
    """A byte of streaming memory too little, where keys, values and index alone would fit: scratch rows."""
    shape = dict(batch=1, n_heads=8, head_dim=64, seq_len=200, rank=8, top_k=8, baseline=False)
    need = published_plans.plan(**shape).streaming_memory_bytes
    assert sum(KERNELS["sparq-streaming"].cache_bytes(CacheSpec(1, 8, 64, 200))[0].values()) < need - 1
    enough, less = (dataclasses.replace(device_model(), streaming_memory_bytes=need - n) for n in (0, 1))
    assert published_plans.plan(**shape, device=enough).streaming_memory_bytes == need
    with pytest.raises(DoesNotFit, match=f"must be at most {need - 1} bytes, got {need} ") as refused:
        published_plans.plan(**shape, device=less)
    assert (refused.value.need, refused.value.room) == (need, need - 1)


def test_a_smaller_key_index_moves_and_takes_less():
    sixteen, eight, four = (published_plans.plan(1, 32, 8, 128, 4096, index_bits=bits) for bits in (16, 8, 4))
    for more, fewer in ((sixteen, eight), (eight, four)):
        assert more.streamed_bytes > fewer.streamed_bytes
        assert more.streaming_memory_bytes > fewer.streaming_memory_bytes
        assert more.speedup_vs_dense_streaming < fewer.speedup_vs_dense_streaming
        assert more.streaming_memory["cache/rows"] == fewer.streaming_memory["cache/rows"]
    # rank of head_dim components of every block: codes, low and step
    rows = 2 * 128 * 8 * 128 * 2
    assert [p.streamed_bytes - rows for p in (sixteen, eight, four)] == [
        8 * 32 * n for n in (4096 * 2, 64 * (64 + 4), 64 * (32 + 4))
    ]
    assert four.request.options == dict(index_bits=4, index_components=0, row_bits=16)
    assert four.row()["index_bits"] == 4
    assert "seq_len 4096, index_bits 4, rank 32" in str(four)
    assert "index_bits" not in str(sixteen) and sixteen.row()["index_bits"] == 16


def test_a_key_index_is_nothing_to_dense_attention():
    """As the settings: also where it is what SparQ is compared with."""
    shape = dict(batch=1, n_heads=8, head_dim=64, seq_len=1024)
    dense = published_plans.plan(**shape, kernel="dense-streaming")
    assert published_plans.plan(**shape, kernel="dense-streaming", index_bits=4, rank=64) == dense
    sparq = published_plans.plan(**shape, index_bits=np.int8(4))
    assert sparq.speedup_vs_dense_streaming == dense.seconds_per_query / sparq.seconds_per_query


def test_a_list_is_no_longer_than_the_cache():
    """top_k beyond all positions selects all of them, and takes the memory and the time of that."""
    shape = dict(batch=1, n_heads=2, head_dim=16, seq_len=512, rank=4, baseline=False)
    every, more, fewer = (published_plans.plan(**shape, top_k=top_k) for top_k in (512, 100_000, 64))
    for name in ("seconds_per_query", "max_tile_bytes", "streaming_memory_bytes"):
        assert getattr(more, name) == getattr(every, name)
    assert fewer.max_tile_bytes < every.max_tile_bytes  # a list does take memory


def test_there_is_a_plan_where_dense_attention_does_not_fit(monkeypatch):
    shape = dict(batch=1, n_heads=4, head_dim=64, seq_len=256)
    expected = published_plans.plan(**shape, baseline=False)
    really = planner.planned

    def planned_but_dense(request):
        if not request.kernel.is_dense:
            return really(request)
        raise DoesNotFit("plan: tile memory", "tile memory", 2, 1)

    monkeypatch.setattr(planner, "planned", planned_but_dense)
    plan = published_plans.plan(**shape)
    assert plan == expected and plan.speedup_vs_dense_streaming is None


def test_the_baseline_is_without_the_append_program():
    """With it, a row of the cache would hold one position, and dense attention would seem slower."""
    shape = dict(batch=1, n_heads=8, head_dim=64, seq_len=1024)
    dense, appending = (
        published_plans.plan(**shape, kernel="dense-streaming", append=a) for a in (False, True)
    )
    assert appending.seconds_per_query > 1.1 * dense.seconds_per_query
    sparq = published_plans.plan(**shape, append=True)
    assert sparq.speedup_vs_dense_streaming == dense.seconds_per_query / sparq.seconds_per_query


def test_a_smaller_key_index_fits_on_fewer_ipus():
    """What is refused on one IPU with 16 bits, for keys, values and the key index; with a 40th of it,
    so that a plan is made soon."""
    small = dataclasses.replace(device_model(), streaming_memory_bytes=64 * 10**9 // 40)
    shape = dict(batch=1, seq_len=65536, baseline=False, device=small)
    with pytest.raises(DoesNotFit, match="streaming memory"):
        published_plans.plan(**shape)
    assert published_plans.plan(**shape, index_bits=4).streaming_memory_bytes < 64e9 / 40


@pytest.mark.slow
def test_plans_beyond_the_measured_footprints_say_so():
    """The largest caches measured: 4.3 GB dense, 1.6 GB for SparQ, at batch 64. Plans have spare rows."""
    for kernel, batch, beyond in (
        ("dense-streaming", 64, False),
        ("dense-streaming", 70, True),
        ("sparq-streaming", 64, False),
        ("sparq-streaming", 70, True),
        ("dense-sram", 1, False),
    ):
        seq_len = 4096 if kernel == "dense-streaming" else 1024
        plan = published_plans.plan(batch, seq_len=seq_len, kernel=kernel, baseline=False)
        measured = 2**32 if kernel == "dense-streaming" else 3 * 2**29
        assert plan.footprint_extrapolated == (plan.streaming_memory_bytes > 1.05 * measured) == beyond
        assert plan.row()["footprint_extrapolated"] == beyond
        assert ("larger than any measured" in str(plan)) == beyond


def test_extended_memory_is_for_16_gib_or_more():
    """The emulator refuses such a plan without the option: that there is one says that it was set."""
    for batch, extended in ((15, False), (16, True)):  # 1 GiB of keys and values each
        plan = published_plans.plan(batch, seq_len=65536, kernel="dense-streaming")
        assert (plan.streaming_memory_bytes >= 2**34) == extended
        assert plan.extended_memory == plan.row()["extended_memory"] == extended
        assert ("target.extendedMemory" in str(plan)) == extended


def test_numpy_integers_are_integers():
    sizes = dict(batch=1, n_heads=4, n_kv_heads=2, head_dim=16, seq_len=200, rank=4, top_k=8, n_tiles=4)
    plan = published_plans.plan(**{name: np.int64(n) for name, n in sizes.items()}, lengths=np.array([150]))
    assert plan == published_plans.plan(**sizes, lengths=(150,))
    assert json.loads(json.dumps(plan.row()))["rank"] == 4


def test_without_an_extension_module(monkeypatch):
    import sparq_ipu

    monkeypatch.delattr(sparq_ipu, "_core")
    monkeypatch.setitem(sys.modules, "sparq_ipu._core", None)
    with pytest.raises(RuntimeError, match=r"^plan: the extension module must be built, got none"):
        published_plans.plan()


def test_headline_is_quick_and_needs_no_cache():
    # 407 MB of cache at this size; a dense cache of 26 GB below.
    start = time.process_time()
    plan = published_plans.plan()
    seconds = time.process_time() - start
    assert plan.streaming_memory_bytes > 400e6
    big = published_plans.plan(batch=16, seq_len=65536, baseline=False)
    assert big.streaming_memory_bytes > 25e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < 8e9
    assert seconds < 10  # about one on an idle machine
    assert "modelled" in str(plan)
    (row,) = re.findall(r"^sparq-streaming  .*$", BENCHMARKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert f" {plan.speedup_vs_dense_streaming:.3g}x" in row and "7." in row
    assert plan.max_tile_bytes == max(plan.memory["bytes_per_tile"]) < plan.memory["limit"]
    assert sum(plan.stages_by_name().values()) == pytest.approx(plan.seconds_per_query, rel=1e-12)
    row = plan.row()
    assert row["time_source"] == "modelled" and row["device"] == "bow"


def test_fixed_seconds_do_not_depend_on_the_streaming_rate():
    plan = planned(SHAPES[2], "sparq-streaming", False)
    fast = dataclasses.replace(device_model(), streaming_bytes_per_second=1e19)
    assert plan.fixed_seconds == pytest.approx(
        planned(SHAPES[2], "sparq-streaming", False, device=fast).seconds_per_query, rel=1e-6
    )


def test_the_range_of_a_time_has_a_factor_for_each_kind_of_work():
    sparq = published_plans.plan(2, 16, 4, 32, 512, rank=8, top_k=16)
    seconds = sparq.seconds_by_category
    on_chip = seconds["compute"] + seconds["exchange"] + seconds["sync"]
    assert sparq.on_chip_seconds == pytest.approx(on_chip) and on_chip > 0
    for end, found in enumerate((sparq.seconds_low, sparq.seconds_high)):
        work = sum(FACTORS[name][end] * seconds[name] for name in ("compute", "exchange", "sync"))
        assert found == pytest.approx(seconds["streaming"] + work)
    assert sparq.seconds_low < sparq.seconds_per_query < sparq.seconds_high
    dense = published_plans.plan(2, 16, 4, 32, 512, kernel="dense-streaming")
    best = published_plans.plan(2, 16, 4, 32, 512, kernel="dense-sram")
    assert (dense.speedup_vs_dense_streaming, best.speedup_vs_best_dense) == (1, 1)
    assert best.seconds_per_query < dense.seconds_per_query
    assert sparq.speedup_vs_best_dense == pytest.approx(best.seconds_per_query / sparq.seconds_per_query)
    assert sparq.speedup_low == pytest.approx(best.seconds_high / sparq.seconds_high)
    assert sparq.speedup_high == pytest.approx(best.seconds_low / sparq.seconds_low)
    row = sparq.row()
    for name in ("on_chip_seconds", "seconds_low", "seconds_high", "speedup_low", "speedup_high"):
        assert row[name] == getattr(sparq, name)
    times = (sparq.seconds_low, sparq.seconds_per_query, sparq.seconds_high)
    assert f"low, likely, high: {', '.join(f'{s * 1e6:.1f}' for s in times)} us" in str(sparq)
    assert f"high {sparq.speedup_low:.3g}x, low {sparq.speedup_high:.3g}x)" in str(sparq)


def test_the_best_dense_plan_of_many_layers_has_some_in_sram():
    """Over dense attention with as many layers in SRAM as fit, and the others streamed."""
    small = dataclasses.replace(device_model(), tiles=64)
    shape = dict(batch=1, n_heads=8, head_dim=64, seq_len=8192, device=small)
    sparq = published_plans.plan(**shape, n_layers=4)

    def dense(kernel, n):
        return published_plans.plan(**shape, kernel=kernel, n_layers=n, baseline=False)

    def seconds(n):
        in_sram, others = dense("dense-sram", n), dense("dense-streaming", 4 - n)
        assert in_sram.max_tile_bytes + others.max_tile_bytes <= small.tile_bytes
        return (n * in_sram.seconds_per_query + (4 - n) * others.seconds_per_query) / 4

    assert sparq.speedup_vs_best_dense == pytest.approx(seconds(1) / sparq.seconds_per_query)
    assert sparq.speedup_vs_best_dense < sparq.speedup_vs_dense_streaming
    with pytest.raises((AssertionError, DoesNotFit)):  # there is no room for another layer
        seconds(2)


def test_what_is_done_wave_by_wave_counts_as_often():
    """In bytes, and in time."""
    shape = dict(n_heads=4, n_kv_heads=1, head_dim=32, seq_len=9000, rank=8, top_k=16, n_tiles=1)
    slow, quick = (
        published_plans.plan(1, **shape, lengths=[length], baseline=False) for length in (9000, 40)
    )
    assert slow.seconds_per_query > 1.05 * quick.seconds_per_query and slow.request.model.tiles == 1
    reads = [step for step in slow.steps if step["kind"].startswith("remote")]
    assert max(step["executions"] for step in reads) > 1
    assert slow.streamed_bytes == sum(step["bytes"] * step["executions"] for step in reads)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, kernel, host_bytes",
    [
        # keys, or values, of a cache in SRAM; and the tails of many tasks
        ((16, 32, 8, 128, 8192), "dense-sram", 16 * 8 * 8192 * 128 * 2),
        ((40, 32, 32, 128, 1024), "sparq-streaming", 40 * 32 * 512 * 128 * 2),
    ],
)
def test_more_than_a_host_transfer_may_have(shape, kernel, host_bytes):
    """Such tensors go in pieces: the emulator refuses a host transfer of more than 128 MiB."""
    assert host_bytes > 128 << 20
    assert published_plans.plan(*shape, kernel=kernel, baseline=False).seconds_per_query > 0
