# SPDX-License-Identifier: Apache-2.0
"""Vertices alone: of each the estimate of its cycles, and edges and settings that it runs with, from
counted_vertices.tsv and the comments of the codelets. Tests and bench/hardware_day.py run them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Iterator

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CODELETS = ROOT / "poplar_ops" / "codelets"
SOURCE = "\n".join(path.read_text() for path in sorted(CODELETS.glob("*.cpp")))
TABLE = Path(__file__).with_name("counted_vertices.tsv")

#: what several cases have: all positions of a part in one segment; blocks of a key index
SHORT = {
    "SEGMENT": "n=1920; stride=length=partPositions=filled=n; nWaves=1; chunk=64",
    "BLOCKS": "columnWords=nBlocks*(2*indexBits+1); limit=127.0; length=partPositions=filled=nBlocks*64",
    "RESIDENT": "nBlocks=6; groupSize=4; rank=32; headDim=nComponents=64; components=arange(rank); "
    "indexBits=4; BLOCKS",
}


def case(line: str) -> tuple[str, tuple[str, str]]:
    vertex, estimate, text = line.split("\t")
    for name in ("RESIDENT", "BLOCKS", "SEGMENT"):
        text = text.replace(name, SHORT[name])
    return vertex, (estimate, text)


#: of a vertex its estimate, and what it runs with: settings, and edges that are not zero. Others have the
#: sizes that the comments of the codelet say
CASES = dict(map(case, TABLE.read_text().splitlines()[1:]))

DTYPES = {
    "Floats": np.float32,
    "Halves": np.float16,
    "Words": np.uint32,
    "Ints": np.int32,
    "unsigned": np.uint32,
}
DTYPES.update(int=np.int32, bool=np.bool_)


def marks_of(pieces: int, selected: int) -> np.ndarray:
    """Marks of so many positions, spread evenly."""
    marks = np.zeros(pieces, np.uint32)
    for position in np.arange(selected) * 32 * pieces // selected:
        marks[position // 32] |= np.uint32(1 << (position % 32))
    return marks


def counts_of(marks: np.ndarray) -> np.ndarray:
    """Of every two words."""
    return np.array([sum(bin(word).count("1") for word in two) for two in marks.reshape(-1, 2)], np.float32)


def filled_with(dtype: Any) -> Any:
    return lambda value, n: np.full(n, value, dtype)


NAMES = dict(arange=np.arange, array=np.array, floats=filled_with(np.float32), halves=filled_with(np.float16))
NAMES.update(words=filled_with(np.uint32), marks_of=marks_of, counts_of=counts_of, min=min)


def evaluated(text: str, **given: int) -> dict[str, Any]:
    """The assignments, but for what is given."""
    values: dict[str, Any] = {}
    for statement in filter(None, map(str.strip, text.split(";"))):
        *targets, expression = re.split(r"(?<![=!<>])=(?!=)", statement)
        for target in targets:
            values[target] = given.get(target, eval(expression, {**NAMES, **values}))
    return values


def runs(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """As the case says, and with each argument doubled that is a number."""
    formula, text = CASES[name]
    values = evaluated(text)
    yield "", values
    for argument in dict.fromkeys(re.findall(r"[a-zA-Z]\w*", formula.partition("(")[2])):
        if re.search(rf"\b{argument}=\d+(;|$)", text):
            yield argument, evaluated(text, **{argument: 2 * values[argument]})


def call_of(name: str, values: dict[str, Any]) -> str:
    return re.sub(
        r"\b[a-z]\w*\b(?!\()",
        lambda m: m[0] if m[0] in ("true", "false") else str(int(values[m[0]])),
        CASES[name][0],
    )


def fields_of(source: str, vertex: str) -> Iterator[tuple[str, str, str]]:
    """Kind (Floats, Halves, Words, Ints, or a scalar's type), name and shape of each field that is an edge,
    as the comment of its declaration has it; and (as "setting") name and type of all others."""
    name, _, element = vertex.partition("<")
    declared = re.search(rf"^(?:template <class T> )?struct {name} : .*?compute\(", source, re.M | re.S)
    assert declared is not None, vertex
    whole = {"half>": "Halves", "float>": "Floats", "unsigned int>": "Words"}.get(
        element, element.rstrip(">")
    )
    vectors = r"(Floats|Halves|Words|Ints|WholeWords)(?:InOut|In|Out)"
    others = r"poplar::(?:InOut|Input|Output)<(?:(\w+)|poplar::Vector<T, ONE_PTR(?:, 8)?>)>"
    comment = r"(?: *// (?:((?:\[[^]]*\])+)|the same))?"
    edge = re.compile(rf"^  (?:{vectors}|{others}) ([\w, ]+);{comment}", re.M)
    shape = ""
    for vector, scalar, names, own_shape in edge.findall(declared[0]):
        shape = own_shape or shape
        for field in names.split(", "):
            yield (
                (whole if scalar == "T" else scalar) or vector.replace("Whole", "") or whole,
                field,
                "" if scalar else shape,
            )
    for kind, names in re.findall(r"^  (unsigned|float|bool) ([^;(]+);", declared[0], re.M | re.S):
        for field in re.split(r",\s*", names):
            yield "setting", field, kind


def arguments_of(name: str, values: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Edges of a vertex, of the sizes that its source says, and its settings."""
    names = {"nLayers": 1, **values}
    fields, settings = {}, {}
    for kind, field, shape in fields_of(SOURCE, name.partition("#")[0]):
        given = values.get(field)
        if kind == "setting":
            settings[field] = {"float": float, "bool": bool, "unsigned": int}[shape](given or 0)
        elif not shape:
            fields[field] = np.array(given or 0, DTYPES[kind])
        elif isinstance(given, np.ndarray):
            fields[field] = given if given.dtype == np.float16 else given.astype(DTYPES[kind])
        else:
            text = re.sub(r"ceil\((\w+) / (\d+)\)", r"-(-\1 // \2)", shape).replace(" / ", " // ")
            sizes = [int(eval(size, {}, names)) for size in re.findall(r"\[([^]]*)\]", text)]
            fields[field] = np.zeros(int(np.prod(sizes)), DTYPES[kind])
    return fields, settings


def estimates() -> dict[tuple[str, str], int]:
    """Of each vertex and each of its `runs`, the estimate as a graph gets it. Needs a C++ compiler."""
    calls = {(name, run): call_of(name, values) for name in CASES for run, values in runs(name)}
    includes = "".join(f'#include "{path.name}"\n' for path in sorted(CODELETS.glob("*.cycles.hpp")))
    prints = "".join(f'std::printf("%llu\\n", 0ull + {call});\n' for call in calls.values())
    compiler = shutil.which("c++")
    assert compiler is not None, "c++ is not installed"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "estimates.cpp", Path(folder) / "estimates"
        source.write_text(
            f"{includes}#include <cstdio>\nusing namespace sparq::cycles;\nint main() {{\n{prints}}}\n"
        )
        subprocess.run([compiler, "-std=c++17", f"-I{CODELETS}", str(source), "-o", str(binary)], check=True)
        lines = subprocess.run([str(binary)], capture_output=True, check=True, text=True).stdout.split()
    return {key: int(cycles) for key, cycles in zip(calls, lines)}
