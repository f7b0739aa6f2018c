# SPDX-License-Identifier: Apache-2.0
"""Decoding with drafts from the text itself and without, on a CPU: tokens/s and accepted drafts.

    python bench/drafts.py --model smollm2 --weights int4

Two texts: an edit, whose answer repeats most of the prompt, and free prose. Runs with and without drafts are
interleaved, one of each is not counted, and all must decode the same tokens. stdout: a JSON line for each
text with the rate of every run; stderr: a table of medians and spreads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from lib.common import guarded, spread
from lib.origin import origin, repeat_command

from sparq_ipu.commands.command_line import Parser, positive_integer, thread_count
from sparq_ipu.drafts import MOST

EDIT = """Fix the typo "recieve" in this code. Answer with the whole code.

def read_messages(connection, limit):
    messages = []
    while len(messages) < limit:
        message = connection.recieve(timeout=30)
        if message is None:
            break
        messages.append(message)
    return messages

def send_messages(connection, messages):
    for message in messages:
        connection.send(message)
    return len(messages)
"""
PROSE = "Write a long story about a lighthouse keeper and her brother, who has not been home for years."
TEXTS = {"edit": EDIT, "prose": PROSE}


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from sparq_ipu.models import load_model, smollm2_path
    from sparq_ipu.transformers import enable
    from sparq_ipu.transformers.generation.chats import chat_tokens
    from sparq_ipu.transformers.generation.runs import generate

    torch.set_num_threads(arguments.threads)
    path = smollm2_path() if arguments.model == "smollm2" else arguments.model
    model, tokenizer = load_model(path, "bfloat16", weights=arguments.weights)
    rows = []
    for name, text in TEXTS.items():
        prompt = torch.tensor([chat_tokens(tokenizer, [{"role": "user", "content": text}])])
        runs: dict[int, list[Any]] = {1: [], 1 + MOST: []}
        for _ in range(arguments.rounds + 1):
            for tokens_per_step, done in runs.items():
                enable(model, tokens_per_step=tokens_per_step)
                ran = generate(model, tokenizer, prompt, arguments.new_tokens, eos_token_id=None)
                assert not runs[1] or ran.tokens == runs[1][0].tokens, "other tokens"
                done.append(ran)
        plain, drafted = ([ran.tokens_per_second for ran in done[1:]] for done in runs.values())
        last = runs[1 + MOST][-1]
        row = dict(
            text=name,
            weights=arguments.weights,
            n_threads=arguments.threads,
            n_prompt=prompt.shape[1],
            n_new=len(last.tokens),
            tokens_per_second=drafted,
            tokens_per_second_without=plain,
            n_drafted=last.n_drafted,
            n_accepted=last.n_accepted,
        )
        rows.append(row)
        gain = statistics.median(drafted) / statistics.median(plain)
        print(
            f"{name:6} {spread(plain)} tokens/s without drafts, {spread(drafted)} with: {gain:.2f}x; "
            f"{last.n_accepted} of {last.n_drafted} accepted",
            file=sys.stderr,
        )
    return rows


def main(words: list[str] | None = None) -> int:
    parser = Parser(
        prog="bench/drafts.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help='"smollm2", or a path (default smollm2)')
    parser.add_argument("--weights", default="int4", choices=("int4", "int8"), help="default int4")
    parser.add_argument("--new-tokens", type=positive_integer, default=128, help="default 128")
    parser.add_argument("--rounds", type=positive_integer, default=5, help="that count (default 5)")
    parser.add_argument("--threads", type=thread_count, default=2, help="default 2")
    words = sys.argv[1:] if words is None else words
    for row in run(parser.parse_args(words)):
        print(json.dumps({**row, **origin(repeat_command("drafts.py", words))}))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
