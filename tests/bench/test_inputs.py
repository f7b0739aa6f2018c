# SPDX-License-Identifier: Apache-2.0
"""bench/lib/inputs.py: random inputs repeat, files are read, other files are refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib import inputs

from sparq_reference import CacheSpec

SPEC = CacheSpec(2, 2, 8, 10)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """What a file holds of layer 3."""
    rng = np.random.default_rng(0)
    return {
        "query_3": rng.standard_normal((1, 4, 5, 16)).astype(np.float16),
        "key_3": rng.standard_normal((1, 2, 50, 16)).astype(np.float16),
        "value_3": rng.standard_normal((1, 2, 50, 16)).astype(np.float16),
    }


def test_random_inputs_repeat() -> None:
    a, b = (inputs.random_inputs(SPEC, 4, seed=5) for _ in range(2))
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
    assert a.query.shape == (2, 4, 8) and a.key.shape == a.value.shape == (2, 2, 10, 8)
    assert (a.key != inputs.random_inputs(SPEC, 4, seed=6).key).any()
    with pytest.raises(ValueError, match="inputs: n_heads must be a multiple of n_kv_heads=2, got 3"):
        inputs.random_inputs(SPEC, 3, seed=0)


def test_blocks_of_positions_differ() -> None:
    made = [
        inputs.random_positions(SPEC, seed, element, block, 10)[which]
        for seed in (0, 1)
        for element in (0, 1)
        for block in (0, 1)
        for which in (0, 1)
    ]
    assert all(part.shape == (2, 10, 8) and part.dtype == np.float16 for part in made)
    assert len({part.tobytes() for part in made}) == 16
    np.testing.assert_array_equal(made[0], inputs.random_positions(SPEC, 0, 0, 0, 10)[0])


def test_files(tmp_path: Path, arrays: dict[str, Any]) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, **arrays, query_a=0, key_a=0, value_a=0)  # of no layer
    loaded = inputs.load_inputs(file, seq_len=20)
    np.testing.assert_array_equal(loaded.query, arrays["query_3"][:, :, -1])
    np.testing.assert_array_equal(loaded.key, arrays["key_3"][:, :, 30:])
    np.testing.assert_array_equal(loaded.value, arrays["value_3"][:, :, 30:])
    for options, text in (
        (dict(layer=4), "inputs: layer must be one of [3], got 4"),
        (dict(seq_len=51), f"inputs: seq_len must be in [1, 50], the positions in {file}, got 51"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            inputs.load_inputs(file, **options)


def test_other_files(tmp_path: Path, arrays: dict[str, Any]) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, **{**arrays, "key_3": arrays["key_3"].astype(np.float32)})
    with pytest.raises(ValueError, match="inputs: key_3 must be float16, got float32"):
        inputs.load_inputs(file)
    np.savez(file, **{**arrays, "value_3": np.array([None, "x"])})
    with pytest.raises(ValueError, match=r"^inputs: value_3 must be an array of numbers, got objects$"):
        inputs.load_inputs(file)
    for name, cut in (("query_3", np.s_[0]), ("value_3", np.s_[0, 0]), ("key_3", np.s_[:, :, :0])):
        np.savez(file, **{**arrays, name: arrays[name][cut]})
        message = r"^inputs: \w+_3 must have 4 dimensions, or 3 without the batch, "
        with pytest.raises(ValueError, match=message):
            inputs.load_inputs(file)
    np.savez(file, key_3=arrays["key_3"])
    message = "inputs: file must hold arrays query_L, key_L and value_L of a layer"
    with pytest.raises(ValueError, match=message):
        inputs.load_inputs(file)
    np.save(tmp_path / "array.npy", arrays["key_3"])
    (tmp_path / "text.npz").write_text("no arrays\n")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:100])
    for name in ("array.npy", "text.npz", "empty.npz", "cut.npz"):
        with pytest.raises(ValueError, match=f"inputs: file must be an .npz file, got .*{name}"):
            inputs.load_inputs(tmp_path / name)
    with pytest.raises(OSError, match="No such file"):
        inputs.load_inputs(tmp_path / "none.npz")
