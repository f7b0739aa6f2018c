# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls that are a text for each parameter, not one JSON object: the form of Qwen3-Coder."""

from __future__ import annotations

import json
from typing import Any

from sparq_ipu.serve.schemas import Invalid

_BEGIN, _AFTER, _END = "<parameter=", ">\n", "\n</parameter>\n"
#: of objects, what this form can keep; and of texts
_OF_OBJECTS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "maxProperties",
}
_OF_TEXTS = {"type", "minLength", "maxLength", "enum"}
_ABOUT = {"title", "description", "default", "examples", "$schema", "$id", "x-guidance"}


def _resolved(schema: Any, root: dict[str, Any]) -> Any:
    """Without a reference into the same schema."""
    seen: set[str] = set()
    while isinstance(schema, dict) and str(schema.get("$ref", "")).startswith("#/"):
        if schema["$ref"] in seen:
            raise Invalid(f"tools: $ref must end at a schema, got a circle with {schema['$ref']!r}", "tools")
        seen.add(schema["$ref"])
        found: Any = root
        for name in schema["$ref"][2:].split("/"):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        schema = found
    return schema


def _text_of(schema: Any, root: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a parameter that is written as it is, without quotes; None: one that is JSON."""
    found = _resolved(schema, root)
    if not isinstance(found, dict) or set(found) - _OF_TEXTS - _ABOUT:
        return None
    values = found.get("enum")
    is_text = found.get("type") == "string" if values is None else all(isinstance(v, str) for v in values)
    return found if is_text else None


def rules_of(at: int, schema: dict[str, Any]) -> list[str]:
    """Rules of llguidance for the arguments of call `at`; schemas that parameters cannot keep are refused."""
    other = sorted(set(schema) - _OF_OBJECTS - _ABOUT)
    named = schema.get("properties", {})
    required = set(schema.get("required", ()))
    refused = {
        ", ".join(other): bool(other),
        "names with '>'": any(">" in name for name in named),
        "maxProperties below the number of properties": schema.get("maxProperties", len(named)) < len(named),
        "required names without properties": not required <= set(named),
    }
    words = next((words for words, is_there in refused.items() if is_there), None)
    if words is not None:
        raise Invalid(f"tools: the model's template takes no {words} in parameters", "tools")
    end, parts, rules = json.dumps(_END), [], []
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    for n, (name, of) in enumerate(named.items()):
        rule, begin = f"par_{at}_{n}", json.dumps(_BEGIN + name + _AFTER)
        parts.append(rule if name in required else f"{rule}?")
        text = _text_of(of, schema)
        if text is None:
            made = {**shared, **of} if isinstance(of, dict) else of
            rules += [f"val_{at}_{n}: %json {json.dumps(made)}", f"{rule}: {begin} val_{at}_{n} {end}"]
        elif "enum" in text:
            values = " | ".join(json.dumps(value) for value in text["enum"])
            rules.append(f"{rule}: {begin} ({values}) {end}")
        else:
            least, most = text.get("minLength", 0), text.get("maxLength", "")
            rules += [
                f"{rule}: {begin} val_{at}_{n}",
                f"val_{at}_{n}[lazy]: /(.|\\n){{{least},{most}}}/ {end}",
            ]
    return [f"args_{at}: {' '.join(parts)}" if parts else f'args_{at}: ""', *rules]


def arguments_of(text: str, end: str, schema: dict[str, Any]) -> tuple[str, str] | None:
    """The arguments that a text begins with as JSON, and the text behind `end`; None: more is to come.

    Texts are taken as they are, up to the first end of a parameter behind `minLength`, as the rules have it.
    """
    named = schema.get("properties", {})
    found: dict[str, Any] = {}
    while text.startswith(_BEGIN):
        name, _, rest = text[len(_BEGIN) :].partition(_AFTER)
        of_text = _text_of(named.get(name), schema)
        at = rest.find(_END, 0 if of_text is None else of_text.get("minLength", 0))
        if at < 0:
            return None
        found[name] = value = rest[:at]
        text = rest[at + len(_END) :]
        if of_text is None:
            try:
                found[name] = json.loads(value)
            except ValueError:
                pass
    return (json.dumps(found, ensure_ascii=False), text[len(end) :]) if text.startswith(end) else None
