# SPDX-License-Identifier: Apache-2.0
"""What Python and C++ both know: the checks of a description, its words, the list of kernels, the kinds of
errors. Whoever asks C++ directly is refused as `sparq_reference` refuses, but for the name of the operation.

Python's descriptions can not hold bad values, so C++ gets stand-ins with the same attributes.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import pytest
from calls import refusal
from emulated import _core

import sparq_ipu
from sparq_ipu import kernels
from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, WindowSettings, checks

_cpu = pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")

SPEC = CacheSpec(2, 2, 16, 64)
SETTINGS = SparqSettings(4, 5, 1)
MOST = 2**24


def changed(description: Any, **changes: object) -> SimpleNamespace:
    """A stand-in for a description, with other values."""
    fields = [field.name for field in dataclasses.fields(description)]
    return SimpleNamespace(**{**{name: getattr(description, name) for name in fields}, **changes})


def session(spec: Any = SPEC, n_heads: int = 2, *attention: Any, n_tiles: int = 1) -> Any:
    return _core.Session(spec, n_heads, attention=list(attention), options=DeviceOptions(n_tiles))


def plan(spec: Any, n_heads: int, attention: Any) -> Any:
    """Counts a call without running it; what `sparq_ipu.plan` does."""
    return _core.emulator_plan(spec, n_heads, attention, [1] * 2, options=DeviceOptions(1))


def cpu_cache(spec: Any = SPEC) -> Any:
    return _cpu.KVCache(spec, n_threads=1)


def cpu_attention(settings: Any, n_heads: int = 2) -> Any:
    cache = cpu_cache()
    token = np.ones((2, 2, 1, 16), np.float16)
    cache.append(token, token, np.ones(2, np.int64))
    return cache.attend(np.ones((2, n_heads, 16), np.float16), settings)


SPECS = [
    dict(batch=0),
    dict(batch=MOST + 1),
    dict(n_kv_heads=0),
    dict(n_kv_heads=2**32 - 1),
    dict(head_dim=0),
    dict(head_dim=12),
    dict(head_dim=MOST + 8),
    dict(capacity=0),
    dict(capacity=MOST + 1),
    dict(index_bits=0),
    dict(index_bits=5),
    dict(index_bits=2**32 - 1),
    dict(head_dim=2**16 + 8, index_bits=8),
    dict(head_dim=2**16 + 8, index_bits=4),
    dict(index_components=24),
    dict(index_components=12),
    dict(index_components=2**32 - 8),
    dict(batch=4096, n_kv_heads=4097),
    dict(batch=65536, n_kv_heads=65536),  # 2**32: not 0
    # the first that is wrong, in the order of the fields
    dict(batch=0, n_kv_heads=0, head_dim=0, capacity=0),
    dict(head_dim=12, capacity=0),
    dict(batch=MOST, n_kv_heads=MOST, capacity=0),
    dict(batch=MOST, n_kv_heads=MOST, index_bits=2),
    dict(capacity=0, index_bits=2),
]


@pytest.mark.parametrize("changes", SPECS, ids=str)
def test_cache_specs(changes: dict[str, int]) -> None:
    bad = changed(SPEC, **changes)
    python = refusal(lambda: CacheSpec(**vars(bad), op="op"))
    n_heads = bad.n_kv_heads or 1
    assert refusal(lambda: session(bad, n_heads)) == python.replace("op:", "plan:", 1)
    dense = Attention("dense-streaming", None)
    assert refusal(lambda: plan(bad, n_heads, dense)) == python.replace("op:", "plan:", 1)
    assert refusal(lambda: cpu_cache(bad)) == python.replace("op:", "KVCache:", 1)


def test_an_index_of_some_components_is_refused_by_name() -> None:
    """Three tiers alone have it (docs/exactness.md E13)."""
    bad = CacheSpec(2, 2, 16, 64, index_bits=8, index_components=8)
    call = functools.partial(sparq_ipu.KVCache, 2, 2, 16, 64, index_bits=8, index_components=8)
    words = "index_components must be 0 unless memory is 'tiered', got 8"
    for memory in ("streaming", "sram"):
        assert refusal(functools.partial(call, device="emulator", memory=memory)) == f"KVCache: {words}"
    # and a rank above it
    of = Attention("sparq-tiered", SparqSettings(9, 5))
    words = "rank must be in [1, index_components=8], got 9"
    assert refusal(lambda: session(bad, 2, of)) == refusal(lambda: plan(bad, 2, of)) == f"plan: {words}"
    # negative controls
    session(bad, 2, Attention("sparq-tiered", SETTINGS), n_tiles=4)
    assert call(device="emulator", memory="tiered").index_components == 8


BAD_SETTINGS = [
    dict(rank=0),
    dict(rank=17),
    dict(rank=2**32 - 1),
    dict(top_k=0),
    dict(top_k=MOST + 1),
    dict(n_local=6),
    dict(n_local=2**32 - 1),
    dict(rank=0, top_k=0, n_local=6),
    dict(top_k=0, n_local=6),
]


@pytest.mark.parametrize("changes", BAD_SETTINGS, ids=str)
def test_settings(changes: dict[str, int]) -> None:
    bad = changed(SETTINGS, **changes)
    python = refusal(lambda: SparqSettings(**vars(bad), op="op", head_dim=16))
    attention = SimpleNamespace(kernel="sparq-streaming", settings=bad)
    assert refusal(lambda: session(SPEC, 2, attention)) == python.replace("op:", "plan:", 1)
    assert refusal(lambda: plan(SPEC, 2, attention)) == python.replace("op:", "plan:", 1)
    assert refusal(lambda: cpu_attention(bad)) == python.replace("op:", "sparq_attention:", 1)


@pytest.mark.parametrize(
    "changes",
    [
        dict(top_k=0),
        dict(top_k=MOST + 1),
        dict(n_local=6),
        dict(n_recent=2**15),
        dict(n_recent=2**14),
        dict(top_k=0, n_local=9),
    ],
    ids=str,
)
def test_window_settings(changes: dict[str, int]) -> None:
    bad = changed(WindowSettings(5, 1, 3), **changes)
    python = refusal(
        lambda: WindowSettings(**vars(bad), op="window_attention").check_heads("window_attention", 2)
    )
    cache = cpu_cache()
    token = np.ones((2, 2, 1, 16), np.float16)
    cache.append(token, token, np.ones(2, np.int64))
    assert refusal(lambda: cache.attend(token[:, :, 0], bad)) == python
    assert refusal(lambda: cache.observe(token, bad)) == python.replace("window_attention:", "observe:", 1)
    cache.attend(token[:, :, 0], changed(WindowSettings(5, 1, 2**14 - 1)))  # negative control


@pytest.mark.parametrize("n_heads", [1, 3, 5])
def test_heads(n_heads: int) -> None:
    query = np.ones((2, n_heads, 16), np.float16)
    python = refusal(lambda: checks.check_query("dense_attention", query, SPEC))
    assert refusal(lambda: cpu_attention(None, n_heads)) == python
    assert refusal(lambda: session(SPEC, n_heads)) == python.replace("dense_attention:", "plan:", 1)


@pytest.mark.parametrize("limit", [0, 1])
def test_limits_are_no_refusals(limit: int) -> None:
    """Negative control: the smallest and the largest that is allowed."""
    settings = (SparqSettings(1, 1), SparqSettings(16, MOST, MOST, False))[limit]
    session(SPEC, 2 + 2 * limit, Attention("sparq-streaming", settings))
    cpu_attention(settings, 2 + 2 * limit)
    spec = (CacheSpec(1, 1, 8, 1), CacheSpec(2, 2, 264, 4096))[limit]
    session(spec, 2)
    cpu_cache(spec)


@pytest.mark.parametrize("value", [-1, 2**32])
@pytest.mark.parametrize("field", dataclasses.fields(CacheSpec) + dataclasses.fields(SparqSettings)[:3])
def test_numbers_that_no_field_holds(field: dataclasses.Field, value: int) -> None:
    """Python has limits of its own; C++ says what its fields hold, and nothing wraps around."""
    of_spec = field in dataclasses.fields(CacheSpec)
    words = f"{field.name} must be in [0, 4294967295], got {value}"
    bad = changed(SPEC if of_spec else SETTINGS, **{field.name: value})
    if of_spec:
        rules = {
            "index_bits": "be one of 16, 8, 4, 2",
            "row_bits": "be one of 16, 8",
            "index_components": "be in [0, head_dim=16]",
        }
        rule = rules.get(field.name, "be in [1, ")
        assert refusal(lambda: CacheSpec(**vars(bad))).startswith(f"CacheSpec: {field.name} must {rule}")
        for call in (session, cpu_cache):
            assert refusal(lambda call=call: call(bad)) == f"CacheSpec: {words}"
    else:
        assert refusal(lambda: SparqSettings(**vars(bad))).startswith(f"SparqSettings: {field.name} must be")
        attention = SimpleNamespace(kernel="sparq-streaming", settings=bad)
        for call in (lambda: session(SPEC, 2, attention), lambda: cpu_attention(bad)):
            assert refusal(call) == f"SparqSettings: {words}"


def of_another_type(description: Any) -> list[SimpleNamespace]:
    """Stand-ins that lack an attribute, or have no number there, or no flag."""
    wrong = []
    for field in dataclasses.fields(description):
        lacking = changed(description)
        delattr(lacking, field.name)
        values = (1.0, "1", None, 2**64) if field.name != "mean_value" else (1, "True", None)
        wrong += [lacking, *(changed(description, **{field.name: value}) for value in values)]
    return wrong


def test_descriptions_of_another_type() -> None:
    specs, settings = of_another_type(SPEC), of_another_type(SETTINGS)
    assert len(specs) == 7 * 5 and len(settings) == 3 * 5 + 4
    for bad in specs:
        for call in (session, cpu_cache):
            with pytest.raises(TypeError):
                call(bad)
    for bad in settings:
        attention = SimpleNamespace(kernel="sparq-streaming", settings=bad)
        for call in (lambda a=attention: session(SPEC, 2, a), lambda bad=bad: cpu_attention(bad)):
            with pytest.raises(TypeError):
                call()
    for attention in (
        SimpleNamespace(kernel="sparq-streaming"),
        SimpleNamespace(settings=None),
        SimpleNamespace(kernel=3, settings=None),
        "dense-streaming",
    ):
        with pytest.raises(TypeError, match=r"sparq_ipu\.kernels\.Attention"):
            session(SPEC, 2, attention)
    # negative control: stand-ins that lack nothing, of NumPy's numbers
    numbers = {name: np.int32(value) for name, value in vars(changed(SPEC)).items()}
    session(SimpleNamespace(**numbers))
    cpu_cache(SimpleNamespace(**numbers))
    cpu_attention(changed(SETTINGS, mean_value=np.bool_(False)))


# ---- the registry


def registry(all_kernels: Any) -> list[dict[str, Any]]:
    """Of each kernel what C++ tells."""
    names = ("name", "op", "memory", "takes")
    return [{name: getattr(kernel, name) for name in names} for kernel in all_kernels]


def test_one_list_of_kernels() -> None:
    own = list(kernels.KERNELS.values())
    assert _core.kernels() == registry(own)
    # negative control: another order, one too few, one with another memory
    other = dataclasses.replace(own[0], memory="streaming")
    for wrong in (own[::-1], own[1:], [other, *own[1:]]):
        assert _core.kernels() != registry(wrong)


OF_KIND = {"nothing": None, "sparq": SETTINGS, "window": WindowSettings(5)}


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_each_kernel_by_name(name: str) -> None:
    """With the settings that it takes, and no others."""
    kernel = kernels.kernel_named("op", name)
    spec = dataclasses.replace(SPEC, index_bits=4) if kernel.memory == "tiered" else SPEC
    made = session(spec, 2, Attention(name, OF_KIND[kernel.takes]))
    wrong = np.zeros((2, 2, 8), np.float16)
    assert refusal(lambda: made.attention(0, wrong)) == (
        f"{kernel.op}: query must have shape (2, 2, 16), got (2, 2, 8)"
    )
    wanted = type(OF_KIND[kernel.takes]).__name__.replace("NoneType", "None")
    for kind, settings in OF_KIND.items():
        if kind != kernel.takes:
            words = f"session: settings of {name} must be {wanted}, got {settings}"
            assert refusal(lambda s=settings: session(SPEC, 2, Attention(name, s))) == words


def test_no_such_kernel() -> None:
    for name in ("sparq-sram", "", "Dense-sram"):
        python = refusal(lambda name=name: kernels.kernel_named("session", name))
        assert refusal(lambda name=name: session(SPEC, 2, Attention(name, None))) == python
        assert ", ".join(kernels.KERNELS) in python


def test_kernels_of_a_cache_read_one_memory() -> None:
    sram, streaming = Attention("dense-sram", None), Attention("dense-streaming", None)
    sparq = Attention("sparq-streaming", SETTINGS)
    for several in ((sram, streaming), (streaming, sram), (sparq, streaming, sram), (sram, sram, sparq)):
        first = several[0].kernel
        other = next(a.kernel for a in several if (a is sram) != (several[0] is sram))
        expected = f"plan: kernels must all read one memory, got {first} and {other}"
        assert refusal(lambda several=several: session(SPEC, 2, *several)) == expected
    for several in ((sram,), (streaming, sparq), (sparq, streaming, sparq)):  # negative control
        session(SPEC, 2, *several)


# ---- kinds of errors


def too_much_for_the_tiles(capacity: int) -> Any:
    return session(CacheSpec(1, 4, 128, capacity), 4, Attention("dense-sram", None), n_tiles=16)


def too_many_rows(capacity: int) -> Any:
    return session(CacheSpec(256, 1, 8, capacity), 1, n_tiles=1472)


def too_many_columns(head_dim: int) -> Any:
    """More rows by component than by position."""
    return session(CacheSpec(256, 1, head_dim, 8), 1, Attention("sparq-streaming", SETTINGS), n_tiles=1472)


@pytest.mark.parametrize(
    ("resource", "call", "fits", "too_much", "room"),
    [
        ("tile memory", too_much_for_the_tiles, 512, 32768, 638976),
        ("rows of streaming memory", too_many_rows, 64, MOST, 2**32 - 1),
        ("rows of streaming memory", too_many_columns, 64, MOST, 2**32 - 1),
    ],
)
def test_what_does_not_fit(
    resource: str, call: Callable[[int], Any], fits: int, too_much: int, room: int
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        call(too_much)
    error = caught.value
    assert isinstance(error, ValueError) and str(error).startswith(f"plan: {resource}")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is DoesNotFit and str(same) == str(error)
        assert same.resource == resource and same.room == room < same.need
        assert {str(same.need), str(same.room)} <= set(re.findall(r"\d+", str(same)))
    call(fits)  # negative control
