# SPDX-License-Identifier: Apache-2.0
"""Continue a text with SparQ attention: SmolLM2-135M-Instruct from its wheel, or your own model.

    sparq-ipu generate --prompt-file play.txt --compare-dense

Prints the text as it comes, then the seconds for loading, reading the prompt and writing. Beside them stands
the time of a token with dense attention. The prompt is read densely; every new token is decoded with SparQ
attention. With --compare-dense the command decodes densely too, and prints where the texts differ and how
often both predict the same next token.

Times are wall times of one run. On a machine that does other work, repeat them before you compare.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np

from sparq_ipu.commands.command_line import (
    Parser,
    append_line,
    number,
    output_path,
    positive_integer,
    read_text,
)
from sparq_ipu.commands.progress import EVERY, PromptProgress
from sparq_ipu.devices import resolve_device
from sparq_ipu.drafts import MOST
from sparq_ipu.transformers.generation.chats import chat_tokens
from sparq_ipu.transformers.generation.runs import (
    Run,
    first_difference,
    forced_predictions,
    generate,
    prefill,
    seconds_per_token,
    stop_tokens,
)
from sparq_ipu.transformers.loading.checkpoints import Checkpoint
from sparq_ipu.transformers.settings.command import (
    add_attention,
    add_cache_dir,
    add_model,
    columns,
    in_words,
    kept_prefixes,
    most_common,
    opened,
    start_torch,
)
from sparq_ipu.transformers.settings.layers import ModelSettings, pays_from

#: seconds between two states of the line on a terminal
_REWRITTEN = 0.1

__all__ = ["Run", "first_difference", "forced_predictions", "generate", "main", "prefill"]


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    basic = parser.add_argument_group("basic")
    settings = parser.add_argument_group("settings of SparQ attention (arXiv:2312.04985)")
    add_cache_dir(parser, "e.g. with another question about the same file")
    sampling = parser.add_argument_group("sampling (greedy by default)").add_argument
    advanced = parser.add_argument_group("advanced")
    source = basic.add_mutually_exclusive_group(required=True).add_argument
    source("--prompt", help="the text to continue")
    text = 'a file with the text to continue (UTF-8); "-": standard input'
    source("--prompt-file", type=Path, help=text)
    text = "the prompt is a user's message: apply the chat template"
    basic.add_argument("--chat", action="store_true", help=text)
    text = "maximum number of new tokens (default 128)"
    basic.add_argument("--new-tokens", type=positive_integer, default=128, help=text)
    text = "decode densely too, and show where the texts differ"
    basic.add_argument("--compare-dense", action="store_true", help=text)
    add_model(basic, advanced, "prefill")
    add_attention(settings, advanced)
    positive = number(float, "a positive number", lambda x: 0 < x < float("inf"))
    sampling("--temperature", type=positive, help="sample at this temperature")
    text = "with --temperature: sample among the most likely tokens of this total probability (default 1)"
    sampling("--top-p", type=number(float, "in [0, 1]", lambda x: 0 <= x <= 1), help=text)
    seed = number(int, "an integer in [0, 2**63)", lambda n: 0 <= n < 1 << 63)
    sampling("--seed", type=seed, help="with --temperature: seed of the random numbers (default 0)")
    text = "device of the KV cache: auto, or one that `sparq-ipu devices` lists (default auto)"
    advanced.add_argument("--device", default="auto", help=text)
    text = "keep only the first N tokens of the prompt"
    advanced.add_argument("--prompt-tokens", type=positive_integer, help=text)
    advanced.add_argument("--json", type=output_path, help="append one JSON line with the figures")
    return parser


def _text(arguments: argparse.Namespace) -> str:
    """The prompt, read before the model is loaded."""
    if arguments.prompt is not None:
        try:  # the bytes that were typed, whatever the locale
            return os.fsencode(arguments.prompt).decode("utf-8")
        except (UnicodeDecodeError, UnicodeEncodeError):
            raise ValueError(f"generate: --prompt must be UTF-8 text, got {arguments.prompt!r}") from None
    return read_text("generate", "--prompt-file", arguments.prompt_file)


@contextlib.contextmanager
def _reading(model: Any, n_tokens: int) -> Iterator[PromptProgress]:
    """Says on stderr how far the prompt is read: in a line that is rewritten, or one every few seconds."""
    from sparq_ipu.transformers.supported import attention_modules

    layers, is_terminal = attention_modules(model), sys.stderr.isatty()
    progress = PromptProgress(n_tokens)

    def hook(_: Any, __: Any, output: Any) -> None:
        if progress.is_done:
            return  # a token of the answer
        output = output[0] if isinstance(output, tuple) else output
        progress.n_read += output.shape[-2] / len(layers)
        if is_terminal and (progress.is_due(_REWRITTEN) or progress.is_done):
            end = "\n" if progress.is_done else ""
            print(f"\r{progress}\033[K", end=end, file=sys.stderr, flush=True)
        elif not is_terminal and progress.is_due(EVERY):
            print(progress, file=sys.stderr, flush=True)

    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield progress
    finally:
        for handle in handles:
            handle.remove()


def _encode(arguments: argparse.Namespace, text: str, tokenizer: Any) -> Any:
    import torch

    tokens = tokenizer(text, add_special_tokens=not arguments.chat).input_ids[: arguments.prompt_tokens]
    if arguments.chat:
        content = text if arguments.prompt_tokens is None else tokenizer.decode(tokens)
        tokens = chat_tokens(tokenizer, [{"role": "user", "content": content}])
    tokens = torch.tensor([tokens], dtype=torch.int64)
    if tokens.shape[1] < 1:
        raise ValueError(f"generate: the prompt must have at least 1 token, got {tokens.shape[1]}")
    return tokens


def _speed(run: Run) -> str:
    """How fast a run was, with the spread of its steps."""
    if not run.step_seconds:
        return "one token: nothing to time"
    low, _, high = _step_milliseconds(run)
    return (
        f"{run.tokens_per_second:.2f} tokens/s after the first (80% of the steps: {low:.1f} to {high:.1f} ms)"
    )


def _beside_dense(model: Any, run: Run, *ways: Callable[[], None]) -> str:
    """The times of a token at the end of the text: of dense attention and of SparQ, interleaved."""
    seconds = [0.0, 0.0]
    for index in (0, 1, 0, 1):
        ways[index]()
        seconds[index] += seconds_per_token(model, run) / 2
    dense, own = seconds
    return (
        f"dense     {dense * 1e3:.1f} ms a token at this length, SparQ {own * 1e3:.1f} ms (timed afterwards)"
    )


def _total(loading: float, reading: float, writing: float) -> str:
    """The seconds of a run, and where they went."""
    parts = f"loading {loading:.1f}, reading {reading:.1f}, writing {writing:.1f}"
    return f"total     {loading + reading + writing:.1f} s: {parts}"


def _step_milliseconds(run: Run) -> list[float]:
    """Time of a decode step: 10th percentile, median, 90th percentile."""
    return [float(x) for x in np.percentile(np.array(run.step_seconds) * 1e3, (10, 50, 90))]


def _describe(run: Run, n_prompt: int, settings: ModelSettings | None) -> str:
    held = f", {run.n_held} of them from disk" if run.n_held else ""
    lines = [
        f"prompt    {n_prompt} tokens{held}, read in {run.prefill_seconds:.2f} s",
        f"decode    {len(run.tokens)} tokens, {_speed(run)}",
    ]
    if run.n_drafted:
        share = run.n_accepted / run.n_drafted
        lines.append(
            f"drafts    {run.n_accepted} of {run.n_drafted} accepted ({share:.3f}), from the text itself"
        )
    used = None if settings is None else most_common(settings)
    if used is not None and n_prompt + len(run.tokens) <= (pays := pays_from(used.top_k)):
        how = "every token was decoded densely" if used.min_seq_len >= pays else "dense may be faster"
        lines.append(f"short     {how}: SparQ pays from about {pays} tokens on")
    return "\n".join(lines)


def _most_likely(model: Any, prompt: Any, text: list[int], cache: Any) -> np.ndarray:
    """The most likely token of the enabled model at each token of `text` after the first, given all tokens
    before it. `cache` holds the prompt, and is used up; None: the prompt is read once more.

    As in `generate`, the whole prompt is prefill, and the first token comes from prefill. So where the text
    is that of a greedy run, these are its tokens.
    """
    import torch

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\ragreement: {done}/{len(text) - 1} tokens", end="", file=sys.stderr, flush=True)

    read = torch.cat([prompt, torch.tensor([text[:1]])], dim=1)
    with _reading(model, prompt.shape[1]) if cache is None else contextlib.nullcontext():
        predicted = forced_predictions(model, read, torch.tensor([text[1:]]), cache, progress)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return predicted


def _compare(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    run: Run,
    dense: Run,
    enable: Callable[[], None],
    is_sampled: bool,
) -> dict[str, Any]:
    """Print how two runs differ; the same as figures. The model is enabled as `dense` ran; `enable` turns on
    what `run` ran with."""
    part = first_difference(run.tokens, dense.tokens)
    print(f"dense     {len(dense.tokens)} tokens, {_speed(dense)}")
    if part is None:
        print(f"texts     the same, {len(run.tokens)} tokens")
    else:
        print(f"texts     differ from new token {part + 1} on:")
        for name, tokens in (("SparQ", run.tokens), ("dense", dense.tokens)):
            print(f"          {name} ...{tokenizer.decode(tokens[max(part - 8, 0) : part + 12])!r}")
    agreement = None
    n_decoded = len(dense.tokens) - 1
    if n_decoded:
        drawn = np.array(dense.tokens[1:])
        if is_sampled:
            drawn = _most_likely(model, prompt, dense.tokens, dense.read)
        enable()
        n_agreed = int(np.sum(_most_likely(model, prompt, dense.tokens, run.read) == drawn))
        agreement = n_agreed / n_decoded
        print(
            f"agreement {agreement:.3f}: along the dense text, SparQ's most likely next token is dense "
            f"attention's at {n_agreed} of {n_decoded} tokens"
        )
    return {"parts_after": part, "agreement": agreement, "dense_tokens_per_second": dense.tokens_per_second}


def _load(arguments: argparse.Namespace, checkpoint: Checkpoint, start: float) -> Any:
    """The model; says on stderr how long it took since `start`."""
    shows = sys.stderr.isatty()

    def progress(share: float) -> None:
        if shows:
            print(f"\rweights: {share:.0%}", end="", file=sys.stderr, flush=True)

    model = checkpoint.model(arguments.dtype, weights=arguments.weights, progress=progress)
    numbers = f"weights of {checkpoint.few_bits}" if checkpoint.few_bits else f"in {str(model.dtype)[6:]}"
    seconds = f"{time.perf_counter() - start:.1f} s"
    print(f"{chr(13) if shows else ''}loaded in {seconds}; {numbers}", file=sys.stderr, flush=True)
    return model


def main(argv: list[str] | None = None, prog: str = "sparq-ipu generate") -> int:
    """The command; returns the exit status: 0, or 2 for bad usage.

    What needs no weights is checked before they are read, and what needs no torch before that is imported.
    """
    start = time.perf_counter()
    arguments = _parser(prog).parse_args(argv)
    try:
        for name, value in {"--top-p": arguments.top_p, "--seed": arguments.seed}.items():
            if value is not None and arguments.temperature is None:
                raise ValueError(f"generate: {name} must be given with --temperature, got {value} alone")
        if arguments.device != "auto":
            resolve_device("generate", arguments.device)
        checkpoint, settings = opened("generate", arguments)
        text = _text(arguments)
        gc.disable()  # looking for garbage in what PyTorch makes when it is imported takes 0.6 s
        torch = start_torch("generate", arguments, checkpoint)
        from sparq_ipu.transformers.cache.options import host_device, is_stacked
        from sparq_ipu.transformers.integration import steps_of

        device = host_device("generate", arguments.device)
        tokenizer = checkpoint.tokenizer
        prompt = _encode(arguments, text, tokenizer)
        settings = settings.of_length(prompt.shape[1] + arguments.new_tokens)
        n_layers, head_dim = checkpoint.shape
        layers = None
        if not arguments.dense:
            layers = settings.of_model(n_layers, head_dim)
        model = _load(arguments, checkpoint, start)
        arguments.dtype, arguments.weights = checkpoint.types(arguments.dtype, arguments.weights)
        loading = time.perf_counter() - start

        tokens_per_step = 1 + (MOST if device == "cpu" and not arguments.no_drafts else 0)

        def turn_on(dense: bool = arguments.dense) -> None:
            settings.enable(model, arguments, arguments.device, tokens_per_step, dense)

        turn_on()
        kept = kept_prefixes("generate", arguments, model)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 2
    finally:
        gc.enable()

    stops = stop_tokens(model, tokenizer, arguments.chat)
    asked = _asked(arguments, layers, prompt.shape[1], device, argv)
    sampling: dict[str, Any] = {"eos_token_id": stops or None}
    if arguments.temperature is not None:
        top_p = 1.0 if arguments.top_p is None else arguments.top_p
        sampling.update(do_sample=True, temperature=arguments.temperature, top_p=top_p)

    def run(stream: Any) -> Run:
        torch.manual_seed(arguments.seed or 0)
        with _reading(model, prompt.shape[1]) as progress:
            return generate(
                model,
                tokenizer,
                prompt,
                arguments.new_tokens,
                stream=stream,
                device=arguments.device,
                # A long prompt takes its time. Only one cache at a time may have the IPUs.
                keep_read=arguments.compare_dense and not is_stacked(dict(device=device)),
                kept=kept,
                progress=progress,
                **sampling,
            )

    result = run(sys.stdout)
    print("\n\n" + _describe(result, prompt.shape[1], layers))
    if device == "cpu" and layers is not None and result.step_seconds and not arguments.compare_dense:
        print(_beside_dense(model, result, lambda: turn_on(dense=True), turn_on))
    print(_total(loading, result.prefill_seconds, sum(result.step_seconds)))
    print(f"settings  {in_words(layers, arguments.row_bits)}")
    print(f"steps     {steps_of(model)}")
    slow = " (NumPy: exact, and slow)" if device == "reference" else ""
    print(f"device    {device}{slow}")
    comparison = {}
    if arguments.compare_dense:
        turn_on(dense=True)
        kept = kept_prefixes("generate", arguments, model)  # a dense prompt has other bits
        print("decoding again with dense attention ...", file=sys.stderr)
        comparison = _compare(
            model, tokenizer, prompt, result, run(None), turn_on, arguments.temperature is not None
        )
    if arguments.json is not None:
        append_line(arguments.json, json.dumps({**asked, **_measured(result), **comparison}))
    return 0


def _asked(
    arguments: argparse.Namespace,
    layers: ModelSettings | None,
    n_prompt: int,
    device: str,
    argv: list[str] | None,
) -> dict[str, Any]:
    """The settings of a run, by name."""
    sampled = arguments.temperature is not None
    return {
        "model": arguments.model,
        "attention": "dense" if arguments.dense else "sparq",
        **(columns(layers) if layers else {}),
        "row_bits": arguments.row_bits,
        "published": arguments.published,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "seed": (arguments.seed or 0) if sampled else None,
        "device": device,
        "dtype": arguments.dtype,
        "weights": arguments.weights,
        "threads": arguments.threads,
        "seq_len": n_prompt,
        "repro": "sparq-ipu generate " + shlex.join(argv if argv is not None else sys.argv[1:]),
    }


def _measured(run: Run) -> dict[str, Any]:
    """The figures of a run, by name."""
    return {
        "n_new": len(run.tokens),
        "prefill_seconds": run.prefill_seconds,
        "tokens_per_second": run.tokens_per_second,
        "step_milliseconds": dict(zip(("p10", "median", "p90"), _step_milliseconds(run)))
        if run.step_seconds
        else None,
        "n_drafted": run.n_drafted,
        "n_accepted": run.n_accepted,
    }
