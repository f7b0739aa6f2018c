# SPDX-License-Identifier: Apache-2.0
"""The machines, models and workloads of ALISA's evaluation (section VI.A)."""

from __future__ import annotations

import dataclasses

from sparq_reference import checks

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Machine:
    """A GPU with its memory (fast), and a CPU's memory behind a link (slow)."""

    name: str
    fast_bytes: int
    #: fp16 multiplications and additions a second, dense, as the vendor states them
    flops: float
    #: bytes a second of the fast memory, as the vendor states them
    bandwidth: float
    #: bytes a second between the memories: 20 GB/s in the paper
    link: float = 20e9
    slow_bytes: int = 128 * GIB


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder: OPT (two matrices in its feed-forward network) or LLaMA (three)."""

    name: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    ffn_matrices: int
    vocabulary: int
    #: matrices of vocabulary x hidden: one where the output layer is the embedding
    embeddings: int

    @property
    def layer_weights(self) -> int:
        """Weights of all layers."""
        return self.layers * (4 * self.hidden**2 + self.ffn_matrices * self.hidden * self.ffn)

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights, fp16."""
        return 2 * (self.layer_weights + self.embeddings * self.vocabulary * self.hidden)

    @property
    def step_weights(self) -> int:
        """Weights that each token is multiplied with: the layers and the output layer."""
        return self.layer_weights + self.vocabulary * self.hidden

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token of one sequence in fp16, all layers: the paper's 4 l h."""
        return 4 * self.layers * self.hidden


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sequences of `n_input` tokens, each continued by `n_output` tokens, all at once.

    Raises:
        ValueError: `Workload: <argument> must <rule>, got <value>`.
    """

    machine: Machine
    model: Model
    batch: int
    n_input: int = 128
    n_output: int = 512

    def __post_init__(self) -> None:
        for name in ("batch", "n_input", "n_output"):
            checks.check_integer("Workload", name, getattr(self, name), 1, checks.MAX_CAPACITY)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token of every sequence, fp16."""
        return self.batch * self.model.token_bytes

    @property
    def n_total(self) -> int:
        """Tokens of a sequence at the end."""
        return self.n_input + self.n_output


# V100: 125 TFLOPS, 900 GB/s (SXM2). H100: 989 TFLOPS dense, 3350 GB/s (SXM5).
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("V100-16", 16 * GIB, 125e12, 900e9),
        Machine("V100-32", 32 * GIB, 125e12, 900e9),
        Machine("H100-80", 80 * GIB, 989e12, 3350e9),
    )
}

MODELS = {
    model.name: model
    for model in (
        Model("OPT-6.7B", 4096, 32, 32, 16384, 2, 50272, 1),
        Model("OPT-13B", 5120, 40, 40, 20480, 2, 50272, 1),
        Model("OPT-30B", 7168, 48, 56, 28672, 2, 50272, 1),
        Model("LLaMA-7B", 4096, 32, 32, 11008, 3, 32000, 2),
        Model("LLaMA-13B", 5120, 40, 40, 13824, 3, 32000, 2),
        Model("LLaMA-33B", 6656, 60, 52, 17920, 3, 32000, 2),
    )
}
