# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a whole model's decoding on a CPU: transformers as it is, and with our caches.

    python bench/decode.py --S 8192 32768 --json decode.jsonl

The methods are interleaved: in each round every method decodes a few tokens.
    plain-sdpa, plain-eager     transformers' attention and DynamicCache; "-static": its StaticCache
    dense                       `enable_dense`, the control: our cache and kernels, and no sparsity
    sparq                       `enable` with --r, --k, --local and --index-bits, alike in all layers
    recommended                 `enable` as it is, with the top_k that is recommended for the length
A row has the median of all steps, their spread, the bytes that the cache takes and the load of the machine.
The model has the shape of SmolLM2-135M and random weights, unless --model names a checkpoint or "smollm2";
keys and values in the cache are random too: only speed is measured. With --peers and --predict prompts are
read too: English text, another part of it in each trial. stdout: one JSON line for each method, type and
length; stderr: progress, and a table made from those lines. --write puts the table of the committed rows into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from lib.common import ROOT, Column, Parser, Progress, Row, check_output, guarded, number, refuse, text_table
from lib.decode_method import METHODS, OURS, Method, head_dim_of, settings_of
from lib.decode_tables import TYPES, best_plain, of_the_lengths, of_the_peers, read_rows
from lib.json_lines import SCHEMA, JsonLines
from lib.origin import origin, repeat_command
from lib.quiet import Pace, forget_peak, noise, peak_bytes, watched
from peers import FILLED, KV_TYPES, Peer, first_tokens, least_more, text_tokens

from sparq_ipu.commands.command_line import thread_count
from sparq_ipu.commands.extras import needed
from sparq_ipu.commands.tables import replace_block
from sparq_ipu.planning.cpu_plan import plan_cpu

#: the published tables
ROWS = ROOT / "bench/results/decode.jsonl"
DOCUMENT = ROOT / "docs/benchmarks.md"

#: SmolLM2-135M, by the names of LlamaConfig
SHAPE = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    tie_word_embeddings=True,
)
#: a small one, to try this bench
TINY = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=16,
)
#: methods that `plan_cpu` predicts, and their names there
PREDICTED = {"dense": "dense", "recommended": "sparq"}
SHAPES: dict[str, dict[str, Any]] = {"smollm2-shape": SHAPE, "tiny-shape": TINY}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = Parser(
        prog="bench/decode.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--model", default="smollm2-shape", help=f'{", ".join(SHAPES)}, "smollm2", or a path')
    cli.add_argument("--S", type=int, nargs="+", default=[8192], help="positions held (default 8192)")
    cli.add_argument("--batch", type=int, default=1, help="batch elements (default 1)")
    text = (
        "of the weights (default float32 bfloat16): gguf leaves those of a file as they are, int8 and "
        "int4 round what has more bits there; beside these three all is bfloat16"
    )
    cli.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=tuple(TYPES), help=text)
    cli.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS, help="(default all)")
    cli.add_argument("--rank", "--r", dest="r", type=int, default=32, help="(default 32)")
    cli.add_argument("--top-k", "--k", dest="k", type=int, default=128, help="(default 128)")
    cli.add_argument("--n-local", "--local", dest="local", type=int, default=32, help="(default 32)")
    cli.add_argument("--index-bits", type=int, default=4, help="16, 8, 4 or 2 (default 4)")
    cli.add_argument("--row-bits", type=int, default=16, choices=(16, 8), help="(default 16)")
    cli.add_argument("--steps", type=int, default=4, help="tokens a method decodes in a round (default 4)")
    cli.add_argument("--rounds", type=int, default=5, help="(default 5; one more before them is not counted)")
    cli.add_argument(
        "--threads", type=thread_count, default=2, help="of PyTorch and of our kernels (default 2)"
    )
    text = (
        "count the CPU time of one thread, which other work on the machine disturbs little; "
        "with --threads 1 and OMP_NUM_THREADS=1"
    )
    cli.add_argument("--cpu-time", action="store_true", help=text)
    cli.add_argument("--seed", type=int, default=0)
    text = (
        "these programs too (none named: all; extra `peers`), on the same GGUF file; and for every row "
        "the time to the first token. They take turns with our methods. Rows are refused where still others "
        "ran meanwhile, and where the processors stood still, as a virtual machine's do for its neighbours"
    )
    cli.add_argument("--peers", nargs="*", choices=tuple(KV_TYPES), help=text)
    cli.add_argument(
        "--kv",
        nargs="+",
        choices=sorted({kv for types in KV_TYPES.values() for kv in types}),
        help="with --peers: of their types of keys and values, these alone (default all; llama.cpp takes "
        "minutes to read a long prompt with q8_0)",
    )
    text = (
        f"with --peers, of {' and '.join(FILLED)}: none reads a prompt. Keys and values of a short one are "
        "repeated in their caches, so --batch may be more than 1"
    )
    cli.add_argument("--filled", action="store_true", help=text)
    text = "first our methods, then one peer after another: only one has its model in memory"
    cli.add_argument("--apart", action="store_true", help=text)
    text = (
        "seconds of idleness before the steps (default 0): some virtual machines are slowed for minutes "
        "after long work, such as reading a long prompt"
    )
    cli.add_argument("--rest", type=int, default=0, help=text)
    text = (
        "also the time to the first token, and what `sparq-ipu plan --device cpu` predicts. "
        "Rows are refused as with --peers"
    )
    cli.add_argument("--predict", action="store_true", help=text)
    cli.add_argument("--json", type=Path, help="append the rows to this file too")
    cli.add_argument("--read", type=Path, help="measure nothing: take the rows of that file")
    cli.add_argument(
        "--write", action="store_true", help="put the tables of the rows into docs/benchmarks.md"
    )
    return cli


def load(name: str, dtype: str, seed: int) -> Any:
    """A model with weights of that type, in eval mode."""
    import torch
    import transformers

    from sparq_ipu.transformers.settings.layers import WEIGHTS

    weights = dtype if dtype in WEIGHTS else None
    dtype = "bfloat16" if weights else dtype
    if name not in SHAPES:
        from sparq_ipu.models import load_model

        return load_model(gguf_of(name), None if dtype == "gguf" else dtype, weights=weights)[0]
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(max_position_embeddings=1 << 20, **SHAPES[name])
    model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.to(getattr(torch, dtype)).eval().requires_grad_(False)
    if weights is not None:
        from sparq_ipu.transformers import quantise_weights

        quantise_weights(model, weights)
    return model


def _weight_bytes(model: Any) -> int:
    """Of all parameters, and of layers of few bits what a step reads."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    return total + sum(m.weight_bytes for m in model.modules() if hasattr(m, "weight_bytes"))


def rows_of(a: argparse.Namespace, seq_len: int, progress: Progress, command: str) -> list[Row]:
    """Measure all methods and types at one length."""
    import torch

    from sparq_ipu.transformers import disable, is_enabled

    methods: list[tuple[Row, Any]] = []
    rows: list[Row] = []
    generator = torch.Generator().manual_seed(a.seed)
    n_tokens = a.steps * (a.rounds + 1)
    load_average = [os.getloadavg()[0]]
    tensors: list[Any] | None = None
    model: Any = None
    forget_peak()
    for dtype in a.dtypes if a.methods else ():
        progress.step(f"{seq_len} positions, {dtype}: weights and caches")
        model = load(a.model, dtype, a.seed)
        config = model.config
        shape = (a.batch, config.num_key_value_heads, seq_len, head_dim_of(config))

        if tensors is None:
            made = torch.Generator().manual_seed(a.seed + 1)
            n_layers = config.num_hidden_layers
            # one layer's in all: those of 8B at 32,768 would take 4 GB besides the caches
            tensors = [tuple(torch.randn(2, *shape, generator=made).half())] * n_layers

        for name in a.methods:
            row = _row(a, name, dtype, seq_len, model, command)
            rows.append(row)
            with _errors_are(row):
                method = Method(name, model, a, seq_len)
                method.turn_on()
                method.fill(tensors, n_tokens)
                methods.append((row, method))
                row["cache_bytes"] = method.cache_bytes()
    tensors = None
    ours = list(methods)
    made_row = functools.partial(_row, a, dtype="gguf", seq_len=seq_len, model=model, command=command)
    try:
        if (a.peers is not None and not a.filled) or a.predict:
            for row, method in ours:
                progress.step(f"{seq_len} positions: the first token of {method.name}, {row['dtype']}")
                _first_token(row, method, a, seq_len)
        if a.peers is not None:
            for row, peer in _peers(a, seq_len, made_row, progress):
                rows.append(row)
                methods += [(row, peer)] if peer is not None else []
        vocabulary = model.config.vocab_size if a.methods else 1
        tokens = torch.randint(0, vocabulary, (n_tokens, a.batch, 1), generator=generator)
        for dtype in a.dtypes if a.predict else ():
            progress.step(f"{seq_len} positions, {dtype}: predictions")
            weights = None if dtype == "gguf" else dtype
            plan = plan_cpu(a.model, seq_len=seq_len, batch=a.batch, weights=weights, row_bits=a.row_bits)
            for row, method in ours:
                if row["dtype"] == dtype and method.name in PREDICTED:
                    row["predicted_seconds_per_step"] = plan.step_seconds(PREDICTED[method.name])
                    row["predicted_first_token_seconds"] = plan.first_token_seconds
        if a.rest:
            progress.step(f"{seq_len} positions: rests {a.rest} s")
            time.sleep(a.rest)
        with watched(a.threads, [peer.pid for _, peer in methods[len(ours) :]]) as watch:
            _rounds(a, seq_len, methods, tokens, progress)
        for row, method in methods:
            row["peak_bytes"] = peak_bytes(method.pid if isinstance(method, Peer) else os.getpid())
    finally:
        for _, peer in methods[len(ours) :]:
            peer.close()
    load_average.append(os.getloadavg()[0])
    for row, method in methods:
        row.update(load_average=load_average, others=watch.others, **watch.pace._asdict())
        if (a.peers is not None or a.predict) and row["error"] is None:
            row["error"] = noise(row["others"], row["paused"])
        if method.seconds and row["error"] is None:
            row.update(_times(method.seconds, a.batch))
    for _, method in ours:
        if is_enabled(method.model):
            disable(method.model)
        method.cache = None
    gc.collect()
    progress.step(None)
    return rows


@contextlib.contextmanager
def _errors_are(row: Row) -> Iterator[None]:
    """What goes wrong is the row's error."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError, TypeError) as error:
        row["error"] = f"{type(error).__name__}: {error}"


def _first_token(row: Row, method: Method, a: argparse.Namespace, seq_len: int) -> None:
    """The median time to it, if the machine is quiet meanwhile."""
    with _errors_are(row):
        text = text_tokens(gguf_of(a.model))
        with watched(a.threads) as watch:
            _, seconds = first_tokens(method.first_token, text, seq_len, a.seed)
        if noise(watch.others, watch.pace.paused) is None:
            row.update(first_token_seconds=statistics.median(seconds), first_token_trials=len(seconds))


def _peers(
    a: argparse.Namespace, seq_len: int, made_row: Callable[[str], Row], progress: Progress
) -> Iterator[tuple[Row, Peer | None]]:
    """Rows of the other programs, and they themselves when they have read their prompt; None: it failed."""
    for program in a.peers or KV_TYPES:
        for kv_type in KV_TYPES[program]:
            if a.kv is not None and kv_type not in a.kv:
                continue
            progress.step(f"{seq_len} positions: the first token of {program}, {kv_type}")
            row, peer = made_row(program), None
            row["kv_type"] = kv_type
            if program == "mistral.rs":  # takes no tokens
                row["prompt"] = "common words"
            with _errors_are(row):
                where = (gguf_of(a.model), seq_len, a.steps, a.threads, a.seed, a.batch, a.filled)
                peer = Peer(program, kv_type, *where)
                row["version"] = peer.prompt["version"]
                if noise(peer.prompt["others"], peer.prompt["paused"]) is None:
                    for name in ("first_token_seconds", "first_token_trials"):
                        row[name] = peer.prompt[name]
            yield row, peer


def gguf_of(model: str) -> Path:
    """The file of --model."""
    from sparq_ipu.models import smollm2_path

    return smollm2_path() if model == "smollm2" else Path(model)


def _rounds(
    a: argparse.Namespace, seq_len: int, methods: list[tuple[Row, Any]], tokens: Any, progress: Progress
) -> None:
    """Decode, interleaved."""
    expected: Any = None
    for turn in range(a.rounds + 1):
        progress.step(f"{seq_len} positions: round {turn} of {a.rounds}")
        # another order in each round: nobody always follows the same one
        first = turn % max(len(methods), 1)
        for row, method in methods[first:] + methods[:first]:
            if row["error"] is not None:
                continue
            with _errors_are(row):
                logits = method.decode(tokens[turn * a.steps : (turn + 1) * a.steps], is_counted=turn > 0)
                if turn == 0 and logits is not None:
                    logits = logits.float()
                    expected = logits if expected is None else expected
                    difference = (logits - expected).abs().max() / expected.abs().max()
                    row["logits_differ"] = float(difference)


def _row(a: argparse.Namespace, name: str, dtype: str, seq_len: int, model: Any, command: str) -> Row:
    settings = settings_of(name, a, seq_len, head_dim_of(model.config))[1] if name in METHODS else None
    return {
        "schema": SCHEMA,
        "bench": "decode",
        "model": a.model,
        "weights": "real" if a.model not in SHAPES else "random",
        "cache": "synthetic",
        "prompt": "text" if a.predict or a.peers is not None else None,
        "method": name,
        "dtype": dtype,
        "seq_len": seq_len,
        "batch": a.batch,
        "filled": a.filled and name in FILLED,
        "apart": a.apart,
        "peak_bytes": None,
        **{
            setting: getattr(settings, setting, None)
            for setting in ("rank", "top_k", "n_local", "index_bits")
        },
        "n_threads": a.threads,
        "clock": "cpu" if a.cpu_time else "wall",
        "weight_bytes": None if model is None else _weight_bytes(model),
        "cache_bytes": None,
        "logits_differ": None,
        "seconds_per_step": None,
        "seconds_mad": None,
        "seconds_min": None,
        "seconds_max": None,
        "tokens_per_second": None,
        "n_steps": None,
        "nice": os.nice(0),
        "load_average": None,
        "others": None,
        "kv_type": ("f16" if a.row_bits == 16 else "rows8") if name in OURS else dtype,
        "first_token_seconds": None,
        "first_token_trials": None,
        **dict.fromkeys(Pace._fields),
        "seed": a.seed,
        **origin(command),
        "error": None,
    }


def _times(seconds: list[float], batch: int) -> Row:
    median = statistics.median(seconds)
    return {
        "seconds_per_step": median,
        "seconds_mad": statistics.median(abs(s - median) for s in seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "tokens_per_second": batch / median,
        "n_steps": len(seconds),
    }


def table(rows: list[Row]) -> str:
    """The rows, for people."""

    def times(row: Row) -> str:
        best, own = best_plain(rows, row), row["tokens_per_second"]
        return "-" if best is None or own is None else f"{own / best:.2f}x"

    columns = [
        Column("positions", 9, lambda row: str(row["seq_len"])),
        Column("batch", 5, lambda row: str(row["batch"])),
        Column("method", -18, lambda row: row["method"]),
        Column("weights", -8, lambda row: row["dtype"]),
        Column("tokens/s", 8, lambda row: number(row["tokens_per_second"], ".2f")),
        Column("ms a step", 9, lambda row: number(row["seconds_per_step"], ".1f", 1e3)),
        Column("MAD ms", 6, lambda row: number(row["seconds_mad"], ".1f", 1e3)),
        Column("x transformers", 14, times),
        Column("cache MB", 8, lambda row: number(row["cache_bytes"], ".0f", 1e-6)),
        Column("KV cache", -8, lambda row: row.get("kv_type", "")),
        Column("first token s", 13, lambda row: number(row.get("first_token_seconds"), ".2f")),
    ]
    return text_table(columns, rows)


def _runs(a: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """What is in memory at once: all, or with --apart our methods, and then each peer alone."""
    if not a.apart:
        yield a
        return
    if a.methods:
        yield argparse.Namespace(**{**vars(a), "kv": []})
    for program in a.peers or KV_TYPES:
        for kv_type in KV_TYPES[program]:
            if a.kv is None or kv_type in a.kv:
                yield argparse.Namespace(**{**vars(a), "methods": [], "peers": [program], "kv": [kv_type]})


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status: 1 if a method failed."""
    words = sys.argv[1:] if argv is None else argv
    cli = parser()
    a = cli.parse_args(words)
    for flag in ("batch", "steps", "rounds", "threads"):
        if getattr(a, flag) < 1:
            cli.error(f"--{flag} must be at least 1, got {getattr(a, flag)}")
    of_sparq = ("r", "k", "local", "index_bits")
    if a.read is not None:
        measured = (
            "model",
            "S",
            "batch",
            "dtypes",
            "methods",
            "steps",
            "rounds",
            "threads",
            "cpu_time",
            "peers",
            "kv",
            "filled",
            "apart",
            "rest",
            "predict",
        )
        refuse(cli, a, "with --read", *measured, *of_sparq, "seed", "json")
    elif "sparq" not in a.methods:
        refuse(cli, a, "where sparq is not among --methods", *of_sparq)
    if a.rest < 0:
        cli.error(f"--rest must be at least 0, got {a.rest}")
    try:
        settings_of("sparq", a, 1, a.r)
    except ValueError as error:
        cli.error(f"{error}")
    if min(a.S) < 1:
        cli.error(f"--S must be at least 1, got {min(a.S)}")
    if a.peers is None:
        refuse(cli, a, "without --peers", "kv", "filled", "apart")
    if a.peers is not None and (a.cpu_time or (a.batch != 1 and not a.filled)):
        cli.error("--peers must have wall time, and batch 1 without --filled, as the others have")
    if a.filled and set(a.peers or KV_TYPES) - set(FILLED):
        cli.error(f"--filled must have --peers of {', '.join(FILLED)}, got {' '.join(a.peers or KV_TYPES)}")
    if a.peers is not None and a.model != "smollm2" and not a.model.endswith(".gguf"):
        cli.error(f"--peers must have --model smollm2 or a .gguf file, which all read, got {a.model}")
    if a.peers is not None and min(a.S) < a.steps + least_more(a.filled):
        rule = f"be at least {least_more(a.filled)} more than --steps with --peers"
        cli.error(f"--S must {rule}, got {min(a.S)} and {a.steps}")
    if "gguf" in a.dtypes and a.model in SHAPES:
        cli.error(f'--dtypes gguf must have --model "smollm2" or a path, got {a.model}')
    if a.predict and a.model in SHAPES:
        cli.error(f"--predict must have --model smollm2 or a path, got {a.model}")
    if a.cpu_time and (a.threads != 1 or os.environ.get("OMP_NUM_THREADS") != "1"):
        cli.error("--cpu-time must have --threads 1 and OMP_NUM_THREADS=1: it is that of one thread")
    check_output(cli, "--json", a.json)
    rows: list[Row] = []
    if a.read is not None:
        try:
            rows = read_rows(a.read)
        except (OSError, ValueError) as error:
            cli.error(f"--read must be a file of rows, got {a.read} ({error})")
    else:
        with needed("bench/decode.py", is_command=True):
            import torch
            import transformers  # noqa: F401  # found missing before anything is measured

        torch.set_num_threads(a.threads)
    progress = Progress()
    runs = [(seq_len, run) for seq_len in a.S for run in _runs(a)] if a.read is None else []
    for seq_len, run in runs:
        new = rows_of(run, seq_len, progress, repeat_command("decode.py", words))
        rows += new
        for row in new:
            print(json.dumps(row), flush=True)
        if a.json is not None:
            JsonLines(a.json, "decode").append(new)
    print(table(rows), file=sys.stderr)
    if a.write:
        has_peers = any(row["method"] in KV_TYPES for row in rows)
        name, text = ("peers", of_the_peers) if has_peers else ("decode", of_the_lengths)
        replace_block(DOCUMENT, name, text(rows))
    return int(any(row["error"] for row in rows))


if __name__ == "__main__":
    sys.exit(guarded(main))
