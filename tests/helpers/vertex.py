# SPDX-License-Identifier: Apache-2.0
"""Runs one vertex alone on an emulated tile, and says what else the tests of codelets share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bits import assert_bits as assert_bits

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

#: what the emulator fills an Output with before the vertex runs: a vertex that writes too little shows
POISON = np.uint32(0x7FADBEAD).view(np.float32)
HALF_POISON = np.uint16(0x7CBD).view(np.float16)
WORD_POISON = np.uint32(0xBAADF00D)


def run_on(device: str, name: str, fields: dict[str, Any], settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every field of a vertex after it ran."""
    probe = _core.VertexProbe(f"sparq::{name}", fields, settings, device=device)
    probe.run()
    return dict(probe.arrays())


def run(name: str, fields: dict[str, Any], **settings: Any) -> dict[str, np.ndarray]:
    """Every field of vertex sparq::`name` after it ran, in the shape it was given in."""
    shapes = {field: np.asarray(array).shape for field, array in fields.items()}
    results = run_on("emulator", name, {f: np.asarray(a) for f, a in fields.items()}, settings)
    return {field: np.asarray(array).reshape(shapes[field]) for field, array in results.items()}


def floats(*shape: int) -> np.ndarray:
    """An output buffer."""
    return np.full(shape, POISON)


def halves(*shape: int) -> np.ndarray:
    """An output buffer."""
    return np.full(shape, HALF_POISON)


def words(*shape: int) -> np.ndarray:
    """An output buffer."""
    return np.full(shape, WORD_POISON)


def word(value: int) -> np.ndarray:
    """A scalar edge."""
    return np.array(value, np.uint32)


def in_order(layout: Layout, by_part: np.ndarray, unit: int) -> np.ndarray:
    """Numbers that parts have for every `unit` positions, (parts, ..., n_local / unit) -> (..., all),
    ascending by position: by segment, then part that has the segment, then unit."""
    per_wave, in_waves = layout.length // unit, layout.n_waves * layout.length // unit
    pieces = [
        by_part[part, ..., wave * per_wave : (wave + 1) * per_wave]
        for wave in range(layout.n_waves)
        for part in range(layout.n_wave_parts)
    ]
    if layout.tail_length:
        pieces += [by_part[part, ..., in_waves:] for part in range(layout.tail_first, layout.n_parts)]
    return np.concatenate(pieces, axis=-1)


class Layout:
    """Where positions lie: the Python twin of codelets/segments.hpp, written from its comment alone."""

    def __init__(
        self,
        n_parts: int,
        stride: int,
        length: int,
        n_waves: int,
        tail_length: int,
        tail_first: int,
        chunk: int,
        filled: int,
    ):
        self.n_parts, self.stride, self.length, self.n_waves = n_parts, stride, length, n_waves
        self.tail_length, self.tail_first, self.chunk, self.filled = tail_length, tail_first, chunk, filled
        self.flushed = filled - filled % chunk
        self.part_positions = n_waves * length + tail_length
        self.n_wave_parts = -(-stride // length)

    def position(self, part: int, local: int) -> int | None:
        """The position at index `local` of a part's arrays; None if there is none."""
        if local < self.n_waves * self.length:
            wave, offset = divmod(local, self.length)
            p = wave * self.stride + part * self.length + offset
            return p if part * self.length + offset < self.stride and p < self.flushed else None
        if part < self.tail_first:
            return None
        p = self.flushed + (part - self.tail_first) * self.tail_length + local - self.n_waves * self.length
        return p if p < self.filled else None

    def settings(self, part: int) -> dict[str, int]:
        return dict(self.common(), part=part)

    def common(self) -> dict[str, int]:
        return dict(
            stride=self.stride,
            length=self.length,
            nWaves=self.n_waves,
            tailLength=self.tail_length,
            tailFirst=self.tail_first,
            chunk=self.chunk,
        )

    def spread(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """(..., filled) by position -> (parts, ..., n_local) by part, `fill` where there is no position."""
        out = np.full((self.n_parts, *values.shape[:-1], self.part_positions), fill, values.dtype)
        for part in range(self.n_parts):
            for local in range(self.part_positions):
                p = self.position(part, local)
                if p is not None:
                    out[part, ..., local] = values[..., p]
        return out


#: one part; a tail beside the waves; parts with less than others, or nothing; dense (no tail)
LAYOUTS = (
    Layout(1, 128, 128, 1, 64, 0, 64, 150),
    Layout(3, 256, 128, 2, 128, 1, 256, 650),
    Layout(4, 128, 64, 3, 64, 2, 128, 3 * 128 + 77),
    Layout(2, 192, 128, 3, 0, 0, 1, 411),
    Layout(2, 64, 64, 2, 64, 1, 64, 1),
)
