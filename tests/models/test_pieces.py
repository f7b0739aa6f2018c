# SPDX-License-Identifier: Apache-2.0
"""Attention and products of pieces of prompts: right, and the same bits wherever a prompt is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sparq_ipu._cpu")

from sparq_ipu.serve.pieces import BLOCK, CELL, attend_piece  # noqa: E402
from sparq_ipu.serve.products import FixedRows  # noqa: E402
from sparq_ipu.transformers.decoder.few_bits import Int4Linear, JoinedLinear  # noqa: E402

#: a result of so many bits, of probabilities of so many bits; of two parts, each rounded
TOLERANCES = {"float32": 2e-6, "bfloat16": 1.5e-2, "float16": 2e-3}


def text(n_tokens: int, n_heads: int, n_kv_heads: int, dtype: str) -> list:
    generator = torch.Generator().manual_seed(n_tokens)
    shapes = [(1, n, n_tokens, 32) for n in (n_heads, n_kv_heads, n_kv_heads)]
    return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]


def attended(query: Any, key: Any, value: Any, begin: int, end: int) -> Any:
    # queries as models have them: the heads of a token are together
    query = query[:, :, begin:end].transpose(1, 2).contiguous().transpose(1, 2)
    return attend_piece(query, key[:, :, :end], value[:, :, :end], 0.2)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n_heads, n_kv_heads", [(6, 2), (3, 3)])
def test_it_is_causal_attention(n_heads: int, n_kv_heads: int, dtype: str) -> None:
    held, n_tokens = BLOCK + CELL, 2 * BLOCK + CELL + 50
    query, key, value = text(n_tokens, n_heads, n_kv_heads, dtype)
    output = attended(query, key, value, held, n_tokens)
    query, key, value = (x[0].double().numpy() for x in (query[:, :, held:], key, value))
    key, value = (x.repeat(n_heads // n_kv_heads, 0) for x in (key, value))
    scores = 0.2 * query @ key.swapaxes(1, 2)
    later = np.arange(n_tokens) > np.arange(held, n_tokens)[:, None]
    mass = np.where(later, 0.0, np.exp(scores))
    expected = (mass / mass.sum(-1, keepdims=True)) @ value
    assert output.dtype == getattr(torch, dtype)
    np.testing.assert_allclose(output[0].double(), expected.swapaxes(0, 1), atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_has_the_same_bits_in_any_pieces(dtype: str) -> None:
    cuts = [(0, 13), (0, 1, 7, 9, 13), (0, 8, 13), tuple(range(14))]
    tokens = text(13 * CELL, 6, 2, dtype)
    whole, *others = (
        torch.cat([attended(*tokens, a * CELL, b * CELL) for a, b in zip(cut, cut[1:])], 1) for cut in cuts
    )
    for other in others:
        assert torch.equal(whole, other)


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


def test_weights_of_few_bits_are_multiplied_together() -> None:
    """As in lean steps, and prompts by weights made bfloat16, so many rows at a time."""
    modules = {name: Int4Linear(torch.nn.Linear(192, 64).bfloat16()) for name in ("gate", "up")}
    joined = JoinedLinear(modules, ["gate", "up"])
    products = FixedRows(torch.nn.ModuleDict(modules))
    assert joined.unchanged()
    rows = torch.randn(1, 300, 192, generator=torch.Generator().manual_seed(1)).bfloat16()
    layer = modules["gate"]
    with torch.inference_mode():
        products.n_rows = 32
        assert torch.equal(layer(rows), layer.product(rows))
        products.n_rows = CELL
        alone = torch.cat([layer(part) for part in rows[:, : 2 * CELL].split(CELL, 1)], 1)
        assert torch.equal(layer(rows)[:, : 2 * CELL], alone)
    products.undo()
    assert "many_rows" not in vars(layer)
