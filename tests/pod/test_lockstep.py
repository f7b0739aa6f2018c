# SPDX-License-Identifier: Apache-2.0
"""Heads on several IPUs: every step is one of all IPUs at once, and IPUs that need other branches, or more
waves than others, get the same bits."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vertex import _core, assert_bits

from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, SparqSettings, WindowSettings

SETTINGS = {
    "dense-streaming": None,
    "sparq-streaming": SparqSettings(rank=16, top_k=40, n_local=4),
    "sparq-tiered": SparqSettings(rank=8, top_k=40, n_local=4),
    "window-streaming": WindowSettings(24, 4, 3),
    "window-tiered": WindowSettings(24, 4, 0),
}
CASES = [(kernel, 4 if kernel.endswith("tiered") else 16) for kernel in SETTINGS] + [("sparq-streaming", 4)]
SOURCES = Path(__file__).resolve().parents[2] / "poplar_ops/src"


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def session_of(
    kernel: str, spec: CacheSpec, n_ipus: int, split: str = "heads", n_tiles: int = 8, **options: Any
) -> Any:
    setting = options.pop("setting", SETTINGS[kernel])
    return _core.Session(
        spec,
        2 * spec.n_kv_heads,
        attention=[Attention(kernel, setting)],
        options=DeviceOptions(n_tiles, n_ipus=n_ipus, split=split),
        **{"n_layers": 2, **options},
    )


def steps_of(session: Any) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = _core.emulator_last_run(session)["steps"]
    return steps


def on_some(steps: list[dict[str, Any]], n_ipus: int) -> set[str]:
    """Names of steps that some IPUs take without the others, but for copies that go on at once."""
    at_once: list[list[dict[str, Any]]] = []
    for step in steps:
        if not step["ipus"]:
            continue  # nothing in it
        if not step["beside"]:
            at_once.append([])
        at_once[-1].append(step)
    return {
        group[0]["name"]
        for group in at_once
        if sorted({ipu for step in group for ipu in step["ipus"]}) != list(range(n_ipus))
    }


@pytest.mark.parametrize(("kernel", "index_bits"), CASES)
def test_every_step_is_of_all_ipus(kernel: str, index_bits: int) -> None:
    if kernel == "window-streaming":  # a history is not split; see below
        spec = CacheSpec(4, 1, 16, 256, index_bits=index_bits)
    else:
        spec = CacheSpec(1, 4, 16, 256, index_bits=index_bits)
    rng = np.random.default_rng(1)
    key = numbers(rng, spec.batch, spec.n_kv_heads, 100, 16)
    token = [numbers(rng, spec.batch, spec.n_kv_heads, 1, 16)] * 2
    query = numbers(rng, spec.batch, 2 * spec.n_kv_heads, 16)
    times = {}
    for n_ipus, split in ((4, "heads"), (2, "layers")):
        session = session_of(kernel, spec, n_ipus, split)
        session.write(key, key, [100] * spec.batch, 1)
        programs = [(session.append, (*token, [1] * spec.batch, 1)), (session.attention, (0, query, 1))]
        for call, arguments in programs:
            call(*arguments)
            some = on_some(steps_of(session), n_ipus)
            if split == "heads":
                assert some == set()
            else:
                assert some != set()  # negative control: layers are on one IPU each
        session.attention(0, query, layer=1)
        times[split] = _core.emulator_last_run(session)["seconds"]
    # a quarter of the heads takes no longer than all of them: nothing waits for another IPU's turn
    assert times["heads"]["streaming"] <= times["layers"]["streaming"]
    assert times["heads"]["compute"] < 1.2 * times["layers"]["compute"]


@pytest.mark.parametrize(("kernel", "index_bits"), CASES)
def test_ipus_that_need_less_than_others(kernel: str, index_bits: int) -> None:
    """One batch element on each IPU: long or short, a chunk full or not, a clash or none, hot or cold."""
    spec = CacheSpec(2, 1, 64, 4096, index_bits=index_bits)
    of_all = dataclasses.asdict(spec)
    streams = kernel in ("dense-streaming", "sparq-streaming")
    setting = SETTINGS[kernel]
    if kernel == "sparq-streaming":  # of several waves
        setting = SparqSettings(rank=64, top_k=40, n_local=4)
    session = session_of(kernel, spec, 2, n_tiles=2 if streams else 8, setting=setting)
    references = [KVCache(**of_all, n_layers=2, device="reference").layer(i) for i in (0, 1)]
    rng = np.random.default_rng(7)
    waves = set()
    for layer, lengths in enumerate(([4000, 63], [9, 4031])):
        key, value = (numbers(rng, 2, 1, max(lengths), 64) for _ in "kv")
        key[layer, :, 5:] = key[layer, :, 5:6]  # ties: of one element the selection begins again
        session.write(key, value, lengths, layer)
        references[layer].append(key, value, np.array(lengths))
        for _ in range(3):
            query = 2 * numbers(rng, 2, 2, 64)
            for _ in range(2):  # not all is hot, then all
                expected = attention(query, references[layer], setting)
                assert_bits(session.attention(0, query, layer=layer), expected)
            steps = steps_of(session)
            waves |= {s["executions"] for s in steps if s["kind"] == "remote-read" and not s["beside"]}
            key, value = (numbers(rng, 2, 1, 1, 64) for _ in "kv")
            session.append(key, value, [1, layer], layer)
            references[layer].append(key, value, np.array([1, layer]))
    if streams:
        assert max(waves) > 1  # what it is about
    for layer, reference in enumerate(references):
        n = int(reference.lengths.max())
        for rows, same in zip(session.read(n, layer), reference.read()):
            assert_bits(rows, same)


#: of each IPU, how many of its 16 heads have another query than the step before
OTHER_QUERIES = ((16, 0), (16, 16), (0, 16), (1, 9), (9, 1), (12, 3), (0, 0), (0, 1), (2, 16), (5, 0))


def test_waves_of_misses_of_all_ipus() -> None:
    """Where one IPU would fetch rows by lists, one its few rows and one those of every head by itself, or
    none, all take the same waves, and all have the same bits."""
    spec = CacheSpec(2, 16, 16, 512, index_bits=4)
    setting = SparqSettings(rank=8, top_k=32, n_local=4)
    session = session_of("sparq-tiered", spec, 2, n_tiles=64, setting=setting, n_layers=1)
    reference = KVCache(**dataclasses.asdict(spec), device="reference")
    rng = np.random.default_rng(11)
    key, value = (numbers(rng, 2, 16, 500, 16) for _ in "kv")
    session.write(key, value, [500, 500], 0)
    reference.append(key, value, np.array([500, 500]))
    query = numbers(rng, 2, 32, 16)
    waves: Counter[str] = Counter()
    for changed in OTHER_QUERIES:
        for element, n in enumerate(changed):
            for head in rng.permutation(16)[:n]:
                query[element, 2 * head : 2 * head + 2] = 2 * numbers(rng, 2, 16)
        assert_bits(session.attention(0, query, layer=0), attention(query, reference, setting))
        of_ipus = np.array(session.misses()).reshape(2, 16).sum(axis=1)
        done = {step["name"].rpartition("/")[2] for step in steps_of(session) if step["executions"]}
        assert not {"head_rows", "rows_of_wave"} <= done  # no IPU fetches by itself what all have fetched
        for name in ("head_rows", "lists", "few_misses"):
            # of some steps an IPU that misses nothing, or next to nothing, takes them too
            waves[name] += name in done and of_ipus.min() < 30 < of_ipus.max()
    # waves of lists would cost more than what heads fetch by themselves
    assert waves["head_rows"] and waves["few_misses"]


def test_all_steps_are_made_in_step() -> None:
    """A builder that made its own compute set, copy or branch would make it of the last IPU alone."""
    own = re.compile(r"graph\.addComputeSet|\b(Copy|WriteUndef|Call)\(|addFunction\(")
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.cpp")) + sorted(SOURCES.rglob("*.hpp"))
        if any(
            own.search(line.replace("lockstep->addFunction(", "")) for line in path.read_text().splitlines()
        )
    }
    assert found == {"lockstep.cpp", "session.cpp", "shard.cpp"}
