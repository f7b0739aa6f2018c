# SPDX-License-Identifier: Apache-2.0
"""What the server tries once of PyTorch's routines: whether they add in one order, however many rows there
are. Here routines stand in for them whose order is known."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import torch

from sparq_ipu.serve.products import FixedRows

DTYPES = [torch.bfloat16, torch.float32]


def added(numbers: Any, is_other: bool) -> Any:
    """Sums in float32 over the last dimension, in one order or another."""
    order = list(range(numbers.shape[-1]))
    total = torch.zeros(numbers.shape[:-1])
    for at in order[::2] + order[1::2] if is_other else order:
        total = total + numbers[..., at]
    return total


def set_products(monkeypatch: Any, is_other: Any) -> None:
    """Products whose numbers are added in another order where `is_other(number of rows)`."""

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        rows = input.reshape(-1, input.shape[-1])
        sums = added(rows.float()[:, None] * weight.float(), is_other(len(rows)))
        return (sums if bias is None else sums + bias).to(input.dtype).view(*input.shape[:-1], -1)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(torch, "mm", lambda rows, columns, out: out.copy_(linear(rows, columns.T)))
    monkeypatch.setattr(
        torch, "addmm", lambda bias, rows, columns, out: out.copy_(linear(rows, columns.T, bias))
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_in, bias", [(96, None), (65, "bias")])
def test_fewer_rows_that_add_in_another_order_are_filled_up(
    monkeypatch: Any, dtype: Any, n_in: int, bias: Any
) -> None:
    weight = torch.randn(8, n_in).to(dtype)
    bias = bias and torch.randn(8).to(dtype)
    for is_other, takes_any in (
        (lambda n: n < 6, False),
        (lambda n: n == 31, False),
        (lambda n: False, True),
    ):
        set_products(monkeypatch, is_other)
        assert FixedRows(torch.nn.Identity())._takes_any(32, weight, bias) is takes_any


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limit, most", [(1000, 512), (300, 256), (200, 128)])
def test_more_rows_are_together_where_they_add_in_the_same_order(
    monkeypatch: Any, dtype: Any, limit: int, most: int
) -> None:
    set_products(monkeypatch, lambda n: n > limit)
    weight = torch.randn(4, 64).to(dtype)
    assert FixedRows(torch.nn.Identity())._most_rows(128, weight, None) == most
