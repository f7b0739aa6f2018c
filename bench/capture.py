# SPDX-License-Identifier: Apache-2.0
"""Save real queries, keys and values of a model's attention layers, for benchmarks and tests.

    python bench/capture.py --text-file play.txt --tokens 4096 --layers 2,9,16 --output inputs.npz
    python bench/ipu_sparq.py --input inputs.npz

For each layer L the file has, float16, after rotary embedding:

    query_L   (1, n_heads, n_queries, head_dim)       the last tokens' queries
    key_L     (1, n_kv_heads, n_tokens, head_dim)
    value_L   (1, n_kv_heads, n_tokens, head_dim)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import Progress, check_output


def capture(model: Any, tokens: Any, layers: list[int], n_queries: int) -> dict[str, np.ndarray]:
    """Queries, keys and values of one text, by the names above.

    Args:
        model: a model of transformers that dispatches attention through AttentionInterface.
        tokens: (1, n_tokens) int64 tensor.
        layers: indices of layers.
        n_queries: how many of the last tokens' queries to keep, at most n_tokens.

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
        with torch.no_grad():
            model.base_model(tokens, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    return arrays


def _n_layers(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text-file", type=Path, required=True, help="text to run the model on (UTF-8)")
    parser.add_argument("--output", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the text to use (default 4096)")
    parser.add_argument(
        "--queries", type=int, default=64, help="keep the queries of the last N tokens (default 64)"
    )
    parser.add_argument("--layers", default="2,9,16,23,29", help="comma separated (default 2,9,16,23,29)")
    parser.add_argument(
        "--model", type=Path, help="checkpoint directory or .gguf (default SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    arguments = parser.parse_args(argv)
    if arguments.output.exists() and not arguments.force:
        parser.error(f"{arguments.output} exists; --force overwrites it")
    check_output(parser, "--output", arguments.output)
    if arguments.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {arguments.tokens}")
    if not 1 <= arguments.queries <= arguments.tokens:
        parser.error(f"--queries must be in [1, --tokens={arguments.tokens}], got {arguments.queries}")
    try:
        layers = [int(layer) for layer in arguments.layers.split(",")]
    except ValueError:
        parser.error(f"--layers must be integers with commas between them, got {arguments.layers!r}")
    if min(layers) < 0:
        parser.error(f"--layers must be at least 0, got {min(layers)}")
    try:
        text = arguments.text_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        rule = "--text-file must be a file of UTF-8 text that can be read"
        parser.error(f"{rule}, got {arguments.text_file} ({reason})")

    from sparq_ipu.models import load_model, load_smollm2

    progress = Progress()
    try:
        progress.step("loading the model")
        model, tokenizer = load_smollm2() if arguments.model is None else load_model(arguments.model)
    except (ImportError, OSError, ValueError) as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    if tokenizer is None:
        parser.error(f"--model must come with a tokenizer, got none in {arguments.model}")
    tokens = tokenizer(text, return_tensors="pt").input_ids
    if tokens.shape[1] < arguments.tokens:
        parser.error(f"--tokens: the text must have {arguments.tokens} tokens, got {tokens.shape[1]}")
    n_layers = _n_layers(model)
    if max(layers) >= n_layers:
        parser.error(f"--layers must be in [0, {n_layers}), the layers of the model, got {max(layers)}")
    tokens = tokens[:, : arguments.tokens]
    progress.step(f"running {tokens.shape[1]} tokens")
    try:
        arrays = capture(model, tokens, layers, arguments.queries)
    except ValueError as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    # through an open file: given a name, NumPy would add .npz to it
    with arguments.output.open("wb") as file:
        named: dict[str, Any] = dict(arrays)
        np.savez(file, **named)
    for name, array in arrays.items():
        print(f"{name:10} {array.dtype} {array.shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
