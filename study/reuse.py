#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many of the rows that SparQ selects a buffer of hot rows already holds, on traces: see docs/reuse.md.

    python study/capture.py --steps 512 --tokens 4608 --excerpt play_othello --output play.npz
    python study/reuse.py --input play.npz                          a table
    python study/reuse.py --input play.npz --json runs/reuse.jsonl
    python study/reuse.py --write                                   the published lines into docs/reuse.md

The selection is that of the reference, bit for bit. The buffers are simulated by the rules of
study/sparq_study/traces/reuse.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import numpy as np
from shared import ROOT, Parser, Progress, check_output, guarded, only

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_reference import SparqSettings
from sparq_study import traces

RESULTS = ROOT / "study/results/reuse.jsonl"
DOCUMENT = ROOT / "docs/reuse.md"
SCHEMA = 1
Line = Dict[str, Any]
#: what tells one trace from another
_TRACE = ("model", "start", "kind", "text")


def arguments() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--input", type=Path, nargs="+", metavar="TRACE", default=[], help="traces of study/capture.py")
    add("--r", type=int, default=32, metavar="N", help="rank [32]")
    add("--k", type=int, nargs="+", default=[128, 256], metavar="N", help="top_k, one or more [128 256]")
    add("--local", type=int, metavar="N", help="n_local [a quarter of top_k]")
    add("--index-bits", type=int, default=4, choices=(4, 8), help="of the key index [4]")
    text = "slots, as multiples of top_k"
    add("--hot", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="N", help=text)
    add("--policy", nargs="+", choices=traces.POLICIES, default=list(traces.POLICIES), help="[all]")
    add("--from-step", type=int, metavar="N", help="count steps from this one on [half of the trace]")
    add("--json", type=Path, metavar="FILE", help="append JSON lines: one for each layer, setting and buffer")
    text = (
        "append the misses of every counted step with lru, a KV head: a line for each layer, setting "
        "and size; bench/plans.py recorded plans with them"
    )
    add("--misses", type=Path, metavar="FILE", help=text)
    text = f"only put study/results/{RESULTS.name} into docs/{DOCUMENT.name}"
    add("--write", action="store_true", help=text)
    return parser


def measure(
    trace: traces.Trace,
    settings: Sequence[SparqSettings],
    *,
    index_bits: int,
    multiples: Sequence[int],
    policies: Sequence[str],
    first: int,
    progress: Callable[[str], None] = lambda text: None,
    of_steps: list[Line] | None = None,
) -> list[Line]:
    """A line for each layer, setting, policy and buffer size.

    first: the step that counting starts from. of_steps: gets the misses of every counted step with "lru".
    """
    lines = []
    for layer in trace.layer_numbers:
        progress(f"{trace.text}, {trace.kind}: layer {layer}")
        for s, positions in zip(
            settings, traces.selected_positions(trace, layer, settings, index_bits=index_bits)
        ):
            for policy in policies:
                for multiple in multiples:
                    n_hot = multiple * s.top_k
                    reuse = traces.simulate(
                        positions, trace.start, policy=policy, n_hot=n_hot, n_local=s.n_local
                    )
                    misses = reuse.misses[first:] / trace.n_kv_heads
                    if of_steps is not None and policy == "lru":
                        of_trace = {name: getattr(trace, name) for name in _TRACE}
                        of_buffer = {"layer": layer, "top_k": s.top_k, "n_hot": n_hot}
                        of_steps.append({**of_trace, **of_buffer, "misses": misses.tolist()})
                    lines.append(
                        {
                            "schema": SCHEMA,
                            "text": trace.text,
                            "kind": trace.kind,
                            "model": trace.model,
                            "start": trace.start,
                            "n_steps": trace.n_steps,
                            "from_step": first,
                            "n_kv_heads": trace.n_kv_heads,
                            "group_size": trace.n_heads // trace.n_kv_heads,
                            "head_dim": trace.head_dim,
                            "layer": layer,
                            "rank": s.rank,
                            "top_k": s.top_k,
                            "n_local": s.n_local,
                            "index_bits": index_bits,
                            "policy": policy,
                            "n_hot": n_hot,
                            "hit_rate": round(reuse.hit_rate(first), 5),
                            # rows read from streaming memory, a step and KV head
                            "misses_mean": round(float(misses.mean()), 3),
                            "misses_p95": round(float(np.percentile(misses, 95)), 3),
                            "misses_max": round(float(misses.max()), 3),
                        }
                    )
    return lines


def _mean(lines: Sequence[Line], name: str) -> str:
    return f"{np.mean([line[name] for line in lines]):.3f}" if lines else "-"


def _values(lines: Sequence[Line], name: str) -> list[Any]:
    return list(dict.fromkeys(line[name] for line in lines))


def _where(lines: Sequence[Line], **wanted: Any) -> list[Line]:
    return [line for line in lines if all(line[name] == value for name, value in wanted.items())]


def _recorded(lines: Sequence[Line]) -> list[Line]:
    """Without those of traces that are made; all, where there are no others."""
    return [line for line in lines if line["kind"] != "synthetic"] or list(lines)


def _runs(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines of each model and length, by a heading; of recorded traces, if there are some."""
    found: dict[str, list[Line]] = {}
    for line in _recorded(lines):
        found.setdefault(f"{line['model']}, {line['start']:,} positions before", []).append(line)
    return found


def _columns(lines: Sequence[Line]) -> list[tuple[str, str, int]]:
    """(heading, policy, multiple of top_k) of each buffer."""
    found = sorted({(line["policy"], line["n_hot"] // line["top_k"]) for line in lines})
    return [(f"{policy} {multiple}k", policy, multiple) for policy, multiple in found]


def by_text(lines: Sequence[Line]) -> str:
    """Hit rate by text and top_k, the mean of layers, and for each size of each policy."""
    rows = []
    columns = _columns(lines)
    traces_shown = list(dict.fromkeys(tuple(line[name] for name in _TRACE) for line in lines))
    for top_k in _values(lines, "top_k"):
        for trace in traces_shown:
            some = _where(lines, top_k=top_k, **dict(zip(_TRACE, trace)))
            cells = [
                _mean(_where(some, policy=policy, n_hot=multiple * top_k), "hit_rate")
                for _, policy, multiple in columns
            ]
            model, start, kind, text = trace
            rows.append([model, f"{kind}: {text}", start, top_k, *cells])
    return markdown_table(["model", "trace", "positions before", "k", *(head for head, *_ in columns)], rows)


def by_layer(lines: Sequence[Line], multiple: int = 4) -> str:
    """Hit rate of "lru" by layer and kind of text, the mean of the texts of a kind. lines: of one model."""
    some = [line for line in lines if line["policy"] == "lru" and line["n_hot"] == multiple * line["top_k"]]
    columns = [(kind, top_k) for top_k in _values(some, "top_k") for kind in _values(some, "kind")]
    rows = [
        [
            layer,
            *(
                _mean(_where(some, layer=layer, kind=kind, top_k=top_k), "hit_rate")
                for kind, top_k in columns
            ),
        ]
        for layer in sorted(_values(some, "layer"))
    ]
    return markdown_table(["layer", *(f"{kind}, k={top_k}" for kind, top_k in columns)], rows)


def misses(lines: Sequence[Line]) -> str:
    """Rows read from streaming memory, a step and KV head, "lru": mean, and of steps of one layer.

    lines: of one model.
    """
    rows = []
    for top_k in _values(lines, "top_k"):
        for multiple in sorted({line["n_hot"] // line["top_k"] for line in lines}):
            some = _where(lines, top_k=top_k, policy="lru", n_hot=multiple * top_k)
            worst = max(some, key=lambda line: line["misses_mean"], default=None)
            if worst is not None:
                mean = np.mean([line["misses_mean"] for line in some])
                p95 = np.mean([line["misses_p95"] for line in some])
                most = max(line["misses_max"] for line in some)
                name = f"{worst['misses_mean']:.1f} (layer {worst['layer']}, {worst['kind']})"
                rows.append([top_k, f"{multiple}k", f"{mean:.1f}", f"{p95:.1f}", name, f"{most:.1f}"])
    header = ["k", "buffer", "mean", "95 % of steps below", "worst layer and text", "worst step"]
    return markdown_table(header, rows)


def read(path: Path) -> list[Line]:
    """The lines of --json.

    Raises: ValueError where there are others.
    """
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    if not all(isinstance(line, dict) and line.get("schema") == SCHEMA for line in lines):
        raise ValueError(f"reuse: json must hold lines of schema {SCHEMA}, got others in {path}")
    return lines


def blocks(lines: Sequence[Line]) -> dict[str, str]:
    """Name -> text of every generated block of docs/reuse.md."""

    def each(table: Callable[[Sequence[Line]], str]) -> str:
        return "\n\n".join(f"**{title}**\n\n{table(some)}" for title, some in _runs(lines).items())

    return {"texts": by_text(lines), "layers": each(by_layer), "misses": each(misses)}


def _settings(a: argparse.Namespace, k: int, head_dim: int) -> SparqSettings:
    return SparqSettings(a.r, k, k // 4 if a.local is None else a.local, op="reuse", head_dim=head_dim)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    a = parser.parse_args(argv)
    if a.write:
        only(parser, a, "--write")
        for name, text in blocks(read(RESULTS)).items():
            replace_block(DOCUMENT, name, text)
        return 0
    if not a.input:
        parser.error("--input or --write must be given, got none")
    if min(a.hot) < 1:
        parser.error(f"--hot must be at least 1, got {min(a.hot)}")
    for flag in ("json", "misses"):
        check_output(parser, f"--{flag}", getattr(a, flag))
    progress = Progress()
    lines: list[Line] = []
    of_steps: list[Line] = []
    try:
        for trace in map(traces.load, a.input):
            settings = [_settings(a, k, trace.head_dim) for k in a.k]
            first = trace.n_steps // 2 if a.from_step is None else a.from_step
            if not 0 <= first < trace.n_steps:
                rule = f"reuse: from-step must be in [0, {trace.n_steps}), the steps of {trace.text}"
                raise ValueError(f"{rule}, got {first}")
            options = {"index_bits": a.index_bits, "multiples": a.hot, "policies": a.policy, "first": first}
            lines += measure(trace, settings, **options, progress=progress.step, of_steps=of_steps)
    except (OSError, ValueError) as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    for path, written in ((a.json, lines), (a.misses, of_steps)):
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in written)
    print("\n\n".join(f"{name}\n\n{text}" for name, text in blocks(lines).items()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
