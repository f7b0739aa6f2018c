# SPDX-License-Identifier: Apache-2.0
"""Prompt attention on a CPU: the bits of the reference on every instruction set, any threads, any layout."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

import sparq_ipu
from sparq_reference import NotFinite, prompt

_cpu = pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")
ISAS = ("portable", "avx2", "avx512", "avx512vnni")


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16 if x.dtype == np.float16 else np.uint32)


@pytest.mark.parametrize("isa", ISAS)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(strategies.KINDS),
    heads=st.sampled_from(((1, 1), (4, 2), (3, 1), (7, 1))),
    d=st.sampled_from((8, 24, *strategies.HEAD_DIMS)),
    m=st.sampled_from((1, 5, 47, 48, 49, 64, 65, 129, 200)),
    share=st.floats(0, 1),
    n_threads=st.integers(1, 3),
    dtype=st.sampled_from((np.float32, np.float16)),
)
def test_bits_of_the_reference(isa, seed, kind, heads, d, m, share, n_threads, dtype) -> None:
    if isa not in _cpu.available_isas():
        pytest.skip(f"this processor lacks {isa}")
    n = max(1, round(m * share))
    rng = np.random.default_rng(seed)
    # by token, then by head: as projections of a model write them
    query, key, value = (
        strategies.tensors(kind, (2, length, count, d), rng).astype(dtype).swapaxes(1, 2)
        for length, count in ((n, heads[0]), (m, heads[1]), (m, heads[1]))
    )
    got = sparq_ipu.prompt_attention(query, key, value, n_threads=n_threads, isa=isa)
    assert np.array_equal(bits(got), bits(prompt.prompt_attention(query, key, value)))


def test_pieces_of_a_longer_text() -> None:
    """Random cuts of 700 positions, on random instruction sets and threads."""
    rng = np.random.default_rng(0)
    shapes = ((1, 3, 700, 64), (1, 1, 700, 64), (1, 1, 700, 64))
    query, key, value = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    whole = sparq_ipu.prompt_attention(query, key, value)
    for _ in range(60):
        begin = int(rng.integers(700))
        end = int(rng.integers(begin + 1, 701))
        piece = sparq_ipu.prompt_attention(
            query[:, :, begin:end],
            key[:, :, :end],
            value[:, :, :end],
            n_threads=int(rng.integers(1, 5)),
            isa=str(rng.choice(_cpu.available_isas())),
        )
        assert np.array_equal(bits(piece), bits(whole[:, begin:end])), (begin, end)


def test_scale_changes_the_result_as_in_the_reference() -> None:
    rng = np.random.default_rng(2)
    query, key, value = (rng.standard_normal((1, 1, 9, 16)).astype(np.float32) for _ in range(3))
    got = sparq_ipu.prompt_attention(query, key, value, scale=0.3)
    assert np.array_equal(bits(got), bits(prompt.prompt_attention(query, key, value, scale=0.3)))
    assert not np.array_equal(got, sparq_ipu.prompt_attention(query, key, value))


def test_refusals() -> None:
    x = np.zeros((1, 1, 4, 8), np.float32)
    for name in ("query", "key", "value"):
        bad = x.copy()
        bad[0, 0, 1, 2] = np.nan
        arguments = {**dict(query=x, key=x, value=x), name: bad}
        with pytest.raises(NotFinite, match=f"^prompt_attention: {name} must be finite, got nan"):
            sparq_ipu.prompt_attention(**arguments)
    with pytest.raises(ValueError, match="n_threads must"):
        sparq_ipu.prompt_attention(x, x, x, n_threads=-1)
    with pytest.raises(ValueError, match="isa must"):
        sparq_ipu.prompt_attention(x, x, x, isa="mmx")
