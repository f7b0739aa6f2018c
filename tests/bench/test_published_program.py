# SPDX-License-Identifier: Apache-2.0
"""The published program as counts, and the sizes that it was measured at."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lib import published_program as published

from sparq_ipu.planning import device_model as models
from sparq_ipu.planning import record


def test_the_largest_caches_that_were_measured():
    """SparQ attention keeps the keys twice."""
    for name, copies, largest in (
        (published.DENSE, 2, record.MEASURED_DENSE),
        (published.SPARQ, 3, record.MEASURED_SPARQ),
    ):
        position = published.N_HEADS * published.HEAD_DIM * published.ITEM
        rows = [m for m in published.measurements() if m.kernel == name]
        assert max(copies * m.batch * m.seq_len * position for m in rows) == largest


def test_messages():
    with pytest.raises(
        ValueError, match=re.escape("device_model: name must be one of bow, gc200, got 'gc2'")
    ):
        models.device_model("gc2")
    with pytest.raises(ValueError, match=re.escape("device_model: share must be in (0, 1], got 0")):
        models.device_model().with_streaming_share(0)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "published_program: kernel must be dense-sram, dense-streaming or sparq-streaming, got 'dense'"
        ),
    ):
        published.remote_copies("dense", 1, 1024)


@pytest.mark.parametrize(
    "rows, row_bytes, tiles",
    [(1, 8, 4), (1, 5000, 4), (3, 1024, 4), (7, 256, 3), (2, 100000, 16), (33, 96, 5), (5, 2048, 1472)],
)
def test_packets_against_an_element_by_element_count(rows, row_bytes, tiles):
    share = -(-rows * row_bytes // tiles)
    share += -share % 8
    pieces: dict = {}
    for at in range(rows * row_bytes):
        pieces[at // row_bytes, at // share] = pieces.get((at // row_bytes, at // share), 0) + 1
    assert published.packets(rows, row_bytes, tiles) == sum(-(-n // 1024) for n in pieces.values())


@pytest.mark.parametrize("seq_len, top_k", [(64, 8), (64, 1), (128, 64), (256, 32), (16, 16)])
def test_sorting_network_against_one_that_sorts(seq_len, top_k):
    """A bitonic top-k carried out: it finds the top_k, and its steps and comparisons are those counted."""
    if top_k == seq_len:
        assert published.sorting_network(3, seq_len, top_k) == published.SortingNetwork(0, 0)
        return
    values = np.random.default_rng(0).permutation(seq_len)
    wanted = np.sort(values)[-top_k:]
    steps = comparisons = 0

    def step(distance, block):
        """Compare and swap at a distance; the order changes from one block of elements to the next."""
        nonlocal steps, comparisons
        steps += 1
        for i in range(len(values)):
            j = i ^ distance
            if i < j < len(values):
                comparisons += 1
                if (values[i] > values[j]) == (i // block % 2 == 0):
                    values[i], values[j] = values[j], values[i]

    size = 1
    while size < top_k:  # sequences of 1, 2, 4, ... become one of twice the size
        distance, size = size, 2 * size
        while distance:
            step(distance, size)
            distance //= 2
    while len(values) > top_k:
        step(top_k, 1 << 30)  # of two sequences the greater half goes to the second one
        kept = [values[i : i + 2 * top_k][-top_k:] for i in range(0, len(values), 2 * top_k)]
        values = np.concatenate(kept)
        distance = top_k // 2
        while distance:
            step(distance, top_k)
            distance //= 2
    assert np.array_equal(np.sort(values), wanted)
    assert published.sorting_network(1, seq_len, top_k, tiles=1) == published.SortingNetwork(
        steps, comparisons
    )


@pytest.mark.parametrize("batch, seq_len, rank, top_k", [(1, 1024, 16, 64), (4, 16384, 32, 128)])
def test_described_bytes_are_those_of_the_algorithm(batch, seq_len, rank, top_k):
    def moved(kernel):
        return sum(
            c.executions * c.bytes for c in published.remote_copies(kernel, batch, seq_len, rank, top_k)
        )

    n_tasks = batch * 32
    assert moved("dense-streaming") == n_tasks * 2 * seq_len * 128 * 2
    # K by components, K and V by positions, the mean value
    assert moved("sparq-streaming") == n_tasks * 2 * (rank * seq_len + 2 * top_k * 128 + 128)
    assert moved("dense-sram") == 0


@pytest.mark.parametrize("kernel, settings", [("dense-streaming", ()), ("sparq-streaming", (32, 128))])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_extrapolation_is_sane(kernel, settings, batch):
    """From 128 to 262144 positions: time grows with length, towards bytes over a rate near the fitted one."""
    model, constants = models.device_model(), models.parameters_file()["published_program"]
    lengths = [128 << i for i in range(12)]
    seconds = [published.modelled_seconds(model, constants, kernel, batch, n, *settings) for n in lengths]
    assert all(b > a for a, b in zip(seconds, seconds[1:]))
    n_bytes = sum(
        c.executions * c.bytes for c in published.remote_copies(kernel, batch, lengths[-1], *settings)
    )
    rate = n_bytes / seconds[-1]
    assert 0.85 * model.streaming_bytes_per_second < rate < model.streaming_bytes_per_second
    assert seconds[0] < 2e-3 * batch  # no constant runs away at short lengths
