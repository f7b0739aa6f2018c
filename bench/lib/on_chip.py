# SPDX-License-Identifier: Apache-2.0
"""The rules of work on chip beside what others measured: loops, exchanges, constants.

Measurements and their addresses are in `bench/data/measured_on_chip.json`, with the
operations of each loop as we count them. The predicted cycles follow from these by the rules of
`poplar_ops/codelets/cycles.hpp` and the device model. A ratio is measured over predicted, above 1 where
hardware is slower.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, NamedTuple

from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.planning.device_model import FACTORS, device_model

MEASURED = Path(__file__).resolve().parents[1] / "data" / "measured_on_chip.json"
Record = Dict[str, Any]

# ---- the rules of cycles.hpp; a test compares the numbers
WORKERS = 6
CALL_SLOTS = 20
#: slots of the loop itself, by what the compiler knows of its end
LOOP_SLOTS = {"repeated": 0, "counted": 1, "computed": 3, "reloaded": 5}
#: the ends of measured loops
ENDS = {"repeat": "repeated", "local": "counted", "computed": "computed", "field": "reloaded"}
#: of the side with fewer instructions, the part that issues beside the other
TOGETHER = {"vectors": 0.0, "floats": 0.5, "none": 0.0}
#: slower than predicted by at most this
TOLERANCE = 0.15

_BOW = device_model("bow")
#: an exchange and the sync before it
EXCHANGE_CYCLES = _BOW.exchange_fixed_cycles + _BOW.sync_cycles


def pass_slots(loop: Record) -> float:
    """Of one pass of a loop, in issue slots."""
    if "bundles" in loop:  # written out: nothing is left to the compiler
        return float(loop["bundles"])
    fewer = min(loop["arithmetic"], loop["main"])
    together = TOGETHER[loop["stores"]] * fewer
    return float(loop["arithmetic"] + loop["main"] - together + LOOP_SLOTS[ENDS[loop["bound"]]])


def measured_file() -> Record:
    content: Record = json.loads(MEASURED.read_text())
    return content


# ---- loops


def measured_cycles(record: Record, clock_hz: dict[str, float]) -> float:
    """Of a call, or of one pass where two numbers of passes were measured."""
    m = record["measured"]
    if "passes" in m:
        return float((m["cycles"] - m["less_cycles"]) / (m["passes"] - m["less_passes"]))
    if "flop" in m:
        cycles = m["flop"] / m["flop_per_cycle"]
    elif "bytes" in m:
        cycles = m["bytes"] / m["bytes_per_second"] * clock_hz[record["chip"]]
    elif "seconds" in m:
        cycles = m["seconds"] * clock_hz[record["chip"]]
    else:
        cycles = m["cycles"]
    return float(cycles - m.get("less_cycles", 0))


def predicted_cycles(record: Record) -> float:
    if "passes" in record["measured"]:  # of one pass
        (launch,) = record["launches"]
        return WORKERS * sum(pass_slots(loop) for loop in launch["loops"])
    cycles = float(_BOW.compute_set_fixed_cycles)
    for launch in record["launches"]:
        passes = sum(loop["passes"] * pass_slots(loop) for loop in launch["loops"])
        cycles += WORKERS * (CALL_SLOTS + launch["once"] + passes)
    return cycles


def exchange_cycles(record: Record) -> float:
    """By bytes and pieces where they are known, else by the length of its own schedule."""
    if record["kind"] == "rearrangement":
        halves = record["bytes"] / 2  # in pieces of 16 or fewer
        return _BOW.local_element_cycles * halves + record["bytes"] / _BOW.local_bytes_per_cycle
    if record["bytes"] is None:
        return float(EXCHANGE_CYCLES + record["scheduled"])
    pieces = _BOW.exchange_piece_cycles * (record["pieces"] or 0)
    return float(EXCHANGE_CYCLES + -(-record["bytes"] // _BOW.exchange_bytes_per_cycle) + pieces)


class Compared(NamedTuple):
    """A measurement beside what the rules say."""

    record: Record
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted


def compared_loops(content: Record) -> list[Compared]:
    return [
        Compared(r, measured_cycles(r, content["clock_hz"]), predicted_cycles(r)) for r in content["loops"]
    ]


def compared_exchanges(content: Record) -> list[Compared]:
    return [Compared(r, r["measured"], exchange_cycles(r)) for r in content["exchanges"]]


def compiled_slots(record: Record) -> float:
    """Bundles of a pass as the compiler wrote it, and what an instruction takes beside its own."""
    issued = record["issued_arithmetic"] + record["issued_main"]
    return float(issued - record["pairs"] + record["more_slots"])


def compared_assembly(content: Record) -> list[Compared]:
    """Loops of the compiler's own output, in slots of a pass."""
    return [Compared(r, compiled_slots(r), pass_slots(r)) for r in content["compiled"]]


def slower(compared: Iterable[Compared]) -> list[str]:
    """Those that are slower than predicted by more than the tolerance."""
    return [c.record["name"] for c in compared if c.ratio > 1 + TOLERANCE]


def spread(content: Record) -> dict[str, tuple[float, float]]:
    """Measured over predicted, the least and the most: of loops of the compiler, as measured and as written;
    of exchanges with their bytes and pieces; of what exchanges took beyond their schedules, over what the
    rules say.

    Three exchanges are left out, of which only the mean pieces of all tiles are known (docs/device_model.md).
    """
    loops = [c for c in compared_loops(content) if c.record["kind"] != "assembly"]
    exchanges = [
        c
        for c in compared_exchanges(content)
        if c.record["bytes"] is not None and "as a mean" not in c.record["certainty"]
    ]
    ratios = {
        "compute": [c.ratio for c in [*loops, *compared_assembly(content)]],
        "exchange": [c.ratio for c in exchanges],
        "sync": [n / EXCHANGE_CYCLES for n in beyond_schedules(content)],
    }
    return {name: (min(of), max(of)) for name, of in ratios.items()}


def beyond_schedules(content: Record) -> list[float]:
    return [
        r["measured"] - r["scheduled"] for r in content["exchanges"] if r["scheduled"] and r["phases"] == 1
    ]


# ---- tables


def cycles(value: float) -> str:
    return f"{value:,.0f}"


def link(content: Record, source: str) -> str:
    of = content["sources"][source]
    repository = of["repository"][len("https://github.com/") :]
    commit = f"at {of['commit'][:10]}" if of["commit"] else "at a commit that is not known"
    return f"{repository}, `{of['path']}` {commit}"


def kind_rows(compared: list[Compared], name: Callable[[Record], str]) -> list[list[str]]:
    rows = []
    for kind in dict.fromkeys(name(c.record) for c in compared):
        part = [c for c in compared if name(c.record) == kind]
        ratios = [c.ratio for c in part]
        rows.append([kind, str(len(part)), f"{min(ratios):.2f} to {max(ratios):.2f}"])
    return rows


def exchange_kind(record: Record) -> str:
    if record["kind"] == "rearrangement":
        return "within a tile; made by Poplar"
    if record["bytes"] is None:
        return "by its own schedule"
    return f"by bytes and pieces; made by {record['scheduler']}"


def numbers(c: Compared) -> list[str]:
    return [cycles(c.measured), cycles(c.predicted), f"{c.ratio:.2f}"]


def compiled_row(c: Compared) -> list[str]:
    r = c.record
    ours = (f"{r[name]}" for name in ("arithmetic", "main"))
    theirs = (f"{r[name]}" for name in ("issued_arithmetic", "issued_main", "pairs", "spills"))
    return [r["name"], r["source"], *ours, *theirs, f"{c.measured:g}", f"{c.predicted:g}", f"{c.ratio:.2f}"]


def known(value: float | None) -> str:
    return "-" if value is None else cycles(value)


def loop_row(c: Compared) -> list[str]:
    r = c.record
    return [r["name"], r["kind"], r["chip"], r["source"], r["pairing"], *numbers(c)]


def exchange_row(c: Compared) -> list[str]:
    r = c.record
    stated = (known(r[name]) for name in ("bytes", "pieces", "scheduled"))
    return [r["name"], r["scheduler"], r["source"], *stated, *numbers(c)]


def report(content: Record) -> str:
    loops, exchanges = compared_loops(content), compared_exchanges(content)
    heads = ("measured", "predicted", "ratio")
    compiled = [c for c in loops if c.record["kind"] != "assembly"]
    assembly = compared_assembly(content)
    paired = [
        r["pairs"] / min(r["issued_arithmetic"], r["issued_main"])
        for r in content["compiled"]
        if r["bound"] == "field" and r["issued_arithmetic"]
    ]
    beyond = beyond_schedules(content)
    return "\n\n".join(
        (
            f"Of {len(compiled)} compiled loops, {len(slower(compiled))} are more than {TOLERANCE:.0%} "
            "slower than predicted. Ratios, by kind:",
            markdown_table(
                ("loops", "number", "measured / predicted"), kind_rows(loops, lambda r: r["kind"])
            ),
            "Loops, in tile cycles of a whole call (of a pass for the series):",
            markdown_table(("loop", "kind", "chip", "source", "code", *heads), map(loop_row, loops)),
            "Loops in the compiler's own output, in slots of a pass: the instructions as we count them from "
            "the source, then those it wrote, with stores and loads of what did not fit the registers:",
            markdown_table(
                (
                    *("loop", "source", "arithmetic", "main", "written: arithmetic", "main", "pairs"),
                    *("spills", "slots", "predicted", "ratio"),
                ),
                map(compiled_row, assembly),
            ),
            f"Of these {len(assembly)}, {len(slower(assembly))} are more than {TOLERANCE:.0%} slower than "
            f"predicted. In the {len(paired)} longer ones, {min(paired):.0%} to {max(paired):.0%} of the "
            f"side with fewer instructions issue beside the other, {sum(paired) / len(paired):.0%} on "
            "average.",
            "Exchanges, by kind:",
            markdown_table(
                ("exchanges", "number", "measured / predicted"), kind_rows(exchanges, exchange_kind)
            ),
            "In tile cycles; bytes and pieces of the busiest tile:",
            markdown_table(
                ("exchange", "made by", "source", "bytes", "pieces", "schedule", *heads),
                map(exchange_row, exchanges),
            ),
            f"Beyond their schedules, {len(beyond)} of these took {cycles(min(beyond))} to "
            f"{cycles(max(beyond))} cycles, {cycles(sum(beyond) / len(beyond))} on average.",
            "The rules: a pass of a loop in slots, the others in cycles:",
            markdown_table(("rule", "takes", "chosen on"), rule_rows()),
            "The range of a modelled time has these factors; minimum and maximum are those of measured over "
            "predicted:",
            markdown_table(
                ("work", "low", "high", "minimum", "maximum"),
                [
                    [name, *(f"{factor:g}" for factor in FACTORS[name]), *(f"{ratio:.3f}" for ratio in of)]
                    for name, of in spread(content).items()
                ],
            ),
            "Constants:",
            markdown_table(
                ("constant", "chip", "published", "unit", "source", "meaning"),
                (
                    [c["name"], c["chip"], f"{c['value']:g}", c["unit"], c["source"], c["what"]]
                    for c in content["constants"]
                ),
            ),
            "PopLibs' own estimates of its assembly, in slots a pass, beside what the rules say of C++ that "
            "does as much and stores nothing:",
            markdown_table(
                ("pass", "PopLibs", "predicted", "ratio"),
                (
                    [e["name"], f"{e['slots']}", f"{of_equal:g}", f"{e['slots'] / of_equal:.2f}"]
                    for e in content["estimators"]
                    for of_equal in [float(e["arithmetic"] + e["main"] + LOOP_SLOTS["counted"])]
                ),
            ),
            "Sources:",
            "\n".join(f"* {name}: {link(content, name)}" for name in content["sources"]),
        )
    )


def rule_rows() -> list[list[str]]:
    def loop(kind: str, together: float = 0.0) -> str:
        less = f" - {together:g} of the smaller" if together else ""
        return f"arithmetic + main{less} + {LOOP_SLOTS[kind]}"

    return [
        ["a loop that stores, its end a field", loop("reloaded"), "add, layer norm"],
        ["the same, with work that does not wait", loop("reloaded", TOGETHER["floats"]), "matrix products"],
        ["a loop that goes by ones to a local copy", loop("counted"), "add to pairs, as compiled"],
        ["another step, or an end that is computed", loop("computed"), "series for pi"],
        ["a loop by ones that stores nothing, its end known before", loop("repeated"), "moments"],
        [
            "a pair of fp32 that finds no register",
            "2",
            "four pairs are in registers: the public source of the compiler",
        ],
        [
            "a compute set",
            f"{_BOW.compute_set_fixed_cycles:g}",
            "compute set, almost empty, less workers' start",
        ],
        ["an exchange", f"{_BOW.exchange_fixed_cycles:g}", "constant of PopLibs' planners"],
        ["a sync", f"{_BOW.sync_cycles:g}", "exchanges beyond their schedules, minus the schedules"],
        ["four bytes of an exchange", "1", "exchange, bytes"],
        [
            "a piece of an exchange",
            f"{_BOW.exchange_piece_cycles:g}",
            "vision model, phase 23, after; scores to rows of softmax",
        ],
        [
            "an element of a copy within a tile, of 16 at most of a piece",
            f"{_BOW.local_element_cycles:g}",
            "rearranged on the tile",
        ],
        ["a byte of such a copy", f"{1 / _BOW.local_bytes_per_cycle:g}", "copy, 8 KiB"],
        [
            "a branch (If, RepeatWhileTrue, Switch)",
            "a sync and an exchange of a word to all tiles",
            "nothing measured: every tile has to know",
        ],
    ]
