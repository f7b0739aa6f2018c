# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer while decoding: SparQ with its settings, or dense. Needs no torch."""

from __future__ import annotations

import dataclasses
import functools
from functools import cached_property
from typing import Any, List, Mapping, Optional, Sequence

import sparq_reference
from sparq_reference import checks

#: What docs/settings.md recommends at head_dim 64, and what `enable(model)` has there: see `complete`.
#: The first layer attends diffusely: the mean value costs more quality there than in all other layers.
RECOMMENDED: dict[str, Any] = {
    "rank": 32,
    "top_k": 256,
    "n_local": 64,
    "mean_value": True,
    "index_bits": 2,
    "layers": {0: {"mean_value": False}},
}
#: A longer text needs more rows for one quality (docs/settings.md, up to 32,000
#: positions): the most positions, and the top_k up to there.
TOP_K_BY_LENGTH: tuple[tuple[int, int], ...] = (
    (8192, RECOMMENDED["top_k"]),
    (24576, 512),
    (checks.MAX_CAPACITY, 1024),
)
#: The top_k of most figures of arXiv:2312.04985, and of `enable(model, published=True)`.
PUBLISHED_TOP_K = 128
#: How `enable(model)` reads a prompt in bfloat16: the share of attention below which a block is left out, and
#: the first position whose row leaves out any, whatever the share (docs/settings.md, contract E16).
PROMPT_BLOCKS, PROMPT_BLOCKS_FROM = 0.0015, 2048

#: Kinds of rounded weights of linear layers: see `sparq_ipu.transformers.decoder.few_bits`.
WEIGHTS = ("int8", "int4")


@dataclasses.dataclass(frozen=True)
class LayerSettings(sparq_reference.SparqSettings):
    """SparQ attention of one layer of a model.

    Args:
        rank, top_k and so on: as `sparq_reference.SparqSettings`.
        min_seq_len: a batch element with fewer positions than this, the new token included, is decoded
            densely; in [0, 2**24].
        index_bits: bits of a number in the key index of the layer's cache: 16, 8, 4 or 2. None: those of the
            cache, else 16.
    """

    min_seq_len: int = 0
    index_bits: int | None = None

    def __post_init__(self, op: str, head_dim: int | None) -> None:
        super().__post_init__(op, head_dim)
        n = checks.check_integer(op, "min_seq_len", self.min_seq_len, 0, checks.MAX_CAPACITY)
        bits = self.index_bits
        if bits is not None:
            bits = checks.check_index_bits(op, bits, head_dim or checks.HEAD_DIM_MULTIPLE)
        self._set(min_seq_len=n, index_bits=bits)

    @cached_property
    def attention(self) -> sparq_reference.SparqSettings:
        """The settings that an attention call takes."""
        names = [field.name for field in dataclasses.fields(sparq_reference.SparqSettings)]
        return sparq_reference.SparqSettings(**{name: getattr(self, name) for name in names})


def cache_options(settings: LayerSettings | None) -> Mapping[str, Any]:
    """Options of the cache of a layer with these settings, by name. Dense attention reads no key index: its
    cache has the smallest."""
    if settings is None:
        return {"index_bits": min(checks.INDEX_BITS)}
    return {} if settings.index_bits is None else {"index_bits": settings.index_bits}


#: settings of every layer, in order; None is dense attention
ModelSettings = List[Optional[LayerSettings]]


def dense_rows(
    settings: LayerSettings | None, lengths: Sequence[int], window: int | None = None
) -> list[bool]:
    """Which rows of a batch are decoded densely: those whose length, with the new token, is below
    `min_seq_len` or beyond the window (None: all positions are seen), and all without settings."""
    if settings is None:
        return [True] * len(lengths)
    most = checks.MAX_CAPACITY if window is None else window
    return [not settings.min_seq_len <= length <= most for length in lengths]


@functools.lru_cache(maxsize=None)
def dense_attention_of(window: int | None) -> sparq_reference.WindowSettings | None:
    """The settings of dense attention in a layer that sees this window; None: it sees all positions."""
    return None if window is None else sparq_reference.WindowSettings(window, window, 0)


def pays_from(top_k: int) -> int:
    """The length from which on SparQ is used by default: top_k is a quarter of it.

    SparQ reads less before that too. But a short cache stays in the processor's own caches, where dense
    attention is faster (docs/benchmarks.md).
    """
    return min(4 * top_k, checks.MAX_CAPACITY)


def recommended_top_k(positions: int) -> int:
    """The recommended top_k for texts of this length in [1, 2**24], prompt and answer together."""
    positions = checks.check_integer("recommended_top_k", "positions", positions, 1, checks.MAX_CAPACITY)
    return next(top_k for most, top_k in TOP_K_BY_LENGTH if positions <= most)


def recommended(
    op: str, said: Mapping[str, Any], head_dim: int | None, top_k: int = RECOMMENDED["top_k"]
) -> dict[str, Any]:
    """Settings of attention by name: the given ones, and in place of the others those of RECOMMENDED, with a
    quarter of another top_k as n_local, and as rank half of a smaller head_dim."""
    top_k = checks.check_integer(op, "top_k", said.get("top_k", top_k), 1, checks.MAX_CAPACITY)
    rank = RECOMMENDED["rank"] if head_dim is None else max(1, min(RECOMMENDED["rank"], head_dim // 2))
    return {"rank": rank, "n_local": top_k // 4, **said, "top_k": top_k}


def complete(
    op: str,
    head_dim: int | None,
    said: Mapping[str, Any],
    layer: int | None = None,
    *,
    published: bool = False,
    can_be_dense: bool = True,
) -> LayerSettings:
    """Settings of a layer: the given ones, those of `recommended`, and dense attention of texts so short that
    SparQ would read more.

    Args:
        head_dim: of the model; None: not known yet.
        layer: its index; None: a layer that nothing special is recommended for.
        published: those of arXiv:2312.04985 instead, see `enable`.
        can_be_dense: the cache can attend densely, below the length from which on SparQ is used.
    """
    usual = PUBLISHED_TOP_K if published else RECOMMENDED["top_k"]
    default = recommended(op, {}, head_dim, said.get("top_k", usual))
    if not published:
        default["index_bits"] = RECOMMENDED["index_bits"]
        default.update(RECOMMENDED["layers"].get(layer, {}))
        if (head_dim or 0) > checks.MAX_INDEX_HEAD_DIM:
            default["index_bits"] = 16
    settings = LayerSettings.of(op, head_dim, {**default, **said})
    if published or not can_be_dense or "min_seq_len" in said or head_dim is None:
        return settings
    return dataclasses.replace(settings, min_seq_len=pays_from(settings.top_k))


def settings_of_layers(
    op: str,
    said: Mapping[str, Any],
    layers: Mapping[int, Mapping[str, Any] | None] | None,
    n_layers: int,
    head_dim: int,
    **how: bool,
) -> ModelSettings:
    """Settings of `n_layers` layers: those given for all, those that `layers` gives for one (None: dense),
    and those that `complete` adds. how: of `complete`."""
    complete(op, head_dim, said)
    settings: ModelSettings = [complete(op, head_dim, said, layer, **how) for layer in range(n_layers)]
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
        settings[index] = complete(f"{op}: layers[{index}]", head_dim, {**said, **changes}, index, **how)
    return settings
