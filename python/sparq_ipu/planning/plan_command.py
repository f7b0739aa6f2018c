# SPDX-License-Identifier: Apache-2.0
"""Plan a model: what SparQ attention gains on this machine's CPU, or what fits on IPUs and how fast it is.

    sparq-ipu plan model.gguf --device cpu --S 8192
    sparq-ipu plan Llama-3-8B --ipus 32 --weights int4
    sparq-ipu plan path/to/config.json --S 65536 --ipus 16 --in-flight 16 --batch 4

MODEL is a name (sparq-ipu plan --models lists them), a GGUF file, a checkpoint folder or a config.json.

With --device cpu the command counts the bytes of weights and KV cache and predicts the time to the first
token and tokens/s, with dense attention and with SparQ. It times a few layers of the model with random
weights, which takes some seconds; run it on an idle machine.

For IPUs all times are modelled; nothing runs. The command compares four plans. "dense" is the best without
SparQ: every layer that fits has its cache in SRAM, the others in streaming memory. "dense-streaming" is the
paper's baseline: all caches in streaming memory. "published" is SparQ as published. "best" is the best plan
with SparQ: a key index of --index-bits, and every layer in three tiers that fits and gains by it. A plan
counts all memory in use at once: weights, the caches of all batches in flight, attention programs. Not
included: products with weights in SRAM, norms, sampling, prefill, the host.

Exit status: 0; 1 if the best plan does not fit; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Callable, Sequence

from sparq_ipu.commands.command_line import (
    Parser,
    append_line,
    only,
    output_path,
    refuse,
    thread_count,
)
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.planning.cpu_plan import BITS, plan_cpu
from sparq_ipu.planning.device_model import NAMES, device_name
from sparq_ipu.planning.model_plan import ATTENTION, SPLITS, ModelPlan
from sparq_ipu.planning.model_shape import MODELS, WEIGHT_BITS
from sparq_ipu.planning.whole_model import WEIGHTS_IN, plan_model
from sparq_ipu.transformers import RECOMMENDED
from sparq_ipu.transformers.loading.checkpoints import wait_briefly
from sparq_ipu.transformers.settings.command import SETTINGS_FLAGS
from sparq_reference.checks import INDEX_BITS, ROW_BITS

#: by argument: the help of a flag that has no default of its own
_SETTINGS = {
    "rank": f"components read to score positions (default {RECOMMENDED['rank']}, or half of head_dim)",
    "top_k": "positions that SparQ attends to "
    f"(default {RECOMMENDED['top_k']}; with --device cpu that of `generate` for --S)",
    "n_local": "of these, the most recent positions (default a quarter of --top-k)",
}
_DEVICE = f"cpu, an IPU ({', '.join(NAMES)}), or a file of bench/calibrate.py --day (default bow)"
#: arguments of plans for IPUs alone
_IPU_ONLY = (*("in_flight", "n_ipus", "split", "weights_in", "index_components", "hot_rows", "hit_rate"),)


def _device(text: str) -> str:
    return text if text == "cpu" else device_name(text)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="name, GGUF file, checkpoint folder, or config.json")
    add("--models", action="store_true", help="list the models that have names, and stop")
    add("--device", type=_device, default="bow", metavar="NAME", help=_DEVICE)
    add("--S", type=int, default=16384, dest="seq_len", metavar="N", help="positions held (default 16384)")
    add("--batch", type=int, default=1, metavar="N", help="texts in one batch (default 1)")
    text = "type of the weights; none: attention alone (default: on IPUs fp16, on a CPU as in the file)"
    add("--weights", choices=tuple(dict.fromkeys([*WEIGHT_BITS, *BITS])), help=text)
    text = "with --device cpu: threads (default: OMP_NUM_THREADS, or all processors)"
    add("--threads", type=thread_count, metavar="N", help=text)
    add("--json", type=output_path, metavar="FILE", help="append a JSON line for each plan")
    add("--quiet", action="store_true", help="no progress on stderr")
    ipu = parser.add_argument_group("IPUs").add_argument
    ipu("--ipus", type=int, default=1, metavar="N", dest="n_ipus", help="number of IPUs (default 1)")
    text = "split layers or KV heads over the IPUs (default auto: the faster of those that fit)"
    ipu("--split", choices=SPLITS, default=SPLITS[0], help=text)
    text = "batches decoded at the same time, each with its own caches (default 1)"
    ipu("--in-flight", type=int, default=1, metavar="N", help=text)
    text = "memory of the weights (default auto: SRAM if they fit and that is faster)"
    ipu("--weights-in", choices=WEIGHTS_IN, default="auto", help=text)
    settings = parser.add_argument_group("SparQ attention").add_argument
    for name, text in _SETTINGS.items():
        settings(*SETTINGS_FLAGS[name], type=int, dest=name, metavar="N", help=text)
    text = f"bits of a number in the key index of the best plan (default {RECOMMENDED['index_bits']})"
    settings("--index-bits", type=int, choices=INDEX_BITS[1:], help=text)
    text = "in three tiers: components of each key that the index stores (default all)"
    settings("--index-components", type=int, metavar="N", help=text)
    text = "bits of a number of keys and values (default 16); on IPUs 8 in three tiers alone, and as a "
    text += "lower bound of dense attention"
    settings("--row-bits", type=int, choices=ROW_BITS, help=text)
    text = "rows of a KV head that stay in SRAM, in three tiers (default 4 times --top-k)"
    settings("--hot-rows", type=int, metavar="N", help=text)
    text = "in three tiers: assumed share of the selected rows that are hot (default 0, the slowest case)"
    settings("--hit-rate", type=float, metavar="P", help=text)
    return parser


def _on_cpu(parser: argparse.ArgumentParser, a: argparse.Namespace) -> int:
    refuse(parser, a, "with --device cpu", *_IPU_ONLY)
    names = (*_SETTINGS, "index_bits", "row_bits")
    said = {name: getattr(a, name) for name in names if getattr(a, name) is not None}
    _progress(a.quiet)("timing some layers on this machine ...")
    wait_briefly()
    try:
        plan = plan_cpu(
            a.model, seq_len=a.seq_len, batch=a.batch, n_threads=a.threads, weights=a.weights, **said
        )
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    print(plan)
    if a.json is not None:
        append_line(a.json, json.dumps(plan.row()))
    return 0


def _progress(quiet: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            print(f"planning: {line}", file=sys.stderr, flush=True)

    return say


def _summary(plans: Sequence[ModelPlan]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The plans beside one another: header and rows."""
    header = (
        *("attention", "fits", "weights in", "layers on chip"),
        *("KiB/tile", "GB streaming", "ms per token", "low", "high", "tokens/s"),
        *("over dense", "over dense-streaming"),
    )
    seconds = {p.request.attention: p.seconds_per_step for p in plans if p.fits}
    rows: list[tuple[str, ...]] = []
    for p in plans:
        over = (seconds.get(name) for name in ("dense", "dense-streaming"))
        times = (
            f"{p.seconds_per_step * 1e3:.2f}",
            f"{p.seconds_low * 1e3:.2f}",
            f"{p.seconds_high * 1e3:.2f}",
            f"{p.tokens_per_second:.1f}",
            *("-" if of is None else f"{of / p.seconds_per_step:.2f}x" for of in over),
        )
        rows.append(
            (
                p.request.attention,
                "yes" if p.fits else "no",
                "SRAM" if p.weights_in == "sram" else "streaming",
                "{} of {}".format(*p.layers_on_chip),
                f"{max(ipu.tile for ipu in p.ipus) / 1024:.0f}",
                f"{max(ipu.streaming for ipu in p.ipus) / 1e9:.2f}",
                *(times if p.fits else ("-",) * len(times)),
            )
        )
    return header, rows


def main(arguments: list[str] | None = None, prog: str = "sparq-ipu plan") -> int:
    """The command; returns the exit status."""
    parser = _parser(prog)
    a = parser.parse_args(arguments)
    if a.models:
        only(parser, a, "--models")
        rows = [
            (s.name, s.n_layers, s.n_heads, s.n_kv_heads, s.head_dim, f"{s.parameters / 1e9:.2f}")
            for s in MODELS.values()
        ]
        print(markdown_table(("model", "layers", "heads", "KV heads", "head_dim", "billion weights"), rows))
        return 0
    if a.model is None:
        parser.error("MODEL must be given, got none (--models lists names)")
    if a.device == "cpu":
        return _on_cpu(parser, a)
    refuse(parser, a, "without --device cpu", "threads")
    others = ("model", "models", "threads", "json", "quiet")
    given = {name: value for name, value in vars(a).items() if name not in others and value is not None}
    say = _progress(a.quiet)
    plans = []
    try:
        for attention in ATTENTION:
            say(f"attention {attention}")
            plans.append(plan_model(a.model, attention=attention, **given))
    except ValueError as error:
        parser.error(str(error))
    fitting = [p for p in plans if p.fits]
    if fitting:
        best = min(fitting, key=lambda p: p.seconds_per_step)
        print(f"fastest attention: {best.request.attention}, {best.seconds_per_step * 1e3:.3f} ms a token")
    print(plans[-1])
    print()
    print(markdown_table(*_summary(plans)))
    if a.json is not None:
        with a.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(p.row()) + "\n" for p in plans)
    return 0 if plans[-1].fits else 1
