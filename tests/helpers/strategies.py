# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies shared by all tests, named after what they draw.

Shapes are drawn, contents are made from a drawn seed and a named kind, so that examples stay small to draw
and to shrink. Sizes sit around the widths of the contract: lanes of 8, blocks of 64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from sparq_reference import SparqSettings, checks

#: sequence lengths around the lanes, the blocks and two blocks
SEQ_LENS = (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 257)
#: head sizes of real models, and the smallest two
HEAD_DIMS = (8, 16, 64, 80, 96, 128, 256)
GROUP_SIZES = (1, 2, 3, 4, 8)
#: kinds of contents `tensors` knows
KINDS = ("normal", "heavy_tailed", "constant", "one_hot", "huge", "tiny", "wide", "ties", "sparse", "offset")

HALF_MAX = 65504.0
HALF_TINY = 2.0**-24  #: smallest fp16 denormal


def fewer(share: int, least: int = 8) -> settings:
    """For a test whose examples take long: one in `share` of those that the profile asks for, and at least
    `least`, of which a profile with few examples has a part."""
    asked = settings().max_examples
    return settings(max_examples=max(asked // share, -(-least * min(asked, 25) // 25)))


def half(x: np.ndarray) -> np.ndarray:
    """Round to float16, saturating; to a denormal or zero without a warning."""
    with np.errstate(under="ignore"):
        return np.clip(x, -HALF_MAX, HALF_MAX).astype(np.float16)


def tensors(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A finite float16 tensor of one of KINDS.

    normal        N(0, 1)
    heavy_tailed  Student t, two degrees of freedom: a few components dominate, as in real queries
    constant      one number everywhere
    one_hot       zeros (of both signs) and a single nonzero component in each row
    huge          +-65504 and its neighbourhood: sums, products and outputs at the top of fp16
    tiny          fp16 denormals and zeros: products down to 2**-48
    wide          magnitudes all over fp16, 2**-24 to 2**15: sums that round at every step
    ties          few distinct values: equal sums, equal scores
    sparse        normal, most components zero
    offset        components far from 0, each within a narrow range, as the largest components of real keys
    """
    if kind == "normal":
        x = rng.standard_normal(shape)
    elif kind == "heavy_tailed":
        x = rng.standard_t(2, shape)
    elif kind == "constant":
        x = np.full(shape, rng.standard_normal())
    elif kind == "one_hot":
        x = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
        hot = rng.integers(shape[-1], size=(*shape[:-1], 1))
        np.put_along_axis(x, hot, rng.choice([-4.0, 4.0]), axis=-1)
    elif kind == "huge":
        x = rng.choice([-1.0, 1.0], shape) * rng.choice([HALF_MAX, HALF_MAX - 32, HALF_MAX / 2], shape)
    elif kind == "tiny":
        x = rng.integers(-1024, 1025, shape) * HALF_TINY
    elif kind == "wide":
        x = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-24, 15, shape)
    elif kind == "ties":
        x = rng.integers(-2, 3, shape) / 2.0
    elif kind == "sparse":
        x = rng.standard_normal(shape) * (rng.random(shape) < 0.1)
    elif kind == "offset":
        x = 16 * rng.standard_normal(shape[-1:]) + 0.125 * rng.standard_normal(shape)
    else:
        raise ValueError(f"tensors: kind must be one of {KINDS}, got {kind!r}")
    return half(x)


class Attention(NamedTuple):
    """Tensors of one attention call; positions at or beyond a length hold NaN."""

    query: np.ndarray  #: (batch, n_heads, head_dim) float16
    key: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim) float16
    value: np.ndarray  #: (batch, n_kv_heads, seq_len, head_dim) float16
    lengths: np.ndarray  #: (batch,) int64

    @property
    def qkv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The three tensors, in the order every function takes them."""
        return self.query, self.key, self.value


def make_attention(
    rng: np.random.Generator,
    *,
    batch: int = 1,
    n_kv_heads: int = 1,
    group_size: int = 1,
    seq_len: int = 64,
    head_dim: int = 64,
    lengths: np.ndarray | None = None,
    kinds: tuple[str, str, str] = ("normal", "normal", "normal"),
) -> Attention:
    """Tensors of the given sizes; `kinds` are those of query, key and value."""
    query = tensors(kinds[0], (batch, n_kv_heads * group_size, head_dim), rng)
    key = tensors(kinds[1], (batch, n_kv_heads, seq_len, head_dim), rng)
    value = tensors(kinds[2], (batch, n_kv_heads, seq_len, head_dim), rng)
    lengths = np.full(batch, seq_len, np.int64) if lengths is None else np.asarray(lengths, np.int64)
    for b, length in enumerate(lengths):
        key[b, :, length:] = np.nan
        value[b, :, length:] = np.nan
    return Attention(query, key, value, lengths)


@st.composite
def lengths_of_batch(
    draw: st.DrawFn, batch: int, seq_len: int, shorter: st.SearchStrategy[int] | None = None
) -> np.ndarray:
    """(batch,) lengths. One element, any of them, is seq_len long; the others are drawn from `shorter`."""
    others = st.integers(1, seq_len) if shorter is None else shorter
    lengths = [draw(others) for _ in range(batch - 1)]
    lengths.insert(draw(st.integers(0, batch - 1)), seq_len)
    return np.array(lengths, np.int64)


@st.composite
def attentions(
    draw: st.DrawFn,
    *,
    batches: tuple[int, ...] = (1, 2, 3),
    kinds: tuple[str, ...] = KINDS,
    head_dims: tuple[int, ...] = HEAD_DIMS,
    seq_lens: tuple[int, ...] = SEQ_LENS,
) -> Attention:
    """Tensors of one attention call, with a length per batch element."""
    batch = draw(st.sampled_from(batches))
    seq_len = draw(st.sampled_from(seq_lens))
    shorter = st.sampled_from([n for n in seq_lens if n <= seq_len])
    return make_attention(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        batch=batch,
        n_kv_heads=draw(st.sampled_from((1, 2, 3))),
        group_size=draw(st.sampled_from(GROUP_SIZES)),
        seq_len=seq_len,
        head_dim=draw(st.sampled_from(head_dims)),
        lengths=draw(lengths_of_batch(batch, seq_len, shorter)),
        kinds=(draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds))),
    )


#: bits of a number of the key index
index_bits = st.sampled_from(checks.INDEX_BITS)


@st.composite
def sparq_settings(draw: st.DrawFn, attention: Attention) -> SparqSettings:
    """Valid settings for `attention`, at and between their limits; top_k also beyond the sequence."""
    head_dim, seq_len = attention.query.shape[-1], attention.key.shape[2]
    rank = draw(st.sampled_from((1, 2, head_dim // 4, head_dim - 1, head_dim)))
    top_k = draw(
        st.sampled_from([k for k in (1, 2, 8, 63, 64, 65, seq_len - 1, seq_len, seq_len + 1) if k > 0])
    )
    n_local = draw(st.sampled_from([n for n in (0, 1, top_k // 4, top_k - 1, top_k) if n >= 0]))
    return SparqSettings(rank, top_k, n_local, draw(st.booleans()))
