# SPDX-License-Identifier: Apache-2.0
"""Mutants of the emulator: views, memory, time, refusals, workers."""

from __future__ import annotations

from . import of

_TESTS = "emulator/tests/test_"

MUTANTS = [
    *of(
        "emulator/src/device_model.cpp",
        f"{_TESTS}counters.py tests/device_model/test_device_model.py",
        [
            (
                "n * m.streamingSeconds(s.bytes, s.packets, s.rows)",
                "m.streamingSeconds(s.bytes, s.packets, s.rows)",
                "copies of a loop take the time of one",
            ),
            ("s.syncs * syncCycles", "syncCycles", "all syncs of a step take the time of one"),
            ("a.hostStreams += b.hostStreams;", "", "streams of the host take no time"),
            (
                "std::min(1.0, rowBytes / sharedRowKneeBytes)",
                "(rowBytes / sharedRowKneeBytes)",
                "the penalty has no knee",
            ),
            (
                "s.tileCycles + m.computeSetFixedCycles",
                "s.tileCycles + 0 * m.computeSetFixedCycles",
                "a compute set has no fixed cost",
            ),
        ],
    ),
    *of(
        "emulator/src/accounting.cpp",
        f"{_TESTS}counters.py {_TESTS}tile_memory.py {_TESTS}liveness.py {_TESTS}dry_run.py",
        [
            ("+ 7) / 8 * 8)", "+ 3) / 4 * 4)", "variables are rounded up to 4 bytes"),
            ("if (s.size() < workers)", "if (s.size() < workers + 1)", "seven workers"),
            (
                "cycles += workers * *std::max_element",
                "cycles += *std::max_element",
                "a worker issues in every cycle",
            ),
            (
                "maxTemporaries_[t] = std::max(maxTemporaries_[t], temporaries_[t]);",
                "maxTemporaries_[t] = temporaries_[t];",
                "temporaries of the last compute set alone count",
            ),
            ("m.bytes <= m.limit", "m.bytes <= 2 * m.limit", "twice the memory of a tile is allowed"),
            ("if (tile == v.tile)\n        return;", "", "what is on the tile is exchanged"),
        ],
    ),
    *of(
        "emulator/src/workers.cpp",
        f"{_TESTS}workers.py",
        [
            ("if (writers[k] > 1)", "if (false)", "two workers may write one word"),
            ("runInOrder({order.rbegin(), order.rend()});", "", "workers run in one order only"),
            ("outputReader_ != nobody)", "false)", "an Output may be read"),
            ("& (0 - m[i])", "& (0 * m[i])", "what a worker writes is not expected of it"),
            ("w[i] | (a[i] != b[i])", "w[i] | (a[i] != b[i] + 300)", "each worker writes everything"),
        ],
    ),
    *of(
        "emulator/src/worker_order.cpp",
        f"{_TESTS}workers.py",
        [
            ("seed_ ^ mixed(computeSets_)", "seed_", "each run has the same order"),
            (" ^ number", " ^ 0 * number", "each vertex has the same order"),
            ("order[x % left]", "order[left - 1]", "workers are never swapped"),
            (" || errno)", ")", "a seed may be too large"),
        ],
    ),
    *of(
        "emulator/src/execute.cpp",
        f"{_TESTS}workers.py",
        [
            (
                "const unsigned w = order[i];",
                "const unsigned w = i + 0 * order[i];",
                "workers run from 0 on whatever the seed",
            )
        ],
    ),
    *of(
        "emulator/src/serialize.cpp",
        f"{_TESTS}executable.py",
        [
            (
                "if (checksum(content) != expected)",
                "if (expected == 0 && checksum(content) != 0)",
                "a file that was changed is taken",
            ),
            ("if (ofClasses != sizes())", "if (false)", "a file of another build is taken"),
            (
                "all(name, type, at, n, data, initial, controls);",
                "all(name, type, at, n, data, controls);\n    (void)initial;",
                "initial values are left out",
            ),
            (
                "all(op, index, cost, count, flag,",
                "(void)count;\n    all(op, index, cost, flag,",
                "loops forget how often",
            ),
        ],
    ),
    *of(
        "emulator/src/profile_summary.cpp",
        f"{_TESTS}programs.py",
        [
            (
                "sparq::emulator::allRuns(*this)",
                "sparq::emulator::lastRun(*this)",
                "a profile is of the last run",
            ),
            ('{"Sync cycles", t.sync}', '{"Sync cycles", t.links}', "syncs are not told from links"),
            ("missing += s.verticesWithoutEstimate;", "", "nothing tells that estimates are missing"),
            (
                "const double once = seconds / static_cast<double>(s.executions);",
                "const double once = seconds;",
                "a step of a loop takes the time of all",
            ),
        ],
    ),
    *of(
        "emulator/src/types.cpp",
        f"{_TESTS}half.py {_TESTS}exhaustive.py {_TESTS}refusals.py {_TESTS}counters.py",
        [
            ("towardsZero ? bits | 1u : bits - 1u", "bits", "doubles are rounded twice"),
            (
                "if (i.negative || i.magnitude > hi)",
                "if (i.magnitude > hi)",
                "a negative number in an unsigned one",
                "a negative magnitude has its high bits set, so that it is above hi but for 64 bits",
            ),
        ],
    ),
    *of(
        "emulator/src/regions.cpp",
        f"{_TESTS}views.py",
        [
            ("if (left % shape[i])", "if (false)", "a reshape that is no view is taken for one"),
            (
                "if (last.var == var && last.length == 1 && n == 1)",
                "if (false)",
                "no stepped regions",
                "regions are shorter, elements the same",
            ),
        ],
    ),
    *of(
        "emulator/src/tensor_views.cpp",
        f"{_TESTS}views.py {_TESTS}refusals.py",
        [("if (i >= t.shape[0])", "if (i > t.shape[0])", "an index behind the end is taken")],
    ),
    *of(
        "emulator/src/mapping.cpp",
        f"{_TESTS}views.py {_TESTS}refusals.py {_TESTS}programs.py {_TESTS}tile_memory.py",
        [
            (
                "prev->second.end == begin && prev->second.tile == tile",
                "prev->second.end == begin",
                "a mapping swallows its neighbour",
            ),
            ("if (requireComplete && !complete)", "if (false)", "a mapping with gaps is complete"),
        ],
    ),
    *of(
        "emulator/src/floating_point.cpp",
        f"{_TESTS}floating_point.py",
        [
            (
                "(*tileControl & ~v.clear) | v.set",
                "*tileControl | v.set",
                "a modified behaviour clears nothing",
            ),
            (
                "std::feraiseexcept(isNaN ? FE_OVERFLOW | FE_INVALID : FE_OVERFLOW);",
                "std::feraiseexcept(FE_OVERFLOW);",
                "a half that overflows to NaN is not invalid",
            ),
            ("control_.assign(tiles, control);", "control_.resize(tiles, control);", "a load resets nothing"),
        ],
    ),
    *of(
        "emulator/src/execute.cpp",
        f"{_TESTS}floating_point.py",
        [
            (
                "if (stops && !v.showsEvents)",
                "if (false)",
                "codelets that hide their events run with exceptions on",
            ),
        ],
    ),
    *of(
        "emulator/popc/popc.py",
        f"{_TESTS}floating_point.py",
        [
            (
                '["-ffp-exception-behavior=maytrap"] if "clang" in version',
                '[] if "clang" in version',
                "Clang computes what a branch leaves out",
            ),
        ],
    ),
    *of(
        "emulator/src/thread_pool.cpp",
        f"{_TESTS}programs.py",
        [
            ("(void)crew_.release();", "crew_.reset();", "a child of fork() waits for threads of its parent"),
            (
                "    forks_ = forksSoFar();\n",
                "",
                "a child makes new threads at each step",
                "results are the same; threads are left behind",
            ),
        ],
    ),
    *of(
        "emulator/src/plan.hpp",
        f"{_TESTS}programs.py",
        [("0xc5 + 101 * number + i", "0xc5 + 0 * number + 0 * i", "all bytes of all guards are equal")],
    ),
    *of(
        "emulator/src/options.cpp",
        f"{_TESTS}toolkit.py",
        [
            ('option.rfind("autoReport.", 0) == 0 || ', "", "nothing says that no report is written"),
            (
                "if (said.insert(text).second)",
                "if (!said.insert(text).second)",
                "the first warning is not said",
            ),
            ('o->second != "true" && o->second != "false"', "false", "a wrong value is taken"),
        ],
    ),
]
