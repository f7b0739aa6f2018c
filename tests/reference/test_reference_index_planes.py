# SPDX-License-Identifier: Apache-2.0
"""The key index in planes of bits (docs/exactness.md E12): what is stored, what a query reads, scores, laws.

Each law has a negative control: the same check with the rule broken."""

from __future__ import annotations

from typing import Callable

import contract_oracle as oracle
import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import (
    CacheSpec,
    KVCache,
    SparqSettings,
    exact,
    ideal,
    index_planes,
    key_index,
    numerics,
    transfers,
)

BITS = pytest.mark.parametrize("bits", [8, 4])


def bits_of(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def same_bits(got: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(bits_of(got), bits_of(expected))


def depths_of(query: np.ndarray, keys: np.ndarray, rank: int, bits: int, read_bits: int) -> np.ndarray:
    """(d,) planes that are read: query (h, d), keys (n, d)."""
    return exact.plane_depths(
        query[None], keys[None, None], rank=rank, index_bits=bits, index_read_bits=read_bits
    )[0, 0]


def scores_of(query: np.ndarray, keys: np.ndarray, rank: int, bits: int, depth: np.ndarray) -> np.ndarray:
    """Approximate scores before the temperature, (h, n)."""
    components = index_planes.components(depth, rank)[None, None]
    inv_tau = np.ones((1, len(query)), np.float32)
    return exact.approx_scores(
        query[None], keys[None, None], components, inv_tau, index_bits=bits, depths=depth[None, None]
    )[0]


def check_contract(query: np.ndarray, keys: np.ndarray, rank: int, bits: int, read_bits: int) -> None:
    """Planes that are stored, planes that are read and scores are the contract in plain Python."""
    full = len(keys) // 64 * 64
    code = key_index.quantise(np.ascontiguousarray(keys[:full].T), bits).code
    words = index_planes.store(code, bits).astype(object)
    for c, t, block in np.ndindex(words.shape[:3]):
        plane = sum(((int(u) >> (bits - 1 - t)) & 1) << p for p, u in enumerate(code[c, block]))
        assert words[c, t, block, 0] + (words[c, t, block, 1] << 32) == plane, "planes differ"
    heads, rows = query.astype(float).tolist(), keys.astype(float).tolist()
    depth = depths_of(query, keys, rank, bits, read_bits)
    assert depth.tolist() == oracle.plane_depths(heads, rows, rank, bits, read_bits), "depths differ"
    i1 = np.flatnonzero(depth).tolist()
    for head, scores in zip(heads, scores_of(query, keys, rank, bits, depth)):
        expected = oracle.approx_scores(head, rows, i1, bits, rank, depth[i1].tolist())
        assert scores.tolist() == expected, "scores differ"


@st.composite
def cases(draw: st.DrawFn, lengths: tuple[int, ...] = (1, 63, 64, 129, 192)) -> tuple:
    """query (h, d), keys (n, d), rank, index_bits, index_read_bits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d, n, h = (draw(st.sampled_from(sizes)) for sizes in ((8, 24), lengths, (1, 3)))
    query, keys = (
        strategies.tensors(draw(st.sampled_from(strategies.KINDS)), shape, rng) for shape in ((h, d), (n, d))
    )
    bits = draw(st.sampled_from((8, 4)))
    rank = draw(st.integers(1, d))
    return query, keys, rank, bits, draw(st.one_of(st.integers(1, 16), st.integers(1, bits * d)))


def control(bits: int, kind: str = "normal") -> tuple:
    rng = np.random.default_rng(5)
    query, keys = strategies.tensors("normal", (2, 16), rng), strategies.tensors(kind, (200, 16), rng)
    keys[:, ::3] *= 4  # components of different widths
    keys[64:128, 1::3] *= 8  # in one block only
    return query, keys, 12, bits, 3 * bits + 2


@strategies.fewer(2)
@given(drawn=cases())
def test_planes_are_the_contract(drawn: tuple) -> None:
    check_contract(*drawn)


@strategies.fewer(8)
@given(data=st.data())
def test_attention_over_planes_is_the_contract(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions(seq_lens=(1, 63, 65, 129), head_dims=(8, 24), batches=(1, 2)))
    settings, bits = data.draw(strategies.sparq_settings(x)), data.draw(st.sampled_from((8, 4)))
    batch, n_kv_heads, seq_len, head_dim = x.key.shape
    read_bits = data.draw(st.integers(1, bits * head_dim))
    cache = KVCache(batch, n_kv_heads, head_dim, seq_len, index_bits=bits, index_read_bits=read_bits)
    cache.append(x.key, x.value, x.lengths)
    got = cache.attention(x.query, settings)
    group_size = x.query.shape[1] // n_kv_heads
    for b, n in enumerate(x.lengths):
        for kv in range(n_kv_heads):
            heads = slice(kv * group_size, (kv + 1) * group_size)
            lists = [
                a.astype(float).tolist() for a in (x.query[b, heads], x.key[b, kv, :n], x.value[b, kv, :n])
            ]
            rows = oracle.sparq(*lists, **settings.arguments(), index_bits=bits, read_bits=read_bits)
            expected = np.array([[oracle.narrow(y) for y in row] for row in rows], np.float16)
            assert same_bits(got[b, heads], expected)


def test_the_limit_of_coefficients_knows_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not how many of the components are read: from 33 components on these would differ."""
    rng = np.random.default_rng(0)
    query, keys = strategies.tensors("normal", (2, 40), rng), strategies.tensors("normal", (64, 40), rng)
    assert (depths_of(query, keys, 40, 8, 40) > 0).sum() < 33
    check_contract(query, keys, 40, 8, 40)
    right = key_index.block_scores
    monkeypatch.setattr(key_index, "block_scores", lambda *a, rank, unread: right(*a, unread=unread))
    with pytest.raises(AssertionError, match="scores"):
        check_contract(query, keys, 40, 8, 40)


def least_first(code: np.ndarray, bits: int) -> np.ndarray:
    right: np.ndarray = STORE(code, bits)[:, ::-1]
    return right


def deal_with(order: Callable[[np.ndarray], np.ndarray], base: float = 0.5) -> Callable[..., np.ndarray]:
    """`depths` that takes planes in another order, or has them count otherwise."""

    def depths(weight: np.ndarray, *, rank: int, index_bits: int, read_bits: int) -> np.ndarray:
        offered = np.sort(np.argsort(-weight, axis=-1, kind="stable")[..., :rank], axis=-1)
        count = np.take_along_axis(weight, offered, -1)[..., None] * base ** np.arange(index_bits)
        depth = np.zeros(weight.shape, np.int64)
        for at in np.ndindex(weight.shape[:-1]):
            for plane in order(count[at].ravel())[:read_bits]:
                depth[at][offered[at][plane // index_bits]] += 1
        return depth

    return depths


STORE = index_planes.store
STABLE = deal_with(lambda count: np.argsort(-count, kind="stable"))
HIGHER_FIRST = deal_with(lambda count: len(count) - 1 - np.argsort(-count[::-1], kind="stable"))
ROUND_ROBIN = deal_with(lambda count: np.argsort(-count, kind="stable"), base=1 - 2.0**-20)


@BITS
@pytest.mark.parametrize(
    ("name", "wrong", "kind", "differs"),
    [
        ("store", least_first, "normal", "planes"),
        ("largest_steps", lambda step: numerics.to_half(step.mean(axis=1)), "normal", "depths"),
        ("depths", HIGHER_FIRST, "constant", "depths"),
        ("depths", ROUND_ROBIN, "normal", "depths"),
        ("unread", lambda depth, bits: 0 * depth, "normal", "scores"),
        ("unread", lambda depth, bits: 1 << (bits - depth), "normal", "scores"),
    ],
)
def test_a_wrong_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, bits: int, name: str, wrong: object, kind: str, differs: str
) -> None:
    case = control(bits, kind)
    check_contract(*case)
    if name == "depths":  # the deal written for the controls is the right one where its order is
        monkeypatch.setattr(index_planes, "depths", STABLE)
        check_contract(*case)
    monkeypatch.setattr(index_planes, name, wrong)
    with pytest.raises(AssertionError, match=differs):
        check_contract(*case)


# laws


def declared(words: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Which words of `store` a query reads: bool, of their shape."""
    plane = np.arange(words.shape[1])
    return np.broadcast_to((plane < depth[:, None])[:, :, None, None], words.shape)


def law_only_declared_words_are_read(case: tuple, poisoned: Callable[[np.ndarray], np.ndarray]) -> None:
    """Scores do not change with the words that no query declared, and there are as many as the rule says."""
    query, keys, rank, bits, read_bits = case
    depth = depths_of(query, keys, rank, bits, read_bits)
    expected = scores_of(query, keys, rank, bits, depth)
    rng = np.random.default_rng(0)

    def store(code: np.ndarray, index_bits: int) -> np.ndarray:
        words = STORE(code, index_bits)
        read = declared(words, depth[depth > 0])
        assert read.sum() == 2 * (len(keys) // 64) * min(read_bits, bits * rank)
        noise = rng.integers(0, 2**32, words.shape, np.uint64).astype(np.uint32)
        return np.where(poisoned(read), noise, words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_planes, "store", store)
        assert same_bits(scores_of(query, keys, rank, bits, depth), expected)


@strategies.fewer(2)
@given(drawn=cases((64, 129)))
def test_only_declared_words_are_read(drawn: tuple) -> None:
    law_only_declared_words_are_read(drawn, np.logical_not)


@BITS
def test_every_declared_word_is_read(bits: int) -> None:
    """Negative control: noise in any one of them changes scores."""
    case = control(bits)
    depth = depths_of(*case)
    for number in range(3 * bits + 2):

        def one_plane(read: np.ndarray, number: int = number) -> np.ndarray:
            planes = np.argwhere(read[:, :, 0, 0])
            only = np.zeros_like(read)
            only[tuple(planes[number])] = True
            return only

        with pytest.raises(AssertionError):
            law_only_declared_words_are_read(case, one_plane)
    assert depth.sum() == 3 * bits + 2


def in_units(v: np.ndarray, rank: int, bits: int) -> np.ndarray:
    """Coefficients before they are rounded: (n_components, n_blocks) float32."""
    most, limit = np.abs(v).max(axis=0), np.float32(key_index.coefficient_limit(bits, rank))
    coefficient: np.ndarray = v * (limit / np.where(most == 0, np.float32(1), most))
    return coefficient


def plane_by_plane(case: tuple, order: np.random.Generator, kind: type) -> np.ndarray:
    """Totals of the first head, in numbers of a kind: planes in any order, from words alone."""
    query, keys, rank, bits, read_bits = case
    depth = depths_of(query, keys, rank, bits, read_bits)
    i1 = np.flatnonzero(depth)
    full = len(keys) // 64 * 64
    index = key_index.quantise(np.ascontiguousarray(keys[:full, i1].T), bits)
    words = index_planes.store(index.code, bits)
    v = query[0, i1].astype(np.float32)[:, None] * index.step.astype(np.float32)
    coefficient = np.rint(in_units(v, rank, bits)) if kind is np.int32 else v
    total = np.zeros((full // 64, 2, 32), kind)
    planes = np.argwhere(declared(words, depth[i1])[:, :, 0, 0])
    for j, t in order.permutation(planes):
        bit = (words[j, t][..., None] >> np.arange(32, dtype=np.uint32)) & 1
        total += (bit * coefficient[j][:, None, None] * 2 ** (bits - 1 - t)).astype(kind)
    return total


@strategies.fewer(4)
@given(drawn=cases((64, 129)), seed=st.integers(0, 99))
def test_totals_have_no_order(drawn: tuple, seed: int) -> None:
    """In int32, plane by plane in any order, they are the integers that scores are made of."""
    query, keys, rank, bits, _ = drawn
    depth = depths_of(*drawn)
    i1 = np.flatnonzero(depth)
    full = len(keys) // 64 * 64
    totals = [plane_by_plane(drawn, np.random.default_rng(seed + i), np.int32) for i in range(2)]
    assert np.array_equal(*totals) and np.abs(totals[0].astype(np.int64)).max() < 2**24
    index = key_index.quantise(np.ascontiguousarray(keys[:full, i1].T), bits)
    step, low = (a.astype(np.float32) for a in (index.step, index.low))
    q = query[0, i1].astype(np.float32)[:, None]
    limit = np.float32(key_index.coefficient_limit(bits, rank))
    unit = np.abs(q * step).max(axis=0) * (np.float32(1) / limit)
    coefficient = np.rint(in_units(q * step, rank, bits))
    offset = np.zeros(full // 64, np.float32)
    for j in range(len(i1)):
        offset += q[j] * low[j]
    middle = (coefficient * (2.0 ** (bits - depth[i1]) - 1)[:, None]).sum(axis=0).astype(np.float32)
    offset = offset + unit / np.float32(2) * middle
    scores = unit[:, None, None] * totals[0].astype(np.float32) + offset[:, None, None]
    assert same_bits(scores.ravel(), scores_of(query, keys, rank, bits, depth)[0, :full])


def test_totals_of_unrounded_numbers_have_one() -> None:
    """Negative control: without integers the order shows."""
    totals = [plane_by_plane(control(8), np.random.default_rng(i), np.float32) for i in range(2)]
    assert not np.array_equal(*totals)


@BITS
@strategies.fewer(4)
@given(drawn=cases())
def test_all_planes_are_the_index_without_planes(bits: int, drawn: tuple) -> None:
    """index_read_bits of `index_bits * rank` and more: scores of E9 over these components, bit for bit."""
    query, keys, rank, _, _ = drawn
    depth = depths_of(query, keys, rank, bits, bits * rank)
    assert (depth[depth > 0] == bits).all() and (depth > 0).sum() == rank
    assert np.array_equal(depth, depths_of(query, keys, rank, bits, bits * query.shape[1]))
    components = np.flatnonzero(depth)[None, None]
    ones = np.ones((1, len(query)), np.float32)
    whole = exact.approx_scores(query[None], keys[None, None], components, ones, index_bits=bits)[0]
    assert same_bits(scores_of(query, keys, rank, bits, depth), whole)


@BITS
def test_all_components_in_full_give_the_same_attention(bits: int) -> None:
    x = strategies.make_attention(np.random.default_rng(0), seq_len=200, head_dim=16)
    settings = dict(rank=16, top_k=32, n_local=4, index_bits=bits)
    expected = exact.sparq_attention(*x.qkv, **settings)
    assert same_bits(exact.sparq_attention(*x.qkv, **settings, index_read_bits=16 * bits), expected)
    # negative control
    assert not same_bits(exact.sparq_attention(*x.qkv, **settings, index_read_bits=16 * bits - 1), expected)


def law_one_more_bit_is_one_more_plane(case: tuple) -> None:
    query, keys, rank, bits, _ = case
    before = np.zeros(query.shape[1], np.int64)
    for read_bits in range(1, bits * rank + 1):
        depth = depths_of(query, keys, rank, bits, read_bits)
        assert depth.sum() == read_bits and ((depth - before) >= 0).all()
        before = depth


@strategies.fewer(4)
@given(drawn=cases((64, 129)))
def test_one_more_bit_is_one_more_plane(drawn: tuple) -> None:
    law_one_more_bit_is_one_more_plane(drawn)


def test_shares_that_are_rounded_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: bits dealt in proportion, each share rounded."""

    def in_proportion(weight: np.ndarray, *, rank: int, index_bits: int, read_bits: int) -> np.ndarray:
        share = np.rint(weight / weight.sum(axis=-1, keepdims=True) * read_bits)
        return np.minimum(share, index_bits).astype(np.int64)

    law_one_more_bit_is_one_more_plane(control(8))
    monkeypatch.setattr(index_planes, "depths", in_proportion)
    with pytest.raises(AssertionError):
        law_one_more_bit_is_one_more_plane(control(8))


@pytest.mark.parametrize(
    ("weight", "rank", "read_bits", "expected"),
    [
        ([1, 1, 1, 1], 4, 5, [2, 1, 1, 1]),
        ([1, 1, 1, 1], 2, 5, [3, 2, 0, 0]),  # which components are offered: the lowest
        ([1, 2, 4, 2], 4, 4, [0, 1, 2, 1]),  # 4, 2 2 2, ...: before the third 2 of component 2 come 1 and 3
        ([1, 2, 4, 2], 4, 5, [1, 1, 2, 1]),
        ([0, 0, 0, 0], 4, 5, [4, 1, 0, 0]),  # nothing tells them apart: the lowest component wins all
        ([0, 8, 0, 0], 4, 6, [2, 4, 0, 0]),
        ([1, 3, 1, 1], 4, 99, [4, 4, 4, 4]),
    ],
)
def test_ties_go_to_the_lower_component(
    weight: list[float], rank: int, read_bits: int, expected: list[int]
) -> None:
    deal = dict(rank=rank, index_bits=4, read_bits=read_bits)
    for kind in (np.float32, np.float64):
        assert index_planes.depths(np.array(weight, kind), **deal).tolist() == expected


def test_ties_that_go_to_the_higher_component_are_noticed() -> None:
    """Negative control of the table above."""
    deal = dict(rank=4, index_bits=4, read_bits=5)
    assert STABLE(np.ones(4), **deal).tolist() == [2, 1, 1, 1]
    assert HIGHER_FIRST(np.ones(4), **deal).tolist() == [1, 1, 1, 2]


@strategies.fewer(4)
@given(drawn=cases((192,)), seed=st.integers(0, 99))
def test_depths_do_not_depend_on_the_order_of_blocks(drawn: tuple, seed: int) -> None:
    query, keys, rank, bits, read_bits = drawn
    blocks = np.random.default_rng(seed).permutation(keys.reshape(3, 64, -1))
    shuffled = blocks.reshape(keys.shape)
    assert np.array_equal(depths_of(*drawn), depths_of(query, shuffled, rank, bits, read_bits))


def test_depths_by_the_last_block_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    query, keys, *rest = control(8)
    keys = keys[:192] * np.repeat(np.float16([[1], [4], [9]]), 64, axis=0)
    keys[:64, 0] *= 30
    turned = np.concatenate([keys[64:], keys[:64]])
    assert np.array_equal(depths_of(query, keys, *rest), depths_of(query, turned, *rest))
    monkeypatch.setattr(index_planes, "largest_steps", lambda step: step[:, -1])
    assert not np.array_equal(depths_of(query, keys, *rest), depths_of(query, turned, *rest))


def test_a_cache_is_what_its_positions_are() -> None:
    """Appended at once, in pieces, or with others that were forgotten again: the same bits."""
    x = strategies.make_attention(np.random.default_rng(1), batch=2, seq_len=200, head_dim=16)
    sizes = (*x.key.shape[:2], 16, 400)
    options = dict(index_bits=4, index_read_bits=20)
    settings = SparqSettings(rank=8, top_k=20, n_local=4)
    outputs = []
    for pieces in ([200], [1, 62, 1, 64, 72], [200, 150]):
        cache, start = KVCache(*sizes, **options), 0
        for n in pieces:
            rows = slice(start % 200, start % 200 + n)
            scale = np.float16(1 if start < 200 else 8)  # what is forgotten had wider components
            cache.append(x.key[:, :, rows] * scale, x.value[:, :, rows])
            start += n
        if start > 200:
            forgetful = cache.attention(x.query, settings)
            cache.truncate(np.array([200] * 2))
        outputs.append(cache.attention(x.query, settings))
    assert same_bits(outputs[0], outputs[1]) and same_bits(outputs[0], outputs[2])
    assert not same_bits(outputs[0], forgetful)  # negative control


# error


def excess(case: tuple, part: float = 1.0) -> float:
    """Largest distance of a score from float64's with the keys themselves, as a share of the bound of E12."""
    query, keys, rank, bits, _ = case
    depth = depths_of(*case)
    i1, full = np.flatnonzero(depth), len(keys) // 64 * 64
    index = key_index.quantise(np.ascontiguousarray(keys[:full, i1].T), bits)
    step = index.step.astype(float)
    open_codes = (2.0 ** (bits - depth[i1]) - 1)[:, None]
    n = 2**bits - 1
    e = np.maximum(step / 2, n * 2.0**-25) + step * open_codes / 2
    read = index.code // (open_codes[..., None] + 1) * (open_codes[..., None] + 1) + open_codes[..., None] / 2
    worst = 0.0
    got = scores_of(query, keys, rank, bits, depth)[:, :full].astype(float)
    for q, scores in zip(query[:, i1].astype(float), got):
        unit = np.abs(q[:, None] * step).max(axis=0) / key_index.coefficient_limit(bits, rank)
        bound = (np.abs(q) @ e)[:, None] + unit[:, None] / 2 * read.sum(axis=0)
        size = np.abs(q) @ np.abs(keys[:full, i1].astype(float).T)  # what float32 rounds
        bound = bound.ravel() * part + 64 * 2.0**-24 * (size + unit.repeat(64) * 2.0**24 / 64) + 1e-300
        worst = max(worst, (np.abs(scores - q @ keys[:full, i1].astype(float).T) / bound).max(initial=0.0))
    return worst


@strategies.fewer(4)
@given(drawn=cases((64, 129)))
def test_scores_are_within_the_bound(drawn: tuple) -> None:
    assert excess(drawn) <= 1


@BITS
def test_the_bound_is_not_far_away(bits: int) -> None:
    """Negative control: a quarter of it would not do."""
    assert excess(control(bits), 0.25) > 1


@BITS
def test_the_ideal_twin_scores_the_same_planes(bits: int) -> None:
    x = strategies.make_attention(np.random.default_rng(3), batch=2, n_kv_heads=2, seq_len=200, head_dim=64)
    twins = [
        twin.sparq_steps(*x.qkv, SparqSettings(24, 32), index_bits=bits, index_read_bits=20)
        for twin in (exact, ideal)
    ]
    assert np.array_equal(twins[0].depths, twins[1].depths)
    assert (
        np.array_equal(twins[0].components, twins[1].components)
        and (twins[0].components[..., -1] == -1).all()
    )
    np.testing.assert_allclose(twins[0].inv_tau, twins[1].inv_tau, rtol=1e-6)
    # coefficients are rounded to 1 in 127, or in 2047
    np.testing.assert_allclose(twins[0].scores, twins[1].scores, atol={8: 0.005, 4: 0.08}[bits])
    other = ideal.sparq_steps(*x.qkv, SparqSettings(24, 32), index_bits=bits, index_read_bits=19)
    assert np.abs(other.scores - twins[0].scores).max() > 0.08  # negative control


# what is refused, and what it costs


@pytest.mark.parametrize(
    ("index_bits", "wrong", "words"),
    [
        (16, 1, "in [0, 0] with index_bits=16, got 1"),
        (8, 129, "in [0, 128] with index_bits=8, got 129"),
        (4, 65, "in [0, 64] with index_bits=4, got 65"),
        (4, -1, "in [0, 64] with index_bits=4, got -1"),
        (4, 8.0, "an integer in [0, 64] with index_bits=4, got 8.0"),
        (4, True, "an integer in [0, 64] with index_bits=4, got True"),
    ],
)
def test_wrong_read_bits(index_bits: int, wrong: object, words: str) -> None:
    x = strategies.make_attention(np.random.default_rng(0), seq_len=8, head_dim=16)
    options = dict(index_bits=index_bits, index_read_bits=wrong)
    for op, call in {
        "KVCache": lambda: KVCache(1, 1, 16, 8, **options),
        "CacheSpec": lambda: CacheSpec(1, 1, 16, 8, **options),
        "sparq_attention": lambda: exact.sparq_attention(*x.qkv, rank=4, top_k=4, **options),
    }.items():
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == f"{op}: index_read_bits must be {words}"


def test_read_bits_of_a_cache() -> None:
    cache = KVCache(1, 1, 16, 8, index_bits=4, index_read_bits=np.int16(64))
    assert cache.index_read_bits == 64 and type(cache.index_read_bits) is int
    assert CacheSpec(1, 1, 16, 8).index_read_bits == 0


def test_bytes_of_planes() -> None:
    """The bytes of the words, with `low` and `step` of the components that can have some."""
    for bits, read_bits, n in ((8, 64, 32), (4, 64, 32), (8, 20, 20), (4, 300, 32)):
        read = min(read_bits, 32 * bits)
        assert transfers.index_bytes(640, 32, bits, read_bits) == 640 * read // 8 + 10 * 4 * n
    assert transfers.index_bytes(650, 32, 8, 64) - transfers.index_bytes(640, 32, 8, 64) == 2 * 10 * 32
    assert transfers.index_bytes(640, 32, 8, 32 * 8) == transfers.index_bytes(640, 32, 8)
    assert transfers.theoretical_speedup(16384, 128, 32, 128, 8, 64) == pytest.approx(36.57, abs=0.005)
