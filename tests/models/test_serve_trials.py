# SPDX-License-Identifier: Apache-2.0
"""Products of the server: the same bits wherever a prompt is cut. What it tries once of PyTorch's routines
is whether they add in one order, however many rows there are; here routines stand in for them whose order is
known."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import torch

from sparq_ipu.serve.products import FixedRows
from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear, JoinedLinear
from sparq_ipu.transformers.decoder.weights import ROWS as CELL

DTYPES = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_have_the_same_bits_with_any_number_of_rows(dtype: str, bias: bool) -> None:
    """Of shapes, some of which PyTorch multiplies otherwise when there are more rows."""
    shapes = [(576, 192), (1536, 576), (576, 1536)]
    for n_in, n_out in shapes:
        layer = torch.nn.Linear(n_in, n_out, bias).to(getattr(torch, dtype))
        rows = torch.randn(1, 700, n_in, generator=torch.Generator().manual_seed(1)).to(layer.weight.dtype)
        products = FixedRows(layer)
        products.n_rows = CELL
        with torch.inference_mode():
            alone = torch.cat([layer(part) for part in rows.split(CELL, 1)], 1)
            assert torch.equal(layer(rows), alone), (n_in, n_out)
            for n_filled in (8, 32):
                products.n_rows = n_filled
                filled = layer(rows[:, :n_filled])
                for n in range(1, n_filled):
                    assert torch.equal(layer(rows[:, :n]), filled[:, :n]), (n_in, n_out, n)
        products.undo()
        with torch.inference_mode():
            torch.testing.assert_close(layer(rows), alone, rtol=0.02, atol=0.02)


def test_weights_of_few_bits_are_left_alone() -> None:
    pytest.importorskip("sparq_ipu._cpu")
    modules = {name: FewBitsLinear(torch.nn.Linear(192, 64).bfloat16(), 4) for name in ("gate", "up")}
    joined = JoinedLinear(modules, ["gate", "up"])
    products = FixedRows(torch.nn.ModuleDict(modules))
    assert joined.unchanged()
    rows = torch.randn(1, 300, 192, generator=torch.Generator().manual_seed(1)).bfloat16()
    layer = modules["gate"]
    with torch.inference_mode():
        together = layer(rows)
        products.n_rows = CELL
        assert torch.equal(torch.cat([layer(part) for part in rows.split(7, 1)], 1), together)


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
