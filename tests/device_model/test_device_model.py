# SPDX-License-Identifier: Apache-2.0
"""The device model: one set of numbers in Python and in C++, the formulas."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from sparq_ipu import device_options
from sparq_ipu.backends import room
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_ipu.planning import device_model as models
from sparq_reference import CacheSpec, SparqSettings

#: bytes, packets, rows of remote copies on both sides of every limit of the formula
COPIES = [
    (256, 1, 1),
    (1024 * 512, 512, 512),
    (32768 * 512, 16384, 512),
    (65536 * 512, 32768, 512),
    (1024 * 1471, 1471, 1471),
    (1024 * 1472, 1472, 1472),
    (1 << 30, 1 << 20, 1),
]


@pytest.fixture(scope="module")
def core():
    core = pytest.importorskip("sparq_ipu._core")
    if not core.has_emulator:
        pytest.skip("built without the emulator")
    return core


def test_cpp_has_the_numbers_of_the_data_file(core):
    assert core.emulator_device_model() == models.device_model("bow").parameters()


def test_an_unknown_parameter_is_refused(core):
    with pytest.raises(
        ValueError, match=r"device_model: model must have only known parameters, got .*'wings'"
    ):
        core.emulator_streaming_seconds(1, 1, 1, {"wings": 2})


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("copy", COPIES)
def test_cpp_and_python_have_one_formula(core, name, copy):
    model = models.device_model(name)
    assert core.emulator_streaming_seconds(*copy, model.parameters()) == pytest.approx(
        model.streaming_seconds(*copy), rel=1e-14
    )


def test_streaming_seconds_by_hand():
    model = dataclasses.replace(
        models.device_model("bow"),
        tiles=100,
        streaming_bytes_per_second=1e9,
        packet_overhead_bytes=10.0,
        remote_copy_seconds=1e-6,
        shared_row_penalty=0.5,
        shared_row_knee_bytes=1000.0,
    )
    assert model.streaming_seconds(1000, 1, 1) == pytest.approx(1010e-9 + 1e-6)
    assert model.streaming_seconds(100 * 2000, 200, 100) == pytest.approx(202000e-9 + 1e-6)  # a tile a row
    # 75 rows of 500 bytes on 100 tiles: 0.5 * (500 / 1000) * sqrt(0.25)
    assert model.shared_rows(75 * 500, 75) == pytest.approx(0.125)
    assert model.shared_rows(75 * 4000, 75) == pytest.approx(0.25)  # no more beyond the knee
    assert model.streaming_seconds(75 * 500, 75, 75) == pytest.approx((37500 * 1.125 + 750) * 1e-9 + 1e-6)


def test_gc200_scales_with_the_clock_as_said():
    bow, gc200 = models.device_model("bow"), models.device_model("gc200")
    ratio = gc200.clock_hz / bow.clock_hz
    assert ratio == pytest.approx(1.33 / 1.85)
    assert gc200.streaming_bytes_per_second == pytest.approx(bow.streaming_bytes_per_second * ratio)
    changed = {"name", "clock_hz", "streaming_bytes_per_second"}
    assert {f for f, v in dataclasses.asdict(gc200).items() if v != getattr(bow, f)} == changed


def test_seconds_of_every_step_by_hand(core):
    """What the emulator counted times the parameters: each kind of step, also in loops, and their sum."""
    spec = CacheSpec(1, 1, 64, 9000)
    attention = [Attention("sparq-streaming", SparqSettings(32, 100))]
    session = core.Session(spec, 1, attention=attention, options=DeviceOptions(2))
    rows = np.ones((1, 1, 9000, 64), np.float16)
    session.write(rows, rows, [9000])
    session.attention(0, np.ones((1, 1, 64), np.float16))
    bow = models.device_model("bow")
    for model in (bow, dataclasses.replace(bow, **{k: 2 * v for k, v in bow.parameters().items()})):
        check_seconds(core.emulator_last_run(session, model.parameters()), model)
    # each parameter of one IPU counts by itself
    seconds = core.emulator_last_run(session, bow.parameters())["seconds"]
    for name, value in bow.parameters().items():
        changed = core.emulator_last_run(session, {**bow.parameters(), name: 2 * value})["seconds"]
        assert (changed == seconds) == name.startswith(("link_", "host_stream_")), name


def check_seconds(run, model):
    for step in run["steps"]:
        n, kind = step["executions"], step["kind"]
        transfers = sum(
            math.ceil(
                math.ceil(step[f"busy_exchange_bytes_{when}"] / model.exchange_bytes_per_cycle)
                + model.exchange_piece_cycles * step[f"busy_exchange_pieces_{when}"]
            )
            for when in ("before", "after")
        ) + math.ceil(
            model.local_element_cycles * step["local_elements"]
            + step["local_bytes"] / model.local_bytes_per_cycle
        )
        computing = step["tile_cycles"] + model.compute_set_fixed_cycles if kind == "compute" else 0
        copy = (step["bytes"], step["packets"], step["rows"])
        expected = {
            "compute": n * computing / model.clock_hz,
            "exchange": n * (step["exchanges"] * model.exchange_fixed_cycles + transfers) / model.clock_hz,
            "sync": n * step["syncs"] * model.sync_cycles / model.clock_hz,
            "streaming": n * model.streaming_seconds(*copy) if kind.startswith("remote-") else 0.0,
            "host_streams": n * step["bytes"] / model.host_stream_bytes_per_second
            if kind.startswith("stream-")
            else 0.0,
        }
        for category, seconds in expected.items():
            assert step["seconds"][category] == pytest.approx(seconds, rel=1e-12), (step["name"], category)
    steps = run["steps"]
    for category, seconds in run["seconds"].items():
        assert seconds == pytest.approx(sum(s["seconds"][category] for s in steps), rel=1e-12)
    assert run["seconds"]["total"] == pytest.approx(
        sum(v for k, v in run["seconds"].items() if k != "total"), rel=1e-12
    )
    # each kind is there, and so is what would hide a mistake: loops, several syncs, bytes of the host
    assert {s["kind"] for s in steps} >= {"compute", "remote-read"}
    assert any(s["executions"] > 1 for s in steps if s["kind"] == "remote-read")


def test_rooms_of_a_cache_are_those_of_the_model() -> None:
    """What a cache on an emulated IPU is checked against is known without the model."""
    bow = models.device_model()
    assert (bow.tiles, bow.tile_bytes) == (device_options.MAX_TILES, room.TILE_BYTES)
    assert bow.streaming_memory_bytes == room.STREAMING_MEMORY_BYTES
