# SPDX-License-Identifier: Apache-2.0
"""SparQ's second and third step behind scores from components that were fixed on another text."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks

from .base import Span, top_positions
from .calibration import Calibration
from .sparq import SparQ


def calibration_of(span: Span, name: str) -> Calibration:
    if span.calibration is None:
        checks.fail(name, "calibration", "be given", None)
    return span.calibration


@dataclasses.dataclass(frozen=True)
class DoubleSparsity(SparQ):
    """Channels fixed in advance by their mean |q k| (arXiv:2408.07092).

    The `rank` channels of each KV head with the largest mean |q k| of a calibration text score all positions;
    index_bits=4 is the paper's label cache of 4 bits, with our scale for each 64 positions. Selection and
    attention are SparQ's without the mean value. Transfer: as SparQ.
    """

    name: ClassVar[str] = "double_sparsity"
    needs_calibration: ClassVar[bool] = True
    mean_value_from: int = dataclasses.field(default=-1, metadata={"short": "mean_from"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_all_components()

    def fixed(self, calibration: Calibration) -> torch.Tensor:
        """(n_kv_heads, head_dim) bool."""
        return top_positions(calibration.importance, self.rank, lower_first=True)

    def components(self, span: Span) -> torch.Tensor:
        fixed = self.fixed(calibration_of(span, self.name))
        return fixed[:, None].expand(-1, span.n_queries, -1)

    @property
    def _ties_by_index(self) -> bool:
        return self.index_bits < 16 or self.kv_bits < 16  # the same few numbers score every query


@dataclasses.dataclass(frozen=True)
class FASA(DoubleSparsity):
    """Pairs of channels fixed in advance by how well they rank positions alone (arXiv:2602.03152).

    A pair is what the rotary embedding turns by one frequency. The rank / 2 pairs whose own scores share most
    of the best positions with the whole head's, on a calibration text, score all positions. Selection and
    attention are SparQ's without the mean value. Transfer: as SparQ.
    """

    name: ClassVar[str] = "fasa"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank % 2:
            checks.fail(self.name, "rank", "be even", self.rank)

    def fixed(self, calibration: Calibration) -> torch.Tensor:
        return top_positions(calibration.agreement, self.rank // 2, lower_first=True).repeat(1, 2)


@dataclasses.dataclass(frozen=True)
class Loki(SparQ):
    """Scores from the first principal components of the keys (arXiv:2406.02542).

    Keys and queries are turned into the principal axes of the keys of a calibration text, by KV head; the
    first `rank` axes score all positions. The cache holds keys so turned, which changes no exact score.
    Selection and attention are SparQ's without the mean value. A key index of fewer bits is not defined.
    Transfer: as SparQ.
    """

    name: ClassVar[str] = "loki"
    needs_calibration: ClassVar[bool] = True
    mean_value_from: int = dataclasses.field(default=-1, metadata={"short": "mean_from"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_no_index()
        self._check_all_components()

    def approx_scores(self, span: Span) -> torch.Tensor:
        self._check_rank(span.head_dim)
        basis = calibration_of(span, self.name).basis[..., : self.rank]
        query = torch.einsum("hgnd,hdr->hgnr", span.query, basis)
        return (
            torch.einsum("hgnr,hsr->hgns", query, torch.einsum("hsd,hdr->hsr", span.key, basis)) * span.scale
        )
