# SPDX-License-Identifier: Apache-2.0
"""SparQ attention for models of Hugging Face transformers, on the CPU.

    sparq_ipu.transformers.enable(model)  # with the recommended settings; or rank=16, ...
    model.generate(...)
    sparq_ipu.transformers.disable(model)

Everything goes through public interfaces of transformers (AttentionInterface, AttentionMaskInterface, Cache,
module hooks): versions 4.56 and later. docs/models.md says what is supported and what is not.

torch and transformers are imported with the first name that needs them: RECOMMENDED and `LayerSettings` do
not, nor do the modules `checkpoints` and `generation`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sparq_ipu.commands.extras import needed
from sparq_ipu.transformers.settings import RECOMMENDED, LayerSettings, SparqSettings, recommended_top_k

if TYPE_CHECKING:
    from sparq_ipu.transformers.cache import SparqCache, cache_traffic
    from sparq_ipu.transformers.integration import disable, enable, enable_dense, enable_window, is_enabled
    from sparq_ipu.transformers.lossless import LosslessRun, generate_lossless
    from sparq_ipu.transformers.weights import FewBits, quantise_weights

__all__ = [
    "RECOMMENDED",
    "FewBits",
    "LayerSettings",
    "LosslessRun",
    "SparqCache",
    "SparqSettings",
    "cache_traffic",
    "disable",
    "enable",
    "enable_dense",
    "enable_window",
    "generate_lossless",
    "is_enabled",
    "quantise_weights",
    "recommended_top_k",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "integration")
    with needed(f"{__name__}.{name}"):
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


#: where a name is, if not in `integration`
_MODULES = {
    "SparqCache": "cache",
    "cache_traffic": "cache",
    "LosslessRun": "lossless",
    "generate_lossless": "lossless",
    "FewBits": "weights",
    "quantise_weights": "weights",
}


def __dir__() -> list[str]:
    return __all__
