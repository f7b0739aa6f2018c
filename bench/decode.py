# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a whole model's decoding on a CPU: transformers as it is, and with our caches.

    python bench/decode.py --S 8192 32768 --json decode.jsonl

The methods are interleaved: in each round every method decodes a few tokens.
    plain-sdpa, plain-eager     transformers' attention and DynamicCache; "-static": its StaticCache
    dense                       `enable_dense`, the control: our cache and kernels, and no sparsity
    sparq                       `enable` with --r, --k, --local and --index-bits, alike in all layers
    recommended                 `enable` as it is, with the top_k that is recommended for the length
A row has the median of all steps, their spread, the bytes that the cache takes, the load of the machine, and
where the time of a step goes (of steps that are not counted). The model has the shape
of SmolLM2-135M and random weights, unless --model names a checkpoint or "smollm2"; keys and values in the
cache are random too. So speed is measured, and what is said means nothing. stdout: one JSON line for each
method, type and length; stderr: progress, and a table made from those lines. --write puts the table of the
committed rows into README.md, and more of them into docs/models.md.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Iterable

from common import (
    ROOT,
    Column,
    Parser,
    Progress,
    Row,
    check_output,
    git_revision,
    guarded,
    number,
    refuse,
    repeat_command,
    text_table,
)
from decode_parts import PARTS, clock
from decode_tables import TYPES, all_rows, best_plain, of_the_lengths, of_the_peers, plot, read_rows
from json_lines import SCHEMA, JsonLines
from peers import KV_TYPES, WARM_UP, noise, others, prompt_tokens, refuse_other_pace
from peers import rows_of as rows_of_peers
from processor import Pace, pace, processor

from sparq_ipu.commands.command_line import thread_count
from sparq_ipu.commands.extras import needed
from sparq_ipu.commands.tables import replace_block
from sparq_ipu.transformers.settings import LayerSettings, complete, recommended_top_k

#: the published tables
ROWS = ROOT / "bench/results/decode.jsonl"
PEERS = ROOT / "bench/results/peers.jsonl"
BLOCKS = {ROOT / "README.md": of_the_lengths, ROOT / "docs/models.md": all_rows}

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
SHAPES = {"smollm2-shape": SHAPE, "tiny-shape": TINY}
#: wall time, and the CPU time of this thread
CLOCKS = {False: time.perf_counter, True: time.thread_time}
METHODS = (
    "plain-sdpa",
    "plain-eager",
    "plain-sdpa-static",
    "plain-eager-static",
    "dense",
    "sparq",
    "recommended",
)
#: those with our caches
OURS = ("dense", "sparq", "recommended")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = Parser(
        prog="bench/decode.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--model", default="smollm2-shape", help=f'{", ".join(SHAPES)}, "smollm2", or a path')
    cli.add_argument("--S", type=int, nargs="+", default=[8192], help="positions held (default 8192)")
    cli.add_argument("--batch", type=int, default=1, help="batch elements (default 1)")
    cli.add_argument(
        "--dtypes",
        nargs="+",
        default=["float32", "bfloat16"],
        choices=tuple(TYPES),
        help="of the weights (default float32 bfloat16); beside int8 and int4 all is bfloat16; what has 4 "
        "bits in a .gguf file stays as it is there",
    )
    cli.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="(default all)")
    cli.add_argument("--r", type=int, default=32, help="rank (default 32)")
    cli.add_argument("--k", type=int, default=128, help="top_k (default 128)")
    cli.add_argument("--local", type=int, default=32, help="n_local (default 32)")
    cli.add_argument("--index-bits", type=int, default=4, help="16, 8, 4 or 2 (default 4)")
    cli.add_argument("--steps", type=int, default=4, help="tokens a method decodes in a round (default 4)")
    cli.add_argument("--rounds", type=int, default=5, help="(default 5; one more before them is not counted)")
    cli.add_argument(
        "--threads", type=thread_count, default=2, help="of PyTorch and of our kernels (default 2)"
    )
    cli.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the CPU time of one thread, which other work on the machine disturbs little; "
        "with --threads 1 and OMP_NUM_THREADS=1",
    )
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument(
        "--peers",
        nargs="*",
        choices=tuple(KV_TYPES),
        help="these programs too (none named: all; extra `peers`), on the same GGUF file; and for every row "
        "the time to the first token. Rows are refused where other programs ran meanwhile, where the "
        "processors stood still, and where the memory changed its pace from ours to theirs, as neighbours of "
        "a virtual machine make them do",
    )
    cli.add_argument(
        "--kv",
        nargs="+",
        choices=sorted({kv for types in KV_TYPES.values() for kv in types}),
        help="with --peers: of their types of keys and values, these alone (default all; llama.cpp takes "
        "minutes to read a long prompt with q8_0)",
    )
    cli.add_argument(
        "--rest",
        type=int,
        default=0,
        help="seconds of idleness before the steps of each program (default 0): some virtual machines are "
        "slowed for minutes after long work, such as reading a long prompt",
    )
    cli.add_argument("--json", type=Path, help="append the rows to this file too")
    cli.add_argument("--read", type=Path, help="measure nothing: take the rows of that file")
    cli.add_argument("--plot", type=Path, help="draw tokens per second over the length (needs matplotlib)")
    cli.add_argument(
        "--write", action="store_true", help="put the tables of the rows into README.md and docs/models.md"
    )
    return cli


def load(name: str, dtype: str, seed: int) -> Any:
    """A model with weights of that type, in eval mode."""
    import torch
    import transformers

    from sparq_ipu.transformers.settings import WEIGHTS

    weights = dtype if dtype in WEIGHTS else None
    dtype = "bfloat16" if weights else dtype
    if name not in SHAPES:
        from sparq_ipu.models import load_model

        return load_model(gguf_of(name), dtype, weights=weights)[0]
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


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _settings(
    name: str, a: argparse.Namespace, seq_len: int, head_dim: int
) -> tuple[dict[str, Any], LayerSettings | None]:
    """What `enable` is told for a method, and the settings of a layer that it has of that."""
    said: dict[str, Any]
    if name == "sparq":
        said = dict(published=True, rank=a.r, top_k=a.k, n_local=a.local, index_bits=a.index_bits)
        return said, LayerSettings(a.r, a.k, a.local, index_bits=a.index_bits)
    if name == "recommended":
        said = dict(top_k=recommended_top_k(seq_len))
        return said, complete("decode", head_dim, said)
    return {}, None


class Method:
    """One way to decode, and its cache.

    Args:
        name: of METHODS.
        model: shared by the methods of one type.
        a: the command line.
        seq_len: positions in the cache.
    """

    def __init__(self, name: str, model: Any, a: argparse.Namespace, seq_len: int):
        self.name, self.model = name, model
        #: what `enable` is told, and the settings that it has of that; None: another way
        self._said, self.settings = _settings(name, a, seq_len, _head_dim(model.config))
        self._threads = a.threads
        self._now = CLOCKS[a.cpu_time]
        self.seconds: list[float] = []
        self.cache: Any = None

    def turn_on(self) -> None:
        """The model decodes this way."""
        from sparq_ipu.transformers import disable, enable, enable_dense, is_enabled

        if is_enabled(self.model):
            disable(self.model)
        if self._said:
            enable(self.model, **self._said)
        elif self.name == "dense":
            enable_dense(self.model)
        else:
            self.model.set_attn_implementation(self.name.split("-")[1])

    def fill(self, tensors: Iterable[tuple[Any, Any]], n_more: int) -> None:
        """Make the cache.

        Args:
            tensors: keys and values of one layer after another.
            n_more: positions that will be added.
        """
        import torch
        import transformers

        from sparq_ipu.transformers import SparqCache

        config, dtype = self.model.config, self.model.dtype
        for index, (key, value) in enumerate(tensors):
            key, value = key.to(dtype), value.to(dtype)
            if self.cache is None:
                capacity = key.shape[2] + n_more
                if self.name in OURS:
                    bits = 16 if self.settings is None else self.settings.index_bits
                    options: dict[str, Any] = dict(device="cpu", n_threads=self._threads, index_bits=bits)
                    self.cache = SparqCache(config, capacity=capacity, check_finite=False, **options)
                elif self.name.endswith("-static"):
                    self.cache = transformers.StaticCache(config=config, max_cache_len=capacity)
                else:
                    self.cache = transformers.DynamicCache()
            if self.name in OURS:
                self.cache.layers[index].arm(None, None)
            with torch.no_grad():
                self.cache.update(key, value, index, {"cache_position": torch.arange(key.shape[2])})

    def cache_bytes(self) -> int:
        """Memory of the cache for the positions it has room for, in bytes; counted."""
        total = 0
        for layer in self.cache.layers:
            if self.name in OURS:
                spec, backend = layer.cache.spec, layer.cache.one_layer("bench")
                rows = 2 * 2 * spec.n_tasks * spec.capacity * spec.head_dim
                total += rows + backend.key_index_bytes
            else:
                total += sum(x.numel() * x.element_size() for x in (layer.keys, layer.values))
        return total

    def parts(self, tokens: Any) -> Row:
        """Where the time of such steps goes; they are not counted."""
        self.turn_on()
        with clock(self.model, self.cache, self._now) as of:
            start = self._now()
            self.decode(tokens, is_counted=False, is_on=True)
            total = self._now() - start
        return {f"seconds_{name}": seconds for name, seconds in of.parts(total, len(tokens)).items()}

    def first_token(self, prompt: list[int]) -> float:
        """Seconds from a prompt to the likeliest token after it, without a cache that was filled before."""
        import torch
        import transformers

        from sparq_ipu.transformers.cache_name import with_cache

        self.turn_on()
        start = 0.0
        for tokens in (prompt[: WARM_UP[0]], prompt):
            start = self._now()
            with torch.no_grad():
                cache = transformers.DynamicCache(config=self.model.config)
                given = dict(with_cache(cache), use_cache=True, logits_to_keep=1)
                self.model(torch.tensor([tokens]), **given).logits.argmax()
        return self._now() - start

    def decode(self, tokens: Any, is_counted: bool, is_on: bool = False) -> Any:
        """Tokens (n, batch, 1), one step each; the logits of the first."""
        import torch

        from sparq_ipu.transformers.cache_name import with_cache

        if not is_on:
            self.turn_on()
        first = None
        with torch.no_grad():
            for token in tokens:
                start = self._now()
                logits = self.model(token, **with_cache(self.cache), use_cache=True).logits
                seconds = self._now() - start
                if is_counted:
                    self.seconds.append(seconds)
                first = logits if first is None else first
        return first


def rows_of(a: argparse.Namespace, seq_len: int, progress: Progress, command: str) -> list[Row]:
    """Measure all methods and types at one length."""
    import torch

    from sparq_ipu.transformers import disable, is_enabled

    methods: list[tuple[str, Method]] = []
    rows: list[Row] = []
    generator = torch.Generator().manual_seed(a.seed)
    n_tokens = a.steps * (a.rounds + 2)
    load_average = [os.getloadavg()[0]]
    tensors: list[Any] | None = None
    for dtype in a.dtypes:
        progress.step(f"{seq_len} positions, {dtype}: weights and caches")
        model = load(a.model, dtype, a.seed)
        config = model.config
        shape = (a.batch, config.num_key_value_heads, seq_len, _head_dim(config))

        if tensors is None:
            made = torch.Generator().manual_seed(a.seed + 1)
            n_layers = config.num_hidden_layers
            tensors = [tuple(torch.randn(2, *shape, generator=made).half()) for _ in range(n_layers)]

        for name in a.methods:
            row = _row(a, name, dtype, seq_len, model, command)
            rows.append(row)
            try:
                method = Method(name, model, a, seq_len)
                method.turn_on()
                method.fill(tensors, n_tokens)
                methods.append((dtype, method))
                row["cache_bytes"] = method.cache_bytes()
            except (ValueError, RuntimeError, MemoryError, TypeError) as error:
                row["error"] = f"{type(error).__name__}: {error}"
    tensors = None
    tokens = torch.randint(0, config.vocab_size, (n_tokens, a.batch, 1), generator=generator)
    running = {(row["dtype"], row["method"]): row for row in rows}
    if a.rest:
        progress.step(f"{seq_len} positions: rests {a.rest} s")
        time.sleep(a.rest)
    before = pace(a.threads)
    with others() as share:
        _rounds(a, seq_len, methods, tokens, running, progress)
    load_average.append(os.getloadavg()[0])
    now = pace(a.threads)
    for dtype, method in methods:
        row = running[dtype, method.name]
        row.update(load_average=load_average, others=share.share_of_all(), **before.worst(now)._asdict())
        if a.peers is not None and row["error"] is None:
            row["error"] = noise(row["others"], row["paused"])
        if method.seconds and row["error"] is None:
            row.update(_times(method.seconds, a.batch))
    progress.step(f"{seq_len} positions: the parts of a step")
    for dtype, method in methods:
        row = running[dtype, method.name]
        if row["error"] is None:
            now = _more_of(row, method, a, tokens[-a.steps :], seq_len, now)
        if is_enabled(method.model):
            disable(method.model)
        method.cache = None
    gc.collect()
    if a.peers is not None:
        progress.step(f"{seq_len} positions: llama.cpp and OpenVINO")
        made = functools.partial(
            _row, a, dtype="gguf", seq_len=seq_len, model=methods[0][1].model, command=command
        )
        rows += rows_of_peers(a, gguf_of(a.model), seq_len, made, _times)
        refuse_other_pace(rows)
    progress.step(None)
    return rows


def _more_of(
    row: Row, method: Method, a: argparse.Namespace, tokens: Any, seq_len: int, before: Pace
) -> Pace:
    """Where the time of a step goes, and with --peers the first token, each where the machine was quiet.

    Args:
        before: the pace just before that. Returned is that after it.
    """
    with others() as seen:
        parts = method.parts(tokens)
    if a.peers is None:
        row.update(parts)
        return before
    if noise(seen.share_of_all(), before.paused) is None:
        row.update(parts)
    with others() as seen:
        seconds = method.first_token(prompt_tokens(seq_len, a.seed))
    now = pace(a.threads)
    if noise(seen.share_of_all(), before.worst(now).paused) is None:
        row["first_token_seconds"] = seconds
    return now


def gguf_of(model: str) -> Path:
    """The file of --model."""
    from sparq_ipu.models import smollm2_path

    return smollm2_path() if model == "smollm2" else Path(model)


def _rounds(
    a: argparse.Namespace,
    seq_len: int,
    methods: list[tuple[str, Method]],
    tokens: Any,
    running: dict[tuple[str, str], Row],
    progress: Progress,
) -> None:
    """Decode in turns. `running`: the rows, by type and method."""
    expected: Any = None
    for turn in range(a.rounds + 1):
        progress.step(f"{seq_len} positions: round {turn} of {a.rounds}")
        # another order in each round: nobody always follows the same one
        first = turn % max(len(methods), 1)
        for dtype, method in methods[first:] + methods[:first]:
            row = running[dtype, method.name]
            if row["error"] is not None:
                continue
            try:
                now = tokens[turn * a.steps : (turn + 1) * a.steps]
                logits = method.decode(now, is_counted=turn > 0).float()
            except (ValueError, RuntimeError, MemoryError, TypeError) as error:
                row["error"] = f"{type(error).__name__}: {error}"
                continue
            if turn == 0:
                expected = logits if expected is None else expected
                difference = (logits - expected).abs().max() / expected.abs().max()
                row["logits_differ"] = float(difference)


def _row(a: argparse.Namespace, name: str, dtype: str, seq_len: int, model: Any, command: str) -> Row:
    settings = _settings(name, a, seq_len, _head_dim(model.config))[1]
    return {
        "schema": SCHEMA,
        "bench": "decode",
        "model": a.model,
        "weights": "real" if a.model not in SHAPES else "random",
        "cache": "synthetic",
        "method": name,
        "dtype": dtype,
        "seq_len": seq_len,
        "batch": a.batch,
        **{
            setting: getattr(settings, setting, None)
            for setting in ("rank", "top_k", "n_local", "index_bits")
        },
        "n_threads": a.threads,
        "clock": "cpu" if a.cpu_time else "wall",
        "weight_bytes": _weight_bytes(model),
        "cache_bytes": None,
        "logits_differ": None,
        "seconds_per_step": None,
        "seconds_mad": None,
        "seconds_min": None,
        "seconds_max": None,
        "tokens_per_second": None,
        "n_steps": None,
        **{f"seconds_{name}": None for name in PARTS},
        "cpu": f"{processor()}, {os.cpu_count()} cores",
        "nice": os.nice(0),
        "load_average": None,
        "others": None,
        "kv_type": "f16" if name in OURS else dtype,
        "first_token_seconds": None,
        **dict.fromkeys(Pace._fields),
        "seed": a.seed,
        "git": git_revision(),
        "command": command,
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
        Column("of best plain", 13, times),
        Column("cache MB", 8, lambda row: number(row["cache_bytes"], ".0f", 1e-6)),
        Column("its rows", -8, lambda row: row.get("kv_type", "")),
        Column("first token s", 13, lambda row: number(row.get("first_token_seconds"), ".2f")),
    ]
    return text_table(columns, rows)


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
            "rest",
        )
        refuse(cli, a, "with --read", *measured, *of_sparq, "seed", "json")
    elif "sparq" not in a.methods:
        refuse(cli, a, "where sparq is not among --methods", *of_sparq)
    if a.rest < 0:
        cli.error(f"--rest must be at least 0, got {a.rest}")
    try:
        _settings("sparq", a, 1, a.r)
    except ValueError as error:
        cli.error(f"{error}")
    if min(a.S) < 1:
        cli.error(f"--S must be at least 1, got {min(a.S)}")
    if a.peers is None:
        refuse(cli, a, "without --peers", "kv")
    if a.peers is not None and (a.batch != 1 or a.cpu_time):
        cli.error("--peers must have batch 1 and wall time, as the others have")
    if a.peers is not None and a.model != "smollm2" and not a.model.endswith(".gguf"):
        cli.error(f"--peers must have --model smollm2 or a .gguf file, which all read, got {a.model}")
    if a.peers is not None and min(a.S) < a.steps * a.rounds + 3:
        rule = "be at least 3 more than the steps of all rounds with --peers"
        cli.error(f"--S must {rule}, got {min(a.S)} and {a.steps * a.rounds}")
    if a.cpu_time and (a.threads != 1 or os.environ.get("OMP_NUM_THREADS") != "1"):
        cli.error("--cpu-time must have --threads 1 and OMP_NUM_THREADS=1: it is that of one thread")
    for flag in ("json", "plot"):
        check_output(cli, f"--{flag}", getattr(a, flag))
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
    for seq_len in a.S if a.read is None else ():
        new = rows_of(a, seq_len, progress, repeat_command("decode", words))
        rows += new
        for row in new:
            print(json.dumps(row), flush=True)
        if a.json is not None:
            JsonLines(a.json, "decode").append(new)
    print(table(rows), file=sys.stderr)
    if a.plot is not None:
        plot(rows, a.plot)
    has_peers = any(row["dtype"] == "gguf" for row in rows)
    for document, of_rows in BLOCKS.items() if a.write and not has_peers else ():
        replace_block(document, "decode", of_rows(rows))
    if a.write and has_peers:
        replace_block(ROOT / "README.md", "peers", of_the_peers(rows))
    return int(any(row["error"] for row in rows))


if __name__ == "__main__":
    sys.exit(guarded(main))
