# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model are on chip, and how its IPUs share them: attention alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, Callable

import pytest
from published_plans import plan, plan_model, plan_pod

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from sparq_ipu.planning import ModelPlan, planner
from sparq_ipu.planning.device_model import device_model
from sparq_ipu.planning.model_shape import ModelShape
from sparq_reference import DoesNotFit

#: of a small IPU
SMALL = dataclasses.replace(device_model(), tiles=16)
#: where streaming takes long
WIDE = dataclasses.replace(device_model(), tiles=64)
HEADS: dict[str, Any] = dict(n_heads=4, n_kv_heads=4, head_dim=64, append=True, baseline=False)


def placed(n_layers: int, seq_len: int, n_ipus: int = 1, **options: Any) -> ModelPlan:
    shape = ModelShape("wide", n_layers, 4, 4, 64, 256, 512, 1000)
    settings = dict(rank=32, top_k=32, hit_rate=0.75, split="layers", device=WIDE)
    return plan_model(shape, seq_len=seq_len, n_ipus=n_ipus, weights="none", **{**settings, **options})


def tiered(n_layers: int, seq_len: int, hit_rate: float = 0.75) -> Any:
    options: dict[str, Any] = dict(kernel="sparq-tiered", n_layers=n_layers, hit_rate=hit_rate, device=WIDE)
    return plan(**HEADS, seq_len=seq_len, rank=32, top_k=32, **options)


def streamed(n_layers: int, seq_len: int) -> Any:
    options: dict[str, Any] = dict(kernel="sparq-streaming", index_bits=4, n_layers=n_layers, device=WIDE)
    return plan(**HEADS, seq_len=seq_len, rank=32, top_k=32, **options)


def test_as_many_as_fit_and_no_more() -> None:
    result = placed(16, 16384)
    (ipu,) = result.ipus
    n = ipu.n_on_chip
    assert 2 < n < 16 == ipu.n_layers and ipu.on_chip is not None and ipu.others is not None
    assert ipu.on_chip.row() == tiered(n, 16384).row() and ipu.others.row() == streamed(16 - n, 16384).row()
    limit = WIDE.tile_bytes
    assert ipu.tile == ipu.on_chip.max_tile_bytes + ipu.others.max_tile_bytes <= limit
    # one more would fit by itself, but not beside the program of the others
    more = tiered(n + 1, 16384)
    assert more.max_tile_bytes + streamed(15 - n, 16384).max_tile_bytes > limit
    seconds = n * ipu.on_chip.seconds_per_query + (16 - n) * ipu.others.seconds_per_query
    assert result.seconds_per_step == pytest.approx(seconds)
    assert (ipu.weights_tile, ipu.products_tile, ipu.weights_streaming) == (0, 0, 0)
    assert f"{n} of 16 layers in three tiers" in str(result) and "without weights" in str(result)


@pytest.mark.parametrize(
    "of_tiered, of_others, found",
    [
        (lambda n: 40 * n, lambda n: 500, 20),  # alone, no others
        (lambda n: 100 * n, lambda n: 0, 10),
        (lambda n: 100 * n, lambda n: 300 + 10 * n, 5),
        (lambda n: 100 * n + 150 * (n > 5), lambda n: 0, 8),
        (lambda n: 100 * n, lambda n: 300 if n < 17 else None, 7),
        (lambda n: 100 * n, lambda n: 1000, 0),
        (lambda n: None, lambda n: 0, 0),
    ],
)
def test_both_programs_share_a_tile(
    of_tiered: Callable[[int], int | None], of_others: Callable[[int], int | None], found: int
) -> None:
    def plan_of(need: Callable[[int], int | None]) -> Callable[[int], Any]:
        def of(n: int) -> Any:
            n_bytes = need(n)
            if n_bytes is None:
                return DoesNotFit("too large", "tile memory")
            return dataclasses.replace(made, request=SimpleNamespace(n_layers=n), memory={"bytes": n_bytes})

        return of

    made = plan(**HEADS, seq_len=64, kernel="dense-streaming", device=SMALL)
    n, tiered, others = planner.most_on_chip(20, plan_of(of_tiered), plan_of(of_others), 1000)
    assert n == found
    assert (tiered.request.n_layers if tiered else 0) == found
    assert (others.request.n_layers if others else 0) == (20 - found if found else 0)


def test_layers_and_weights_come_before_rows_in_fp32() -> None:
    """Two layers of 64 KiB a tile have room for twice that, unless weights take it; eight have not."""
    few, many = (placed(n, 4096, attention="dense") for n in (2, 8))
    heavy = ModelShape("heavy", 2, 4, 4, 64, 256, 7000, 1000)
    loaded = plan_model(
        heavy, seq_len=4096, attention="dense", device=WIDE, weights="fp16", weights_in="sram"
    )
    assert few.wide_rows and "2 of 2 layers in SRAM, keys and values in fp32" in str(few)
    for narrow, n_layers in ((many, 8), (loaded, 2)):
        assert not narrow.wide_rows and "fp32" not in str(narrow)
        assert narrow.fits and narrow.layers_on_chip == (n_layers, n_layers)
    (ipu,), (other,) = few.ipus, loaded.ipus
    assert ipu.on_chip is not None and other.on_chip is not None
    assert other.tile + ipu.on_chip.max_tile_bytes - other.on_chip.max_tile_bytes > WIDE.tile_bytes
    assert few.seconds_per_step < loaded.seconds_per_step


def test_no_more_rounds_than_make_it_smaller() -> None:
    """A slot has at most so many parts. With fewer slots tiles are idle, and others keep twice as much."""
    shape: dict[str, Any] = dict(n_heads=32, n_kv_heads=8, seq_len=262144, rank=32, top_k=192, index_bits=2)
    options: dict[str, Any] = dict(index_components=64, hot_rows=192, baseline=False, append=True)
    planned = plan(**shape, **options, kernel="sparq-tiered", n_layers=8)
    assert planned.mapping["rounds"] == 1
    assert planned.row()["max_tile_bytes"] < planned.memory["limit"]


def test_ipus_share_the_layers() -> None:
    one, four = (placed(10, 32768, n) for n in (1, 4))
    assert [ipu.n_layers for ipu in one.ipus] == [10] and [ipu.n_layers for ipu in four.ipus] == [3, 2, 3, 2]
    assert all(ipu.n_on_chip == ipu.n_layers for ipu in four.ipus) and one.ipus[0].n_on_chip < 10
    assert four.ipus[0].on_chip is not None
    seconds = 10 * four.ipus[0].on_chip.seconds_per_query + four.seconds_links
    assert four.seconds_per_step == pytest.approx(seconds)


def test_the_faster_split_is_taken() -> None:
    """Of heads the time is that of a program over all IPUs."""
    ways = {split: placed(4, 4096, 4, split=split) for split in ("layers", "heads", "auto")}
    faster = min(ways["layers"], ways["heads"], key=lambda plan: plan.seconds_per_step)
    assert ways["layers"].seconds_per_step != ways["heads"].seconds_per_step
    assert ways["auto"].seconds_per_step == faster.seconds_per_step
    assert ways["auto"].request.split == faster.request.split
    of_program = plan_pod(
        **{name: value for name, value in HEADS.items() if name != "baseline"},
        seq_len=4096,
        rank=32,
        top_k=32,
        kernel="sparq-tiered",
        hit_rate=0.75,
        n_layers=4,
        n_ipus=4,
        split="heads",
        device=WIDE,
    )
    heads = ways["heads"]
    assert heads.seconds_per_step == pytest.approx(of_program.seconds_per_token + heads.seconds_links)
    message = r"plan_model: n_ipus must be in \[1, n_layers=4\] to split layers, or a"
    with pytest.raises(ValueError, match=message):
        placed(4, 4096, 8, split="auto")


def test_dense_rows_of_8_bits_are_a_bound() -> None:
    """Half of the memory, so more layers are in SRAM; those that stream take half of the time for it."""
    full, half = (placed(24, 16384, attention="dense", row_bits=bits, hit_rate=0) for bits in (16, 8))
    assert 0 < full.ipus[0].n_on_chip < half.ipus[0].n_on_chip < 24
    for one, other in ((full.ipus[0].on_chip, half.ipus[0].on_chip),):
        assert one is not None and other is not None and one.seconds_per_query == other.seconds_per_query
    one, other = full.ipus[0].others, half.ipus[0].others
    assert one is not None and other is not None
    streaming = one.seconds_by_category["streaming"]
    assert one.seconds_per_query - other.seconds_per_query == pytest.approx(streaming / 2)
    assert "a lower bound" in str(half) and "a lower bound" not in str(full)
    streamed = placed(24, 16384, attention="dense-streaming", row_bits=8, hit_rate=0)
    assert streamed.seconds_per_step == 24 * one.seconds_per_query  # the paper's, with rows of 16 bits


def test_none_fits() -> None:
    result = placed(2, 262144, device=SMALL)
    assert result.ipus[0].n_on_chip == 0 and result.ipus[0].on_chip is None


def test_tiers_that_are_slower_are_left_out() -> None:
    result = placed(2, 256, hit_rate=0.0)
    assert tiered(2, 256, 0.0).seconds_per_query > streamed(2, 256).seconds_per_query
    assert result.ipus[0].n_on_chip == 0 and result.ipus[0].on_chip is None
