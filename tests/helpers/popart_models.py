# SPDX-License-Identifier: Apache-2.0
"""Small models of the PopART operators: their inputs, and what a cache should hold after each of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import sparq_ipu
from sparq_ipu.device_options import DeviceOptions
from sparq_reference import CacheSpec, exact, row_codes


def load_contract() -> ModuleType:
    """sparq_ipu.poptorch.contract without its package, which needs PyTorch."""
    file = Path(sparq_ipu.__file__).parent / "poptorch" / "contract.py"
    spec = importlib.util.spec_from_file_location("sparq_contract", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparq_contract"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


contract = load_contract()


BATCH, N_HEADS, N_KV_HEADS, HEAD_DIM, CAPACITY = 2, 4, 2, 16, 200
SETTINGS = dict(rank=4, top_k=20, n_local=3, mean_value=1)
CACHE = dict(capacity=CAPACITY, cache_name="layer0")
DECODE = dict(n_kv_heads=N_KV_HEADS, **CACHE)
SHAPES = {
    "query": (BATCH, N_HEADS, HEAD_DIM),
    "key": (BATCH, N_KV_HEADS, HEAD_DIM),
    "value": (BATCH, N_KV_HEADS, HEAD_DIM),
    "active": (BATCH,),
    "lengths": (BATCH,),
    "held": (BATCH,),
}


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


class Held:
    """What a cache should hold, and what the operators should do to it."""

    def __init__(self, batch=BATCH, n_kv_heads=N_KV_HEADS, capacity=CAPACITY, head_dim=HEAD_DIM, row_bits=16):
        self.row_bits = row_bits
        self.key = np.zeros((batch, n_kv_heads, capacity, head_dim), np.float16)
        self.value = np.zeros_like(self.key)
        self.lengths = np.zeros(batch, np.int64)

    def prompt(
        self, rng: np.random.Generator, lengths: Any, n_tokens: int, suffix: str = "_prompt"
    ) -> dict[str, np.ndarray]:
        """Fills with a prompt; returns the inputs of the operator that does so too."""
        key, value = (halves(rng, BATCH, N_KV_HEADS, n_tokens, HEAD_DIM) for _ in "kv")
        lengths = np.array(lengths, np.int32)
        self.fill(key, value, lengths)
        return {f"key{suffix}": key, f"value{suffix}": value, f"lengths{suffix}": lengths}

    def token(
        self, rng: np.random.Generator, active: Any = (1,) * BATCH, suffix: str = ""
    ) -> dict[str, np.ndarray]:
        """Appends a token; returns the inputs of the operator that does so too."""
        query, key, value = (halves(rng, *SHAPES[name]) for name in ("query", "key", "value"))
        active = np.array(active, np.int32)
        self.append(key, value, active)
        names = (f"{name}{suffix}" for name in ("query", "key", "value", "active"))
        return dict(zip(names, (query, key, value, active)))

    def fill(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        key, value = self._rounded(key, value)
        for b, n in enumerate(lengths):
            if n >= 0:
                n = min(int(n), key.shape[2])
                self.key[b, :, :n], self.value[b, :, :n], self.lengths[b] = key[b, :, :n], value[b, :, :n], n

    def append(self, key: np.ndarray, value: np.ndarray, active: np.ndarray) -> None:
        key, value = self._rounded(key, value)
        for b in np.flatnonzero((np.asarray(active) != 0) & (self.lengths < self.key.shape[2])):
            self.key[b, :, self.lengths[b]], self.value[b, :, self.lengths[b]] = key[b], value[b]
            self.lengths[b] += 1

    def _rounded(self, *rows: np.ndarray) -> list[np.ndarray]:
        return [row_codes.round_rows(each, self.row_bits) for each in rows]

    def sparq(self, query: np.ndarray, **settings: Any) -> np.ndarray:
        settings = {**SETTINGS, **settings}
        settings["mean_value"] = bool(settings["mean_value"])
        return exact.sparq_attention(query, self.key, self.value, **settings, lengths=self.lengths)

    def dense(self, query: np.ndarray) -> np.ndarray:
        return exact.dense_attention(query, self.key, self.value, lengths=self.lengths)


def add_inputs(model: Any, suffix: str = "", n_tokens: int = 0, **shapes: tuple) -> dict:
    """The inputs of a decode operator, or, with n_tokens, of a fill; names by argument."""
    shapes = {**SHAPES, **shapes}
    if n_tokens:
        for name in ("key", "value"):
            batch, heads, dim = shapes[name]
            shapes[name] = (batch, heads, n_tokens, dim)
    names = ("key", "value", "lengths") if n_tokens else ("query", "key", "value", "active")
    for name in names:  # `held` is left out
        dtype = "int32" if name in ("active", "lengths") else "float16"
        model.add_input(name + suffix, dtype, shapes[name])
    return {name: name + suffix for name in names}


def add_op(
    model: Any, op: str, suffix: str = "", n_tokens: int = 0, shapes: dict | None = None, **attributes: Any
) -> int:
    """Adds an operator with inputs of its own; its first output is out{suffix}."""
    inputs = add_inputs(model, suffix, n_tokens, **(shapes or {}))
    defaults = dict(CACHE) if op == "CacheFill" else dict(DECODE)
    if op == "SparqDecode":
        defaults.update(SETTINGS)
    return model.add_op(op, list(inputs.values()), [f"out{suffix}"], {**defaults, **attributes})


def attributes_of(op: str, **changed: Any) -> dict:
    """The attributes of an operator of the contract: defaults, and what is changed of them."""
    defaults = {name: getattr(CacheSpec, name) for name in CacheSpec.options()}
    values = {**defaults, **dataclasses.asdict(DeviceOptions()), **DECODE, **SETTINGS, **changed}
    return {name: values[name] for name in contract.ATTRIBUTES[op]}
