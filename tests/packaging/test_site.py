# SPDX-License-Identifier: Apache-2.0
"""The documentation site: built without a warning, with every document as its source reads, and the API."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Iterator

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
#: what a page and its source have the same number of
TAGS = ("h2", "h3", "h4", "p", "li", "table", "th", "pre", "code", "strong", "em", "img")


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(hooks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def build(folder: Path, *options: str) -> subprocess.CompletedProcess:
    # Not -q: what it does not print, strict mode does not count.
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(folder), *options]
    environment = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


class Elements(HTMLParser):
    """Counts the elements of a page's text: all, or those in <article>."""

    def __init__(self, html: str, is_page: bool):
        super().__init__()
        self.counts: Counter = Counter()
        self._counts_now = not is_page
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._counts_now |= tag == "article"
        if self._counts_now and tag in TAGS:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._counts_now = False


def page(site: Path, name: str) -> str:
    folder = site if name == "index.md" else site / name[:-3]
    return (folder / "index.html").read_text(encoding="utf-8")


def test_pages_have_what_their_sources_have(site: Path, hooks: Any) -> None:
    """Lists, tables and code as CommonMark reads them, which is how the sources were looked at."""
    from markdown_it import MarkdownIt

    sources = {path.name: path for path in (ROOT / "docs").glob("*.md")}
    sources.update({name: ROOT / path for name, path in hooks.ELSEWHERE.items()})
    assert len(sources) > 15
    for name, source in sources.items():
        html = MarkdownIt("commonmark").enable("table").render(source.read_text(encoding="utf-8"))
        assert Elements(page(site, name), True).counts == Elements(html, False).counts, name


def test_the_api_has_every_public_name(site: Path, hooks: Any) -> None:
    import sparq_ipu
    import sparq_ipu.transformers

    # a text, a dict, and what the reference has
    elsewhere = {"__version__", "RECOMMENDED", "SparqSettings", "WindowSettings"}
    for module in (sparq_ipu, sparq_ipu.transformers):
        html = page(site, f"api/{module.__name__}.md")
        for name in set(module.__all__) - elsewhere:
            assert f'id="{module.__name__}.{name}"' in html, name
    html = page(site, "api/sparq_reference.md")
    for name in ("SparqSettings", "WindowSettings", "CacheSpec"):
        assert f'id="sparq_reference.settings.{name}"' in html, name
    assert "layers, in [1, 1024]" in page(site, "api/sparq_ipu.md")  # of an argument's description


def functions(module: Any) -> Iterator[Any]:
    for member in module.members.values():
        if not member.is_alias:
            if member.is_function:
                yield member
            elif member.is_class or member.is_module:
                yield from functions(member)


@pytest.mark.parametrize("package", ["sparq_ipu", "sparq_reference"])
def test_docstrings_describe_arguments_that_are_there(package: str) -> None:
    """`key, value: ...` describes both."""
    griffe = pytest.importorskip("griffe")
    paths = [ROOT / "python", ROOT / "reference"]
    loaded = griffe.load(package, search_paths=paths, docstring_parser="google")
    quiet = {"warn_unknown_params": False, "warn_missing_types": False, "warnings": False}
    n_described = 0
    for function in functions(loaded):
        if function.docstring is None:
            continue
        known = {parameter.name.lstrip("*") for parameter in function.parameters}
        for section in function.docstring.parse("google", **quiet):
            for described in section.value if section.kind.value == "parameters" else ():
                names = set(re.sub(r" and so on$", "", described.name.replace("*", "")).split(", "))
                n_described += len(names)
                assert names <= known | {"others"}, f"{function.path}: {names - known}"
    assert n_described > 30


def test_a_link_to_nothing_is_an_error(hooks: Any, caplog: pytest.LogCaptureFixture) -> None:
    from types import SimpleNamespace

    def links(markdown: str) -> str:
        at = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
        text: str = hooks.on_page_markdown(markdown, at, None, None)
        return text

    assert links("[a](docs/cpu.md#x) `[b](docs/no.md)` [c](bench/decode.py)") == (
        "[a](cpu.md#x) `[b](docs/no.md)` c"
    )
    assert not caplog.records
    links("[a](docs/no.md)")
    assert "index.md links to docs/no.md, which is not there" in caplog.text
