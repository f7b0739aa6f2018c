# SPDX-License-Identifier: Apache-2.0
"""Window attention: the exact twin is the contract in plain Python, the ideal twin is near; the history."""

from __future__ import annotations

import contract_oracle as oracle
import numpy as np
import strategies
from calls import refusal
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import KVCache, WindowSettings, exact, ideal, window
from sparq_reference.settings import MAX_RECENT_HEADS

H = np.float16


def tokens(seed: int, batch: int, n_heads: int, n_kv_heads: int, n: int, kind: str = "normal") -> tuple:
    """Queries, keys and values of n tokens, head_dim 8."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, n_heads, n, 8), (batch, n_kv_heads, n, 8), (batch, n_kv_heads, n, 8))
    return tuple(strategies.tensors(kind, shape, rng) for shape in shapes)


settings_strategy = st.builds(
    lambda top_k, local, n_recent: WindowSettings(
        top_k, None if local is None else local % (top_k + 1), n_recent
    ),
    st.sampled_from((1, 2, 5, 9, 64, 66)),
    st.sampled_from((None, 0, 1, 4, 66)),
    st.sampled_from((0, 1, 3, 40)),
)


@given(
    settings_strategy,
    st.integers(0, 2**32 - 1),
    st.sampled_from(("normal", "ties", "constant", "wide")),
    st.sampled_from(((1, 1), (2, 1), (4, 2))),
    st.sampled_from((3, 62, 130)),
)
def test_steps_are_the_contract(
    settings: WindowSettings, seed: int, kind: str, heads: tuple[int, int], start: int
) -> None:
    """Some steps after a prompt whose last tokens were observed, in bits, and the shares of each."""
    n_heads, n_kv_heads = heads
    query, key, value = tokens(seed, 1, n_heads, n_kv_heads, start + 5, kind)
    lists = [x[0].astype(float).tolist() for x in (query, key, value)]
    cache = KVCache(1, n_kv_heads, 8, 200)
    cache.append(key[:, :, :start], value[:, :, :start])
    cache.observe(query[:, :, start - 2 : start], settings)
    steps: list[list[int]] = []
    for now in range(start - 2, start + 5):
        held = [[rows[: now + 1] for rows in of] for of in lists[1:]]
        own = [rows[now] for rows in lists[0]]
        everything = now < start
        arguments = dict(top_k=999, n_local=999, n_recent=0) if everything else settings.arguments()
        output, shares = oracle.window(own, *held, steps, **arguments)
        if not everything:
            cache.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
            got = cache.attention(query[:, :, now], settings)
            expected = np.array([[oracle.narrow(y) for y in row] for row in output], H)
            assert np.array_equal(got[0].view(np.uint16), expected.view(np.uint16))
        if settings.remembers:
            steps.append(shares)
            if not everything:
                assert cache.history.steps(0)[-1].tolist() == shares
    if settings.remembers:
        assert [s.tolist() for s in cache.history.steps(0)] == steps[-settings.n_recent :]
    else:
        assert cache.history is None


def test_the_ideal_twin_is_near() -> None:
    """Fed with the same steps, the twins select alike where sums are apart, and are then near in output."""
    query, key, value = tokens(3, 2, 4, 2, 90)
    histories = [window.WindowHistory(2, 4, exact=flag) for flag in (True, False)]
    worst = 0.0
    for now in range(60, 90):
        arguments = dict(top_k=20, n_recent=4)
        held = (query[:, :, now], key[:, :, : now + 1], value[:, :, : now + 1])
        y = exact.window_attention(*held, histories[0], **arguments)
        z = ideal.window_attention(*held, histories[1], **arguments)
        worst = max(worst, np.abs(y - z).max())
        sums = [h.sums(now + 1).astype(float) for h in histories]
        assert np.abs(sums[0] / window.UNITS - sums[1]).max() <= 4 * 4 / 2 / window.UNITS + 1e-6
    assert worst < 2e-3


def test_few_positions_are_dense_attention() -> None:
    query, key, value = tokens(0, 2, 4, 2, 30)
    x = (query[:, :, -1], key, value)
    dense = exact.dense_attention(*x)
    for arguments in (dict(top_k=30), dict(top_k=64, n_local=0), dict(top_k=30, n_local=0, n_recent=0)):
        got = exact.window_attention(*x, window.WindowHistory(2, 32), **arguments)
        assert np.array_equal(got.view(np.uint16), dense.view(np.uint16))
    other = exact.window_attention(*x, window.WindowHistory(2, 32), top_k=29)
    assert not np.array_equal(other, dense)  # negative control


def test_local_and_strided_attention() -> None:
    sums = np.zeros((1, 100), np.uint32)

    def chosen(length: int, *settings: int) -> list[int]:
        positions, counts = window.select_positions(sums, WindowSettings(*settings), np.array([length]))
        return positions[0, : counts[0]].tolist()

    assert chosen(100, 7, 7) == list(range(93, 100))
    assert chosen(100, 10, 0, 0) == list(range(9, 100, 10))
    assert chosen(95, 10, 0, 0) == list(range(4, 95, 10))  # back from the newest
    assert chosen(91, 10, 0, 0) == list(range(0, 91, 10))
    assert chosen(99, 12, 2, 0) == [*range(6, 97, 10), 97, 98]
    # nothing remembered yet: equal sums, the lowest indices
    assert chosen(100, 5) == [0, 1, 97, 98, 99]


def test_a_cache_forgets_as_it_says() -> None:
    query, key, value = tokens(1, 3, 2, 1, 40)
    settings = WindowSettings(6, n_recent=8)
    cache = KVCache(3, 1, 8, 64)
    for now in range(20):
        cache.append(key[:, :, now : now + 1], value[:, :, now : now + 1])
        cache.attention(query[:, :, now], settings)
    before = [cache.history.steps(b) for b in range(3)]
    assert [len(s) for s in before[0]] == list(range(13, 21))
    cache.truncate(np.array([20, 15, 3]))
    assert cache.history.n_steps.tolist() == [8, 3, 0]
    cache.reorder(np.array([1, 1, 0]))
    assert cache.history.n_steps.tolist() == [3, 3, 8]
    assert all((a == b).all() for a, b in zip(cache.history.steps(2), before[0]))
    cache.append(key[:, :, 20:21], value[:, :, 20:21])
    cache.attention(query[:, :, 20], settings)  # elements 0 and 1 do not share what comes now
    assert cache.history.n_steps.tolist() == [4, 4, 8]
    cache.reset()
    assert cache.history is None


def test_settings() -> None:
    assert WindowSettings(5).arguments() == dict(top_k=5, n_local=3, n_recent=32)
    assert WindowSettings(4, n_recent=2) == WindowSettings(4, 2, 2)
    assert str(WindowSettings(4)) == "top_k 4, n_local 2, n_recent 32"
    assert [WindowSettings(*a).remembers for a in ((4,), (4, 4), (4, 0, 0))] == [True, False, False]
    for arguments, words in (
        (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
        (dict(top_k=4, n_local=5), "n_local must be in [0, top_k=4], got 5"),
        (dict(top_k=4, n_recent=-1), "n_recent must be in [0, 32767], got -1"),
        (dict(top_k=4, n_recent=True), "n_recent must be an integer in [0, 32767], got True"),
    ):
        assert refusal(lambda a=arguments: WindowSettings(**a, op="call")) == f"call: {words}"


def test_refusals_change_nothing() -> None:
    query, key, value = tokens(1, 1, 2, 1, 9)
    cache = KVCache(1, 1, 8, 64)
    settings = WindowSettings(4, n_recent=3)
    assert "cache must hold at least one position" in refusal(
        lambda: cache.attention(query[:, :, 0], settings)
    )
    cache.append(key, value)
    cache.attention(query[:, :, 8], settings)
    for call, words in (
        (
            lambda: cache.attention(query[:, :, 8], WindowSettings(4, n_recent=4)),
            "window_attention: n_recent must be the n_recent=3 of the steps so far, got 4",
        ),
        (
            lambda: cache.attention(query[:, :, 8], WindowSettings(4, n_recent=MAX_RECENT_HEADS)),
            "window_attention: n_recent must be in [0, 16383] for n_heads=2, got 32767",
        ),
        (
            lambda: cache.observe(query[:, :, 0], settings),
            "observe: query must have shape (batch, n_heads, n_tokens, head_dim), none of them 0, "
            "got (1, 2, 8)",
        ),
        (
            lambda: cache.observe(np.concatenate([query, query], axis=2), settings),
            "observe: cache must hold the 18 tokens of the query, got 9 positions of element 0",
        ),
    ):
        assert refusal(call) == words
        assert cache.history.n_steps.tolist() == [1]
    cache.attention(query[:, :, 8], WindowSettings(4, 4, 9))  # not remembered, so any n_recent
    assert cache.history.n_steps.tolist() == [1]
