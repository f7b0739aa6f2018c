# SPDX-License-Identifier: Apache-2.0
"""One run of a workload, step by step: ALISA's three phases, or a split that stays as it is.

A step's time is the sum of its parts, as in the paper's equations 3 to 6: nothing overlaps. (Its figure 1 has
3 and 5 times the time where half and all of the keys and values are in slow memory: a sum too.)
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sparq_reference import DoesNotFit, checks
from sparq_study.alisa.costs import Costs
from sparq_study.alisa.machine import Workload


@dataclasses.dataclass(frozen=True)
class Attention:
    """What a decode step attends to, and how keys and values are stored.

    Args:
        sparsity: share of the tokens that is not attended to; 0 is dense attention.
        bits: of a stored number of a key or value, 16 or 8.
        local_share: share of the attended tokens that are the most recent ones: half in ALISA.
        index_bits: of SparQ's key index, which stays in fast memory: 8 or 4; 0 where the tokens are chosen by
            the sums of earlier weights, as ALISA does.
        rank_share: share of the index that a step reads: rank / head_dim.
        running_sums: the sums of earlier weights are kept, in 32 bits, and not added up anew at each step:
            docs/exactness.md E11, not Algorithm 1.

    Raises:
        ValueError: `Attention: <argument> must <rule>, got <value>`.
    """

    sparsity: float = 0.8
    bits: int = 8
    local_share: float = 0.5
    index_bits: int = 0
    rank_share: float = 0.5
    running_sums: bool = False

    def __post_init__(self) -> None:
        if self.index_bits not in (0, 4, 8):
            checks.fail("Attention", "index_bits", "be 0, 4 or 8", self.index_bits)
        for name in ("local_share", "rank_share"):
            if not 0 <= getattr(self, name) <= 1:
                checks.fail("Attention", name, "be in [0, 1]", getattr(self, name))
        if not 0 <= self.sparsity < 1:
            checks.fail("Attention", "sparsity", "be in [0, 1)", self.sparsity)
        if self.bits not in (8, 16):
            checks.fail("Attention", "bits", "be 8 or 16", self.bits)

    def kept(self, n: np.ndarray) -> np.ndarray:
        """Of n tokens those attended to: half the most recent, half chosen among the others."""
        kept: np.ndarray = n if self.sparsity == 0 else np.minimum(n, np.ceil((1 - self.sparsity) * n))
        return kept

    @property
    def row_share(self) -> float:
        """Bytes of a stored key and value, as a share of fp16."""
        return self.bits / 16

    @property
    def index_share(self) -> float:
        """Bytes of the key index of a token, as a share of its key and value in fp16: a number has
        index_bits, and 64 numbers have 32 bits more (docs/exactness.md E9); keys are half of the bytes."""
        return (self.index_bits + 0.5) / 32 if self.index_bits else 0.0

    def choosing_bytes(self, work: Workload, n: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """What choosing reads: components of the key index, or the weights of as many steps as tokens are
        chosen (Algorithm 1), one fp16 number for each head, token and step."""
        if self.sparsity == 0:
            return np.zeros_like(n)
        if self.index_bits:
            read: np.ndarray = work.token_bytes * self.index_share * self.rank_share * n
            return read
        if self.running_sums:  # a sum read and written, the oldest step's share read, the newest written
            return 16.0 * work.batch * work.model.layers * n
        sums: np.ndarray = 2.0 * work.batch * work.model.layers * work.model.heads * chosen * n
        return sums


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Algorithm 2: from step p1 on the oldest tokens are not in fast memory; from step p2 on the oldest of
    these are in no memory but made again where they are attended to.

    Args:
        alpha: share of all tokens that is not in fast memory, at the last step.
        beta: share of all tokens that is in no memory, at the last step.
        p1, p2: the steps.
        fill: as many tokens stay in fast memory at every step as at the last one, so that it is always full;
            else the shares are the same at every step, as the paper's formula has them (docs/alisa.md).

    Raises:
        ValueError: `Schedule: <argument> must <rule>, got <value>`.
    """

    alpha: float
    beta: float
    p1: int
    p2: int
    fill: bool = True

    def away(self, work: Workload, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that are not in fast memory at each step, and those that are in none."""
        step = np.arange(len(n))
        away = np.maximum(0.0, n - (1 - self.alpha) * work.n_total) if self.fill else self.alpha * n
        away = np.where(step >= self.p1, away, 0.0)
        deleted = np.where(step >= self.p2, away * (self.beta / self.alpha if self.alpha else 0.0), 0.0)
        return away, deleted

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            checks.fail("Schedule", "alpha", "be in [0, 1]", self.alpha)
        if not 0 <= self.beta <= self.alpha:
            checks.fail("Schedule", "beta", f"be in [0, alpha={self.alpha}]", self.beta)
        if not 0 <= self.p1 <= self.p2:
            checks.fail("Schedule", "p1", f"be in [0, p2={self.p2}]", self.p1)


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Seconds and bytes of each decode step, (n_output,) each."""

    work: Workload
    prefill: float
    compute: np.ndarray
    link: np.ndarray
    recompute: np.ndarray
    fast_bytes: np.ndarray  #: keys and values in fast memory during the step
    slow_bytes: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        """Seconds of each step."""
        total: np.ndarray = self.compute + self.link + self.recompute
        return total

    @property
    def seconds(self) -> float:
        """Of the whole run, the prompt included."""
        return self.prefill + float(self.steps.sum())

    @property
    def throughput(self) -> float:
        """Generated tokens a second."""
        return self.work.batch * self.work.n_output / self.seconds


def _lengths(work: Workload) -> np.ndarray:
    """Tokens of a sequence at each step, the new one included."""
    return work.n_input + 1.0 + np.arange(work.n_output)


def _check_room(work: Workload, costs: Costs, fast: np.ndarray, slow: np.ndarray) -> None:
    room = costs.room(work)
    for resource, need, limit in (
        ("fast memory", float(fast.max()), room),
        ("slow memory", float(slow.max()), float(work.machine.slow_bytes)),
    ):
        if need > limit * (1 + 1e-9) or limit < 0:
            raise DoesNotFit(
                f"alisa: keys and values must fit {resource} of {work.machine.name} beside "
                f"{work.model.name}, got {need:.3e} bytes for {limit:.3e}",
                resource,
                int(need),
                max(0, int(limit)),
            )


def simulate(
    work: Workload, attention: Attention, schedule: Schedule, costs: Costs | None = None
) -> Timeline:
    """ALISA, with this schedule.

    Which of the tokens outside the recent half are attended to is not known beforehand: they are taken to be
    spread evenly over the older tokens. What was loaded is not kept for the next step.

    Raises:
        DoesNotFit: fast or slow memory is too small for this schedule.
    """
    costs = costs or Costs()
    n = _lengths(work)
    size, index = work.token_bytes * attention.row_share, work.token_bytes * attention.index_share
    kept = attention.kept(n)
    chosen = np.floor(kept * (1 - attention.local_share)) if attention.sparsity else kept
    older = n - (kept - chosen)  # tokens that the chosen ones are among

    away, deleted = schedule.away(work, n)

    def attended(oldest: np.ndarray) -> np.ndarray:
        """Tokens attended to among so many of the oldest."""
        among = np.minimum(oldest, older)
        share = np.divide(chosen, older, out=np.zeros_like(older), where=older > 0)
        number: np.ndarray = share * among + (oldest - among)
        return number

    made_again = attended(deleted)
    loaded = attended(away) - made_again
    stored = np.diff(away, prepend=0.0)
    in_fast, in_slow = costs.input_share
    moved = size * (loaded + stored + in_slow * made_again)

    read = size * kept + attention.choosing_bytes(work, n, chosen)
    if attention.sparsity:
        read = read + 2.0 * work.token_bytes * kept  # packed first: written and read once more, in fp16
    compute = costs.weights_seconds(work) + costs.read_seconds(work, read)
    again = costs.weights_seconds(work, made_again * costs.recompute_multiplications(work))
    recompute = again - costs.weights_seconds(work)
    recompute = recompute + np.where(made_again > 0, work.model.layers * costs.recompute_overhead, 0.0)

    fast = size * (n - away + in_fast * deleted) + index * n
    slow = size * (away - deleted + in_slow * deleted)
    _check_room(work, costs, fast, slow)
    prefill = costs.prefill_seconds(work)
    return Timeline(work, prefill, compute, moved / work.machine.link, recompute, fast, slow)


def static_split(
    work: Workload, slow_share: float, costs: Costs | None = None, sparsity: float = 0.0
) -> Timeline:
    """FP16, with this share of every token's heads in slow memory from the first step to the last. Of tokens
    that are attended to it is loaded at each step; sparse attention chooses and packs these as `simulate`.

    Raises:
        DoesNotFit: fast or slow memory is too small for that share.
    """
    costs = costs or Costs()
    if not 0 <= slow_share <= 1:
        checks.fail("static_split", "slow_share", "be in [0, 1]", slow_share)
    n = _lengths(work)
    everything = work.token_bytes * n
    attention = Attention(sparsity, 16)
    kept = attention.kept(n)
    packed = 3.0 if sparsity else 1.0
    read = packed * work.token_bytes * kept + attention.choosing_bytes(work, n, np.floor(kept / 2))
    compute = costs.weights_seconds(work) + costs.read_seconds(work, read)
    stored = np.diff(n, prepend=0.0)  # the prompt at first, then the new token
    moved = slow_share * work.token_bytes * (np.minimum(kept, n - 1) + stored)
    fast, slow = (1 - slow_share) * everything, slow_share * everything
    _check_room(work, costs, fast, slow)
    nothing = np.zeros_like(n)
    prefill = costs.prefill_seconds(work)
    return Timeline(work, prefill, compute, moved / work.machine.link, nothing, fast, slow)


def flexgen(work: Workload, costs: Costs | None = None, sparsity: float = 0.0) -> Timeline:
    """FlexGen's static split: as little in slow memory as the last step allows. FlexGen itself is dense."""
    costs = costs or Costs()
    room = max(0.0, costs.room(work))
    return static_split(work, max(0.0, 1 - room / (work.token_bytes * work.n_total)), costs, sparsity)


def all_fast(work: Workload, costs: Costs | None = None) -> Timeline:
    """Everything in fast memory; DoesNotFit where it does not fit."""
    return static_split(work, 0.0, costs)


def offload_everything(work: Workload, costs: Costs | None = None) -> Timeline:
    """Everything in slow memory."""
    return static_split(work, 1.0, costs)
