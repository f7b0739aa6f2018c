# SPDX-License-Identifier: Apache-2.0
"""SparqSettings, CacheSpec and the kinds of errors. Messages of a whole call: test_reference_checks.py."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, Callable

import numpy as np
import pytest
from calls import refusal

from sparq_reference import CacheSpec, DoesNotFit, KVCache, NotFinite, SparqSettings, checks, exact, ideal
from sparq_reference.settings import settings_columns


def test_settings_hold_plain_numbers_whatever_came_in() -> None:
    """So that two descriptions of one call are equal, hash alike and go to JSON."""
    plain = SparqSettings(4, 8, 2, False)
    other = SparqSettings(np.int32(4), np.uint8(8), n_local=np.int64(2), mean_value=np.bool_(False))
    assert plain == other and hash(plain) == hash(other)
    assert [type(value) for value in other.arguments().values()] == [int, int, int, bool]
    assert SparqSettings(4, 8) == SparqSettings(4, 8, n_local=0, mean_value=True) != SparqSettings(4, 9)
    for changed in (dict(rank=5), dict(top_k=9), dict(n_local=1), dict(mean_value=True)):
        assert dataclasses.replace(plain, **changed) != plain


def test_settings_do_not_change() -> None:
    settings = SparqSettings(4, 8)
    for name in settings.arguments():
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, name, 1)
    assert settings == SparqSettings(4, 8)
    assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings


def test_settings_by_name() -> None:
    settings = SparqSettings(4, 8, 2, False)
    assert settings.arguments() == dict(rank=4, top_k=8, n_local=2, mean_value=False)
    assert SparqSettings(**settings.arguments()) == settings
    assert SparqSettings.of("call", 16, settings.arguments()) == settings
    assert SparqSettings.of("call", None, dict(rank=4, top_k=8)) == SparqSettings(4, 8)
    assert settings_columns(settings) == settings.arguments()
    assert settings_columns(None) == dict(rank=None, top_k=None, n_local=None, mean_value=None)
    assert str(settings) == "rank 4, top_k 8, n_local 2, without the mean value"
    assert str(SparqSettings(4, 8)) == "rank 4, top_k 8, n_local 0"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (dict(rank=4), "top_k must be given, got nothing"),
        (dict(top_k=4), "rank must be given, got nothing"),
        (dict(rank=4, top_k=4, r=4), "settings must be among rank, top_k, n_local, mean_value, got 'r'"),
        (dict(rank=17, top_k=4), "rank must be in [1, head_dim=16], got 17"),
        (dict(rank=4, top_k=4, n_local=5), "n_local must be in [0, top_k=4], got 5"),
        (dict(rank=4, top_k=4, mean_value=None), "mean_value must be True or False, got None"),
    ],
)
def test_wrong_names_and_values(arguments: dict[str, Any], expected: str) -> None:
    assert refusal(lambda: SparqSettings.of("call", 16, arguments)) == f"call: {expected}"


def test_head_dim_is_the_limit_of_rank_once_it_is_known() -> None:
    settings = SparqSettings(17, 4)  # no head_dim yet
    assert refusal(lambda: settings.check("call", 16)) == "call: rank must be in [1, head_dim=16], got 17"
    settings.check("call", 24)
    assert refusal(lambda: SparqSettings(0, 4)) == "SparqSettings: rank must be in [1, 16777216], got 0"
    cache = KVCache(1, 1, 16, 4)
    ones = np.ones((1, 1, 1, 16), np.float16)
    cache.append(ones, ones)
    expected = "sparq_attention: rank must be in [1, head_dim=16], got 17"
    assert refusal(lambda: cache.attention(ones[:, 0], settings)) == expected


def test_cache_spec() -> None:
    spec = CacheSpec(np.int8(2), 3, 16, np.int64(5), index_components=np.int16(0))
    assert spec == CacheSpec(2, 3, 16, 5) != CacheSpec(2, 3, 16, 6)
    assert all(type(value) is int for value in dataclasses.asdict(spec).values())
    assert spec.n_tasks == 6
    assert refusal(lambda: CacheSpec(2, 3, 12, 5)) == "CacheSpec: head_dim must be a multiple of 8, got 12"
    cache = KVCache(2, 3, 16, 5)
    assert cache.spec == spec
    assert (cache.batch, cache.n_kv_heads, cache.head_dim, cache.capacity) == (2, 3, 16, 5)
    assert CacheSpec.options() == ["index_bits", "row_bits", "index_components"]


def test_index_bits_is_an_option_of_a_cache() -> None:
    for bits in (16, 8, 4, 2):
        spec = CacheSpec(2, 3, 16, 5, np.int16(bits))
        assert spec.index_bits == bits and type(spec.index_bits) is int
        assert KVCache(2, 3, 16, 5, index_bits=bits).index_bits == bits
    assert CacheSpec(2, 3, 16, 5) == CacheSpec(2, 3, 16, 5, 16) != CacheSpec(2, 3, 16, 5, 8)
    options = dict(index_bits=8, device="reference")
    assert CacheSpec.take(options) == dict(index_bits=8) and options == dict(device="reference")


def test_does_not_fit_says_what_and_by_how_much() -> None:
    error = DoesNotFit("plan: too much", "tile memory", 700, 600)
    assert isinstance(error, ValueError)
    for same in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is DoesNotFit and str(same) == "plan: too much"
        assert (same.resource, same.need, same.room) == ("tile memory", 700, 600)


BAD = np.full((1, 1, 1, 8), np.nan, np.float16)
GOOD = np.ones((1, 1, 1, 8), np.float16)
SPEC = CacheSpec(1, 1, 8, 4)


def attend(twin: Any, query: np.ndarray, key: np.ndarray, value: np.ndarray, **more: Any) -> object:
    return twin.sparq_attention(query[:, 0], key, value, rank=1, top_k=1, **more)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("query", lambda x: attend(exact, x, GOOD, GOOD)),
        ("key", lambda x: attend(exact, GOOD, x, GOOD)),
        ("value", lambda x: attend(ideal, GOOD, GOOD, x)),
        ("value_sum", lambda x: attend(exact, GOOD, GOOD, GOOD, value_sum=np.float32(x[:, :, 0]))),
        ("query", lambda x: checks.check_query("call", x[:, 0], SPEC)),
        ("key", lambda x: checks.check_append("call", x, GOOD, SPEC, np.zeros(1, np.int64))),
        ("value", lambda x: KVCache(1, 1, 8, 4).append(GOOD, x)),
    ],
)
def test_what_is_not_finite_has_a_type(argument: str, call: Callable[[np.ndarray], object]) -> None:
    for bad in (BAD, np.where(np.arange(8) == 5, np.float16(-np.inf), GOOD)):
        with pytest.raises(NotFinite, match=f": {argument} must be finite, got (nan|-inf) at "):
            call(bad)
    call(GOOD)
    assert issubclass(NotFinite, ValueError)
