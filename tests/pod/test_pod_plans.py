# SPDX-License-Identifier: Apache-2.0
"""Plans of several IPUs: as an emulated run counts, and refused where an IPU has no room."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from published_plans import plan, plan_pod

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_ipu.planning.device_model import device_model
from sparq_ipu.planning.links import busiest_link_bytes, link_seconds, sync_hops
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, WindowSettings

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

SETTINGS: dict[str, Any] = dict(rank=16, top_k=64)
SHAPE: dict[str, Any] = dict(batch=2, n_heads=16, n_kv_heads=4, head_dim=64, seq_len=2048)


SPARQ = Attention("sparq-streaming", SparqSettings(**SETTINGS))
WINDOW = Attention("window-streaming", WindowSettings(64, n_recent=8))


def emulated(n_layers: int, n_ipus: int, split: str, attention: Attention = SPARQ) -> dict[str, Any]:
    spec = CacheSpec(2, 4, 64, 2048)
    model = {**device_model().parameters(), "tiles": 64}
    counted: dict[str, Any] = _core.emulator_plan(
        spec,
        16,
        attention,
        [2048, 2048],
        options=DeviceOptions(64, n_ipus=n_ipus, split=split),
        model=model,
        append=False,
        n_layers=n_layers,
        stacked=True,
    )
    return counted


@pytest.mark.parametrize(
    ("n_layers", "n_ipus", "split"),
    [
        (8, 4, "layers"),
        (3, 2, "layers"),
        (4, 4, "layers"),
        (4, 4, "heads"),
        (2, 8, "heads"),
        (2, 1, "layers"),
    ],
)
def test_a_plan_is_what_the_emulator_counts(n_layers: int, n_ipus: int, split: str) -> None:
    """Made from one IPU's counts and the links, against the program of all IPUs."""
    planned = plan_pod(**SHAPE, **SETTINGS, n_layers=n_layers, n_ipus=n_ipus, split=split, n_tiles=64)
    counted = emulated(n_layers, n_ipus, split)
    run, of_ipus = counted["seconds"], counted["seconds_by_ipu"]
    off = 2e-3 if split == "layers" else 1e-9  # of layers split, what goes between is counted by bytes alone
    assert planned.seconds_per_token == pytest.approx(run["total"], rel=off)
    for name in ("compute", "streaming", "sync"):
        assert planned.seconds_by_category[name] == pytest.approx(run[name], rel=min(off, 1e-3))
    assert planned.seconds_by_category["links"] == pytest.approx(run["links"], rel=1e-9)
    if split == "heads":
        in_turn = run["total"] - run["streaming"] + sum(seconds["streaming"] for seconds in of_ipus)
        assert planned.seconds_if_in_turn == pytest.approx(in_turn, rel=off)
    else:
        assert planned.seconds_if_in_turn == planned.seconds_per_token
    busiest = max(seconds["total"] for seconds in of_ipus)
    assert planned.seconds_of_busiest_ipu == pytest.approx(busiest, rel=5e-3)
    by_ipu = [0] * n_ipus
    for _, n_bytes, ipu in counted["streaming_memory"]:
        by_ipu[ipu] += n_bytes
    assert planned.streaming_memory_bytes == max(by_ipu)
    streamed = sum(s["bytes"] * s["executions"] for s in counted["steps"] if s["kind"] == "remote-read")
    assert planned.streamed_bytes == streamed


@pytest.mark.parametrize("n_ipus", [2, 4])
@pytest.mark.parametrize("hit_rate", [1.0, 0.95, 0.7, 0.0])
def test_plans_of_hot_rows_are_what_the_emulator_counts(n_ipus: int, hit_rate: float) -> None:
    """With none missing, a few, so many that there are waves of lists, and all."""
    shape: dict[str, Any] = dict(batch=2, n_heads=16, n_kv_heads=16, head_dim=64, seq_len=512)
    kernel = Attention("sparq-tiered", SparqSettings(rank=16, top_k=32))
    planned = plan_pod(
        **shape,
        rank=16,
        top_k=32,
        kernel=kernel.kernel,
        index_bits=4,
        hit_rate=hit_rate,
        n_layers=2,
        n_ipus=n_ipus,
        split="heads",
        n_tiles=64,
    )
    counted = _core.emulator_plan(
        CacheSpec(2, 16, 64, 512, index_bits=4),
        16,
        kernel,
        [512, 512],
        options=DeviceOptions(64, n_ipus=n_ipus, split="heads"),
        model={**device_model().parameters(), "tiles": 64},
        append=False,
        n_layers=2,
        hit_rate=hit_rate,
        stacked=True,
    )
    for name in ("compute", "exchange", "sync", "streaming", "links", "total"):
        seconds = counted["seconds"][name]
        assert planned.seconds_by_category[name] == pytest.approx(seconds, rel=1e-9), name
    names = {step["name"].rpartition("/")[2] for step in counted["steps"] if step["executions"]}
    assert "agreed" in names  # what it is about


def test_window_attention_over_several_ipus() -> None:
    of_window: dict[str, Any] = dict(kernel="window-streaming", top_k=64, n_recent=8, n_layers=4, n_tiles=64)
    planned = plan_pod(**SHAPE, **of_window, n_ipus=2)
    counted = emulated(4, 2, "layers", WINDOW)
    assert planned.seconds_per_token == pytest.approx(counted["seconds"]["total"], rel=2e-3)
    with pytest.raises(ValueError, match="plan: split must be 'layers' where heads of one history"):
        plan_pod(**SHAPE, **of_window, n_ipus=2, split="heads")


def test_a_plan_of_one_ipu_is_that_of_a_layer() -> None:
    """Beside the copies from layer to layer, which `plan` does not have."""
    pod = plan_pod(**SHAPE, **SETTINGS, n_layers=8, n_ipus=1, n_tiles=64)
    one = plan(**SHAPE, **SETTINGS, n_layers=8, n_tiles=64, baseline=False)
    assert pod.seconds_per_token == pytest.approx(one.seconds_per_token, rel=3e-3)
    assert pod.seconds_per_token > one.seconds_per_token


def test_an_ipu_of_a_pipeline_receives_and_hands_over() -> None:
    one, two = (plan_pod(**SHAPE, **SETTINGS, n_layers=n, n_ipus=n, n_tiles=64) for n in (1, 2))
    once = two.seconds_per_token - 2 * one.seconds_per_token
    assert once > 1e-7
    assert two.seconds_of_busiest_ipu == pytest.approx(one.seconds_of_busiest_ipu + 2 * once, rel=1e-9)


def test_both_ends_of_the_gateway() -> None:
    heads = plan_pod(**SHAPE, **SETTINGS, n_layers=2, n_ipus=4, split="heads", n_tiles=64)
    streaming = heads.seconds_by_category["streaming"]
    more = heads.seconds_if_gateway_shared - heads.seconds_per_token
    assert 1.5 * streaming < more < 3 * streaming  # all but the fixed cost of copies, three times more
    layers = plan_pod(**SHAPE, **SETTINGS, n_layers=4, n_ipus=4, n_tiles=64)
    assert layers.seconds_if_gateway_shared == layers.seconds_per_token  # one streams at a time
    assert layers.seconds_of_busiest_ipu < layers.seconds_of_busiest_ipu_if_gateway_shared
    assert layers.seconds_of_busiest_ipu < layers.seconds_per_token / 3


@pytest.mark.parametrize("split", ["layers", "heads"])
def test_a_gateway_is_shared_by_its_own_ipus_alone(split: str) -> None:
    """Eight IPUs are behind two gateways: each copy is as slow as where four share one."""
    shape = {**SHAPE, "n_kv_heads": 8}

    def beyond(n_ipus: int) -> float:
        n_layers, n_kv_heads = (n_ipus, 8) if split == "layers" else (1, n_ipus)  # an IPU's share stays
        shape.update(n_kv_heads=n_kv_heads, n_heads=4 * n_kv_heads)
        made = plan_pod(**shape, **SETTINGS, n_layers=n_layers, n_ipus=n_ipus, split=split, n_tiles=64)
        return made.seconds_of_busiest_ipu_if_gateway_shared - made.seconds_of_busiest_ipu

    assert 0 < beyond(2) < 0.5 * beyond(4) and beyond(8) == pytest.approx(beyond(4), rel=1e-6)


def test_links_are_those_of_the_emulator() -> None:
    """Each pair of eight IPUs, and all to one: the ladder in Python and in C++."""
    model = device_model()
    assert [sync_hops(n) for n in (1, 2, 4, 8, 64)] == [1, 1, 2, 3, 17]
    assert busiest_link_bytes({(0, 1): 32}) == 8
    assert busiest_link_bytes({(0, 5): 32, (4, 2): 32, (6, 2): 32}) == 32
    assert busiest_link_bytes({(2, 1): 32, (2, 5): 32}) == 32  # both across a rung first
    assert link_seconds(model, {}, 4) == 2 * 2 * 15e-9
    for split, n_layers in (("layers", 8), ("heads", 1)):
        counted = emulated(n_layers, 8, split)
        for step in counted["steps"]:
            if not step["link_bytes"] or step["kind"] != "copy":
                continue
            if split == "layers":
                (source, target), n_bytes = step["ipus"], step["link_bytes"]
                flows = {(source, target): n_bytes}
            else:
                n_bytes = step["link_bytes"] // 7
                others = range(1, 8)
                out = step["name"].startswith("scatter")
                flows = {((0, ipu) if out else (ipu, 0)): n_bytes for ipu in others}
            assert busiest_link_bytes(flows) == step["max_link_bytes"]
            assert step["link_hops"] == sync_hops(8)
            seconds = link_seconds(model, flows, 8) * step["executions"]
            assert step["seconds"]["links"] == pytest.approx(seconds, rel=1e-9)


def test_shares_are_all_layers_and_all_tasks() -> None:
    for n_layers, n_ipus in itertools.product((4, 7, 32, 80), (1, 2, 4)):
        shares = DeviceOptions(n_ipus=n_ipus).shares("plan", CacheSpec(1, 8, 64, 64), n_layers)
        owner = [layer * n_ipus // n_layers for layer in range(n_layers)]
        assert [
            [s.first_layer <= layer < s.first_layer + s.n_layers for s in shares].index(True)
            for layer in range(n_layers)
        ] == owner
    for n_ipus in (1, 2, 4, 8, 16, 32):
        shares = DeviceOptions(n_ipus=n_ipus, split="heads").shares("plan", CacheSpec(4, 8, 64, 64), 3)
        assert sum(s.spec.n_tasks for s in shares) == 32 and {s.n_layers for s in shares} == {3}


def test_refused_plans_name_ipu_and_resource() -> None:
    with pytest.raises(DoesNotFit, match="plan: streaming memory of IPU 0 must be at most 64000000000") as e:
        plan_pod(seq_len=1 << 18, n_layers=256, n_ipus=4, n_kv_heads=8)
    assert e.value.resource == "streaming memory of IPU 0"
    assert e.value.need > e.value.room == 64 * 10**9
    # IPU 1 of 4 has three of ten layers, IPU 0 too; so the first is named
    with pytest.raises(DoesNotFit, match=r"tile memory: .* \(IPU 0\)") as e:
        plan_pod(4, 4, 4, 64, 512, rank=8, top_k=24, n_layers=1000, n_ipus=4, n_tiles=2, append=True)
    assert e.value.resource == "tile memory of IPU 0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(n_ipus=64), "plan: n_ipus must be at most n_layers=32 where layers are split, got 64"),
        (dict(n_ipus=64, split="heads"), "plan: n_ipus must split n_kv_heads=32, then batch=1, evenly"),
        (dict(hit_rate=0.5), "plan: hit_rate must be 0 for kernel 'sparq-streaming', which has no hot rows"),
        (
            dict(hops=1),
            r"plan: options must be among \['n_layers', 'n_ipus', .*'index_components'\], got 'hops'",
        ),
    ],
)
def test_refused_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_pod(**options)


def test_row() -> None:
    for split in ("layers", "heads"):
        planned = plan_pod(**SHAPE, **SETTINGS, n_layers=4, n_ipus=4, split=split, n_tiles=64)
        row = planned.row()
        assert row["n_gateways"] == 1
        assert row["time_source"] == "modelled" and row["n_ipus"] == 4 and row["split"] == split
        parts = [t for name, t in row["seconds_by_category"].items() if name != "total"]
        assert row["seconds_per_token"] == pytest.approx(np.sum(parts))


def test_options_are_those_of_a_plan() -> None:
    """By the same names and with the same defaults; each reaches the program."""
    tiered = {**SHAPE, **SETTINGS, "kernel": "sparq-tiered", "n_tiles": 64}
    pod = plan_pod(**tiered, n_layers=1, n_ipus=1)
    for changes in ({}, dict(hot_rows=64), dict(row_bits=8), dict(hit_rate=0.9)):
        changed, one = plan_pod(**tiered, n_layers=1, n_ipus=1, **changes), plan(**tiered, **changes)
        assert changed.seconds_per_token == pytest.approx(one.seconds_per_token, rel=2e-2)
        assert not changes or (changed.memory, changed.seconds_per_token) != (
            pod.memory,
            pod.seconds_per_token,
        )
        same = set(changed.row()) & set(one.row()) - {"seconds_per_token"}
        assert {"index_bits", "row_bits", "hit_rate", "n_local", "n_layers"} < same
        row, of_one = changed.row(), one.row()
        assert row["index_bits"] == 4 and row["row_bits"] == changes.get("row_bits", 16)
        described = [n for n in same if "seconds" not in n and "bytes" not in n]
        assert all(row[name] == of_one[name] for name in described)
    # dense attention looks at no option of the cache, as in `plan`
    plain, dense = (
        plan_pod(**SHAPE, kernel="dense-streaming", n_layers=2, n_ipus=2, n_tiles=64, **more)
        for more in ({}, dict(row_bits=8, index_bits=4, rank=8))
    )
    assert plain == dense and dense.row()["row_bits"] == 16


def test_a_cache_does_not_grow_where_nothing_is_said() -> None:
    sizes = dict(n_layers=2, n_ipus=2, n_tiles=8, kernel="dense-streaming")
    plans = [
        plan_pod(1, 2, 2, 64, 256, **sizes, **more) for more in ({}, dict(append=False), dict(append=True))
    ]  # type: ignore[arg-type]
    assert plans[0] == plans[1] != plans[2]
