# SPDX-License-Identifier: Apache-2.0
"""Calls that are refused."""

from __future__ import annotations

from typing import Callable

import pytest


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """The words of the ValueError with which a call ends."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **named)
    return str(caught.value)
