# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml does not say itself: pages that are elsewhere in the repository, links, the API reference.

Documents link to one another, and to sources, as files of the repository. On the site, a link to a document
is one to its page; a link to a source is its text alone. A link to what is not there is a warning, and so an
error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: pages that are not in docs/: where they are
ELSEWHERE = {
    "index.md": "README.md",
    "emulator.md": "emulator/README.md",
    "emulator_reference.md": "emulator/reference.md",
    "emulator_errors.md": "emulator/errors.md",
    "emulator_programs.md": "emulator/programs.md",
    "reference.md": "reference/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
#: pages of the API reference: what is described
API = {
    "sparq_ipu": ["sparq_ipu"],
    "sparq_ipu.transformers": ["sparq_ipu.transformers"],
    "sparq_ipu.torch": ["sparq_ipu.torch"],
    "sparq_ipu.poptorch": ["sparq_ipu.poptorch"],
    "sparq_ipu.planning": ["sparq_ipu.planning"],
    "sparq_ipu.traces": ["sparq_ipu.traces"],
    "sparq_study.traces": ["sparq_study.traces"],
    "sparq_ipu.kernels": ["sparq_ipu.kernels"],
    "sparq_reference": ["sparq_reference.settings", "sparq_reference.errors", "sparq_reference.cache"],
    "sparq_reference.exact": ["sparq_reference.twin", "sparq_reference.exact_twin"],
    "sparq_reference.ideal": ["sparq_reference.ideal_twin"],
    "sparq_reference.transfers": ["sparq_reference.transfers"],
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> Any:
    """The API reference in the navigation."""
    config.nav.append({"API": [{name: f"api/{name}.md"} for name in API]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that are not in docs/."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, modules in API.items():
        text = "\n\n".join(f"::: {module}" for module in modules) + "\n"
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links between files of the repository become links between pages."""
    own = page.file.src_uri
    if own.startswith("api/"):
        return markdown
    home = posixpath.dirname(ELSEWHERE.get(own, f"docs/{own}"))
    pages = {source: name for name, source in ELSEWHERE.items()}

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"\w+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(home, path))
        if not (ROOT / path).exists():
            _log.warning("%s links to %s, which is not there", own, target)
        if path in pages:
            there = pages[path]
        elif path.startswith("docs/"):
            there = path[len("docs/") :]
        else:
            return text
        there = posixpath.relpath(there, posixpath.dirname(own) or ".")
        return f"{mark}[{text}]({there}{'#' + anchor if anchor else ''})"

    # a link's text may have code in it, so code is hidden from the search for links, not cut out
    kept: list[str] = []

    def hide(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    hidden = _LINK.sub(link, _CODE.sub(hide, markdown))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], hidden)
