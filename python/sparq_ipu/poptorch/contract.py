# SPDX-License-Identifier: Apache-2.0
"""What Python and the PopART operators (poplar_ops/popart) agree on: names, tensors, attributes. One table;
both sides follow it.

Needs neither torch nor PopTorch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from sparq_reference import checks

#: ONNX domain and version of every operator
DOMAIN = "ai.sparq"
VERSION = 1

#: attribute type -> the Python type that travels; PopTorch has no boolean attribute, so flags are int 0 or 1
ATTRIBUTE_TYPES = {"int": int, "string": str}


@dataclasses.dataclass(frozen=True)
class TensorContract:
    """A tensor of an operator: its name, PopART data type and symbolic shape."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class AttributeContract:
    """An attribute of an operator: its name, its type, "int" or "string", and the values allowed."""

    name: str
    type: str
    rule: str


@dataclasses.dataclass(frozen=True)
class OpContract:
    """An operator of `DOMAIN` and `VERSION`; inputs and outputs in the order of their indices."""

    name: str
    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    attributes: tuple[AttributeContract, ...]


_QUERY = TensorContract("query", "FLOAT16", ("batch", "n_heads", "head_dim"))
_KEY = TensorContract("key", "FLOAT16", ("batch", "n_kv_heads", "head_dim"))
_VALUE = TensorContract("value", "FLOAT16", ("batch", "n_kv_heads", "head_dim"))
_ACTIVE = TensorContract("active", "INT32", ("batch",))
_OUTPUT = TensorContract("output", "FLOAT16", ("batch", "n_heads", "head_dim"))

_CAPACITY = AttributeContract("capacity", "int", "most positions of one batch element, in [1, 2**24]")
_N_KV_HEADS = AttributeContract("n_kv_heads", "int", "KV heads; n_heads is a multiple of it")
_CACHE_NAME = AttributeContract("cache_name", "string", "not empty; operators of one name share one KV cache")

#: one decode step: where active[b] is not 0, append key[b], value[b] to row b; then attend to what every row
#: holds
DENSE_DECODE = OpContract(
    "DenseDecode",
    inputs=(_QUERY, _KEY, _VALUE, _ACTIVE),
    outputs=(_OUTPUT,),
    attributes=(_CAPACITY, _N_KV_HEADS, _CACHE_NAME),
)

#: the same with SparQ attention
SPARQ_DECODE = OpContract(
    "SparqDecode",
    inputs=(_QUERY, _KEY, _VALUE, _ACTIVE),
    outputs=(_OUTPUT,),
    attributes=(
        AttributeContract("rank", "int", "in [1, head_dim]"),
        AttributeContract("top_k", "int", "at least 1"),
        AttributeContract("n_local", "int", "in [0, top_k]"),
        AttributeContract("mean_value", "int", "0 or 1"),
        _CAPACITY,
        _N_KV_HEADS,
        _CACHE_NAME,
    ),
)

#: prefill: row b then holds the first lengths[b] tokens of key[b], value[b] and nothing else (0 empties it);
#: -1 leaves row b as it is. lengths_out: positions held afterwards, which later operators on the cache should
#: depend on: it orders them
CACHE_FILL = OpContract(
    "CacheFill",
    inputs=(
        TensorContract("key", "FLOAT16", ("batch", "n_kv_heads", "n_tokens", "head_dim")),
        TensorContract("value", "FLOAT16", ("batch", "n_kv_heads", "n_tokens", "head_dim")),
        TensorContract("lengths", "INT32", ("batch",)),
    ),
    outputs=(TensorContract("lengths_out", "INT32", ("batch",)),),
    attributes=(_CAPACITY, _CACHE_NAME),
)

#: every operator
OPS = (SPARQ_DECODE, DENSE_DECODE, CACHE_FILL)


def arguments(
    op: OpContract, inputs: Sequence[Any], example_outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> dict:
    """Keyword arguments of `poptorch.custom_op` for one call, checked against the table.

    Args:
        inputs, example_outputs: tensors in the order of the table, with `dtype` and `shape`.
        attributes: by name; a bool counts as int, and travels as 0 or 1.

    Returns:
        inputs, name, domain, domain_version, example_outputs, attributes.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`.
    """
    sizes: dict = {}
    for kind, contracts, tensors in (
        ("inputs", op.inputs, inputs),
        ("example_outputs", op.outputs, example_outputs),
    ):
        if len(tensors) != len(contracts):
            names = ", ".join(contract.name for contract in contracts)
            checks.fail(op.name, kind, f"be {len(contracts)} tensors ({names})", len(tensors))
        for contract, tensor in zip(contracts, tensors):
            _check_tensor(op, contract, tensor, sizes)
    return {
        "inputs": list(inputs),
        "name": op.name,
        "domain": DOMAIN,
        "domain_version": VERSION,
        "example_outputs": list(example_outputs),
        "attributes": _checked_attributes(op, attributes),
    }


def _check_tensor(op: OpContract, contract: TensorContract, tensor: Any, sizes: dict) -> None:
    dtype = str(tensor.dtype).replace("torch.", "").upper()
    if dtype != contract.dtype:
        checks.fail(op.name, contract.name, f"be {contract.dtype.lower()}", dtype.lower())
    shape = tuple(tensor.shape)
    matches = len(shape) == len(contract.shape) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(contract.shape, shape)
    )
    if not matches:
        axes = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in contract.shape)
        checks.fail(op.name, contract.name, f"have shape ({axes})", shape)


def _checked_attributes(op: OpContract, attributes: Mapping[str, Any]) -> dict:
    names = [attribute.name for attribute in op.attributes]
    if set(names) != set(attributes):
        checks.fail(op.name, "attributes", f"be {', '.join(names)}", ", ".join(attributes))
    checked = {}
    for attribute in op.attributes:
        value = attributes[attribute.name]
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, ATTRIBUTE_TYPES[attribute.type]):
            checks.fail(op.name, attribute.name, f"be of type {attribute.type}", repr(value))
        if attribute.type == "string" and not (value and value.isascii()):
            # PopART takes an empty string for a missing attribute, PopTorch takes ASCII only
            checks.fail(op.name, attribute.name, "be a string of ASCII characters, not empty", repr(value))
        checked[attribute.name] = value
    return checked
