# SPDX-License-Identifier: Apache-2.0
"""docs/study.md and docs/accuracy_tables.md hold the figures of the published results, none by hand."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from sparq_study.accuracy import document
from sparq_study.accuracy.runner import read_results

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = "README ANSWER DOCUMENT TABLES HELD_OUT_TABLES LATER_DOCUMENT SETTINGS_DOCUMENT".split()
BLOCK = re.compile(r"<!-- begin (\w+):[^>]*-->\n(.*?)<!-- end \1 -->", re.DOTALL)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """study/accuracy.py, its documents replaced by copies that `--write` may change."""
    spec = importlib.util.spec_from_file_location("study_accuracy", ROOT / "study" / "accuracy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in DOCUMENTS:
        copy = tmp_path / getattr(module, name).name
        copy.write_text(getattr(module, name).read_text())
        monkeypatch.setattr(module, name, copy)
    return module


def published(path: Path) -> str:
    return next(p for p in (ROOT / path.name, ROOT / "docs" / path.name) if p.is_file()).read_text()


def test_documents_are_what_the_results_say(bench):
    """If this fails: run `python study/accuracy.py --write`, and read again what the prose claims."""
    assert bench.main(["--write"]) == 0
    for path in (getattr(bench, name) for name in DOCUMENTS):
        assert path.read_text() == published(path), path.name


def test_an_altered_figure_is_put_right(bench):
    """Negative control: a figure altered by hand, in any block, does not survive."""
    shown = published(bench.DOCUMENT)
    altered = BLOCK.sub(lambda block: re.sub(r"(?<=[ +-])[0-9]", "8", block.group(0)), shown)
    names = dict(BLOCK.findall(shown)).items() - dict(BLOCK.findall(altered)).items()
    assert len(names) == len(BLOCK.findall(shown))  # each of them is another
    bench.DOCUMENT.write_text(altered)
    later = published(bench.LATER_DOCUMENT)
    altered = BLOCK.sub(lambda block: re.sub(r"(?<=[ +-])[0-9]", "8", block.group(0)), later)
    assert len(dict(BLOCK.findall(later)).items() - dict(BLOCK.findall(altered)).items()) == 4
    bench.LATER_DOCUMENT.write_text(altered)
    assert bench.LATER_DOCUMENT.read_text() != later
    settings = published(bench.SETTINGS_DOCUMENT)
    bench.SETTINGS_DOCUMENT.write_text(settings.replace("| yes |", "| no |", 1))
    answer, readme = published(bench.ANSWER), published(bench.README)
    bench.ANSWER.write_text(answer.replace("0.725", "0.825"))
    bench.README.write_text(readme.replace("0.725", "0.825"))
    assert bench.ANSWER.read_text() != answer and bench.README.read_text() != readme
    bench.TABLES.write_text("")
    bench.HELD_OUT_TABLES.write_text("")
    assert bench.main(["--write"]) == 0
    assert bench.DOCUMENT.read_text() == published(bench.DOCUMENT)
    assert bench.LATER_DOCUMENT.read_text() == later
    assert bench.SETTINGS_DOCUMENT.read_text() == settings != settings.replace("| yes |", "| no |", 1)
    assert bench.ANSWER.read_text() == answer and bench.README.read_text() == readme
    assert bench.TABLES.read_text() == published(bench.TABLES)
    assert bench.HELD_OUT_TABLES.read_text() == published(bench.HELD_OUT_TABLES)


def test_blocks_follow_the_results(bench, tmp_path, monkeypatch):
    """Negative control: other results make other tables."""
    lines = read_results(bench.RESULTS)
    for line in lines:
        if (line.get("method"), line.get("task")) == (document.R32, "repetition"):
            line["sums"]["hits"] += 1
    monkeypatch.setattr(bench, "RESULTS", tmp_path / bench.RESULTS.name)
    bench.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bench.main(["--write"]) == 0
    old, new = (dict(BLOCK.findall(text)) for text in (published(bench.DOCUMENT), bench.DOCUMENT.read_text()))
    changed = {name for name in old if old[name] != new[name]}
    assert changed == {"settings", "first_layer", "bits", "more"}
    assert bench.TABLES.read_text() != published(bench.TABLES)


def test_every_block_of_the_document_is_generated(bench):
    names = [name for name, _ in BLOCK.findall(published(bench.DOCUMENT))]
    made = document.blocks(*map(read_results, (bench.RESULTS, bench.HELD_OUT)))
    assert len(names) == len(set(names)) and set(names) == set(made)
    assert published(bench.DOCUMENT).count("<!-- ") == 2 * len(names)


def test_prose_has_no_figures_and_short_lines(bench):
    """A decimal fraction outside the blocks is a figure written by hand, which the data would not correct.
    Tables of code that is gone stand behind the commit that made them, in its section."""
    sections = BLOCK.sub("", published(bench.DOCUMENT)).split("\n## ")
    parts = [re.split(r"\bcommit [0-9a-f]{8}\b", section, maxsplit=1) for section in sections]
    assert sum(len(part) > 1 for part in parts) == 3
    prose = "\n".join(part[0] for part in parts)
    prose += "".join(re.sub(r"^\|.*", "", part, flags=re.MULTILINE) for _, *rest in parts for part in rest)
    assert "[0." in published(bench.DOCUMENT) and "[0." not in prose
    assert re.findall(r"\b\d+\.\d+", re.sub(r"arXiv:[\d.]+", "", prose)) == []
    assert [line for line in prose.splitlines() if len(line) > 160 and not line.startswith("|")] == []


def test_a_method_without_results_is_named(bench):
    lines = [line for line in read_results(bench.RESULTS) if line.get("method") != "oracle"]
    message = r"^accuracy: results must have oracle on lm, got none$"
    with pytest.raises(ValueError, match=message):
        document.differences(lines, document.DIFFERENCES["first_layer"])


def test_differences_of_a_run_that_goes_on(bench):
    """What no context has is left out; a value is that of the contexts that both methods have."""
    lines = read_results(bench.RESULTS)
    first, second = document.RECOMMENDED, "dense"
    some = [
        line
        for line in lines
        if (line.get("method"), line.get("task")) != (second, "multikey")
        and not (line.get("method") == first and line.get("task") == "lm" and line["item"] > 3)
    ]
    wanted = [(first, second, (document.BPC, document.MULTIKEY))]
    table = document.differences(some, wanted, partial=True).splitlines()
    assert len(table) == 3 and table[2].startswith(f"| lm BPC: `{first}` - `dense` | 4 | ")
    of_four = [line for line in lines if line.get("item", 0) < 4]
    assert table[2].split(" | ")[2:] == document.differences(of_four, wanted).splitlines()[2].split(" | ")[1:]
    counts = dict(row.split(" | ")[:2] for row in document.done_table(some).splitlines()[2:])
    assert counts[f"| `{first}`"] == "4" and counts["| `dense`"] == "6"


def test_what_is_told_of_copying():
    """README and docs/accuracy.md say of a sixth of the transfer what the study's table has."""
    table = published(ROOT / "docs/study.md").partition("| repetition: accuracy |")[2].partition("\n\n")[0]
    rows = {
        cells[1].strip(): cells[2:-1] for cells in (row.split("|") for row in table.splitlines()) if cells[1:]
    }
    sixth = {
        name: float(cells[2].split()[0])
        for name, cells in rows.items()
        if cells[2:] and cells[2].strip()[:1] == "0"
    }
    dense = float(rows["dense"][0].split()[0])
    sparq = sixth["SparQ, no mean value in layer 0"]
    rivals = [sixth[f"`{name}`"] for name in ("h2o", "lm_infinite", "alisa")]
    said = [f"{sparq:.2f} of a", f"{min(rivals):.2f} to {max(rivals):.2f}", f"{dense:.2f}"]
    assert said == ["0.90 of a", "0.35 to 0.43", "0.92"]
    for page in (ROOT / "README.md", ROOT / "docs/accuracy.md"):
        text = " ".join(page.read_text().split())
        assert all(words in text for words in said), page.name
