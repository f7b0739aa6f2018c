# SPDX-License-Identifier: Apache-2.0
"""SparQ attention for models of Hugging Face transformers, on the CPU.

    sparq_ipu.transformers.enable(model)  # with the recommended settings; or rank=16, ...
    model.generate(...)
    sparq_ipu.transformers.disable(model)

Everything goes through public interfaces of transformers (AttentionInterface, AttentionMaskInterface, Cache,
module hooks), version 5.24 and later. docs/models.md lists the supported models.

integration   enable and disable a model: its hooks, its attention functions, its lean step
attention     the attention and mask functions that transformers calls
supported     which models can be enabled, and which of their layers use SparQ attention
settings/     settings of layers, of a whole model, in a file and on a command line
cache/        the KV cache that transformers carries from token to token
decoder/      the language-model runtime of the CPU: weights of 4 and 8 bits, decode steps in one call
loading/      models from local files
generation/   decoding loops: timed runs, chats, drafts from the text

torch and transformers are imported with the first name that needs them. RECOMMENDED, `LayerSettings` and the
modules `loading.checkpoints` and `generation.runs` need neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sparq_ipu.commands.extras import needed
from sparq_ipu.transformers.settings.layers import RECOMMENDED, LayerSettings, recommended_top_k

if TYPE_CHECKING:
    from sparq_ipu.transformers.cache.sparq_cache import SparqCache
    from sparq_ipu.transformers.decoder.weights import FewBits, quantise_weights
    from sparq_ipu.transformers.integration import disable, enable, enable_dense, is_enabled

__all__ = [
    "RECOMMENDED",
    "FewBits",
    "LayerSettings",
    "SparqCache",
    "disable",
    "enable",
    "enable_dense",
    "is_enabled",
    "quantise_weights",
    "recommended_top_k",
]

#: the module of each name that is not in `integration`
_MODULES = {
    "SparqCache": "cache.sparq_cache",
    "FewBits": "decoder.weights",
    "quantise_weights": "decoder.weights",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "integration")
    with needed(f"{__name__}.{name}"):
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
