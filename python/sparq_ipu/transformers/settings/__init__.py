# SPDX-License-Identifier: Apache-2.0
"""Settings of a model's layers. Needs no torch.

layers    settings of one layer and of all layers, the recommended ones, their limits
file      a JSON file of settings, which `python -m sparq_study.tune` writes
command   the options of a command line for settings
"""

from sparq_ipu.transformers.settings.layers import (
    PUBLISHED_TOP_K,
    RECOMMENDED,
    WEIGHTS,
    LayerSettings,
    ModelSettings,
    complete,
    pays_from,
    recommended_top_k,
    settings_of_layers,
)

__all__ = [
    "PUBLISHED_TOP_K",
    "RECOMMENDED",
    "WEIGHTS",
    "LayerSettings",
    "ModelSettings",
    "complete",
    "pays_from",
    "recommended_top_k",
    "settings_of_layers",
]
