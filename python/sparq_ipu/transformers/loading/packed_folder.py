# SPDX-License-Identifier: Apache-2.0
"""Safetensors with linear layers of 4 bits as AutoAWQ and GPTQ write them.

awq    (GEMM) qweight (inputs, outputs / 8): nibble i of an int32 is output _AWQ[i] of eight; qzeros
       (groups, outputs / 8) in the same order
gptq   qweight (inputs / 8, outputs): nibble i is input i of eight; qzeros (groups, outputs / 8) in the order
       of outputs. The form "gptq_v2" stores them as they are. The form "gptq" stores each int32 less
       0x11111111, so a zero of 0 borrows from the next nibble: GPTQModel subtracts so, and adds it back when
       it reads. AutoGPTQ subtracts 1 from each zero instead, which is the same where no zero is 0; otherwise
       its packing overwrites the other nibbles.

scales (groups, outputs) become float16, and weight = scale * (code - zero).
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any, NoReturn

import torch

from sparq_ipu.transformers.decoder.few_bits import GROUP, FewBitsLinear, Groups, paired
from sparq_ipu.transformers.decoder.weights import Stored
from sparq_reference import checks

_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
#: `scale * (8 - zero)` must not overflow in float16
_MOST_SCALE = 65504 / 8
#: what a field of `quantization_config` must be, where it is there
_FIELDS = {
    "awq": {"bits": (4,), "version": ("gemm", "GEMM")},
    "gptq": {"bits": (4,), "desc_act": (False,), "checkpoint_format": ("gptq", "gptq_v2")},
}


class PackedFolder:
    """A checkpoint directory."""

    def __init__(self, folder: Path, config: Any):
        from safetensors import safe_open

        self._folder, self._config = folder, copy.deepcopy(config)
        self._said = dict(config.quantization_config)
        del self._config.quantization_config
        self._method = self._said["quant_method"]
        for field, known in _FIELDS[self._method].items():
            if self._said.get(field, known[0]) not in known:
                self._fail(field, f"be {' or '.join(map(repr, known))}")
        group = self._said.get("group_size", 128)
        if type(group) is not int or not (group == -1 or (group > 0 and group % GROUP == 0)):
            self._fail("group_size", f"be -1 or a multiple of {GROUP}")
        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            opened: Any = safe_open(path, framework="pt")
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def _fail(self, field: str, rule: str) -> NoReturn:
        where = f"quantization_config.{field} of {self._folder / 'config.json'}"
        checks.fail("load_model", where, rule, repr(self._said.get(field)))

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def load(self, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
        """The model, of which layers that `stored` has get no weights here, and transformers' report."""
        import transformers

        with torch.device("meta"):
            models: Any = transformers.AutoModelForCausalLM
            empty = models.from_config(self._config, attn_implementation="sdpa")
        parts = (".qweight", ".qzeros", ".scales", ".g_idx")
        packed = {name: name.rpartition(".")[0] for name in self._files if name.endswith(parts)}
        state = {}
        for layer in sorted(set(packed.values())):
            module = empty.get_submodule(layer)
            self._check(layer, module)
            state[f"{layer}.weight"] = torch.zeros((), dtype=dtype).expand(module.weight.shape)
        state.update((name, self._tensor(name).to(dtype)) for name in self._files if name not in packed)
        model, info = type(empty).from_pretrained(
            None,
            config=self._config,
            state_dict=state,
            attn_implementation="sdpa",
            output_loading_info=True,
            dtype=dtype,
        )
        return model, info

    def _check(self, layer: str, module: Any) -> None:
        """Refuse tensors that are not those of this layer."""
        if type(module) is not torch.nn.Linear or not FewBitsLinear.fits(module):
            rule = "be a linear layer of a multiple of 32 inputs and of 16 outputs"
            checks.fail("load_model", layer, rule, module)
        n_in, n_out, group = module.in_features, module.out_features, self._said.get("group_size", 128)
        group = n_in if group == -1 else group
        if n_in % group:
            checks.fail("load_model", layer, f"have a multiple of {group} inputs, the group_size", n_in)
        words, n_groups = n_out // 8, n_in // group
        codes = (n_in, words) if self._method == "awq" else (n_in // 8, n_out)
        shapes = {"qweight": codes, "qzeros": (n_groups, words), "scales": (n_groups, n_out)}
        for part, shape in shapes.items():
            name = f"{layer}.{part}"
            if name not in self._files:
                checks.fail("load_model", name, f"be in {self._folder}", "no such tensor")
            stored = self._files[name].get_slice(name)
            if tuple(stored.get_shape()) != shape:
                checks.fail("load_model", name, f"have the shape {shape}", tuple(stored.get_shape()))
            kinds = ("F16", "BF16", "F32") if part == "scales" else ("I32",)
            if stored.get_dtype() not in kinds:
                checks.fail("load_model", name, f"be {' or '.join(kinds)}", stored.get_dtype())
        largest = self._tensor(name).abs().max().item()  # NaN where there is one
        if not largest <= _MOST_SCALE:
            checks.fail("load_model", name, f"be finite, at most {_MOST_SCALE:g}", largest)
        order = f"{layer}.g_idx"
        if self._method == "gptq" and order in self._files:
            if not torch.equal(self._tensor(order).long(), torch.arange(n_in) // group):
                checks.fail("load_model", order, "be that of inputs in order", "another order")

    def stored(self, name: str) -> Stored | None:
        """The linear layer `name`; None where it has more bits."""
        if f"{name}.qweight" not in self._files:
            return None
        codes, zeros, scales = (self._tensor(f"{name}.{part}") for part in ("qweight", "qzeros", "scales"))
        return Stored(4, functools.partial(self._groups, codes, zeros, scales))

    def _groups(
        self, words: torch.Tensor, zero_words: torch.Tensor, scales: torch.Tensor, part: slice
    ) -> Groups:
        of_words = slice(part.start // 8, part.stop // 8)
        zero_words = zero_words[:, of_words]
        if self._method == "gptq":
            codes = _nibbles(words[:, part].T)
            is_less = self._said.get("checkpoint_format") != "gptq_v2"
            zeros = _nibbles(zero_words + 0x11111111 if is_less else zero_words)
        else:
            codes = _in_order(_nibbles(words[:, of_words])).T.contiguous()
            zeros = _in_order(_nibbles(zero_words))
        scale = scales[:, part].float()
        pairs = torch.stack((scale, scale * (8 - zeros.float())), dim=2).transpose(0, 1)
        times = codes.shape[1] // GROUP // pairs.shape[1]
        return paired(codes), pairs.repeat_interleave(times, dim=1)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 (n, m) -> (n, 8 m) uint8."""
    return (words[..., None] >> torch.arange(0, 32, 4) & 15).to(torch.uint8).flatten(1)


def _in_order(numbers: torch.Tensor) -> torch.Tensor:
    """Of nibbles as AWQ orders eight outputs."""
    return numbers.view(len(numbers), -1, 8)[..., torch.tensor(_AWQ).argsort()].flatten(1)
