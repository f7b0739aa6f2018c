# SPDX-License-Identifier: Apache-2.0
"""Which rows SparQ selects in each step of a trace: those of the reference, bit for bit, in less time.

The reference makes the key index anew in each call. Here it is made once: a block of 64 positions is stored
when it is full and does not change after that (docs/exactness.md, E9). The steps are the batch of the
reference's other functions. Sums of integers below 2^24 are exact in float32, so they are matrix products.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from sparq_ipu.traces import Trace
from sparq_reference import SparqSettings, checks, exact, key_index
from sparq_reference.numerics import BLOCK, widen

#: steps that are scored together; bounds the memory that takes
STEPS_AT_ONCE = 32


def selected_positions(
    trace: Trace, layer: int, settings: Sequence[SparqSettings], *, index_bits: int = 4
) -> list[np.ndarray]:
    """The positions that each step of a layer selects.

    settings: of several calls, which differ in top_k and n_local only; they share the scores.
    index_bits: of the key index, 4 or 8.

    Returns: for each of `settings` an array (n_steps, n_kv_heads, min(top_k, n_positions)) int64, ascending;
        behind what a shorter step has, -1.
    Raises: ValueError for other settings, or a layer that the trace has not.
    """
    if layer not in trace.layers:
        checks.fail("selected_positions", "layer", f"be among {trace.layer_numbers}", layer)
    if len({s.rank for s in settings}) != 1:
        checks.fail("selected_positions", "settings", "have one rank", [s.rank for s in settings])
    if index_bits not in (4, 8):
        checks.fail("selected_positions", "index_bits", "be 4 or 8", index_bits)
    rank, n_kv_heads = settings[0].rank, trace.n_kv_heads
    found = [
        np.full((trace.n_steps, n_kv_heads, min(s.top_k, trace.n_positions)), -1, np.int64) for s in settings
    ]
    for first, lengths, kv, scores in _scores(trace, layer, rank, index_bits):
        weights, weight_sum, _ = exact.softmax_weights(scores)
        steps = slice(first, first + len(lengths))
        for s, positions in zip(settings, found):
            chosen, _ = exact.key_topk(
                weights, weight_sum, n_kv_heads=1, top_k=s.top_k, n_local=s.n_local, lengths=lengths
            )
            positions[steps, kv, : chosen.shape[2]] = chosen[:, 0]
    return found


def _scores(
    trace: Trace, layer: int, rank: int, index_bits: int
) -> Iterator[tuple[int, np.ndarray, int, np.ndarray]]:
    """(first step, lengths, KV head, scores (n, group_size, longest) float32, -inf beyond a length)."""
    arrays = trace.layers[layer]
    group_size = trace.n_heads // trace.n_kv_heads
    n_full = trace.n_positions // BLOCK * BLOCK
    open_from = (trace.start + 1) // BLOCK * BLOCK  # before it, every step has full blocks
    limit = key_index.coefficient_limit(index_bits, rank)
    for kv in range(trace.n_kv_heads):
        columns = np.ascontiguousarray(arrays.key[kv].T)
        index = key_index.quantise(columns[:, :n_full], index_bits)
        code = np.ascontiguousarray(
            index.code.transpose(1, 0, 2).astype(np.float32)
        )  # (block, component, 64)
        low, step = widen(index.low), widen(index.step)
        for first in range(0, trace.n_steps, STEPS_AT_ONCE):
            query = arrays.query[first : first + STEPS_AT_ONCE, kv * group_size : (kv + 1) * group_size]
            lengths = trace.start + 1 + np.arange(first, first + len(query))
            components = exact.query_components(query, rank=rank, n_kv_heads=1)
            inv_tau = exact.inverse_temperature(query, components)
            chosen = np.zeros((len(query), 1, trace.head_dim), bool)
            np.put_along_axis(chosen, components, True, axis=-1)
            q = np.where(chosen, widen(query), np.float32(0))
            scores = np.full((*query.shape[:2], int(lengths[-1])), -np.inf, np.float32)
            n_blocks = int(lengths[-1]) // BLOCK
            indexed = _block_scores(q, low[:, :n_blocks], step[:, :n_blocks], code[:n_blocks], limit)
            scores[:, :, : n_blocks * BLOCK] = indexed
            # behind the last full block: in float16, component by component, ascending
            behind = np.zeros((*query.shape[:2], int(lengths[-1]) - open_from), np.float32)
            for c in range(trace.head_dim):
                behind += q[:, :, c, None] * widen(columns[c, open_from : lengths[-1]])
            position = np.arange(scores.shape[2])
            for i, length in enumerate(lengths):
                full = length // BLOCK * BLOCK
                scores[i, :, full:length] = behind[i, :, full - open_from : length - open_from]
            scores *= inv_tau[:, :, None]
            scores[np.broadcast_to((position >= lengths[:, None])[:, None], scores.shape)] = -np.inf
            yield first, lengths, kv, scores


def _block_scores(
    query: np.ndarray, low: np.ndarray, step: np.ndarray, code: np.ndarray, limit: int
) -> np.ndarray:
    """`key_index.block_scores` of several steps.

    query: (n, group_size, head_dim) float32, 0 in components that are not selected. Adding their products, +0
    or -0, changes no bit. -> (n, group_size, n_blocks * 64).
    """
    one = np.float32(1)
    weight = query.transpose(2, 0, 1)[..., None] * step[:, None, None]  # (component, n, group_size, block)
    largest = np.abs(weight).max(axis=0)
    nothing = largest == 0
    inverse = np.float32(limit) / np.where(nothing, one, largest)
    coefficient = key_index.round_to_integer(weight * inverse)  # of nothing, every weight is 0
    unit = np.where(nothing, np.float32(0), largest * (one / np.float32(limit)))
    offset = np.zeros(largest.shape, np.float32)
    for c in range(len(low)):
        offset += query[:, :, c, None] * low[c]
    n, group_size, n_blocks = largest.shape
    rows = coefficient.transpose(3, 1, 2, 0).reshape(n_blocks, n * group_size, -1)
    total = (rows @ code).reshape(n_blocks, n, group_size, BLOCK).transpose(1, 2, 0, 3)
    scores: np.ndarray = unit[..., None] * total + offset[..., None]
    return scores.reshape(n, group_size, -1)
