# SPDX-License-Identifier: Apache-2.0
"""Calls that a test looks at, and that go on as before; and calls that are refused."""

from __future__ import annotations

from typing import Any, Callable

import pytest


def noted(monkeypatch: Any, of: Any, name: str, note: Callable[..., Any]) -> list[Any]:
    """What `note(result, *arguments)` says of each call of `of.name` from now on, but for None."""
    notes: list[Any] = []
    own = getattr(of, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = own(*arguments, **named)
        said = note(result, *arguments, **named)
        notes.extend([] if said is None else [said])
        return result

    monkeypatch.setattr(of, name, call)
    return notes


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """The words of the ValueError with which a call ends."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **named)
    return str(caught.value)
