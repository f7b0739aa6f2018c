# SPDX-License-Identifier: Apache-2.0
"""Tables of calls of commands, and of what is added to each: a flag changes something or is refused."""

from __future__ import annotations

import argparse
from typing import Iterable


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    """(call, what is added to it), one by one; a table has them with "; " between them."""
    return [(call, added) for call, words in table.items() for added in words.split("; ")]


def untried(
    command: str, parser: argparse.ArgumentParser, tried: Iterable[tuple[str, str]], *elsewhere: str
) -> set[str]:
    """Arguments of a command that are in none of its (call, words). A call begins with its command's name.

    Args:
        elsewhere: arguments that other tests try.
    """
    meant = {word: action.dest for action in parser._actions for word in action.option_strings}
    words = {word for call, text in tried if call.split()[0] == command for word in text.split()}
    return set(meant.values()) - {meant.get(word) for word in words} - {"help", *elsewhere}
