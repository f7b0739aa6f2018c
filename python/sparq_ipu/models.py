# SPDX-License-Identifier: Apache-2.0
"""Pretrained models and the settings recommended for them, by short names. Loading needs torch."""

from sparq_ipu.transformers.loading.checkpoints import (
    SMOLLM2_GGUF,
    check_path,
    import_torch,
    load_model,
    smollm2_path,
)
from sparq_ipu.transformers.settings.layers import RECOMMENDED

__all__ = ["RECOMMENDED", "SMOLLM2_GGUF", "check_path", "import_torch", "load_model", "smollm2_path"]
