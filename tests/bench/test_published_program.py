# SPDX-License-Identifier: Apache-2.0
"""The published program as counts, and the sizes that it was measured at."""

from __future__ import annotations

import re

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
    message = re.escape("device_model: name must be one of bow, gc200, got 'gc2'")
    with pytest.raises(ValueError, match=message):
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
