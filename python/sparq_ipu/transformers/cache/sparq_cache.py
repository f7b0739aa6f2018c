# SPDX-License-Identifier: Apache-2.0
"""The cache that transformers carries from token to token, and questions about any cache."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.cache_utils import Cache

from sparq_ipu.transformers.cache.layer import SparqLayer
from sparq_ipu.transformers.cache.options import check_options, host_device, is_stacked
from sparq_ipu.transformers.cache.storage import LayerStack
from sparq_ipu.transformers.supported import LayerKinds, text_config


class SparqCache(Cache):
    """A cache for a model that `sparq_ipu.transformers.enable` has enabled: pass it as `cache`.

    `generate` makes its own, so this is needed only to choose a capacity or device for one run, or to keep a
    cache over turns.

    Args:
        config: of the model (or the model itself).
        capacity: most positions of one row; None grows as needed.
        device: "auto" is the CPU kernels where they are built, else the NumPy reference.
        check_finite, options: as `sparq_ipu.KVCache`. `index_bits` is best left out: the cache then has what
            the model is enabled with, layer by layer, when its first tokens come. It keeps that.

    On an IPU or the emulator layers of one shape share one KVCache, with its program and its devices
    (`n_ipus` and `split`, as `sparq_ipu.KVCache`, put them on several IPUs).

    Raises:
        ValueError: an option that is unknown or out of range; RuntimeError: the device is not available.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        capacity: int | None = None,
        device: str = "auto",
        check_finite: bool = True,
        **options: Any,
    ):
        options = check_options("SparqCache", device, capacity, check_finite, options)
        kinds = LayerKinds.of(text_config(config))
        stack = LayerStack(len(kinds.windows)) if is_stacked(options) else None
        layers: list[Any] = []
        for index, window in enumerate(kinds.windows):
            if stack is not None and index in kinds.dense:  # windows are short: the host attends to them
                host = host_device("SparqCache", "auto")
                layers.append(
                    SparqLayer(index, options["capacity"], host, options["check_finite"], window=window)
                )
            else:
                layers.append(SparqLayer(index, window=window, stack=stack, **options))
        super().__init__(layers=layers)

    def crop(self, n_columns: int) -> None:
        """As `SparqLayer.crop`, of every layer or of none."""
        checked = [layer.check_crop(n_columns) for layer in sparq_layers(self)]
        for layer, kept in zip(sparq_layers(self), checked):
            layer.cut(*kept)


class PreparedCache(Cache):
    """A cache for one forward pass; its maker has announced the tokens to its layers. The hooks of an enabled
    model announce tokens to any other cache, and nothing to this one."""


def kinds_of(cache: Any) -> LayerKinds:
    """The kinds of layers that a cache is for."""
    return LayerKinds(tuple(getattr(layer, "window", None) for layer in cache.layers))


def sparq_layers(cache: Any) -> list[SparqLayer]:
    """The layers of a cache for an enabled model; none of another or without one."""
    return [layer for layer in getattr(cache, "layers", []) if isinstance(layer, SparqLayer)]


def is_sparq_cache(cache: object) -> bool:
    """Whether a transformers cache is one for an enabled model."""
    return len(sparq_layers(cache)) > 0
