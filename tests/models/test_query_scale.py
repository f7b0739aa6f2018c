# SPDX-License-Identifier: Apache-2.0
"""The factor of a model's scores: left out where it is 1 but for rounding, so that it changes no bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from sparq_ipu.transformers.cache.attend import half_of  # noqa: E402


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("off", "changes"), [(0.0, False), (5e-7, False), (2e-6, True), (1e-3, True)])
def test_a_factor_of_nearly_one_changes_no_bit(off: float, changes: bool, sign: int) -> None:
    between = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11])  # ties: the least factor moves one of the two
    scaled = half_of(between, 1 + sign * off)
    assert (scaled.tolist() != [1.0, 1 + 2**-9]) == changes
