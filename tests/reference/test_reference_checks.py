# SPDX-License-Identifier: Apache-2.0
"""Every message of checks.py, word for word, through the public functions."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from calls import refusal

from sparq_reference import KVCache, checks, exact, ideal

H = np.float16


def tensors(**changes: object) -> dict[str, object]:
    """Arguments of a valid call: batch 2, group_size 2, seq_len 5, head_dim 16; `changes` replaces some."""
    x = strategies.make_attention(
        np.random.default_rng(0), batch=2, n_kv_heads=2, group_size=2, seq_len=5, head_dim=16
    )
    return {**dict(zip(("query", "key", "value"), x.qkv)), **changes}


def zeros(*shape: int, dtype: object = H) -> np.ndarray:
    return np.zeros(shape, dtype)


def with_value(array: np.ndarray, where: tuple[int, ...], value: float) -> np.ndarray:
    array = array.copy()
    array[where] = value
    return array


NAN_KEY = with_value(tensors()["key"], (1, 0, 3, 7), np.nan)
INF_VALUE = with_value(tensors()["value"], (0, 1, 4, 0), -np.inf)

#: (changed arguments, message after the name of the operation), for both operations
ATTENTION = [
    (dict(query=zeros(2, 4, 16, dtype="f4")), "query must be float16, got float32"),
    (dict(query=zeros(2, 4, 16).tolist()), "query must be a NumPy array, got list"),
    (dict(key=None), "key must be a NumPy array, got NoneType"),
    (
        dict(value=np.ma.masked_array(zeros(2, 2, 5, 16), mask=True)),
        "value must be a NumPy array without a mask, got MaskedArray",
    ),
    (
        dict(lengths=np.ma.masked_array([3, 5], mask=[True, False])),
        "lengths must be integers without a mask, got MaskedArray",
    ),
    (dict(key=zeros(2, 2, 5, 16, dtype="i2")), "key must be float16, got int16"),
    (dict(value=zeros(2, 2, 5, 16, dtype="f8")), "value must be float16, got float64"),
    (
        dict(query=zeros(2, 16)),
        "query must have shape (batch, n_heads, head_dim), none of them 0, got (2, 16)",
    ),
    (
        dict(key=zeros(2, 2, 0, 16)),
        "key must have shape (batch, n_kv_heads, seq_len, head_dim), none of them 0, got (2, 2, 0, 16)",
    ),
    (
        dict(value=zeros(2, 5, 16)),
        "value must have shape (batch, n_kv_heads, seq_len, head_dim), none of them 0, got (2, 5, 16)",
    ),
    (
        dict(key=zeros(3, 2, 5, 16)),
        "key must have shape (batch=2, n_kv_heads, seq_len, head_dim=16), got (3, 2, 5, 16)",
    ),
    (
        dict(key=zeros(2, 2, 5, 8)),
        "key must have shape (batch=2, n_kv_heads, seq_len, head_dim=16), got (2, 2, 5, 8)",
    ),
    (dict(value=zeros(2, 2, 4, 16)), "value must have the shape of key, (2, 2, 5, 16), got (2, 2, 4, 16)"),
    (dict(query=zeros(2, 3, 16)), "n_heads must be a multiple of n_kv_heads=2, got 3"),
    (
        dict(query=zeros(2, 4, 12), key=zeros(2, 2, 5, 12), value=zeros(2, 2, 5, 12)),
        "head_dim must be a multiple of 8, got 12",
    ),
    (dict(lengths=np.array([5.0, 5.0])), "lengths must be integers, got float64"),
    (dict(lengths=[True, True]), "lengths must be integers, got bool"),
    (dict(lengths=[5]), "lengths must have shape (batch=2,), got (1,)"),
    (dict(lengths=[5, 0]), "lengths must be in [1, seq_len=5], got 0"),
    (dict(lengths=[6, 5]), "lengths must be in [1, seq_len=5], got 6"),
    (dict(lengths=[-1, 5]), "lengths must be in [1, seq_len=5], got -1"),
    (
        dict(query=with_value(zeros(2, 4, 16), (1, 2, 3), np.inf)),
        "query must be finite, got inf at [1, 2, 3]",
    ),
    (dict(key=NAN_KEY), "key must be finite, got nan at [1, 0, 3, 7]"),
    (dict(value=INF_VALUE), "value must be finite, got -inf at [0, 1, 4, 0]"),
]

#: what index_bits may not be
INDEX_BITS = (5, 0, -8, 32, True, False, "4", 4.0, None, [8])

#: (settings, message), for SparQ
SETTINGS = [
    (dict(rank=0), "rank must be in [1, head_dim=16], got 0"),
    (dict(rank=17), "rank must be in [1, head_dim=16], got 17"),
    (dict(rank=2.0), "rank must be an integer in [1, head_dim=16], got 2.0"),
    (dict(rank=True), "rank must be an integer in [1, head_dim=16], got True"),
    (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
    (dict(top_k=1 << 25), "top_k must be in [1, 16777216], got 33554432"),
    (dict(top_k="4"), "top_k must be an integer in [1, 16777216], got '4'"),
    (dict(n_local=-1), "n_local must be in [0, top_k=4], got -1"),
    (dict(n_local=5), "n_local must be in [0, top_k=4], got 5"),
    (dict(n_local=None), "n_local must be an integer in [0, top_k=4], got None"),
    (dict(mean_value=1), "mean_value must be True or False, got 1"),
    *(
        (dict(index_bits=value), f"index_bits must be one of 16, 8, 4, 2, got {value!r}")
        for value in INDEX_BITS
    ),
    (dict(value_sum=zeros(2, 2, 16)), "value_sum must be float32, got float16"),
    (dict(value_sum=[0.0]), "value_sum must be a NumPy array, got list"),
    (
        dict(value_sum=zeros(2, 16, dtype="f4")),
        "value_sum must have shape (batch=2, n_kv_heads=2, head_dim=16), got (2, 16)",
    ),
    (
        dict(value_sum=with_value(zeros(2, 2, 16, dtype="f4"), (0, 1, 2), np.nan)),
        "value_sum must be finite, got nan at [0, 1, 2]",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), ATTENTION)
def test_attention(changes: dict[str, object], expected: str) -> None:
    arguments = tensors(**changes)
    assert refusal(exact.dense_attention, **arguments) == f"dense_attention: {expected}"
    assert refusal(exact.sparq_attention, **arguments, rank=4, top_k=4) == f"sparq_attention: {expected}"
    if "float16" not in expected and "multiple of 8" not in expected:
        assert refusal(ideal.dense_attention, **arguments) == f"dense_attention: {expected}"
        assert refusal(ideal.sparq_attention, **arguments, rank=4, top_k=4) == f"sparq_attention: {expected}"


@pytest.mark.parametrize(("changes", "expected"), SETTINGS)
def test_settings(changes: dict[str, object], expected: str) -> None:
    arguments = tensors(**{"rank": 4, "top_k": 4, **changes})
    assert refusal(exact.sparq_attention, **arguments) == f"sparq_attention: {expected}"
    if "float32" not in expected:
        assert refusal(ideal.sparq_attention, **arguments) == f"sparq_attention: {expected}"


@pytest.mark.filterwarnings("ignore::UserWarning")  # NumPy before 1.24 makes an array of it, and warns
def test_lengths_of_different_depths() -> None:
    got = refusal(exact.dense_attention, **tensors(lengths=[5, [5]]))
    assert got.startswith("dense_attention: lengths must be integers, got ")


def test_valid_calls_pass() -> None:
    x = tensors()
    exact.dense_attention(**x)
    for integer in (int, np.int32, np.uint8):
        settings = dict(rank=integer(16), top_k=integer(4), n_local=integer(4), index_bits=integer(8))
        exact.sparq_attention(**x, **settings, mean_value=np.bool_(True))
    for lengths in ([1, 5], np.array([5, 5], np.uint8), (2, 3)):
        exact.dense_attention(**x, lengths=lengths)


def test_the_longest_sequence() -> None:
    """One position too many, without the memory: strides of 0."""
    key = np.broadcast_to(zeros(1, 1, 1, 8), (1, 1, checks.MAX_CAPACITY + 1, 8))
    expected = "dense_attention: seq_len must be in [1, 16777216], got 16777217"
    assert refusal(exact.dense_attention, zeros(1, 1, 8), key, key) == expected


def test_ideal_takes_any_float_and_head_dim() -> None:
    x = tensors()
    for dtype in (np.float16, np.float32, np.float64):
        wide = {name: a.astype(dtype)[..., :12] for name, a in x.items()}
        assert ideal.dense_attention(**wide).dtype == np.float64
    assert refusal(ideal.dense_attention, **tensors(query=zeros(2, 4, 16, dtype="i4"))) == (
        "dense_attention: query must be floating point, got int32"
    )


def test_unchecked_nan_passes_and_nan_beyond_a_length_is_not_seen() -> None:
    arguments = tensors(key=NAN_KEY)
    exact.dense_attention(**arguments, check_finite=False)
    exact.dense_attention(**arguments, lengths=[5, 3])
    assert "nan at [1, 0, 3, 7]" in refusal(exact.dense_attention, **arguments, lengths=[5, 4])


def test_finite_by_bits() -> None:
    """All 65536 float16, one at a time, against isfinite."""
    codes = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    assert [checks._all_finite(x) for x in codes.reshape(-1, 1)] == np.isfinite(codes).tolist()


# the cache

CACHE = [
    (dict(batch=0), "batch must be in [1, 16777216], got 0"),
    (dict(n_kv_heads=-1), "n_kv_heads must be in [1, 16777216], got -1"),
    (dict(head_dim=0), "head_dim must be in [1, 16777216], got 0"),
    (dict(head_dim=12), "head_dim must be a multiple of 8, got 12"),
    (dict(capacity=0), "capacity must be in [1, 16777216], got 0"),
    (dict(capacity=(1 << 24) + 1), "capacity must be in [1, 16777216], got 16777217"),
    (dict(capacity=1.5), "capacity must be an integer in [1, 16777216], got 1.5"),
    (dict(batch=True), "batch must be an integer in [1, 16777216], got True"),
    (
        dict(batch=1 << 12, n_kv_heads=(1 << 12) + 1, head_dim=8, capacity=1),
        "batch * n_kv_heads must be at most 16777216, got 16781312",
    ),
    *(
        (dict(index_bits=value), f"index_bits must be one of 16, 8, 4, 2, got {value!r}")
        for value in INDEX_BITS
    ),
    (dict(head_dim=65544, index_bits=8), "head_dim must be at most 65536 with index_bits=8, got 65544"),
    (dict(head_dim=65544, index_bits=4), "head_dim must be at most 65536 with index_bits=4, got 65544"),
]


@pytest.mark.parametrize(("changes", "expected"), CACHE)
def test_cache_sizes(changes: dict[str, object], expected: str) -> None:
    sizes = {**dict(batch=2, n_kv_heads=2, head_dim=16, capacity=8), **changes}
    assert refusal(KVCache, **sizes) == f"KVCache: {expected}"


def test_the_largest_head_dim_of_a_key_index() -> None:
    for head_dim, index_bits in ((65536, 8), (65536, 4), (65544, 16)):
        cache = KVCache(1, 1, head_dim, 1, index_bits=index_bits)
        assert (cache.head_dim, cache.index_bits) == (head_dim, index_bits)
    wide = zeros(1, 1, 1, 65544)
    expected = "sparq_attention: head_dim must be at most 65536 with index_bits=8, got 65544"
    for twin in (exact, ideal):
        assert refusal(twin.sparq_attention, wide[0], wide, wide, rank=1, top_k=1, index_bits=8) == expected


ROWS = zeros(2, 2, 3, 16)
APPEND = [
    ((ROWS.astype("f4"), ROWS), {}, "key must be float16, got float32"),
    ((ROWS, ROWS.astype("f8")), {}, "value must be float16, got float64"),
    ((ROWS.tolist(), ROWS), {}, "key must be a NumPy array, got list"),
    (
        (np.ma.masked_array(ROWS, mask=True), ROWS),
        {},
        "key must be a NumPy array without a mask, got MaskedArray",
    ),
    (
        (ROWS[0], ROWS),
        {},
        "key must have shape (batch=2, n_kv_heads=2, n_tokens >= 1, head_dim=16), got (2, 3, 16)",
    ),
    (
        (ROWS[:, :, :0], ROWS),
        {},
        "key must have shape (batch=2, n_kv_heads=2, n_tokens >= 1, head_dim=16), got (2, 2, 0, 16)",
    ),
    (
        (ROWS, ROWS[..., :8]),
        {},
        "value must have shape (batch=2, n_kv_heads=2, n_tokens >= 1, head_dim=16), got (2, 2, 3, 8)",
    ),
    ((ROWS, ROWS[:, :, :2]), {}, "value must have the shape of key, (2, 2, 3, 16), got (2, 2, 2, 16)"),
    ((ROWS, ROWS), dict(lengths=[1, 4]), "lengths must be in [0, n_tokens=3], got 4"),
    ((ROWS, ROWS), dict(lengths=[-1, 3]), "lengths must be in [0, n_tokens=3], got -1"),
    ((ROWS, ROWS), dict(lengths=[3]), "lengths must have shape (batch=2,), got (1,)"),
    ((ROWS, ROWS), dict(lengths=[1.0, 3.0]), "lengths must be integers, got float64"),
    ((with_value(ROWS, (1, 1, 2, 3), np.nan), ROWS), {}, "key must be finite, got nan at [1, 1, 2, 3]"),
    ((ROWS, with_value(ROWS, (0, 0, 0, 0), np.inf)), {}, "value must be finite, got inf at [0, 0, 0, 0]"),
    (
        (zeros(2, 2, 4, 16), zeros(2, 2, 4, 16)),
        dict(lengths=[0, 4]),
        "length must be at most capacity=8 (element 1 holds 5, 4 more), got 9",
    ),
]


@pytest.mark.parametrize(("arguments", "named", "expected"), APPEND)
def test_append_and_the_cache_is_unchanged(
    arguments: tuple[np.ndarray, np.ndarray], named: dict[str, object], expected: str
) -> None:
    cache = KVCache(2, 2, 16, 8)
    rng = np.random.default_rng(0)
    cache.append(*(strategies.tensors("normal", (2, 2, 5, 16), rng) for _ in range(2)), lengths=[4, 5])
    before = cache.key.copy(), cache.value.copy(), cache.lengths, cache.value_sum
    assert refusal(cache.append, *arguments, **named) == f"append: {expected}"
    for got, old in zip((cache.key, cache.value, cache.lengths, cache.value_sum), before):
        np.testing.assert_array_equal(got, old)


def test_reorder() -> None:
    cache = KVCache(2, 2, 16, 8)
    for index, expected in (
        ([0, 2], "index must be in [0, batch=2), got 2"),
        ([-1, 0], "index must be in [0, batch=2), got -1"),
        ([0], "index must have shape (batch=2,), got (1,)"),
        ([0.0, 1.0], "index must be integers, got float64"),
    ):
        assert refusal(cache.reorder, index) == f"reorder: {expected}"


def test_attention_of_a_cache() -> None:
    cache = KVCache(2, 2, 16, 8)
    query = zeros(2, 4, 16)
    sparq = dict(rank=4, top_k=4)
    empty = "cache must hold at least one position of every batch element, got none of element"
    assert refusal(cache.dense_attention, query) == f"dense_attention: {empty} 0"
    cache.append(ROWS, ROWS, [3, 0])
    assert refusal(cache.sparq_attention, query, **sparq) == f"sparq_attention: {empty} 1"
    cache.append(ROWS, ROWS)
    expected = "sparq_attention: query must be finite, got nan at [0, 0, 0]"
    assert refusal(cache.sparq_attention, with_value(query, (0, 0, 0), np.nan), **sparq) == expected
    expected = "dense_attention: n_heads must be a multiple of n_kv_heads=2, got 3"
    assert refusal(cache.dense_attention, zeros(2, 3, 16)) == expected
    for wrong in (query[0], query[:1], query[..., :8], query[:, :0]):
        expected = f"query must have shape (batch=2, n_heads, head_dim=16), got {wrong.shape}"
        assert refusal(cache.dense_attention, wrong) == f"dense_attention: {expected}"
    expected = "sparq_attention: rank must be in [1, head_dim=16], got 20"
    assert refusal(cache.sparq_attention, query, rank=20, top_k=4) == expected
