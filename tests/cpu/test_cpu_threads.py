# SPDX-License-Identifier: Apache-2.0
"""Threads: callers at the same time, the interpreter left free, processes that fork, the default number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cpu_caches import assert_bits, filled_cache, make_cache
from strategies import Attention, make_attention

from sparq_ipu import _cpu, dense_attention, sparq_attention

SETTINGS = dict(rank=8, top_k=50, n_local=3, mean_value=True)


@pytest.fixture(scope="module")
def tensors() -> Attention:
    return make_attention(np.random.default_rng(0), batch=2, n_kv_heads=3, group_size=2, seq_len=3000)


def test_callers_at_the_same_time(tensors: Attention) -> None:
    """One cache for all callers, and one for each, with different numbers of threads."""
    shared = filled_cache(tensors, n_threads=2)
    expected = sparq_attention(tensors.query, shared, **SETTINGS)

    def call(caller: int) -> None:
        own = make_cache(tensors, n_threads=1 + caller % 3)
        for first in range(0, 3000, 1000):
            own.append(tensors.key[:, :, first : first + 1000], tensors.value[:, :, first : first + 1000])
            assert_bits(sparq_attention(tensors.query, shared, **SETTINGS), expected, "shared")
        assert_bits(sparq_attention(tensors.query, own, **SETTINGS), expected, f"own of {caller}")

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(call, caller) for caller in range(12)]:
            done.result()


def test_interpreter_is_free_during_a_call() -> None:
    """Another Python thread runs while one is inside the kernels."""
    tensors = make_attention(np.random.default_rng(1), n_kv_heads=8, seq_len=4096, head_dim=128)
    cache = filled_cache(tensors, n_threads=1)
    inside = threading.Event()
    finished = threading.Event()

    def call() -> None:
        inside.set()
        for _ in range(20):
            cache._backends[0].kernels.attend(tensors.query)
        finished.set()

    caller = threading.Thread(target=call)
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)  # a thread that keeps the interpreter keeps it until it waits
    try:
        caller.start()
        inside.wait()
        free = not finished.is_set()
    finally:
        sys.setswitchinterval(before)
        caller.join()
    assert free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork(tensors: Attention) -> None:
    """The child of a process that has used threads has none of them, and starts its own."""
    cache = filled_cache(tensors, n_threads=3)
    expected = sparq_attention(tensors.query, cache, **SETTINGS)
    child = os.fork()
    if child == 0:
        same = False
        signal.alarm(60)  # it may wait for threads that it does not have
        try:
            same = bool((sparq_attention(tensors.query, cache, **SETTINGS) == expected).all())
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("value, expected", [("3", 3), ("2,1", 2), (None, None)])
def test_default_number_of_threads(value: str | None, expected: int | None) -> None:
    """OMP_NUM_THREADS, else the processors that the process may use."""
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if value is not None:
        environment["OMP_NUM_THREADS"] = value
    code = "from sparq_ipu import _cpu; print(_cpu.default_threads())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == (expected or len(os.sched_getaffinity(0)))


PLACEMENT = """
import os
import numpy as np
from sparq_ipu import _cpu
from sparq_reference import CacheSpec

processors = os.sched_getaffinity(0)
main = set(os.listdir("/proc/self/task"))
cache = _cpu.KVCache(CacheSpec(1, 2, 8, 64), n_threads=2)
x = np.ones((1, 2, 64, 8), np.float16)
cache.append(x, x, np.array([64]))
cache.attend(x[:, :, 0])
(worker,) = [int(task) for task in set(os.listdir("/proc/self/task")) - main]
for processor in processors:
    os.sched_setaffinity(0, {processor})
    cache.attend(x[:, :, 0])
    assert os.sched_getaffinity(worker) == processors - {processor}
"""


SHARES = """
import os, time
import numpy as np
from sparq_ipu import _cpu
from sparq_reference import CacheSpec, SparqSettings

def seconds(task):  # of a processor
    words = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

n = 262144
x = np.random.default_rng(0).normal(size=(1, 2, n, 8)).astype(np.float16)
query, settings = np.repeat(x[:, :, 0], 4, axis=1), SparqSettings(8, 64)
main, caches = set(os.listdir("/proc/self/task")), []
for n_threads in (1, 2):
    caches.append(_cpu.KVCache(CacheSpec(1, 2, 8, n, 4), n_threads=n_threads))
    caches[-1].append(x, x, np.array([n]))
    caches[-1].attend(query, settings)
(worker,) = set(os.listdir("/proc/self/task")) - main
alone, calls, start, before = 0, 0, time.thread_time(), seconds(worker)
while alone < 0.4:
    caches[0].attend(query, settings)
    alone, calls = time.thread_time() - start, calls + 1
for _ in range(calls):
    caches[1].attend(query, settings)
assert seconds(worker) - before > alone / 4, (seconds(worker) - before, alone, calls)
"""


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="this system does not say what a thread took"
)
def test_two_pairs_are_for_two_threads() -> None:
    """Although each thread asks for the pair after the one that it computes. Work is counted by the time that
    a thread had a processor, whatever else runs."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OPENBLAS_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", SHARES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_workers_keep_off_the_processor_of_the_caller() -> None:
    """Or a scheduler that wakes them there lets two threads take turns on one processor."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("fewer than two processors, or no way to choose among them")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OPENBLAS_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", PLACEMENT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_cache_uses(monkeypatch: pytest.MonkeyPatch, tensors: Attention) -> None:
    """Options first, then the environment, then the best there is."""
    monkeypatch.delenv("SPARQ_CPU_ISA", raising=False)
    assert make_cache(tensors, n_threads=5)._backends[0].n_threads == 5
    assert make_cache(tensors)._backends[0].isa == _cpu.available_isas()[0]
    monkeypatch.setenv("SPARQ_CPU_ISA", "portable")
    assert make_cache(tensors)._backends[0].isa == "portable"
    assert make_cache(tensors, isa="auto")._backends[0].isa == _cpu.available_isas()[0]
    assert make_cache(tensors, n_threads=1)._backends[0].n_threads == 1
    assert dense_attention(tensors.query, filled_cache(tensors, n_threads=1)).shape == tensors.query.shape
