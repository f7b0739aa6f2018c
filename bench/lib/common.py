# SPDX-License-Identifier: Apache-2.0
"""What all benches share: flags, the workload they describe, rows of results, tables.

A new option of the cache or setting of SparQ gets a line in SHAPE_FLAGS or SETTINGS_FLAGS below, and nothing
else in bench/: benches hand the workload on. A new kernel needs nothing at all: benches read the registry.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import re
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, NoReturn, Sequence

ROOT = Path(__file__).resolve().parents[2]
for _room, _package in (("reference", "sparq_reference"), ("python", "sparq_ipu")):
    if importlib.util.find_spec(_package) is None:  # not installed: from the tree
        sys.path.append(str(ROOT / _room))

from sparq_ipu.commands import command_line  # noqa: E402
from sparq_ipu.commands.command_line import Parser as Parser  # noqa: E402
from sparq_ipu.commands.command_line import check_output as check_output  # noqa: E402
from sparq_ipu.commands.command_line import guarded as guarded  # noqa: E402
from sparq_ipu.commands.progress import Progress as Progress  # noqa: E402
from sparq_ipu.device_options import DeviceOptions  # noqa: E402
from sparq_ipu.kernels import BASELINE, KERNELS, TIERED, Kernel  # noqa: E402
from sparq_ipu.planning import Plan, plan  # noqa: E402
from sparq_ipu.planning.device_model import ON_CHIP_COLUMNS  # noqa: E402
from sparq_ipu.transformers.settings.command import SETTINGS_FLAGS as SPELLED  # noqa: E402
from sparq_ipu.transformers.settings.layers import RECOMMENDED, recommended  # noqa: E402
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, checks  # noqa: E402
from sparq_reference.settings import settings_columns  # noqa: E402

from .json_lines import SCHEMA, JsonLines  # noqa: E402
from .origin import git_revision, repeat_command  # noqa: E402

Row = Dict[str, Any]


# ---- the workload and its flags


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of all benches that stands for an argument of the library."""

    flag: str
    #: as the library calls it: a field of CacheSpec or SparqSettings, or n_heads
    argument: str
    #: a number takes a value; with True or False the flag is a switch to the other one; None: see `help`
    default: int | None
    help: str
    #: other spellings
    short: Sequence[str] = ()


def _setting(argument: str, text: str) -> Flag:
    flag, *short = SPELLED[argument]
    return Flag(flag, argument, None, text, short)


SHAPE_FLAGS = (
    Flag("--S", "capacity", 16384, "positions in the cache, all attended to (sequence length)"),
    Flag("--B", "batch", 1, "batch: sequences decoded side by side"),
    Flag("--heads", "n_heads", 32, "query heads"),
    Flag("--kv-heads", "n_kv_heads", None, "KV heads; fewer than --heads is grouped-query attention"),
    Flag("--head-dim", "head_dim", 128, "components of a head, a multiple of 8"),
)
#: what kernels that take settings read; also options of the cache that only these look at
SETTINGS_FLAGS = (
    _setting("rank", "components of each key that are read to score positions [32, or half of --head-dim]"),
    _setting("top_k", f"positions whose keys and values are read [{RECOMMENDED['top_k']}]"),
    _setting("n_local", "of these, the most recent positions [a quarter of --top-k]"),
    Flag(
        "--no-mean-value",
        "mean_value",
        True,
        "drop the unselected positions instead of giving their weight to the mean value",
    ),
    Flag(
        "--index-bits",
        "index_bits",
        RECOMMENDED["index_bits"],
        "bits of a number in the key index, from which positions are scored: 16, 8, 4 or 2",
    ),
    Flag(
        "--index-components",
        "index_components",
        0,
        "three tiers only: components stored in the key index, the first ones; 0: all",
    ),
    Flag("--row-bits", "row_bits", 16, "bits of keys and values: 16, or 8 in three tiers"),
)
FLAGS = (*SHAPE_FLAGS, *SETTINGS_FLAGS)
ARGUMENTS = tuple(f.argument for f in FLAGS)
#: rows are older than these: they have them where they are not 0
NEWER_OPTIONS = ("index_components",)
#: where rows have another name for an argument
COLUMN_OF = {"capacity": "seq_len"}
_FLAG_OF = {name: f.flag for f in FLAGS for name in (f.argument, COLUMN_OF.get(f.argument, f.argument))}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One attention call: every position of a full cache, one query token per batch element."""

    spec: CacheSpec
    n_heads: int
    #: None: dense attention
    settings: SparqSettings | None

    @classmethod
    def of(cls, op: str, arguments: Mapping[str, Any], takes_settings: bool) -> Workload:
        """From values by the names of `Flag.argument`.

        Raises:
            ValueError: `<op>: <argument> must <rule>, got <value>`.
        """

        def those_of(kind: type) -> dict[str, Any]:
            return {f.name: arguments[f.name] for f in dataclasses.fields(kind) if f.name in arguments}

        n_heads = checks.check_integer(op, "n_heads", arguments["n_heads"], 1, checks.MAX_CAPACITY)
        spec = CacheSpec(**those_of(CacheSpec), op=op)
        if n_heads % spec.n_kv_heads:
            checks.fail(op, "n_heads", f"be a multiple of n_kv_heads={spec.n_kv_heads}", n_heads)
        settings = SparqSettings.of(op, spec.head_dim, those_of(SparqSettings)) if takes_settings else None
        return cls(spec, n_heads, settings)

    @property
    def seq_len(self) -> int:
        """Positions attended to: the capacity of the cache."""
        return self.spec.capacity

    def on(self, kernel: Kernel) -> Workload:
        """The same for this kernel: without settings if it takes none, and then with a plain cache."""
        same = self.with_plain_cache() if kernel.is_dense else self
        spec = same.spec
        if kernel.memory != "tiered":  # which alone has rows of 8 bits, and fewer components
            spec = dataclasses.replace(spec, row_bits=16, index_components=0)
        return dataclasses.replace(same, spec=spec, settings=kernel.settings(self.settings))

    def with_plain_cache(self) -> Workload:
        """The same with options of the cache left out."""
        return dataclasses.replace(self, spec=self.spec.plain())

    def _shape(self) -> dict[str, Any]:
        spec = {name: value for name, value in dataclasses.asdict(self.spec).items() if name in ARGUMENTS}
        for name in NEWER_OPTIONS:
            if not spec.get(name):
                spec.pop(name, None)
        first = {"batch": spec.pop("batch"), "n_heads": self.n_heads, "n_kv_heads": spec.pop("n_kv_heads")}
        return {**first, "head_dim": spec.pop("head_dim"), "seq_len": spec.pop("capacity"), **spec}

    def columns(self) -> Row:
        """For a row of results: shape, options of the cache, settings (None each for dense attention)."""
        return {**self._shape(), **settings_columns(self.settings)}

    def plan_arguments(self) -> dict[str, Any]:
        """As keyword arguments of `sparq_ipu.plan`."""
        return {**self._shape(), **(self.settings.arguments() if self.settings else {})}

    def flags(self) -> list[str]:
        """The flags that describe it, every one spelled out."""
        given = {**dataclasses.asdict(self.spec), "n_heads": self.n_heads}
        given.update(self.settings.arguments() if self.settings else {})
        words = []
        for f in FLAGS if self.settings else SHAPE_FLAGS:
            if f.argument in NEWER_OPTIONS and not given[f.argument]:
                continue  # as rows have it
            if f.argument in given and not isinstance(f.default, bool):
                words += [f.flag, str(given[f.argument])]
            elif given.get(f.argument, f.default) is not f.default:
                words.append(f.flag)
        return words

    def __str__(self) -> str:
        usual = self.spec.plain().option_values.items()
        shape = dict(item for item in self._shape().items() if item not in usual)
        heads = f"{shape.pop('n_heads')} heads, {shape.pop('n_kv_heads')} KV heads"
        words = [f"batch {shape.pop('batch')}", heads, *(f"{name} {n}" for name, n in shape.items())]
        return ", ".join(words if self.settings is None else [*words, str(self.settings)])


def kernel_label(
    kernel: str, index_bits: int | None = 16, row_bits: int | None = 16, index_components: int | None = 0
) -> str:
    """A kernel as tables call it: with the bits of its cache's key index and of its rows, where these are not
    16, and with the number of components in the index, where these are not all."""
    index = "" if index_bits in (None, 16) else f" int{index_bits}"
    index += f", {index_components} components" if index_components else ""
    return kernel + index + ("" if row_bits in (None, 16) else f", rows int{row_bits}")


def label(row: Row) -> str:
    """Of a row of a kernel, for people: unlike any other of a run."""
    options = ("index_bits", "row_bits", *NEWER_OPTIONS)
    return kernel_label(row["kernel"], *(row.get(name) for name in options))


WORKLOAD_COLUMNS = tuple(Workload(CacheSpec(1, 1, 8, 1), 1, None).columns())


def sparq_kernels() -> dict[str, Kernel]:
    """What benches of SparQ attention run: all kernels but those of window attention, by name."""
    return {name: kernel for name, kernel in KERNELS.items() if kernel.takes != "window"}


def attention_functions() -> dict[str, Kernel]:
    """What kernels compute, by short name (of `dense_attention`: "dense"): one kernel of each. For benches of
    functions on the host, where kernels that differ in their memory are one."""
    functions: dict[str, Kernel] = {}
    for kernel in sparq_kernels().values():
        functions.setdefault(kernel.op.split("_")[0], kernel)
    return functions


def in_flags(error: ValueError, **more: str) -> str:
    """The message of a check, `<op>: <argument> must <rule>, got <value>`, without <op> and with flags for
    the names of arguments; `more`: flags of a bench by argument."""
    flags = {**_FLAG_OF, **_MORE_FLAGS, **more}
    message = str(error).partition(": ")[2] or str(error)
    argument, must, rule = message.partition(" must ")
    argument = re.sub(r"\w+", lambda m: flags.get(m[0], m[0]), argument)
    return argument + must + re.sub(r"\b(\w+)=", lambda m: f"{flags.get(m[1], m[1])}=", rule)


def refuse(parser: argparse.ArgumentParser, a: argparse.Namespace, where: str, *arguments: str) -> None:
    """Refuse flags that would change nothing. What is so without a flag of the cache may be said."""
    usual = {
        name: getattr(CacheSpec, name) for name in CacheSpec.options() if parser.get_default(name) is None
    }
    command_line.refuse(parser, a, where, *arguments, usual=usual)


class CommandLine:
    """The command line of a bench: the flags of a workload; others that benches share by the methods that add
    them; its own by `run.add_argument`.

    Args:
        script: its __file__, or the name that its rows have.
        description: for --help; its docstring.
        notes: for the end of --help: examples, exit status.
        many: arguments whose flags take one value or more.
        defaults: by argument, where they are not those of the flags.
        without: arguments whose flags it does not have: they are as their defaults say.
        program: the words that call it; None: the name of the script.
    """

    def __init__(
        self,
        script: str,
        description: str | None,
        notes: str,
        *,
        many: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        without: Sequence[str] = (),
        program: str | None = None,
    ) -> None:
        self.bench = Path(script).stem
        self._program = program or f"{self.bench}.py"
        self._many = many
        self._defaults = {f.argument: f.default for f in FLAGS}
        self._defaults.update(defaults or {})
        self.parser = Parser(
            prog=self._program,
            description=description,
            epilog=notes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for title, flags in (("shape", SHAPE_FLAGS), ("SparQ attention", SETTINGS_FLAGS)):
            group = self.parser.add_argument_group(title)
            for flag in flags:
                if flag.argument in without:
                    self.parser.set_defaults(**{flag.argument: None})
                else:
                    self._add_flag(group, flag)
        #: for the flags of the bench
        self.run = self.parser.add_argument_group("run")

    def _add_flag(self, group: argparse._ArgumentGroup, f: Flag) -> None:
        if isinstance(f.default, bool):
            const = not f.default
            group.add_argument(f.flag, dest=f.argument, action="store_const", const=const, help=f.help)
            return
        default = self._defaults[f.argument]
        text = f.help
        if isinstance(default, (list, tuple)):
            text = f"{text.partition(' [')[0]} [{' '.join(map(str, default))}]"
        elif default is not None or f.argument == "n_kv_heads":
            text = f"{text} [{'as --heads' if default is None else default}]"
        nargs = "+" if f.argument in self._many else None
        group.add_argument(f.flag, *f.short, dest=f.argument, type=int, metavar="N", nargs=nargs, help=text)

    def add_kernel(self, names: Mapping[str, str] | None = None, many: bool = False) -> None:
        """--kernel: some of `names`, of which each is described, or all; None: `sparq_kernels`."""
        names = names or {kernel.name: kernel.description for kernel in sparq_kernels().values()}
        self.run.add_argument(
            "--kernel",
            choices=("all", *names),
            nargs="+" if many else None,
            default=["all"] if many else "all",
            help="what to run [all]; " + "; ".join(f"{name}: {what}" for name, what in names.items()),
        )

    def add_tiers(self) -> None:
        """--hot-rows: see `device_options`."""
        tiers = self.parser.add_argument_group(f"three tiers ({TIERED.name})").add_argument
        text = "rows of keys and values of each KV head that stay in SRAM; 0: four times --k [0]"
        tiers("--hot-rows", type=int, default=0, metavar="N", help=text)

    def add_run(
        self, seed_of: str | None, *, reps: int | None = None, warmup: int | None = None, where: str = ""
    ) -> None:
        """--json, with `seed_of` --seed (0 without), and with `reps` --reps and --warmup."""
        add = self.run.add_argument
        if reps is not None:
            text = f"timed runs of each kernel{where} [{reps}]"
            add("--reps", type=int, default=reps, metavar="N", help=text)
            add("--warmup", type=int, default=warmup, metavar="N", help=f"runs before them{where} [{warmup}]")
        if seed_of is None:
            self.parser.set_defaults(seed=0)
        else:
            add("--seed", type=int, default=0, metavar="N", help=f"seed of {seed_of} [0]")
        about = (
            "append the results as JSON lines, a row for each kernel and shape, with the command that "
            "repeats it. A file that cannot be written, or contains other rows, is refused before any work"
        )
        add("--json", type=Path, metavar="FILE", help=about)

    def error(self, message: str) -> NoReturn:
        """End with usage, message and exit status 2."""
        self.parser.error(message)

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments; `command` is the command line that was given, `json` a `JsonLines` or None."""
        a = self.parser.parse_args(argv)
        a.command = repeat_command(self._program, sys.argv[1:] if argv is None else argv)
        self.at_least(a, seed=0, reps=1, warmup=0)
        if getattr(a, "json", None) is not None:
            a.json = JsonLines(a.json, self.bench)
            try:
                a.json.check()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                self.error(f"--json must {a.json.rule}, got {str(a.json.path)!r} ({reason})")
        return a

    def at_least(self, a: argparse.Namespace, **least: int) -> None:
        """Refuse smaller values of these flags, where the bench has them."""
        for name, low in least.items():
            value = getattr(a, name, None)
            if value is not None and value < low:
                self.error(f"--{name.replace('_', '-')} must be at least {low}, got {value}")

    def within(self, a: argparse.Namespace, name: str, low: int, high: int) -> None:
        """Refuse values of a flag that are not in [low, high]."""
        values = getattr(a, name)
        for value in values if isinstance(values, list) else [values]:
            if not low <= value <= high:
                self.error(f"--{name.replace('_', '-')} must be in [{low}, {high}], got {value}")

    def refuse(self, a: argparse.Namespace, where: str, *arguments: str) -> None:
        """As `refuse`."""
        refuse(self.parser, a, where, *arguments)

    def chosen(self, a: argparse.Namespace, names: Mapping[str, Kernel] | None = None) -> dict[str, Kernel]:
        """The kernels of --kernel, of `names` (by default `sparq_kernels`) in their order. Flags that none of
        them looks at are refused."""
        names = sparq_kernels() if names is None else names
        asked = [a.kernel] if isinstance(a.kernel, str) else a.kernel
        those = {name: kernel for name, kernel in names.items() if name in asked or "all" in asked}
        if all(kernel.is_dense for kernel in those.values()):
            self.refuse(a, "where only dense attention runs", *(f.argument for f in SETTINGS_FLAGS))
        if all(kernel.memory != "tiered" for kernel in those.values()):
            of_tiers = ("row_bits", "index_components", "hot_rows", "hit_rate")
            self.refuse(a, "where no kernel has hot rows", *of_tiers)
        return those

    def workloads(self, a: argparse.Namespace, takes_settings: bool, **known: Any) -> list[Workload]:
        """One for every combination of the flags' values; `known` arguments instead of theirs."""
        lists = []
        for f in FLAGS if takes_settings else SHAPE_FLAGS:
            value = known.get(f.argument, getattr(a, f.argument))
            value = self._defaults[f.argument] if value is None else value
            lists.append(value if isinstance(value, (list, tuple)) else [value])
        made = []
        for values in itertools.product(*lists):
            arguments = dict(zip(ARGUMENTS, values))
            if arguments["n_kv_heads"] is None:
                arguments["n_kv_heads"] = arguments["n_heads"]
            given = {name: value for name, value in arguments.items() if value is not None}
            try:
                if takes_settings:
                    given = recommended(self.bench, given, arguments["head_dim"])
                made.append(Workload.of(self.bench, given, takes_settings))
            except ValueError as error:
                self.error(in_flags(error))
        return made


#: flags of benches by the names of what they stand for, beside those of workloads
_MORE_FLAGS = {"n_tiles": "--tiles", "n_ipus": "--ipus", "n_layers": "--layers"}
_MORE_FLAGS.update({name: f"--{name.replace('_', '-')}" for name in ("hot_rows", "split")})


def tiers_of(a: argparse.Namespace, kernel: Kernel) -> dict[str, Any]:
    """What the flags say of hot rows, for a kernel that has some."""
    return {"hot_rows": a.hot_rows} if kernel.memory == "tiered" else {}


def device_options(a: argparse.Namespace, kernel: Kernel, **more: Any) -> DeviceOptions:
    """What the flags say of the device that a kernel runs on; `more`: others, by name.

    Raises:
        ValueError: one is out of range.
    """
    return DeviceOptions(a.tiles, kernel.memory, **tiers_of(a, kernel), **more)


def plan_options(a: argparse.Namespace, kernel: Kernel) -> dict[str, Any]:
    """The same and --hit-rate, as arguments of `sparq_ipu.plan`."""
    hit_rate = {"hit_rate": a.hit_rate} if kernel.memory == "tiered" else {}
    return {"n_tiles": a.tiles, **tiers_of(a, kernel), **hit_rate}


# ---- rows of results


#: what `timing` fills
NO_TIMES: Row = dict.fromkeys(
    ("seconds_per_query", "seconds_min", "seconds_max", "seconds_mad", "seconds", "n_runs")
)
#: what a modelled time has beside it
NO_RANGE: Row = dict.fromkeys(ON_CHIP_COLUMNS)
#: columns over the best dense plan, and the times that they compare
SPEEDUPS = {
    "speedup_vs_best_dense": "seconds_per_query",
    "speedup_low": "seconds_high",
    "speedup_high": "seconds_low",
}
NO_SPEEDUPS: Row = dict.fromkeys((*SPEEDUPS, "speedup_vs_dense_streaming"))


def speedups_over(dense: Iterable[Row], row: Row) -> Row:
    """A row's speed-ups over dense attention: the fastest of these rows, and the baseline kernel."""
    timed = [other for other in dense if other["seconds_per_query"]]
    if not timed or not row["seconds_per_query"]:
        return NO_SPEEDUPS
    best = min(timed, key=lambda other: float(other["seconds_per_query"]))
    of = {name: best[seconds] / row[seconds] for name, seconds in SPEEDUPS.items() if best[seconds]}
    streaming = [other for other in timed if other["kernel"] == BASELINE.name]
    if streaming:
        of["speedup_vs_dense_streaming"] = streaming[0]["seconds_per_query"] / row["seconds_per_query"]
    return {**NO_SPEEDUPS, **of}


def new_row(
    bench: str, kernel: str, device: str, workload: Workload, *, time_source: str, seed: int, command: str
) -> Row:
    """A row with the columns of all benches; what is not known yet is None.

    seconds_per_query   one attention call for the whole batch; the median of the runs where it was measured
    seconds_min, seconds_max, seconds_mad   of the runs: least, most, median absolute deviation
    seconds, n_runs     every run, and how many; None where the time is modelled
    time_source         "measured" or "modelled"
    on_chip_seconds     of a modelled time all but remote copies: an estimate
    seconds_low, seconds_high   the time with that at the ends of its range
    bit_exact           equal to `checked_against` in every bit; None where bits were not compared
    checked_against     what the result was compared with; None: nothing
    does_not_fit        {"resource", "need", "room"} where the device has too little of something
    error               why there is no result, or what is wrong with it
    """
    return {
        "schema": SCHEMA,
        "bench": bench,
        "kernel": kernel,
        "device": device,
        **workload.columns(),
        **NO_TIMES,
        **NO_RANGE,
        "time_source": time_source,
        "bit_exact": None,
        "checked_against": None,
        "seed": seed,
        "git": git_revision(),
        "command": command,
        "does_not_fit": None,
        "error": None,
    }


def timing(seconds: Sequence[float]) -> Row:
    """Columns of measured runs, each in seconds for one query."""
    median = statistics.median(seconds)
    return {
        "seconds_per_query": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "seconds_mad": statistics.median(abs(s - median) for s in seconds),
        "seconds": list(seconds),
        "n_runs": len(seconds),
    }


def failure(error: Exception) -> Row:
    """Columns of what could not run."""
    fits = None
    if isinstance(error, DoesNotFit):
        fits = {"resource": error.resource, "need": error.need, "room": error.room}
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return {"does_not_fit": fits, "error": text}


def plan_into(row: Row, workload: Workload, **options: Any) -> Plan | None:
    """Fill a row with the plan of its kernel, or with why there is none; `options` of `sparq_ipu.plan`."""
    try:
        planned = plan(**workload.plan_arguments(), kernel=row["kernel"], **options)
    except ValueError as error:
        row.update(failure(error))
        return None
    row.update(planned.row())
    return planned


# ---- for people


class Column(NamedTuple):
    """A column of a table: its text is aligned to the right, or left where the width is negative."""

    heading: str
    width: int
    text: Callable[[Row], str]


def text_table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """A table for a terminal, with the error of a row below it."""

    def line(cells: Iterable[str]) -> str:
        return " ".join(
            cell.ljust(-c.width) if c.width < 0 else cell.rjust(c.width) for c, cell in zip(columns, cells)
        ).rstrip()

    header = line(c.heading for c in columns)
    lines = [header, "-" * len(header)]
    for row in rows:
        lines.append(line(c.text(row) for c in columns))
        if row["error"]:
            lines.append(f"  error: {row['error']}")
    return "\n".join(lines)


def spread(rates: Sequence[float]) -> str:
    """Median (minimum-maximum)."""
    return f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})"


def number(value: float | None, form: str, factor: float = 1.0, unit: str = "") -> str:
    """A cell of a table; "-" for None."""
    return "-" if value is None else format(value * factor, form) + unit
