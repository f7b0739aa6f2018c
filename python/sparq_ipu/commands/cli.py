# SPDX-License-Identifier: Apache-2.0
"""The command `sparq-ipu`, also `python -m sparq_ipu`: one name for the commands of the package.

sparq-ipu devices                  list the devices, and why one is not available
sparq-ipu generate --help          continue a text
sparq-ipu serve --help             serve a model over HTTP
sparq-ipu plan --help              predict what SparQ gains on this CPU, or plan a model on IPUs
"""

from __future__ import annotations

import argparse
import importlib
import sys

import sparq_ipu
from sparq_ipu.commands.command_line import Parser, guarded

#: for each command, the module with its `main`, and a line about it
COMMANDS = {
    "generate": ("sparq_ipu.generate", "continue a text with a model, and report its speed"),
    "serve": ("sparq_ipu.serve.command", "serve a model over HTTP, with an OpenAI-compatible API"),
    "plan": (
        "sparq_ipu.planning.plan_command",
        "predict what SparQ gains on this CPU, or plan a model on IPUs",
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="sparq-ipu", description="SparQ attention for IPUs and CPUs.")
    parser.add_argument("--version", action="version", version=f"sparq-ipu {sparq_ipu.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    about = "list the devices, and why one is not available"
    commands.add_parser("devices", help=about, description=f"{about.capitalize()}.")
    for name, (_, does) in COMMANDS.items():
        commands.add_parser(name, help=does, add_help=False)
    return parser


def devices() -> str:
    """A line for each device."""
    from sparq_ipu.devices import BACKENDS, why_unavailable

    reasons = {device: why_unavailable(device) for device in BACKENDS}
    width = max(len(device) for device in reasons)
    lines = [f"{device:{width}}  {reason or 'available'}" for device, reason in reasons.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    return guarded(_main, argv)


def _main(argv: list[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    # what follows the name of a command is that command's own
    arguments, rest = _parser().parse_known_args(words[:1])
    if arguments.command == "devices":
        _parser().parse_args(words)
        print(devices())
        return 0
    module = importlib.import_module(COMMANDS[arguments.command][0])
    status: int = module.main([*rest, *words[1:]], prog=f"sparq-ipu {arguments.command}")
    return status
