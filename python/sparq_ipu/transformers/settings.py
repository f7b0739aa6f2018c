# SPDX-License-Identifier: Apache-2.0
"""What attention a layer runs while decoding: SparQ with its settings, or dense."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, Optional

from sparq_reference import checks


@dataclasses.dataclass(frozen=True)
class SparqSettings:
    """SparQ attention (arXiv:2312.04985, Algorithm 1) of one layer.

    Attributes:
        rank: query components that score positions, 1 <= rank <= head_dim (paper: r).
        top_k: positions attended to, at least 1 (paper: k).
        n_local: of these, the most recent ones that are always taken, 0 <= n_local <= top_k (paper: l).
        mean_value: give the weight of the other positions to the mean of all values (paper: v-bar and alpha).
        min_seq_len: a batch element with fewer positions than this, the new token included, is decoded
            densely.
    """

    rank: int
    top_k: int
    n_local: int = 0
    mean_value: bool = True
    min_seq_len: int = 0

    def check(self, op: str, head_dim: int) -> None:
        """Raise ValueError, `<op>: <argument> must <rule>, got <value>`, for the first setting out of
        range."""
        checks.check_sparq_settings(
            op,
            rank=self.rank,
            top_k=self.top_k,
            n_local=self.n_local,
            head_dim=head_dim,
        )
        if not isinstance(self.mean_value, bool):
            checks.fail(op, "mean_value", "be True or False", repr(self.mean_value))
        checks.check_integer(op, "min_seq_len", self.min_seq_len, 0, checks.MAX_CAPACITY)


#: settings of every layer, in order; None is dense attention
LayerSettings = List[Optional[SparqSettings]]


def settings_of_layers(
    op: str,
    default: SparqSettings | None,
    layers: Mapping[int, Mapping[str, Any] | None] | None,
    n_layers: int,
    head_dim: int,
) -> LayerSettings:
    """Settings of each of `n_layers` layers: `default`, or what `layers` says of that layer.

    Args:
        layers: layer index -> None (dense), or settings that replace those of `default`, by name.

    Raises:
        ValueError: not a mapping, a layer that does not exist, an unknown setting, a value out of range.
    """
    if default is not None:
        default.check(op, head_dim)
    settings: LayerSettings = [default] * n_layers
    names = [field.name for field in dataclasses.fields(SparqSettings)]
    if layers is None:
        layers = {}
    if not isinstance(layers, Mapping):
        checks.fail(op, "layers", "be a mapping of layers to None (dense) or settings", repr(layers))
    for index, changes in layers.items():
        checks.check_integer(op, "layers", index, 0, n_layers - 1, f"[0, n_layers={n_layers})")
        if changes is None:
            settings[index] = None
            continue
        if not isinstance(changes, Mapping):
            checks.fail(op, f"layers[{index}]", "be None (dense) or a mapping of settings", repr(changes))
        for name in changes:
            if name not in names:
                checks.fail(op, f"layers[{index}]", f"name settings among {', '.join(names)}", repr(name))
        changed = dataclasses.replace(default, **changes)
        changed.check(f"{op}: layers[{index}]", head_dim)
        settings[index] = changed
    return settings
