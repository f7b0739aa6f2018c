# SPDX-License-Identifier: Apache-2.0
"""How much streaming memory the measurements cover that the device model was fitted on.

Whether streaming memory is as fast for a larger cache is not known: its DRAM has pages and banks, and
`target.extendedMemory`, an engine option of large programs, is said to cost time. Times for more are marked
as extrapolated.
"""

from __future__ import annotations

from sparq_ipu.kernels import Kernel

#: bytes of the largest cache that a measured program of SparQ attention had, which keeps the keys twice
MEASURED_SPARQ = 1_610_612_736
#: the same of dense attention
MEASURED_DENSE = 4_294_967_296
#: a cache of the measured shape has some rows more here, which no query reads
SCRATCH = 1.05


def footprint_extrapolated(kernel: Kernel, streaming_memory_bytes: int) -> bool:
    """Whether a cache of so many bytes of streaming memory on one IPU is larger than any measured, by more
    than scratch rows."""
    measured = MEASURED_SPARQ if kernel.takes == "sparq" else MEASURED_DENSE
    return streaming_memory_bytes > SCRATCH * measured
