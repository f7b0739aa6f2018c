# SPDX-License-Identifier: Apache-2.0
"""Prompt attention on a CPU: the bits of the reference on every instruction set, any threads, any layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import strategies
from bits import bits_of
from hypothesis import example, given
from hypothesis import strategies as st

import sparq_ipu
from sparq_reference import NotFinite, prompt

_cpu = pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")


def assert_bits_of_each_isa(query, key, value, n_threads, settings: Any) -> None:
    """Those of the reference, on each instruction set that this processor has."""
    expected = bits_of(prompt.prompt_attention(query, key, value, **settings))
    for isa in _cpu.available_isas():
        got = sparq_ipu.prompt_attention(query, key, value, n_threads=n_threads, isa=isa, **settings)
        assert np.array_equal(bits_of(got), expected), isa


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(strategies.KINDS),
    heads=st.sampled_from(((1, 1), (4, 2), (3, 1), (7, 1))),
    d=st.sampled_from((8, 24, *strategies.HEAD_DIMS)),
    m=st.sampled_from((1, 5, 47, 48, 49, 64, 65, 129, 200)),
    share=st.floats(0, 1),
    n_threads=st.integers(1, 3),
    dtype=st.sampled_from((np.float32, np.float16)),
    integers=st.booleans(),
    window=st.sampled_from((0, 1, 30, 64, 100)),
    starts=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_bits_of_the_reference(
    seed, kind, heads, d, m, share, n_threads, dtype, integers, window, starts
) -> None:
    n = max(1, round(m * share))
    rng = np.random.default_rng(seed)
    # by token, then by head: as projections of a model write them
    query, key, value = (
        strategies.tensors(kind, (2, length, count, d), rng).astype(dtype).swapaxes(1, 2)
        for length, count in ((n, heads[0]), (m, heads[1]), (m, heads[1]))
    )
    settings: Any = dict(integers=integers, window=window)
    if starts is not None:
        settings["starts"] = [round(m * share) for share in starts]
    assert_bits_of_each_isa(query, key, value, n_threads, settings)


#: of E16: from no block left out to most
SHARES = (2.0**-30, 0.001, 0.01, 0.1, 0.5)


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(strategies.KINDS),
    heads=st.sampled_from(((1, 1), (3, 1), (4, 2))),
    d=st.sampled_from((8, 24, 64, 136, 256)),
    m=st.sampled_from((191, 256, 257, 500, 700, 64 * 70 + 1)),
    n=st.integers(1, 130),
    n_threads=st.integers(1, 3),
    dtype=st.sampled_from((np.float32, np.float16)),
    integers=st.booleans(),
    blocks=st.sampled_from(SHARES),
    n_last=st.integers(0, 200),
    start=st.integers(0, 70),
    has_apart=st.booleans(),
)
@example(0, "normal", (3, 1), 64, 700, 130, 2, np.float32, True, 0.1, 130, 0, False)
@example(0, "normal", (3, 1), 64, 700, 130, 2, np.float32, False, 0.1, 130, 0, False)
@example(0, "normal", (3, 1), 64, 700, 130, 2, np.float32, True, 0.1, 60, 0, False)
@example(2, "normal", (3, 1), 64, 700, 130, 2, np.float32, True, 0.1, 130, 0, True)
@example(2, "normal", (3, 1), 64, 700, 130, 2, np.float32, False, 0.1, 130, 0, True)
@example(0, "normal", (1, 1), 8, 64 * 70 + 1, 50, 2, np.float32, True, 0.1, 50, 0, False)
@example(0, "normal", (1, 1), 8, 64 * 70 + 1, 50, 2, np.float32, False, 0.01, 50, 0, False)
def test_blocks_have_the_bits_of_the_reference(
    seed, kind, heads, d, m, n, n_threads, dtype, integers, blocks, n_last, start, has_apart
) -> None:
    """Of the last rows alone; some blocks have a key that stands apart, or two that do so equally."""
    rng = np.random.default_rng(seed)
    query, key, value = (
        strategies.tensors(kind, (1, length, count, d), rng).astype(dtype).swapaxes(1, 2)
        for length, count in ((n, heads[0]), (m, heads[1]), (m, heads[1]))
    )
    if has_apart:
        one = rng.standard_normal((1, heads[1], 1, d)).astype(dtype) * 8
        key = (key - 2).clip(-60000, 60000).astype(dtype)
        key[..., 1::2] = 0  # so is their mean, where two keys differ in their sign alone
        key[:, :, start + 7 :: 64] = one
        key[:, :, start + 40 :: 128] = one * np.resize([1, -1], d).astype(dtype)
    settings: Any = dict(integers=integers, blocks=blocks, starts=[start])
    settings["blocks_from"] = max(m - start - n_last, 0)
    assert_bits_of_each_isa(query, key, value, n_threads, settings)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("share", [0.0015, 0.02])
def test_blocks_whose_scores_deviate_have_the_bits_of_the_reference(integers: bool, share: float) -> None:
    """More than one group of lanes of blocks, with half variances on both sides of 2 and of 16 (E16)."""
    rng = np.random.default_rng(5)
    for size in (0.3, 0.6, 1.0, 1.5, 3.0):
        query, key, value = (size * rng.standard_normal((1, h, 1500, 64), np.float32) for h in (2, 1, 1))
        key = key + np.repeat(size * rng.standard_normal((1, 1, 24, 64), np.float32), 64, 2)[:, :, :1500]
        assert_bits_of_each_isa(query[:, :, -100:], key, value, 2, dict(integers=integers, blocks=share))


def cut(rng: np.random.Generator, n: int) -> list[slice]:
    """Random pieces of n tokens: some short, some long."""
    pieces, begin = [], 0
    while begin < n:
        most = int(rng.choice((1, 8, 64, 1024)))
        end = min(n, begin + int(rng.integers(1, most + 1)))
        pieces.append(slice(begin, end))
        begin = end
    return pieces


@given(seed=st.integers(0, 2**32 - 1))
def test_pieces_of_a_longer_text(seed: int) -> None:
    """In random cuts, on random instruction sets and threads, alone and in company: the same bits."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 1100)), int(rng.choice((8, 16, 64)))
    window, blocks = ((0, 0.0), (90, 0.0), (0, float(rng.choice(SHARES))))[rng.integers(3)]
    form: Any = dict(integers=bool(rng.integers(2)), window=window, blocks=blocks)
    form["blocks_from"] = int(rng.integers(0, n + 1))
    dtype = (np.float32, np.float16)[rng.integers(2)]
    query, key, value = (rng.standard_normal((1, h, n, d)).astype(dtype) for h in (3, 1, 1))
    whole = sparq_ipu.prompt_attention(query, key, value, **form)
    for piece in cut(rng, n):
        tensors = query[:, :, piece], key[:, :, : piece.stop], value[:, :, : piece.stop]
        n_padding = int(rng.integers(0, 100))
        if rng.integers(2):  # beside another text, which is longer
            tensors = tuple(beside_another(rng, x, n_padding) for x in tensors)
            form["starts"] = [0, n_padding]
        got = sparq_ipu.prompt_attention(
            *tensors, **form, n_threads=int(rng.integers(1, 9)), isa=str(rng.choice(_cpu.available_isas()))
        )
        form.pop("starts", None)
        got = got[-1:, -(piece.stop - piece.start) :]
        assert np.array_equal(bits_of(got), bits_of(whole[:, piece])), (piece, form)


def beside_another(rng: np.random.Generator, x: np.ndarray, n_padding: int) -> np.ndarray:
    """(1, heads, n, d) -> (2, heads, n_padding + n, d): the second element is x behind padding."""
    both = rng.standard_normal((2, x.shape[1], n_padding + x.shape[2], x.shape[3])).astype(x.dtype)
    both[1:, :, n_padding:] = x
    return both


def test_heads_that_are_packed_one_after_another() -> None:
    """More keys than are packed between two barriers: each head is as alone."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 3, n, 256)).astype(np.float32) for n in (3, 5000, 5000))
    for integers, blocks in itertools.product((False, True), (0.0, 0.01)):
        form: Any = dict(integers=integers, blocks=blocks, blocks_from=4999)
        got = sparq_ipu.prompt_attention(query, key, value, **form, n_threads=2)
        for head in range(3):
            one = slice(head, head + 1)
            alone = sparq_ipu.prompt_attention(query[:, one], key[:, one], value[:, one], **form)
            assert np.array_equal(bits_of(got[:, :, one]), bits_of(alone)), (form, head)


def test_control_a_cut_has_pieces_of_many_lengths() -> None:
    lengths = [p.stop - p.start for p in cut(np.random.default_rng(0), 20_000)]
    assert sum(lengths) == 20_000 and min(lengths) == 1 and max(lengths) > 800


def test_scale_changes_the_result_as_in_the_reference() -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.standard_normal((1, 1, 9, 16)).astype(np.float32) for _ in range(3))
    got = sparq_ipu.prompt_attention(query, key, value, scale=0.3)
    assert np.array_equal(bits_of(got), bits_of(prompt.prompt_attention(query, key, value, scale=0.3)))
    assert not np.array_equal(got, sparq_ipu.prompt_attention(query, key, value))


def test_refusals() -> None:
    x = np.zeros((1, 1, 4, 8), np.float32)
    for name in ("query", "key", "value"):
        bad = x.copy()
        bad[0, 0, 1, 2] = np.nan
        arguments = {**dict(query=x, key=x, value=x), name: bad}
        with pytest.raises(NotFinite, match=f"^prompt_attention: {name} must be finite, got nan"):
            sparq_ipu.prompt_attention(**arguments)
    with pytest.raises(ValueError, match="scale must be positive and finite, got nan"):
        sparq_ipu.prompt_attention(x, x, x, scale=float("nan"))
    with pytest.raises(ValueError, match="n_threads must"):
        sparq_ipu.prompt_attention(x, x, x, n_threads=-1)
    with pytest.raises(ValueError, match="isa must"):
        sparq_ipu.prompt_attention(x, x, x, isa="mmx")
