# SPDX-License-Identifier: Apache-2.0
"""The PopART operators, made, set up, lowered and run on the emulator: equal to the reference in every bit.

PopART itself is not there: stand-ins of the part of its interface in use (include/popart) take its place, so
these tests say that the operators compute and order what they should, not that PopART accepts them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bits import assert_bits, bits_of
from calls import refusal
from popart_models import (
    BATCH,
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
)


def test_registered_as_the_contract_says(lowering: ModuleType) -> None:
    decode = ["query", "key", "value", "active", "held"], ["output", "lengths_out"]
    tensors = {
        "SparqDecode": decode,
        "DenseDecode": decode,
        "CacheFill": (["key", "value", "lengths", "held"], ["lengths_out"]),
        "Begin": (["held"], ["lengths_out"]),
    }
    assert lowering.registered() == {
        (contract.DOMAIN, op, contract.VERSION): (*tensors[op], sorted(attributes))
        for op, attributes in contract.ATTRIBUTES.items()
    }


@pytest.mark.parametrize("index_bits", [8, 4, 2])
def test_decode_steps_with_a_key_index(make: Any, index_bits: int) -> None:
    """A prompt of a block and more, then tokens past the end of the next block."""
    make.add("CacheFill", "_prompt", n_tokens=100, index_bits=index_bits)
    make.add("SparqDecode", index_bits=index_bits)
    make.model.compile(n_tiles=7)
    rng, held = np.random.default_rng(index_bits), Held()
    for step in range(40):
        prompt = held.prompt(rng, [100, 63] if step == 0 else [-1, -1], n_tokens=100)
        token = held.token(rng)
        output = make.model.run({**prompt, **token})["out"]
        assert_bits(output, held.sparq(token["query"], index_bits=index_bits))
    assert (bits_of(output) != bits_of(held.sparq(token["query"]))).any()  # another rule is another result


@pytest.mark.parametrize("op", ["SparqDecode", "DenseDecode"])
@pytest.mark.parametrize("n_tiles", [1, 7, 64])
def test_decode_steps(make: Any, op: str, n_tiles: int) -> None:
    """An empty cache at first, then a token a run, past the end of a chunk of key columns."""
    make.add(op)
    make.model.compile(n_tiles=n_tiles)
    rng, held = np.random.default_rng(n_tiles), Held()
    attend = held.sparq if op == "SparqDecode" else held.dense
    for step in range(70):
        # any number but 0 is a token; every row has one from the first step on
        token = held.token(rng, active=[1, -3 if step % 2 == 0 else 0])
        out = make.model.run(token)["out"]
        if step < 3 or step > 60:
            assert_bits(out, attend(token["query"]))


def test_a_full_row_takes_no_more(make: Any) -> None:
    """A device can not refuse: the token is dropped, and no other row changes."""
    make.add("SparqDecode", capacity=5)
    make.model.compile()
    rng, held = np.random.default_rng(0), Held(capacity=5)
    for step in range(8):
        token = held.token(rng, active=[1, step < 2])
        assert_bits(make.model.run(token)["out"], held.sparq(token["query"]))
    assert list(held.lengths) == [5, 2]


@pytest.mark.parametrize("virtual_graph", [None, 3])
def test_fill_then_decode(lowering: ModuleType, virtual_graph: int | None) -> None:
    """Prefill and two kinds of attention on one cache, in one model; on all tiles, or on some of them."""
    model, rng, held = lowering.Model(), np.random.default_rng(1), Held()
    n_tokens = 130
    fill = add_inputs(model, "_prompt", n_tokens)
    sparq, dense = add_inputs(model, "_sparq"), add_inputs(model, "_dense")
    where = dict(virtual_graph=virtual_graph)
    model.add_op("CacheFill", list(fill.values()), ["held"], CACHE, **where)
    model.add_op("SparqDecode", list(sparq.values()), ["sparq"], {**DECODE, **SETTINGS}, **where)
    model.add_op("DenseDecode", list(dense.values()), ["dense"], DECODE, **where)
    ranges = {} if virtual_graph is None else {3: (5, 21), 0: (0, 5)}
    model.compile(n_tiles=32, virtual_graphs=ranges)
    for lengths in ([130, 64], [3, -1], [-1, 500]):  # more than there are: all there are
        inputs = held.prompt(rng, lengths, n_tokens)
        expected = {"held": held.lengths.copy()}
        for name in ("key_prompt", "value_prompt"):  # padding is not read
            for b, n in enumerate(lengths):
                inputs[name][b, :, max(n, 0) :] = np.nan
        for name, attend, active in (("sparq", held.sparq, [1, 1]), ("dense", held.dense, [0, 1])):
            inputs.update(held.token(rng, active, f"_{name}"))
            expected[name] = attend(inputs[f"query_{name}"])
        out = model.run(inputs)
        np.testing.assert_array_equal(out["held"], expected["held"])
        assert_bits(out["sparq"], expected["sparq"])
        assert_bits(out["dense"], expected["dense"])


@pytest.mark.parametrize("index_bits", [16, 4])
def test_layers_share_one_program(lowering: ModuleType, index_bits: int) -> None:
    """Caches that are alike: one pair of buffers, one program; each has its own lengths and contents."""
    n_layers, n_prompt = 3, 70
    rng = np.random.default_rng(7)
    held = [Held() for _ in range(n_layers)]

    def model_of(layers: int) -> Any:
        model = lowering.Model()
        for layer in range(layers):
            cache = dict(capacity=CAPACITY, cache_name=f"layer{layer}", index_bits=index_bits)
            inputs = add_inputs(model, f"_prompt{layer}", n_prompt)
            model.add_op("CacheFill", list(inputs.values()), [f"filled{layer}"], cache)
            inputs = add_inputs(model, str(layer))
            names = [*inputs.values(), f"filled{layer}"]
            attributes = dict(cache, n_kv_heads=N_KV_HEADS, **SETTINGS)
            model.add_op("SparqDecode", names, [f"out{layer}", f"lengths{layer}"], attributes)
        model.compile(n_tiles=9)
        return model

    model = model_of(n_layers)
    buffers = model.streaming_memory()
    assert set(buffers) == {"sparq/layer0/rows", "sparq/layer0/key_columns"}
    alone = model_of(1)
    assert {name: n_layers * n for name, n in alone.streaming_memory().items()} == buffers
    assert model.vertices() < 1.2 * alone.vertices()  # what loads and stores a layer

    for step in range(70):
        inputs, expected = {}, []
        for layer, of_layer in enumerate(held):
            lengths = [-1, -1]
            if step == 0:
                lengths = [n_prompt - layer, layer + 1]
            elif step == 50 + layer:
                lengths = [-1, 60]
            inputs.update(of_layer.prompt(rng, lengths, n_prompt, f"_prompt{layer}"))
            inputs.update(of_layer.token(rng, [1, (step + layer) % 3 != 0], str(layer)))
            query = inputs[f"query{layer}"]
            expected.append((of_layer.sparq(query, index_bits=index_bits), of_layer.lengths.copy()))
        results = model.run(inputs)
        for layer, (output, lengths) in enumerate(expected):
            assert_bits(results[f"out{layer}"], output, f"{step} {layer}")
            np.testing.assert_array_equal(results[f"lengths{layer}"], lengths)


@pytest.mark.parametrize("other", [dict(capacity=150), dict(rank=5), dict(index_bits=8)], ids=str)
def test_caches_that_differ_are_not_layers_of_one(lowering: ModuleType, other: dict) -> None:
    model = lowering.Model()
    for layer, more in enumerate(({}, other)):
        inputs = add_inputs(model, str(layer))
        attributes = {**DECODE, **SETTINGS, "cache_name": f"layer{layer}", **more}
        model.add_op("SparqDecode", list(inputs.values()), [f"out{layer}"], attributes)
    model.compile(n_tiles=7)
    assert {name.split("/")[1] for name in model.streaming_memory()} == {"layer0", "layer1"}


def test_caches_of_two_names_are_two(make: Any) -> None:
    make.add("SparqDecode", "_a")
    make.add("SparqDecode", "_b", cache_name="layer1", capacity=70)
    make.model.compile()
    assert make.model.constraints() == []
    rng, a, b = np.random.default_rng(3), Held(), Held(capacity=70)
    for step in range(4):
        inputs = {**a.token(rng, suffix="_a"), **b.token(rng, [1, step == 0], "_b")}
        out = make.model.run(inputs)
        assert_bits(out["out_a"], a.sparq(inputs["query_a"]))
        assert_bits(out["out_b"], b.sparq(inputs["query_b"]))


def test_every_load_begins_empty(make: Any) -> None:
    """A model lowered again, and another model with the same name, find nothing of the one before."""
    make.add("DenseDecode")
    rng = np.random.default_rng(5)
    for _ in range(2):
        make.model.compile()
        held = Held()
        for _ in range(2):
            token = held.token(rng)
            assert_bits(make.model.run(token)["out"], held.dense(token["query"]))


def test_a_cache_has_no_rows_for_a_host_that_writes_none(make: Any) -> None:
    """Keys, then values, each with a scratch row a task; columns, with those of each slot."""
    make.add("SparqDecode")
    make.model.compile()
    tasks, row = BATCH * N_KV_HEADS, 2 * HEAD_DIM
    memory = make.model.streaming_memory()
    capacity = 256  # 200, in whole blocks
    assert memory["sparq/layer0/rows"] == 2 * tasks * (capacity + 1) * row
    columns = memory["sparq/layer0/key_columns"]
    assert columns % (HEAD_DIM * 2) == 0 and columns <= 2 * tasks * HEAD_DIM * capacity * 2


def test_two_models_at_once(lowering: ModuleType) -> None:
    """Each lowering has its own cache of the name."""
    models = [lowering.Model(), lowering.Model()]
    for model in models:
        model.add_op("DenseDecode", list(add_inputs(model).values()), ["out"], DECODE)
        model.compile()
    rng, held = np.random.default_rng(7), [Held(), Held()]
    for which in (0, 1, 1, 0):
        token = held[which].token(rng)
        assert_bits(models[which].run(token)["out"], held[which].dense(token["query"]))


def test_a_cache_that_is_only_filled(make: Any) -> None:
    make.add("CacheFill", n_tokens=7)
    make.model.compile()
    token = np.ones((BATCH, N_KV_HEADS, 7, HEAD_DIM), np.float16)
    for lengths, expected in (([7, 9], [7, 7]), ([-1, 0], [7, 0]), ([-5, -1], [7, 0])):
        out = make.model.run(dict(key=token, value=token, lengths=np.array(lengths, np.int32)))["out"]
        assert out.dtype == np.int32 and list(out) == expected


# ---- order


def test_operators_of_a_cache_keep_the_order_of_the_model(make: Any) -> None:
    """The scheduler of the stand-in takes the last operator first, wherever it may. It lowers them in yet
    another order, that of the tensors alone, as PopART does."""
    first = make.add("CacheFill", "_a", n_tokens=7)
    second = make.add("SparqDecode", "_b")
    other = make.add("SparqDecode", "_c", cache_name="layer1")
    third = make.add("DenseDecode", "_d")
    assert make.model.schedule() == [other, first, second, third]
    assert sorted(make.model.constraints()) == [(first, second), (first, third), (second, third)]
    for op in (first, second, third):  # PopART may set up an operator any number of times
        make.model.setup(op)
    assert len(make.model.constraints()) == 3


def test_data_may_ask_for_another_order(lowering: ModuleType) -> None:
    """No constraint against the tensors: the operator that makes what an earlier one takes goes first."""
    model = lowering.Model()
    inputs = list(add_inputs(model, n_tokens=7).values())
    model.add_input("later", "int32", (BATCH,))
    first = model.add_op("CacheFill", [*inputs[:2], "later"], ["held"], CACHE)
    second = model.add_op("CacheFill", [*inputs[:2], "held"], ["held2"], CACHE)
    third = model.clone_op(first, inputs, ["later"])  # as a transform might
    assert model.constraints() == [(first, second)]
    assert model.schedule() == [third, first, second]


def test_the_order_of_data(lowering: ModuleType) -> None:
    """Operators that take what another gives come after it, whichever was in the graph first. No constraint
    says so: between the body of a loop and what is around it there can be none."""
    model = lowering.Model()
    dense, prompt = add_inputs(model), add_inputs(model, "_prompt", 7)
    model.add_input("filled", "int32", (BATCH,))
    model.add_input("first", "int32", (BATCH,))
    late = model.add_op("DenseDecode", [*dense.values(), "first"], ["late", "end"], DECODE)
    sparq = list(add_inputs(model, "_sparq").values())
    early = model.add_op("SparqDecode", [*sparq, "filled"], ["early", "first"], {**DECODE, **SETTINGS})
    fill = model.add_op("CacheFill", list(prompt.values()), ["filled"], CACHE)
    assert model.constraints() == []
    assert model.schedule() == [fill, early, late]


def test_lengths_after_every_step(lowering: ModuleType) -> None:
    """What decode operators give to the next is the number of positions held, after their own token."""
    model = lowering.Model()
    first, second = add_inputs(model, "_a"), add_inputs(model, "_b")
    model.add_op("SparqDecode", list(first.values()), ["a", "after_a"], {**DECODE, **SETTINGS})
    model.add_op("DenseDecode", [*second.values(), "after_a"], ["b", "after_b"], DECODE)
    model.compile()
    rng, held = np.random.default_rng(8), Held()
    for step in range(3):
        inputs, expected = {}, {}
        for op, attend, active in (("a", held.sparq, [1, 1]), ("b", held.dense, [step == 1, 0])):
            inputs.update(held.token(rng, active, f"_{op}"))
            expected[op] = attend(inputs[f"query_{op}"]), held.lengths.copy()
        out = model.run(inputs)
        for op, (output, lengths) in expected.items():
            np.testing.assert_array_equal(out[f"after_{op}"], lengths)
            assert_bits(out[op], output)


@pytest.mark.parametrize("op", ["SparqDecode", "DenseDecode", "CacheFill"])
@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(stochastic_rounding=True),
            "enableStochasticRounding must be false, got true: the operators' roundings to float16 would be "
            "random",
        ),
        (
            dict(replicas=2),
            "the replication factor must be 1, got 2: programs branch on lengths, and replicas would part at "
            "copies of streaming memory",
        ),
    ],
)
def test_options_of_the_session(make: Any, op: str, options: dict, message: str) -> None:
    make.model.set_options(**options)
    assert refusal(make.add, op, n_tokens=7 if op == "CacheFill" else 0) == f"{op}: {message}"
    make.model.set_options()
    make.add(op, "_good", n_tokens=7 if op == "CacheFill" else 0)


@pytest.mark.parametrize("checks", [False, True])
def test_checks_of_floating_point_do_not_stop_operators(make: Any, checks: bool) -> None:
    """They are off while an operator runs, where the session has them, and on again behind it."""
    make.model.set_options(floating_point_checks=checks)
    make.add("CacheFill", "_fill", n_tokens=7)
    make.add("SparqDecode", "_decode")
    make.model.compile()
    rng, held = np.random.default_rng(3), Held()
    inputs = {**held.prompt(rng, [7, 2], 7, "_fill"), **held.token(rng, [1, 0], "_decode")}
    out = make.model.run(inputs)
    assert_bits(out["out_decode"], held.sparq(inputs["query_decode"]))
    counts = make.model.executions()
    assert counts.get("exceptions_off", 0) == counts.get("exceptions", 0) == (2 if checks else 0)


def test_outlining_sees_what_differs(make: Any) -> None:
    ids = [
        make.add("SparqDecode", "_0"),
        make.add("SparqDecode", "_1", cache_name="layer1"),
        make.add("SparqDecode", "_2", cache_name="layer2", capacity=100),
        make.add("SparqDecode", "_3", rank=5),
        make.add("SparqDecode", "_4", top_k=19),
        make.add("SparqDecode", "_5", n_local=2),
        make.add("SparqDecode", "_6", mean_value=0),
    ]
    outlines = [tuple(make.model.describe(i)["outline"]) for i in ids]
    assert len(set(outlines)) == len(ids)
    names = dict(outlines[0])
    assert set(names) >= {*DECODE, *SETTINGS} and names["cache_name"] == "layer0"
    fill = make.model.describe(make.add("CacheFill", "_7", n_tokens=7))
    assert dict(fill["outline"])["cache_name"] == "layer0"


@pytest.mark.parametrize("op", ["SparqDecode", "DenseDecode", "CacheFill"])
def test_clones_and_properties(make: Any, op: str) -> None:
    original = make.add(op, "_0", n_tokens=7 if op == "CacheFill" else 0)
    inputs = add_inputs(make.model, "_1", 7 if op == "CacheFill" else 0)
    copy = make.model.clone_op(original, list(inputs.values()), ["copied"])
    assert make.model.describe(copy) == make.model.describe(original)
    about = make.model.describe(original)
    assert about["type"] == op and about["side_effect"] and about["outlineable"]
    assert about["subgraph_value"] == 1000
    assert set(about["outline"]) < set(about["attributes"])
    (codelets,) = set(about["attributes"]) - set(about["outline"])
    assert codelets[0] == "codelets" and len(codelets[1]) == 16
    assert (original, copy) in make.model.constraints()


# ---- messages


def shaped(**shapes: tuple) -> dict:
    return {"shapes": shapes}


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(rank=0), "rank must be in [1, head_dim=16], got 0"),
        (dict(rank=17), "rank must be in [1, head_dim=16], got 17"),
        (dict(rank=-1), "rank must be in [0, 4294967295], got -1"),
        (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
        (dict(n_local=21), "n_local must be in [0, top_k=20], got 21"),
        (dict(mean_value=2), "mean_value must be 0 or 1, got 2"),
        (dict(capacity=0), "capacity must be in [1, 16777216], got 0"),
        (dict(capacity=2**33), "capacity must be in [0, 4294967295], got 8589934592"),
        (dict(index_bits=5), "index_bits must be one of 16, 8, 4, 2, got 5"),
        (dict(index_components=8), "index_components must be 0 unless memory is 'tiered', got 8"),
        (dict(index_components=24), "index_components must be in [0, head_dim=16], got 24"),
        (dict(index_components=8, rank=9), "rank must be in [1, index_components=8], got 9"),
        (dict(index_bits=-4), "index_bits must be in [0, 4294967295], got -4"),
        (dict(n_kv_heads=1), "n_kv_heads must be that of key=2, got 1"),
        # of another type: PopART would read 0, or nothing
        (dict(rank=4.5), "rank must be of type int, got 4.5"),
        (dict(mean_value="yes"), "mean_value must be of type int, got 'yes'"),
        (dict(n_local=[1, 2]), "n_local must be of type int, got a list"),
        (dict(memory=1), "memory must be of type string, got 1"),
        (dict(cache_name=2.5), "cache_name must be of type string, got 2.5"),
        (
            dict(indexbits=4),
            "attributes must be among cache_name, capacity, hot_rows, index_bits, "
            "index_components, mean_value, memory, n_kv_heads, n_local, rank, row_bits, "
            "top_k, got indexbits",
        ),
        (shaped(query=(2, 3, 16)), "n_heads must be a multiple of n_kv_heads=2, got 3"),
        (
            shaped(query=(2, 4, 12), key=(2, 2, 12), value=(2, 2, 12)),
            "head_dim must be a multiple of 8, got 12",
        ),
    ],
)
def test_messages_of_decode(make: Any, change: dict, message: str) -> None:
    assert refusal(make.add, "SparqDecode", **change) == f"SparqDecode: {message}"


#: an input of DenseDecode, its type, its shape (None: the right one), and the end of the message
WRONG = [
    ("query", "float32", None, "float16, got float32"),
    ("key", "int32", None, "float16, got int32"),
    ("active", "float32", None, "int32, got float32"),
    ("held", "float32", None, "int32, got float32"),
    ("query", "float16", (2, 4), "(batch, n_heads, head_dim), got (2, 4)"),
    ("key", "float16", (2, 2, 8), "(batch=2, n_kv_heads=2, head_dim=16), got (2, 2, 8)"),
    ("value", "float16", (2, 1, 16), "(batch=2, n_kv_heads=2, head_dim=16), got (2, 1, 16)"),
    ("active", "int32", (3,), "(batch=2), got (3,)"),
    ("active", "int32", (), "(batch=2), got ()"),
    ("held", "int32", (3,), "(batch=2), got (3,)"),
]


WRONG_FILL = [
    ("key", "float32", None, "float16, got float32"),
    ("key", "float16", (2, 2, 16), "(batch, n_kv_heads, n_tokens, head_dim), got (2, 2, 16)"),
    (
        *("value", "float16", (2, 2, 5, 16)),
        "(batch=2, n_kv_heads=2, n_tokens=7, head_dim=16), got (2, 2, 5, 16)",
    ),
    ("lengths", "int32", (3,), "(batch=2), got (3,)"),
]


@pytest.mark.parametrize(
    "op, name, dtype, shape, message",
    [(op, *wrong) for op in ("SparqDecode", "DenseDecode") for wrong in WRONG]
    + [("CacheFill", *wrong) for wrong in WRONG_FILL],
)
def test_messages_of_tensors(
    lowering: ModuleType, op: str, name: str, dtype: str, shape: Any, message: str
) -> None:
    model, inputs = lowering.Model(), ["query", "key", "value", "active", "held"]
    right: dict[str, Any] = {**SHAPES}
    if op == "CacheFill":
        inputs = ["key", "value", "lengths", "held"]
        right["key"] = right["value"] = (2, 2, 7, 16)
    kinds = {tensor: "float16" if tensor in ("query", "key", "value") else "int32" for tensor in inputs}
    kinds[name], right[name] = dtype, right[name] if shape is None else shape
    for tensor in inputs:
        model.add_input(tensor, kinds[tensor], right[tensor])
    rule = "be" if shape is None else "have shape"
    assert (
        refusal(model.add_op, op, inputs, ["out"], attributes_of(op)) == f"{op}: {name} must {rule} {message}"
    )


@pytest.mark.parametrize(
    "second, message",
    [
        (dict(capacity=100), "capacity must be 200 as in the other operators of cache 'layer0', got 100"),
        (dict(index_bits=4), "index_bits must be 16 as in the other operators of cache 'layer0', got 4"),
        (
            shaped(query=(3, 4, 16), key=(3, 2, 16), value=(3, 2, 16), active=(3,)),
            "batch must be 2 as in the other operators of cache 'layer0', got 3",
        ),
        (
            dict(n_kv_heads=1, **shaped(key=(2, 1, 16), value=(2, 1, 16))),
            "n_kv_heads must be 2 as in the other operators of cache 'layer0', got 1",
        ),
        (
            shaped(query=(2, 4, 24), key=(2, 2, 24), value=(2, 2, 24)),
            "head_dim must be 16 as in the other operators of cache 'layer0', got 24",
        ),
        (shaped(query=(2, 2, 16)), "n_heads must be 4 as in the other operators of cache 'layer0', got 2"),
    ],
)
def test_operators_of_a_cache_must_agree(make: Any, second: dict, message: str) -> None:
    make.add("CacheFill", "_0", n_tokens=7)  # says nothing of query heads
    make.add("SparqDecode", "_1")
    assert refusal(make.add, "DenseDecode", "_2", **second) == f"DenseDecode: {message}"


def test_messages_of_fill(make: Any) -> None:
    with pytest.raises(ValueError, match=r"^CacheFill: n_tokens must be in \[1, capacity=200\], got 201$"):
        make.add("CacheFill", n_tokens=201)


def test_one_cache_one_ipu(lowering: ModuleType) -> None:
    model = lowering.Model()
    a, b = add_inputs(model, "_a"), add_inputs(model, "_b")
    model.add_op("DenseDecode", list(a.values()), ["a"], DECODE, virtual_graph=0)
    model.add_op("DenseDecode", list(b.values()), ["b"], DECODE, virtual_graph=1)
    message = "^DenseDecode: virtual graph must be 0 as in the other operators of cache 'layer0', got 1$"
    with pytest.raises(ValueError, match=message):  # of the model's first, whichever is lowered first
        model.compile(n_tiles=8, virtual_graphs={0: (0, 4), 1: (4, 8)})


def test_begin_gives_what_it_takes(lowering: ModuleType) -> None:
    """In a tensor of its own: what comes after may write to it."""
    model = lowering.Model()
    model.add_input("held", "int32", (BATCH,))
    begin = model.add_op("Begin", ["held"], ["begun"], {})
    about = model.describe(begin)
    assert not about["side_effect"] and about["subgraph_value"] < 1
    inputs = add_inputs(model)
    model.add_op("DenseDecode", [*inputs.values(), "begun"], ["out", "after"], DECODE)
    model.compile(n_tiles=3)
    held = np.array([7, -5], np.int32)
    out = model.run({**Held().token(np.random.default_rng(9), [1, 0]), "held": held})
    np.testing.assert_array_equal(out["begun"], held)
    np.testing.assert_array_equal(out["after"], [1, 0])


@pytest.mark.parametrize(
    "dtype, shape, attributes, message",
    [
        ("float16", (2,), {}, "held must be int32, got float16"),
        ("int32", (2, 1), {}, "held must have shape (batch), got (2, 1)"),
        ("int32", (2,), dict(capacity=4), "attributes must be none, got capacity"),
    ],
)
def test_messages_of_begin(
    lowering: ModuleType, dtype: str, shape: tuple, attributes: dict, message: str
) -> None:
    model = lowering.Model()
    model.add_input("held", dtype, shape)
    assert refusal(model.add_op, "Begin", ["held"], ["begun"], attributes) == f"Begin: {message}"


def test_attributes_and_inputs_must_be_given(make: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^no attribute key cache_name$"):
        make.add("DenseDecode", cache_name="")
    inputs = add_inputs(make.model, "_x")
    with pytest.raises(ValueError, match=r"^DenseDecode: active must be given, got nothing$"):
        make.model.add_op("DenseDecode", list(inputs.values())[:3], ["x"], DECODE)


def test_control_a_wrong_oracle_fails(make: Any) -> None:
    make.add("SparqDecode")
    make.model.compile()
    rng, held = np.random.default_rng(6), Held()
    token = held.token(rng)
    out = make.model.run(token)["out"]
    held.append(token["key"], -token["value"], token["active"])  # once more: not what the device did
    assert not np.array_equal(bits_of(out), bits_of(held.sparq(token["query"])))
