# SPDX-License-Identifier: Apache-2.0
"""study/rows.py: its errors are those of the study's methods on a trace."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rows as bench  # noqa: E402

from sparq_study import traces  # noqa: E402
from sparq_study.accuracy.methods import Dense, Span, parse_method  # noqa: E402

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_steps.npz"


def test_errors_are_those_of_the_methods(tmp_path, capsys):
    """Step by step, with a span of its own for each."""
    whole = traces.load(REAL)
    layer, n = whole.layers[20], whole.start + 33
    part = traces.TraceLayer(layer.query[:33, :3], layer.key[:1, :n], layer.value[:1, :n])
    trace = dataclasses.replace(whole, layers={20: part})
    path, out = tmp_path / "trace", tmp_path / "lines"
    trace.save(path)
    assert bench.main(["--input", str(path), "--k", "48", "--json", str(out)]) == 0
    (line,) = [json.loads(text) for text in out.read_text().splitlines()]
    assert json.loads(capsys.readouterr().out) == line
    layer = trace.layers[20]
    found = {rows: [] for rows in ("int8_row", "int8_block")}
    against_dense = []
    for step in range(33):
        n = trace.start + step + 1
        query = torch.tensor(layer.query[step].astype(np.float32))[None, :, None]
        key, value = (torch.tensor(x[:, :n].astype(np.float32)) for x in (layer.key, layer.value))
        span = Span(query, key, value, 20, 64**-0.5)
        text = "sparq:k=48,mean_from=-1,index_bits=4"
        plain, dense = parse_method(text).attend(span).numpy()[0], Dense().attend(span).numpy()[0]
        for head in range(3):
            against_dense.append(
                np.linalg.norm(plain[head, 0] - dense[head, 0]) / np.linalg.norm(dense[head, 0])
            )
            for rows, errors in found.items():
                got = parse_method(f"{text},rows={rows}").attend(span).numpy()[0]
                errors.append(np.linalg.norm(got[head, 0] - plain[head, 0]) / np.linalg.norm(plain[head, 0]))
    assert line["n_outputs"] == 33 * 3
    for rows, errors in found.items():
        assert line["against_fp16_rows"][rows] == pytest.approx(np.mean(errors), abs=2e-6)
    assert line["against_dense"]["fp16"] == pytest.approx(np.mean(against_dense), abs=2e-6)


def test_refusals(tmp_path, capsys):
    for words, text in (
        (["--input", str(REAL), "--k", "0"], "--every and --k must be at least 1, got 0"),
        (["--input", str(tmp_path / "none")], "No such file or directory"),
    ):
        with pytest.raises(SystemExit):
            bench.main(words)
        assert text in capsys.readouterr().err
