# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels (poplar_ops/cpu) as a backend.

AVX-512 with VNNI, AVX2 or portable code, chosen at run time, on any number of threads: always
the same bits.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np

from sparq_ipu.backends import History
from sparq_ipu.backends.room import check_room, host_memory
from sparq_reference import CacheSpec, SparqSettings, checks, window

if TYPE_CHECKING:
    from sparq_ipu import _cpu
    from sparq_ipu.kernels import Settings

    #: what `CPUBackend.wave` returns
    Wave = Tuple[_cpu.KVCache, Optional[SparqSettings], int, int]

#: overrides the choice of the instruction set where the option `isa` is not given
ISA_VARIABLE = "SPARQ_CPU_ISA"
#: most threads of one call
MAX_THREADS = 1024


def unavailable(device: str) -> str | None:
    """Why the CPU kernels can not run here: they are not built. None if they can."""
    try:
        import sparq_ipu._cpu  # noqa: F401
    except ImportError as error:
        return f"the extension module sparq_ipu._cpu can not be loaded ({error})"
    return None


def share_threads() -> bool:
    """From now on run the kernels on the OpenMP threads of this process, those of PyTorch. Called when
    `sparq_ipu.torch` is imported: PyTorch's threads poll for some milliseconds after each operation, and
    threads of ours would wait for their processors.

    Returns:
        False where the process has no OpenMP runtime, the kernels are not built, or SPARQ_CPU_OPENMP=0.
    """
    try:
        from sparq_ipu import _cpu
    except ImportError:
        return False
    return _cpu.use_openmp()


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a cache on the CPU.

    Args:
        n_threads: threads of one call, in [1, 1024]; None: OMP_NUM_THREADS, else the processors this process
            may use. Calls from several Python threads run at the same time, each with so many.
        isa: "auto" (the fastest here), "avx512vnni", "avx2" or "portable"; None: the environment
            variable SPARQ_CPU_ISA, else "auto".
    """

    n_threads: int | None = None
    isa: str | None = None
    op: dataclasses.InitVar[str] = "KVCache"

    def __post_init__(self, op: str) -> None:
        from sparq_ipu import _cpu

        if self.n_threads is not None:
            n_threads = checks.check_integer(op, "n_threads", self.n_threads, 1, MAX_THREADS)
            object.__setattr__(self, "n_threads", n_threads)
        isas, name = ["auto", *_cpu.available_isas()], "isa"
        if self.isa is None:
            name = ISA_VARIABLE
            object.__setattr__(self, "isa", os.environ.get(name) or "auto")
        if self.isa not in isas:
            checks.fail(op, name, f"be one of {isas}", repr(self.isa))

    def check(self, op: str, spec: CacheSpec, n_layers: int = 1, settings: Sequence[Settings] = ()) -> None:
        """Refuse a key index of fewer components."""
        if spec.index_components:
            checks.fail(op, "index_components", "be 0 on device 'cpu'", spec.index_components)


def create(device: str, spec: CacheSpec, n_layers: int, options: Options) -> list[CPUBackend]:
    """A cache in host memory for each layer, or DoesNotFit or MemoryError where there is too little."""
    from sparq_ipu import _cpu

    options.check("KVCache", spec, n_layers)
    n_threads, isa = options.n_threads or 0, options.isa or "auto"
    check_room(spec, n_layers, host_memory(), "memory of this machine")
    try:
        caches = [_cpu.KVCache(spec, n_threads=n_threads, isa=isa) for _ in range(n_layers)]
    except MemoryError:
        raise MemoryError(f"KVCache: memory must be free for a cache, got too little for {spec}") from None
    return [CPUBackend(cache) for cache in caches]


class CPUBackend:
    """`sparq_ipu._cpu.KVCache` behind the backend protocol. Safe to use from several Python threads."""

    def __init__(self, cache: _cpu.KVCache):
        #: the cache as other kernels take it
        self.kernels = cache
        # its own methods have the arguments and results of the protocol
        self.append, self.attend, self.observe = cache.append, cache.attend, cache.observe
        self.truncate, self.read = cache.truncate, cache.read
        self.reset, self.reorder = cache.reset, cache.reorder

    @property
    def lengths(self) -> np.ndarray:
        return np.array(self.kernels.lengths, np.int64)

    @property
    def n_threads(self) -> int:
        """Threads of one call."""
        return self.kernels.n_threads

    @property
    def isa(self) -> str:
        """The instruction set in use: "avx512vnni", "avx2" or "portable"."""
        return self.kernels.isa

    @property
    def key_index_bytes(self) -> int:
        """Memory of the key index: the keys by component. Those by position are not counted."""
        return self.kernels.key_index_bytes

    @property
    def n_bytes(self) -> int:
        """Memory of keys, values and the key index for the whole capacity."""
        return self.kernels.row_bytes + self.kernels.key_index_bytes

    def rows(self, index: list[int]) -> CPUBackend:
        """Of these batch elements, sharing them."""
        return CPUBackend(self.kernels.rows(index))

    def check_settings(self, op: str, settings: Settings) -> None:
        window.check_recent(op, self.kernels.n_recent, settings)

    def wave(self, settings: SparqSettings | None, window: int | None, n_tokens: int) -> Wave:
        """The arguments of the kernels for tokens of each batch element through a layer of a model: this
        cache, the settings (None for dense attention, which sees the window), the number."""
        return self.kernels, settings, window or 0, n_tokens

    def history(self) -> History | None:
        n_recent = self.kernels.n_recent
        if n_recent == 0:
            return None
        return History(n_recent, [self.kernels.history(b) for b in range(len(self.kernels.lengths))])

    def set_history(self, history: History) -> None:
        self.kernels.begin_history(history.n_recent)
        for element, steps in enumerate(history.steps):
            for shares in steps:
                self.kernels.add_step(element, shares)
