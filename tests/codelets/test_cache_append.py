# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from strategies import tensors
from vertex import assert_bits, halves, run, word, words


@pytest.mark.parametrize("active", [0, 1])
def test_append_offsets(active: int) -> None:
    out = run(
        "AppendOffsets",
        dict(filled=word(7), active=word(active), rows=words(2)),
        rowBase=1000,
        scratchRow=5000,
        valueRow=20000,
    )
    row = 1007 if active else 5000
    assert out["rows"].tolist() == [row, row + 20000]


# Room for a chunk of 128, or with an index of few bits for the block that is being filled.
@pytest.mark.parametrize("width", [128, 64])
@pytest.mark.parametrize("filled", [0, 63, 64, 127, 128, 256 + 65, 895])
@pytest.mark.parametrize("active", [0, 1])
def test_append_tail_writes_one_column(filled: int, width: int, active: int) -> None:
    key = tensors("normal", (6,), np.random.default_rng(0))
    out = run(
        "AppendTail",
        dict(filled=word(filled), active=word(active), key=key, tail=halves(6, width)),
        nComponents=6,
        width=width,
    )
    expected = halves(6, width)
    if active:
        expected[:, filled % width] = key
    assert_bits(out["tail"], expected)


@pytest.mark.parametrize("active", [0, 1])
def test_append_sum(active: int) -> None:
    rng = np.random.default_rng(1)
    value = tensors("wide", (24,), rng)
    before = rng.standard_normal(24).astype(np.float32)
    out = run("AppendSum", dict(active=word(active), value=value, valueSum=before), width=24)
    assert_bits(out["valueSum"], before + value.astype(np.float32) if active else before)


@pytest.mark.parametrize(
    ("filled", "active", "full"),
    # a token fills a chunk of 128, or is none; a chunk that was full before is not filled once more
    [(127, 1, 1), (127, 0, 0), (128, 1, 0), (0, 1, 0), (255, 1, 1), (0, 0, 0), (128, 0, 0), (256, 0, 0)],
)
def test_advance_length(filled: int, active: int, full: int) -> None:
    out = run("AdvanceLength", dict(filled=word(filled), active=word(active), full=word(9)), chunk=128)
    assert (out["filled"], out["full"]) == (filled + active, full)


@pytest.mark.parametrize("full", [[0, 0, 0], [0, 1, 0], [1, 1, 1]])
def test_any_full(full: list[int]) -> None:
    out = run("AnyFull", dict(full=np.array(full, np.uint32), any=np.array(False)), nSlots=3)
    assert bool(out["any"]) == any(full)


@pytest.mark.parametrize("full", [0, 1])
def test_flush_offsets(full: int) -> None:
    out = run(
        "FlushOffsets",
        dict(filled=word(384), full=word(full), rows=words(16)),
        headDim=16,
        nChunks=7,
        chunk=128,
        rowBase=100,
        scratchRow=9000,
    )
    expected = 100 + np.arange(16) * 7 + 2 if full else 9000 + np.arange(16)
    assert out["rows"].tolist() == expected.tolist()
