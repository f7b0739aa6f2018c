# SPDX-License-Identifier: Apache-2.0
"""index_bits of `sparq_ipu.torch`: operators and modules, bit for bit against the reference."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_bits import DEVICES, REFUSED, SETTINGS, SHAPE, draw, expected, refusal

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from sparq_ipu.torch import DenseAttention, SparqAttention, ops  # noqa: E402

STATES = [dict(state="tensors"), *(dict(device=device) for device in DEVICES)]


def tensors(*arrays):
    return tuple(torch.from_numpy(array) for array in arrays)


@given(
    st.integers(1, 2), st.sampled_from([1, 3]), st.integers(1, 140), st.sampled_from([16, 8, 4, 2]), st.data()
)
def test_the_operator_equals_the_reference(batch, group_size, most, index_bits, data):
    seed = data.draw(st.integers(0, 2**16))
    lengths = [data.draw(st.integers(1, most)) for _ in range(batch)]
    settings = dict(rank=data.draw(st.integers(1, 16)), top_k=data.draw(st.integers(1, 40)))
    key, value = draw(seed, batch, 2, most, 16), draw(seed + 1, batch, 2, most, 16)
    query = draw(seed + 2, batch, 2 * group_size, 16)
    cache = ops.empty_cache(batch, 2, 16, most)
    new = tensors(key, value)
    ops.cache_append(**cache, key=new[0], value=new[1], counts=torch.tensor(lengths))
    output = ops.sparq_attention(torch.from_numpy(query), **cache, index_bits=index_bits, **settings)
    assert np.array_equal(output.numpy(), expected(query, key, value, lengths, index_bits, settings))


def filled(n_tokens=140):
    cache = ops.empty_cache(2, 2, 16, 150)
    new = tensors(draw(0, 2, 2, n_tokens, 16), draw(1, 2, 2, n_tokens, 16))
    ops.cache_append(**cache, key=new[0], value=new[1])
    return cache


def test_calls_from_before_index_bits_are_valid():
    """They mean 16."""
    cache, query = filled(), torch.from_numpy(draw(2, 2, 4, 16))
    arguments = (query, *cache.values(), *SETTINGS.values())
    old = torch.ops.sparq_ipu.sparq_attention(*arguments)
    assert torch.equal(old, torch.ops.sparq_ipu.sparq_attention(*arguments, 16))
    assert torch.equal(old, torch.ops.sparq_ipu.sparq_attention(*arguments, index_bits=16))
    assert torch.equal(old, ops.sparq_attention(query, **cache, **SETTINGS))
    four = torch.ops.sparq_ipu.sparq_attention(*arguments, 4)
    assert torch.equal(four, ops.sparq_attention(query, **cache, **SETTINGS, index_bits=4))
    assert not torch.equal(old, four)  # negative control


def test_the_operator_without_the_kernels(monkeypatch):
    cache, query = filled(), torch.from_numpy(draw(2, 2, 4, 16))
    fast = [ops.sparq_attention(query, **cache, **SETTINGS, index_bits=bits) for bits in (16, 8, 4)]
    monkeypatch.setattr(ops, "available_devices", lambda: ["reference"])
    for bits, output in zip((16, 8, 4), fast):
        assert torch.equal(ops.sparq_attention(query, **cache, **SETTINGS, index_bits=bits), output)
    assert not torch.equal(fast[0], fast[2])


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with torch 2.4")
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_the_operator_is_well_formed(index_bits):
    arguments = (torch.from_numpy(draw(2, 2, 4, 16)), *filled().values(), *SETTINGS.values(), index_bits)
    torch.library.opcheck(torch.ops.sparq_ipu.sparq_attention.default, arguments)


@pytest.mark.parametrize("index_bits, shown", REFUSED)
def test_the_operator_refuses(index_bits, shown):
    cache, query = filled(), torch.from_numpy(draw(2, 2, 4, 16))
    before = {name: tensor.clone() for name, tensor in cache.items()}
    with pytest.raises(ValueError, match=refusal("sparq_attention", shown)):
        ops.sparq_attention(query, **cache, **SETTINGS, index_bits=index_bits)
    assert all(torch.equal(cache[name], before[name]) for name in cache)
    if type(index_bits) is int:  # what a graph holds is looked at when it runs
        with pytest.raises(ValueError, match=refusal("sparq_attention", shown)):
            torch.ops.sparq_ipu.sparq_attention(query, *cache.values(), *SETTINGS.values(), index_bits)


def test_a_head_dim_that_is_too_large_for_few_bits():
    cache, query = ops.empty_cache(1, 1, 65544, 1), torch.zeros(1, 1, 65544).half()
    ops.cache_append(**cache, key=query[:, None], value=query[:, None])
    message = "head_dim must be at most 65536 with index_bits=8, got 65544"
    with pytest.raises(ValueError, match=f"^sparq_attention: {message}$"):
        ops.sparq_attention(query, **cache, rank=1, top_k=1, index_bits=8)
    assert torch.equal(ops.sparq_attention(query, **cache, rank=1, top_k=1), query)
    with pytest.raises(ValueError, match=f"^SparqAttention: {message}$"):
        SparqAttention(1, 1, 65544, 1, rank=1, top_k=1, index_bits=8, state="tensors")


@pytest.mark.parametrize("index_bits", [8, 4, 2])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_module_equals_the_reference(state, index_bits):
    module = SparqAttention(**SHAPE, **SETTINGS, **state, index_bits=index_bits)
    assert module.index_bits == index_bits and f"index_bits={index_bits}" in repr(module)
    plain = SparqAttention(**SHAPE, **SETTINGS, **state)
    assert plain.index_bits == 16
    key, value = draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)
    lengths, different = np.array([62, 125]), 0
    for one in (module, plain):
        one.append(*tensors(key[:, :, :125], value[:, :, :125]), torch.from_numpy(lengths))
    for step in range(5):
        query = draw(10 + step, 2, 4, 16)
        token = [np.stack([x[b, :, n] for b, n in enumerate(lengths)]) for x in (key, value)]
        lengths = lengths + 1
        output = module(*tensors(query, *token))
        assert np.array_equal(output.numpy(), expected(query, key, value, lengths, index_bits))
        different += not torch.equal(output, plain(*tensors(query, *token)))
    assert different
    module.reorder(torch.tensor([1, 1]))
    query, none = draw(30, 2, 4, 16), tensors(*[np.zeros((2, 2, 16), np.float16)] * 2)
    output = module(torch.from_numpy(query), *none, torch.tensor([0, 0]))
    one = [1, 1]
    assert np.array_equal(output.numpy(), expected(query, key[one], value[one], lengths[one], index_bits))


@pytest.mark.skipif(not hasattr(torch, "export"), reason="torch.export came with torch 2.1")
def test_compiled_and_exported_modules_keep_it():
    module = SparqAttention(**SHAPE, **SETTINGS, state="tensors", index_bits=4).eval()
    module.append(*tensors(draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)), torch.tensor([140, 63]))
    plain = SparqAttention(**SHAPE, **SETTINGS, state="tensors").eval()
    plain.append(*tensors(draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)), torch.tensor([140, 63]))
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    step = tensors(draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16))
    exported = torch.export.export(copy.deepcopy(module), step).module()
    with torch.no_grad():
        output = module(*step)
        assert torch.equal(compiled(*step), output)
        assert torch.equal(exported(*step), output)
        assert not torch.equal(plain(*step), output)


@pytest.mark.parametrize("index_bits, shown", REFUSED)
@pytest.mark.parametrize("state", STATES, ids=str)
def test_modules_refuse(state, index_bits, shown):
    with pytest.raises(ValueError, match=refusal("SparqAttention", shown)):
        SparqAttention(**SHAPE, **SETTINGS, **state, index_bits=index_bits)
    with pytest.raises(ValueError, match=refusal("DenseAttention", shown)):
        DenseAttention(**SHAPE, **state, index_bits=index_bits)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_dense_attention_is_the_same_for_all(state):
    step = tensors(draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16))
    outputs = []
    for index_bits in (16, 4):
        module = DenseAttention(**SHAPE, **state, index_bits=index_bits)
        module.append(*tensors(draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)))
        outputs.append(module(*step))
    assert torch.equal(*outputs)
