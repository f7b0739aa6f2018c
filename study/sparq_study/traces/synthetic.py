# SPDX-License-Identifier: Apache-2.0
"""Traces whose hit rate is known: for shapes of which there is no recording, and one that never hits.

Old positions are dealt into groups of top_k - n_local rows. The keys of a group are one random vector of
signs; the query of a step is the vector of one group, so SparQ selects that group and the last n_local rows.
Other keys are 0. A head that hits asks for the group of its step before; one that misses asks for the group
that it asked for longest ago. So the hit rate is the same for each buffer that holds top_k rows or more, and
fewer than the groups: every miss is a row that no policy holds, unless it holds nearly all.
"""

from __future__ import annotations

import numpy as np

from sparq_ipu.traces import Trace, TraceLayer
from sparq_reference import SparqSettings, checks

_OP = "synthetic_trace"
#: the query and the keys of its group: large enough that rounding to 4 bits can not change which are selected
_SIZE = 2.0


def synthetic_trace(
    settings: SparqSettings,
    *,
    hit_rate: float,
    start: int,
    n_steps: int,
    n_kv_heads: int,
    group_size: int = 1,
    head_dim: int = 128,
    old: int | None = None,
    seed: int = 0,
) -> Trace:
    """A trace of layer 0 in which `hit_rate` of the selected rows were selected by the step before.

    settings: rank, at least 16, top_k above n_local; what the trace is to be run with.
    hit_rate: in [0, 1]; 0 makes a trace that never hits. After the first step, which has no step before it,
        the number of heads that hit differs by one at most from step to step.
    old: positions that are dealt into groups, from 0 on; by default the older half of `start`. A buffer that
        keeps the most recent rows holds none of them, unless it has start - old slots or more.

    Raises: ValueError `synthetic_trace: <argument> must <rule>, got <value>`.
    """
    if isinstance(hit_rate, bool) or not 0 <= hit_rate <= 1:
        checks.fail(_OP, "hit_rate", "be a number in [0, 1]", repr(hit_rate))
    size = settings.top_k - settings.n_local
    if size < 1:
        checks.fail(_OP, "top_k", f"be above n_local={settings.n_local}", settings.top_k)
    if not 16 <= settings.rank <= head_dim:
        checks.fail(_OP, "rank", f"be in [16, head_dim={head_dim}]", settings.rank)
    old = start // 2 if old is None else old
    checks.check_integer(_OP, "start", start, 2, checks.MAX_CAPACITY)
    checks.check_integer(_OP, "old", old, 2 * size, start - settings.n_local)
    checks.check_integer(_OP, "n_steps", n_steps, 1, checks.MAX_CAPACITY - start)
    n_groups = old // size
    rng = np.random.default_rng(seed)
    n_positions = start + n_steps
    key = np.zeros((n_kv_heads, n_positions, head_dim), np.float16)
    signs = np.empty((n_kv_heads, n_groups, head_dim), np.float16)
    for kv in range(n_kv_heads):
        signs[kv] = _different_signs(rng, n_groups, head_dim, settings.rank)
        key[kv, : n_groups * size] = np.tile(signs[kv], (size, 1))  # a group is every n_groups-th position
    key *= np.float16(_SIZE)
    value = rng.standard_normal((n_kv_heads, n_positions, head_dim), dtype=np.float32).astype(np.float16)
    query = np.empty((n_steps, n_kv_heads, group_size, head_dim), np.float16)
    group = np.zeros(n_kv_heads, np.int64)
    for step in range(n_steps):
        # spread evenly over steps and heads: this many of the first so many head-steps have missed
        asked = step * n_kv_heads + np.arange(n_kv_heads + 1)
        missed = np.floor(asked * (1 - hit_rate) + 1e-9).astype(np.int64)
        if step:
            group = (group + np.diff(missed)) % n_groups
        query[step] = signs[np.arange(n_kv_heads), group][:, None] * np.float16(_SIZE)
    layer = TraceLayer(query.reshape(n_steps, n_kv_heads * group_size, head_dim), key, value)
    return Trace({0: layer}, start, f"hit rate {hit_rate:g}", "synthetic", "none")


def _different_signs(rng: np.random.Generator, n: int, head_dim: int, rank: int) -> np.ndarray:
    """n vectors of signs; any two differ in a quarter or more of the components that are scored.

    Queries of signs have components of one size, so the first `rank` are those that SparQ scores.
    """
    chosen = np.empty((0, head_dim), np.float32)
    for _ in range(1000):
        drawn = np.where(rng.random((2 * n, head_dim)) < 0.5, np.float32(-1), np.float32(1))
        for one in drawn:
            alike = chosen[:, :rank] @ one[:rank]
            if len(chosen) < n and (alike <= rank / 2).all():
                chosen = np.concatenate([chosen, one[None]])
        if len(chosen) == n:
            return chosen.astype(np.float16)
    return checks.fail(_OP, "old", f"make fewer groups, which rank={rank} can tell apart", n)
