# SPDX-License-Identifier: Apache-2.0
"""Traces: the file holds what was recorded, and other files are refused by name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import refusal

from sparq_ipu import traces

REAL = Path(__file__).resolve().parents[1] / "data" / "smollm2_steps.npz"


def random_layer(seed: int, n_steps: int = 3, n_positions: int = 9) -> traces.TraceLayer:
    """4 query heads on 2 KV heads, head_dim 8."""
    rng = np.random.default_rng(seed)
    shapes = ((n_steps, 4, 8), (2, n_positions, 8), (2, n_positions, 8))
    return traces.TraceLayer(*(rng.standard_normal(shape).astype(np.float16) for shape in shapes))


@pytest.fixture
def trace() -> traces.Trace:
    return traces.Trace({5: random_layer(0), 1: random_layer(1)}, 6, "a text", "prose", "a model")


def test_a_file_holds_the_trace(trace: traces.Trace, tmp_path: Path) -> None:
    path = tmp_path / "no suffix"
    trace.save(path)
    loaded = traces.load(path)
    assert (loaded.start, loaded.text, loaded.kind, loaded.model) == (6, "a text", "prose", "a model")
    assert loaded.layer_numbers == [1, 5]
    for number, layer in trace.layers.items():
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(getattr(loaded.layers[number], name), getattr(layer, name))
    assert (loaded.n_steps, loaded.n_heads, loaded.n_kv_heads, loaded.head_dim) == (3, 4, 2, 8)
    assert loaded.n_positions == 9


def test_steps_append_one_position_each(trace: traces.Trace) -> None:
    layer = trace.layers[1]
    steps = list(layer.steps(trace.start))
    assert len(steps) == 3
    for i, (query, key, value) in enumerate(steps):
        np.testing.assert_array_equal(query, layer.query[i])
        np.testing.assert_array_equal(key[:, 0], layer.key[:, 6 + i])
        np.testing.assert_array_equal(value[:, 0], layer.value[:, 6 + i])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key", lambda a: a.astype(np.float32)),
        ("query", lambda a: a[0]),
        ("value", lambda a: a[:, :0]),
        ("key", lambda a: a[:, 1:]),
        ("value", lambda a: a[:1]),
        ("query", lambda a: a[:, :3]),
        ("query", lambda a: a[:, :, :4]),
    ],
)
def test_arrays_of_a_trace(trace: traces.Trace, name: str, change: Any) -> None:
    layer = trace.layers[5]
    changed = dataclasses.replace(layer, **{name: change(getattr(layer, name))})
    with pytest.raises(
        ValueError, match=rf"^trace: {name}_5 must (be float16 with 3|have shape) .*, not empty, got "
    ):
        dataclasses.replace(trace, layers={**trace.layers, 5: changed})


def test_numbers_and_kinds_of_a_trace(trace: traces.Trace) -> None:
    value = trace.layers[5].value.copy()
    value[0, 8, 7] = np.nan
    layers = {**trace.layers, 5: dataclasses.replace(trace.layers[5], value=value)}
    for change, text in (
        ({"layers": layers}, "trace: value_5 must be finite, got NaN or infinity"),
        ({"layers": {}}, "trace: layers must hold one layer or more, got none"),
        (
            {"kind": "poem"},
            "trace: kind must be one of prose, code, repetition, retrieval, got 'poem'",
        ),
        ({"start": 7}, "trace: start must be the positions less the steps, and 1 or more, got 7"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            dataclasses.replace(trace, **change)  # type: ignore[arg-type]


def test_a_trace_without_a_position_before_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^trace: start must be .* 1 or more, got 0 of 3 positions"):
        traces.Trace({0: random_layer(0, n_positions=3)}, 0, "", "prose", "")


def test_other_files(trace: traces.Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    trace.save(path)
    with np.load(path) as loaded:
        arrays = dict(loaded)
    for change, text in (
        ({"format": np.array("sparq-ipu trace 2")}, "trace: file must hold format 'sparq-ipu trace 1', got"),
        ({"format": None}, "trace: file must be an .npz file with the arrays of a trace, got "),
        ({"value_1": None}, "trace: file must be an .npz file with the arrays of a trace, got "),
        ({"start": np.array(6.5)}, "trace: start must be an integer, got float64 of shape ()"),
        ({"start": np.array([6])}, "trace: start must be an integer, got int64 of shape (1,)"),
        ({"query_1": np.zeros(3, np.float16)}, "trace: query_1 must be float16 with 3 dimensions, not empty"),
        ({"key_1": None, "key_5": None}, "trace: layers must hold one layer or more, got none"),
        ({"key_5": np.array([None])}, "trace: file must be an .npz file with the arrays of a trace, got "),
    ):
        made: dict[str, Any] = {k: v for k, v in {**arrays, **change}.items() if v is not None}
        with path.open("wb") as file:
            np.savez(file, **made)
        assert refusal(traces.load, path).startswith(text)
    path.write_text("none")
    assert refusal(traces.load, path).startswith("trace: file must be an .npz file")
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert refusal(traces.load, path).startswith("trace: file must be an .npz file")
    with pytest.raises(FileNotFoundError):
        traces.load(tmp_path / "absent")


def test_the_trace_of_the_tests() -> None:
    """What tests/data/README.md says of it."""
    real = traces.load(REAL)
    assert (real.text, real.kind, real.start, real.n_steps) == ("play_othello", "prose", 512, 64)
    assert real.layer_numbers == [2, 20]
    assert (real.n_heads, real.n_kv_heads, real.head_dim) == (6, 2, 64)
