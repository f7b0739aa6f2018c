# SPDX-License-Identifier: Apache-2.0
"""How much streaming memory the measurements cover that the device model was fitted on.

Whether streaming memory is as fast for a larger cache is not known: its DRAM has pages and banks, and
`target.extendedMemory`, an engine option of large programs, is said to cost time. Times for more are marked
as extrapolated.
"""

from __future__ import annotations

import functools

from sparq_ipu.kernels import BASELINE, Kernel
from sparq_ipu.planning import published_program as published

#: a cache of the measured shape has some rows more here, which no query reads
SCRATCH = 1.05


@functools.lru_cache(maxsize=None)
def measured_footprint(kernel: Kernel) -> int:
    """Bytes of the largest cache in streaming memory that a measured program of this kind had: 4.3 GB for
    dense attention, 1.6 GB for SparQ attention, which keeps the keys twice."""
    name, copies = (published.SPARQ, 3) if kernel.takes == "sparq" else (BASELINE.name, 2)
    position = published.N_HEADS * published.HEAD_DIM * published.ITEM
    return max(copies * m.batch * m.seq_len * position for m in published.measurements() if m.kernel == name)


def footprint_extrapolated(kernel: Kernel, streaming_memory_bytes: int) -> bool:
    """Whether a cache of so many bytes of streaming memory on one IPU is larger than any measured, by more
    than scratch rows."""
    return streaming_memory_bytes > SCRATCH * measured_footprint(kernel)
