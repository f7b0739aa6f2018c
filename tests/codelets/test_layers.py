# SPDX-License-Identifier: Apache-2.0
"""Vertices that take the state of one layer out of those of all, and put it back."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import tensors
from vertex import assert_bits, halves, run, word, words


def numbers(type_name: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    if type_name == "half":
        return tensors("wide", shape, rng)
    return rng.integers(0, 2**32, shape, np.uint32)


#: type, rows, layers, numbers of a row: runs that do and do not give every worker the same
SHAPES = [
    ("half", 2, 3, 512),
    ("half", 6, 2, 64),
    ("half", 1, 5, 4),
    ("unsigned int", 1, 8, 1),
    ("unsigned int", 8, 3, 1),
    ("unsigned int", 2, 4, 9),
]


@pytest.mark.parametrize(("type_name", "n_rows", "n_layers", "width"), SHAPES)
def test_load_and_store_layer(type_name: str, n_rows: int, n_layers: int, width: int) -> None:
    stored, state = numbers(type_name, n_rows, n_layers, width), numbers(type_name, n_rows, width)
    empty = halves(n_rows, width) if type_name == "half" else words(n_rows, width)
    sizes = dict(nLayers=n_layers, nRows=n_rows, width=width)
    for layer in range(n_layers):
        fields = dict(layer=word(layer), stored=stored)
        loaded = run(f"LoadLayer<{type_name}>", dict(fields, state=empty), **sizes)
        assert_bits(loaded["state"], stored[:, layer])
        expected = stored.copy()
        expected[:, layer] = state
        assert_bits(run(f"StoreLayer<{type_name}>", dict(fields, state=state), **sizes)["stored"], expected)


@pytest.mark.parametrize("of_ipus", [[0], [1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0], [0, 1], [1, 1, 1]])
def test_any_of_ipus(of_ipus: list[int]) -> None:
    fields = dict(ofIpus=np.array(of_ipus, bool), greatest=np.array(not any(of_ipus)))
    assert run("GreatestOfIpus<bool>", fields, nIpus=len(of_ipus))["greatest"] == any(of_ipus)


@pytest.mark.parametrize("of_ipus", [[-3], [7, 0, 5, 6], [0, 2], [-2, -1, -4]])
def test_greatest_of_ipus(of_ipus: list[int]) -> None:
    fields = dict(ofIpus=np.array(of_ipus, np.int32), greatest=np.array(99, np.int32))
    assert run("GreatestOfIpus<int>", fields, nIpus=len(of_ipus))["greatest"] == max(of_ipus)
