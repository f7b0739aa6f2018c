# SPDX-License-Identifier: Apache-2.0
"""Conversions of FP8 numbers, exhaustively, against the definition of the formats."""

from __future__ import annotations

import numpy as np
import pytest

FORMATS = {"F143": (0x80, 3, 8), "F152": (0, 2, 16)}  # the format's bit of the metadata, mantissa, bias
NAN = 0x80  # where a negative zero would be


def values(name: str, scale: int) -> np.ndarray:
    """All 256 codes' values."""
    _, mantissa, bias = FORMATS[name]
    code = np.arange(256)
    exponent, m = (code & 0x7F) >> mantissa, code & (2**mantissa - 1)
    x = np.where(exponent, m + 2.0**mantissa, m) * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa + scale)
    x = np.where(code & 0x80, -x, x)
    x[NAN] = np.nan
    return x


def metadata(name: str, scale: int) -> str:
    return str(FORMATS[name][0] | scale & 0x3F)


@pytest.mark.parametrize("scale", [-32, 0, 31])
@pytest.mark.parametrize("name", FORMATS)
def test_every_quarter_widens_exactly(programs, name, scale):
    got = np.frombuffer(programs.run("half", "quarter", metadata(name, scale), text=False), np.float64)
    np.testing.assert_array_equal(got, values(name, scale))


def narrowed(programs, name: str, scale: int, x, overflow: int = 0) -> np.ndarray:
    x = np.asarray(x, np.float64)
    out = programs.run(
        "half", "to-quarter", metadata(name, scale), str(overflow), stdin=x.tobytes(), text=False
    )
    return np.frombuffer(out, np.uint8)


@pytest.mark.parametrize("scale", [-32, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_rounding_at_every_midpoint(programs, name, scale):
    positive = values(name, scale)[:128]
    midpoints = (positive[:-1] + positive[1:]) / 2
    even = np.arange(127) + np.arange(127) % 2  # ties go to the even code
    np.testing.assert_array_equal(narrowed(programs, name, scale, positive), np.arange(128))
    np.testing.assert_array_equal(narrowed(programs, name, scale, midpoints), even)
    below, above = np.nextafter(midpoints, 0), np.nextafter(midpoints, np.inf)
    np.testing.assert_array_equal(narrowed(programs, name, scale, below), np.arange(127))
    np.testing.assert_array_equal(narrowed(programs, name, scale, above), np.arange(1, 128))
    negative = narrowed(programs, name, scale, -above)
    np.testing.assert_array_equal(negative, np.arange(1, 128) | 0x80)


@pytest.mark.parametrize("name", FORMATS)
def test_overflow_nan_and_zero(programs, name):
    greatest = values(name, 0)[127]
    half_step = (greatest - values(name, 0)[126]) / 2
    inside, outside = np.nextafter(greatest + half_step, 0), greatest + half_step
    x = [inside, outside, -outside, 1e300, np.inf, -np.inf, np.nan, -0.0, -1e-300]
    assert narrowed(programs, name, 0, x).tolist() == [127, 127, 255, 127, NAN, NAN, NAN, 0, 0]
    assert narrowed(programs, name, 0, x, 1).tolist() == [127, NAN, NAN, NAN, NAN, NAN, NAN, 0, 0]


def test_published_examples(programs):
    """Values and codes that comments and tests of PopLibs and PopART name."""
    x = [7.0, 7.25, 7.5, 7.75, 8.0, 8.5, 8.503906250, 9.0, 9.5, 0.75, 250.0]
    want = [0x56, 0x56, 0x57, 0x58, 0x58, 0x58, 0x59, 0x59, 0x5A, 0x3C, 0x7F]
    assert narrowed(programs, "F143", 0, x).tolist() == want
    assert narrowed(programs, "F152", 0, [0.25, 70000.0]).tolist() == [0x38, 0x7F]
    assert narrowed(programs, "F143", -1, [0.75]).tolist() == [0x44]
