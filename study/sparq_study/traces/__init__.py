# SPDX-License-Identifier: Apache-2.0
"""Recorded decode steps of a model's attention (`sparq_ipu.traces`), and how often selected rows repeat.

    from sparq_study import traces

    trace = traces.load("tests/data/smollm2_steps.npz")
    layer = trace.layers[trace.layer_numbers[0]]
    cache.append(layer.key[None, :, : trace.start], layer.value[None, :, : trace.start])
    for query, key, value in layer.steps(trace.start):
        cache.append(key[None], value[None])
        output = sparq_ipu.sparq_attention(query[None], cache, rank=32, top_k=128)

`python study/capture.py --steps 512 ...` records a trace of a real model. Needs NumPy only.
"""

from __future__ import annotations

from sparq_ipu.traces import FORMAT, KINDS, Trace, TraceLayer, load

from .reuse import POLICIES, HotRows, Reuse, simulate
from .selection import selected_positions

__all__ = [
    "FORMAT",
    "KINDS",
    "POLICIES",
    "HotRows",
    "Reuse",
    "Trace",
    "TraceLayer",
    "load",
    "selected_positions",
    "simulate",
]
