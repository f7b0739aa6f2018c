# SPDX-License-Identifier: Apache-2.0
"""The specification of sparq-ipu in NumPy: SparQ attention (arXiv:2312.04985v6), dense attention, and the
window attention of ALISA (arXiv:2403.17312).

exact       bit for bit the contract of docs/exactness.md: float16 in and out, float32 between
ideal       the same in float64, straight from the equations of the paper
twin        the steps of attention, which both share
numerics    the float32 arithmetic of the contract: sums in a fixed order, exp, sqrt, rounding
row_codes   rows of keys and values in 8 bits
settings    SparqSettings, WindowSettings and CacheSpec, which describe a call and a cache
errors      kinds of errors that callers tell apart
prompt      attention of the tokens of a prompt: both twins
window      the history of attention weights, by which window attention selects
KVCache     keys, values and their running sum, for the exact twin
transfers   elements and bytes moved by each attention algorithm, speedups
checks      validation of arguments, for every package of the project
"""

from sparq_reference import checks, errors, numerics, prompt, row_codes, settings, transfers, window
from sparq_reference.cache import KVCache
from sparq_reference.errors import DoesNotFit, NotFinite
from sparq_reference.exact_twin import exact
from sparq_reference.ideal_twin import ideal
from sparq_reference.settings import CacheSpec, SparqSettings, WindowSettings

__all__ = [
    "CacheSpec",
    "DoesNotFit",
    "KVCache",
    "NotFinite",
    "SparqSettings",
    "WindowSettings",
    "checks",
    "errors",
    "exact",
    "ideal",
    "numerics",
    "prompt",
    "row_codes",
    "settings",
    "transfers",
    "window",
]
