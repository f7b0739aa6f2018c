# SPDX-License-Identifier: Apache-2.0
"""Serve a model over HTTP, with the API of OpenAI: many requests at once, with SparQ attention on the CPU.

    sparq-ipu serve --model PATH

Then ask it with any client of that API:

    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'

Prompts are read densely, a piece at a time between the steps of other answers; every new token is decoded
with SparQ, with the settings of `sparq-ipu generate`. The beginning of a prompt is not read again where an
earlier prompt began in the same way. More in docs/serve.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

from sparq_ipu.commands.command_line import Parser, number, positive_integer
from sparq_ipu.commands.extras import needed
from sparq_ipu.transformers.generation.runs import stop_tokens
from sparq_ipu.transformers.settings.command import (
    add_attention,
    add_cache_dir,
    add_model,
    in_words,
    kept_prefixes,
    opened,
    start_torch,
)

#: an environment variable: on a command line everybody on the machine could read a key
KEY_VARIABLE = "SPARQ_IPU_API_KEY"
#: tokens of a place if the model's config has no limit
_USUAL_CONTEXT = 8192


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("model", "room", "network", "settings of SparQ attention (arXiv:2312.04985)", "advanced")
    model, room, network, settings, advanced = map(parser.add_argument_group, names)
    add_model(model, advanced, "prompts")
    model.add_argument("--name", help="name of the model for clients (default: that of the file)")
    room.add_argument(
        "--places",
        type=positive_integer,
        default=8,
        help="requests answered at a time, and contexts kept (default 8)",
    )
    room.add_argument(
        "--context",
        type=positive_integer,
        help="maximum tokens of a prompt and its answer (default: what the model was trained for)",
    )
    room.add_argument(
        "--max-waiting",
        type=number(int, "an integer from 0", lambda n: n >= 0),
        default=64,
        help="requests that wait for a place; more get status 429 (default 64)",
    )
    network.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine alone)"
    )
    network.add_argument(
        "--port",
        type=number(int, "in [0, 65535]", lambda n: 0 <= n < 1 << 16),
        default=8000,
        help="port to listen on (default 8000; 0: any free one)",
    )
    network.add_argument(
        "--api-key-file",
        type=Path,
        help=f"a file with the key that requests must have (or {KEY_VARIABLE} in the environment)",
    )
    network.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages of this origin may call, e.g. https://example.org, or * for all; can be repeated",
    )
    network.add_argument(
        "--grace",
        type=number(float, "seconds from 0", lambda x: 0 <= x < 1e6),
        default=30.0,
        help="seconds that running answers have after the signal to end (default 30)",
    )
    add_attention(settings, advanced)
    add_cache_dir(parser, "also after a restart")
    return parser


def parsed(argv: list[str] | None = None, prog: str = "sparq-ipu serve") -> argparse.Namespace:
    """The options of a command line; wrong ones end the process."""
    return _parser(prog).parse_args(argv)


def _key(arguments: argparse.Namespace) -> str | None:
    path, key = arguments.api_key_file, os.environ.get(KEY_VARIABLE, "")
    if path is None and not key:
        return None
    if path is not None:
        try:
            key = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            key = ""
    key = key.strip()
    if not (key and key.isascii() and key.isprintable()):
        name, got = (KEY_VARIABLE, "another") if path is None else ("--api-key-file", path)
        be = "be" if path is None else "be a file with"
        raise ValueError(f"serve: {name} must {be} a key of ASCII characters in one line, got {got}")
    return key


def build(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The application and its engine, from what `parsed` gives.

    Raises:
        ValueError, RuntimeError, OSError, ImportError, MemoryError: what can not be, in a sentence.
    """
    # A thread that multiplies has helpers of its own until it ends (OpenMP). Helpers of two such threads are
    # more than there are processors; GNU's OpenMP then lets all of them sleep between two loops, which takes
    # a third more time. So the thread that loads the model is gone before the engine's multiplies.
    with concurrent.futures.ThreadPoolExecutor(1, "sparq-ipu-loader") as loader:
        return loader.submit(_build, arguments).result()


def _build(arguments: argparse.Namespace) -> tuple[Any, Any]:
    key = _key(arguments)
    checkpoint, settings = opened("serve", arguments)
    start_torch("serve", arguments, checkpoint)
    with needed("serve"):
        import uvicorn  # noqa: F401

        from sparq_ipu.serve.api import create_app
        from sparq_ipu.serve.metrics import Metrics
    from sparq_ipu.serve.contexts import Contexts
    from sparq_ipu.serve.engine import Engine
    from sparq_ipu.serve.prompts import Prompts
    from sparq_ipu.transformers.supported import same_rotary_until, text_config

    layers = settings.of_model(*checkpoint.shape)
    trained = getattr(text_config(checkpoint.config), "max_position_embeddings", None)
    most = same_rotary_until(text_config(checkpoint.config))
    context = arguments.context or min(trained or _USUAL_CONTEXT, most)
    if trained and context > trained:
        print(
            f"serve: the model was trained for {trained} tokens; output beyond that may be poor",
            file=sys.stderr,
        )
    model = checkpoint.model(arguments.dtype, weights=arguments.weights)
    if checkpoint.few_bits is not None:
        print(f"weights of {checkpoint.few_bits}", file=sys.stderr)
    settings.enable(model, arguments, "cpu", 1, arguments.dense)
    contexts = Contexts(model, arguments.places, context)
    kept = kept_prefixes("serve", arguments, model)
    tokenizer = checkpoint.tokenizer
    prompts = Prompts(
        tokenizer,
        context,
        model.get_input_embeddings().num_embeddings,
        stop_tokens(model, tokenizer, False),
        stop_tokens(model, tokenizer, True) if getattr(tokenizer, "chat_template", None) else [],
    )
    # The engine's own tokenizer: that of the application works in another thread.
    looks_up = not arguments.no_drafts
    engine = Engine(contexts, copy.deepcopy(tokenizer), arguments.max_waiting, Metrics(), kept, looks_up)
    name, n_bytes = arguments.name or checkpoint.path.stem, contexts.cache.bytes
    print(
        f"{name}: {arguments.places} places of {context} tokens, {n_bytes / 1e9:.2f} GB when full; "
        f"{in_words(None if arguments.dense else layers, arguments.row_bits)}",
        file=sys.stderr,
        flush=True,
    )
    return create_app(engine, prompts, name, key, arguments.cors_origin), engine


def main(argv: list[str] | None = None, prog: str = "sparq-ipu serve") -> int:
    """The command; returns the exit status: 0, or 2 for bad usage."""
    arguments = parsed(argv, prog)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("sparq_ipu").setLevel(logging.INFO)  # PyTorch reports on its caches at the end
    gc.disable()  # looking for garbage in what PyTorch makes when it is imported takes 0.6 s
    try:
        app, engine = build(arguments)
    except (ValueError, RuntimeError, OSError, ImportError, MemoryError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    finally:
        gc.enable()
    from sparq_ipu.serve.process import run

    return run(app, engine, arguments.host, arguments.port, arguments.grace)
