# SPDX-License-Identifier: Apache-2.0
"""Whatever a cache refuses, it holds what it held before: lengths, rows, and what attention makes of them."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from strategies import make_attention

import sparq_ipu
from sparq_reference import exact

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

LENGTHS = np.array([5, 64, 33])
ROWS = np.ones((3, 2, 2, 16), np.float16)
NAN = np.where(np.arange(3)[:, None, None, None] == 2, np.float16(np.nan), ROWS)
QUERY = np.ones((3, 4, 16), np.float16)

#: what is refused; each could leave something behind in the elements that come first
REFUSED: dict[str, Callable[[Any], Any]] = {
    "no room in one element": lambda c: c.append(ROWS, ROWS),
    "NaN in the last element": lambda c: c.append(NAN, ROWS, [1, 0, 1]),
    "infinity in a value": lambda c: c.append(ROWS, ROWS * np.float16(np.inf), [1, 0, 0]),
    "values of another type": lambda c: c.append(ROWS, ROWS.astype(np.float32), [1, 0, 0]),
    "values of another shape": lambda c: c.append(ROWS, ROWS[:, :, :1], [1, 0, 0]),
    "more rows than are given": lambda c: c.append(ROWS, ROWS, [1, 0, 3]),
    "fewer than none": lambda c: c.append(ROWS, ROWS, [1, 0, -1]),
    "lengths of two elements": lambda c: c.append(ROWS, ROWS, [1, 0]),
    "an element that is none": lambda c: c.reorder(np.array([1, 0, 3])),
    "two elements of three": lambda c: c.reorder(np.array([1, 0])),
    "no integers": lambda c: c.reorder(np.array([1.0, 0.0, 2.0])),
    "rows beyond the longest": lambda c: c.read(0, 65),
    "a query of another batch": lambda c: sparq_ipu.dense_attention(QUERY[:2], c),
    "a query with NaN": lambda c: sparq_ipu.dense_attention(QUERY * np.float16(np.nan), c),
    "heads that do not split": lambda c: sparq_ipu.dense_attention(QUERY[:, :3], c),
    "a rank beyond head_dim": lambda c: sparq_ipu.sparq_attention(QUERY, c, rank=17, top_k=4),
    "no position selected": lambda c: sparq_ipu.sparq_attention(QUERY, c, rank=4, top_k=0),
}


@pytest.mark.parametrize("index_bits", [16, 4])
@pytest.mark.parametrize("device", ["reference", "cpu", "emulator", "emulator-sram"])
def test_a_refusal_changes_nothing(device: str, index_bits: int) -> None:
    """Before there is a program, and with one."""
    name, _, memory = device.partition("-")
    if name not in sparq_ipu.available_devices():
        pytest.skip(f"{name} is not available here")
    if memory and index_bits != 16:
        return  # a cache in SRAM has no key index
    options = {"n_tiles": 3, "memory": memory or "streaming"} if name == "emulator" else {}
    a = make_attention(
        np.random.default_rng(0),
        batch=3,
        n_kv_heads=2,
        group_size=2,
        seq_len=64,
        head_dim=16,
        lengths=LENGTHS,
    )
    cache = sparq_ipu.KVCache(3, 2, 16, 64, device=name, index_bits=index_bits, **options)
    cache.append(np.nan_to_num(a.key), np.nan_to_num(a.value), LENGTHS)
    settings = dict(rank=4, top_k=9, n_local=2)

    def outputs() -> list[np.ndarray]:
        dense = sparq_ipu.dense_attention(a.query, cache)
        return [dense] if memory else [dense, sparq_ipu.sparq_attention(a.query, cache, **settings)]

    held = (np.arange(64) < LENGTHS[:, None])[:, None, :, None]
    rows = [np.where(held, x, np.float16(0)) for x in (a.key, a.value)]
    expected = [
        exact.dense_attention(*a.qkv, lengths=LENGTHS),
        exact.sparq_attention(*a.qkv, lengths=LENGTHS, index_bits=index_bits, **settings),
    ]
    for _ in range(2):
        for what, call in REFUSED.items():
            with pytest.raises(ValueError):
                call(cache)
            np.testing.assert_array_equal(cache.lengths, LENGTHS, err_msg=what)
            for found, right in zip(cache.read(), rows):
                np.testing.assert_array_equal(found.view(np.uint16), right.view(np.uint16), err_msg=what)
        for found, right in zip(outputs(), expected):
            np.testing.assert_array_equal(found.view(np.uint16), right.view(np.uint16))


@pytest.mark.parametrize("device", ["reference", "cpu", "emulator"])
def test_what_is_not_refused_changes_it(device: str) -> None:
    """Negative control: calls like these, with valid arguments."""
    if device not in sparq_ipu.available_devices():
        pytest.skip(f"{device} is not available here")
    for call in (lambda c: c.append(ROWS, ROWS, [1, 0, 2]), lambda c: c.reorder(np.array([1, 0, 2]))):
        cache = sparq_ipu.KVCache(3, 2, 16, 64, device=device)
        cache.append(np.ones((3, 2, 64, 16), np.float16), np.ones((3, 2, 64, 16), np.float16), LENGTHS)
        call(cache)
        assert (cache.lengths != LENGTHS).any()
