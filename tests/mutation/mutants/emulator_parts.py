# SPDX-License-Identifier: Apache-2.0
"""Mutants of the emulator's other parts: graphs, programs, costs, what is printed and saved, popc."""

from __future__ import annotations

from . import of

MUTANTS = [
    *of(
        "emulator/src/links.cpp",
        "emulator/tests/test_several_ipus.py",
        [
            (
                "return way == Way::Rung ? 4 : 2;",
                "return way == Way::Rung ? 2 : 4;",
                "more links lead up than across a rung",
            ),
            ("count.syncHops = 1 + numIPUs / 4;", "count.syncHops = numIPUs / 4;", "a hop less"),
        ],
    ),
    *of(
        "emulator/src/clone.cpp",
        "emulator/tests/test_views.py",
        [
            (
                "place(parts, method == TensorCloneMethod::GATHER_AND_PRESERVE_TILE_ORDER_AND_ALIASES)",
                "place(parts, false)",
                "a gathered clone is not gathered",
            ),
            ("k * (run->second.end - run->first) + ", "", "clones lie on one another"),
        ],
    ),
    *of(
        "emulator/src/code_memory.cpp",
        "emulator/tests/test_code_memory.py",
        [
            (
                "if (t.codelets.insert(&type).second)",
                "t.codelets.insert(&type);",
                "each vertex has code of its own",
            ),
            ("(1 + bytes / model_.bytesPerSend)", "1", "a long piece is sent at once"),
        ],
    ),
    *of(
        "emulator/src/control_slice.cpp",
        "emulator/tests/test_dry_run.py",
        [
            ("f.info->direction == Direction::Output || f", "f", "control flow is not computed by Outputs"),
            (
                "    if (p.predicate.valid())\n      reporting_.push_back(&p);",
                "",
                "what compute() reports is left out",
            ),
        ],
    ),
]
