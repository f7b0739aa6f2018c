# SPDX-License-Identifier: Apache-2.0
"""`sparq_ipu.poptorch` without PopTorch: the call contract only.

A stand-in for `poptorch.custom_op` with the documented signature records the calls and holds them to what
PopTorch documents about types. Nothing here runs on an IPU; that the operators compute what the contract says
is tested elsewhere, with them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from calls import refusal

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import sparq_ipu.torch  # noqa: E402
from sparq_ipu.poptorch import DenseAttention, SparqAttention, contract, library  # noqa: E402
from sparq_ipu.poptorch import attention as poptorch_attention  # noqa: E402
from sparq_reference import SparqSettings, exact  # noqa: E402

SHAPE = dict(batch=2, n_kv_heads=2, head_dim=16, capacity=48)
SETTINGS = dict(rank=4, top_k=6, n_local=2, mean_value=True)
#: what travels of a cache where nothing is asked for
OPTIONS = dict(index_bits=16, row_bits=16, index_components=0, memory="streaming", hot_rows=0)
ROOT = Path(__file__).resolve().parents[2]


class StandIn(types.ModuleType):
    """`poptorch.custom_op(inputs, name, domain, domain_version, example_outputs, attributes=None) -> list of
    tensors`."""

    def __init__(self):
        super().__init__("poptorch")
        self.calls = []

    def isRunningOnIpu(self):
        return True

    def custom_op(self, inputs, name, domain, domain_version, example_outputs, attributes=None):
        assert isinstance(inputs, (list, tuple)) and all(isinstance(i, torch.Tensor) for i in inputs)
        assert isinstance(example_outputs, (list, tuple))
        assert isinstance(name, str) and isinstance(domain, str) and type(domain_version) is int
        for key, value in (attributes or {}).items():
            assert type(key) is str and key.isascii()
            assert type(value) in (int, float, str), (
                f"{key}: PopTorch documents no attribute of {type(value)}"
            )
            assert not isinstance(value, str) or (value and value.isascii())
        self.calls.append((name, domain, domain_version, list(inputs), dict(attributes or {})))
        return [torch.zeros_like(output) for output in example_outputs]


@pytest.fixture
def ipu(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(poptorch_attention, "poptorch", stand_in)
    monkeypatch.setattr(poptorch_attention, "load_library", lambda: None)
    return stand_in


def test_decode_call(ipu):
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    query, key, value = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    output = module(query, key, value)
    assert output.shape == query.shape and output.dtype == query.dtype
    ((name, domain, version, inputs, attributes),) = ipu.calls
    assert (name, domain, version) == ("SparqDecode", "ai.sparq", 1)
    assert [(tuple(i.shape), i.dtype) for i in inputs] == [
        ((2, 4, 16), torch.float16),
        ((2, 2, 16), torch.float16),
        ((2, 2, 16), torch.float16),
        ((2,), torch.int32),
        ((2,), torch.int32),
    ]
    assert inputs[3].tolist() == [1, 1]
    assert attributes == dict(
        rank=4, top_k=6, n_local=2, mean_value=1, capacity=48, n_kv_heads=2, cache_name="layer0", **OPTIONS
    )
    assert type(attributes["mean_value"]) is int
    assert list(module.buffers()) == []  # nothing of the fallback goes to the device


def test_dense_call(ipu):
    module = DenseAttention(**SHAPE, cache_name="layer1")
    module(torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16), torch.tensor([0, 1]))
    ((name, _, _, inputs, attributes),) = ipu.calls
    assert name == "DenseDecode" and inputs[3].tolist() == [0, 1]
    assert attributes == dict(capacity=48, n_kv_heads=2, cache_name="layer1", **OPTIONS)


def test_fill_call(ipu):
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    held = module.fill(torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16), torch.tensor([5, -1]))
    ((name, domain, version, inputs, attributes),) = ipu.calls
    assert (name, domain, version) == ("CacheFill", "ai.sparq", 1)
    assert [(tuple(i.shape), i.dtype) for i in inputs] == [
        ((2, 2, 5, 16), torch.float16),
        ((2, 2, 5, 16), torch.float16),
        ((2,), torch.int32),
        ((2,), torch.int32),
    ]
    assert inputs[2].tolist() == [5, -1]
    assert attributes == dict(capacity=48, cache_name="layer0", **OPTIONS)
    assert held.dtype == torch.int32


def test_what_an_operator_returns_orders_the_next_one(ipu):
    """The tensor itself is an input, so the order is one of data; the stand-in says which output it was."""
    made = []

    def custom_op(inputs, name, domain, domain_version, example_outputs, attributes=None):
        made.append([torch.full_like(output, 7 + len(made)) for output in example_outputs])
        ipu.calls.append(list(inputs))
        return made[-1]

    ipu.custom_op = custom_op
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    tokens = torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    token = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    held = module.fill(*tokens)
    output, held = module.step(*token, held=held)
    assert output.tolist() == made[1][0].tolist() and held.tolist() == made[1][1].tolist() == [8, 8]
    held = module.fill(*tokens, held=held)
    module(*token, held=held)
    assert [inputs[-1].tolist() for inputs in ipu.calls] == [[0, 0], [7, 7], [8, 8], [9, 9]]
    # active does not depend on it
    assert ipu.calls[1][3].tolist() == ipu.calls[3][3].tolist() == [1, 1]
    assert made[0][0].dtype == torch.int32 and len(made[0]) == 1 and len(made[1]) == 2
    assert refusal(module, *token, held=torch.zeros(2)) == "SparqDecode: held must be integers, got float32"


def test_begin_is_an_operator_on_the_ipu_alone(ipu, monkeypatch):
    held = torch.tensor([3, -1])
    begun = poptorch_attention.begin(held)
    ((name, domain, version, (given,), attributes),) = ipu.calls
    assert (name, domain, version, attributes) == ("Begin", "ai.sparq", 1, {})
    assert given.tolist() == [3, -1] and given.dtype == begun.dtype == torch.int32
    assert refusal(poptorch_attention.begin, torch.zeros(2)) == "Begin: held must be integers, got float32"
    monkeypatch.setattr(ipu, "isRunningOnIpu", lambda: False)
    assert poptorch_attention.begin(held).tolist() == [3, -1] and len(ipu.calls) == 1


def test_off_the_ipu_step_returns_output_and_lengths():
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    token = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    held = module.fill(torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16), torch.tensor([5, 3]))
    output, held = module.step(*token, active=torch.tensor([True, False]), held=held)
    assert output.shape == (2, 4, 16) and held.dtype == torch.int32 and held.tolist() == [6, 3]


@pytest.mark.parametrize("index_bits", [8, 4, 2])
def test_index_bits_is_an_attribute_of_every_operator(ipu, index_bits):
    for name, cls, settings in (("layer0", SparqAttention, SETTINGS), ("layer1", DenseAttention, {})):
        module = cls(**SHAPE, cache_name=name, index_bits=np.int64(index_bits), **settings)
        assert module.index_bits == index_bits and f"index_bits={index_bits}" in repr(module)
        module.fill(torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16))
        module(torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16))
    assert [call[0] for call in ipu.calls] == ["CacheFill", "SparqDecode", "CacheFill", "DenseDecode"]
    assert [call[4]["index_bits"] for call in ipu.calls] == [index_bits] * 4
    assert all(type(call[4]["index_bits"]) is int for call in ipu.calls)


TIERS = dict(memory="tiered", hot_rows=32)


def test_three_tiers_are_attributes(ipu):
    """Of every operator on the cache, with Python's own types."""
    options = dict(TIERS, hot_rows=np.int64(32), index_bits=4)
    module = SparqAttention(**SHAPE, cache_name="layer0", **options, **SETTINGS)
    assert module.options.memory == "tiered" and "memory='tiered', hot_rows=32" in repr(module)
    module.fill(torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16))
    module(torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16))
    assert [call[0] for call in ipu.calls] == ["CacheFill", "SparqDecode"]
    for *_, attributes in ipu.calls:
        assert {name: attributes[name] for name in TIERS} == TIERS and attributes["index_bits"] == 4
        assert type(attributes["hot_rows"]) is int


def test_off_the_ipu_three_tiers_change_nothing():
    modules = [
        SparqAttention(**SHAPE, cache_name="layer0", index_bits=4, **tiers, **SETTINGS)
        for tiers in (TIERS, {})
    ]
    tokens, step = torch.randn(2, 2, 2, 40, 16), torch.randn(4, 2, 2, 16)
    for module in modules:
        module.fill(*tokens)
    outputs = [module(torch.cat([step[0], step[1]], dim=1), *step[2:]) for module in modules]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(memory="sram"), "memory must be 'streaming' or 'tiered', got 'sram'"),
        (dict(memory=4), "memory must be 'streaming' or 'tiered', got 4"),
        (dict(index_bits=16), "index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
        (dict(memory="streaming"), "memory must be 'tiered' where hot rows are asked for, got 'streaming'"),
        (dict(hot_rows=65537), "hot_rows must be in [0, 65536], got 65537"),
        (dict(hot_rows=5), "hot_rows must be 0 or at least top_k=6, got 5"),
        (dict(hot_rows=2.5), "hot_rows must be an integer in [0, 65536], got 2.5"),
        (
            dict(top_k=65537, capacity=70000),
            "top_k must be at most 65536 where memory is 'tiered', got 65537",
        ),
    ],
)
def test_modules_refuse_other_tiers(change, message):
    arguments = {**SHAPE, **SETTINGS, "index_bits": 4, **TIERS, **change}
    with pytest.raises(ValueError, match="^SparqAttention: " + re.escape(message)):
        SparqAttention(cache_name="layer0", **arguments)


def test_dense_attention_has_no_tiers():
    for options, got in (
        (dict(memory="tiered", index_bits=4), "'streaming', got 'tiered'"),
        (dict(memory="sram"), "'streaming' or 'tiered', got 'sram'"),
        (dict(hot_rows=8), "'tiered' where hot rows are asked for, got 'streaming'"),
    ):
        with pytest.raises(ValueError, match=f"^DenseAttention: memory must be {got}$"):
            DenseAttention(**SHAPE, cache_name="layer0", **options)


def test_the_library_is_loaded_before_the_call(monkeypatch):
    stand_in, order = StandIn(), []
    monkeypatch.setattr(poptorch_attention, "poptorch", stand_in)
    monkeypatch.setattr(poptorch_attention, "load_library", lambda: order.append(len(stand_in.calls)))
    module = DenseAttention(**SHAPE, cache_name="layer0")
    module(torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16))
    assert order == [0] and len(stand_in.calls) == 1


@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_off_the_ipu_the_modules_are_those_of_sparq_ipu_torch(index_bits):
    """One row has a block of 64 positions in its index, which scores differently with fewer bits."""
    shape, outputs = dict(SHAPE, capacity=150), []
    for bits in (index_bits, 16):
        ours = SparqAttention(**shape, cache_name="layer0", index_bits=bits, **SETTINGS)
        theirs = sparq_ipu.torch.SparqAttention(**shape, index_bits=bits, **SETTINGS)
        torch.manual_seed(0)
        key, value = torch.randn(2, 2, 140, 16), torch.randn(2, 2, 140, 16)
        ours.fill(value, key)
        assert ours.fill(key, value, torch.tensor([126, 7])).tolist() == [126, 7]
        theirs.append(key, value, torch.tensor([126, 7]))
        for _ in range(4):
            step = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16), torch.tensor([1, 0])
            outputs.append(ours(*step))
            assert torch.equal(outputs[-1], theirs(*step))
    same = [torch.equal(one, other) for one, other in zip(outputs[:4], outputs[4:])]
    assert all(same) == (index_bits == 16)


def test_fill_replaces_rows_or_leaves_them():
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    key, value = torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    module.fill(key, value)
    assert module.fill(key[:, :, 5:9], value[:, :, 5:9], torch.tensor([-1, 3])).tolist() == [20, 3]
    with pytest.raises(ValueError, match=r"^CacheFill: lengths must be in \[-1, n_tokens=4\], got 5"):
        module.fill(key[:, :, :4], value[:, :, :4], torch.tensor([5, 0]))
    assert refusal(module.fill, key / 0, value).startswith("append: key must be finite")
    step = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    twin = sparq_ipu.torch.SparqAttention(**SHAPE, **SETTINGS)
    both = [
        torch.stack([torch.cat([t[0], t[0]], dim=1), torch.cat([t[1, :, 5:8], t[1], t[1]], dim=1)[:, :40]])
        for t in (key, value)
    ]
    twin.append(*both, torch.tensor([20, 3]))
    assert torch.equal(module(*step), twin(*step))
    assert module.fill(key[:, :, :1], value[:, :, :1], torch.tensor([0, -1])).tolist() == [0, 4]


def test_off_the_ipu_an_index_has_fewer_components_too():
    """Where the kernels of a CPU have none, the reference computes."""
    options = dict(index_components=8, index_bits=8, memory="tiered")
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS, **options)
    whole = SparqAttention(**SHAPE, cache_name="layer1", **SETTINGS, index_bits=8)
    tokens = torch.randn(2, 2, 20, 16)
    step = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    for one in (module, whole):
        one.fill(tokens, tokens)
    key = torch.cat([tokens, step[1][:, :, None]], dim=2).half().numpy()
    value = torch.cat([tokens, step[2][:, :, None]], dim=2).half().numpy()
    both = dict(index_components=8, index_bits=8, **SETTINGS)
    expected = exact.sparq_attention(step[0].half().numpy(), key, value, **both)
    output = module(*step)
    assert np.array_equal(output.half().numpy(), expected)
    assert not torch.equal(whole(*step), output)


def test_every_setting_is_an_attribute():
    names = tuple(field.name for field in dataclasses.fields(SparqSettings))
    assert contract.ATTRIBUTES["SparqDecode"] == (*names, *contract.ATTRIBUTES["DenseDecode"])


@pytest.mark.parametrize(
    "lengths, got",
    [
        (torch.tensor([1.9, 2.9]), "be integers, got float32"),
        (torch.tensor([True, False]), "be integers, got bool"),
        (torch.tensor([2**32 + 1, 1]), "be in [-1, n_tokens=5], got 4294967297"),
        ([1, 2], "be a tensor, got list"),
    ],
    ids=str,
)
def test_fill_takes_integers(lengths, got):
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    tokens = torch.randn(2, 2, 5, 16)
    module.fill(tokens, tokens)
    assert refusal(module.fill, tokens, tokens, lengths) == f"CacheFill: lengths must {got}"
    message = "key must have shape (batch=2, n_kv_heads=2, n_tokens, head_dim=16), got (2, 2, 16)"
    with pytest.raises(ValueError, match="^CacheFill: " + re.escape(message) + "$"):
        module.fill(tokens[:, :, 0], tokens)
    assert refusal(module.fill, tokens, None) == "CacheFill: value must be a tensor, got NoneType"
    assert module.elsewhere.held().tolist() == [5, 5]


def test_on_the_ipu_lengths_and_active_are_integers(ipu):
    module = SparqAttention(**SHAPE, cache_name="layer0", **SETTINGS)
    tokens = torch.randn(2, 2, 5, 16)
    with pytest.raises(ValueError, match=r"^CacheFill: lengths must be integers, got float32$"):
        module.fill(tokens, tokens, torch.tensor([1.9, 2.9]))
    step = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    with pytest.raises(ValueError, match=r"^SparqDecode: active must be integers or bool, got float32$"):
        module(*step, torch.tensor([0.5, 0.0]))
    assert ipu.calls == []
    module(*step, torch.tensor([True, False]))
    assert ipu.calls[0][3][3].tolist() == [1, 0]


def test_settings_are_checked_and_travel_as_python_s_own(ipu):
    with pytest.raises(ValueError, match=r"^SparqAttention: mean_value must be True or False, got 'no'$"):
        SparqAttention(**SHAPE, cache_name="layer0", **{**SETTINGS, "mean_value": "no"})
    numpy_s = {name: np.bool_(x) if x is True else np.int64(x) for name, x in SETTINGS.items()}
    module = SparqAttention(**SHAPE, cache_name="layer0", **numpy_s)
    module(torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16))
    assert {name: ipu.calls[0][4][name] for name in SETTINGS} == SETTINGS


@pytest.mark.parametrize("name", ["", "œ", None])
def test_cache_names(name):
    message = "^SparqAttention: cache_name must be a string of ASCII characters, not empty, got " + re.escape(
        repr(name)
    )
    with pytest.raises(ValueError, match=message):
        SparqAttention(**SHAPE, cache_name=name, **SETTINGS)


def test_the_library_that_is_not_there_lists_where_it_was_sought(monkeypatch, tmp_path):
    library.load_library.cache_clear()
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path / "named.so"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(library, "candidates", lambda: [tmp_path / "named.so", tmp_path / "other.so"])
    message = (
        f"libsparq_popart.so must exist, got none; tried {tmp_path / 'named.so'}, {tmp_path / 'other.so'}"
    )
    with pytest.raises(FileNotFoundError, match="^load_library: " + re.escape(message)):
        library.load_library()


def test_where_the_library_is_sought(monkeypatch, tmp_path):
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path / "named.so"))
    assert library.candidates() == [tmp_path / "named.so"]
    monkeypatch.delenv(library.ENVIRONMENT)
    assert all(path.name == library.LIBRARY for path in library.candidates())


def test_a_library_that_does_not_load(monkeypatch, tmp_path):
    library.load_library.cache_clear()
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setenv(library.ENVIRONMENT, str(broken))
    message = r"^load_library: .*broken\.so must load, got: .*source enable\.sh"
    with pytest.raises(RuntimeError, match=message):
        library.load_library()


def example():
    path = ROOT / "examples" / "poptorch_decoder.py"
    spec = importlib.util.spec_from_file_location("poptorch_decoder", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_decoder_off_the_ipu():
    """SparQ over all positions is dense; two texts one after another do not see each other."""
    decoder = example()
    prompt = torch.randint(256, (2, 20), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    runs = {}
    for name, settings in (("dense", None), ("all", dict(rank=3, top_k=64)), ("few", dict(rank=3, top_k=4))):
        torch.manual_seed(0)
        model = decoder.Decoder(2, 64, settings).eval()
        for layer in model.layers:  # random weights hardly look at their context: make them
            layer.query.weight.data.mul_(8)
            layer.output.weight.data.mul_(8)
        with torch.no_grad():
            runs[name] = decoder.generate(model, prompt, 10)
            assert torch.equal(decoder.generate(model, prompt, 10), runs[name])
    assert torch.equal(runs["dense"], runs["all"])
    assert not torch.equal(runs["dense"], runs["few"])


def test_example_decoder_calls_the_operators(ipu):
    decoder = example()
    torch.manual_seed(0)
    model = decoder.Decoder(2, 64, SETTINGS).eval()
    with torch.no_grad():
        model(*(torch.zeros(2, dtype=torch.int32) for _ in range(2)), torch.ones(2, dtype=torch.int32))
    assert [call[0] for call in ipu.calls] == ["CacheFill", "SparqDecode"] * 2
    assert [call[4]["cache_name"] for call in ipu.calls] == ["layer0", "layer0", "layer1", "layer1"]
    assert ipu.calls[0][3][2].tolist() == [0, 0]  # `first`: empty the rows


def test_example_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["poptorch_decoder.py", "--help"])
    with pytest.raises(SystemExit):
        example().main()
    assert "--top-k" in capsys.readouterr().out
