# SPDX-License-Identifier: Apache-2.0
"""The options of a device: one frozen object, whose fields are checked when it is made, and against a cache
without making one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from calls import refusal

from sparq_ipu.device_options import DeviceOptions, Share
from sparq_reference import CacheSpec, SparqSettings, WindowSettings

SPEC = CacheSpec(2, 4, 16, 64)
SPARQ, WINDOW, STRIDED = SparqSettings(8, 24), WindowSettings(9), WindowSettings(9, n_recent=0)


def test_fields_are_checked_and_stay() -> None:
    options = DeviceOptions(np.int64(4), "tiered", hot_rows=np.uint8(9))  # type: ignore[arg-type]
    assert options == DeviceOptions(4, "tiered", hot_rows=9) and type(options.n_tiles) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.n_tiles = 5  # type: ignore[misc]
    assert dataclasses.replace(options, n_ipus=2) == DeviceOptions(4, "tiered", 2, hot_rows=9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(memory="dram"), "memory must be 'streaming' or 'sram' or 'tiered', got 'dram'"),
        (dict(memory=["sram"]), "memory must be 'streaming' or 'sram' or 'tiered', got ['sram']"),
        (dict(hot_rows=65537), "hot_rows must be in [0, 65536], got 65537"),
        (dict(hot_rows=True), "hot_rows must be an integer in [0, 65536], got True"),
        (dict(n_tiles=1473), "n_tiles must be in [0, 1472], got 1473"),
        (dict(n_ipus=0), "n_ipus must be in [1, 64], got 0"),
        (dict(n_ipus=128), "n_ipus must be in [1, 64], got 128"),
        (dict(n_ipus=12), "n_ipus must be a power of two up to 64, got 12"),
        (dict(split="rows"), "split must be 'layers' or 'heads', got 'rows'"),
    ],
)
def test_each_field_by_itself(change: dict[str, Any], message: str) -> None:
    assert refusal(DeviceOptions, **change, op="op") == f"op: {message}"


TIERED: dict[str, Any] = dict(memory="tiered")


@pytest.mark.parametrize(
    ("options", "spec", "n_layers", "settings", "message"),
    [
        (TIERED, {}, 1, SPARQ, "index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
        ({}, dict(row_bits=8), 1, SPARQ, "row_bits must be 16 unless memory is 'tiered', got 8"),
        (
            dict(hot_rows=400),
            {},
            1,
            SPARQ,
            "memory must be 'tiered' where hot rows are asked for, got 'streaming'",
        ),
        (dict(n_ipus=4), {}, 3, SPARQ, "n_ipus must be at most n_layers=3 where layers are split, got 4"),
        (
            dict(n_ipus=16, split="heads"),
            {},
            1,
            SPARQ,
            "n_ipus must split n_kv_heads=4, then batch=2, evenly, got 16",
        ),
        (dict(memory="sram"), {}, 1, SPARQ, "memory must be 'streaming' or 'tiered', got 'sram'"),
        (TIERED, dict(index_bits=4), 1, None, "memory must be 'sram' or 'streaming', got 'tiered'"),
        (
            dict(memory="tiered", hot_rows=23),
            dict(index_bits=4),
            1,
            SPARQ,
            "hot_rows must be 0 or at least top_k=24, got 23",
        ),
        (
            dict(n_ipus=2, split="heads"),
            {},
            1,
            WINDOW,
            "split must be 'layers' where heads of one history of window attention would be split, "
            "got 'heads'",
        ),
    ],
)
def test_what_a_cache_can_not_have(
    options: dict[str, Any], spec: dict[str, Any], n_layers: int, settings: Any, message: str
) -> None:
    check = DeviceOptions(**options).check
    assert refusal(check, "op", dataclasses.replace(SPEC, **spec), n_layers, [settings]) == f"op: {message}"


def test_what_a_cache_can_have() -> None:
    DeviceOptions().check("op", SPEC, 1, [SPARQ, WINDOW, None])
    DeviceOptions(memory="sram").check("op", SPEC, 1, [None])
    few = dataclasses.replace(SPEC, index_bits=4, row_bits=8)
    DeviceOptions(memory="tiered", hot_rows=24, n_ipus=2).check("op", few, 2, [SPARQ, WINDOW])
    DeviceOptions(n_ipus=2, split="heads").check("op", SPEC, 1, [SPARQ, STRIDED, None])
    DeviceOptions(n_ipus=2, split="heads").check("op", CacheSpec(2, 1, 16, 64), 1, [WINDOW])  # the batch


def test_shares() -> None:
    assert DeviceOptions(n_ipus=2).shares("op", SPEC, 3) == [Share(SPEC, 0, 2), Share(SPEC, 2, 1)]
    part = CacheSpec(1, 1, 16, 64)
    assert DeviceOptions(n_ipus=8, split="heads").shares("op", SPEC, 3) == [Share(part, 0, 3)] * 8
