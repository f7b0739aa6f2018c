# SPDX-License-Identifier: Apache-2.0
"""The PopART operators on a cache in three tiers: every bit of the reference whatever is hot, and what is
hot."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bits import assert_bits
from calls import refusal
from popart_models import (
    CACHE,
    CAPACITY,
    DECODE,
    HEAD_DIM,
    N_KV_HEADS,
    SETTINGS,
    SHAPES,
    Held,
    add_inputs,
    attributes_of,
    contract,
    halves,
)

from sparq_reference import CacheSpec, SparqSettings

TIERED = dict(memory="tiered", index_bits=4)
INDEX = ("index_bits", "index_components")
N_PROMPT = 100


class Steps:
    """A model whose runs fill a cache, then decode a token on it; each run is held to the reference. Several
    caches side by side, by name."""

    def __init__(self, lowering: ModuleType, caches: dict[str, dict], n_tiles: int = 24, seed: int = 0):
        self.model, self.caches = lowering.Model(), caches
        for name, options in caches.items():
            settings = {n: x for n, x in options.items() if n in SETTINGS}
            cache = dict(CACHE, cache_name=name, **{n: x for n, x in options.items() if n not in settings})
            prompt = list(add_inputs(self.model, f"_prompt_{name}", N_PROMPT).values())
            self.model.add_op("CacheFill", prompt, [f"filled_{name}"], cache)
            token = [*add_inputs(self.model, f"_{name}").values(), f"filled_{name}"]
            attributes = {**SETTINGS, **settings, **cache, "n_kv_heads": N_KV_HEADS}
            self.model.add_op("SparqDecode", token, [f"out_{name}", f"held_{name}"], attributes)
        self.model.compile(n_tiles=n_tiles)
        self.held = {
            name: Held(capacity=options.get("capacity", CAPACITY), row_bits=options.get("row_bits", 16))
            for name, options in caches.items()
        }
        self.rng = np.random.default_rng(seed)
        self.query = halves(self.rng, *SHAPES["query"])

    def run(
        self, fill: Any = (-1, -1), active: Any = (0, 0), query: np.ndarray | None = None, name: str = ""
    ) -> int:
        """One run, in which the cache `name` (the first one) gets these rows and tokens, others nothing.
        Returns how often rows were read from streaming memory to be attended to: once for each wave."""
        name = name or next(iter(self.caches))
        inputs = {}
        for each in self.caches:
            mine = each == name
            inputs.update(
                self.held[each].prompt(self.rng, fill if mine else (-1, -1), N_PROMPT, f"_prompt_{each}")
            )
            inputs.update(self.held[each].token(self.rng, active if mine else (0, 0), f"_{each}"))
            inputs[f"query_{each}"] = self.query if query is None else query
        results = self.model.run(inputs)
        for each, held in self.held.items():
            np.testing.assert_array_equal(results[f"held_{each}"], held.lengths)
            if held.lengths.all():  # else no output is defined
                settings = {k: v for k, v in self.caches[each].items() if k in (*SETTINGS, *INDEX)}
                expected = held.sparq(inputs[f"query_{each}"], **settings)
                assert_bits(results[f"out_{each}"], expected)
        return int(self.model.executions().get("insert_rows", 0))

    def other_query(self) -> np.ndarray:
        return halves(self.rng, *SHAPES["query"])


@pytest.mark.parametrize(
    "options",
    [
        dict(n_tiles=24),
        dict(n_tiles=7, index_bits=8, hot_rows=20),
        dict(n_tiles=24, row_bits=8, hot_rows=20),
        dict(n_tiles=24, index_components=8, rank=5),
        dict(n_tiles=64, hot_rows=33),
        dict(n_tiles=1, hot_rows=200, index_bits=8),
    ],
    ids=str,
)
def test_steps_with_hits_and_misses(lowering: ModuleType, options: dict) -> None:
    """Ragged rows: prompts of a block and more, tokens past the end of the next block, rows that are filled
    anew, emptied or full, and queries of which some come again."""
    cache = {**TIERED, **options}
    steps = Steps(lowering, {"layer0": cache}, n_tiles=cache.pop("n_tiles"))
    assert steps.run(fill=(100, 62), active=(1, 1)) > 0
    misses = []
    for step in range(36):
        query = None if step % 3 else steps.other_query()
        misses.append(steps.run(active=(1, int(step % 4 != 0)), query=query))
    assert max(misses) > 0
    steps.run()
    assert steps.run() == 0  # the same query once more
    assert steps.run(fill=(-1, 0), active=(1, 1)) >= 0  # one row begins anew
    assert steps.run(fill=(3, 500), active=(1, -7)) > 0
    for _ in range(3):
        steps.run(active=(1, 0))
    steps.run(fill=(0, 0))  # all is forgotten; nothing to attend to
    for _ in range(3):
        steps.run(active=(1, 1))


def test_what_is_hot(lowering: ModuleType) -> None:
    """Rows that were selected, and tokens, until their batch element is filled anew."""
    steps = Steps(lowering, {"layer0": dict(TIERED, n_local=20)}, seed=1)
    assert steps.run(fill=(100, 100)) > 0  # nothing is hot
    assert steps.run() == 0
    assert steps.run(active=(1, 1)) == 0  # the last 20 rows are selected: the token is among them
    assert steps.run() == 0
    assert steps.run(fill=(-1, 100)) > 0  # those of one element
    assert steps.run() == 0
    assert steps.run(fill=(0, 0), active=(1, 1)) == 0


def test_caches_that_differ_have_tiers_of_their_own(lowering: ModuleType) -> None:
    """One in three tiers beside others: another buffer, rows of 8 bits, all in streaming memory."""
    caches = {
        "layer0": dict(TIERED),
        "layer1": dict(TIERED, hot_rows=24),
        "layer2": dict(TIERED, row_bits=8),
        "layer3": dict(TIERED, index_bits=8),
        "layer4": dict(index_bits=4),
    }
    steps = Steps(lowering, caches, n_tiles=8)
    columns = {"sparq/layer4/key_columns"}
    assert set(steps.model.streaming_memory()) == {f"sparq/{name}/rows" for name in caches} | columns
    for name in caches:
        steps.run(fill=(100, 70), active=(1, 1), name=name)
    assert steps.run() == 0
    for _ in range(3):
        for name in caches:
            steps.run(active=(1, 0), name=name)
        steps.run(query=steps.other_query())
    assert steps.run(query=steps.other_query()) > 0


def test_layers_share_one_program(lowering: ModuleType) -> None:
    """Caches that are alike: one pair of buffers, one program; each has its own rows, index and hot rows."""
    caches = {f"layer{i}": dict(TIERED) for i in range(3)}
    steps = Steps(lowering, caches, n_tiles=9)
    assert set(steps.model.streaming_memory()) == {"sparq/layer0/rows"}
    alone = Steps(lowering, {"layer0": caches["layer0"]}, n_tiles=9)
    assert steps.model.vertices() < 1.2 * alone.model.vertices()
    in_sram, of_one = steps.model.state_in_sram(), alone.model.state_in_sram()
    for what in ("index", "hot_keys", "hot_values", "hot_held"):
        assert in_sram[f"sparq/layer0/{what}"] == 3 * of_one[f"sparq/layer0/{what}"] > 0
    for i, name in enumerate(caches):
        steps.run(fill=(100 - i, 70 + i), name=name)
    assert steps.run() == 0  # of all layers
    for step in range(24):
        name = f"layer{step % 3}"
        steps.run(active=(1, 1), name=name)
    steps.run(fill=(70, -1), name="layer1")
    assert steps.run() == 0


def test_all_of_it_is_in_the_operators(lowering: ModuleType) -> None:
    """No key columns in streaming memory; key index, hot rows and the rest live in SRAM between runs. The
    bits are those of a cache in streaming memory."""
    outputs, held, rng = {}, Held(), np.random.default_rng(5)
    inputs = {**held.prompt(rng, [150, 129], 150), **held.token(rng)}
    for name, options in (("tiers", TIERED), ("streamed", dict(index_bits=4))):
        model = lowering.Model()
        cache = dict(CACHE, **options)
        model.add_op("CacheFill", list(add_inputs(model, "_prompt", 150).values()), ["filled"], cache)
        token = [*add_inputs(model).values(), "filled"]
        model.add_op("SparqDecode", token, ["out"], {**DECODE, **SETTINGS, **cache})
        model.compile(n_tiles=16)
        outputs[name] = model.run(inputs)["out"]
        buffers = {"sparq/layer0/rows"} | (set() if name == "tiers" else {"sparq/layer0/key_columns"})
        assert set(model.streaming_memory()) == buffers
        state = {n.split("/")[-1] for n in model.state_in_sram() if n.startswith("sparq/layer0/")}
        tiers = {"index", "hot_keys", "hot_values", "hot_held", "hot_stamps", "hot_clock"}
        assert {"filled", "value_sum", "tail", "tail_index"} <= state
        assert (tiers <= state) if name == "tiers" else not (tiers & state)
    assert_bits(outputs["tiers"], outputs["streamed"])


def test_the_cache_lives_through_a_loop_and_ends_with_a_load(make: Any) -> None:
    """Three tokens a run; a model that is lowered again finds nothing, and nothing is hot."""
    make.add("SparqDecode", **TIERED)
    rng = np.random.default_rng(4)
    for _ in range(2):
        make.model.compile(iterations=3)
        held = Held()
        for _ in range(12):
            token = held.token(rng)
            for _ in range(2):
                held.append(token["key"], token["value"], token["active"])
            assert_bits(make.model.run(token)["out"], held.sparq(token["query"], index_bits=4))


def test_two_settings_on_one_cache(make: Any) -> None:
    """The buffer has room for the larger selection, and both programs use it."""
    few = dict(rank=16, top_k=2, n_local=0, mean_value=0)
    make.add("SparqDecode", "_a", **TIERED)
    make.add("SparqDecode", "_b", **TIERED, **few)
    make.model.compile()
    rng, held = np.random.default_rng(2), Held()
    for _ in range(30):
        inputs, expected = {}, {}
        for op, settings in (("a", {}), ("b", few)):
            inputs.update(held.token(rng, suffix=f"_{op}"))
            expected[op] = held.sparq(inputs[f"query_{op}"], index_bits=4, **settings)
        out = make.model.run(inputs)
        for op, output in expected.items():
            assert_bits(out[f"out_{op}"], output)


def test_outlining_sees_what_differs(make: Any) -> None:
    changes = ({}, dict(memory="streaming"), dict(index_bits=8), dict(row_bits=8), dict(hot_rows=64))
    ids = [
        make.add("SparqDecode", f"_{i}", cache_name=f"layer{i}", **{**TIERED, **change})
        for i, change in enumerate(changes)
    ]
    outlines = [dict(make.model.describe(i)["outline"]) for i in ids]
    for outline in outlines:
        del outline["cache_name"]
    assert len({tuple(sorted(outline.items())) for outline in outlines}) == len(changes)


# ---- messages


REFUSED = [
    ("SparqDecode", dict(index_bits=16), "index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
    ("CacheFill", dict(index_bits=16), "index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
    ("SparqDecode", dict(row_bits=4), "row_bits must be one of 16, 8, got 4"),
    (
        "CacheFill",
        dict(row_bits=8, memory="streaming"),
        "row_bits must be 16 unless memory is 'tiered', got 8",
    ),
    ("SparqDecode", dict(memory="sram"), "memory must be 'streaming' or 'tiered', got 'sram'"),
    ("DenseDecode", dict(memory="sram"), "memory must be 'streaming' or 'tiered', got 'sram'"),
    ("CacheFill", dict(memory="Tiered"), "memory must be 'streaming' or 'tiered', got 'Tiered'"),
    ("DenseDecode", {}, "memory must be 'streaming', got 'tiered'"),
    ("SparqDecode", dict(hot_rows=-1), "hot_rows must be in [0, 65536], got -1"),
    ("SparqDecode", dict(hot_rows=65537), "hot_rows must be in [0, 65536], got 65537"),
    ("CacheFill", dict(hot_rows=2**40), "hot_rows must be in [0, 65536], got 1099511627776"),
    ("SparqDecode", dict(hot_rows=19), "hot_rows must be 0 or at least top_k=20, got 19"),
    (
        "SparqDecode",
        dict(top_k=65537, capacity=70000),
        "top_k must be at most 65536 where memory is 'tiered', got 65537",
    ),
] + [
    (
        op,
        dict(memory="streaming", **hot),
        "memory must be 'tiered' where hot rows are asked for, got 'streaming'",
    )
    for op, hot in (
        ("SparqDecode", dict(hot_rows=64)),
        ("CacheFill", dict(hot_rows=64)),
        ("DenseDecode", dict(hot_rows=64)),
    )
]


@pytest.mark.parametrize("op, change, message", REFUSED)
def test_messages_are_those_of_python(lowering: ModuleType, op: str, change: dict, message: str) -> None:
    model = lowering.Model()
    names = list(add_inputs(model, n_tokens=7 if op == "CacheFill" else 0))
    attributes = attributes_of(op, **{**TIERED, **change})
    with pytest.raises(ValueError) as theirs:
        given = dict(attributes)
        spec = CacheSpec(1, 1, HEAD_DIM, given.pop("capacity"), op=op, **CacheSpec.take(given))
        settings = None
        if op == "SparqDecode":
            of_settings = {**SparqSettings.take(given), "mean_value": True}  # a number here
            settings = SparqSettings(**of_settings, op=op)
        of_device = contract.take_options(op, given)
        contract.check_cache(op, spec, of_device, settings, dense=op == "DenseDecode")
    with pytest.raises(ValueError) as ours:
        model.add_op(op, names, ["out"], attributes)
    assert str(ours.value) == str(theirs.value) == f"{op}: {message}"


@pytest.mark.parametrize(
    "second, message",
    [
        (
            dict(memory="streaming"),
            "memory must be 'tiered' as in the other operators of cache 'layer0', got",
        ),
        (dict(hot_rows=40), "hot_rows must be 0 as in the other operators of cache 'layer0', got 40"),
        (dict(row_bits=8), "row_bits must be 16 as in the other operators of cache 'layer0', got 8"),
        (dict(index_bits=8), "index_bits must be 4 as in the other operators of cache 'layer0', got 8"),
    ],
    ids=str,
)
def test_operators_of_a_cache_must_agree(make: Any, second: dict, message: str) -> None:
    make.add("CacheFill", "_0", n_tokens=7, **TIERED)
    assert refusal(make.add, "SparqDecode", "_1", **{**TIERED, **second}).startswith(
        f"SparqDecode: {message}"
    )


def test_dense_attention_wants_another_cache(make: Any) -> None:
    make.add("SparqDecode", "_0", **TIERED)
    message = "^DenseDecode: index_bits must be 4 as in the other operators of cache 'layer0', got 16$"
    with pytest.raises(ValueError, match=message):
        make.add("DenseDecode", "_1")
    message = (
        "^DenseDecode: memory must be 'tiered' as in the other operators of cache 'layer0', got 'streaming'$"
    )
    with pytest.raises(ValueError, match=message):
        make.add("DenseDecode", "_2", index_bits=4)
