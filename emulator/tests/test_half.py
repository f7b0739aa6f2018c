# SPDX-License-Identifier: Apache-2.0
"""Conversions between half and float, exhaustively, against NumPy."""

from __future__ import annotations

import numpy as np


def narrowed(x: np.ndarray) -> np.ndarray:
    """float16 words by the IPU's rules: nearest even, overflow saturates, NaN is 0x7e00 with its sign."""
    with np.errstate(over="ignore", invalid="ignore"):
        h = np.clip(x, -65504, 65504).astype(np.float16)
    words = h.view(np.uint16).copy()
    nan = np.isnan(x)
    words[nan] = 0x7E00 | (np.signbit(x[nan]).astype(np.uint16) << 15)
    return words


def run(programs, mode: str, x: np.ndarray) -> np.ndarray:
    return np.frombuffer(programs.run("half", mode, stdin=x.tobytes(), text=False), np.uint16)


def test_every_half_widens_exactly(programs):
    halves = np.arange(65536, dtype=np.uint16)
    got = np.frombuffer(programs.run("half", "widen", text=False), np.uint32)
    # NumPy sets the quiet bit of NaNs; the IPU keeps the payload: compare those by their bits
    nan = np.isnan(halves.view(np.float16))
    want = halves.view(np.float16).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(got[~nan], want[~nan])
    sign, payload = halves[nan].astype(np.uint32) >> 15, halves[nan].astype(np.uint32) & 0x3FF
    np.testing.assert_array_equal(got[nan], sign << 31 | 0xFF << 23 | payload << 13)


def test_every_half_survives_the_round_trip(programs):
    halves = np.arange(65536, dtype=np.uint16)
    finite = halves[np.isfinite(halves.view(np.float16))]
    got = run(programs, "narrow", finite.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(got, finite)


def test_rounding_at_every_midpoint(programs):
    positive = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = ((positive[:-1] + positive[1:]) / 2).astype(np.float32)  # exact in float32
    x = np.concatenate(
        [midpoints, np.nextafter(midpoints, np.float32(0)), np.nextafter(midpoints, np.float32(1e9))]
    )
    x = np.concatenate([x, -x])
    np.testing.assert_array_equal(run(programs, "narrow", x), narrowed(x))


def test_overflow_saturates_and_nan_stays(programs):
    big = np.float32([65504, 65519.99, 65520, 65536, 1e30, np.inf, np.nan, 3.4e38])
    x = np.concatenate([big, -big, np.float32([0, -0.0, 1e-45, 2**-25, 2**-24, 1.5 * 2**-24, 2**-26])])
    got = run(programs, "narrow", x)
    np.testing.assert_array_equal(got, narrowed(x))
    assert got[5] == 0x7BFF and got[6] == 0x7E00  # infinity saturates, NaN does not


def test_random_bit_patterns(programs):
    x = np.random.default_rng(1).integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(run(programs, "narrow", x), narrowed(x))


def test_doubles_round_once(programs):
    rng = np.random.default_rng(2)
    positive = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = (positive[:-1] + positive[1:]) / 2
    x = np.concatenate(
        [midpoints, np.nextafter(midpoints, 0), np.nextafter(midpoints, 1e9), rng.standard_normal(10000)]
    )
    got = run(programs, "narrow-double", x)
    with np.errstate(over="ignore"):
        want = np.clip(x, -65504, 65504).astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(got, want)
    # control: rounding through float32 is a different function on these inputs
    assert (x.astype(np.float32).astype(np.float16).view(np.uint16) != want).any()


def test_sizes_of_types_and_units_of_a_tile(programs):
    assert programs.run("half", "target").split() == "1 1 2 4 16 8 0 16".split()
