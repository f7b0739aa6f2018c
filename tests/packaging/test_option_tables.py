# SPDX-License-Identifier: Apache-2.0
"""Tables of options in the documents have every option that the code has, and no other."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

import sparq_reference

ROOT = Path(__file__).resolve().parents[2]


def names(page: str, heading: str) -> list[str]:
    """What stands in backquotes in the first column of the table with that heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = text.partition(f"\n{heading}")[2].partition("\n|---")[2].partition("\n\n")[0].splitlines()[1:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_arguments_of_enable() -> None:
    pytest.importorskip("transformers")
    from sparq_ipu.transformers import LayerSettings, enable

    arguments = {*inspect.signature(enable).parameters} - {"model", "options"}
    settings = {field.name for field in dataclasses.fields(LayerSettings)}
    shown = names("docs/models.md", "| argument | default |")
    assert sorted(shown) == sorted(arguments | settings | {"row_bits"})  # of the caches


def test_options_of_a_cache_on_a_cpu() -> None:
    from sparq_ipu.backends import cpu

    shown = names("docs/cpu.md", "| option of `KVCache` |")
    of_all = {"index_bits", "row_bits"}
    assert of_all <= {field.name for field in dataclasses.fields(sparq_reference.CacheSpec)}
    of_cpu = {field.name for field in dataclasses.fields(cpu.Options)}
    assert sorted(shown) == sorted(of_all | {"check_finite"} | of_cpu)


def test_extras() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    found = re.findall(r"^([\w-]+) = ", extras, re.MULTILINE)
    assert len(found) > 5 and sorted(names("docs/install.md", "| extra |")) == sorted(found)


def test_flags_of_generate_have_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """The basic ones come first; few are in no group."""
    from sparq_ipu import generate

    with pytest.raises(SystemExit):
        generate.main(["--help"])
    text = capsys.readouterr().out
    heads = [line.split(" ")[0].rstrip(":") for line in text.splitlines() if re.match(r"\S.*:$", line)]
    groups = ["basic", "settings", "prompts", "sampling", "advanced"]
    assert [head for head in heads if head != "options"] == groups


def test_options_of_a_cache_on_an_ipu() -> None:
    from sparq_ipu.device_options import DeviceOptions

    shown = names("docs/ipu_plans.md", "| option | default | meaning |")
    of_spec = {"row_bits", "index_components"}
    assert of_spec <= {field.name for field in dataclasses.fields(sparq_reference.CacheSpec)}
    of_device = {field.name for field in dataclasses.fields(DeviceOptions)} | {"n_layers"}
    assert sorted(shown) == sorted(of_spec | of_device)


#: commands, their modules, and the pages that name their flags
COMMANDS = {
    "generate": ("sparq_ipu.generate", "docs/models.md"),
    "serve": ("sparq_ipu.serve.command", "docs/serve.md"),
    "plan": ("sparq_ipu.planning.plan_command", "docs/ipu_plans.md"),
}


def flags_of(command: str) -> set[str]:
    module = importlib.import_module(COMMANDS[command][0])
    return {flag for action in module._parser(command)._actions for flag in action.option_strings}


def test_documents_name_flags_that_exist() -> None:
    known = set().union(*map(flags_of, COMMANDS)) | {"--version"}
    for page in {*(page for _, page in COMMANDS.values()), "docs/accuracy.md", "docs/settings.md"}:
        text = (ROOT / page).read_text(encoding="utf-8")
        found = re.findall(r"`(--[a-z][a-z-]*)[ `]", text)
        found += [word for line in re.findall(r"^ *sparq-ipu .*$", text, re.M) for word in line.split()]
        unknown = {flag for flag in found if re.fullmatch(r"--[a-z][a-z-]*", flag)} - known
        assert not unknown, f"{page}: {unknown}"


def test_the_page_of_the_server_names_its_flags() -> None:
    """The others are those of `generate`, whose help lists them."""
    text = (ROOT / COMMANDS["serve"][1]).read_text(encoding="utf-8")
    own = {flag for flag in flags_of("serve") - flags_of("generate") if flag.startswith("--")}
    assert own and not {flag for flag in own if flag not in text}
