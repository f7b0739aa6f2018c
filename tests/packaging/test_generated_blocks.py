# SPDX-License-Identifier: Apache-2.0
"""Every generated block of a document is compared, whole, with what generates it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparq_ipu.commands import tables

ROOT = Path(__file__).resolve().parents[2]
BEGIN = re.compile(r"^<!-- begin (\w+): ([^>]*?) -->$", re.MULTILINE)
#: (document, script that writes the block): the tests that compare. Each is an equality of the whole block,
#: so that no figure of it can be another.
COMPARED = {
    ("docs/study.md", "study/accuracy.py"): (
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say",
        "study/tests/accuracy/test_accuracy_documents.py::test_every_block_of_the_document_is_generated",
        "study/tests/accuracy/test_accuracy_documents.py::test_an_altered_figure_is_put_right",
    ),
    ("docs/sparse_methods.md", "study/accuracy.py"): (
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say",
        "study/tests/accuracy/test_accuracy_documents.py::test_an_altered_figure_is_put_right",
    ),
    ("docs/alisa.md", "study/alisa.py"): (
        "study/tests/alisa/test_alisa.py::test_the_document_is_what_the_lines_say",
    ),
    ("docs/device_model.md", "bench/calibrate.py"): (
        "tests/bench/test_calibrate.py::test_the_document_has_what_is_printed",
        "tests/bench/test_on_chip.py::test_the_document_has_what_is_printed",
    ),
    ("docs/ipu_tables.md", "bench/plans.py misses"): (
        "tests/bench/test_misses.py::test_the_document_has_the_table_of_the_rows",
    ),
    ("docs/ipu_tables.md", "bench/plans.py layers"): (
        "tests/bench/test_layers.py::test_the_documents_table_and_what_grows",
    ),
    ("docs/benchmarks.md", "bench/decode.py"): (
        "tests/bench/test_decode.py::test_the_document_is_what_the_rows_say",
        "tests/bench/test_peers.py::test_the_document_is_what_the_rows_say",
    ),
    ("docs/benchmarks.md", "bench/tables.py"): (
        "tests/bench/test_tables.py::test_the_document_is_what_the_rows_say",
    ),
    ("README.md", "bench/headline.py"): ("tests/bench/test_headline.py::test_readme_is_what_the_rows_say",),
    ("README.md", "study/accuracy.py"): (
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say",
        "study/tests/accuracy/test_accuracy_documents.py::test_an_altered_figure_is_put_right",
    ),
    ("docs/accuracy.md", "study/accuracy.py"): (
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say",
        "study/tests/accuracy/test_accuracy_documents.py::test_an_altered_figure_is_put_right",
    ),
    ("docs/settings.md", "study/accuracy.py"): (
        "study/tests/accuracy/test_accuracy_documents.py::test_documents_are_what_the_results_say",
        "study/tests/accuracy/test_accuracy_documents.py::test_an_altered_figure_is_put_right",
    ),
    ("docs/settings.md", "study/weights.py"): (
        "study/tests/test_weights.py::test_the_document_has_the_table_of_the_lines",
    ),
    ("docs/settings.md", "study/prompt_blocks.py"): (
        "study/tests/test_prompt_blocks.py::test_the_document_has_the_tables_of_the_lines",
    ),
    ("docs/reuse.md", "study/reuse.py"): (
        "study/tests/traces/test_reuse_command.py::test_the_document_is_what_the_lines_say",
    ),
    ("docs/ipu_tables.md", "bench/plans.py scaling"): (
        "tests/bench/test_pod.py::test_the_document_has_the_table_of_its_rows",
    ),
    ("docs/ipu_tables.md", "bench/plans.py tiers"): (
        "tests/bench/test_tiers.py::test_the_documents_tables",
        "tests/bench/test_tiers.py::test_the_table_of_recorded_steps",
        "tests/bench/test_tiers.py::test_rows_of_the_document_are_plans_of_today",
    ),
    ("docs/ipu_tables.md", "bench/plans.py recorded"): (
        "tests/bench/test_recorded.py::test_the_documents_have_the_tables_of_the_rows",
    ),
    ("docs/ipu_crossover.md", "bench/plans.py crossover"): (
        "tests/bench/test_crossover.py::test_the_documents_show_the_rows",
    ),
    ("README.md", "bench/plans.py crossover"): (
        "tests/bench/test_crossover.py::test_the_documents_show_the_rows",
    ),
    ("docs/ipu_plans.md", "bench/plans.py recorded"): (
        "tests/bench/test_recorded.py::test_the_documents_have_the_tables_of_the_rows",
    ),
    ("docs/ipu_tables.md", "bench/sweep.py"): (
        "tests/bench/test_sweep.py::test_the_published_tables_are_those_of_the_committed_rows",
    ),
}


def documents() -> list[Path]:
    folders = ("docs", "bench", "examples", "poplar_ops", "python", "reference", "study", "tests")
    return [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]


def test_every_block_has_a_test_that_compares_it() -> None:
    found = set()
    for path in documents():
        text = path.read_text(encoding="utf-8")
        blocks = BEGIN.findall(text)
        assert text.count("<!-- begin ") == len(blocks), f"{path.name}: a block must begin as the others do"
        for name, command in blocks:
            assert text.count(f"<!-- end {name} -->") == 1, f"{path.name}: {name}"
            found.add(
                (
                    str(path.relative_to(ROOT)),
                    re.findall(r"\b(?:bench/plans\.py \w+|(?:bench|study)/\w+\.py\b)", command)[0],
                )
            )
    assert found == set(COMPARED)


@pytest.mark.parametrize("test", [test for tests in COMPARED.values() for test in tests])
def test_the_test_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_replace_block(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- begin x: how -->\nold\n<!-- end x -->\nb\n")
    tables.replace_block(path, "x", "new\\1")
    assert path.read_text() == "a\n<!-- begin x: how -->\nnew\\1\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match=r"replace_block: page\.md must have a block 'y', got none"):
        tables.replace_block(path, "y", "")
