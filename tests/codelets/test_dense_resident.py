# SPDX-License-Identifier: Apache-2.0
"""dense_resident.cpp: dense attention over keys and values that stay in SRAM (contract E3, E6.4)."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import KINDS, tensors
from vertex import assert_bits, floats, halves, run, word

from sparq_reference import numerics

LAYER, N_LAYERS = 1, 2
LANES = [0, 4, 2, 6, 1, 5, 3, 7]  # in the order of their places
#: what keys and values are held in
HELD = {"half": np.float16, "float": np.float32}
held_in = pytest.mark.parametrize("held", HELD)


def of_layers(rows: np.ndarray, held: str) -> np.ndarray:
    """What a part holds of all layers: these numbers in one, NaN in the other."""
    all_layers = np.full((N_LAYERS, *rows.shape), np.nan, HELD[held])
    all_layers[LAYER] = rows
    return all_layers


def paired(keys: np.ndarray) -> np.ndarray:
    """(length, head_dim) -> (length / 2, 8, head_dim / 8, 2): pairs of positions, lane by lane."""
    length, head_dim = keys.shape
    return keys.reshape(length // 2, 2, head_dim // 8, 8).transpose(0, 3, 2, 1)[:, LANES]


def units(values: np.ndarray) -> np.ndarray:
    """(blocks * 64, head_dim) -> (units, 64, 2): of each block two components after the other."""
    n, head_dim = values.shape
    return values.reshape(n // 64, 64, head_dim // 2, 2).transpose(0, 2, 1, 3).reshape(-1, 64, 2)


def spread(query: np.ndarray) -> np.ndarray:
    """(group, head_dim) -> (pairs of heads, 8, head_dim / 8, 2)."""
    group, head_dim = query.shape
    pairs = np.concatenate([query, np.zeros((group % 2, head_dim), query.dtype)])
    pairs = pairs.reshape(-1, 2, head_dim).transpose(0, 2, 1)
    return pairs.reshape(-1, head_dim // 8, 8, 2).transpose(0, 2, 1, 3)[:, LANES].astype(np.float32)


@pytest.mark.parametrize("head_dim", [8, 24, 64])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_spread_query(group: int, head_dim: int) -> None:
    query = tensors("normal", (group, head_dim), np.random.default_rng(0))
    out = run(
        "SpreadQuery",
        dict(query=query, spread=floats(*spread(query).shape)),
        groupSize=group,
        headDim=head_dim,
    )
    assert_bits(out["spread"], spread(query))


@held_in
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_pair_scores(head_dim: int, group: int, kind: str, held: str) -> None:
    rng, length, first = np.random.default_rng(1), 22, 44
    keys, query = tensors(kind, (length, head_dim), rng), tensors(kind, (group, head_dim), rng)
    for n in (0, 1, 16, 21, length):
        own = keys.copy()
        own[n:] = 0
        own[n + n % 2 :] = np.nan  # nobody reads a pair of which no position is held
        out = run(
            f"PairScores<{held}>",
            dict(
                filled=word(first + n),
                layer=word(LAYER),
                keys=of_layers(paired(own), held),
                spread=spread(query),
                scores=floats(group, length),
            ),
            groupSize=group,
            headDim=head_dim,
            length=length,
            firstPosition=first,
            scale=float(numerics.scale(head_dim)),
        )["scores"]
        expected = numerics.dot(query[:, None], keys[None, :n]) * numerics.scale(head_dim)
        assert_bits(out[:, :n], expected.astype(np.float32))
        end = n + n % 2
        assert_bits(out[:, end:], floats(group, length)[:, end:])


@held_in
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_unit_values(group: int, kind: str, held: str) -> None:
    """Of a part whose units begin within a block, with rows in the last one that are not held."""
    rng, head_dim, first_block, first, n_units = np.random.default_rng(2), 24, 3, 9, 25
    values = tensors(kind, (3 * 64, head_dim), rng)
    weights = rng.random((3, group, 64)).astype(np.float32)
    for n_held in (64 + 64 + 21, 64 + 64 + 64, 30, 0):
        rows = values.copy()
        rows[n_held:] = np.nan
        own = units(rows)[first : first + n_units]
        out = run(
            f"UnitValues<{held}>",
            dict(
                filled=word(first_block * 64 + n_held),
                layer=word(LAYER),
                values=of_layers(np.concatenate([own, np.full((1, 64, 2), np.nan, np.float16)]), held),
                weights=weights,
                partials=floats(n_units, group, 2),
            ),
            groupSize=group,
            layerUnits=n_units + 1,
            nUnits=n_units,
            nBlocks=3,
            unitsPerBlock=head_dim // 2,
            firstUnit=first,
            firstPosition=first_block * 64,
            ofTwo=-(-n_units * (group // 2) // 6),
            ofOne=-(-n_units * (group % 2) // 6),
        )["partials"]
        expected = np.zeros((3, group, head_dim), np.float32)
        for p in range(n_held):
            expected[p // 64] += weights[p // 64, :, p % 64, None] * values[p].astype(np.float32)
        by_unit = expected.reshape(3, group, -1, 2).transpose(0, 2, 1, 3).reshape(-1, group, 2)
        assert_bits(out, by_unit[first : first + n_units])


@pytest.mark.parametrize("n_blocks", [4, 5])
@pytest.mark.parametrize("n", [1, 8])
def test_dense_output(n: int, n_blocks: int) -> None:
    rng, group, first_head = np.random.default_rng(3), 3, 2
    partials = (rng.standard_normal((n, n_blocks, 2)) * [100, 1e6]).astype(np.float32)
    partials[0, :, 0] = 2.0**-51  # flushed
    sums = rng.random(group).astype(np.float32) + np.float32(1)
    out = run(
        "DenseOutput",
        dict(partials=partials, sums=sums, output=halves(n, 2)),
        n=n,
        nBlocks=n_blocks,
        groupSize=group,
        firstHead=first_head,
    )["output"]
    total = np.zeros((n, 2), np.float32)
    for block in partials.transpose(1, 0, 2):
        total += block
    of_head = sums[[(first_head + i) % group for i in range(n)]]
    expected = np.where(abs(total) < 2.0**-48, np.float32(0), total) / of_head[:, None]
    assert abs(expected).max() > 65504 and expected[0, 0] == 0
    assert_bits(out, np.clip(expected, -65504, 65504).astype(np.float16))


@held_in
@pytest.mark.parametrize("head_dim", [8, 24])
@pytest.mark.parametrize(("position", "active"), [(60, 1), (61, 1), (70, 1), (55, 1), (64, 1), (60, 0)])
def test_keep_rows(head_dim: int, position: int, active: int, held: str) -> None:
    """A part with keys [56, 66) and all units of two blocks but the first takes what is its own."""
    rng = np.random.default_rng(4)
    row = tensors("normal", (head_dim,), rng)
    where = dict(filled=word(position), active=word(active), layer=word(LAYER), row=row)
    keys = tensors("normal", (10, head_dim), rng)
    fields = dict(**where, keys=of_layers(paired(keys), held))
    out = run(f"KeepKey<{held}>", fields, headDim=head_dim, length=10, firstPosition=56)["keys"]
    if active and 56 <= position < 66:
        keys[position - 56] = row
        if position % 2 == 0:  # nothing is behind it yet
            keys[position - 55] = 0
    assert_bits(out, of_layers(paired(keys), held))

    values, first, n_units = tensors("normal", (128, head_dim), rng), 1, head_dim - 1
    fields = dict(**where, values=of_layers(units(values)[first : first + n_units], held))
    out = run(f"KeepValue<{held}>", fields, headDim=head_dim, nUnits=n_units, firstUnit=first)
    if active:
        values[position] = row
    assert_bits(out["values"], of_layers(units(values)[first : first + n_units], held))
