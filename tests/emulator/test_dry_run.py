# SPDX-License-Identifier: Apache-2.0
"""Dry runs: every step is counted as in a real run, only what decides how often steps run is carried out."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def results(programs):
    return programs.json("dry_run", programs.codelets)


@pytest.mark.parametrize("n, loops", [(0, 5), (3, 4), (10, 0)])
def test_counts_are_those_of_a_real_run(results, n, loops):
    assert results[f"dry{n}"] == results[f"real{n}"]
    assert results[f"real{n}"].get("work", 0) == loops
    assert results[f"real{n}"]["once"] == 1 and "never" not in results[f"real{n}"]
    assert results[f"total{n}"] == 5 * loops + 1


def test_refusals(results):
    assert results["remoteRow"] == "copyFromRemoteBuffer: the engine must not be dry"
    assert results["dependent"] == (
        "dry run: control flow must not depend on data from outside the device, got copy 'start_from_remote'"
    )


def test_streaming_memory_is_counted(results):
    assert results["streaming"] == 4 * 4
