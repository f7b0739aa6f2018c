# SPDX-License-Identifier: Apache-2.0
"""Products with the weights, a fixed number of rows at a time.

PyTorch multiplies one row otherwise than eight: by other routines, which add in another order. So the last
bits of a token's numbers depend on how many other tokens are in the pass, and with them, where two tokens are
all but equally likely, the text. Of products that always have the same number of rows, each row has the same
bits whatever is in the others; tests/models/test_serve_engine.py looks at that.

More rows take less time each, and many weights have shapes of which more rows have the same bits too. What is
added in which order does not depend on the numbers, so one product of each shape tells, if its bits show the
order. Those of most numbers do not: sums are rounded to bfloat16, and one in thousands comes out otherwise.
So the trial has sums of which nothing is left but what was rounded on the way.

Steps of few texts are filled up only where fewer rows have other bits. That is tried too, for each number of
rows.

Layers with weights of few bits are left alone: their products have the same bits for any number of rows
(contract E15).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

#: most rows of a step
_STEP_ROWS = 32
#: rows that are multiplied together where it changes no bit, the most first
_MORE_ROWS = (512, 256)


class FixedRows:
    """Makes the linear layers of a model multiply `n_rows` rows at a time, the last ones filled up.

    Args:
        model: whose layers are changed, until `undo`.
    """

    def __init__(self, model: torch.nn.Module):
        #: rows of one product
        self.n_rows = 1
        #: of a kind of product, as many rows as may be together
        self._most: dict[tuple[Any, ...], int] = {}
        #: of a kind of product, whether fewer rows have the same bits
        self._is_any: dict[tuple[Any, ...], bool] = {}
        self._set: list[Any] = [module for module in model.modules() if type(module) is torch.nn.Linear]
        for module in self._set:
            module.forward = self._product_of(module)

    def undo(self) -> None:
        """The layers are as they were."""
        for module in self._set:
            del module.forward

    def _product_of(self, layer: torch.nn.Linear) -> Any:
        def product(input: torch.Tensor) -> torch.Tensor:
            n = self.n_rows
            weight = layer.weight
            n_tokens = input.numel() // input.shape[-1]
            if n_tokens < n <= _STEP_ROWS and self._takes_any(n, weight, layer.bias):
                return F.linear(input, weight, layer.bias)
            rows = input.reshape(n_tokens, -1)
            if n_tokens % n:
                rows = F.pad(rows, (0, 0, 0, n - n_tokens % n))
            most = n if len(rows) < min(_MORE_ROWS) else self._most_rows(n, weight, layer.bias)
            output = _multiply(rows, weight, layer.bias, n, most)
            return output[:n_tokens].view(*input.shape[:-1], -1)

        return product

    def _takes_any(self, n: int, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether a product of fewer rows has the bits of `n`."""
        kind = _kind(n, weight, bias)
        if kind not in self._is_any:
            rows, weight, bias = _trial(n, weight, bias)
            filled = _multiply(rows, weight, bias, n, n)
            self._is_any[kind] = all(
                torch.equal(F.linear(rows[:few, None], weight, bias)[:, 0], filled[:few])
                for few in range(1, n)
            )
        return self._is_any[kind]

    def _most_rows(self, n: int, weight: torch.Tensor, bias: torch.Tensor | None) -> int:
        """How many rows of a product have the bits of `n`."""
        kind = _kind(n, weight, bias)
        if kind not in self._most:
            rows, weight, bias = _trial(max(_MORE_ROWS), weight, bias)
            few = _multiply(rows, weight, bias, n, n)
            fits = (m for m in _MORE_ROWS if torch.equal(_multiply(rows, weight, bias, n, m), few))
            self._most[kind] = next(fits, n)
        return self._most[kind]


def _kind(n: int, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Any, ...]:
    """What the order of additions follows from."""
    return n, weight.shape, weight.dtype, weight.data_ptr() % 64, bias is None


def _trial(
    n: int, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """`n` rows, weights laid out like these, and no bias, whose products are 0: of what is added there is a
    negative too, elsewhere. What comes out is what additions rounded off, which differs if their order does.
    """
    n_out, n_in = weight.shape
    size = weight.element_size()
    space = torch.empty(n_out * n_in + 64 // size, dtype=weight.dtype)
    begin = (weight.data_ptr() - space.data_ptr()) % 64 // size
    weights = space[begin : begin + n_out * n_in].view(n_out, n_in)
    rows = torch.zeros(n, n_in, dtype=weight.dtype)
    generator = torch.Generator().manual_seed(0)
    half = n_in // 2
    order = torch.randperm(half, generator=generator)
    for numbers, sign in ((weights, 1), (rows, -1)):
        numbers[:, :half].normal_(generator=generator)
        numbers[:, half : 2 * half] = sign * numbers[:, order]
        numbers[:, 2 * half :] = 0
    return rows, weights, None if bias is None else torch.zeros_like(bias)


def _multiply(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, n: int, most: int
) -> torch.Tensor:
    """`most` rows at a time, and `n` where fewer are left."""
    output = rows.new_empty(len(rows), len(weight))
    begin = 0
    while begin < len(rows):
        end = begin + (most if len(rows) - begin >= most else n)
        part, out = rows[begin:end], output[begin:end]
        if bias is None:
            torch.mm(part, weight.t(), out=out)
        else:
            torch.addmm(bias, part, weight.t(), out=out)
        begin = end
    return output
