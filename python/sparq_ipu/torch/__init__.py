# SPDX-License-Identifier: Apache-2.0
"""SparQ attention for PyTorch: modules with a streaming KV cache.

attention = sparq_ipu.torch.SparqAttention(batch, n_kv_heads, head_dim, capacity, rank=32, top_k=128)
attention.append(key, value)                   # the prompt
output = attention(query, key, value)          # one token
"""

from sparq_ipu.backends import cpu
from sparq_ipu.commands.extras import needed

with needed("sparq_ipu.torch"):
    from sparq_ipu.torch.attention import DenseAttention, SparqAttention

__all__ = ["DenseAttention", "SparqAttention"]

cpu.share_threads()
