# SPDX-License-Identifier: Apache-2.0
"""Products of pieces of prompts: the same bits wherever a prompt is cut."""

from __future__ import annotations

import pytest
from tiny_models import torch

from sparq_ipu.serve.products import FixedRows
from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear, JoinedLinear
from sparq_ipu.transformers.decoder.weights import ROWS as CELL

pytest.importorskip("sparq_ipu._cpu")


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
