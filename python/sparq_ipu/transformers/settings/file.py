# SPDX-License-Identifier: Apache-2.0
"""Settings of a model in a file: `python -m sparq_study.tune` writes it, `enable(model, settings=FILE)` and
`python -m sparq_ipu.generate --settings FILE` read it. JSON; needs no torch."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Union

from sparq_ipu.transformers.settings.layers import LayerSettings, ModelSettings, settings_of_layers
from sparq_reference import checks

FORMAT = "sparq-ipu settings 1"

#: far more than a model has: settings are made for each
_MOST_LAYERS = 10_000

PathLike = Union[str, "os.PathLike[str]"]


def settings_text(settings: ModelSettings, about: dict[str, Any]) -> str:
    """The text of such a file: the settings of every layer, and facts about them.

    Args:
        settings: of each layer; None: dense. Not all of them dense.
        about: anything that JSON can hold, e.g. the model and what was measured.
    """
    sparq = [layer for layer in settings if layer is not None]
    default = collections.Counter(sparq).most_common(1)[0][0]
    layers: dict[str, Any] = {}
    for index, layer in enumerate(settings):
        if layer is None:
            layers[str(index)] = None
        elif layer != default:
            layers[str(index)] = layer.arguments()
    content = {
        "format": FORMAT,
        "n_layers": len(settings),
        "settings": {**default.arguments(), "layers": layers},
        "about": about,
    }
    return json.dumps(content, indent=1) + "\n"


def read_settings(
    op: str, path: PathLike, n_layers: int | None = None, head_dim: int = checks.MAX_INDEX_HEAD_DIM
) -> dict[str, Any]:
    """The keyword arguments of `enable` that a file holds.

    Args:
        op: what messages begin with.
        n_layers, head_dim: of the model. Without them, settings that any model can have are accepted.

    Raises:
        ValueError: it can not be read, is of another kind or for another model, or contains what is no
            setting.
    """

    def refuse(got: object) -> None:
        checks.fail(op, "settings", f"be a file of {FORMAT!r}", got)

    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        refuse(f"{path} ({getattr(error, 'strerror', None) or 'not JSON'})")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        refuse(f"{path}, which is none")
    arguments = content.get("settings")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("layers"), dict):
        refuse(f"{path} without settings")
    n_in_file = content.get("n_layers")
    names = [field.name for field in dataclasses.fields(LayerSettings)]
    wrong = set(arguments) - {*names, "layers"}
    if wrong or type(n_in_file) is not int or not 1 <= n_in_file <= _MOST_LAYERS:
        refuse(f"{path} with {sorted(wrong) or f'n_layers={n_in_file!r}'}")
    if n_layers not in (None, n_in_file):
        got = f"{path}, of one with {n_in_file}"
        checks.fail(op, "settings", f"be of a model with {n_layers} layers", got)
    given = {name: value for name, value in arguments.items() if name != "layers"}
    if odd := [name for name in arguments["layers"] if not (name.isascii() and name.isdigit())]:
        refuse(f"{path} with layers {odd[0][:40]!r}")
    layers = {int(name): layer for name, layer in arguments["layers"].items()}
    try:
        LayerSettings.of(op, None, given)
        settings_of_layers(op, given, layers, n_in_file, head_dim)
    except ValueError as error:
        refuse(f"{path} ({str(error)[len(op) + 2 :]})")
    return {**given, "layers": layers}
