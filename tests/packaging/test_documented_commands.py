# SPDX-License-Identifier: Apache-2.0
"""The programs take the commands that the documents print, and README's first lines of Python run."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import sparq_ipu

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(p for f in ("docs", "bench", "study") for p in (ROOT / f).glob("*.md"))]
COMMAND = re.compile(
    r"^(?: {4})?(?:OMP_NUM_THREADS=\d+ )?((?:python (?:-m sparq_\w+\.|bench/|study/)|sparq-ipu ).*)$"
)
#: what a module needs that may not be installed
NEEDS = dict.fromkeys(("capture", "decode", "products", "prompt"), "torch")
NEEDS["random_gguf"] = "gguf"


def commands() -> list[str]:
    """Lines that are nothing but a command, without their comments."""
    found = []
    for path in DOCUMENTS:
        for line in re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8")).splitlines():
            match = COMMAND.match(line)
            # The arguments of lm_eval are another program's; test_lm_eval.py tries them.
            if match and "|" not in line and "sparq_study.lm_eval" not in line:
                found.append(re.split(r" +# ", match[1])[0].replace(" ...", "").strip())
    return sorted(set(found))


class Taken(Exception):
    """The arguments were good."""


def taken(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the command's arguments with its own parser, and do nothing.

    Raises:
        SystemExit: it refuses them.
    """
    words = shlex.split(command)
    module, arguments = "sparq_ipu.commands.cli", words[1:]
    if words[0] == "python":
        of_package = words[1] == "-m"
        module = words[2] if of_package else Path(words[1]).stem
        arguments = words[3 if of_package else 2 :]
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    parse = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *given: Any, **options: Any) -> NoReturn:
        parse(self, *given, **options)
        raise Taken

    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "bench"), str(ROOT / "study")])
        main = importlib.import_module(module).main
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed)
        with pytest.raises(Taken):
            main(arguments)


@pytest.mark.parametrize("command", commands())
def test_a_documented_command_is_taken(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(command, monkeypatch)


def test_readme_leads_with_use() -> None:
    """A picture, then three commands before line 40; short enough to be read."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 160 and len(text.encode()) <= 9 * 1024
    for name in ("pip install", "sparq-ipu generate", "sparq-ipu serve", ".enable(model"):
        assert next(i for i, line in enumerate(lines, 1) if name in line) < 40, name


def test_commands_are_found_and_others_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(commands()) > 30 and {command.split()[0] for command in commands()} == {"python", "sparq-ipu"}
    with pytest.raises(SystemExit):
        taken("python bench/ipu_sparq.py --S 64 --no-such-flag", monkeypatch)


def test_the_first_lines_of_python_run() -> None:
    block = re.search(
        r"## Use\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    read = [rows[:, :, :1000] for rows in names["cache"].read()]
    again = sparq_ipu.KVCache(1, 8, 128, 1000, device="reference")
    again.append(*read)
    expected = sparq_ipu.sparq_attention(names["query"], again, rank=32, top_k=128, n_local=16)
    np.testing.assert_array_equal(names["output"].view(np.uint16), expected.view(np.uint16))
