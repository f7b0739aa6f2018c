# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ that tells the library about vertices: names here, types from the compiler."""

from __future__ import annotations

import hashlib
from typing import Sequence

from vertices import Vertex


def quote(s: str) -> str:
    return '"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unit_name(source: str, defines: Sequence[str]) -> str:
    """Of the source's object: others may be linked to it later, so no two have the same."""
    with open(source, "rb") as f:
        return hashlib.sha1(f.read() + "\0".join(["", *defines]).encode()).hexdigest()[:16]


def registration_source(source: str, vertices: Sequence[Vertex], unit: str) -> str:
    """A translation unit that includes `source` and defines its table of vertices."""
    out: list[str] = [
        '#include "registration.hpp"',  # first: a source may define macros
        f"#include {quote(source)}",
        "namespace codelet_registration {",
    ]
    tables: list[str] = []
    for i, v in enumerate(vertices):
        x = f"{unit}_{i}"
        for k, name in enumerate(["compute", *v.fields]):
            # The tag makes the friend that Reveal defines visible to argument-dependent lookup.
            out.append(f"struct Tag{x}_{k} {{ friend constexpr auto revealed(Tag{x}_{k}); }};")
            member = f"&{v.cpp_type}::{name}"
            if k == 0:
                member = f"entry(typename ByWorker<{v.cpp_type}>::type(), {member})"
            out.append(f"template struct Reveal<Tag{x}_{k}, {member}>;")
        out.append(f"using V{x} = {v.cpp_type};")
        out.append(f"static bool run{x}(void *p, unsigned worker) {{")
        out.append(f"  return call(*static_cast<V{x} *>(p), revealed(Tag{x}_0()), worker);")
        out.append("}")
        out.append(f"static codelet_abi::Field fields{x}[] = {{")
        for k, f in enumerate(v.fields, 1):
            element = ", codelet_abi::Element::UnsignedInt" if f in v.narrower else ""
            out.append(f"  describe({quote(f)}, revealed(Tag{x}_{k}()){element}),")
        out.append("  {}};")
        out.append(f"static bool place{x}() {{")
        for k in range(1, len(v.fields) + 1):
            out.append(f"  fields{x}[{k - 1}].offset = offsetIn<V{x}>(revealed(Tag{x}_{k}()));")
        out.append("  return true;")
        out.append("}")
        out.append(f"[[gnu::unused]] static const bool placed{x} = place{x}();")
        size = f"kindOf<V{x}>(), sizeof(V{x}), alignof(V{x})"
        tables.append(f"  {{{quote(v.name)}, {size}, fields{x}, {len(v.fields)}u, run{x}, {v.tokens}u}},")
    out.append(f"static const codelet_abi::Vertex vertices{unit}[] = {{")
    out += tables
    out.append("  {}};")
    out.append(f"extern const codelet_abi::Table table{unit};")
    out.append(
        f"const codelet_abi::Table table{unit} = {{codelet_abi::version, {len(vertices)}u, vertices{unit}}};"
    )
    out.append("}")
    return "\n".join(out) + "\n"


def tables_source(units: Sequence[str], asks_worker: bool, shows_events: bool) -> str:
    """The exported function that lists the tables of all units, and what codelets call in the library."""
    out = ['#include "codelet_abi.hpp"', "namespace codelet_registration {"]
    for unit in units:
        out.append(f"extern const codelet_abi::Table table{unit};")
    out.append("}")
    variables = []
    if asks_worker:
        variables.append("codelet_abi::WorkerFunction poplar_codelet_worker = nullptr;")
    if shows_events:
        variables.append("codelet_abi::OverflowFunction poplar_codelet_half_overflow = nullptr;")
    exported = '__attribute__((visibility("default")))'
    out.append('extern "C" {')  # braces: a variable declared `extern` by itself must not be initialised
    out += [f"{exported} {variable}" for variable in variables]
    out.append("}")
    out.append(f'extern "C" {exported}')
    out.append("const codelet_abi::Table *const *poplar_codelet_tables(unsigned *n) {")
    listed = ", ".join(f"&codelet_registration::table{unit}" for unit in units)
    out.append(f"  static const codelet_abi::Table *const tables[] = {{{listed}}};")
    out.append(f"  *n = {len(units)};")
    out.append("  return tables;")
    out.append("}")
    return "\n".join(out) + "\n"
