# SPDX-License-Identifier: Apache-2.0
"""SparQ attention for PyTorch: modules with a streaming KV cache, and the operators under them.

    attention = sparq_ipu.torch.SparqAttention(batch, n_kv_heads, head_dim, capacity, rank=32, top_k=128)
    attention.append(key, value)                   # the prompt
    output = attention(query, key, value)          # one token

`sparq_ipu.torch.ops` has the operators `torch.ops.sparq_ipu.*`: functions of tensors with meta
implementations, for torch.compile and torch.export. docs/models.md shows both.
"""

from sparq_ipu.backends import cpu
from sparq_ipu.commands.extras import needed

with needed("sparq_ipu.torch"):
    from sparq_ipu.torch import ops
    from sparq_ipu.torch.attention import DenseAttention, SparqAttention, WindowAttention

__all__ = ["DenseAttention", "SparqAttention", "WindowAttention", "ops"]

cpu.share_threads()
