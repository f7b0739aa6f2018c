# SPDX-License-Identifier: Apache-2.0
"""One enabled model, and one cache, under several threads at once."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import sys
import threading
from typing import Any, Callable, Iterator

import numpy as np
import pytest
from tiny_models import enable, greedy, tiny_model, tokens_of, torch

import sparq_ipu
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.attention import PassState

#: seconds for one test
LIMIT = 60


@pytest.fixture(autouse=True)
def many_switches() -> Any:
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def all_at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What they return, each from a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        start = threading.Barrier(len(calls))

        def call(one: Callable[[], Any]) -> Any:
            start.wait(LIMIT)
            return one()

        return [future.result(LIMIT) for future in [pool.submit(call, one) for one in calls]]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_model_generates_in_several_threads(device: str) -> None:
    """With caches of their own, beside passes that have none."""
    pytest.importorskip("sparq_ipu._cpu")
    model = tiny_model()
    enable(model, rank=8, top_k=16, device=device, tokens_per_step=4, min_seq_len=0)
    prompts = [tokens_of(20 + 7 * seed, seed) for seed in range(3)]

    def decoded(prompt: Any) -> Any:
        return [greedy(model, prompt, 12, cache=SparqCache(model, device=device)).tolist() for _ in range(2)]

    def without_cache(prompt: Any) -> Any:
        with torch.no_grad():
            return [model(prompt, use_cache=False).logits for _ in range(20)][-1]

    calls: list[Callable[[], Any]] = [lambda p=prompt: decoded(p) for prompt in prompts]  # type: ignore[misc]
    calls += [lambda: without_cache(prompts[1])]
    alone = [call() for call in calls]
    for one, other in zip(alone, all_at_once(calls)):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_pass_is_of_its_thread_and_not_copied() -> None:
    state = PassState()
    state.has_cache = True
    assert all_at_once([lambda: state.has_cache]) == [False]
    for other in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert not other.has_cache


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_cache_changes_while_others_attend(device: str) -> None:
    """Each call sees whole tokens: those of before a change, or of after it."""
    if device == "cpu":
        pytest.importorskip("sparq_ipu._cpu")
    random = np.random.default_rng(0)
    key, value = (random.standard_normal((1, 2, 200, 16)).astype(np.float16) for _ in range(2))
    query = random.standard_normal((1, 4, 16)).astype(np.float16)
    cache, alone = (sparq_ipu.KVCache(1, 2, 16, 200, device=device) for _ in range(2))
    is_over = threading.Event()

    def attended(to: Any) -> bytes:
        return sparq_ipu.sparq_attention(query, to, rank=4, top_k=8, n_local=2).tobytes()

    def grow(held: Any) -> Iterator[None]:
        for at in range(int(held.lengths[0]), 200):
            held.append(key[:, :, at : at + 1], value[:, :, at : at + 1])
            yield

    def change() -> None:
        while not is_over.is_set():
            list(grow(cache))
            cache.truncate(np.array([1]))

    def attend() -> list[bytes]:
        try:
            return [attended(cache) for _ in range(200)]
        finally:
            is_over.set()

    next(grow(cache))
    outputs = [output for of_thread in all_at_once([change, attend, attend])[1:] for output in of_thread]
    right = {attended(alone) for _ in grow(alone)}
    assert set(outputs) <= right and len(right) == 200
