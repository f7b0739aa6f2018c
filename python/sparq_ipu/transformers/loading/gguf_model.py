# SPDX-License-Identifier: Apache-2.0
"""A model of transformers from a GGUF file: every tensor has its place, and every place its tensor."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable

import numpy as np
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils

from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear
from sparq_ipu.transformers.decoder.gguf_groups import groups_of
from sparq_ipu.transformers.decoder.weights import Stored, conversion_threads
from sparq_ipu.transformers.loading.folder import check_numbers
from sparq_ipu.transformers.loading.gguf_file import KEPT_BITS, GgufFile, Tensor
from sparq_ipu.transformers.loading.gguf_reader import parsed

#: of which not every function is typed
converters: Any = modeling_gguf_pytorch_utils
Progress = Callable[[float], None]
#: processors of transformers that move rows and change no other matrix
_MOVE_ROWS = ("TensorProcessor", "LlamaTensorProcessor", "Gemma2TensorProcessor")
#: numbers that are converted at a time
_CHUNK = 1 << 18
#: bytes of the file that are in memory at a time
_KEPT = 1 << 24
#: rotary factors, which are no parameters of a model
_FACTORS = "rope_freqs.weight"
_LONG_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
#: kinds of models with heads of several sizes
_HEADS_DIFFER = ("gemma4",)
#: numbers that transformers does not take from every kind of file, and their names in a config
_SHARED = {"attention.key_length": "head_dim", "attention.sliding_window": "sliding_window"}
#: the same in all layers
_ONE = ("block_count", "embedding_length", "context_length", "vocab_size")
#: of special tokens, which a tokenizer would count from its end where they are negative
_IDS = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
#: shapes of a head
_SHAPES = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def config_of(file: GgufFile) -> Any:
    """The config, with the rotary embedding of the file."""
    architecture = file.architecture
    for name in _ONE:
        file.number(f"{architecture}.{name}")
    with parsed(file):
        said = converters.load_gguf_checkpoint(str(file.path), return_tensors=False)["config"]
    for key, name in _SHARED.items():
        value = file.number(f"{architecture}.{key}")
        if value and architecture not in _HEADS_DIFFER:
            said[name] = value
    check_numbers(file.path, said)
    n_tokens = len(file.array("tokenizer.ggml.tokens"))
    for name in _IDS:
        token = file.number(f"tokenizer.ggml.{name}", 0)
        if n_tokens and not 0 <= token < n_tokens:
            file.fail(f"tokenizer.ggml.{name}", f"be in [0, {n_tokens})", token)
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    n_layers = said.get("num_hidden_layers", 1)
    missing = next((index for index in range(n_layers) if str(index) not in layers), None)
    if missing is not None:
        file.fail("", f"have tensors of all {n_layers} layers", f"none of blk.{missing}.")
    scaling = _rope_scaling(file)
    if scaling:
        said["rope_scaling"] = scaling
    if architecture == "gemma3":  # what the file does not say, llama.cpp decides by the number of layers
        is_27b = said["num_hidden_layers"] == 62
        per_head = said["hidden_size"] // said["num_attention_heads"]
        said["query_pre_attn_scalar"] = per_head if is_27b else said["head_dim"]
    config = transformers.AutoConfig.for_model(**said)
    _check_config(file, config)
    return config


def _rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    prefix = f"{file.architecture}.rope.scaling."
    name = f"{prefix}type"
    kind = file.text(name, "none")
    trained = file.number(f"{prefix}original_context_length")
    factor = file.number(f"{prefix}factor", file.number(f"{file.architecture}.rope.scale_linear"))
    if kind == "none" and factor in (None, 0.0, 1.0) and not any(n in file.tensors for n in _LONG_FACTORS):
        return None
    if factor is not None and not 0 < factor < 1e6:
        file.fail(f"{prefix}factor", "be above 0", factor)
    if kind in ("linear", "none") and factor is not None:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor is not None and trained is not None:
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
        for key, of in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if (value := file.number(prefix + key)) is not None:
                scaling[of] = value
        if file.number(f"{prefix}attn_factor", 1.0) != 1.0 or file.number(f"{prefix}yarn_log_multiplier", 0):
            file.fail(f"{prefix}attn_factor", "be 1 with yarn", file.number(f"{prefix}attn_factor"))
        return scaling
    found = next((n for n in _LONG_FACTORS if n in file.tensors), None)
    file.fail(name, "be none, linear or yarn", kind if found is None else f"longrope, with {found}")


def _check_config(file: GgufFile, config: Any) -> None:
    """Refuse numbers of the file that the config does not have."""
    architecture = file.architecture
    heads = file.array_or_number(f"{architecture}.attention.head_count")
    head_dim = file.number(f"{architecture}.attention.key_length", config.hidden_size // max(heads))
    rope = getattr(config, "rope_parameters", None) or {}
    part = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1
    if architecture in _HEADS_DIFFER:
        head_dim = 0
    has = {
        "attention.key_length": getattr(config, "head_dim", None) or head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * part),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "expert_count": getattr(config, "num_experts", None) or getattr(config, "num_local_experts", 0),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "attention.scale": getattr(config, "attention_multiplier", None),
        "embedding_scale": getattr(config, "embedding_multiplier", None),
        "residual_scale": getattr(config, "residual_multiplier", None),
        "logit_scale": getattr(config, "logits_scaling", getattr(config, "logit_scale", None)),
    }
    for name, value in has.items():
        said = file.number(f"{architecture}.{name}")
        if said and value != said and not (name in _SHAPES and architecture in _HEADS_DIFFER):
            file.fail(f"{architecture}.{name}", f"be {value}, which transformers makes of this file", said)


class GgufModel:
    """What a file has of a model, found before any weight is converted. config: of `config_of`. progress:
    called with the share of the file that is converted."""

    def __init__(self, file: GgufFile, config: Any, progress: Progress):
        self._file, self._config, self._progress = file, config, progress
        self._done, self._total = 0, sum(tensor.data.nbytes for tensor in file.tensors.values())
        with torch.device("meta"):
            models: Any = transformers.AutoModelForCausalLM
            self._empty = models.from_config(config, attn_implementation="sdpa")
        self._output = self._empty.get_output_embeddings()
        processor = converters.TENSOR_PROCESSORS.get(file.architecture, converters.TensorProcessor)
        self._processor: Any = processor(config=config.to_dict())
        self._moves_rows = type(self._processor).__name__ in _MOVE_ROWS
        with parsed(file):
            names: dict[str, str] = converters.get_gguf_hf_weights_map(self._empty, self._processor)
        self._names = names
        self._check()

    def _check(self) -> None:
        file = self._file
        parameters = dict(self._empty.named_parameters())
        of_model: dict[str, list[str]] = {}
        for name, of in self._names.items():
            of_model.setdefault(of, []).append(name)
        for name, parameter in parameters.items():
            for tensor_name in of_model.get(name, [name]):
                tensor = file.tensors.get(tensor_name)
                if tensor is None:
                    file.fail("", "have all tensors of its model", f"no {tensor_name}")
                if self._moves_rows and tensor.shape != parameter.shape:
                    file.fail(tensor_name, f"have the shape {tuple(parameter.shape)}", tensor.shape)
        spare = next((n for n in file.tensors if n not in self._names and not self._is_known(n)), None)
        if spare is not None:
            architecture = file.architecture
            file.fail(spare, f"be a tensor that transformers has a place for in {architecture}", "none")

    def _is_known(self, name: str) -> bool:
        known = name == _FACTORS or name.endswith((".attn_rot_embd.weight", ".rope_freqs.weight"))
        return known or "_exps" in name or "_probs_b" in name or not self._moves_rows

    def stored(self, name: str) -> Stored | None:
        """The linear layer `name`; None where more is done to it than moving rows."""
        weight = f"{name}.weight"
        if self._config.tie_word_embeddings and self._empty.get_submodule(name) is self._output:
            weight = next(n for n, p in self._empty.named_parameters() if p is self._output.weight)
        found = next((n for n, of in self._names.items() if of == weight), None)
        tensor = None if found is None else self._file.tensors.get(found)
        order = None if tensor is None else self._order(tensor)
        if tensor is None or order is None:
            return None
        kind, rows = tensor.kind, functools.partial(self._rows, tensor, order)
        numbers = functools.partial(_numbers, self._file, tensor)
        return Stored(
            KEPT_BITS.get(kind.name),
            lambda part: groups_of(kind, rows(part)),
            lambda part: torch.from_numpy(numbers(rows(part))),
        )

    def _rows(self, tensor: Tensor, order: np.ndarray, part: slice) -> np.ndarray:
        data: np.ndarray = tensor.data[order[part]]
        self._converted(data.nbytes)
        return data

    def _converted(self, n_bytes: int) -> None:
        if self._done // _KEPT < (self._done + n_bytes) // _KEPT:
            self._file.forget()
        self._done += n_bytes
        self._progress(min(1.0, self._done / self._total))  # a tied output layer is read twice

    def _order(self, tensor: Tensor) -> np.ndarray | None:
        """Which row of the file is each row of the model; None where more is done than moving rows."""
        if not self._moves_rows or len(tensor.shape) != 2:
            return None
        rows = np.arange(tensor.shape[0])[:, None]
        result = self._processor.process(rows, tensor.name, tensor_key_mapping=self._names)
        return np.asarray(result.weights)[:, 0]

    def load(self, dtype: torch.dtype, weights: str | None) -> Any:
        """The model, with its weights converted by all threads of PyTorch. weights: of `quantise_weights`,
        which gives weights to the layers that get none here; "all": none."""
        skipped = set()
        for name, module in self._empty.named_modules():
            if weights != "all" and type(module) is torch.nn.Linear and FewBitsLinear.fits(module):
                of_file = self.stored(name)
                if of_file is not None and (weights or of_file.bits is not None):
                    skipped.add(f"{name}.weight")
        parsed_parameters: dict[str, Any] = {"tensors": {}}
        state: dict[str, torch.Tensor] = parsed_parameters["tensors"]
        with conversion_threads() as pool:
            work: list[tuple[Tensor, str | None, Iterable[Any]]] = []
            for tensor in self._file.tensors.values():
                name = self._names.get(tensor.name)
                order = self._order(tensor)
                if name is not None and name in skipped:
                    state[name] = torch.zeros((), dtype=dtype).expand(tensor.shape)
                elif name is not None and order is not None:
                    made = state[name] = torch.empty(tensor.shape, dtype=dtype)
                    n_rows = max(1, _CHUNK // tensor.shape[1])
                    fill = functools.partial(_fill, made, self._file, tensor, order, n_rows)
                    work.append((tensor, None, [pool.submit(fill, a) for a in range(0, len(order), n_rows)]))
                else:
                    made_whole = pool.submit(_numbers, self._file, tensor, tensor.data)
                    work.append((tensor, tensor.name, [made_whole]))
            for tensor, whole, parts in work:
                for part in parts:
                    numbers = part.result()
                if whole is not None:
                    result = self._processor.process(
                        numbers,
                        name=whole,
                        tensor_key_mapping=self._names,
                        parsed_parameters=parsed_parameters,
                    )
                    if result.name in self._names:
                        copied = torch.from_numpy(np.array(result.weights))
                        state[self._names[result.name]] = copied.to(dtype)
                self._converted(tensor.data.nbytes)
        model = type(self._empty).from_pretrained(
            None, config=self._config, state_dict=state, attn_implementation="sdpa", dtype=dtype
        )
        self._scale_rotary(model)
        return model

    def _scale_rotary(self, model: Any) -> None:
        """Divide the frequencies of rotary embedding by the file's factors, as Llama 3.1 has them."""
        tensor = self._file.tensors.get(_FACTORS)
        if tensor is None:
            return
        factors = torch.tensor(_numbers(self._file, tensor, tensor.data))
        rotary = getattr(model.base_model, "rotary_emb", None)
        frequencies = getattr(rotary, "inv_freq", None)
        if frequencies is None or frequencies.shape != factors.shape or not bool((factors > 0).all()):
            self._file.fail(_FACTORS, "be a factor above 0 for each frequency", tuple(factors.shape))
        for name in ("inv_freq", "original_inv_freq"):
            if getattr(rotary, name, None) is not None:
                setattr(rotary, name, frequencies / factors)


def _numbers(file: GgufFile, tensor: Tensor, data: np.ndarray) -> np.ndarray:
    """Some rows of a tensor in float32, as the package gguf makes them."""
    import gguf

    kind = tensor.kind
    if kind.name in ("F32", "F16"):
        data = data.view(np.float32 if kind.name == "F32" else np.float16)
    made: np.ndarray = gguf.quants.dequantize(data, kind)
    if not np.isfinite(made).all():
        file.fail(tensor.name, "have finite numbers", "infinity or NaN")
    return made.astype(np.float32, copy=False)


def _fill(
    made: torch.Tensor, file: GgufFile, tensor: Tensor, order: np.ndarray, n_rows: int, begin: int
) -> None:
    rows = order[begin : begin + n_rows]
    numbers = _numbers(file, tensor, tensor.data[rows])
    made[begin : begin + n_rows] = torch.from_numpy(numbers)
