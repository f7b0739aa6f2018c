# SPDX-License-Identifier: Apache-2.0
"""The contract of Python and the PopART operators (poplar_ops/popart): names, tensors and attributes, in one
table.

The settings and the options of the cache are attributes. Their names, types, limits and defaults are those of
`SparqSettings`, `CacheSpec` and `DeviceOptions`.

Needs neither torch nor PopTorch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from sparq_ipu.device_options import DeviceOptions, check_choice
from sparq_reference import checks
from sparq_reference.settings import CacheSpec, SparqSettings

#: ONNX domain and version of every operator
DOMAIN = "ai.sparq"
VERSION = 1

#: memories of an operator's cache, the default first: those of `sparq_ipu.KVCache` without "sram"
MEMORIES = ("streaming", "tiered")

#: type of a field -> attribute type; PopTorch has no boolean attribute, so flags are int 0 or 1
_FIELD_TYPES = {"int": "int", "bool": "int", "str": "string"}


@dataclasses.dataclass(frozen=True)
class TensorContract:
    """A tensor of an operator: its name, PopART data type and symbolic shape. One that is optional is the
    last, and may be left out."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class AttributeContract:
    """An attribute of an operator: its name and its type, "int" or "string".

    An option of the cache has a default. A call always passes it on.
    """

    name: str
    type: str
    default: int | str | None = None


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
#: lengths_out of the operator before it on the cache, or any tensor: it orders the operators by data, and its
#: values are not read.
_HELD = TensorContract("held", "INT32", ("batch",), optional=True)
#: positions held after the operator
_LENGTHS_OUT = TensorContract("lengths_out", "INT32", ("batch",))
_OUTPUT = TensorContract("output", "FLOAT16", ("batch", "n_heads", "head_dim"))


def _attributes(described_by: type, *names: str) -> tuple[AttributeContract, ...]:
    """Fields of a dataclass as attributes: those named, or all of them."""
    types = {field.name: _FIELD_TYPES[str(field.type)] for field in dataclasses.fields(described_by)}
    return tuple(AttributeContract(name, types[name]) for name in names or types)


_SETTINGS = _attributes(SparqSettings)


def _with_defaults(described_by: type, *names: str) -> tuple[AttributeContract, ...]:
    """The same with their defaults; a class attribute of a dataclass is the default of its field."""
    return tuple(
        dataclasses.replace(attribute, default=getattr(described_by, attribute.name))
        for attribute in _attributes(described_by, *names)
    )


#: of the cache
_OF_SPEC = _with_defaults(CacheSpec, *CacheSpec.options())
_OF_DEVICE = _with_defaults(DeviceOptions, "memory", "hot_rows")
_OPTIONS = (*_OF_SPEC, *_OF_DEVICE)
#: of the cache: batch and head_dim come with the shapes of the inputs
_CACHE_OF_DECODE = (*_attributes(CacheSpec, "capacity", "n_kv_heads"), *_OPTIONS)
_CACHE_OF_FILL = (*_attributes(CacheSpec, "capacity"), *_OPTIONS)
#: ASCII, not empty; operators of one name share one KV cache
_CACHE_NAME = AttributeContract("cache_name", "string")

#: One decode step. Where active[b] is not 0, it appends key[b], value[b] to row b. Then it attends to all
#: that each row holds. lengths_out: positions held afterwards.
DENSE_DECODE = OpContract(
    "DenseDecode",
    inputs=(_QUERY, _KEY, _VALUE, _ACTIVE, _HELD),
    outputs=(_OUTPUT, dataclasses.replace(_LENGTHS_OUT, optional=True)),
    attributes=(*_CACHE_OF_DECODE, _CACHE_NAME),
)

#: the same with SparQ attention
SPARQ_DECODE = OpContract(
    "SparqDecode",
    inputs=(_QUERY, _KEY, _VALUE, _ACTIVE, _HELD),
    outputs=(_OUTPUT, dataclasses.replace(_LENGTHS_OUT, optional=True)),
    attributes=(*_SETTINGS, *_CACHE_OF_DECODE, _CACHE_NAME),
)

#: Prefill. Row b then holds the first lengths[b] tokens of key[b], value[b] and nothing else: 0 empties it. A
#: length of -1 leaves row b as it is. lengths_out: positions held afterwards.
CACHE_FILL = OpContract(
    "CacheFill",
    inputs=(
        TensorContract("key", "FLOAT16", ("batch", "n_kv_heads", "n_tokens", "head_dim")),
        TensorContract("value", "FLOAT16", ("batch", "n_kv_heads", "n_tokens", "head_dim")),
        TensorContract("lengths", "INT32", ("batch",)),
        _HELD,
    ),
    outputs=(_LENGTHS_OUT,),
    attributes=(*_CACHE_OF_FILL, _CACHE_NAME),
)

#: Returns its input. PopART accepts operators of a domain in branches and loop bodies only if the main graph
#: contains one of that domain too: this one.
BEGIN = OpContract(
    "Begin",
    inputs=(dataclasses.replace(_HELD, optional=False),),
    outputs=(_LENGTHS_OUT,),
    attributes=(),
)

#: every operator
OPS = (SPARQ_DECODE, DENSE_DECODE, CACHE_FILL, BEGIN)


def take_options(op: str, options: dict[str, Any]) -> DeviceOptions:
    """Take the options of the cache's memory out of the keyword arguments.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`.
    """
    check_choice(op, "memory", options.get("memory", MEMORIES[0]), MEMORIES)
    return DeviceOptions(
        **{name: options.pop(name) for name in ("memory", "hot_rows") if name in options}, op=op
    )


def check_cache(
    op: str, spec: CacheSpec, options: DeviceOptions, settings: SparqSettings | None, dense: bool
) -> None:
    """Check that an operator can use such a cache. Settings are None if it takes none; `dense`: it attends
    to all positions.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`.
    """
    options.check_memory(op, spec)
    if dense:
        check_choice(op, "memory", options.memory, MEMORIES[:1])
    elif settings is not None:
        options.check_attention(op, spec, settings)


def attributes_of(
    op: OpContract,
    spec: CacheSpec,
    cache_name: str,
    settings: SparqSettings | None,
    options: DeviceOptions,
) -> dict[str, Any]:
    """The attributes of an operator on that cache, by name; settings are None where it takes none. They were
    checked when the objects were made."""
    known = {**dataclasses.asdict(spec), **dataclasses.asdict(options), "cache_name": cache_name}
    if settings is not None:
        known.update(settings.arguments())
    named = ((attribute.name, known[attribute.name]) for attribute in op.attributes)
    return {name: int(value) if isinstance(value, bool) else value for name, value in named}


def arguments(
    op: OpContract, inputs: Sequence[Any], example_outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments of `poptorch.custom_op` for one call, checked against the table.

    Args:
        inputs, example_outputs: tensors in the order of the table, with `dtype` and `shape`; optional ones
            may be left out.
        attributes: by name, as of `attributes_of`.

    Returns:
        inputs, name, domain, domain_version, example_outputs, attributes.

    Raises:
        ValueError: `<op>: <argument> must <rule>, got <value>`.
    """
    sizes: dict[str, int] = {}
    for kind, contracts, tensors in (
        ("inputs", op.inputs, inputs),
        ("example_outputs", op.outputs, example_outputs),
    ):
        least = sum(not contract.optional for contract in contracts)
        if not least <= len(tensors) <= len(contracts):
            names = ", ".join(contract.name for contract in contracts)
            number = f"{least} or {len(contracts)}" if least < len(contracts) else f"{least}"
            checks.fail(op.name, kind, f"be {number} tensors ({names})", len(tensors))
        for contract, tensor in zip(contracts, tensors):
            _check_tensor(op, contract, tensor, sizes)
    return {
        "inputs": list(inputs),
        "name": op.name,
        "domain": DOMAIN,
        "domain_version": VERSION,
        "example_outputs": list(example_outputs),
        "attributes": dict(attributes),
    }


def _check_tensor(op: OpContract, contract: TensorContract, tensor: Any, sizes: dict[str, int]) -> None:
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
