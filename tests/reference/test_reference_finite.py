# SPDX-License-Identifier: Apache-2.0
"""`checks.check_finite` looks at small arrays at once and at large ones by head: with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from sparq_reference import NotFinite, checks

LENGTHS = np.array([3, 0])


@pytest.fixture(params=[0, checks._AT_ONCE], ids=["large", "small"])
def array(request, monkeypatch):
    """(batch 2, heads 3, n 4, head_dim 8), which counts as large or as small."""
    monkeypatch.setattr(checks, "_AT_ONCE", request.param)
    return np.full((2, 3, 4, 8), -65504, np.float16)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
def test_first_in_what_exists(array, lengths, bad):
    checks.check_finite("op", "key", array, lengths)
    array[0, 2, 1, 7] = array[1, 0, 0, 0] = bad
    with pytest.raises(NotFinite, match=r"^op: key must be finite, got -?(nan|inf) at \[0, 2, 1, 7\]$"):
        checks.check_finite("op", "key", array, lengths)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_beyond_a_length(array, bad):
    array[0, 1, 3], array[1] = bad, bad
    checks.check_finite("op", "key", array, LENGTHS)
    with pytest.raises(NotFinite, match=r"at \[0, 1, 3, 0\]$"):  # control: they are seen where they exist
        checks.check_finite("op", "key", array)


def test_views(array):
    """Of any strides, as a caller's tensor may have."""
    turned = array.transpose(0, 1, 3, 2)[..., ::2]
    checks.check_finite("op", "key", turned)
    array[1, 1, 2, 3] = np.nan
    with pytest.raises(NotFinite, match=r"at \[1, 1, 3, 1\]$"):
        checks.check_finite("op", "key", turned)
    array[1, 1, 2, 3], array[1, 1, 3] = 0, np.nan  # control: what the view leaves out
    checks.check_finite("op", "key", turned)


def test_a_large_array_is_not_looked_at_in_one_go(monkeypatch):
    """So that a check needs little memory."""
    sizes = []
    all_finite = checks._all_finite
    monkeypatch.setattr(checks, "_all_finite", lambda x: (sizes.append(x.size), all_finite(x))[1])
    checks.check_finite("op", "key", np.zeros((1, 2, checks._AT_ONCE // 8, 8), np.float16))
    assert sizes == [checks._AT_ONCE] * 2
