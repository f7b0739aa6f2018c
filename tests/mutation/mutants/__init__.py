# SPDX-License-Identifier: Apache-2.0
"""The list of mutants: small breaks of the source, each of which a test must notice.

One module for each part of the project; each has a list `MUTANTS`, made by `of`.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import pkgutil
from typing import Sequence, Tuple, Union

#: (old text, new text, what is broken), and for a break that no test can see, the reason
Change = Union[Tuple[str, str, str], Tuple[str, str, str, str]]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One break of one file."""

    #: folder and name of the file, and its number there
    name: str
    #: in the tree
    file: str
    #: occurs exactly once in the file
    old: str
    new: str
    #: arguments of pytest; one of these tests must fail
    tests: tuple[str, ...]
    #: what is broken
    why: str
    #: why no test fails; "": one must
    survives: str = ""


def of(file: str, tests: str, changes: Sequence[Change]) -> list[Mutant]:
    """Mutants of one file, all caught by the same tests; `tests` are arguments of pytest."""
    depth = 3 if file.startswith("emulator/") else 2  # it has names that the operators have
    name = "/".join(file.split("/")[-depth:]).rsplit(".", 1)[0]
    return [
        Mutant(f"{name}-{number}", file, change[0], change[1], tuple(tests.split()), *change[2:])
        for number, change in enumerate(changes, 1)
    ]


def parts() -> dict[str, list[Mutant]]:
    """Every mutant, by the module that lists it. Those of a file, and of a header of its name, are numbered
    through all modules."""
    count: collections.Counter[str] = collections.Counter()
    listed: dict[str, list[Mutant]] = {}
    for part in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        listed[part] = []
        for mutant in importlib.import_module(f"{__name__}.{part}").MUTANTS:
            of_file = mutant.name.rpartition("-")[0]
            count[of_file] += 1
            listed[part].append(dataclasses.replace(mutant, name=f"{of_file}-{count[of_file]}"))
    return listed


def every() -> list[Mutant]:
    """Every mutant."""
    return [mutant for mutants in parts().values() for mutant in mutants]
