# SPDX-License-Identifier: Apache-2.0
"""Columns and positions.

transformers counts columns: real tokens and padding, the same number in every row of the batch. A
`sparq_ipu.KVCache` counts positions: real tokens only, and each row has its own number. So a padded row is
decoded as if it were alone.
"""

from __future__ import annotations

import copy

import torch

from sparq_reference import checks


class RealColumns:
    """Which columns hold real tokens: none yet.

    Args:
        batch: rows.
        room: columns that there is memory for; more is made by doubling.
    """

    def __init__(self, batch: int, room: int):
        #: (batch, room) bool; beyond `n_columns` too
        self._flags = torch.ones((batch, room), dtype=torch.bool)
        #: columns from here on were never anything but real: of them a step writes nothing, and reads nothing
        self._real_from = 0
        #: columns so far
        self.n_columns = 0

    @property
    def flags(self) -> torch.Tensor:
        """(batch, n_columns) bool: a view."""
        return self._flags[:, : self.n_columns]

    @property
    def is_all_real(self) -> bool:
        """No column is padding in any row."""
        return bool(self.flags[:, : self._real_from].all())

    def starts(self) -> list[int] | None:
        """Columns of padding before the text of each row; None where padding is behind a text or in it."""
        if self.is_all_real:
            return [0] * len(self._flags)
        starts = (~self.flags).sum(1)
        is_left = torch.equal(self.flags, torch.arange(self.n_columns) >= starts[:, None])
        return starts.tolist() if is_left else None

    def append(self, real: torch.Tensor | None, n_tokens: int) -> None:
        """Add columns: which are real, (batch, n_tokens) bool; None: all."""
        start, stop = self.n_columns, self.n_columns + n_tokens
        if stop > self._flags.shape[1]:
            grown = torch.ones((len(self._flags), max(stop, 2 * self._flags.shape[1])), dtype=torch.bool)
            grown[:, :start] = self.flags
            self._flags = grown
        if real is not None:
            self._flags[:, start:stop] = real
            self._real_from = max(self._real_from, stop)
        elif start < self._real_from:  # what was cropped may have been padding
            self._flags[:, start:stop] = True
        self.n_columns = stop

    def check_mask(self, mask: torch.Tensor | None, n_tokens: int, window: int | None = None) -> None:
        """Whether a mask (batch, 1, n_tokens, n_columns), bool or added to scores, shows each of the last
        tokens all real columns of the window up to its own and no others, as `attend` does.

        Raises:
            ValueError: it does not: it is one of the model's own.
        """
        if mask is None:
            return
        shown = mask if mask.dtype == torch.bool else mask == 0
        n = self.n_columns
        back = torch.arange(n - n_tokens, n)[:, None] - torch.arange(n)
        causal = (back >= 0) & (back < (n if window is None else window))
        expected = (self.flags[:, None] & causal)[:, None]
        if shown.shape[1:] != expected.shape[1:] or not bool((shown == expected).all()):
            got = "one of the model that hides others"
            checks.fail("sparq_attention", "attention_mask", "show a token all real tokens before it", got)

    def check_hidden(self, real: torch.Tensor) -> None:
        """Whether `real` (batch, n_columns) can take the place of `flags`.

        Raises:
            ValueError: a column that was not real would be again: its key and value are gone.
        """
        shown = real & ~self.flags
        if bool(shown.any()):
            row, column = shown.nonzero()[0].tolist()
            rule = "keep hidden what it hid of the tokens in the cache"
            checks.fail("sparq_attention", "attention_mask", rule, f"1 for token {column} of row {row}")

    def replace(self, real: torch.Tensor) -> None:
        """Other flags, (batch, n_columns) bool, for the same columns."""
        self.flags[:] = real
        self._real_from = max(self._real_from, self.n_columns)

    def select(self, index: torch.Tensor) -> RealColumns:
        """The rows `index`, in that order, as columns of their own."""
        selected = copy.copy(self)
        selected._flags = self._flags[index]
        return selected


def to_positions(real: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The real tokens of each row, moved to the front in their order. Padding stands anywhere, mostly left.

    Args:
        real: (batch, n_columns) bool.
        tensors: (batch, n_kv_heads, n_columns, head_dim) each.

    Returns:
        (batch, n_kv_heads, most, head_dim) each, `most` being the largest number of real tokens in a row;
        entries beyond a row's own number have no meaning.
    """
    most = int(real.sum(dim=1).max())
    order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, None, :most, None]
    return [rows.gather(2, order.expand(-1, rows.shape[1], -1, rows.shape[3])) for rows in tensors]


def to_columns(rows: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The inverse of `to_positions`: every token at its column, 0 where padding is."""
    if bool(real.all()):
        return rows
    columns = torch.zeros((*rows.shape[:2], real.shape[1], rows.shape[3]), dtype=rows.dtype)
    for b, length in enumerate(real.sum(dim=1).tolist()):
        columns[b][:, real[b]] = rows[b, :, :length]
    return columns
