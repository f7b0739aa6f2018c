# SPDX-License-Identifier: Apache-2.0
"""index_bits of `sparq_ipu.torch`: modules, bit for bit against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from index_bits import DEVICES, REFUSED, SETTINGS, SHAPE, draw, expected, refusal

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from sparq_ipu.torch import DenseAttention, SparqAttention  # noqa: E402

ON = [dict(device=device) for device in DEVICES]


def tensors(*arrays):
    return tuple(torch.from_numpy(array) for array in arrays)


@pytest.mark.parametrize("index_bits", [8, 4, 2])
@pytest.mark.parametrize("device", ON, ids=str)
def test_a_module_equals_the_reference(device, index_bits):
    module = SparqAttention(**SHAPE, **SETTINGS, **device, index_bits=index_bits)
    assert module.index_bits == index_bits and f"index_bits={index_bits}" in repr(module)
    plain = SparqAttention(**SHAPE, **SETTINGS, **device)
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


@pytest.mark.parametrize("index_bits, shown", REFUSED)
@pytest.mark.parametrize("device", ON, ids=str)
def test_modules_refuse(device, index_bits, shown):
    with pytest.raises(ValueError, match=refusal("SparqAttention", shown)):
        SparqAttention(**SHAPE, **SETTINGS, **device, index_bits=index_bits)
    with pytest.raises(ValueError, match=refusal("DenseAttention", shown)):
        DenseAttention(**SHAPE, **device, index_bits=index_bits)


@pytest.mark.parametrize("device", ON, ids=str)
def test_dense_attention_is_the_same_for_all(device):
    step = tensors(draw(2, 2, 4, 16), draw(3, 2, 2, 16), draw(4, 2, 2, 16))
    outputs = []
    for index_bits in (16, 4):
        module = DenseAttention(**SHAPE, **device, index_bits=index_bits)
        module.append(*tensors(draw(0, 2, 2, 140, 16), draw(1, 2, 2, 140, 16)))
        outputs.append(module(*step))
    assert torch.equal(*outputs)
