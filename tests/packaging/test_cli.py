# SPDX-License-Identifier: Apache-2.0
"""The command `sparq-ipu`, and what it is installed as."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparq_ipu
from sparq_ipu import devices
from sparq_ipu.commands import cli

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_installed_by_that_name():
    scripts = re.search(
        r"^\[project.scripts\]\n((?:.+\n)+)", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert scripts is not None and scripts[1] == 'sparq-ipu = "sparq_ipu.commands.cli:main"\n'
    ran = subprocess.run([sys.executable, "-m", "sparq_ipu", "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"sparq-ipu {sparq_ipu.__version__}\n")


def test_devices(capsys, monkeypatch):
    monkeypatch.setattr(
        "sparq_ipu.devices.why_unavailable", lambda device: "no such chip" if device == "ipu" else None
    )
    assert cli.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(devices.BACKENDS)
    assert lines[0].endswith("  no such chip") and all(line.endswith("  available") for line in lines[1:])
    monkeypatch.undo()
    assert [device for device in devices.BACKENDS if devices.why_unavailable(device) is None] == (
        sparq_ipu.available_devices()
    )


def test_auto_is_the_best_device_that_is_there():
    best_first = ("ipu", "cpu", "emulator", "reference")
    there = [device for device in best_first if devices.why_unavailable(device) is None]
    assert sparq_ipu.KVCache(1, 1, 8, 4).device == there[0]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_gets_what_follows_its_name(command, monkeypatch):
    got = []
    module = importlib.import_module(cli.COMMANDS[command][0])
    monkeypatch.setattr(module, "main", lambda words, prog: got.append((words, prog)) or 3)
    assert cli.main([command, "--model", "x", "--help", "--version"]) == 3
    assert got == [(["--model", "x", "--help", "--version"], f"sparq-ipu {command}")]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_has_the_name_of_the_command(command, capsys):
    name, module = f"sparq-ipu {command}", cli.COMMANDS[command][0]
    for main in (
        lambda: cli.main([command, "--help"]),
        lambda: importlib.import_module(module).main(["--help"]),
    ):
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr().out
        assert stop.value.code == 0 and shown.startswith(f"usage: {name} ")
        assert re.search(rf"^    {re.escape(name)} ", shown, re.MULTILINE)


@pytest.mark.parametrize("words", [[], ["other"], ["devices", "x"]])
def test_bad_usage(words):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2


def test_the_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {sparq_ipu.__version__}\n" in citation
