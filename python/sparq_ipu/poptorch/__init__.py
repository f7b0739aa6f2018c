# SPDX-License-Identifier: Apache-2.0
"""SparQ attention in a PopTorch model.

On the IPU the modules call the PopART operators `ai.sparq` (poplar_ops/popart), whose KV cache lives in
streaming memory; without PopTorch, or outside of an IPU model, they are the modules of `sparq_ipu.torch`,
with the same results. docs/poptorch.md shows how to build the operators and which options to set.
"""

from sparq_ipu.commands.extras import needed
from sparq_ipu.poptorch import contract
from sparq_ipu.poptorch.library import load_library

with needed("sparq_ipu.poptorch"):
    from sparq_ipu.poptorch.attention import DenseAttention, SparqAttention, begin, custom_op, running_on_ipu

__all__ = [
    "DenseAttention",
    "SparqAttention",
    "begin",
    "contract",
    "custom_op",
    "load_library",
    "running_on_ipu",
]
