# SPDX-License-Identifier: Apache-2.0
"""Fit the device model of a Bow IPU on published measurements, and say how good it is.

The measured program is described as counts (bench/lib/published_program.py): bytes and
packets of its remote copies, and a few constants for its work on chip. All parameters are fitted at once by
least squares on relative errors; the model is linear in their products. Cross-validation leaves out one
sequence length at a time and predicts it from the others.

    python bench/calibrate.py                     # print the fit and how good it is
    python bench/calibrate.py --write             # and keep it
    python bench/calibrate.py --check FILE.csv    # judge the model that is kept by other measurements
    python bench/calibrate.py --day day.tar.gz --model fitted.json   # a model from a day on a device
    python bench/calibrate.py --on-chip           # the rules of work on chip beside what others measured
    python bench/calibrate.py --on-chip --write   # and into the same page

--day takes the archive of hardware_day.py: it fits every parameter on the probes of that day, says which
rules were wrong and by how much, and with --model writes the parameters, for
`sparq_ipu.plan(device="fitted.json")` and `sparq-ipu plan --device fitted.json`.

stdout: the parameters, the errors, the cross-validation, as Markdown. Nothing is written without --write.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np
from day import fit as fit_day
from day import pack
from lib import on_chip
from lib import published_program as published
from lib.common import ROOT, check_output, guarded, refuse, sparq_kernels

from sparq_ipu.commands.command_line import Parser
from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.kernels import KERNELS
from sparq_ipu.planning.device_model import PARAMETERS, DeviceModel, device_model, parameters_file

HEADER = ROOT / "emulator/include/sparq_emulator/DeviceModel.hpp"
DOCUMENT = ROOT / "docs/device_model.md"
RULES_DOCUMENT = DOCUMENT

#: fitted parameters of the device: name here -> name in DeviceModel.hpp
DEVICE = {
    "streaming_bytes_per_second": "streamingBytesPerSecond",
    "packet_overhead_bytes": "packetOverheadBytes",
    "remote_copy_seconds": "remoteCopySeconds",
    "shared_row_penalty": "sharedRowPenalty",
}
#: the order of tables: what reads streaming memory first
ORDER = sorted(sparq_kernels().values(), key=lambda kernel: kernel.memory == "sram")


@dataclasses.dataclass(frozen=True)
class OtherGrowth(DeviceModel):
    """The model with another dependence of the shared-row penalty on the bytes of a row."""

    growth: Callable[[float], float] = lambda row_bytes: 1.0

    def shared_row_growth(self, row_bytes: float) -> float:
        return self.growth(row_bytes)


KIB = 1024
#: forms that agree with the measurements (each with one fitted number, the penalty), and one that does not
GROWTHS: dict[str, Callable[[float], float] | None] = {
    "as shipped: linear to 32 KiB, then constant": None,
    "linear without end": lambda n: n / (32 * KIB),
    "power 3/4 without end": lambda n: (n / (32 * KIB)) ** 0.75,
    "n / (n + 64 KiB)": lambda n: n / (n + 64 * KIB),
    "n / (n + 16 KiB)": lambda n: n / (n + 16 * KIB),
    "none: the same for all lengths": lambda n: 1.0,
}
#: lengths not fitted, at which the forms are compared
NOT_FITTED = (2048, 8192, 32768, 65536)


def transfer_features(model: DeviceModel, m: published.Measurement) -> list[float]:
    """Bytes, packets and bytes * shared rows of one query, all copies together."""
    unit = dataclasses.replace(model, shared_row_penalty=1.0)
    copies = published.remote_copies(m.kernel, m.batch, m.seq_len, m.rank, m.top_k)
    return [
        float(sum(c.executions * c.bytes for c in copies)),
        float(sum(c.executions * published.packets(c.rows, c.row_bytes) for c in copies)),
        sum(c.executions * c.bytes * unit.shared_rows(c.bytes, c.rows) for c in copies),
    ]


def in_streaming_memory(m: published.Measurement) -> bool:
    """Whether the cache was there, rather than in SRAM."""
    return KERNELS[m.kernel].memory == "streaming"


def least_squares(features: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Coefficients that minimise the sum of squared relative errors."""
    a = features / seconds[:, None]
    scale = np.abs(a).max(axis=0)  # columns of one size
    scale[scale == 0] = 1.0
    solution: np.ndarray = np.linalg.lstsq(a / scale, np.ones(len(a)), rcond=None)[0] / scale
    return solution


def fit(
    rows: Sequence[published.Measurement], start: DeviceModel | None = None
) -> tuple[DeviceModel, dict[str, float]]:
    """The device's parameters and the program's constants from these measurements.

    What is not fitted, and the form of the effect of shared rows, are those of `start` (default: the Bow
    model).
    """
    start = start or device_model("bow")
    streaming = [m for m in rows if in_streaming_memory(m)]
    sram = [m for m in rows if not in_streaming_memory(m)]
    constants: dict[str, float] = {}

    def solve(part: list[published.Measurement], transfers: bool) -> np.ndarray:
        on_chip = [published.on_chip_features(m.kernel, m.batch, m.seq_len, m.top_k) for m in part]
        names = sorted({name for f in on_chip for name in f})
        columns = [
            (transfer_features(start, m) if transfers else []) + [f.get(name, 0.0) for name in names]
            for m, f in zip(part, on_chip)
        ]
        solution = least_squares(np.array(columns), np.array([m.seconds for m in part]))
        constants.update(zip(names, (float(s) for s in solution[-len(names) :])))
        return solution

    w = solve(streaming, True)
    solve(sram, False)
    # A chunk of dense attention from streaming memory at batch 1 is one remote copy, one of the two matrix
    # products of dense attention from SRAM, and half of its softmax and control: what is left is the copy's
    # fixed cost. The split is an assumption; dense_chunk is an upper bound.
    copy = constants["dense_chunk"] - constants["sram_query"] / 2
    fitted: dict[str, Any] = {
        "streaming_bytes_per_second": 1 / w[0],
        "packet_overhead_bytes": w[1] / w[0],
        "shared_row_penalty": w[2] / w[0],
        "remote_copy_seconds": copy,
    }
    rounded: dict[str, Any] = {name: float(f"{value:.5g}") for name, value in fitted.items()}
    constants = {name: float(f"{value:.5g}") for name, value in sorted(constants.items())}
    return dataclasses.replace(start, **rounded), constants


def relative_errors(
    model: DeviceModel, constants: dict[str, Any], rows: Sequence[published.Measurement]
) -> np.ndarray:
    modelled = [
        published.modelled_seconds(model, constants, m.kernel, m.batch, m.seq_len, m.rank, m.top_k)
        for m in rows
    ]
    return np.array([t / m.seconds - 1 for t, m in zip(modelled, rows)])


def error_row(label: str, errors: np.ndarray) -> list[str]:
    size = 100 * np.abs(errors)
    return [
        label,
        str(len(size)),
        *(f"{x:.2f}" for x in (np.median(size), np.percentile(size, 95), size.max())),
    ]


ERROR_HEADER = ("", "points", "median %", "95th percentile %", "maximum %")


def error_table(
    model: DeviceModel, constants: dict[str, Any], rows: Sequence[published.Measurement]
) -> list[list[str]]:
    table = []
    for kernel in ORDER:
        part = [m for m in rows if m.kernel == kernel.name]
        if part:
            table.append(error_row(kernel.name, relative_errors(model, constants, part)))
    return table


def cross_validation(rows: Sequence[published.Measurement]) -> tuple[list[list[str]], list[list[str]]]:
    """Errors on each sequence length by a fit without it, and the parameters of that fit."""
    errors, parameters = [], []
    for seq_len in sorted({m.seq_len for m in rows}):
        model, constants = fit([m for m in rows if m.seq_len != seq_len])
        held_out = [m for m in rows if m.seq_len == seq_len]
        for row in error_table(model, constants, held_out):
            errors.append([f"S={seq_len}, {row[0]}", *row[1:]])
        parameters.append(parameter_row(f"without S={seq_len}", model, constants))
    return errors, parameters


def sparq_measurements(rows: Sequence[published.Measurement]) -> list[published.Measurement]:
    """Those of SparQ attention."""
    return [m for m in rows if KERNELS[m.kernel].takes == "sparq"]


def growth_table(rows: Sequence[published.Measurement]) -> list[list[str]]:
    """Forms of the shared-row effect: how well each does, and what it says of lengths not fitted."""
    table = []
    shipped: list[float] = []
    longest = max(m.seq_len for m in rows)
    sparq = sparq_measurements(rows)
    for label, growth in GROWTHS.items():
        bow = device_model("bow")
        start = bow if growth is None else OtherGrowth(**bow.__dict__, growth=growth)
        model, constants = fit(rows, start)
        without = fit([m for m in rows if m.seq_len != longest], start)
        worst = [
            100 * np.abs(relative_errors(*fitted, part)).max()
            for fitted, part in (
                ((model, constants), [m for m in sparq if m.batch == 1]),
                (without, [m for m in sparq if m.seq_len == longest]),
            )
        ]
        seconds = [
            published.modelled_seconds(model, constants, sparq[0].kernel, 1, seq_len, 16, 64)
            for seq_len in NOT_FITTED
        ]
        shipped = shipped or seconds
        table.append(
            [
                label,
                *(f"{x:.2f}" for x in worst),
                *(
                    f"{100 * model.shared_rows(512 * 2 * seq_len, 512):.1f} ({100 * (t / s - 1):+.1f})"
                    for seq_len, t, s in zip(NOT_FITTED, seconds, shipped)
                ),
            ]
        )
    return table


GROWTH_HEADER = (
    "growth with bytes n of a row",
    "maximum % at batch 1",
    "maximum % at S=16384, left out",
    *(f"{2 * n // KIB} KiB (S={n})" for n in NOT_FITTED),
)


def parameter_row(label: str, model: DeviceModel, constants: dict[str, float]) -> list[str]:
    return [
        label,
        f"{model.streaming_bytes_per_second / 1e9:.3f}",
        f"{model.packet_overhead_bytes:.1f}",
        f"{model.remote_copy_seconds * 1e6:.1f}",
        f"{100 * model.shared_row_penalty:.1f}",
        *(
            f"{constants[name] * 1e6:.1f}"
            for name in ("dense_chunk", "dense_chunk_of_batches", "dense_query", "sparq_query")
        ),
        f"{constants['sparq_sort_step'] * 1e6:.2f}",
        f"{constants['sparq_comparison'] * 1e9:.2f}",
    ]


PARAMETER_HEADER = (
    "fit",
    "streaming GB/s",
    "packet overhead B",
    "remote copy us",
    "shared rows %",
    "dense_chunk us",
    "dense_chunk_of_batches us",
    "dense_query us",
    "sparq_query us",
    "sparq_sort_step us",
    "sparq_comparison ns",
)


def report(rows: Sequence[published.Measurement], model: DeviceModel, constants: dict[str, float]) -> str:
    errors, parameters = cross_validation(rows)
    bytes_per_cycle = model.streaming_bytes_per_second / model.clock_hz
    return "\n\n".join(
        (
            f"Fitted on {len(rows)} measurements; the streaming rate is {bytes_per_cycle:.3f} bytes a tile "
            "cycle.",
            markdown_table(PARAMETER_HEADER, [parameter_row("all", model, constants), *parameters]),
            "Relative errors of the fit:",
            markdown_table(ERROR_HEADER, error_table(model, constants, rows)),
            "Relative errors on a sequence length that was left out of the fit:",
            markdown_table(ERROR_HEADER, errors),
            f"Forms of the shared-row effect: errors of {sparq_measurements(rows)[0].kernel}; then, for 512 "
            "rows of each length, the percentage, and in brackets by how many percent the whole query of "
            "r=16, k=64 at batch 1 differs from the shipped form's:",
            markdown_table(GROWTH_HEADER, growth_table(rows)),
        )
    )


def check(rows: Sequence[published.Measurement]) -> str:
    """Errors of the shipped model on these measurements: of each kernel, all together and by length."""
    model, constants = device_model("bow"), parameters_file()["published_program"]
    table = error_table(model, constants, rows)
    for seq_len in sorted({m.seq_len for m in rows}):
        part = [m for m in rows if m.seq_len == seq_len]
        table += [[f"S={seq_len}, {row[0]}", *row[1:]] for row in error_table(model, constants, part)]
    return markdown_table(ERROR_HEADER, table)


def write(model: DeviceModel, constants: dict[str, float], text: str) -> None:
    """The fitted numbers into the data file, the emulator's header and the document."""
    content = parameters_file()
    for name in DEVICE:
        content["bow"][name] = getattr(model, name)
    content["published_program"] = constants
    PARAMETERS.write_text(json.dumps(content, indent=1) + "\n")
    header = HEADER.read_text()
    for name, member in DEVICE.items():
        value = repr(getattr(model, name))
        header, n = re.subn(rf"(double {member} = )[^;]+;", rf"\g<1>{value};", header)
        if n != 1:
            raise SystemExit(f"calibrate.py: {HEADER.name} must define {member} once, got {n} times")
    HEADER.write_text(header)
    replace_block(DOCUMENT, "calibration", text)


def of_day(archive: Path, model_file: Path | None) -> str:
    """What a day says of the model; the fitted parameters go into `model_file`."""
    records = pack.records_of(archive)
    shipped = device_model("bow")
    fitted = fit_day.fit(records, shipped.parameters())
    texts = [
        "Parameters, shipped and fitted; wrong: by more than 2 % and three standard errors:",
        markdown_table(("parameter", "shipped", "fitted", "change"), fit_day.parameter_rows(fitted)),
        "Relative errors of the probes in %, with the shipped and with the fitted parameters:",
        markdown_table(
            ("rule", "points", "median", "maximum", "median, fitted", "maximum, fitted", ""),
            fit_day.kind_rows(fitted),
        ),
    ]
    if fitted.without:
        rows = [(name, f"{seconds * 1e6:.3f}") for name, seconds in fitted.without]
        texts += ["Without a rule in the model, us for one:", markdown_table(("", "us"), rows)]
    for part, what in (("vertices", "Vertices"), ("programs", "Whole programs")):
        rows = fit_day.ratio_rows(records, part)
        if rows:
            texts += [
                f"{what}, measured over modelled, the worst first:",
                markdown_table(("", "ratio"), rows[:20]),
            ]
    grown = fit_day.growth_rows(records)
    if grown:
        middle = statistics.median(float(row[1]) for row in grown)
        texts += [
            f"Vertices, what doubling a size adds, measured over estimated: {middle:.2f} in the middle of "
            f"{len(grown)}; the worst:",
            markdown_table(("vertex", "median", "minimum", "maximum"), grown[:20]),
        ]
    if model_file is not None:
        made = fit_day.model_of(fitted, shipped, model_file.stem)
        model_file.write_text(json.dumps(dataclasses.asdict(made), indent=1) + "\n")
        texts.append(f"Written: {model_file}, a model for sparq_ipu.plan(device=...).")
    return "\n\n".join(texts)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = f"put the fit into {PARAMETERS.name}, {HEADER.name} and docs/{DOCUMENT.name}"
    parser.add_argument("--write", action="store_true", help=about)
    parser.add_argument("--points", action="store_true", help="list every measurement with its modelled time")
    about = f"only judge the model as it is in {PARAMETERS.name} by other measurements (CSV, same columns)"
    parser.add_argument("--check", type=Path, metavar="FILE", help=about)
    parser.add_argument(
        "--day", type=Path, metavar="FILE.tar.gz", help="fit the model to a day of hardware_day.py instead"
    )
    parser.add_argument(
        "--model", type=Path, metavar="FILE.json", help="with --day: write the fitted parameters there"
    )
    about = "compare the rules of work on chip with measurements by others instead"
    parser.add_argument("--on-chip", action="store_true", help=about)
    args = parser.parse_args(arguments)
    if args.on_chip:
        refuse(parser, args, "with --on-chip", "points", "check", "day", "model")
        text = on_chip.report(on_chip.measured_file())
        print(text)
        if args.write:
            replace_block(RULES_DOCUMENT, "measured", text)
        return 0
    if args.day:
        refuse(parser, args, "with --day", "write", "points", "check")
        check_output(parser, "--model", args.model)
        try:
            print(of_day(args.day, args.model))
        except OSError as error:
            parser.error(f"--day must be a file that can be read, got {args.day} ({error.strerror})")
        except ValueError as error:
            parser.error(f"--day: {str(error).partition(': ')[2]}")
        return 0
    refuse(parser, args, "without --day", "model")
    if args.check:
        refuse(parser, args, "with --check", "write", "points")
        try:
            others = published.measurements(args.check)
            print(check(others))
        except OSError as error:
            parser.error(f"--check must be a file that can be read, got {args.check} ({error.strerror})")
        except (KeyError, ValueError) as error:
            columns = f"the columns of {published.MEASUREMENTS.name}"
            parser.error(f"--check must be a CSV file with {columns}, got {args.check} ({error})")
        return 0
    rows = published.measurements()
    model, constants = fit(rows)
    text = report(rows, model, constants)
    print(text)
    if args.points:
        print("\nkernel batch seq_len rank top_k measured_us modelled_us error_%")
        for m, relative in zip(rows, relative_errors(model, constants, rows)):
            print(
                f"{m.kernel} {m.batch} {m.seq_len} {m.rank} {m.top_k} {m.seconds * 1e6:.2f} "
                f"{m.seconds * (1 + relative) * 1e6:.2f} {100 * relative:+.2f}"
            )
    if args.write:
        write(model, constants, text)
        print(f"\nwritten: {PARAMETERS.name}, {HEADER.name}, {DOCUMENT.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
