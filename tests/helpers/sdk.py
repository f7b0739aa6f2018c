# SPDX-License-Identifier: Apache-2.0
"""The declarations of the SDK, and how a use of the API is held against them."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, NamedTuple

from uses import Call, NameUse, TypeUse, Use, is_copy_or_move, normalise, split_parameters

FIDELITY = Path(__file__).resolve().parents[2] / "emulator" / "fidelity"
_FUNCTIONS = ("CXXConstructor", "CXXMethod", "FunctionDecl", "FunctionTemplate", "Function")


class Overload(NamedTuple):
    parameters: tuple[str, ...]
    least: int
    most: int
    from_bindings: bool


class Sdk:
    """What SDK 3.3 declares: `functions` by qualified name, `types`."""

    def __init__(self) -> None:
        self.functions: dict[str, list[Overload]] = {}
        self.types: set[str] = set()
        for file in ("poplar_3_3_declarations.tsv", "also_declared.tsv"):
            for line in (FIDELITY / file).read_text().splitlines():
                if line.startswith(("#", "kind\t")):
                    continue
                kind, declaration, least, most, *_ = [*line.split("\t"), "", "", ""]
                if kind not in _FUNCTIONS:
                    self.types.add(declaration)
                    continue
                name, parameters = declaration.split("(", 1)
                self.functions.setdefault(name, []).append(
                    Overload(
                        tuple(normalise(p) for p in split_parameters(parameters.rsplit(")", 1)[0])),
                        int(least),
                        int(most),
                        file.startswith("poplar_"),
                    )
                )

    def problem(self, use: Use) -> str | None:
        """Why the SDK would not take this; None if it would."""
        if isinstance(use, TypeUse):
            return None if use.name in self.types else f"{use.where}: no type {use.name}"
        if isinstance(use, NameUse):
            return None if use.name in self.functions else f"{use.where}: no function {use.name}"
        if is_copy_or_move(use.declaration):
            return None
        known = self.functions.get(use.declaration.name, [])
        if not known:
            return f"{use.where}: no function {use.declaration.name}"
        same = [o for o in known if o.parameters == use.declaration.parameters]
        if not same:
            return f"{use.where}: no overload {use.declaration}"
        if not any(o.least <= use.n_arguments <= o.most for o in same):
            return f"{use.where}: {use.declaration} with {use.n_arguments} arguments"
        return None

    def rivals(self, calls: Iterable[Call], declared: Iterable[tuple[str, tuple[str, ...]]]) -> set[str]:
        """Overloads of the SDK that a call could have meant by the number of its arguments, and that are not
        among `declared` (name, parameters): where the SDK might choose another function than was tested."""
        there, found = set(declared), set()
        for call in calls:
            name = call.declaration.name
            for o in self.functions.get(name, []):
                if o.least <= call.n_arguments <= o.most and (name, o.parameters) not in there:
                    found.add(f"{name}({', '.join(o.parameters)})")
        return found
