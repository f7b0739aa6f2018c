# SPDX-License-Identifier: Apache-2.0
"""Mutants of headers that the emulator's sources share, and of those that tell of its counts."""

from __future__ import annotations

from . import of

_SRC = "emulator/src"
_TESTS = "emulator/tests/test_"
_DECLARED = f"{_TESTS}toolkit.py::test_what_is_declared_works_or_says_what_it_is"

MUTANTS = [
    *of(
        "emulator/include/poplar/EngineOptions.hpp",
        _DECLARED,
        [("unsigned replicationFactor = 1);", "unsigned replicationFactor = 2);", "two replicas by default")],
    ),
    *of(
        "emulator/include/sparq_emulator/CodeModel.hpp",
        f"{_TESTS}code_memory.py",
        [
            ("perHeader = 12;", "perHeader = 8;", "headers of packets are smaller"),
            ("room = 0x80000 - 0x4c000;", "room = 0x90000 - 0x4c000;", "code lies in interleaved memory"),
        ],
    ),
    *of(
        "emulator/include/sparq_emulator/DeviceModel.hpp",
        f"{_TESTS}several_ipus.py {_TESTS}counters.py",
        [
            (
                "double onChip() const { return compute + exchange + sync; }",
                "double onChip() const { return compute + exchange; }",
                "syncs take no time of a chip",
            ),
        ],
    ),
    *of(
        "emulator/include/sparq_emulator/Errors.hpp",
        f"{_TESTS}code_memory.py",
        [
            (
                "need(need), room(room)",
                "need(room), room(need)",
                "an error swaps what is needed and what there is",
            )
        ],
    ),
    *of(
        f"{_SRC}/code_memory.hpp",
        f"{_TESTS}code_memory.py",
        [
            (
                "return vertex + control + exchange + hostExchange; }",
                "return vertex + control + exchange; }",
                "host exchange is no code",
            ),
            ("    tiles_[tile].headers += packets * model_.perHeader;\n", "", "packets have no headers"),
        ],
    ),
    *of(
        f"{_SRC}/compiler.hpp",
        f"{_TESTS}several_ipus.py",
        [
            (
                "tile / g_.target.getTilesPerIPU()",
                "tile / g_.target.getNumTiles()",
                "all tiles are of the first IPU",
            )
        ],
    ),
    *of(
        f"{_SRC}/floating_point.hpp",
        f"{_TESTS}floating_point.py",
        [
            (
                "fpEvents = fpInvalid | fpDivideByZero | fpOverflow",
                "fpEvents = fpInvalid | fpDivideByZero",
                "nothing stops at an overflow",
            )
        ],
    ),
    *of(
        f"{_SRC}/liveness.hpp",
        f"{_TESTS}liveness.py",
        [
            (
                "extent.end = std::max(extent.end, other.end);",
                "extent.end = other.end;",
                "an extent ends where what it contains does",
            )
        ],
    ),
    *of(
        f"{_SRC}/metadata.cpp",
        f"{_TESTS}refusals.py",
        [("if (metadata.valid())", "if (false)", "metadata are taken for what has none")],
    ),
    *of(
        f"{_SRC}/not_implemented.cpp",
        _DECLARED,
        [
            ('  notImplemented("dumpProgram");\n', "", "a program is written as nothing"),
        ],
    ),
    *of(
        f"{_SRC}/program_impl.hpp",
        f"{_TESTS}programs.py::test_control",
        [("bool checked = false; ", "bool checked = true; ", "every value must have a case")],
    ),
    *of(
        f"{_SRC}/random.hpp",
        f"{_TESTS}random.py::test_numbers_are_an_ipus",
        [("workersPerTile = 6;", "workersPerTile = 5;", "five workers have generators")],
    ),
    *of(
        f"{_SRC}/tile_vertices.hpp",
        f"{_TESTS}floating_point.py",
        [
            (
                "graph.setTileMapping(v, tile);",
                "graph.setTileMapping(v, 0 * tile);",
                "registers are all those of tile 0",
            )
        ],
    ),
    *of(
        f"{_SRC}/control_slice.hpp",
        f"{_TESTS}dry_run.py",
        [
            (
                "variables_.count(variable) != 0;",
                "variables_.count(variable) > 1;",
                "what control flow depends on is not there in a dry run",
            ),
        ],
    ),
    *of(
        f"{_SRC}/core.hpp",
        f"{_TESTS}refusals.py {_TESTS}views.py",
        [
            ("std::uint64_t(128) << 20;", "std::uint64_t(256) << 20;", "streams of twice the size are taken"),
            (
                "if (it != parts_.begin() && std::prev(it)->second.end > begin)\n      --it;",
                "",
                "a mapping begins where an interval does",
            ),
        ],
    ),
    *of(
        f"{_SRC}/elements.hpp",
        f"{_TESTS}refusals.py",
        [
            (
                "      const bool last = it == parts_.end() || it->first >= end;",
                "      const bool last = it == parts_.end();",
                "what lies behind is in a set too",
            )
        ],
    ),
    *of(
        f"{_SRC}/engine_impl.hpp",
        f"{_TESTS}programs.py",
        [
            (
                "bool profiles = true;",
                "bool profiles = false;",
                "an engine has no profile until it is asked for one",
            )
        ],
    ),
    *of(
        f"{_SRC}/regions.hpp",
        f"{_TESTS}views.py",
        [
            (
                "const std::size_t skip = begin - list.starts[i];",
                "const std::size_t skip = 0 * begin;",
                "parts of a list begin where its regions do",
            ),
            (
                "if (length && v == var && b == begin + length) {",
                "if (length && v == var && b >= begin + length) {",
                "gaps between regions vanish",
            ),
            (
                "base -= static_cast<std::int64_t>(d.shape[k]) * d.strides[k];",
                "base -= static_cast<std::int64_t>(d.shape[k] - 1) * d.strides[k];",
                "rows of a view begin late",
            ),
        ],
    ),
]
