# SPDX-License-Identifier: Apache-2.0
"""Kinds of errors that callers tell apart. All are ValueErrors, so code that knows no kinds needs none."""

from __future__ import annotations


class DoesNotFit(ValueError):
    """A program or a cache is larger than what a device has for it.

    Attributes:
        resource: what there is too little of: "tile memory", "streaming memory", "rows of streaming memory".
        need, room: in bytes, or rows; 0 where the device does not say.
    """

    def __init__(self, message: str, resource: str, need: int = 0, room: int = 0) -> None:
        super().__init__(message)
        self.resource = resource
        self.need = need
        self.room = room

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[str, str, int, int]]:
        return type(self), (str(self), self.resource, self.need, self.room)


class NotFinite(ValueError):
    """An argument holds NaN or infinity."""
