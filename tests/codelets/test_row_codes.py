# SPDX-License-Identifier: Apache-2.0
"""row_codes.cpp: rows of keys and values in 8 bits (contract E10), against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vertex import assert_bits, halves, run

from sparq_reference import row_codes

#: bits of a word from which the codes of four components start
SHIFTS = (0, 16, 8, 24)


def some_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Finite numbers of very different size, by group; some of them 0, some the largest."""
    size = np.exp2(rng.integers(-24, 16, (*shape[:-1], -(-shape[-1] // 16)))).repeat(16, axis=-1)
    rows = (rng.uniform(-1, 1, shape) * size[..., : shape[-1]]).astype(np.float16)
    rows[rng.random(shape) < 0.1] = 0
    rows[rng.random(shape) < 0.02] = -65504
    return rows


def packed(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales (n, ...) of rows (n, width), as halves: as the header says they are kept."""
    codes = row_codes.encode(rows)
    n, width = rows.shape
    byte = (codes.code.astype(np.int64) + 128).reshape(n, width // 4, 4)
    words = np.zeros((n, width // 4), np.uint32)
    for i, shift in enumerate(SHIFTS):
        words |= (byte[..., i] << shift).astype(np.uint32)
    scales = np.zeros((n, -(-width // 32) * 2), np.uint16)
    scales[:, : codes.scale.shape[1]] = codes.scale.view(np.uint32) >> 16
    return words.view(np.float16), scales.view(np.float16)


def coded(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(n, row): what streaming memory has of these positions."""
    (key_codes, key_scales), (value_codes, value_scales) = packed(keys), packed(values)
    return np.concatenate([key_codes, value_codes, key_scales, value_scales], axis=1)


@given(st.integers(1, 9), st.integers(1, 17), st.integers(0, 2**32 - 1))
def test_round_rows(n: int, eights: int, seed: int) -> None:
    """Any width: the last groups may have 8 components, or be the first of two."""
    width = 8 * eights
    rows = some_rows(np.random.default_rng(seed), n, width)
    codes, scales = packed(rows)
    out = run(
        "RoundRows",
        dict(
            numbers=rows,
            rounded=halves(n * width),
            codes=halves(codes.size),
            scales=halves(scales.size),
        ),
        n=n,
        width=width,
    )
    assert_bits(out["rounded"], row_codes.round_rows(rows, 8).ravel())
    assert_bits(out["codes"], codes.ravel())
    assert_bits(out["scales"], scales.ravel())


@pytest.mark.parametrize(("n", "head_dim", "width"), [(1, 8, 8), (4, 40, 4), (4, 96, 12), (3, 128, 8)])
def test_cut_codes(n: int, head_dim: int, width: int) -> None:
    """Of keys a pair of lanes to a piece, of values `width` components, decoded."""
    keys, values = some_rows(np.random.default_rng(head_dim), 2, n, head_dim)
    out = run(
        "CutCodes",
        dict(rows=coded(keys, values), pieces=halves(n * 2 * head_dim)),
        n=n,
        headDim=head_dim,
        width=width,
    )
    keys, values = row_codes.round_rows(keys, 8), row_codes.round_rows(values, 8)
    lanes = [[c for c in range(head_dim) if c % 8 // 2 == pair] for pair in range(4)]
    pieces = [keys[:, of_pair].ravel() for of_pair in lanes]
    pieces += [values[:, c : c + width].ravel() for c in range(0, head_dim, width)]
    assert_bits(out["pieces"], np.concatenate(pieces))


@pytest.mark.parametrize(("head_dim", "n"), [(8, 8), (40, 40), (128, 128), (128, 64), (40, 24)])
def test_code_columns(head_dim: int, n: int) -> None:
    """Of the first n components."""
    keys, values = some_rows(np.random.default_rng(head_dim), 2, 64, head_dim)
    fields = dict(rows=coded(keys, values), columns=halves(64 * n))
    out = run("CodeColumns", fields, headDim=head_dim, nComponents=n)
    assert_bits(out["columns"], np.ascontiguousarray(row_codes.round_rows(keys, 8)[:, :n].T).ravel())
