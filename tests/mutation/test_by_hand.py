# SPDX-License-Identifier: Apache-2.0
"""The list of mutants by hand: rows apply after moves and reformatting, and say so when they no longer do."""

from __future__ import annotations

from pathlib import Path

import by_hand
import pytest
from covering import Map

ROOT = Path(__file__).resolve().parents[2]
MUTANT = by_hand.ByHand("top/old/file.cpp", "the sum is folded differently", "(a + c) + b", "(a + b) + c")


def test_every_row_applies() -> None:
    """A change of a line that a row quotes changes the row too."""

    def problem(row: by_hand.ByHand) -> str:
        try:
            path = row.path_in(ROOT)
            assert (
                row.broken(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8") and row.why
            )
        except ValueError as error:
            return str(error)
        return ""

    rows = by_hand.read()
    problems = [text for text in map(problem, rows) if text]
    assert len(rows) <= 200
    assert not problems, "\n".join(problems)


def test_kernels_of_few_bits_meet_the_tests_of_them(tmp_path: Path) -> None:
    """Which do not name what the C++ defines."""
    files = [row.path_in(ROOT).relative_to(ROOT).as_posix() for row in by_hand.read()]
    tests_of = Map(tmp_path, ROOT).tests_of
    for file in {file for file in files if file.startswith("poplar_ops/cpu/")}:
        assert "tests/cpu/test_cpu_few_bits.py" in tests_of(file, 1, 25.0), file


def test_a_header_of_codelets_meets_the_tests_of_the_vertices_that_include_it(tmp_path: Path) -> None:
    """Which name vertices, and seldom what a header defines."""
    tests_of = Map(tmp_path, ROOT).tests_of
    assert "tests/codelets/test_resident_index.py" in tests_of(
        "poplar_ops/codelets/code_products.hpp", 1, 99.0
    )
    assert "tests/codelets/test_softmax.py" in tests_of("poplar_ops/arith/arith.hpp", 1, 99.0)


def test_white_space_does_not_count() -> None:
    assert MUTANT.broken("x = (a  +\n    c) + b;") == "x = (a + b) + c;"


@pytest.mark.parametrize("text", ["", "(a + c) + b; (a + c) + b;"])
def test_a_row_that_no_longer_applies_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"top/old/file.cpp: no longer applies \(the sum is folded"):
        MUTANT.broken(text)


def test_a_moved_file_is_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no longer applies"):
        MUTANT.path_in(tmp_path)
    moved = tmp_path / "top" / "new" / "room" / "file.cpp"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert MUTANT.path_in(tmp_path) == moved
