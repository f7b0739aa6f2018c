# SPDX-License-Identifier: Apache-2.0
"""The KV cache that transformers carries from token to token.

sparq_cache       `SparqCache`, one layer for each layer of the model
layer             one layer: what transformers, the hooks and the attention function ask of it
handover          tokens between the hook that announces them and the attention that reads them
columns           which columns of a padded batch are real tokens
options           options of these caches
storage           the `sparq_ipu.KVCache` of a layer, or of all layers on an IPU or the emulator; it grows
attend            decode steps over a `sparq_ipu.KVCache`, and a guard against backward passes through it
"""
