# SPDX-License-Identifier: Apache-2.0
"""Makes the calls of a conformance vector on a device of this package, and says what differs."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from vector_file import INDEX_OF, Record

import sparq_ipu
from sparq_ipu.attention import attention
from sparq_reference import SparqSettings, WindowSettings, prompt


def settings_of(record: Record) -> Any:
    n = record.numbers
    if record.kind == "dense":
        return None
    if record.kind in ("sparq", *INDEX_OF):
        return SparqSettings(n["rank"], n["top_k"], n["n_local"], bool(n["mean_value"]))
    return WindowSettings(n["top_k"], n["n_local"], n["n_recent"])


def of_prompt(record: Record, device: str, options: dict[str, Any]) -> np.ndarray | None:
    """Attention of a prompt by the reference or the CPU; other devices have none."""
    n, a = record.numbers, record.arrays
    tensors = [a[name].astype(np.float32) for name in ("query", "key", "value")]
    settings: Any = dict(integers=bool(n["integers"]), window=n["window"], starts=a["starts"])
    settings["blocks"] = 2.0 ** -n["blocks"] if n["blocks"] else 0.0
    settings["blocks_from"] = n["blocks_from"]
    if device == "reference":
        return prompt.prompt_attention(*tensors, **settings)
    return sparq_ipu.prompt_attention(*tensors, **settings, **options) if device == "cpu" else None


def given(cache: Any, record: Record) -> np.ndarray | None:
    """What a cache gives for a record that says what it must give; None for the others, which change it."""
    kind, a = record.kind, record.arrays
    if kind in ("dense", "sparq", *INDEX_OF, "window"):
        return np.asarray(attention(a["query"], cache, settings_of(record)))
    if kind == "rows":
        assert (cache.lengths == a["lengths"]).all()
        return np.stack(cache.read())
    if kind == "shares":
        sums = np.zeros(a["sums"].shape, np.uint32)
        for b, steps in enumerate(cache.one_layer("test").history().steps):
            for step in steps:
                sums[b, : len(step)] += step
        return sums
    if kind == "append":
        cache.append(a["key"], a["value"], a["lengths"])
    elif kind == "observe":
        cache.observe(a["query"], **settings_of(record).arguments())
    else:
        getattr(cache, kind)(*a.values())
    return None


def index_of(records: list[Record]) -> dict[str, int]:
    """Options of the cache that all records of a kind have: of INDEX_OF those that are not 0."""
    return {name: r.numbers[name] for r in records for name in [INDEX_OF.get(r.kind)] if name}


def has_index(memory: str, records: list[Record]) -> bool:
    """Whether IPUs have the key index of a file in this memory."""
    return memory == "tiered" or not index_of(records)


def play(records: list[Record], device: str, left_out: tuple[str, ...] = (), **options: Any) -> list[str]:
    """Make every call of a file on a device: what it gives that the file does not say."""
    of = records[0].numbers
    bits = {name: of[name] for name in ("index_bits", "row_bits")}
    bits.update(index_of(records))
    sizes = (of[name] for name in ("batch", "n_kv_heads", "head_dim", "capacity"))
    cache = sparq_ipu.KVCache(*sizes, device=device, **bits, **options)
    wrong = []
    for number, record in enumerate(records[1:], 1):
        if record.kind in left_out:
            continue
        got = of_prompt(record, device, options) if record.kind == "prompt" else given(cache, record)
        if got is None:
            continue
        a = record.arrays
        expected = a["sums"] if record.kind == "shares" else a.get("output", None)
        if expected is None:
            expected = np.stack([a["key"], a["value"]])
        if got.tobytes() != expected.tobytes():
            wrong.append(f"record {number}: {record.kind} {record.numbers}")
    return wrong


def is_for_sram(records: list[Record]) -> bool:
    """One append fills the cache, and nothing else changes it."""
    kinds = collections.Counter(record.kind for record in records)
    return kinds["append"] == 1 and not kinds.keys() & {"truncate", "reorder", "reset", "rows", "observe"}
