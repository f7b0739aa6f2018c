# SPDX-License-Identifier: Apache-2.0
"""A decode step on "cpu" is checked by the kernels' module in the call that makes it. It must refuse what the
checks in Python refuse, with their words, and take what they take."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from vertex import assert_bits

from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_reference.settings import SparqSettings, WindowSettings

Change = Callable[[np.ndarray], object]


def with_bits(bits: int, *at: int) -> Change:
    def change(x: np.ndarray) -> np.ndarray:
        x[at[: x.ndim - 1] + at[-1:]] = np.uint16(bits).view(np.float16)
        return x

    return change


def with_nan(x: np.ndarray, axis: int) -> np.ndarray:
    """x, with NaN in between in memory."""
    apart = np.repeat(x, 2, axis)
    odd: list[object] = [slice(None)] * x.ndim
    odd[axis] = slice(1, None, 2)
    apart[tuple(odd)] = np.nan
    odd[axis] = slice(0, None, 2)
    return apart[tuple(odd)]


CHANGES: dict[str, Change] = {
    "nothing": lambda x: x,
    "infinity first": with_bits(0x7C00, 0, 0, 0, 0),
    "infinity last": with_bits(0xFC00, -1, -1, -1, -1),
    "NaN first": with_bits(0x7C01, 0, 0, 0, 0),
    "NaN last": with_bits(0xFFFF, -1, -1, -1, -1),
    "largest number": with_bits(0x7BFF, 0, 0, 0, 0),
    "float32": lambda x: x.astype(np.float32),
    "bfloat16's bits": lambda x: x.view(np.uint16),
    "other byte order": lambda x: x.astype(">f2"),
    "a list": lambda x: x.tolist(),
    "masked": lambda x: np.ma.masked_array(x),
    "a subclass": lambda x: x.view(np.recarray),
    "no batch": lambda x: x[0],
    "one more axis": lambda x: x[None],
    "another batch": lambda x: np.concatenate([x, x]),
    "a head less": lambda x: x[:, :-1],
    "a head more": lambda x: np.concatenate([x, x[:, :1]], 1),
    "no heads": lambda x: x[:, :0],
    "a component less": lambda x: x[..., :-1],
    "components apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "NaN between components": lambda x: with_nan(x, -1),
    "NaN last, components apart": lambda x: with_bits(0x7C01, -1, -1, -1, -1)(np.repeat(x, 2, -1)[..., ::2]),
    "backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "heads apart": lambda x: np.repeat(x, 3, 1)[:, ::3],
    "NaN between heads": lambda x: with_nan(x, 1),
    "heads backwards": lambda x: x[:, ::-1],
}


#: unchecked, what comes of NaN and infinity is not specified
CASES = [
    (what, checked)
    for what in CHANGES
    for checked in (True, False)
    if checked or what[:3] not in ("NaN", "inf")
]


def outcome(act: Callable[..., np.ndarray | None], *args: object) -> np.ndarray | str | None:
    try:
        return act(*args)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def caches(check_finite: bool, capacity: int) -> tuple[KVCache, KVCache, np.random.Generator]:
    options = dict(check_finite=check_finite)
    made = [KVCache(2, 3, 16, capacity, device=device, **options) for device in ("cpu", "reference")]
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 2, 3, 4, 16)).astype(np.float16)
    for cache in made:
        cache.append(key, value)
    return made[0], made[1], rng


def assert_alike(a: np.ndarray | str | None, b: np.ndarray | str | None) -> None:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        assert_bits(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("what, check_finite", CASES)
@pytest.mark.parametrize("which", ["key", "value", "both"])
def test_append(what: str, which: str, check_finite: bool) -> None:
    cpu, reference, rng = caches(check_finite, capacity=5)
    for _ in range(2):  # the second time there is no room
        tokens = dict(zip(("key", "value"), rng.standard_normal((2, 2, 3, 1, 16)).astype(np.float16)))
        for name in tokens if which == "both" else (which,):
            tokens[name] = CHANGES[what](tokens[name])  # type: ignore[assignment]
        ours, theirs = (outcome(cache.append, tokens["key"], tokens["value"]) for cache in (cpu, reference))
        assert_alike(ours, theirs)
        assert cpu.lengths.tolist() == reference.lengths.tolist()
        for a, b in zip(cpu.read(), reference.read()):
            assert_bits(a, b)


@pytest.mark.parametrize("what, check_finite", CASES)
@pytest.mark.parametrize("n_heads", [3, 6])
def test_attention(what: str, n_heads: int, check_finite: bool) -> None:
    cpu, reference, rng = caches(check_finite, capacity=4)
    query = CHANGES[what](rng.standard_normal((2, n_heads, 16)).astype(np.float16))
    for settings in (
        None,
        SparqSettings(4, 3),
        SparqSettings(17, 3),
        WindowSettings(3),
        WindowSettings(3, 3),
    ):
        ours, theirs = (outcome(attention, query, cache, settings) for cache in (cpu, reference))
        assert_alike(ours, theirs)


def test_an_empty_cache() -> None:
    query = np.ones((1, 2, 8), np.float16)
    empty = (KVCache(1, 1, 8, 4, device=device) for device in ("cpu", "reference"))
    said = {str(outcome(attention, query, cache)) for cache in empty}
    assert len(said) == 1 and "hold at least one position" in said.pop()
