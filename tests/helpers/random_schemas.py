# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas whose instances are short."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["a", "name", "é 😀", 'quo"ted', "back\\slash", "tags", "size", "x y"]


def schema_of(random: random.Random, depth: int = 3) -> dict[str, Any]:
    """Of any type."""
    kinds = ["string", "enum", "const", "integer", "number", "boolean", "null", "pattern", "format"]
    kind = random.choice(kinds + ["object", "array", "anyOf", "tuple"] * (2 if depth else 0))
    if kind == "string":
        low = random.randrange(3)
        return {"type": "string", "minLength": low, "maxLength": low + random.randrange(8)}
    if kind == "enum":
        return {"enum": random.sample(["a", "b", 'c"d', "é", 1, 2.5, None, True], random.randrange(1, 5))}
    if kind == "const":
        return {"const": random.choice(["x", 3, {"a": [1, "b"]}, [None], False])}
    if kind == "integer":
        low = random.randrange(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + random.randrange(100)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": random.randrange(1, 30), "multipleOf": 0.25}
    if kind == "pattern":
        return {"type": "string", "pattern": random.choice(["^[a-c]{2,4}$", "^\\d{3}-[A-Z]$", "^(ab|c)?d$"])}
    if kind == "format":
        return {"type": "string", "format": random.choice(["date", "time", "uuid", "ipv4"])}
    if kind == "anyOf":
        return {"anyOf": [schema_of(random, depth - 1) for _ in range(random.randrange(1, 4))]}
    if kind == "array":
        low = random.randrange(3)
        limits = {"minItems": low, "maxItems": low + random.randrange(3)}
        return {"type": "array", "items": schema_of(random, depth - 1), **limits}
    if kind == "tuple":
        parts = [schema_of(random, depth - 1) for _ in range(random.randrange(1, 3))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    return object_of(random, depth) if kind == "object" else {"type": kind}


def object_of(random: random.Random, depth: int = 3) -> dict[str, Any]:
    """Of objects, some with a definition that they refer to."""
    names = random.sample(NAMES, random.randrange(4))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema_of(random, depth - 1) for name in names},
        "required": [name for name in names if random.random() < 0.7],
        "additionalProperties": False,
    }
    return made


def root_of(random: random.Random) -> dict[str, Any]:
    """An object that refers to a definition, also within itself."""
    made = object_of(random)
    made["$defs"] = {"leaf": schema_of(random, 1)}
    made["properties"]["leaves"] = {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2}
    made["required"].append("leaves")
    return made
