# SPDX-License-Identifier: Apache-2.0
"""`sparq_ipu.torch`: operators and modules, bit for bit against the reference, traced and untraced."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import sparq_ipu  # noqa: E402
from sparq_ipu.torch import DenseAttention, SparqAttention, ops  # noqa: E402
from sparq_reference import exact  # noqa: E402

SHAPE = dict(batch=2, n_kv_heads=2, head_dim=16, capacity=48)
SETTINGS = dict(rank=4, top_k=6, n_local=2, mean_value=True)
STATES = [
    dict(state="tensors"),
    *(dict(device=d) for d in sparq_ipu.available_devices() if d in ("cpu", "reference")),
]
MODULES = [(DenseAttention, {}), (SparqAttention, SETTINGS)]


def draw(seed, *shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(cls, settings, query, key, value, lengths=None):
    function = exact.dense_attention if cls is DenseAttention else exact.sparq_attention
    arrays = (tensor.to(torch.float16).numpy() for tensor in (query, key, value))
    return torch.from_numpy(function(*arrays, lengths=lengths, **settings))


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("cls, settings", MODULES)
def test_module_equals_the_reference(cls, settings, state):
    """A ragged prompt, then steps in which a row may be inactive."""
    module = cls(**SHAPE, **settings, **state)
    key, value = draw(0, 2, 2, 20, 16), draw(1, 2, 2, 20, 16)
    rows = [(key[0], value[0]), (key[1, :, :11], value[1, :, :11])]
    module.append(key, value, torch.tensor([20, 11]))
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


@given(
    st.data(),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.sampled_from([8, 24]),
    st.integers(0, 2**16),
)
def test_operators_equal_the_reference(data, batch, n_kv_heads, group_size, head_dim, seed):
    capacity = data.draw(st.integers(1, 40))
    lengths = [data.draw(st.integers(1, capacity)) for _ in range(batch)]
    rank = data.draw(st.integers(1, head_dim))
    top_k = data.draw(st.integers(1, capacity + 2))
    settings = dict(
        rank=rank,
        top_k=top_k,
        n_local=data.draw(st.integers(0, top_k)),
        mean_value=data.draw(st.booleans()),
    )
    cache = ops.empty_cache(batch, n_kv_heads, head_dim, capacity)
    key, value = (draw(seed + i, batch, n_kv_heads, capacity, head_dim) for i in range(2))
    first = [data.draw(st.integers(0, n)) for n in lengths]
    ops.cache_append(**cache, key=key, value=value, counts=torch.tensor(first))
    for b, (done, n) in enumerate(zip(first, lengths)):  # the rest of each row, one row at a time
        if n > done:
            counts = torch.zeros(batch, dtype=torch.int64)
            counts[b] = n - done
            ops.cache_append(**cache, key=key[:, :, done:], value=value[:, :, done:], counts=counts)
    assert cache["lengths"].tolist() == lengths
    query = draw(seed + 2, batch, n_kv_heads * group_size, head_dim)
    output = ops.sparq_attention(query, **cache, **settings)
    assert torch.equal(output, expected(SparqAttention, settings, query, key, value, np.array(lengths)))
    del cache["value_sum"]
    assert torch.equal(
        ops.dense_attention(query, **cache),
        expected(DenseAttention, {}, query, key, value, np.array(lengths)),
    )


def test_operators_without_the_kernels(monkeypatch):
    """NumPy alone gives the same bits as the CPU kernels."""
    cache = ops.empty_cache(2, 2, 16, 48)
    key, value = draw(0, 2, 2, 40, 16), draw(1, 2, 2, 40, 16)
    for part in (slice(0, 25), slice(25, 40)):
        ops.cache_append(**cache, key=key[:, :, part], value=value[:, :, part])
    assert np.array_equal(cache["value_sum"].numpy(), exact.sum_values(value.numpy()))
    query = draw(2, 2, 6, 16)

    def both():
        dense = ops.dense_attention(query, cache["key_cache"], cache["value_cache"], cache["lengths"])
        return dense, ops.sparq_attention(query, **cache, **SETTINGS)

    fast = both()
    monkeypatch.setattr(ops, "available_devices", lambda: ["reference"])
    for one, other in zip(fast, both()):
        assert torch.equal(one, other)
    assert not torch.equal(*fast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_rounded_on_the_way_in(dtype):
    module = SparqAttention(**SHAPE, **SETTINGS)
    key, value, query = (
        draw(0, 2, 2, 30, 16, dtype=dtype),
        draw(1, 2, 2, 30, 16, dtype=dtype),
        draw(2, 2, 4, 16),
    )
    module.append(key[:, :, :29], value[:, :, :29])
    output = module(query.to(dtype), key[:, :, 29], value[:, :, 29])
    assert output.dtype == dtype
    assert torch.equal(
        output, expected(SparqAttention, SETTINGS, query.to(dtype), key, value, None).to(dtype)
    )


@pytest.mark.parametrize("cls, settings", MODULES)
def test_compiled_and_exported_equal_the_module(cls, settings):
    module = cls(**SHAPE, **settings, state="tensors").eval()
    module.append(draw(0, 2, 2, 20, 16), draw(1, 2, 2, 20, 16), torch.tensor([20, 11]))
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    step = draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16), torch.tensor([1, 0])
    exported = torch.export.export(copy.deepcopy(module), step).module()
    for seed in (10, 20):
        step = draw(seed, 2, 4, 16), draw(seed + 1, 2, 2, 16), draw(seed + 2, 2, 2, 16), torch.tensor([1, 1])
        with torch.no_grad():
            output = module(*step)
            assert torch.equal(compiled(*step), output)
            assert torch.equal(exported(*step), output)
    assert module.held().tolist() == [22, 13]


def test_device_state_leaves_the_graph_by_name():
    """With the cache outside of tensors, torch.compile breaks the graph there, and refuses if it may not."""
    module = SparqAttention(**SHAPE, **SETTINGS, device="reference")
    module.append(draw(0, 2, 2, 20, 16), draw(1, 2, 2, 20, 16))
    twin = copy.deepcopy(module)
    step = draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16)
    assert torch.equal(torch.compile(module, backend="eager")(*step), twin(*step))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"disable"):
        torch.compile(twin, backend="eager", fullgraph=True)(*step)


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with torch 2.4")
def test_operators_are_well_formed():
    """Schemas, declared mutation, meta implementations and tracing, by torch's own checker."""
    cache = ops.empty_cache(2, 2, 16, 48)
    key, value, query = draw(0, 2, 2, 5, 16), draw(1, 2, 2, 5, 16), draw(2, 2, 4, 16)
    tensors = tuple(cache.values())
    torch.library.opcheck(torch.ops.sparq_ipu.cache_append.default, (*tensors, key, value))
    torch.library.opcheck(
        torch.ops.sparq_ipu.cache_append.default, (*tensors, key, value, torch.tensor([3, 5]))
    )
    ops.cache_append(*tensors, key, value)
    torch.library.opcheck(torch.ops.sparq_ipu.sparq_attention.default, (query, *tensors, 4, 6, 2, True))
    without_sum = (cache["key_cache"], cache["value_cache"], cache["lengths"])
    torch.library.opcheck(torch.ops.sparq_ipu.dense_attention.default, (query, *without_sum))


def test_cache_is_not_in_the_state_dict():
    assert len(SparqAttention(**SHAPE, **SETTINGS, state="tensors").state_dict()) == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(rank=0), "SparqAttention: rank must be in [1, head_dim=16], got 0"),
        (dict(n_local=7), "SparqAttention: n_local must be in [0, top_k=6], got 7"),
        (dict(head_dim=12), "SparqAttention: head_dim must be a multiple of 8, got 12"),
        (dict(capacity=0), "SparqAttention: capacity must be in [1, 16777216], got 0"),
        (dict(state="disk"), "SparqAttention: state must be one of device, tensors, got 'disk'"),
        (
            dict(state="tensors", device="cpu"),
            'SparqAttention: device must be "auto", without options, for state="tensors", got \'cpu\'',
        ),
    ],
)
def test_construction(changes, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        SparqAttention(**{**SHAPE, **SETTINGS, **changes})


@pytest.mark.parametrize("state", STATES, ids=str)
def test_refusals_leave_the_cache_as_it_was(state):
    module = SparqAttention(**SHAPE, **SETTINGS, **state)
    query, key, value = draw(0, 2, 4, 16), draw(1, 2, 2, 40, 16), draw(2, 2, 2, 40, 16)
    with pytest.raises(ValueError, match=r"^sparq_attention: cache must hold at least one position"):
        module(query, key[:, :, 0], value[:, :, 0], torch.tensor([1, 0]))
    module.reset()
    module.append(key, value)
    infinite = value.clone()
    infinite[1, 0, 3, 5] = float("inf")
    twin = copy.deepcopy(module) if state == dict(state="tensors") else None
    for message, call in (
        ("append: length must be at most capacity=48", lambda: module.append(key[:, :, :9], value[:, :, :9])),
        ("append: value must be finite", lambda: module.append(key[:, :, :5], infinite[:, :, :5])),
        ("append: value must have the shape of key", lambda: module.append(key[:, :, :2], value[:, :, :1])),
        (
            "append: lengths must be in [0, n_tokens=2]",
            lambda: module.append(key[:, :, :2], value[:, :, :2], torch.tensor([3, 0])),
        ),
        ("reorder: index must be in [0, batch=2)", lambda: module.reorder(torch.tensor([0, 2]))),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            call()
    if twin is not None:
        for one, other in zip(module.buffers(), twin.buffers()):
            assert torch.equal(one, other)
    step = query, key[:, :, 0], value[:, :, 0]
    full = (torch.cat([tensor, tensor[:, :, :1]], dim=2) for tensor in (key, value))
    assert torch.equal(module(*step), expected(SparqAttention, SETTINGS, query, *full))
