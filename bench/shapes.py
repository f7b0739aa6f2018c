# SPDX-License-Identifier: Apache-2.0
"""Decode steps of models that differ in one thing, with random weights of 4 bits, on a CPU.

    python bench/shapes.py qwen       # Qwen 3 beside Qwen 2: the layers of Qwen 2.5 0.5B, and norms of heads
    python bench/shapes.py windows    # Gemma 3 270M, a text of 1K beside one of 16K; and its windows alone

Caches hold random keys and values. Steps of the cases are interleaved. stdout: a JSON line for each case
with the tokens/s of every round and the bytes of its caches; stderr: medians and spreads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from lib.common import guarded, spread
from lib.decode_method import head_dim_of
from lib.origin import origin, repeat_command

from sparq_ipu.commands.command_line import Parser, positive_integer, thread_count

#: steps of a round
STEPS = 32
VOCABULARY = 32000
_QWEN = dict(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
)
_GEMMA = dict(
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    sliding_window=512,
)
_MIXED = [["sliding_attention", "full_attention"][index % 6 == 5] for index in range(18)]
#: of each name: the class, changes of its config, and positions in the cache
CASES: dict[str, dict[str, tuple[str, dict[str, Any], int]]] = {
    "qwen": {"Qwen 2": ("Qwen2", _QWEN, 1024), "Qwen 3": ("Qwen3", dict(_QWEN, head_dim=64), 1024)},
    "windows": {
        f"{name}, {n}": ("Gemma3Text", dict(_GEMMA, layer_types=types), n)
        for name, types in (("Gemma 3", _MIXED), ("its windows alone", ["sliding_attention"] * 18))
        for n in (1024, 16384)
    },
}


def a_model(kind: str, changes: dict[str, Any]) -> Any:
    import torch
    import transformers

    from sparq_ipu.transformers import enable, quantise_weights

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, tie_word_embeddings=True, max_position_embeddings=32768, **changes
    )
    torch.manual_seed(0)
    name = kind.replace("Text", "") + "ForCausalLM"
    model = getattr(transformers, name)(config).eval().to(torch.bfloat16)
    quantise_weights(model, "int4")
    enable(model)
    return model


def filled(model: Any, n: int) -> Any:
    """A cache with n random positions."""
    import torch

    from sparq_ipu.transformers import SparqCache
    from sparq_ipu.transformers.integration import decoding

    cache, config = SparqCache(model), model.config
    generator = torch.Generator().manual_seed(0)
    for layer, settings in zip(cache.layers, decoding("bench", model).settings):
        for _ in range(n // 1024):
            shape = (1, config.num_key_value_heads, 1024, head_dim_of(config))
            rows = torch.randn(2, *shape, generator=generator).half()
            layer.restore(rows[0], rows[1], settings)
    return cache


def bytes_of(cache: Any) -> tuple[int, int]:
    """Memory for keys and values: of layers with windows, and of the others."""
    sizes = [0, 0]
    for layer in cache.layers:
        held = layer.cache
        sizes[layer.window is None] += 4 * held.n_kv_heads * held.capacity * held.head_dim
    return sizes[0], sizes[1]


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from sparq_ipu.transformers.integration import steps_of

    torch.set_num_threads(arguments.threads)
    cases = CASES[arguments.cases]
    models: dict[str, Any] = {}
    made: dict[str, tuple[Any, Any]] = {}
    for name, (kind, changes, n) in cases.items():
        key = str((kind, changes))
        if key not in models:
            models[key] = a_model(kind, changes)
        made[name] = models[key], filled(models[key], n)
    rates: dict[str, list[float]] = {name: [] for name in cases}
    token = torch.tensor([[5]])
    with torch.inference_mode():
        for _ in range(arguments.rounds + 1):
            for name, (model, cache) in made.items():
                start = time.perf_counter()
                for _ in range(STEPS):
                    model(token, cache=cache, use_cache=True)
                rates[name].append(STEPS / (time.perf_counter() - start))
    rows = []
    for name, (model, cache) in made.items():
        counted = rates[name][1:]
        windowed, others = bytes_of(cache)
        rows.append(
            dict(
                case=name,
                n_threads=arguments.threads,
                seq_len=cases[name][2],
                steps=steps_of(model),
                tokens_per_second=counted,
                bytes_of_windows=windowed,
                bytes_of_others=others,
            )
        )
        print(
            f"{name:24} {spread(counted)} tokens/s; {windowed / 1e6:.1f} MB in layers with windows, "
            f"{others / 1e6:.1f} MB in others",
            file=sys.stderr,
        )
    return rows


def main(words: list[str] | None = None) -> int:
    parser = Parser(
        prog="bench/shapes.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", choices=sorted(CASES))
    parser.add_argument("--rounds", type=positive_integer, default=9, help="that count (default 9)")
    parser.add_argument("--threads", type=thread_count, default=2, help="default 2")
    words = sys.argv[1:] if words is None else words
    for row in run(parser.parse_args(words)):
        print(json.dumps({**row, **origin(repeat_command("shapes.py", words))}))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
