# SPDX-License-Identifier: Apache-2.0
"""A checkpoint directory, checked before its model is built: its config, and the headers of its weights; and
errors of other packages over a file, in one line that names it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, Iterator

from sparq_reference import checks

#: numbers of a config, and how large they can be
_COUNTS = {
    "num_hidden_layers": 1 << 16,
    "hidden_size": 1 << 24,
    "intermediate_size": 1 << 24,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "vocab_size": 1 << 28,
    "max_position_embeddings": 1 << 31,
}
_MAY_BE_NULL = ("num_key_value_heads", "head_dim", "intermediate_size")
#: one for each layer, in some models
_MAY_BE_LIST = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
_REALS = {"rms_norm_eps": 1.0, "layer_norm_eps": 1.0, "rope_theta": 1e12}
#: kinds of `quantization_config` whose layers stay as they are (`packed_folder`)
_PACKED = ("awq", "gptq")
#: a tensor of a layer, by its name
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
#: of an error of another package
_MOST_CHARACTERS = 300


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise what goes wrong as ValueError: `load_model: <what> must be readable, got <error>`.

    A panic of a package in Rust is no Exception, so it is known by its name. Our own errors pass, and those
    of the machine (memory, a missing package or file).
    """
    try:
        yield
    except (MemoryError, FileNotFoundError):
        raise
    except BaseException as raised:
        error = raised
        if isinstance(raised, ImportError):  # transformers asks for protobuf where a tokenizer is damaged
            if raised.__context__ is None or isinstance(raised.__context__, ImportError):
                raise
            error = raised.__context__
        if isinstance(error, ValueError) and str(error).startswith("load_model: "):
            raise
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = " ".join(str(error).split())
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS] + "…"
        message = f"load_model: {what} must be readable, got {type(error).__name__}: {text}"
        raise ValueError(message) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of config.json, whose numbers are checked."""
    file = folder / "config.json"
    with refused(f"{file}"):
        config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        checks.fail("load_model", str(file), "be an object", type(config).__name__)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            check_numbers(file, part)
    return config


def check_numbers(file: Path, config: dict[str, Any]) -> None:
    """Refuse numbers that no model has, in the fields of a config that a file contains."""

    def check(name: str, rule: str, holds: bool) -> None:
        if not holds:
            value = config.get(name)
            checks.fail("load_model", f"{name} of {file}", rule, json.dumps(value)[:80])

    for name, most in _COUNTS.items():
        value = config.get(name, 1)
        is_list = isinstance(value, list) and name in _MAY_BE_LIST
        if not is_list and not (value is None and name in _MAY_BE_NULL):
            check(name, f"be an integer in [1, {most}]", type(value) is int and 1 <= value <= most)
    for name, top in _REALS.items():
        value = config.get(name, top)
        check(name, f"be in (0, {top:g}]", type(value) in (int, float) and 0 < value <= top)
    for name in ("rope_scaling", "rope_parameters"):
        check(name, "be an object or null", isinstance(config.get(name), (dict, type(None))))
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if type(heads) is type(width) is int and not config.get("head_dim"):
        check("num_attention_heads", f"divide hidden_size, {width}", width % heads == 0)
    kv_heads = config.get("num_key_value_heads")
    if type(heads) is type(kv_heads) is int:
        check("num_key_value_heads", f"divide num_attention_heads, {heads}", heads % kv_heads == 0)


def packed_method(folder: Path) -> str | None:
    """How AutoAWQ or GPTQ made the weights; None: neither did."""
    packed = read_config(folder).get("quantization_config")
    method = packed.get("quant_method") if isinstance(packed, dict) else None
    return method if method in _PACKED else None


def check_weights(folder: Path, n_layers: int) -> None:
    """Refuse safetensors that are not whole, and fewer layers than the config counts."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return
    from safetensors import safe_open

    names: list[str] = []
    for file in files:
        with refused(str(file)), safe_open(file, framework="pt") as weights:
            names += weights.keys()
    layers = {int(match[1]) for name in names if (match := _LAYER.search(name))}
    missing = next((index for index in range(n_layers) if index not in layers), None) if layers else None
    if missing is not None:
        rule = f"have weights of the {n_layers} layers that config.json counts"
        checks.fail("load_model", str(folder), rule, f"none of layer {missing}")


def check_whole(folder: Path, info: dict[str, Any]) -> None:
    """Refuse a model of which some weights were not in the files; info: transformers' report about loading
    it."""
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        also = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        checks.fail("load_model", str(folder), "have all weights of its model", f"no {missing[0]}{also}")
