# SPDX-License-Identifier: Apache-2.0
"""How many selected rows a buffer of hot rows already holds: its rules, and the hit rate on a trace.

Each KV head has a buffer of `n_hot` slots, one row (the key and value of one position) each. A step's
*selected* rows are those of SparQ, the last n_local among them. A selected row in the buffer is a *hit*.
Another one is a *miss* and is read from streaming memory, except that of the position appended in this very
step: it is at hand, and is written into the buffer as a miss is. Both policies keep the last n_local rows in
the buffer, as long as n_hot is at least top_k.

Policy "lru", least recently selected. Each slot has the number of the step that last selected its row, -1 if
it is empty. In step t:

1. The slots of the hits get the number t.
2. The missing positions, ascending, take one slot each: the slot with the smallest number, of equal ones the
   one with the lowest slot index. It gets the position and the number t. So a slot that this step selected is
   never taken in it, as n_hot is at least top_k.

Policy "recent", the window of ALISA (arXiv:2403.17312): the buffer holds the last n_hot positions, position p
in slot p % n_hot, whatever is selected. Misses are not kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from sparq_reference import checks

POLICIES = ("lru", "recent")


class HotRows:
    """The buffer of one KV head with policy "lru": which position each slot holds.

    n_hot: slots, at least the number of rows that a step selects. n_positions: of the cache.
    """

    def __init__(self, n_hot: int, n_positions: int) -> None:
        self.position = np.full(n_hot, -1, np.int64)  #: of the row in each slot, -1: empty
        self.last_step = np.full(n_hot, -1, np.int64)  #: in which that row was selected, -1: empty
        self._slot = np.full(n_positions, -1, np.int64)  # of each position, -1: not in the buffer

    def select(self, step: int, positions: np.ndarray) -> np.ndarray:
        """One step. positions: (n,) the selected ones, ascending. Returns: those that were not there."""
        if len(positions) > len(self.position):
            rule = f"be at least {len(positions)}, the rows that a step selects"
            checks.fail("hot_rows", "n_hot", rule, len(self.position))
        slots = self._slot[positions]
        self.last_step[slots[slots >= 0]] = step
        missing: np.ndarray = positions[slots < 0]
        taken = np.argsort(self.last_step, kind="stable")[: len(missing)]
        left = self.position[taken]
        self._slot[left[left >= 0]] = -1
        self.position[taken], self.last_step[taken] = missing, step
        self._slot[missing] = taken
        return missing


@dataclasses.dataclass(frozen=True)
class Reuse:
    """What a policy did in each step, summed over KV heads; arrays (n_steps,) int64.

    selected: rows that are not among the last n_local. hits: of these, the ones that were in the buffer.
    misses: rows read from streaming memory, those of the last n_local that were not there included.
    """

    selected: np.ndarray
    hits: np.ndarray
    misses: np.ndarray

    def hit_rate(self, first: int = 0) -> float:
        """Share of the selected rows that were hits, from step `first` on; those before fill the buffer."""
        selected = int(self.selected[first:].sum())
        return float(self.hits[first:].sum() / selected) if selected else float("nan")


def simulate(positions: np.ndarray, start: int, *, policy: str, n_hot: int, n_local: int = 0) -> Reuse:
    """Run a policy over the selected rows of a layer.

    positions: (n_steps, n_kv_heads, top_k) as `selected_positions` makes them. start: of the trace.

    Raises: ValueError for an unknown policy, or n_hot below top_k.
    """
    if policy not in POLICIES:
        checks.fail("reuse", "policy", f"be one of {', '.join(POLICIES)}", repr(policy))
    n_steps, n_kv_heads, top_k = positions.shape
    checks.check_integer("reuse", "n_hot", n_hot, top_k, checks.MAX_CAPACITY)
    checks.check_integer("reuse", "n_local", n_local, 0, top_k)
    counts = np.zeros((3, n_steps), np.int64)
    for kv in range(n_kv_heads):
        buffer = HotRows(n_hot, start + n_steps)
        for step in range(n_steps):
            length = start + step + 1
            chosen = positions[step, kv]
            chosen = chosen[chosen >= 0]
            missing = buffer.select(step, chosen) if policy == "lru" else chosen[chosen < length - n_hot]
            far = int((chosen < length - n_local).sum())
            n_far_missing = int((missing < length - n_local).sum())
            # what was appended in this step needs no reading
            n_read = int((missing != length - 1).sum())
            counts[:, step] += (far, far - n_far_missing, n_read)
    return Reuse(*counts)
