# SPDX-License-Identifier: Apache-2.0
"""What IPUs in step agree on."""

from __future__ import annotations

import numpy as np
import pytest
from vertex import run


@pytest.mark.parametrize("of_ipus", [[0], [1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0], [0, 1], [1, 1, 1]])
def test_any_of_ipus(of_ipus: list[int]) -> None:
    fields = dict(ofIpus=np.array(of_ipus, bool), greatest=np.array(not any(of_ipus)))
    assert run("GreatestOfIpus<bool>", fields, nIpus=len(of_ipus))["greatest"] == any(of_ipus)


@pytest.mark.parametrize("of_ipus", [[-3], [7, 0, 5, 6], [0, 2], [-2, -1, -4]])
def test_greatest_of_ipus(of_ipus: list[int]) -> None:
    fields = dict(ofIpus=np.array(of_ipus, np.int32), greatest=np.array(99, np.int32))
    assert run("GreatestOfIpus<int>", fields, nIpus=len(of_ipus))["greatest"] == max(of_ipus)
