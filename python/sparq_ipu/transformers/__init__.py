# SPDX-License-Identifier: Apache-2.0
"""SparQ attention for models of Hugging Face transformers, on the CPU.

    sparq_ipu.transformers.enable(model, **sparq_ipu.transformers.RECOMMENDED)  # or rank=32, ...
    model.generate(...)
    sparq_ipu.transformers.disable(model)

Everything goes through public interfaces of transformers (AttentionInterface, AttentionMaskInterface, Cache,
module hooks): versions 4.56 and later. docs/models.md says what is supported and what is not.
"""

from sparq_ipu.models import RECOMMENDED
from sparq_ipu.transformers.cache import SparqCache, cache_traffic
from sparq_ipu.transformers.integration import disable, enable, enable_dense, is_enabled
from sparq_ipu.transformers.settings import SparqSettings

__all__ = [
    "RECOMMENDED",
    "SparqCache",
    "SparqSettings",
    "cache_traffic",
    "disable",
    "enable",
    "enable_dense",
    "is_enabled",
]
