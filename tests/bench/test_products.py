# SPDX-License-Identifier: Apache-2.0
"""bench/products.py: its rows, and that it refuses other bits than the reference."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import products as program
from lib.rates import rows_of


def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--rows", "1", "7", "--inputs", "1024", "--outputs", "512", "--repeats", "2"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    methods = ["int4", "int4, zeros 0", "int8", "torch bfloat16"]
    assert [(r["method"], r["n_rows"]) for r in rows] == [(name, n) for n in (1, 7) for name in methods]
    assert all(0 < r["least"] <= r["gflop_per_s"] <= r["most"] for r in rows)


def test_calls_are_timed_by_turns_after_one_that_is_not() -> None:
    calls: list[str] = []
    timed = {name: (1e9, lambda name=name: calls.append(name)) for name in "ab"}
    rows = rows_of(timed, 3, "python x.py", n_rows=1)
    assert calls == ["a", "b"] * 4 and [row["repeats"] for row in rows] == [3, 3]


@pytest.mark.parametrize("bits", [8, 4])
def test_other_bits_are_refused(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = program.few_bits_product

    def product(*given: Any) -> np.ndarray:
        return original(*given) * (1.01 if given[-1] == bits else 1)

    monkeypatch.setattr(program, "few_bits_product", product)
    with pytest.raises(AssertionError, match=f"int{bits}: other bits than the reference"):
        program.main(["--rows", "1", "--inputs", "1024", "--outputs", "512", "--repeats", "1"])
