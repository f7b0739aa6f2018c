# SPDX-License-Identifier: Apache-2.0
"""`sparq_ipu.torch`: modules, bit for bit against the reference, compiled and not."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from calls import refusal

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import sparq_ipu  # noqa: E402
from sparq_ipu.torch import DenseAttention, SparqAttention  # noqa: E402
from sparq_ipu.torch.graphs import outside_graphs  # noqa: E402
from sparq_reference import exact  # noqa: E402

SHAPE = dict(batch=2, n_kv_heads=2, head_dim=16, capacity=48)
SETTINGS = dict(rank=4, top_k=6, n_local=2, mean_value=True)
DEVICES = [dict(device=d) for d in sparq_ipu.available_devices() if d in ("cpu", "reference")]
MODULES = [(DenseAttention, {}), (SparqAttention, SETTINGS)]


#: a module whose row 1 holds nothing
EMPTY = "cache must hold at least one position of every batch element, got none of element 1"


def draw(seed, *shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(cls, settings, query, key, value, lengths=None):
    function = exact.dense_attention if cls is DenseAttention else exact.sparq_attention
    arrays = (tensor.to(torch.float16).numpy() for tensor in (query, key, value))
    return torch.from_numpy(function(*arrays, lengths=lengths, **settings))


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("cls, settings", [*MODULES, (SparqAttention, dict(SETTINGS, index_bits=4))])
def test_module_equals_the_reference(cls, settings, device):
    """A ragged prompt, then steps in which a row may be inactive; a key index has two blocks, and one."""
    n = 126 if "index_bits" in settings else 20
    module = cls(**dict(SHAPE, capacity=n + 9), **settings, **device)
    assert module.index_bits == settings.get("index_bits", 16)
    key, value = draw(0, 2, 2, n, 16), draw(1, 2, 2, n, 16)
    rows = [(key[0], value[0]), (key[1, :, : n - 9], value[1, :, : n - 9])]
    module.append(key, value, torch.tensor([n, n - 9]))
    for step in range(4):
        query, new_key, new_value = (draw(10 * step + i, 2, n, 16) for i, n in enumerate((4, 2, 2)))
        active = torch.tensor([1, step % 2])
        output = module(query, new_key, new_value, active)
        for b in range(2):
            if active[b]:
                rows[b] = tuple(
                    torch.cat([old, new[b][:, None]], dim=1)
                    for old, new in zip(rows[b], (new_key, new_value))
                )
            alone = expected(cls, settings, query[b : b + 1], rows[b][0][None], rows[b][1][None])
            assert torch.equal(output[b : b + 1], alone)
        assert module.held().tolist() == [rows[b][0].shape[1] for b in range(2)]
    module.reorder(torch.tensor([1, 1]))
    query = draw(99, 1, 4, 16).expand(2, 4, 16).contiguous()
    none = torch.zeros(2, 2, 16), torch.zeros(2, 2, 16), torch.tensor([0, 0])
    output = module(query, *none)
    assert torch.equal(output[0], output[1])
    assert torch.equal(output[1:], expected(cls, settings, query[1:], rows[1][0][None], rows[1][1][None]))
    module.reset()
    assert module.held().tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_rounded_on_the_way_in(dtype):
    module = SparqAttention(**SHAPE, **SETTINGS)
    key = draw(0, 2, 2, 30, 16, dtype=dtype)
    value = draw(1, 2, 2, 30, 16, dtype=dtype)
    query = draw(2, 2, 4, 16)
    module.append(key[:, :, :29], value[:, :, :29])
    output = module(query.to(dtype), key[:, :, 29], value[:, :, 29])
    assert output.dtype == dtype
    assert torch.equal(
        output, expected(SparqAttention, SETTINGS, query.to(dtype), key, value, None).to(dtype)
    )


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch.compiler came with torch 2.1")
def test_what_uses_numpy_is_disabled_while_the_compiler_traces(monkeypatch):
    monkeypatch.setattr(torch.compiler, "disable", lambda function: lambda: "disabled")
    function = outside_graphs(lambda: "run")
    assert function() == "run"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert function() == "disabled"


def test_a_torch_without_a_compiler_has_no_graph_to_leave(monkeypatch):
    """PopTorch's torch 2.0 is one."""
    monkeypatch.delattr(torch, "compiler", raising=False)
    assert outside_graphs(lambda: "run")() == "run"


def test_a_module_leaves_the_graph_by_name():
    """The cache is outside of tensors: torch.compile breaks the graph there, and refuses if it may not."""
    module = SparqAttention(**SHAPE, **SETTINGS, device="reference")
    module.append(draw(0, 2, 2, 20, 16), draw(1, 2, 2, 20, 16))
    twin = copy.deepcopy(module)
    step = draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16)
    assert torch.equal(torch.compile(module, backend="eager")(*step), twin(*step))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"disable"):
        torch.compile(twin, backend="eager", fullgraph=True)(*step)


def test_cache_is_not_in_the_state_dict():
    assert len(SparqAttention(**SHAPE, **SETTINGS).state_dict()) == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(rank=0), "SparqAttention: rank must be in [1, head_dim=16], got 0"),
        (dict(capacity=0), "SparqAttention: capacity must be in [1, 16777216], got 0"),
        (
            dict(device="emulator", memory="sram", n_tiles=1),
            "SparqAttention: memory must be 'streaming' or 'tiered', got 'sram'",
        ),
        (
            dict(topk=6),
            "SparqAttention: options must be among ['rank', 'top_k', 'n_local', 'mean_value', 'index_bits', ",
        ),
    ],
)
def test_construction(changes, message):
    if "memory" in changes and "emulator" not in sparq_ipu.available_devices():
        pytest.skip("there is no emulator here")
    assert refusal(SparqAttention, **{**SHAPE, **SETTINGS, **changes}).startswith(message)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_setting_that_is_missing(device):
    with pytest.raises(ValueError, match=r"^SparqAttention: rank must be given, got nothing$"):
        SparqAttention(**SHAPE, top_k=6, **device)


@pytest.mark.skipif("emulator" not in sparq_ipu.available_devices(), reason="there is no emulator here")
def test_a_cache_is_asked_which_settings_it_takes():
    """Dense attention is there in SRAM; SparQ attention is refused in `test_construction`."""
    module = DenseAttention(**SHAPE, device="emulator", memory="sram", n_tiles=1)
    assert module.held().tolist() == [0, 0]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_refusals_leave_the_cache_as_it_was(device):
    module = SparqAttention(**SHAPE, **SETTINGS, **device)
    query, key, value = draw(0, 2, 4, 16), draw(1, 2, 2, 40, 16), draw(2, 2, 2, 40, 16)
    with pytest.raises(ValueError, match=r"^sparq_attention: cache must hold at least one position"):
        module(query, key[:, :, 0], value[:, :, 0], torch.tensor([1, 0]))
    module.reset()
    module.append(key, value)
    infinite = value.clone()
    infinite[1, 0, 3, 5] = float("inf")
    twin = copy.deepcopy(module)
    for message, call in (
        ("append: length must be at most capacity=48", lambda: module.append(key[:, :, :9], value[:, :, :9])),
        ("append: value must be finite", lambda: module.append(key[:, :, :5], infinite[:, :, :5])),
        ("append: value must have the shape of key", lambda: module.append(key[:, :, :2], value[:, :, :1])),
        (
            "append: lengths must be in [0, n_tokens=2]",
            lambda: module.append(key[:, :, :2], value[:, :, :2], torch.tensor([3, 0])),
        ),
        ("reorder: index must be in [0, batch=2)", lambda: module.reorder(torch.tensor([0, 2]))),
        ("append: key must be floating point, got int8", lambda: module.append(key.char(), value)),
        ("append: value must be floating point, got int64", lambda: module.append(key, value.long())),
    ):
        assert refusal(call).startswith(message)
    assert_unchanged(module, snapshot(twin))
    step = query, key[:, :, 0], value[:, :, 0]
    full = (torch.cat([tensor, tensor[:, :, :1]], dim=2) for tensor in (key, value))
    assert torch.equal(module(*step), expected(SparqAttention, SETTINGS, query, *full))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_copy_of_a_module(device, duplicate):
    """Holds the same, and nothing of it is shared."""
    module = SparqAttention(**SHAPE, **SETTINGS, **device)
    module.append(draw(1, 2, 2, 20, 16), draw(2, 2, 2, 20, 16), torch.tensor([20, 11]))
    step = draw(3, 2, 4, 16), draw(4, 2, 2, 16), draw(5, 2, 2, 16)
    same = duplicate(module)
    before = snapshot(same)
    assert_unchanged(module, before)
    output = module(*step)
    assert_unchanged(same, before)
    assert torch.equal(same(*step), output) and repr(same) == repr(module)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_tensors_that_are_elsewhere(device):
    """A cache in the memory of the host can not read them."""
    module = SparqAttention(**SHAPE, **SETTINGS, **device)
    query, key, value = draw(0, 2, 4, 16), draw(1, 2, 2, 5, 16), draw(2, 2, 2, 5, 16)
    module.append(key, value)
    before = snapshot(module)
    step, ones = dict(query=query, key=key[:, :, 0], value=value[:, :, 0]), torch.ones(2, dtype=torch.int64)
    for call, op, arguments in (
        (module.append, "append", dict(key=key, value=value, lengths=ones)),
        (module, "sparq_attention", dict(step, active=ones)),
        (module.reorder, "reorder", dict(index=ones)),
    ):
        for name, tensor in arguments.items():
            with pytest.raises(ValueError, match=f"^{op}: {name} must be on the CPU, got meta$"):
                call(**dict(arguments, **{name: tensor.to("meta")}))
    assert_unchanged(module, before)


def snapshot(module):
    """Everything that later steps depend on."""
    return [module.held(), *map(torch.from_numpy, module.cache.read())]


def assert_unchanged(module, before):
    after = snapshot(module)
    assert len(after) == len(before)
    assert all(torch.equal(one, other) for one, other in zip(after, before))


def steps_to_refuse():
    """Name -> (query, key, value, active) and the message, for a cache in which row 1 holds nothing."""
    query, key, value = draw(0, 2, 4, 16), draw(1, 2, 2, 16), draw(2, 2, 2, 16)
    large = query.float()
    large[1, 2, 3] = 1e6
    row = "have shape (batch=2, n_kv_heads=2, head_dim=16)"
    return {
        "nan": ((query * np.nan, key, value), "query must be finite, got nan at [0, 0, 0]"),
        "beyond fp16": (
            (large, key, value),
            "query must be at most 65504 in magnitude, the largest float16, got 1000000.0 at [1, 2, 3]",
        ),
        "heads": ((draw(0, 2, 3, 16), key, value), "n_heads must be a multiple of n_kv_heads=2, got 3"),
        "head_dim": (
            (query[..., :8], key, value),
            "query must have shape (batch=2, n_heads, head_dim=16), got (2, 4, 8)",
        ),
        "empty row": ((query, key, value, torch.tensor([1, 0])), EMPTY),
        "active": (
            (query, key, value, torch.tensor([1, 0, 1])),
            "active must have shape (batch=2,), got (3,)",
        ),
        "active between": (
            (query, key, value, torch.tensor([0.5, 0.0])),
            "active must be integers or bool, got float32",
        ),
        "4-d key": ((query, key[:, :, None], value), f"key must {row}, got (2, 2, 1, 16)"),
        "value of another batch": ((query, key, value[:1]), f"value must {row}, got (1, 2, 16)"),
        "list": ((query.tolist(), key, value), "query must be a tensor, got list"),
        "codes for a query": ((query.to(torch.int8), key, value), "query must be floating point, got int8"),
        "codes for keys": ((query, key.to(torch.uint8), value), "key must be floating point, got uint8"),
        "bool": ((query, key, value > 0), "value must be floating point, got bool"),
        "complex": ((query, key, value.float() * 1j), "value must be floating point, got complex64"),
        "active as a list": ((query, key, value, [1, 1]), "active must be a tensor, got list"),
    }


@pytest.mark.parametrize("name", steps_to_refuse())
@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("cls, settings", MODULES)
def test_a_refused_step_stores_no_token(cls, settings, device, name):
    module = cls(**SHAPE, **settings, **device)
    module.append(draw(3, 2, 2, 5, 16), draw(4, 2, 2, 5, 16), torch.tensor([5, 0]))
    before = snapshot(module)
    step, message = steps_to_refuse()[name]
    op = "dense_attention" if cls is DenseAttention else "sparq_attention"
    assert refusal(module, *step) == f"{op}: {message}"
    assert_unchanged(module, before)
    module(draw(0, 2, 4, 16), draw(1, 2, 2, 16), draw(2, 2, 2, 16))
    assert module.held().tolist() == [6, 1]  # negative control: only a step that works changes it


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize(
    "lengths, got",
    [
        (torch.tensor([1.9, 2.9]), "be integers, got float32"),
        (torch.tensor([1, 2], dtype=torch.bfloat16), "be integers, got bfloat16"),
        (torch.tensor([True, False]), "be integers, got bool"),
        (torch.tensor([1]), "have shape (batch=2,), got (1,)"),
        ([1, 2], "be a tensor, got list"),
    ],
    ids=str,
)
def test_lengths_are_integers(device, lengths, got):
    module = SparqAttention(**SHAPE, **SETTINGS, **device)
    key = draw(0, 2, 2, 3, 16)
    assert refusal(module.append, key, key, lengths) == f"append: lengths must {got}"
    assert refusal(module.append, key, None) == "append: value must be a tensor, got NoneType"
    assert module.held().tolist() == [0, 0]
    module.append(key, key, torch.tensor([1, 2], dtype=torch.uint8))
    assert module.held().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_reorder_by_any_integers(device, dtype):
    module = DenseAttention(**SHAPE, **device)
    key, value = draw(0, 2, 2, 5, 16), draw(1, 2, 2, 5, 16)
    module.append(key, value, torch.tensor([5, 3]))
    module.reorder(torch.tensor([1, 0], dtype=dtype))
    assert module.held().tolist() == [3, 5]
    query = draw(2, 2, 4, 16)
    none = torch.zeros(2, 2, 16), torch.zeros(2, 2, 16), torch.tensor([0, 0])
    swapped = expected(DenseAttention, {}, query, key[[1, 0]], value[[1, 0]], np.array([3, 5]))
    assert torch.equal(module(query, *none), swapped)
    for index, got in (
        (torch.tensor([True, False]), "be integers, got bool"),
        ([1, 0], "be a tensor, got list"),
        (torch.tensor([1.0, 0.0]), "be integers, got float32"),
    ):
        assert refusal(module.reorder, index) == f"reorder: index must {got}"
    assert module.held().tolist() == [3, 5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_casting_a_model_leaves_its_cache(device, dtype):
    model = torch.nn.ModuleDict(
        dict(linear=torch.nn.Linear(16, 16), attention=SparqAttention(**SHAPE, **SETTINGS, **device))
    )
    attention = model["attention"]
    attention.append(draw(0, 2, 2, 5, 16), draw(1, 2, 2, 5, 16))
    before = snapshot(attention)
    model.to(dtype)
    assert model["linear"].weight.dtype == dtype  # negative control
    assert [tensor.dtype for tensor in snapshot(attention)] == [tensor.dtype for tensor in before]
    assert_unchanged(attention, before)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_cache_joins_no_graph_of_gradients(device):
    """Outside of no_grad, with keys and values from trainable weights."""
    module, twin = (SparqAttention(**SHAPE, **SETTINGS, **device) for _ in range(2))
    key, value, query = draw(0, 2, 2, 5, 16), draw(1, 2, 2, 5, 16), draw(2, 2, 4, 16)
    for tensor in (key, value, query):
        tensor.requires_grad_()
    for one, step in ((module, (query, key, value)), (twin, (query.detach(), key.detach(), value.detach()))):
        one.append(*step[1:])
        one(step[0], step[1][:, :, 0], step[2][:, :, 0])
    assert_unchanged(module, snapshot(twin))


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_of_torch", [1, 2])
def test_bits_between_operations_of_torch(n_threads: int, n_of_torch: int) -> None:
    """On PyTorch's own threads; tests/cpu/test_cpu_openmp.py has what the kernels ask of a runtime."""
    _cpu = pytest.importorskip("sparq_ipu._cpu")
    assert _cpu.use_openmp()
    rng = np.random.default_rng(n_threads)
    key, value = rng.standard_normal((2, 1, 2, 5000, 16)).astype(np.float16)
    query = rng.standard_normal((1, 4, 16)).astype(np.float16)
    cache = sparq_ipu.KVCache(1, 2, 16, 5000, device="cpu", n_threads=n_threads)
    cache.append(key, value)
    expected = exact.sparq_attention(query, key, value, rank=8, top_k=50).view(np.uint16)
    before, weight = torch.get_num_threads(), torch.ones(512, 512)
    torch.set_num_threads(n_of_torch)
    try:
        for _ in range(3):
            assert float((weight @ weight)[0, 0]) == 512
            assert (
                sparq_ipu.sparq_attention(query, cache, rank=8, top_k=50).view(np.uint16) == expected
            ).all()
    finally:
        torch.set_num_threads(before)
