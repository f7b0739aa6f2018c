# SPDX-License-Identifier: Apache-2.0
"""Save real queries, keys and values of a model's attention layers, for benchmarks and tests.

    python study/capture.py --text-file play.txt --tokens 4096 --layers 2,9,16 --output inputs.npz
    python bench/ipu_sparq.py --input inputs.npz

For each layer L the file has, float16, after rotary embedding:

    query_L   (1, n_heads, n_queries, head_dim)       the last tokens' queries
    key_L     (1, n_kv_heads, n_tokens, head_dim)
    value_L   (1, n_kv_heads, n_tokens, head_dim)

With --steps N it writes a trace instead: the last N tokens as decode steps after the others, in the format
of `sparq_ipu.traces`. What they say is chosen by --kind. The tokens are given (teacher forcing), and
all attention is dense, so the trace does not depend on any setting of SparQ.

    python study/capture.py --steps 512 --tokens 4608 --kind retrieval --excerpt play_othello --output t.npz
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
from shared import Parser, Progress, check_output, guarded

from sparq_reference import checks
from sparq_study import traces


def capture(
    model: Any, tokens: Any, layers: list[int], n_queries: int, prefill_bits: int = 32
) -> dict[str, np.ndarray]:
    """Queries, keys and values of one text, by the names above.

    Args:
        model: a model of transformers that dispatches attention through AttentionInterface.
        tokens: (1, n_tokens) int64 tensor.
        layers: indices of layers.
        n_queries: how many of the last tokens' queries to keep, at most n_tokens.
        prefill_bits: of the model's products, 32 or 16 (bfloat16).

    Raises:
        ValueError: `capture: <argument> must <rule>, got <value>`; also for numbers that float16 cannot hold.
    """
    import torch
    import transformers

    functions: Any = transformers.AttentionInterface
    masks: Any = transformers.AttentionMaskInterface

    n_layers = _n_layers(model)
    for layer in layers:
        if not 0 <= layer < n_layers:
            raise ValueError(f"capture: layers must be in [0, n_layers={n_layers}), got {layer}")
    if not 1 <= n_queries <= tokens.shape[1]:
        raise ValueError(f"capture: n_queries must be in [1, n_tokens={tokens.shape[1]}], got {n_queries}")

    arrays: dict[str, np.ndarray] = {}
    sdpa = functions()["sdpa"]

    def half(name: str, tensor: Any) -> None:
        array = tensor.to(torch.float16).numpy().copy()
        if not np.isfinite(array).all():
            raise ValueError(f"capture: {name} must fit float16, got numbers beyond 65504")
        arrays[name] = array

    def attention(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        index = module.layer_idx
        if index in layers:
            half(f"query_{index}", query[:, :, -n_queries:])
            half(f"key_{index}", key)
            half(f"value_{index}", value)
        return sdpa(module, query, key, value, *args, **kwargs)

    functions.register("sparq_ipu_capture", attention)
    masks.register("sparq_ipu_capture", masks()["sdpa"])
    before = model.config._attn_implementation
    model.set_attn_implementation("sparq_ipu_capture")
    try:
        in_bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=prefill_bits == 16, cache_enabled=False)
        with torch.no_grad(), in_bfloat16:
            model.base_model(tokens, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    return arrays


def capture_trace(
    model: Any,
    tokens: Any,
    layers: list[int],
    n_steps: int,
    *,
    text: str,
    kind: str,
    model_name: str,
    prefill_bits: int = 32,
) -> traces.Trace:
    """The last `n_steps` of `tokens` as decode steps after the others; arguments as of `capture`.

    All tokens go through the model at once, where each query attends to the positions before it and its own:
    what a decode step does.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`; n_steps must leave a position before them.
    """
    start = tokens.shape[1] - n_steps
    if start < 1:
        raise ValueError(f"capture: n_steps must be below n_tokens={tokens.shape[1]}, got {n_steps}")
    arrays = capture(model, tokens, layers, n_steps, prefill_bits)
    recorded = {
        layer: traces.TraceLayer(
            np.ascontiguousarray(arrays[f"query_{layer}"][0].transpose(1, 0, 2)),
            arrays[f"key_{layer}"][0],
            arrays[f"value_{layer}"][0],
        )
        for layer in layers
    }
    return traces.Trace(recorded, start, text, kind, model_name)


def _n_layers(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


def _model_name(path: Path | None) -> str:
    return "SmolLM2-135M-Instruct Q4_1" if path is None else path.name


def _text(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[str, str]:
    """Name and content of what --text-file or --excerpt chose."""
    if arguments.excerpt:
        from sparq_study.accuracy.text import excerpts

        known = dict(excerpts())
        for name in arguments.excerpt:
            if name not in known:
                parser.error(f"--excerpt must be among {', '.join(known)}, got {name!r}")
        return "+".join(arguments.excerpt), "\n\n".join(known[name] for name in arguments.excerpt)
    path = arguments.text_file
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        parser.error(f"--text-file must be a file of UTF-8 text that can be read, got {path} ({reason})")


def _tokens(tokenizer: Any, text: str, arguments: argparse.Namespace) -> Any:
    """(1, --tokens) tokens to run.

    Raises: ValueError, in words for the command line.
    """
    import torch

    if arguments.steps is None:
        tokens = tokenizer(text, return_tensors="pt").input_ids
        if tokens.shape[1] < arguments.tokens:
            raise ValueError(f"--tokens: the text must have {arguments.tokens} tokens, got {tokens.shape[1]}")
        return tokens[:, : arguments.tokens]
    from sparq_study.accuracy.trace_tokens import trace_tokens

    sizes = {"n_tokens": arguments.tokens, "n_steps": arguments.steps}
    return torch.tensor([trace_tokens(tokenizer, text, arguments.kind, **sizes, seed=arguments.seed)])


def _first_heads(trace: traces.Trace, n_kv_heads: int | None) -> traces.Trace:
    """The first KV heads and their query heads; None: all."""
    n = checks.check_integer("trace", "n_kv_heads", n_kv_heads or trace.n_kv_heads, 1, trace.n_kv_heads)
    n_heads = n * (trace.n_heads // trace.n_kv_heads)
    layers = trace.layers.items()
    cut = {i: traces.TraceLayer(of.query[:, :n_heads], of.key[:n], of.value[:n]) for i, of in layers}
    return dataclasses.replace(trace, layers=cut)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text-file", type=Path, help="text to run the model on (UTF-8)")
    told = "texts of the accuracy study, joined, e.g. play_othello (study/sparq_study/accuracy/data)"
    source.add_argument("--excerpt", nargs="+", metavar="NAME", help=told)
    parser.add_argument("--output", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the text to use (default 4096)")
    parser.add_argument(
        "--queries", type=int, default=64, help="keep the queries of the last N tokens (default 64)"
    )
    parser.add_argument("--layers", default="2,9,16,23,29", help="comma separated (default 2,9,16,23,29)")
    parser.add_argument(
        "--model", type=Path, help="checkpoint directory or .gguf (default SmolLM2-135M-Instruct)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="write a trace: the last N tokens as decode steps"
    )
    parser.add_argument(
        "--kind",
        choices=traces.KINDS,
        default="prose",
        help="what the steps decode: the text as it goes on (default; code: of a program), a passage of it "
        "again, answers to questions about what was told in it",
    )
    told = "16: the model's products in bfloat16, for long texts (default 32)"
    parser.add_argument("--prefill-bits", type=int, choices=(32, 16), default=32, help=told)
    parser.add_argument("--kv-heads", type=int, metavar="N", help="keep the first N KV heads of a trace")
    parser.add_argument("--seed", type=int, default=0, help="of what --kind retrieval asks (default 0)")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    arguments = parser.parse_args(argv)
    if arguments.output.exists() and not arguments.force:
        parser.error(f"{arguments.output} exists; --force overwrites it")
    check_output(parser, "--output", arguments.output)
    if arguments.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {arguments.tokens}")
    if arguments.steps is None and not 1 <= arguments.queries <= arguments.tokens:
        parser.error(f"--queries must be in [1, --tokens={arguments.tokens}], got {arguments.queries}")
    try:
        layers = [int(layer) for layer in arguments.layers.split(",")]
    except ValueError:
        parser.error(f"--layers must be integers with commas between them, got {arguments.layers!r}")
    if min(layers) < 0:
        parser.error(f"--layers must be at least 0, got {min(layers)}")
    if arguments.steps is not None and not 1 <= arguments.steps < arguments.tokens:
        parser.error(f"--steps must be in [1, --tokens={arguments.tokens}), got {arguments.steps}")
    if arguments.steps is None and (arguments.kind != "prose" or arguments.kv_heads is not None):
        parser.error("--kind and --kv-heads must come with --steps, got none")
    name, text = _text(parser, arguments)

    from sparq_ipu.models import load_model

    progress = Progress()
    try:
        progress.step("loading the model")
        model, tokenizer = load_model(arguments.model or "smollm2", "float32")
    except (ImportError, OSError, ValueError) as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    if tokenizer is None:
        parser.error(f"--model must come with a tokenizer, got none in {arguments.model}")
    try:
        tokens = _tokens(tokenizer, text, arguments)
    except ValueError as error:
        parser.error(str(error))
    n_layers = _n_layers(model)
    if max(layers) >= n_layers:
        parser.error(f"--layers must be in [0, {n_layers}), the layers of the model, got {max(layers)}")
    progress.step(f"running {tokens.shape[1]} tokens")
    try:
        if arguments.steps is None:
            arrays = capture(model, tokens, layers, arguments.queries, arguments.prefill_bits)
            # through an open file: given a name, NumPy would add .npz to it
            with arguments.output.open("wb") as file:
                np.savez(file, **arrays)
        else:
            about = {"text": name, "kind": arguments.kind, "model_name": _model_name(arguments.model)}
            bits = arguments.prefill_bits
            trace = capture_trace(model, tokens, layers, arguments.steps, **about, prefill_bits=bits)
            _first_heads(trace, arguments.kv_heads).save(arguments.output)
    except ValueError as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    with np.load(arguments.output) as arrays:
        for key in arrays.files:
            array = arrays[key]
            print(f"{key:10} {array.dtype} {array.shape}" if array.ndim else f"{key:10} {array}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
