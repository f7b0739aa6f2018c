# SPDX-License-Identifier: Apache-2.0
"""`sparq_ipu.torch.WindowAttention`: bit for bit the reference, with the history in copies too."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import sparq_ipu  # noqa: E402
from sparq_ipu.torch import WindowAttention  # noqa: E402

SHAPE = dict(batch=2, n_kv_heads=2, head_dim=16, capacity=48)
SETTINGS = dict(top_k=6, n_local=2, n_recent=3)
DEVICES: list[dict[str, Any]] = [
    dict(device="cpu"),
    dict(device="reference"),
    dict(device="emulator", n_tiles=8),
    dict(device="emulator", n_tiles=8, memory="tiered", index_bits=4),
]
DEVICES = [options for options in DEVICES if options["device"] in sparq_ipu.available_devices()]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.float16)


@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.parametrize("settings", [SETTINGS, dict(top_k=7, n_local=0, n_recent=0)], ids=str)
def test_module_equals_the_reference(options: dict[str, Any], settings: dict[str, int]) -> None:
    """A ragged prompt, its last queries, steps with an inactive row; copies go on by themselves."""
    module = WindowAttention(**SHAPE, **settings, **options)
    expected = sparq_ipu.KVCache(*SHAPE.values(), device="reference")
    key, value, query = draw(0, 2, 2, 20, 16), draw(1, 2, 2, 20, 16), draw(2, 2, 4, 4, 16)
    lengths = torch.tensor([20, 11])
    module.append(key, value, lengths)
    module.observe(query)
    expected.append(key.numpy(), value.numpy(), lengths.numpy())
    expected.observe(query.numpy(), **settings)
    for step in range(6):
        query, key, value = (draw(10 * step + i, 2, n, 16) for i, n in enumerate((4, 2, 2)))
        active = torch.tensor([1, step % 2])
        counts = active.numpy().astype(np.int64)
        expected.append(key[:, :, None].numpy(), value[:, :, None].numpy(), counts)
        right = sparq_ipu.window_attention(query.numpy(), expected, **settings)
        if step == 3:
            left, module = module, [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))][counts[1]](module)
            left.reset()
        assert torch.equal(module(query, key, value, active), torch.from_numpy(right))
        if step == 4:
            module.reorder(torch.tensor([1, 0]))
            expected.reorder(np.array([1, 0]))
    module.reset()
    assert module.held().tolist() == [0, 0]
    assert "n_recent=" in repr(module)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
        (dict(rank=4), "options must be among"),
    ],
)
def test_construction(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        WindowAttention(**{**SHAPE, **SETTINGS, **changes})
    assert str(error.value).startswith(("WindowAttention: " + words, "KVCache: " + words))
    with pytest.raises(ValueError, match="WindowAttention: top_k must be given, got nothing"):
        WindowAttention(**SHAPE)


def test_refused_steps_store_no_token() -> None:
    module = WindowAttention(**SHAPE, top_k=6, n_recent=9000, device="reference")
    token = draw(0, 2, 2, 16)
    with pytest.raises(ValueError, match=r"n_recent must be in \[0, 8191\] for n_heads=4, got 9000"):
        module(draw(1, 2, 4, 16), token, token)
    assert module.held().tolist() == [0, 0]
    with pytest.raises(ValueError, match="observe: cache must hold the 1 tokens of the query"):
        module.observe(draw(1, 2, 2, 1, 16))
