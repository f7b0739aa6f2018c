# SPDX-License-Identifier: Apache-2.0
"""The language-model runtime of the CPU: a decoder's products and its decode step, apart from attention.

few_bits        linear layers with weights of 8 or 4 bits
weights         replaces the linear layers of a model by these
gguf_groups     weights of 8 bits or fewer in a GGUF file
families        the decoders that have such steps, and how each differs from Llama
lean_step       a decode step in fewer operations than transformers takes
few_bits_step   the same step in one call of the kernels, where all weights have few bits
rotary          the rotary embedding of a step, with attention in the same call where the cache allows it
step_layer      the interface of a cache layer that takes such steps
unchanged       whether the parts of a model are still the same objects
"""

from sparq_ipu.backends import cpu

cpu.share_threads()
