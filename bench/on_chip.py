# SPDX-License-Identifier: Apache-2.0
"""The rules of work on chip beside what others measured: loops, exchanges, constants.

    python bench/on_chip.py            # the tables
    python bench/on_chip.py --write    # and into docs/on_chip.md

Measurements and their addresses are in `python/sparq_ipu/planning/data/measured_on_chip.json`, with the
operations of each loop as we count them. Predicted is what the rules of `poplar_ops/codelets/cycles.hpp` and
the device model make of these; a ratio is measured over predicted, above 1 where hardware is slower. Beside
them stand rules that are proposed, and used nowhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, Dict, Iterable, NamedTuple

from common import ROOT, guarded

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.planning.device_model import DATA, device_model

MEASURED = DATA / "measured_on_chip.json"
DOCUMENT = ROOT / "docs/on_chip.md"
Record = Dict[str, Any]

# ---- the rules of cycles.hpp; a test compares the numbers
WORKERS = 6
CALL_SLOTS = 20
LOOP_SLOTS = 2
#: slower than predicted by at most this
TOLERANCE = 0.15


class Rules(NamedTuple):
    """What prices a loop and an exchange."""

    #: of one pass of a loop, in issue slots
    pass_slots: Callable[[Record], float]
    #: a compute set, beside the start of its workers
    compute_set_cycles: float
    #: an exchange and the sync before it
    exchange_cycles: float
    cycles_a_piece: float


def present_pass(loop: Record) -> float:
    return float(max(loop["arithmetic"], loop["main"]) + LOOP_SLOTS)


#: slots of the loop itself: by `rpt`; counter and branch in one; step, compare, branch; and two to load and
#: shift the bound, where it is a field that a store in the loop may have changed
PROPOSED_LOOP = {"repeat": 0, "local": 1, "computed": 3, "field": 5}
#: of the side with fewer instructions, the part that issues beside the other
PROPOSED_TOGETHER = {"vectors": 0.0, "floats": 0.5, "none": 0.0}


def proposed_pass(loop: Record) -> float:
    if "bundles" in loop:  # written out: nothing is left to the compiler
        return float(loop["bundles"])
    fewer = min(loop["arithmetic"], loop["main"])
    together = PROPOSED_TOGETHER[loop["stores"]] * fewer
    return float(loop["arithmetic"] + loop["main"] - together + PROPOSED_LOOP[loop["bound"]])


_BOW = device_model("bow")
PRESENT = Rules(present_pass, _BOW.compute_set_fixed_cycles, _BOW.exchange_fixed_cycles + _BOW.sync_cycles, 0)
PROPOSED = Rules(proposed_pass, _BOW.compute_set_fixed_cycles - WORKERS * CALL_SLOTS, 250, 3)


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


def predicted_cycles(record: Record, rules: Rules) -> float:
    if "passes" in record["measured"]:  # of one pass
        (launch,) = record["launches"]
        return WORKERS * sum(rules.pass_slots(loop) for loop in launch["loops"])
    cycles = rules.compute_set_cycles
    for launch in record["launches"]:
        passes = sum(loop["passes"] * rules.pass_slots(loop) for loop in launch["loops"])
        cycles += WORKERS * (CALL_SLOTS + launch["once"] + passes)
    return cycles


def exchange_cycles(record: Record, rules: Rules) -> float:
    """By bytes and pieces where they are known, else by the length of its own schedule."""
    if record["kind"] == "rearrangement":
        return 0.0
    if record["bytes"] is None:
        return float(rules.exchange_cycles + record["scheduled"])
    pieces = rules.cycles_a_piece * (record["pieces"] or 0)
    return float(rules.exchange_cycles + -(-record["bytes"] // _BOW.exchange_bytes_per_cycle) + pieces)


class Compared(NamedTuple):
    """A measurement beside both predictions."""

    record: Record
    measured: float
    present: float
    proposed: float

    @property
    def ratios(self) -> tuple[float, float]:
        return self.measured / self.present, self.measured / self.proposed


def compared_loops(content: Record) -> list[Compared]:
    return [
        Compared(
            r,
            measured_cycles(r, content["clock_hz"]),
            predicted_cycles(r, PRESENT),
            predicted_cycles(r, PROPOSED),
        )
        for r in content["loops"]
    ]


def compared_exchanges(content: Record) -> list[Compared]:
    return [
        Compared(r, r["measured"], exchange_cycles(r, PRESENT), exchange_cycles(r, PROPOSED))
        for r in content["exchanges"]
        if r["kind"] != "rearrangement"
    ]


def compiled_slots(record: Record) -> float:
    """Bundles of a pass as the compiler wrote it, and what an instruction takes beside its own."""
    issued = record["issued_arithmetic"] + record["issued_main"]
    return float(issued - record["pairs"] + record["more_slots"])


def compared_assembly(content: Record) -> list[Compared]:
    """Loops of the compiler's own output, in slots of a pass."""
    return [Compared(r, compiled_slots(r), present_pass(r), proposed_pass(r)) for r in content["compiled"]]


def outside(compared: Iterable[Compared], proposed: bool = True) -> list[str]:
    """Those that are slower or faster than predicted by more than the tolerance."""
    return [c.record["name"] for c in compared if abs(c.ratios[proposed] - 1) > TOLERANCE]


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
        ranges = [
            f"{min(c.ratios[i] for c in part):.2f} to {max(c.ratios[i] for c in part):.2f}" for i in (0, 1)
        ]
        rows.append([kind, str(len(part)), *ranges])
    return rows


def exchange_kind(record: Record) -> str:
    if record["bytes"] is None:
        return "by its own schedule"
    return f"by bytes; made by {record['scheduler']}"


def numbers(c: Compared) -> list[str]:
    present, proposed = (f"{ratio:.2f}" for ratio in c.ratios)
    return [cycles(c.measured), cycles(c.present), present, cycles(c.proposed), proposed]


def compiled_row(c: Compared) -> list[str]:
    r = c.record
    ours = (f"{r[name]}" for name in ("arithmetic", "main"))
    theirs = (f"{r[name]}" for name in ("issued_arithmetic", "issued_main", "pairs", "spills"))
    present, proposed = (f"{ratio:.2f}" for ratio in c.ratios)
    return [
        *(r["name"], r["source"], *ours, *theirs, f"{c.measured:g}"),
        *(f"{c.present:g}", present, f"{c.proposed:g}", proposed),
    ]


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
    heads = ("measured", "present rules", "ratio", "proposed", "ratio")
    compiled = [c for c in loops if c.record["kind"] != "assembly"]
    assembly = compared_assembly(content)
    paired = [
        r["pairs"] / min(r["issued_arithmetic"], r["issued_main"])
        for r in content["compiled"]
        if r["bound"] == "field" and r["issued_arithmetic"]
    ]
    beyond = [
        c.measured - c.record["scheduled"]
        for c in exchanges
        if c.record["scheduled"] and c.record["phases"] == 1
    ]
    (moved,) = (r for r in content["exchanges"] if r["kind"] == "rearrangement")
    return "\n\n".join(
        (
            f"Of {len(compiled)} compiled loops, {len(outside(compiled, False))} are outside {TOLERANCE:.0%} "
            f"of the present rules and {len(outside(compiled))} outside the proposed ones. Ratios, by kind:",
            markdown_table(
                ("loops", "number", "measured / present", "measured / proposed"),
                kind_rows(loops, lambda r: r["kind"]),
            ),
            "Loops, in tile cycles of a whole call (of a pass for the series):",
            markdown_table(("loop", "kind", "chip", "source", "its code is", *heads), map(loop_row, loops)),
            "Loops in the compiler's own output, in slots of a pass: the instructions as we count them from "
            "the source, then those it wrote, with stores and loads of what did not fit the registers:",
            markdown_table(
                (
                    *("loop", "source", "arithmetic", "main", "written: arithmetic", "main", "pairs"),
                    *("spills", "slots", "present rules", "ratio", "proposed", "ratio"),
                ),
                map(compiled_row, assembly),
            ),
            f"Of these {len(assembly)}, {len(outside(assembly, False))} are outside {TOLERANCE:.0%} of the "
            f"present rules and {len(outside(assembly))} outside the proposed ones. In the {len(paired)} "
            f"longer ones, {min(paired):.0%} to {max(paired):.0%} of the side with fewer instructions issue "
            f"beside the other, {sum(paired) / len(paired):.0%} on average.",
            "Exchanges, by kind:",
            markdown_table(
                ("exchanges", "number", "measured / present", "measured / proposed"),
                kind_rows(exchanges, exchange_kind),
            ),
            "In tile cycles; bytes and pieces of the busiest tile:",
            markdown_table(
                ("exchange", "made by", "source", "bytes", "pieces", "its schedule", *heads),
                map(exchange_row, exchanges),
            ),
            f"Beyond their schedules, {len(beyond)} of these took {cycles(min(beyond))} to "
            f"{cycles(max(beyond))} cycles, {cycles(sum(beyond) / len(beyond))} on average.",
            f"Rearrangement on a tile, which the model does not price: {cycles(moved['measured'])} cycles "
            f"for {cycles(moved['bytes'])} bytes ({moved['scheduler']}).",
            "What is proposed, for a pass of a loop in slots, the others in cycles:",
            markdown_table(("rule", "present", "proposed"), rule_rows()),
            "Constants:",
            markdown_table(
                ("constant", "chip", "published", "unit", "source", "what it is"),
                (
                    [c["name"], c["chip"], f"{c['value']:g}", c["unit"], c["source"], c["what"]]
                    for c in content["constants"]
                ),
            ),
            "PopLibs' own estimates of its assembly, in slots a pass, beside compiled C++ that does as much:",
            markdown_table(
                ("pass", "PopLibs", "present rules", "ratio"),
                (
                    [
                        e["name"],
                        f"{e['slots']}",
                        f"{present_pass(e):g}",
                        f"{e['slots'] / present_pass(e):.2f}",
                    ]
                    for e in content["estimators"]
                ),
            ),
            "Sources:",
            "\n".join(f"* {name}: {link(content, name)}" for name in content["sources"]),
        )
    )


def rule_rows() -> list[list[str]]:
    more = f"the larger of arithmetic and main, + {LOOP_SLOTS}"
    both = "arithmetic + main"
    half = f"{PROPOSED_TOGETHER['floats']:g} of the smaller"
    return [
        ["a loop that stores vectors", more, f"{both} + {PROPOSED_LOOP['field']}"],
        ["a loop that stores single floats", more, f"{both} - {half} + {PROPOSED_LOOP['field']}"],
        ["no stores, the bound in a register", more, f"{both} + {PROPOSED_LOOP['repeat']}"],
        ["stores vectors, the bound in a local copy", more, f"{both} + {PROPOSED_LOOP['local']}"],
        ["no stores, another bound", more, f"{both} + {PROPOSED_LOOP['computed']}"],
        [
            "a compute set, beside its workers' start",
            f"{PRESENT.compute_set_cycles:g}",
            f"{PROPOSED.compute_set_cycles:g}",
        ],
        ["an exchange with its sync", f"{PRESENT.exchange_cycles:g}", f"{PROPOSED.exchange_cycles:g}"],
        ["a piece of an exchange", f"{PRESENT.cycles_a_piece:g}", f"{PROPOSED.cycles_a_piece:g}"],
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{DOCUMENT.name}")
    args = parser.parse_args(arguments)
    text = report(measured_file())
    print(text)
    if args.write:
        replace_block(DOCUMENT, "measured", text)
        print(f"\nwritten: {DOCUMENT.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
