# SPDX-License-Identifier: Apache-2.0
"""The schedule of a workload: alpha, beta, p1 and p2 of the least time that fit the memories.

As the paper divides it: what is moved follows from memory and link (p1 as late and alpha as small as memory
allows, because every token that is away costs), what is made again is searched for on a grid.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparq_reference import DoesNotFit
from sparq_study.alisa.costs import Costs
from sparq_study.alisa.machine import Workload
from sparq_study.alisa.schedule import Attention, Schedule, Timeline, simulate

#: steps of the grids of beta / alpha and of p2
BETA_STEPS = 20
P2_STEPS = 32


def _least_away(work: Workload, attention: Attention, costs: Costs) -> tuple[float, int]:
    """The smallest alpha and the latest p1 that fit the fast memory; alpha above 1 where none does."""
    rows, index = attention.row_share * work.token_bytes, attention.index_share * work.token_bytes
    room = max(0.0, costs.room(work))
    alpha = max(0.0, 1 - (room - index * work.n_total) / (rows * work.n_total))
    p1 = int(np.clip(np.floor(room / (rows + index)) - work.n_input, 0, work.n_output))
    return alpha, p1


def best_schedule(
    work: Workload,
    attention: Attention | None = None,
    costs: Costs | None = None,
    *,
    recompute: bool = True,
    fill: bool = True,
) -> tuple[Schedule, Timeline]:
    """The schedule found, and its run.

    Args:
        attention: ALISA's: 80 % sparsity, 8 bits.
        fill: see `Schedule`.
        recompute: whether tokens may be made again; else there are phases I and II alone.

    Raises:
        DoesNotFit: no schedule fits the memories.
    """
    attention, costs = attention or Attention(), costs or Costs()
    alpha, p1 = _least_away(work, attention, costs)
    if alpha > 1:
        need = int(work.token_bytes * attention.index_share * work.n_total)
        room = int(max(0.0, costs.room(work)))
        raise DoesNotFit(
            f"alisa: the key index must fit fast memory, got {need} bytes for {room}",
            "fast memory",
            need,
            room,
        )
    best = Schedule(alpha, 0.0, p1, work.n_output, fill)
    timeline = simulate(work, attention, best, costs)
    if not recompute or alpha == 0:
        return best, timeline

    def better(fraction: float, steps: Iterable[int]) -> None:
        """Take the best of these p2 if it is better than what was found so far."""
        nonlocal best, timeline
        # where inputs take room in fast memory, more tokens are away: alpha >= least + share * beta, and
        # beta = fraction * alpha
        share = costs.input_share[0] * fraction
        if share >= 1 or alpha / (1 - share) > 1:
            return
        wider = float(alpha / (1 - share))
        for p2 in steps:
            schedule = Schedule(wider, fraction * wider, p1, p2, fill)
            try:
                run = simulate(work, attention, schedule, costs)
            except DoesNotFit:
                continue
            if run.seconds < timeline.seconds:
                best, timeline = schedule, run

    coarse = [int(p2) for p2 in np.unique(np.linspace(p1, work.n_output - 1, P2_STEPS).astype(int))]
    for fraction in np.linspace(0, 1, BETA_STEPS + 1)[1:]:
        better(float(fraction), coarse)
    if best.beta:
        width = -(-(work.n_output - p1) // P2_STEPS)
        near = range(max(p1, best.p2 - width), min(work.n_output, best.p2 + width + 1))
        better(best.beta / best.alpha, near)
    return best, timeline
