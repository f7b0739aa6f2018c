# SPDX-License-Identifier: Apache-2.0
"""With the check, fields are aligned as declared and no better; a load that needs more is then found."""

from __future__ import annotations

import pytest

ON, OFF = {"SPARQ_EMULATOR_CHECK_ALIGNMENT": "1"}, {"SPARQ_EMULATOR_CHECK_ALIGNMENT": "0"}

#: template arguments of a vertex: bytes of alignment that its edge and its state are granted
GRANTED = {
    "half,poplar::VectorLayout::SPAN,0": (2, 4),
    "float,poplar::VectorLayout::ONE_PTR,0": (4, 4),
    "half,poplar::VectorLayout::ONE_PTR,4": (4, 4),
    "float,poplar::VectorLayout::ONE_PTR,8": (8, 8),
    "float,poplar::VectorLayout::SCALED_PTR64,0": (8, 8),
    "float,poplar::VectorLayout::SCALED_PTR128,8": (16, 16),
}


@pytest.mark.parametrize("arguments", GRANTED)
@pytest.mark.parametrize("guard", ["0", "1"])
def test_fields_are_aligned_as_granted_and_no_better(programs, arguments, guard):
    vertex = f"test::Address<{arguments}>"
    at = programs.json("alignment", programs.codelets, vertex, SPARQ_EMULATOR_GUARD=guard, **ON)
    for address, granted in zip(at, GRANTED[arguments]):
        assert address % (2 * granted) == granted
    without = programs.json("alignment", programs.codelets, vertex, **OFF)
    assert [address % granted for address, granted in zip(without, GRANTED[arguments])] == [0, 0]


@pytest.mark.parametrize("vertex", ["ByPointer<8>", "ByCopy"])
def test_loads_that_need_what_is_granted_run(programs, vertex):
    codelets = programs.where / "aligned_codelets.gp"
    assert programs.run("alignment", codelets, f"test::{vertex}", **ON) == "12\n"


def test_a_load_that_needs_more_is_found(programs):
    codelets = programs.where / "aligned_codelets.gp"
    with pytest.raises(RuntimeError, match=r"load of misaligned address .* requires 8 byte alignment"):
        programs.run("alignment", codelets, "test::ByPointer<4>", **ON)
    assert programs.run("alignment", codelets, "test::ByPointer<4>", **OFF) == "12\n"


def test_programs_compute_the_same_with_the_check(programs):
    for name, args in (
        ("vertices", (programs.codelets, 7)),
        ("control", (programs.codelets,)),
        ("stencil", (programs.codelets, 16, 61, 30)),
    ):
        assert programs.run(name, *args, **ON) == programs.run(name, *args, **OFF)
