# SPDX-License-Identifier: Apache-2.0
"""Device programs with floating-point exceptions on: ordinary numbers stop none; the bits are the same.

What no program has written is zeros here, but for one test: by default the emulator fills it with signalling
NaN, so that arithmetic with it is an event, whatever becomes of the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
import vertex
from strategies import tensors
from vertex import _core, assert_bits

from sparq_ipu import KVCache, dense_attention, sparq_attention, window_attention

pytestmark = [
    pytest.mark.slow,  # half a minute to compile the codelets
    pytest.mark.skipif(
        bool(_core.device_unavailable("emulator")), reason="the emulator is not available here"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
#: as poplar::setFloatingPointBehaviour with inv, div0, oflo and nanoo
EXCEPTIONS = {"debug.floatPointOpException": "true", "debug.nanOverflowMode": "true"}
CAPACITY = 200
CACHES: dict[str, dict[str, Any]] = {
    "streaming": {},
    "8 bit index": dict(index_bits=8),
    "4 bit index": dict(index_bits=4),
    "sram": dict(memory="sram"),
    "tiered": dict(memory="tiered", index_bits=4, hot_rows=CAPACITY),
    "tiered, 8 bit rows": dict(memory="tiered", index_bits=8, row_bits=8),
    "two IPUs": dict(memory="tiered", index_bits=4, n_ipus=2, split="heads", n_layers=2),
}
#: kinds of `tensors`, and all zeros, with which a key index has no step and a query no temperature
CONTENTS = ("normal", "constant", "huge", "tiny", "wide", "sparse", "zeros")
#: vertices that also compute with what rows and key indices hold behind the last position; it is not used
OF_THE_UNWRITTEN = {
    "streaming": "ApproxScores",
    "tiered": "TailScores",
    "tiered, 8 bit rows": "CodeColumns",
    "two IPUs": "TailScores",
}


@pytest.fixture(scope="module", autouse=True)
def exceptions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    where = tmp_path_factory.mktemp("codelets")
    sources = sorted(str(path) for path in (ROOT / "poplar_ops" / "codelets").glob("*.cpp"))
    command = [
        sys.executable,
        str(ROOT / "emulator" / "popc" / "popc.py"),
        "--floating-point-events",
        "-I",
        str(ROOT / "poplar_ops"),
    ]
    subprocess.run([*command, *sources, "-o", str(where / "sparq_codelets.gp")], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARQ_CODELETS", str(where))
        patch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(EXCEPTIONS))
        patch.setenv("SPARQ_EMULATOR_FILL", "zero")
        yield


def test_exceptions_are_on() -> None:
    fields = dict(
        partials=np.ones(8, np.float32), sums=np.zeros(1, np.float32), output=np.zeros(8, np.float16)
    )
    with pytest.raises(RuntimeError, match=r"division by zero .* in vertex sparq::CombineList"):
        vertex.run("CombineList", fields, nBlocks=1, groupSize=1, width=8)


@pytest.mark.parametrize("name", CACHES)
def test_what_nothing_has_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vertices that docs/exactness.md names (E8), and no others, stop at it."""
    monkeypatch.delenv("SPARQ_EMULATOR_FILL")
    if name not in OF_THE_UNWRITTEN:
        return test_ordinary_numbers_stop_nothing(name, "normal")
    with pytest.raises(RuntimeError, match=f" in vertex sparq::{OF_THE_UNWRITTEN[name]}"):
        test_ordinary_numbers_stop_nothing(name, "normal")


def contents(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.zeros(shape, np.float16) if kind == "zeros" else tensors(kind, shape, rng)


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("name", CACHES)
def test_ordinary_numbers_stop_nothing(name: str, kind: str) -> None:
    options, rng = CACHES[name], np.random.default_rng(sorted(CONTENTS).index(kind))
    batch, heads, dim, memory = 3, 2, 16, options.get("memory", "streaming")
    same = {key: options[key] for key in ("n_layers", "index_bits", "row_bits") if key in options}
    caches = [
        KVCache(batch, heads, dim, CAPACITY, device="emulator", n_tiles=12, **options),
        KVCache(batch, heads, dim, CAPACITY, device="reference", **same),
    ]
    caches = [cache.layer(0) for cache in caches]

    def append(n: int, lengths: list[int] | None = None) -> None:
        key, value = (contents(kind, (batch, heads, n, dim), rng) for _ in "kv")
        for cache in caches:
            cache.append(key, value, None if lengths is None else np.array(lengths))

    def attend() -> None:
        for of_query in dict.fromkeys((kind, "zeros", "normal")):
            query = contents(of_query, (batch, 2 * heads, dim), rng)
            if memory != "sram":  # which has dense attention alone
                for settings in (
                    dict(rank=4, top_k=10, n_local=3),
                    dict(rank=dim, top_k=CAPACITY, n_local=0, mean_value=False),
                ):
                    assert_bits(*(sparq_attention(query, cache, **settings) for cache in caches))
            if memory != "tiered":
                assert_bits(*(dense_attention(query, cache) for cache in caches))

    append(150, [150, 0, 64])  # one sequence is empty
    append(2, [1, 1, 2])
    attend()
    append(1)
    attend()
    for cache in caches:
        cache.reorder(np.array([0, 0, 1]))
        cache.truncate(np.array([129, 70, 1]))
    append(1)
    attend()


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("options", [{}, CACHES["tiered, 8 bit rows"]], ids=["streaming", "tiered"])
def test_window_attention_stops_nothing(options: dict[str, Any], kind: str) -> None:
    rng, (batch, heads, dim) = np.random.default_rng(3), (2, 2, 16)
    same = {key: options[key] for key in ("index_bits", "row_bits") if key in options}
    caches = [
        KVCache(batch, heads, dim, CAPACITY, device="emulator", n_tiles=12, **options),
        KVCache(batch, heads, dim, CAPACITY, device="reference", **same),
    ]
    settings: dict[str, Any] = dict(top_k=9, n_local=4, n_recent=2)
    for n in (100, 1, 1, 1):
        key, value = (contents(kind, (batch, heads, n, dim), rng) for _ in "kv")
        query = contents(kind, (batch, 2 * heads, dim), rng)
        seen = contents(kind, (batch, 2 * heads, 3, dim), rng)
        for cache in caches:
            cache.append(key, value, np.array([n, n - n // 2]))
            if n > 1:
                cache.observe(seen, **settings)
        assert_bits(*(window_attention(query, cache, **settings) for cache in caches))
