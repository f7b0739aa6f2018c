# SPDX-License-Identifier: Apache-2.0
"""Codelets parse as an IPU's compiler reads them, by libclang: with the signatures of its builtins, without
conversions between vectors, and in each standard that its popc may have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "emulator" / "popc"))
import vertices

cindex = pytest.importorskip("clang.cindex", reason="libclang is not installed")

ROOT = Path(__file__).resolve().parents[2]
CODELETS = sorted((ROOT / "poplar_ops" / "codelets").glob("*.cpp"))
#: an overload for each type that codelets may pass
BUILTINS = """
#pragma once
typedef float float2 __attribute__((vector_size(8)));
#define OVERLOADS(name) \\
  float name(float, float) __attribute__((overloadable)); \\
  float2 name(float2, float2) __attribute__((overloadable));
OVERLOADS(__builtin_ipu_max)
OVERLOADS(__builtin_ipu_min)
OVERLOADS(__builtin_ipu_and)
OVERLOADS(__builtin_ipu_cmpge)
OVERLOADS(__builtin_ipu_cmpgt)
OVERLOADS(__builtin_ipu_cmple)
void __builtin_ipu_f32v2aop(float2, float2, int);
float2 __builtin_ipu_f32v2gina(float2, int);
"""


def problems(source: Path, standard: str, builtins: str = BUILTINS) -> list[str]:
    words = ["-x", "c++", f"-std={standard}", "-Wall", "-Wextra", "-flax-vector-conversions=none"]
    words += [
        "-D__IPU__=1",
        "-D__POPC__=1",
        "-Dhalf=__fp16",
        "-Xclang",
        "-fnative-half-arguments-and-returns",
    ]
    words += [f"-I{ROOT / 'poplar_ops'}", "-isystem", str(ROOT / "emulator" / "include")]
    words += [word for folder in vertices.system_includes(("c++",)) for word in ("-isystem", folder)]
    unit = cindex.Index.create().parse(
        str(source), [*words, "-I/builtins"], unsaved_files=[("/builtins/ipu_builtins.h", builtins)]
    )
    return [str(found) for found in unit.diagnostics if found.severity >= cindex.Diagnostic.Warning]


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17"])
@pytest.mark.parametrize("source", CODELETS, ids=lambda path: path.stem)
def test_a_codelet_parses(source: Path, standard: str) -> None:
    assert problems(source, standard) == []


def test_another_signature_is_noticed() -> None:
    (source,) = (path for path in CODELETS if path.stem == "resident_index")
    other = BUILTINS.replace("f32v2aop(float2, float2, int)", "f32v2aop(float2, float, int)")
    assert other != BUILTINS and any(
        "f32v2aop" in found or "conver" in found for found in problems(source, "c++17", other)
    )
