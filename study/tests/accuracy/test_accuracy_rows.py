# SPDX-License-Identifier: Apache-2.0
"""Rows of 8 bits: the rules of rows.py, number by number in NumPy, and the attention that uses them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sparq_reference import key_index, row_codes
from sparq_study import traces
from sparq_study.accuracy.methods import Dense, Span, parse_method
from sparq_study.accuracy.methods.rows import round_blocks, round_rows

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_steps.npz"
F32 = np.float32


def half(x: F32) -> F32:
    """The nearest float16, saturated."""
    return F32(np.float16(np.clip(x, F32(-65504), F32(65504))))


def slow_row(row: np.ndarray) -> list[float]:
    """Rule "int8_row" for one row of float16 numbers."""
    numbers = [F32(x) for x in row]
    scale = half(max(abs(x) for x in numbers) * (F32(1) / F32(127)))
    if scale == 0:
        return [0.0] * len(numbers)
    inverse = F32(1) / scale
    codes = [min(127, max(-127, int(np.rint(x * inverse)))) for x in numbers]
    return [float(half(F32(code) * scale)) for code in codes]


def slow_blocks(key: np.ndarray, bits: int) -> np.ndarray:
    """Rule "int8_block" for one KV head, with the reference's low and step: (n, head_dim) float16."""
    n_full = len(key) // 64 * 64
    index = key_index.quantise(np.ascontiguousarray(key[:n_full].T), bits)
    out = np.empty((n_full, key.shape[1]), np.float32)
    for position in range(n_full):
        for component in range(key.shape[1]):
            low = F32(index.low[component, position // 64])
            fine = F32(index.step[component, position // 64]) * (F32(1) / F32(255 / (2**bits - 1)))
            code = F32(0)
            if fine != 0:
                inverse = F32(1) / fine
                code = F32(min(255, max(0, int(np.rint((F32(key[position, component]) - low) * inverse)))))
            out[position, component] = half(low + fine * code)
    return out


def inputs(kind: str) -> np.ndarray:
    """(2, 130, 16) float16."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 130, 16))
    factor = {"tiny": 2.0**-16, "huge": 3e4, "nothing": 0.0}.get(kind, 1.0)
    x = np.clip(x * factor, -65504, 65504)
    if kind == "equal":
        x[:] = x[:, :1]
    if kind == "offset":
        x += 20
    return x.astype(np.float16)


KINDS = ("normal", "tiny", "huge", "nothing", "equal", "offset")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_rounded_by_the_rule(kind):
    x = inputs(kind)
    got = round_rows(torch.tensor(x.astype(np.float32))).numpy()
    expected = np.array([[slow_row(row) for row in head] for head in x], np.float32)
    np.testing.assert_array_equal(got, expected)
    if kind != "tiny":  # there the scale is rounded to few bits itself
        largest = np.abs(x.astype(np.float32)).max(-1, keepdims=True)
        assert (
            np.abs(got - x) <= largest * (1 / 254 + 2**-10)
        ).all()  # half a step, two roundings to float16


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_rounded_by_the_rule(kind, bits):
    x = inputs(kind)
    got = round_blocks(torch.tensor(x.astype(np.float32)), bits).numpy()
    np.testing.assert_array_equal(got, [slow_blocks(head, bits) for head in x])
    assert got.shape == (2, 128, 16)
    blocks = x[:, :128].astype(np.float64).reshape(2, 2, 64, 16)
    width = (blocks.max(2) - blocks.min(2)).repeat(64, 1).reshape(2, 128, 16)
    if kind != "tiny":  # there low and step are rounded to few bits themselves
        error = np.abs(got - x[:, :128].astype(np.float64))
        assert (error <= width / 510 * 1.2 + np.abs(x[:, :128].astype(np.float64)) * 2**-11).all()


def span_of(trace: traces.Trace, layer: int, first: int = 0, n: int = 4) -> Span:
    """The steps `first` .. of a layer."""
    arrays, end = trace.layers[layer], trace.start + first + n
    query = torch.tensor(arrays.query[first : first + n].astype(np.float32)).transpose(0, 1)
    query = query.reshape(trace.n_kv_heads, -1, n, trace.head_dim)
    key, value = (torch.tensor(x[:, :end].astype(np.float32)) for x in (arrays.key, arrays.value))
    return Span(query, key, value, layer, trace.head_dim**-0.5)


@pytest.mark.parametrize("rows", ["int8_row", "int8_block"])
def test_attention_is_that_of_the_rounded_rows(rows):
    """Of the positions that are selected in any case, in float64, query by query; 576 positions end a block
    in the last step, so before it the rows of that block have not been rounded."""
    trace = traces.load(REAL)
    method = parse_method(f"sparq:k=64,mean_from=-1,index_bits=4,rows={rows}")
    span = span_of(trace, 20, first=60)
    got = method.attend(span).numpy()
    selected, _ = method.select(span)
    plain, _ = dataclasses.replace(method, rows="fp16").select(span)
    assert (selected == plain).all()
    for i in range(span.n_queries):
        n = span.first + i + 1
        key, value = span.key.numpy(), round_rows(span.value).numpy().astype(np.float64)
        if rows == "int8_row":
            key = round_rows(span.key).numpy()
        else:
            full = n // 64 * 64
            key = np.concatenate([round_blocks(span.key[:, :full], 4).numpy(), key[:, full:]], axis=1)
        for kv in range(trace.n_kv_heads):
            at = np.flatnonzero(selected[kv, i].numpy())
            for g in range(got.shape[1]):
                scores = key[kv, at].astype(np.float64) @ span.query[kv, g, i].numpy() * span.scale
                weights = np.exp(scores - scores.max())
                expected = weights @ value[kv, at] / weights.sum()
                np.testing.assert_allclose(got[kv, g, i], expected, atol=2e-5)


def test_rows_of_the_kernels():
    """Everything is made from the rounded rows; and rounding them is seen."""
    trace = traces.load(REAL)
    span = span_of(trace, 20, first=60)
    rounded = {
        name: torch.tensor(
            row_codes.decode(row_codes.encode(getattr(span, name).numpy().astype(np.float16))).astype(
                np.float32
            )
        )
        for name in ("key", "value")
    }
    text = "sparq:k=64,mean_from=1,index_bits=4"
    got = parse_method(f"{text},rows=int8").attend(span)
    assert torch.equal(got, parse_method(text).attend(dataclasses.replace(span, **rounded)))
    assert not torch.equal(got, parse_method(text).attend(span))


@pytest.mark.parametrize("rows", ["int8", "int8_row", "int8_block"])
def test_steps_one_by_one_are_the_same(rows):
    trace = traces.load(REAL)
    method = parse_method(f"sparq:k=64,mean_from=1,index_bits=4,rows={rows}")
    together = method.attend(span_of(trace, 20, first=60))
    for i in range(4):
        alone = method.attend(span_of(trace, 20, first=60 + i, n=1))
        torch.testing.assert_close(alone[:, :, 0], together[:, :, i], atol=2e-5, rtol=0)


def test_blocks_are_nearer_than_rows():
    """On real keys and values; and both are near: a small part of what the selection changes."""
    trace = traces.load(REAL)
    for layer in trace.layer_numbers:
        span = span_of(trace, layer, n=16)
        text = "sparq:k=64,mean_from=-1,index_bits=4"
        plain = parse_method(text).attend(span)
        of_selection = (plain - Dense().attend(span)).norm()
        by_row, by_block = (
            (parse_method(f"{text},rows={rows}").attend(span) - plain).norm()
            for rows in ("int8_row", "int8_block")
        )
        assert 0 < by_block < by_row / 1.5 and by_row < of_selection / 4


def test_options_and_transfer():
    plain = parse_method("sparq:k=10,index_bits=4").transfer(1000, 64)
    by_row, by_block = (
        parse_method(f"sparq:k=10,index_bits=4,rows={rows}").transfer(1000, 64)
        for rows in ("int8_row", "int8_block")
    )
    assert by_row == plain - 10 * 64 + 20 and by_block == plain - 10 * 64 + 10
    of_kernels = parse_method("sparq:k=10,index_bits=4,rows=int8").transfer(1000, 64)
    assert of_kernels == plain - 10 * 64 + 10 * 2 * 4  # groups of 16 of 64 components
    for text, message in (
        ("sparq:rows=int4", "sparq: rows must be one of fp16, int8, int8_row, int8_block, got 'int4'"),
        ("sparq:rows=int8_block", "sparq: rows must not be int8_block without a key index, got 'int8_blo"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            parse_method(text)
    assert str(parse_method("sparq:rows=int8_row")) == "sparq:rows=int8_row"
