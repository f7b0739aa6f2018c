# SPDX-License-Identifier: Apache-2.0
"""Products with the weights, a fixed number of rows at a time.

PyTorch multiplies one row by other routines than a hundred, which add in another order. So the last bits of a
token's numbers would depend on how many other tokens are in the pass, and with them, where two tokens are
nearly equally likely, the text. In products that always have the same number of rows, each row has the same
bits whatever is in the others.

Layers with weights of few bits are left alone: their products have the same bits for any number of rows
(contract E15).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class FixedRows:
    """Makes the linear layers of a model multiply `n_rows` rows at a time, the last ones filled up.

    Args:
        model: whose layers are changed, until `undo`.
    """

    def __init__(self, model: torch.nn.Module):
        #: rows of one product
        self.n_rows = 1
        self._set: list[Any] = [module for module in model.modules() if type(module) is torch.nn.Linear]
        for module in self._set:
            module.forward = self._product_of(module)

    def undo(self) -> None:
        """The layers are as they were."""
        for module in self._set:
            del module.forward

    def _product_of(self, layer: torch.nn.Linear) -> Any:
        def product(input: torch.Tensor) -> torch.Tensor:
            rows = input.reshape(-1, input.shape[-1])
            n_tokens = len(rows)
            rows = F.pad(rows, (0, 0, 0, -n_tokens % self.n_rows))
            columns, output = layer.weight.t(), rows.new_empty(len(rows), layer.out_features)
            for part, out in zip(torch.split(rows, self.n_rows), torch.split(output, self.n_rows)):
                if layer.bias is None:
                    torch.mm(part, columns, out=out)
                else:
                    torch.addmm(layer.bias, part, columns, out=out)
            return output[:n_tokens].view(*input.shape[:-1], -1)

        return product
