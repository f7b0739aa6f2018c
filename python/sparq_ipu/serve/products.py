# SPDX-License-Identifier: Apache-2.0
"""Products with the weights, a fixed number of rows at a time.

PyTorch multiplies one row otherwise than eight: by other routines, which add in another order. So the last
bits of a token's numbers depend on how many other tokens are in the pass, and with them, where two tokens are
all but equally likely, the text. Of products that always have the same number of rows, each row has the same
bits whatever is in the others; tests/models/test_serve_engine.py looks at that.

The kernels for weights of few bits do each row alone, so steps need no filling up there. Prompts are
multiplied by weights made bfloat16, as by any others: made once for all rows of a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sparq_ipu.torch.few_bits import MOST_ROWS, FewBitsLinear


class FixedRows:
    """Makes the linear layers of a model multiply `n_rows` rows at a time, the last ones filled up.

    Args:
        model: whose layers are changed, until `undo`.
    """

    def __init__(self, model: torch.nn.Module):
        #: rows of one product; None: all at once
        self.n_rows: int | None = None
        self._layers: list[torch.nn.Linear | FewBitsLinear] = [
            module
            for module in model.modules()
            if type(module) is torch.nn.Linear or isinstance(module, FewBitsLinear)
        ]
        for layer in self._layers:
            layer.forward = self._forward_of(layer)  # type: ignore[method-assign]

    def undo(self) -> None:
        """The layers are as they were."""
        for layer in self._layers:
            del layer.forward

    def _forward_of(self, layer: torch.nn.Linear | FewBitsLinear) -> Any:
        def forward(input: torch.Tensor) -> torch.Tensor:
            n = self.n_rows
            if isinstance(layer, FewBitsLinear):
                if n is None:
                    return FewBitsLinear.forward(layer, input)
                if n <= MOST_ROWS:
                    return layer.product(input)
            weight = layer.weight
            n_tokens = input.numel() // input.shape[-1]
            if n is None or n_tokens == n:
                return F.linear(input, weight, layer.bias)
            rows = input.reshape(n_tokens, -1)
            if n_tokens % n:
                rows = F.pad(rows, (0, 0, 0, n - n_tokens % n))
            parts = [F.linear(part, weight, layer.bias) for part in torch.split(rows, n)]
            output = parts[0] if len(parts) == 1 else torch.cat(parts)
            return output[:n_tokens].view(*input.shape[:-1], -1)

        return forward
