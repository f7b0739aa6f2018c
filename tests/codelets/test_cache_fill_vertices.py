# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from strategies import tensors
from vertex import POISON, assert_bits, halves, run, word, words


@pytest.mark.parametrize(
    ("length", "held", "replace"),
    [(-1, 0, False), (0, 0, True), (7, 7, True), (10, 10, True), (99, 10, True)],
)
def test_fill_length(length: int, held: int, replace: bool) -> None:
    out = run(
        "FillLength",
        dict(length=np.array(length, np.int32), held=word(77), replace=word(77)),
        nTokens=10,
    )
    assert (int(out["held"]), int(out["replace"])) == (held, int(replace))


@pytest.mark.parametrize("n", [1, 6, 13])
def test_fill_offsets(n: int) -> None:
    for layer in (0, 3):
        fields = dict(layer=word(layer), rows=words(n))
        out = run("FillOffsets", fields, n=n, first=100, step=7, layerRows=1000)
        assert out["rows"].tolist() == [layer * 1000 + 100 + 7 * i for i in range(n)]


@pytest.mark.parametrize("n", [1, 50, 64])
@pytest.mark.parametrize(("row_size", "n_components"), [(16, 16), (8, 4), (56, 28), (256, 56), (48, 8)])
def test_fill_columns_transposes(n: int, row_size: int, n_components: int) -> None:
    """Of the first components of each row."""
    keys = np.random.default_rng(n).integers(0, 2**16, (n, row_size)).astype(np.uint16).view(np.float16)
    fields = dict(keys=keys, columns=halves(n_components, 64))
    out = run("FillColumns", fields, n=n, rowSize=row_size, nComponents=n_components, tailLength=64)
    expected = halves(n_components, 64)
    expected[:, :n] = keys[:, :n_components].T
    assert_bits(out["columns"], expected)


@pytest.mark.parametrize(
    ("held", "n"),
    # chunk 2 is positions 256 to 383
    [(256, 0), (257, 1), (320, 64), (383, 127), (384, 0), (255, 0), (400, 0)],
)
def test_fill_tail_where_the_row_ends(held: int, n: int) -> None:
    columns = tensors("normal", (10, 128), np.random.default_rng(0))
    out = run(
        "FillTail",
        dict(held=word(held), columns=columns, tail=halves(10, 128)),
        index=2,
        chunk=128,
        nComponents=10,
    )
    expected = halves(10, 128)
    expected[:, :n] = columns[:, :n]
    assert_bits(out["tail"], expected)


@pytest.mark.parametrize("first", [0, 40])
@pytest.mark.parametrize("held", [0, 1, 41, 57, 300])
def test_fill_sum(first: int, held: int) -> None:
    rng = np.random.default_rng(held)
    values = tensors("wide", (20, 24), rng)
    count = min(max(held - first, 0), 20)
    values[count:] = np.nan
    before = rng.standard_normal(24).astype(np.float32) if first else np.full(24, POISON)
    out = run("FillSum", dict(held=word(held), values=values, valueSum=before), first=first, n=20, width=24)
    expected = before.copy() if first else np.zeros(24, np.float32)
    for row in values[:count]:
        expected = expected + row.astype(np.float32)
    assert_bits(out["valueSum"], expected)


@pytest.mark.parametrize(("requested", "filled", "active"), [(0, 5, 0), (1, 5, 1), (-3, 5, 1), (1, 64, 0)])
def test_active_token(requested: int, filled: int, active: int) -> None:
    out = run(
        "ActiveToken",
        dict(requested=np.array(requested, np.int32), filled=word(filled), active=word(9)),
        capacity=64,
    )
    assert out["active"] == active
