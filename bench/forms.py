# SPDX-License-Identifier: Apache-2.0
"""The server's engine on a mix of chats, a part of them under a JSON schema, and on the same chats without.

    python bench/forms.py --model smollm2 --weights int4

Both mixes come interleaved, all requests of one at once, in an order that changes with each round. stdout: a
JSON line with the tokens/s and the tokens per second of processor time of every round; stderr: medians and
spreads.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import threading
import time
from typing import Any

from lib.common import guarded, spread
from lib.origin import origin, repeat_command

from sparq_ipu.commands.command_line import Parser, positive_integer, thread_count

TOPICS = ("rivers", "cheese", "chess", "bridges", "comets", "violins", "tides", "maps")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": list(TOPICS)}, "maxItems": 4},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
#: of an answer that goes on for as long as it may
SCHEMA = {"type": "array", "items": PERSON, "minItems": 50}
PLACES, CONTEXT = 8, 512


def requests_of(prompts: Any, n: int, n_new: int, every: int, emit: Any) -> list[Any]:
    """n chats; one of each `every` under the schema, none where it is 0."""
    from sparq_ipu.serve.schemas import ChatRequest

    made = []
    for index in range(n):
        text = f"List people who like {TOPICS[index % len(TOPICS)]}, number {index}, with age and likes."
        fields: dict[str, Any] = dict(
            messages=[dict(role="user", content=text)], max_tokens=n_new, seed=index
        )
        if every and index % every == 0:
            schema = dict(name="people", schema=SCHEMA, strict=True)
            fields["response_format"] = dict(type="json_schema", json_schema=schema)
        said = ChatRequest.model_validate(fields)
        made += prompts.requests(said, prompts.of_chat(said), lambda _: emit)
    return made


def rates_of(engine: Any, prompts: Any, n: int, n_new: int, every: int) -> tuple[float, float]:
    """Tokens of all answers together, a second and a second of processor time."""
    from sparq_ipu.serve.requests import Done, Failed

    ends: list[Any] = []
    done = threading.Event()

    def emit(event: Any) -> None:
        if isinstance(event, (Done, Failed)):
            ends.append(event)
            if len(ends) == n:
                done.set()

    requests = requests_of(prompts, n, n_new, every, emit)
    start, start_of_processor = time.perf_counter(), time.process_time()
    engine.submit(*requests)
    done.wait()
    seconds, of_processor = time.perf_counter() - start, time.process_time() - start_of_processor
    assert all(isinstance(end, Done) for end in ends), "a request failed"
    n_tokens = sum(end.n_new for end in ends)
    return n_tokens / seconds, n_tokens / of_processor


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    from sparq_ipu.models import load_model, smollm2_path
    from sparq_ipu.serve.contexts import Contexts
    from sparq_ipu.serve.engine import Engine
    from sparq_ipu.serve.metrics import Metrics
    from sparq_ipu.serve.prompts import Prompts
    from sparq_ipu.transformers import enable
    from sparq_ipu.transformers.generation.runs import stop_tokens

    torch.set_num_threads(arguments.threads)
    path = smollm2_path() if arguments.model == "smollm2" else arguments.model
    model, tokenizer = load_model(path, "bfloat16", weights=arguments.weights)
    enable(model)
    contexts = Contexts(model, PLACES, CONTEXT)
    stops = stop_tokens(model, tokenizer, True)
    prompts = Prompts(tokenizer, CONTEXT, model.get_input_embeddings().num_embeddings, stops, stops)
    engine = Engine(contexts, copy.deepcopy(tokenizer), arguments.requests, Metrics(), looks_up=False)
    rates: dict[int, list[tuple[float, float]]] = {0: [], 3: []}
    for turn in range(arguments.rounds + 1):
        for every in (0, 3) if turn % 2 else (3, 0):
            rates[every].append(rates_of(engine, prompts, arguments.requests, arguments.new_tokens, every))
    engine.stop()
    contexts.close()
    row: dict[str, Any] = dict(
        weights=arguments.weights,
        n_threads=arguments.threads,
        n_requests=arguments.requests,
        n_new=arguments.new_tokens,
    )
    for at, name in enumerate(("tokens_per_second", "tokens_per_processor_second")):
        # the first round sets up grammars and places
        without, under = ([of_round[at] for of_round in rates[every][1:]] for every in (0, 3))
        row.update({name: under, f"{name}_without": without})
        gains = [one / other for one, other in zip(under, without)]
        print(f"{name}: no schema {spread(without)}, a third {spread(under)}", file=sys.stderr)
        print(f"{statistics.median(gains):.3f}x, {min(gains):.3f} to {max(gains):.3f}", file=sys.stderr)
    return row


def main(words: list[str] | None = None) -> int:
    parser = Parser(
        prog="bench/forms.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help='"smollm2", or a path (default smollm2)')
    parser.add_argument("--weights", default="int4", choices=("int4", "int8"), help="default int4")
    parser.add_argument("--requests", type=positive_integer, default=32, help="default 32")
    parser.add_argument("--new-tokens", type=positive_integer, default=64, help="most of each (default 64)")
    parser.add_argument("--rounds", type=positive_integer, default=5, help="that count (default 5)")
    parser.add_argument("--threads", type=thread_count, default=2, help="default 2")
    words = sys.argv[1:] if words is None else words
    print(json.dumps({**run(parser.parse_args(words)), **origin(repeat_command("forms.py", words))}))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
