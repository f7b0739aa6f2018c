# SPDX-License-Identifier: Apache-2.0
"""Tokens of a conversation, as a model's template for chats writes it."""

from __future__ import annotations

import re
from typing import Any, Callable, Sequence


def chat_tokens(
    tokenizer: Any, messages: Sequence[dict[str, Any]], given: dict[str, Any] | None = None
) -> list[int]:
    """Those of `apply_chat_template(messages, add_generation_prompt=True, tokenize=True)`, but special tokens
    that a message spells out stay text: nobody can end their own turn and begin another's.

    Args:
        tokenizer: of transformers.
        given: more that the template takes, such as `tools`.
    """
    mark, (messages, given) = _marked(tokenizer, [list(messages), given or {}])
    rendered = _rendered(tokenizer, messages, given)
    marks = [at.start() - before for before, at in enumerate(re.finditer(mark, rendered))]
    text = rendered.replace(mark, "")
    # the template writes the token that begins a text, where the model has one
    if not marks:
        return list(tokenizer(text, add_special_tokens=False).input_ids)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("messages must not contain special tokens of the model")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    tokens: list[int] = []
    for token, (begin, end) in zip(encoded.input_ids, encoded.offset_mapping):
        if token in special and any(begin < at <= end for at in marks):
            as_text = tokenizer(text[begin:end], add_special_tokens=False, split_special_tokens=True)
            tokens += as_text.input_ids
        else:
            tokens.append(token)
    return tokens


def _marked(tokenizer: Any, parts: list[Any]) -> tuple[str, list[Any]]:
    """A character that no text contains, and the parts with it after the first character of each special
    token that they spell out."""
    texts = [str(tokenizer.chat_template)]
    _each_text(parts, lambda text: texts.append(text) or text)  # type: ignore[func-returns-value]
    used = set().union(*texts)
    mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    special = sorted((str(token) for token in added if token.special), key=len, reverse=True)
    if not special:
        return mark, parts
    found = re.compile("|".join(map(re.escape, special)))
    return mark, _each_text(
        parts, lambda text: found.sub(lambda match: match[0][0] + mark + match[0][1:], text)
    )


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of lists and dictionaries with each text in them changed, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_each_text(name, change): _each_text(part, change) for name, part in value.items()}
    return [_each_text(part, change) for part in value] if isinstance(value, (list, tuple)) else value


def _rendered(tokenizer: Any, messages: Sequence[dict[str, Any]], given: dict[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        how: dict[str, Any] = {**given, "add_generation_prompt": True, "tokenize": False}
        text: str = tokenizer.apply_chat_template(list(messages), **how)
    except TemplateError as error:  # of the order of roles, say
        raise ValueError(f"messages must fit the model's template: {str(error)[:500]}") from None
    except Exception as error:  # of a template that does not expect such a message
        raise ValueError(f"messages must fit the model's template ({type(error).__name__})") from None
    return text
