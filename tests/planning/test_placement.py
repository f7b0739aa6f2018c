# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model fit in three tiers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

import pytest
from published_plans import place_layers, plan

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from sparq_ipu.planning import placement

#: of a small IPU
SMALL: dict[str, Any] = dict(n_heads=4, n_kv_heads=2, head_dim=32, rank=8, top_k=16, n_tiles=16)
#: where streaming takes long
WIDE: dict[str, Any] = dict(n_heads=4, n_kv_heads=4, head_dim=64, rank=32, top_k=32, n_tiles=64)


def tiered(n_layers: int, seq_len: int, shape: dict[str, Any] = SMALL) -> Any:
    return plan(
        **shape,
        seq_len=seq_len,
        kernel="sparq-tiered",
        n_layers=n_layers,
        append=True,
        baseline=False,
        hit_rate=0.75,
    )


def streamed(n_layers: int, seq_len: int, shape: dict[str, Any] = SMALL) -> Any:
    return plan(
        **shape,
        seq_len=seq_len,
        kernel="sparq-streaming",
        index_bits=4,
        n_layers=n_layers,
        append=True,
        baseline=False,
    )


def test_as_many_as_fit_and_no_more() -> None:
    placed = place_layers(**WIDE, seq_len=16384, n_layers=16, n_ipus=1, hit_rate=0.75)
    assert 2 < placed.n_tiered < 16 == placed.layers_per_ipu
    assert placed.tiered.row() == tiered(placed.n_tiered, 16384, WIDE).row()
    limit = placed.streamed.memory["limit"]
    assert placed.max_tile_bytes == placed.tiered.max_tile_bytes + placed.others.max_tile_bytes <= limit
    assert placed.others.row() == streamed(16 - placed.n_tiered, 16384, WIDE).row()
    # one more would fit by itself, but not beside the program of the others
    more = tiered(placed.n_tiered + 1, 16384, WIDE)
    assert more.max_tile_bytes + streamed(15 - placed.n_tiered, 16384, WIDE).max_tile_bytes > limit
    of_tiered = placed.n_tiered * placed.tiered.seconds_per_query
    rest = (16 - placed.n_tiered) * placed.others.seconds_per_query
    assert placed.seconds_per_token == pytest.approx(of_tiered + rest)
    assert placed.seconds_per_token < placed.seconds_if_streamed == 16 * placed.streamed.seconds_per_query
    text = str(placed)
    assert "Not in it: weights" in text
    assert f"{placed.n_tiered} in three tiers, {16 - placed.n_tiered} with a streamed" in text
    assert "hit rate of 75%" in text


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
            return None if n_bytes is None else SimpleNamespace(n_layers=n, max_tile_bytes=n_bytes)

        return of

    n, tiered, others = placement.most_tiered(20, plan_of(of_tiered), plan_of(of_others), 1000)
    assert n == found
    assert (tiered.n_layers if tiered else 0) == found
    assert (others.n_layers if others else 0) == (20 - found if found else 0)


def test_ipus_share_the_layers() -> None:
    one, four = (place_layers(**WIDE, seq_len=32768, n_layers=10, n_ipus=n, hit_rate=0.75) for n in (1, 4))
    assert (one.layers_per_ipu, four.layers_per_ipu, four.n_tiered) == (10, 3, 3), four
    assert four.seconds_per_token == pytest.approx(10 * four.tiered.seconds_per_query)


def test_no_more_rounds_than_make_it_smaller() -> None:
    """A slot has at most so many parts. With fewer slots tiles are idle, and others keep twice as much."""
    shape: dict[str, Any] = dict(n_heads=32, n_kv_heads=8, seq_len=262144, rank=32, top_k=192, index_bits=2)
    options: dict[str, Any] = dict(index_components=64, hot_rows=192, baseline=False, append=True)
    planned = plan(**shape, **options, kernel="sparq-tiered", n_layers=8)
    assert planned.mapping["rounds"] == 1
    assert planned.row()["max_tile_bytes"] < planned.memory["limit"]


def test_none_fits() -> None:
    placed = place_layers(**SMALL, seq_len=262144, n_layers=2)
    assert placed.n_tiered == 0 and placed.tiered is None
    assert placed.seconds_per_token == placed.seconds_if_streamed
    assert "0 in three tiers, 2 with a streamed" in str(placed)


def test_tiers_that_are_slower_are_left_out() -> None:
    placed = place_layers(**SMALL, seq_len=256, n_layers=2)
    assert tiered(2, 256).seconds_per_query > placed.streamed.seconds_per_query
    assert placed.n_tiered == 0 and placed.tiered is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(n_layers=0), r"place_layers: n_layers must be in \[1, 1024\], got 0"),
        (dict(n_layers=4, n_ipus=5), r"place_layers: n_ipus must be in \[1, 4\], got 5"),
        (dict(hit_rate=2), r"plan: hit_rate must be in \[0, 1\], got 2"),
        (dict(index_bits=16), r"plan: index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place_layers(**SMALL, **{"seq_len": 256, **arguments})
