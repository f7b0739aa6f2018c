# SPDX-License-Identifier: Apache-2.0
"""Rows of 8 bits: attention over rows as a cache holds them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sparq_reference import row_codes
from sparq_study import traces
from sparq_study.accuracy.methods import Span, parse_method

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_steps.npz"


def span_of(trace: traces.Trace, layer: int, first: int = 0, n: int = 4) -> Span:
    """The steps `first` .. of a layer."""
    arrays, end = trace.layers[layer], trace.start + first + n
    query = torch.tensor(arrays.query[first : first + n].astype(np.float32)).transpose(0, 1)
    query = query.reshape(trace.n_kv_heads, -1, n, trace.head_dim)
    key, value = (torch.tensor(x[:, :end].astype(np.float32)) for x in (arrays.key, arrays.value))
    return Span(query, key, value, layer, trace.head_dim**-0.5)


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


def test_steps_one_by_one_are_the_same():
    trace = traces.load(REAL)
    method = parse_method("sparq:k=64,mean_from=1,index_bits=4,rows=int8")
    together = method.attend(span_of(trace, 20, first=60))
    for i in range(4):
        alone = method.attend(span_of(trace, 20, first=60 + i, n=1))
        torch.testing.assert_close(alone[:, :, 0], together[:, :, i], atol=2e-5, rtol=0)


def test_options_and_transfer():
    plain = parse_method("sparq:k=10,index_bits=4").transfer(1000, 64)
    of_kernels = parse_method("sparq:k=10,index_bits=4,rows=int8").transfer(1000, 64)
    assert of_kernels == plain - 10 * 64 + 10 * 2 * 4  # groups of 16 of 64 components
    message = "sparq: rows must be one of fp16, int8, got 'int4'"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        parse_method("sparq:rows=int4")
    assert str(parse_method("sparq:rows=int8")) == "sparq:rows=int8"
