# SPDX-License-Identifier: Apache-2.0
"""Statistics of a model's own attention, as in section 3 and appendix E of the SparQ paper
(arXiv:2312.04985).

All are of dense attention, for the last queries of a text: how concentrated the weights are, how heavy-tailed
queries are, how well approximate scores find the top positions, how well alpha estimates the weight that they
cover, and which average explains V.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, ClassVar

import torch

from .engine import Evaluator
from .methods import HIDDEN, TEMPERATURES, Dense, Span, SparQ, attend_to, top_positions
from .runner import Results
from .tasks import Tokenizer, Words

TOP = 32
RANKS = (4, 8, 16, 32)
TOP_KS = (32, 64, 128, 256)
COVERAGE: dict[str, Any] = {"rank": 16, "top_k": 128}
AXES = ("item", "layer", "kv_head", "position", "component")


def settings(quick: bool) -> dict[str, int]:
    """Texts, their length and the queries at their end."""
    return (
        {"items": 1, "length": 1024, "queries": 32} if quick else {"items": 3, "length": 2560, "queries": 64}
    )


def kurtosis(values: torch.Tensor) -> torch.Tensor:
    """Excess kurtosis along the last axis: 0 for a Gaussian."""
    centred = values - values.mean(-1, keepdim=True)
    return centred.pow(4).mean(-1) / centred.pow(2).mean(-1).pow(2) - 3


def beyond(values: torch.Tensor, n_sigma: float) -> torch.Tensor:
    """Share of the last axis further than n_sigma standard deviations from its mean.

    A Gaussian has 0.0027 beyond 3.
    """
    centred = values - values.mean(-1, keepdim=True)
    return (centred.abs() > n_sigma * centred.pow(2).mean(-1, keepdim=True).sqrt()).float().mean(-1)


def agreement(approximate: torch.Tensor, exact: torch.Tensor, k: int) -> torch.Tensor:
    """Share of the k largest of `exact` that are among the k largest of `approximate`, on the last axis."""
    both = top_positions(approximate, k) & top_positions(exact, k)
    return both.sum(-1) / min(k, exact.shape[-1])


def correlation_ratio(values: torch.Tensor, axis: int) -> float:
    """Share of the variance that remains when `values` is averaged along an axis.

    1 if `values` is constant along the axis, 0 if the averages are all equal.
    """
    values = values.double()
    return float(values.mean(axis).var(correction=0) / values.var(correction=0))


@dataclasses.dataclass(frozen=True)
class Observe(Dense):
    """Dense attention that hands each layer's statistics to `tell`."""

    name: ClassVar[str] = "observe"
    tell: Callable[[dict[str, Any]], None] = dataclasses.field(default=print, metadata={"short": "tell"})

    def _attend(self, span: Span) -> torch.Tensor:
        scores = span.scores()
        weights = torch.softmax(scores, dim=-1)
        group = weights.sum(1)
        n_heads = span.query.shape[0] * span.query.shape[1]

        def per_head(values: torch.Tensor) -> list[float]:
            return [round(value, 4) for value in values.mean(-1).reshape(n_heads).tolist()]

        line: dict[str, Any] = {
            "layer": span.layer,
            "top_mass": per_head(weights.topk(min(TOP, span.seq_len), dim=-1).values.sum(-1)),
            "first_position_mass": per_head(weights[..., 0]),
            "kurtosis": per_head(kurtosis(span.query)),
            "beyond_3_sigma": per_head(beyond(span.query, 3)),
            "agreement": {},
            "coverage": {},
        }
        for rank in RANKS:
            s_hat = self._s_hat(span, SparQ(rank=min(rank, span.head_dim))).sum(1)
            s_hat.masked_fill_(~span.visible(), -1.0)
            for k in TOP_KS:
                share = agreement(s_hat, group.masked_fill(~span.visible(), -1.0), k)
                line["agreement"][f"r={rank},k={k}"] = round(share.mean().item(), 4)
        for temperature in TEMPERATURES:
            method = SparQ(temperature=temperature, **COVERAGE)
            selected, s_hat = method.select(span)
            estimate = (s_hat * selected[:, None]).sum(-1)
            true = (weights * selected[:, None]).sum(-1)
            line["coverage"][temperature] = {
                "alpha": per_head(estimate),
                "mass": per_head(true),
                "abs_error": per_head((estimate - true).abs()),
            }
        self.tell(line)
        return attend_to(span, span.visible(), scores)

    @staticmethod
    def _s_hat(span: Span, method: SparQ) -> torch.Tensor:
        return torch.softmax(method.approx_scores(span).masked_fill_(~span.visible(), HIDDEN), dim=-1)


def measure(
    evaluator: Evaluator,
    tokenizer: Tokenizer,
    results: Results,
    seed: int,
    quick: bool,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Add one line per (text, layer), and one of correlation ratios, to the results."""
    sizes = settings(quick)
    done = {line["item"] for line in results.lines if line["kind"] == "statistics"}
    values = []
    for item in range(sizes["items"]):
        tokens = Words(tokenizer, f"statistics {seed} {item}").filler(item, sizes["length"])
        prefix = evaluator.prefill(tokens[: -sizes["queries"]])
        values.append(torch.stack([layer.values[0] for layer in prefix.layers.values()]))
        if item not in done:
            lines: list[dict[str, Any]] = []
            evaluator.span(prefix, tokens[-sizes["queries"] :], Observe(tell=lines.append))
            for line in lines:
                results.add({"kind": "statistics", "item": item, **line})
        progress(f"statistics of text {item + 1}/{sizes['items']}")
    if not any(line["kind"] == "correlation_ratio" for line in results.lines):
        # (item, layer, kv_head, position, component)
        stacked = torch.stack(values)
        ratios = {axis: round(correlation_ratio(stacked, i), 5) for i, axis in enumerate(AXES)}
        results.add({"kind": "correlation_ratio", "ratio": ratios})
