# SPDX-License-Identifier: Apache-2.0
"""Where prompts may be cut into pieces without other bits."""

from __future__ import annotations

import torch

from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear

#: Rows of a product of PyTorch in a prompt. So many take little longer than one.
ROWS = 128


def piece_rows(model: torch.nn.Module) -> int:
    """Pieces of prompts begin at multiples of this, and are filled up to one.

    1 if all products with weights are those of `FewBitsLinear`, where a row has the same bits for any number
    of rows (contract E15). PyTorch's products round differently for other numbers of rows: ROWS.
    """
    return ROWS if any(map(_multiplies, model.modules())) else 1


def _multiplies(module: torch.nn.Module) -> bool:
    """Whether PyTorch multiplies by weights of this module itself."""
    if isinstance(module, (FewBitsLinear, torch.nn.Embedding)):
        return False
    return any(weight.ndim > 1 for weight in module.parameters(recurse=False))
