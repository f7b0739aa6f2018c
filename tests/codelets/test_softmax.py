# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from vertex import LAYOUTS, Layout, assert_bits, floats, in_order, run, word

from sparq_reference import exact, numerics

GROUP = 3


#: for each coefficient of exp, arguments at which the result is another one if the coefficient is the next
#: float below, and the next above
TELLING = {
    "_INV_LN2": ("-0x1.01d9ccp+5", "-0x1.92068p+5"),
    "_LN2_LOW": ("-0x1.62dc16p-1", "-0x1.a5a1dp+5"),
    "_EXP_P5": ("-0x1.54ec3p+5", "-0x1.b004fcp+3"),
    "_EXP_P4": ("-0x1.4e34c8p-2", "-0x1.5aa0f6p-2"),
    "_EXP_P3": ("-0x1.b04604p-2", "-0x1.60834p-2"),
    "_EXP_P2": ("-0x1.3c321p-2", "-0x1.2fbc28p-2"),
    "_EXP_P1": ("-0x1.82c428p-3", "-0x1.21fb96p-2"),
}


def of_six(maximum: np.ndarray) -> np.ndarray:
    """The maximum as six workers leave it: one has it, others have less."""
    return np.stack([maximum if worker == 4 else maximum - worker - 1 for worker in range(6)])


def scores_of(layout: Layout, spread: float = 20.0) -> np.ndarray:
    rng = np.random.default_rng(layout.filled)
    return (rng.standard_normal((GROUP, layout.filled)) * spread).astype(np.float32)


def reduced(partial: np.ndarray) -> np.ndarray:
    """By six workers."""
    n, group = partial.shape
    fields = dict(maxima=partial, maximum=floats(6, group))
    out = run("ReduceMax", fields, nPartials=n, groupSize=group, each=-(-n // 12) * 2)  # an even number
    return out["maximum"].max(axis=0)


@pytest.mark.parametrize("n_pieces", [6, 3, 2, 1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
def test_maximum_over_parts(layout: Layout, n_pieces: int) -> None:
    scores = scores_of(layout)
    spread = layout.spread(scores, np.nan)  # what is not a position is never looked at
    partial = []
    for part in range(layout.n_parts):
        out = run(
            "PartialMax",
            dict(filled=word(layout.filled), scores=spread[part], maxima=floats(n_pieces, GROUP)),
            nPieces=n_pieces,
            groupSize=GROUP,
            partPositions=layout.part_positions,
            **layout.settings(part),
        )
        partial.append(out["maxima"])
    partial = np.concatenate(partial)
    assert_bits(reduced(partial), scores.max(axis=1))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("n_partials", [1, 2, 5, 12, 13, 39, 144])
def test_reduce_max(group: int, n_partials: int) -> None:
    """Wherever the largest number is, for every head."""
    rng = np.random.default_rng(n_partials)
    for _ in range(20):
        partial = -rng.random((n_partials, group)).astype(np.float32)
        assert_bits(reduced(partial), partial.max(axis=0))


@pytest.mark.parametrize("spread_of_scores", [0.5, 20.0])  # many weights count, or a few
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
def test_weights_and_sums(layout: Layout, spread_of_scores: float) -> None:
    scores = scores_of(layout, spread_of_scores)
    weights, weight_sum, maximum = exact.softmax_weights(scores)
    spread = layout.spread(scores, np.nan)
    all_sums = []
    for part in range(layout.n_parts):
        out = run(
            "SoftmaxWeights",
            dict(
                filled=word(layout.filled),
                maximum=of_six(maximum),
                weights=spread[part],
            ),
            groupSize=GROUP,
            partPositions=layout.part_positions,
            **layout.settings(part),
        )
        assert_bits(out["weights"], layout.spread(weights, 0.0)[part])
        n_blocks = GROUP * layout.part_positions // 64
        sums = run("BlockSums", dict(weights=out["weights"], blockSums=floats(n_blocks)), nBlocks=n_blocks)[
            "blockSums"
        ]
        all_sums.append(sums.reshape(GROUP, -1))
    ordered = in_order(layout, np.stack(all_sums), 64)
    out = run(
        "FoldSums",
        dict(blockSums=ordered, sums=floats(GROUP)),
        nBlocks=ordered.shape[1],
        groupSize=GROUP,
    )
    assert_bits(out["sums"], weight_sum)
    # a fold in another order is another number: the test can tell
    if layout.filled > 256:
        assert numerics.fold_blocks(ordered[:, ::-1]).tolist() != weight_sum.tolist()


@pytest.mark.parametrize("name", TELLING)
def test_telling_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do tell."""
    coefficient = getattr(numerics, name)
    for hexadecimal, towards in zip(TELLING[name], (-np.inf, np.inf)):
        x = np.array([float.fromhex(hexadecimal)], np.float32)
        right = numerics.exp(x)
        monkeypatch.setattr(numerics, name, np.nextafter(coefficient, np.float32(towards)))
        assert numerics.exp(x) != right
        monkeypatch.undo()


def test_weights_over_the_whole_range() -> None:
    """Scores from the maximum down past the cut at -54, in steps that hit both sides of it, and numbers that
    tell each coefficient of exp from its neighbours."""
    below = np.concatenate(
        [
            np.linspace(0, 60, 200),
            [54.0, np.nextafter(np.float32(54), np.float32(55)), 1e30],
            [-float.fromhex(x) for of_one in TELLING.values() for x in of_one],
        ]
    )
    scores = np.sort(-below.astype(np.float32))[::-1][None].repeat(2, 0).copy()
    layout = Layout(1, 256, 256, 1, 0, 0, 1, scores.shape[1])
    out = run(
        "SoftmaxWeights",
        dict(
            filled=word(layout.filled),
            maximum=of_six(np.zeros(2, np.float32)),
            weights=layout.spread(scores, np.nan)[0],
        ),
        groupSize=2,
        partPositions=256,
        **layout.settings(0),
    )
    expected = numerics.softmax_weight(scores)
    assert (expected == 0).any() and (expected == 1).any()
    assert_bits(out["weights"][:, : layout.filled], expected)
