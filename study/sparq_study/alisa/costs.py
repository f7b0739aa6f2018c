# SPDX-License-Identifier: Apache-2.0
"""How long the parts of a step take, and every number of the model that the paper leaves open."""

from __future__ import annotations

import dataclasses

import numpy as np

from sparq_reference import checks
from sparq_study.alisa.machine import Workload

#: from what a deleted key and value are made again. The paper does not say; each has its own cost:
#: "input-slow": the input of the layer, kept in slow memory: half the bytes over the link, two matrices
#: "input-fast": the same, kept in fast memory: no bytes over the link, half of the room
#: "input-free": the same, as if it took neither room nor link: the most that recomputation can gain
#: "forward": the token's number: the whole model again, its own attention left out
RECOMPUTE = ("input-slow", "input-fast", "input-free", "forward")


@dataclasses.dataclass(frozen=True)
class Costs:
    """The free parameters. None was fitted to the paper's results; study/alisa.py shows what each does.

    Args:
        flops_efficiency: share of the stated FLOPS that matrix products reach; half is common for large ones.
        bandwidth_efficiency: share of the stated bandwidth of the fast memory that is reached.
        reserve: share of the fast memory for activations, workspace and fragments.
        software_factor: how much longer than that computing takes, all of it; the link is left alone.
        layer_overhead: seconds a layer takes however little there is to do (launches, Python).
        recompute_overhead: seconds more that a layer takes in which something is made again: three launches.
        recompute: one of RECOMPUTE.

    Raises:
        ValueError: `Costs: <argument> must <rule>, got <value>`.
    """

    flops_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.8
    reserve: float = 0.1
    software_factor: float = 1.0
    layer_overhead: float = 0.0
    recompute_overhead: float = 30e-6
    recompute: str = "input-slow"

    def __post_init__(self) -> None:
        for name in ("flops_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                checks.fail("Costs", name, "be in (0, 1]", getattr(self, name))
        if not self.software_factor > 0:
            checks.fail("Costs", "software_factor", "be above 0", self.software_factor)
        if not 0 <= self.reserve < 1:
            checks.fail("Costs", "reserve", "be in [0, 1)", self.reserve)
        for name in ("layer_overhead", "recompute_overhead"):
            if getattr(self, name) < 0:
                checks.fail("Costs", name, "be at least 0", getattr(self, name))
        if self.recompute not in RECOMPUTE:
            checks.fail("Costs", "recompute", f"be one of {', '.join(RECOMPUTE)}", repr(self.recompute))

    def room(self, work: Workload) -> float:
        """Bytes of fast memory for keys and values: what weights and the reserve leave; negative if the
        weights do not fit."""
        return work.machine.fast_bytes * (1 - self.reserve) - work.model.weight_bytes

    def read_seconds(self, work: Workload, n_bytes: np.ndarray) -> np.ndarray:
        """Of so many bytes of the fast memory, read or written."""
        reached = work.machine.bandwidth * self.bandwidth_efficiency / self.software_factor
        seconds: np.ndarray = n_bytes / reached
        return seconds

    def product_seconds(self, work: Workload, multiplications: np.ndarray) -> np.ndarray:
        """Of so many multiplications, each with an addition."""
        seconds: np.ndarray = (
            2 * multiplications / (work.machine.flops * self.flops_efficiency / self.software_factor)
        )
        return seconds

    def weights_seconds(self, work: Workload, more: np.ndarray | float = 0.0) -> np.ndarray:
        """Of a step's products with all weights, which are read once; `more` multiplications beside them."""
        read = self.read_seconds(work, np.asarray(2.0 * work.model.step_weights))
        product = self.product_seconds(work, work.batch * work.model.step_weights + np.asarray(more))
        seconds: np.ndarray = np.maximum(read, product) + work.model.layers * self.layer_overhead
        return seconds

    def prefill_seconds(self, work: Workload) -> float:
        """Of the prompt: products with the weights, and attention of each token to those before it."""
        attention = work.n_input**2 * work.model.hidden * work.model.layers
        product = work.batch * (work.n_input * work.model.step_weights + attention)
        read = self.read_seconds(work, np.asarray(2.0 * work.model.step_weights))
        seconds = np.maximum(self.product_seconds(work, np.asarray(product)), read)
        return float(seconds) + work.model.layers * self.layer_overhead

    def recompute_multiplications(self, work: Workload) -> float:
        """To make the keys and values of one token again, of every sequence."""
        if self.recompute == "forward":
            return float(work.batch * work.model.layer_weights)
        return float(work.batch * work.model.layers * 2 * work.model.hidden**2)

    @property
    def input_share(self) -> tuple[float, float]:
        """Bytes that a deleted token still takes in fast and slow memory, as shares of its key and value."""
        return {"input-slow": (0.0, 0.5), "input-fast": (0.5, 0.0)}.get(self.recompute, (0.0, 0.0))
