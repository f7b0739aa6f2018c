# SPDX-License-Identifier: Apache-2.0
"""Some batch elements of a cache as a cache: every call through them has the bits of caches of their own."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_caches import assert_bits
from hypothesis import given
from hypothesis import strategies as st

import sparq_ipu
from sparq_ipu.attention import attention
from sparq_ipu.tokens import append_and_attend

pytest.importorskip("sparq_ipu._cpu")

HEADS, DIM, CAPACITY, BATCH = 2, 16, 200, 4
SETTINGS = sparq_ipu.SparqSettings(8, 12, 4, True)


def rows_of(generator: np.random.Generator, batch: int, n: int, heads: int = HEADS) -> np.ndarray:
    return generator.standard_normal((batch, heads, n, DIM)).astype(np.float16)


@given(st.data(), st.sampled_from([16, 8, 4, 2]), st.integers(0, 1 << 32))
def test_calls_through_rows_are_those_of_caches_of_their_own(
    data: st.DataObject, index_bits: int, seed: int
) -> None:
    make = dict(device="cpu", index_bits=index_bits, row_bits=data.draw(st.sampled_from([16, 8])))
    whole = sparq_ipu.KVCache(BATCH, HEADS, DIM, CAPACITY, **make)
    own = [sparq_ipu.KVCache(1, HEADS, DIM, CAPACITY, **make) for _ in range(BATCH)]
    generator = np.random.default_rng(seed)
    for _ in range(data.draw(st.integers(1, 8))):
        index = data.draw(st.permutations(range(BATCH)))[: data.draw(st.integers(1, BATCH))]
        rows = whole.rows(index)
        n_new = data.draw(st.integers(1, 90))
        n_new = min(n_new, CAPACITY - int(rows.lengths.max()))
        if n_new:
            key, value = rows_of(generator, len(index), n_new), rows_of(generator, len(index), n_new)
            counts = np.array([data.draw(st.integers(1, n_new)) for _ in index])
            rows.append(key, value, counts)
            for b, place in enumerate(index):
                own[place].append(key[b : b + 1], value[b : b + 1], counts[b : b + 1])
        assert rows.lengths.tolist() == [int(own[place].lengths[0]) for place in index]
        for settings in (None, SETTINGS):
            query = rows_of(generator, len(index), 1, 2 * HEADS)[:, :, 0]
            expected = [attention(query[b : b + 1], own[p], settings) for b, p in enumerate(index)]
            assert_bits(attention(query, rows, settings), np.concatenate(expected), str(settings))
        what = data.draw(st.sampled_from(["truncate", "copy", "reset", "tokens", "nothing"]))
        if what == "truncate":
            kept = np.array([data.draw(st.integers(1, int(n))) for n in rows.lengths])
            rows.truncate(kept)
            for b, place in enumerate(index):
                own[place].truncate(kept[b : b + 1])
        elif what == "copy":
            order = np.array([data.draw(st.integers(0, len(index) - 1)) for _ in index])
            rows.reorder(order)
            read = [own[index[o]] for o in order]
            copies = [sparq_ipu.KVCache(1, HEADS, DIM, CAPACITY, **make) for _ in order]
            for source, copied in zip(read, copies):
                copied.append(*source.read())
            for place, copied in zip(index, copies):
                own[place] = copied
        elif what == "reset":
            rows.reset()
            for place in index:
                own[place].reset()
        elif what == "tokens" and int(rows.lengths.max()) + 3 <= CAPACITY:
            query = rows_of(generator, len(index), 3, 2 * HEADS)
            key, value = rows_of(generator, len(index), 3), rows_of(generator, len(index), 3)
            expected = [
                append_and_attend(query[b : b + 1], key[b : b + 1], value[b : b + 1], own[p])
                for b, p in enumerate(index)
            ]
            assert_bits(
                append_and_attend(query, key, value, rows), np.concatenate(expected), "several tokens"
            )
    for place, alone in enumerate(own):
        one = whole.rows([place])
        assert one.lengths.tolist() == alone.lengths.tolist()
        for got, expected in zip(one.read(), alone.read()):
            assert_bits(got, expected, "rows")
    key, value = rows_of(generator, BATCH, 1), rows_of(generator, BATCH, 1)
    if int(whole.lengths.max()) < CAPACITY:  # the whole cache sees what its rows did
        whole.append(key, value)
        query = rows_of(generator, BATCH, 1, 2 * HEADS)[:, :, 0]
        for b, alone in enumerate(own):
            alone.append(key[b : b + 1], value[b : b + 1])
        expected = [attention(query[b : b + 1], c, SETTINGS) for b, c in enumerate(own)]
        assert_bits(attention(query, whole, SETTINGS), np.concatenate(expected), "whole")


@pytest.mark.parametrize("index", [[], [4], [-1], [1, 1]])
def test_rows_that_can_not_be(index: list) -> None:
    cache = sparq_ipu.KVCache(BATCH, HEADS, DIM, CAPACITY, device="cpu")
    with pytest.raises(ValueError, match="rows: index must have"):
        cache.rows(index)


def test_rows_of_several_layers_and_of_rows() -> None:
    cache = sparq_ipu.KVCache(BATCH, HEADS, DIM, CAPACITY, n_layers=2, device="cpu")
    generator = np.random.default_rng(0)
    inner = cache.rows([3, 1]).rows([1])
    inner.layer(1).append(rows_of(generator, 1, 5), rows_of(generator, 1, 5))
    assert cache.lengths.tolist() == [[0] * 4, [0, 5, 0, 0]]


def test_other_devices_have_no_rows() -> None:
    with pytest.raises(ValueError, match="rows: device must be 'cpu', got 'reference'"):
        sparq_ipu.KVCache(BATCH, HEADS, DIM, CAPACITY, device="reference").rows([0])
