# SPDX-License-Identifier: Apache-2.0
"""Mutants of the emulator's other parts: graphs, programs, costs, what is printed and saved, popc."""

from __future__ import annotations

from . import of

_SRC = "emulator/src"
_TESTS = "emulator/tests/test_"
_DECLARED = f"{_TESTS}toolkit.py::test_what_is_declared_works_or_says_what_it_is"
_REFUSED = f"{_TESTS}refusals.py"

MUTANTS = [
    *of(
        f"{_SRC}/links.cpp",
        f"{_TESTS}several_ipus.py",
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
        f"{_SRC}/elements.cpp",
        _REFUSED,
        [
            (
                "    if (part.end > end)\n      it =",
                "    if (part.end < end)\n      it =",
                "what lies behind is removed too",
            )
        ],
    ),
    *of(
        f"{_SRC}/clone.cpp",
        f"{_TESTS}views.py",
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
        f"{_SRC}/code_memory.cpp",
        f"{_TESTS}code_memory.py",
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
        f"{_SRC}/control_slice.cpp",
        f"{_TESTS}dry_run.py",
        [
            ("f.info->direction == Direction::Output || f", "f", "control flow is not computed by Outputs"),
            (
                "    if (p.predicate.valid())\n      reporting_.push_back(&p);",
                "",
                "what compute() reports is left out",
            ),
        ],
    ),
    *of(
        f"{_SRC}/counters.cpp",
        f"{_TESTS}counters.py {_TESTS}dry_run.py",
        [
            ("r.back().executions = executions[i];", "r.back().executions = 1;", "every step ran once"),
        ],
    ),
    *of(
        f"{_SRC}/cycle_counter.cpp",
        f"{_TESTS}random.py::test_the_cycle_counter_counts_the_host_where_it_is_asked_to",
        [('if (std::string(counter) != "host")', "if (false)", "any word asks for the host's time")],
    ),
    *of(
        f"{_SRC}/device.cpp",
        _REFUSED,
        [("if (numIPUs == 0 || tilesPerIPU == 0)", "if (numIPUs == 0)", "a device may have no tiles")],
    ),
    *of(
        f"{_SRC}/graph.cpp",
        _REFUSED,
        [
            ("if (lowerTile >= upperTile)", "if (lowerTile > upperTile)", "a virtual graph may have no tile"),
        ],
    ),
    *of(
        f"{_SRC}/liveness.cpp",
        f"{_TESTS}liveness.py",
        [
            ("onTile_[a.tile] -= a.bytes;", "onTile_[a.tile] -= 0;", "what is dead takes memory"),
        ],
    ),
    *of(
        f"{_SRC}/print.cpp",
        f"{_TESTS}programs.py::test_printed_tensors",
        [
            (
                "largest < std::pow(10.0, digits)",
                "largest < std::pow(10.0, digits + 4)",
                "large numbers have too many digits",
            ),
        ],
    ),
    *of(
        f"{_SRC}/profile_value.cpp",
        _DECLARED,
        [("if (c == '\"' || c == '\\\\')", "if (c == '\\\\')", "quotes end a string")],
    ),
    *of(
        f"{_SRC}/program.cpp",
        _REFUSED,
        [
            ("if (t.rank() != 0)", "if (t.rank() > 1)", "a list of one is a predicate"),
        ],
    ),
    *of(
        f"{_SRC}/quarter.cpp",
        f"{_TESTS}quarter.py {_REFUSED}",
        [("if (scale < -32 || scale > 31)", "if (scale < -32 || scale > 32)", "a scale of seven bits")],
    ),
    *of(
        f"{_SRC}/random.cpp",
        f"{_TESTS}random.py::test_a_saved_executable_gives_what_it_gave {_TESTS}random.py",
        [
            (
                "static_cast<std::uint64_t>(seeds[2 * i + 1]) << 32;",
                "static_cast<std::uint64_t>(seeds[2 * i + 1]) << 31;",
                "seeds are moved by a bit",
            ),
        ],
    ),
    *of(
        f"{_SRC}/reads.cpp",
        f"{_TESTS}toolkit.py::test_reads_of_what_nobody_wrote_are_reported",
        [
            ("if (gap && reported_.insert(who).second)", "if (gap)", "a read is reported each time"),
        ],
    ),
    *of(
        f"{_SRC}/rearranger.cpp",
        _DECLARED,
        [("std::sort(parts.begin(), parts.end());", "", "nothing is put back to its place")],
    ),
    *of(
        f"{_SRC}/replication.cpp",
        _REFUSED,
        [
            (
                "stream.mode != ReplicatedStreamMode::BROADCAST",
                "false",
                "all streams bring all replicas the same",
            ),
        ],
    ),
    *of(
        f"{_SRC}/runtime_vertices.cpp",
        f"{_TESTS}programs.py::test_every_kind_of_field",
        [
            (
                "const unsigned less = worker >= workerCount;",
                "const unsigned less = worker > workerCount;",
                "a worker takes a matrix too many",
            )
        ],
    ),
    *of(
        f"{_SRC}/saved_tensors.cpp",
        _DECLARED,
        [('out << tile << " " << i.begin()', 'out << 0 << " " << i.begin()', "tensors are saved on tile 0")],
    ),
    *of(
        f"{_SRC}/target_properties.cpp",
        _DECLARED,
        [("return {-65504.0L, 65504.0L};", "return {0, 65504.0L};", "halves are not negative")],
    ),
    *of(
        f"{_SRC}/tensor.cpp",
        f"{_TESTS}views.py {_REFUSED}",
        [
            (
                "p[i].begin < p[i - 1].begin + p[i - 1].length)",
                "p[i].begin + 1 < p[i - 1].begin + p[i - 1].length)",
                "one element may be there twice",
            )
        ],
    ),
    *of(
        f"{_SRC}/vertices.cpp",
        _REFUSED,
        [
            (
                "if (f.info->direction != Direction::Input) {\n    if (t.containsConstant())",
                "if (f.info->direction != Direction::Input) {\n    if (false)",
                "constants are written",
            ),
        ],
    ),
    *of(
        f"{_SRC}/compile_vertices.cpp",
        _REFUSED,
        [
            ("if (a.var == b.var && b.begin < a.end)", "if (false)", "two vertices write one element"),
        ],
    ),
    *of(
        "emulator/popc/code_size.py",
        f"{_TESTS}popc.py::test_comments_are_no_code",
        [("token.kind != comment", "True", "comments take code")],
    ),
    *of(
        "emulator/popc/objects.py",
        f"{_TESTS}popc.py::test_objects_are_linked_with_one_another {_TESTS}popc.py::test_errors",
        [("os.path.splitext(n)[0]: archive", "n: archive", "objects keep their endings")],
    ),
    *of(
        "emulator/popc/registration.py",
        f"{_TESTS}popc.py::test_one_source_with_two_definitions_is_two_objects",
        [
            (
                'f.read() + "\\0".join(["", *defines]).encode()',
                "f.read()",
                "one source with two definitions is one object",
            )
        ],
    ),
    *of(
        "emulator/popc/vertices.py",
        f"{_TESTS}popc.py::test_names_and_fields "
        f"{_TESTS}popc.py::test_enumerators_bools_and_numbers_in_names",
        [
            (
                "                result += self.fields(base)\n",
                "                pass\n",
                "fields of base classes are not there",
            ),
        ],
    ),
    *of(
        "emulator/popc/widths.py",
        f"{_TESTS}popc.py::test_elsewhere_it_is_a_warning {_TESTS}popc.py::test_what_has_one_width_passes",
        [
            ('.split("::")[-1] in SAME_EVERYWHERE', " in SAME_EVERYWHERE", "std::uint64_t has 32 bits"),
        ],
    ),
    *of(
        f"{_SRC}/describe.cpp",
        f"{_TESTS}programs.py::test_every_kind_of_field",
        [("f.info->direction != codelet_abi::Direction::Input;", "false;", "vertices write nothing")],
    ),
    *of(
        f"{_SRC}/device_manager.cpp",
        f"{_TESTS}several_ipus.py",
        [
            ("attachedIPUs.count(d.firstIPU + i)", "attachedIPUs.count(d.id)", "two own an IPU"),
            ("attachedIPUs.erase(d.firstIPU + i);", "attachedIPUs.count(i);", "an IPU is never free again"),
        ],
    ),
    *of(
        f"{_SRC}/engine.cpp",
        f"{_REFUSED} {_TESTS}floating_point.py",
        [
            ("if (row >= b.repeats)", "if (row > b.repeats)", "a row behind the last is read"),
            (
                "if (bytes == 0 || bytes % transfer)",
                "if (bytes == 0)",
                "a stream's buffer may end within a transfer",
            ),
            ('readJSONFromEnv("POPLAR_ENGINE_OPTIONS", all);', "", "the environment sets no option"),
        ],
    ),
    *of(
        f"{_SRC}/compile.cpp",
        f"{_REFUSED} {_TESTS}programs.py::test_control",
        [("    if (f == id)", "    if (f == id && false)", "a function may call itself")],
    ),
    *of(
        f"{_SRC}/compile_copies.cpp",
        f"{_REFUSED} {_TESTS}counters.py {_TESTS}views.py",
        [
            (
                "if (leftInRow == 0) {\n                                        close();",
                "if (leftInRow == 0) {",
                "a packet spans rows",
            ),
            ("if (srcTile != dstTile)", "if (true)", "copies within a tile are exchanged"),
        ],
    ),
    *of(
        f"{_SRC}/codelets.cpp",
        f"{_REFUSED} {_TESTS}toolkit.py::test_a_plain_build_line_and_codelets_compiled_at_run_time",
        [
            (
                "return WIFEXITED(status) ? WEXITSTATUS(status)",
                "return WIFEXITED(status) ? 0",
                "popc never fails",
            )
        ],
    ),
]
