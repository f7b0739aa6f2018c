# SPDX-License-Identifier: Apache-2.0
"""Device "cpu" gives the bits of `sparq_reference.exact`, any instruction set, any number of threads."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from cpu_caches import assert_bits, check_attention, filled_cache
from hypothesis import given
from hypothesis import strategies as st
from strategies import Attention, attentions, make_attention, sparq_settings

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_reference import SparqSettings, exact, numerics, row_codes, transfers

#: layouts in which tensors may come
LAYOUTS = ("contiguous", "odd_address", "reversed", "tokens_first", "every_second")


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """A view with the numbers of `x` in another layout of memory."""
    if layout == "odd_address":
        memory = bytearray(x.nbytes + 1)
        view = np.ndarray(x.shape, x.dtype, buffer=memory, offset=1)
        view[...] = x
        assert x.size == 0 or not view.flags.aligned
        return view
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    if layout == "tokens_first":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -2, 0)), 0, -2)
    if layout == "every_second":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, np.float16)
        wide[..., ::2] = x
        return wide[..., ::2]
    return np.ascontiguousarray(x)


@given(data=st.data())
def test_bits(isa: str, data: st.DataObject) -> None:
    tensors, bits = data.draw(attentions()), data.draw(st.sampled_from((16, 8)))
    settings = data.draw(sparq_settings(tensors)).arguments()
    check_attention(tensors, 16, settings, (isa,), row_bits=bits)


@pytest.mark.parametrize("row_bits", [16, 8])
@pytest.mark.parametrize("head_dim", [256, 96])
def test_many_outputs(head_dim: int, row_bits: int) -> None:
    """A wrong last bit of an fp32 sum changes one fp16 output in some thousands: so look at many of them.

    A scale of 1 / sqrt(96) that is computed in fp32 is another number; 256 has an exact one.
    """
    tensors = make_attention(
        np.random.default_rng(head_dim), batch=4, n_kv_heads=8, group_size=8, seq_len=400, head_dim=head_dim
    )
    settings = dict(rank=24, top_k=200, n_local=10, mean_value=True)
    check_attention(tensors, 16, settings, threads=(2,), row_bits=row_bits)


def test_alpha_is_at_most_one() -> None:
    """By rounding, the selected weights can sum to more than all do; large values elsewhere make it show."""
    rng = np.random.default_rng(0)
    tensors = make_attention(rng, n_kv_heads=16, seq_len=700, head_dim=8)
    far = np.arange(700) % 70 == 0
    tensors.query[...] = 4
    tensors.key[...] = (rng.standard_normal(tensors.key.shape) * 0.1).astype(np.float16)
    tensors.key[:, :, far] = -2
    tensors.value[...] = np.where(far[:, None], np.float16(65504), np.float16(0))
    settings = dict(rank=8, top_k=690, n_local=0)
    steps = exact.sparq_steps(*tensors.qkv, SparqSettings(**settings))
    selected = np.take_along_axis(steps.weights, steps.positions, axis=-1)
    more = numerics.fold_blocks(numerics.block_sums(selected)) > steps.weight_sum
    assert more.any() and not more.all()
    check_attention(tensors, 16, dict(settings, mean_value=True), threads=(1,))


@given(data=st.data(), layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3))
def test_layouts(isa: str, data: st.DataObject, layouts: tuple[str, str, str]) -> None:
    """Strides and alignment of the caller's tensors do not matter."""
    tensors = data.draw(attentions(head_dims=(8, 64, 80), seq_lens=(1, 9, 64, 65)))
    moved = Attention(*(laid_out(x, layout) for x, layout in zip(tensors.qkv, layouts)), tensors.lengths)
    settings = data.draw(sparq_settings(tensors)).arguments()
    expected = exact.sparq_attention(*tensors.qkv, lengths=tensors.lengths, **settings)
    cache = filled_cache(moved, isa=isa, n_threads=2)
    assert_bits(sparq_attention(moved.query, cache, **settings), expected, str(layouts))


@pytest.mark.parametrize("top_k", [1, 2, 40, 79, 80, 600, 1279, 1280, 4000, 5119])
def test_selection_at_every_density(top_k: int) -> None:
    """top_k from far fewer than there are blocks (80) to nearly all positions; scores with many ties."""
    for kind in ("ties", "normal", "sparse"):
        tensors = make_attention(
            np.random.default_rng(top_k), seq_len=5120, head_dim=8, group_size=2, kinds=(kind, kind, "normal")
        )
        check_attention(tensors, 16, dict(rank=3, top_k=top_k, n_local=0, mean_value=True), threads=(1, 3))


@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("few", [False, True])
def test_nearly_equal_merits(few: bool, group_size: int) -> None:
    """Weights that are neighbours in fp32: the division by their sum makes some of them equal merits, and the
    kernels, which look for candidates before they divide, must neither miss one nor reorder a tie. `few`:
    hardly more of them than are wanted, each in a part of the positions of its own, so that the bound for
    candidates is as tight as it gets; all other weights are 0."""
    rng = np.random.default_rng(group_size)
    tensors = make_attention(rng, n_kv_heads=8, group_size=group_size, seq_len=5120, head_dim=16)
    tensors.query[...] = np.where(np.arange(16) == 5, 2.0**-6, 0)
    steps_of_key = rng.integers(0, 40 if few else 1024, tensors.key.shape[:3])
    tensors.key[..., 5] = (1 + steps_of_key / 1024).astype(np.float16) * 2.0**-6
    if few:
        for head in range(8):
            part = rng.permutation(640)[:310]  # 16 parts of every two blocks of 64
            others = np.ones(5120, bool)
            others[part // 16 * 128 + part % 16] = False
            tensors.key[:, head, others, 5] = -60000
    settings = dict(rank=1, top_k=300, n_local=3)
    if group_size == 1:
        steps = exact.sparq_steps(*tensors.qkv, SparqSettings(**settings))
        weights = steps.weights[0, 0]
        merits = weights / steps.weight_sum[0, 0, ..., None]
        assert np.unique(weights).size > np.unique(merits).size > 20
    check_attention(tensors, 16, dict(settings, mean_value=True), threads=(1, 3))


def keys_with_weights(total: np.float32) -> np.ndarray:
    """Two keys (2, 8) whose softmax weights add up to exactly `total`; the query is (1, 1, 0, ...) and the
    largest score 0. A weight alone hits few numbers: the second one fills up what the first one leaves."""

    def weights(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        whole = np.arange(low, high, dtype=np.float32)
        parts = np.arange(0, 2048, dtype=np.float32) / 2048  # whole - part: exact in fp32, both exact in fp16
        scores = (whole[:, None] - parts).ravel() * numerics.scale(8)
        keys = np.zeros((len(scores), 8), np.float16)
        keys[:, 0], keys[:, 1] = np.repeat(whole, 2048), np.tile(-parts, len(whole))
        return numerics.softmax_weight(scores), keys

    middle = int(np.log(total) / numerics.scale(8))
    first, keys = weights(middle - 2, middle + 3)
    best = np.argmax(np.where(first < total, first, 0))
    second, others = weights(-150, middle - 10)
    (hits,) = np.nonzero(first[best] + second == total)
    return np.stack([keys[best], others[hits[0]]])


BELOW = np.nextafter(np.float32(1), np.float32(0))


@pytest.mark.parametrize(("factor", "stays"), [(np.float32(1), True), (BELOW, False)])
def test_accumulators_at_the_flush_threshold(factor: np.float32, stays: bool) -> None:
    """A weighted sum of -2**-48 stays, one just above it becomes +0 (contract E2). What stays is too small
    for fp16, but negative: it becomes -0."""
    query = np.zeros((1, 1, 8), np.float16)
    query[..., :2] = 1
    key, value = np.zeros((2, 1, 1, 3, 8), np.float16)
    key[0, 0, 1:] = keys_with_weights(np.float32(2.0**-24) * factor)
    value[0, 0, 1:] = -(2.0**-24)
    tensors = Attention(query, key, value, np.array([3]))
    assert np.signbit(exact.dense_attention(*tensors.qkv)).all() == stays
    check_attention(tensors, 16, dict(rank=8, top_k=2))


@pytest.mark.parametrize(("factor", "stays"), [(np.float32(1), True), (BELOW, False)])
def test_alpha_at_the_flush_threshold(factor: np.float32, stays: bool) -> None:
    """A share of 2**-48 stays, one just below it becomes 0: the result is alpha times -1, and a mean of 0."""
    query = np.zeros((1, 1, 8), np.float16)
    query[..., :2] = 1
    key, value = np.zeros((2, 1, 1, 3, 8), np.float16)
    key[0, 0, 1:] = keys_with_weights(np.float32(2.0**-48) * factor)
    value[0, 0, 0], value[0, 0, 1:] = 2, -1
    tensors = Attention(query, key, value, np.array([3]))
    settings = SparqSettings(rank=8, top_k=2, n_local=2)  # the last two, whatever their weights
    steps = exact.sparq_steps(*tensors.qkv, settings)
    assert (steps.alpha > 0).all() == stays and np.signbit(steps.output).all() == stays
    check_attention(tensors, 16, settings.arguments())


def test_all_selected_is_dense(isa: str) -> None:
    tensors = make_attention(np.random.default_rng(5), batch=2, seq_len=130, group_size=3)
    cache = filled_cache(tensors, isa=isa)
    sparq = sparq_attention(tensors.query, cache, rank=1, top_k=130)
    assert_bits(sparq, dense_attention(tensors.query, cache), isa)


@pytest.mark.parametrize("head_dim", [8, 40, 64, 128])
def test_every_number_in_8_bits(isa: str, head_dim: int) -> None:
    """Any finite fp16 numbers beside one another, and groups of one size from the smallest to the largest."""
    finite = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.random.default_rng(head_dim).permutation(finite[np.isfinite(finite)])
    sizes = finite[: finite.size // 16 * 16 // head_dim * head_dim].reshape(-1, head_dim)
    scaled = np.ldexp(sizes.astype(np.float32) / 65504, np.arange(len(sizes))[:, None] % 42 - 25)
    rows = np.concatenate([sizes, scaled.astype(np.float16)])[None, None]
    cache = KVCache(1, 1, head_dim, rows.shape[2], device="cpu", isa=isa, row_bits=8)
    cache.append(rows, -rows)
    for got, given_ in zip(cache.read(), (rows, -rows)):
        assert_bits(got, row_codes.round_rows(given_, 8), isa)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_memory_of_rows(head_dim: int) -> None:
    """Rows of 8 bits are codes and scales: that is what is allocated, and what their numbers take."""

    def taken(row_bits: int) -> tuple[int, int]:
        before = resident()
        cache = KVCache(1, 4, head_dim, 16384, device="cpu", index_bits=2, row_bits=row_bits)
        rows = np.ones((1, 4, 4096, head_dim), np.float16)
        for _ in range(4):
            cache.append(rows, rows)
        backend = cache._backends[0]
        return backend.n_bytes - backend.key_index_bytes, resident() - before

    counted, used = zip(taken(16), taken(8))
    assert counted == tuple(4 * 16384 * transfers.row_bytes(head_dim, bits) for bits in (16, 8))
    assert counted[1] / counted[0] < {64: 0.57, 80: 0.58, 128: 0.57}[head_dim]
    saved = counted[0] - counted[1]
    assert abs(used[0] - used[1] - saved) < saved / 4 + 4e6


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("head_dim", [8, 40, 128])
def test_rows_of_8_bits(isa: str, head_dim: int) -> None:
    """Rounded as the reference rounds them, in one call or one by one, and of any strides."""
    rng = np.random.default_rng(head_dim)
    key, value = (rng.standard_normal((2, 2, 3, 90, head_dim)) * 30).astype(np.float16)
    options = dict(capacity=100, isa=isa, index_bits=4, row_bits=8)
    sizes = dict(batch=2, n_kv_heads=3, head_dim=head_dim)
    at_once = KVCache(**sizes, **options, device="cpu")
    at_once.append(key, value)
    one_by_one = KVCache(**sizes, **options, device="cpu")
    for i in range(90):
        turned = (
            np.ascontiguousarray(x[:, :, i : i + 1].swapaxes(1, 3)).swapaxes(1, 3) for x in (key, value)
        )
        one_by_one.append(*turned)
    query = rng.standard_normal((2, 6, head_dim)).astype(np.float16)
    expected = exact.sparq_attention(
        query, *(row_codes.round_rows(x, 8) for x in (key, value)), rank=5, top_k=9, index_bits=4
    )
    assert "index_bits=4, row_bits=8, device='cpu'" in repr(at_once)
    for cache in (at_once, one_by_one):
        assert_bits(sparq_attention(query, cache, rank=5, top_k=9), expected, isa)
        for got, given_ in zip(cache.read(), (key, value)):
            assert_bits(got, row_codes.round_rows(given_, 8), isa)
