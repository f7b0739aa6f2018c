# SPDX-License-Identifier: Apache-2.0
"""Random sequences of calls: every device gives the bits, the words and the state of the reference, whatever
came before. Over `KVCache`, and over a model of transformers.

The seed is another one in each run and is printed; SPARQ_RANDOM_SEED repeats it. The slow test goes on for
SPARQ_RANDOM_MINUTES (20).
"""

from __future__ import annotations

import copy
import os
import random
import time
from typing import Any, Callable

import numpy as np
import pytest

import sparq_ipu
from sparq_ipu.attention import attention
from sparq_reference import SparqSettings, WindowSettings

DEVICES = sparq_ipu.available_devices()
SHAPES = [(1, 1, 1, 8), (2, 2, 3, 16), (3, 1, 4, 24), (2, 3, 1, 8)]
CAPACITY = 150
SETTINGS = [
    None,
    SparqSettings(4, 9, 3),
    SparqSettings(8, 200, mean_value=False),
    SparqSettings(99, 4),  # refused
    WindowSettings(7, None, 3),
    WindowSettings(7, None, 3),
    WindowSettings(5, 1, 4),  # refused after the one above
    WindowSettings(9, 0, 0),
]


def seeds(n: int) -> list[int]:
    given = os.environ.get("SPARQ_RANDOM_SEED")
    return [int(given)] if given else [random.SystemRandom().randrange(2**32) for _ in range(n)]


def outcome(call: Callable[[Any], Any], cache: Any) -> Any:
    """What a call returns, or the words that refuse it."""
    try:
        value = call(cache)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return value.tobytes() if isinstance(value, np.ndarray) else value


def state_of(cache: sparq_ipu.KVCache) -> Any:
    history = cache.one_layer("test").history()
    steps = history and (history.n_recent, [[s.tolist() for s in of] for of in history.steps])
    return cache.lengths.tolist(), [rows.tobytes() for rows in cache.read()], steps


class Caches:
    """The same calls on every device; the first cache is the reference's."""

    def __init__(self, rng: np.random.Generator, devices: list[str]):
        self.rng = rng
        self.shape = SHAPES[rng.integers(len(SHAPES))]
        batch, n_kv_heads, _, head_dim = self.shape
        options: dict[str, Any] = dict(index_bits=int(rng.choice([16, 8, 4, 2])))
        of_ipu: dict[str, Any] = dict(n_tiles=8)
        self.is_tiered = "emulator" in devices and options["index_bits"] < 16 and rng.random() < 0.5
        if self.is_tiered:
            of_ipu.update(memory="tiered")
        if self.is_tiered or "emulator" not in devices:
            options["row_bits"] = int(rng.choice([16, 8]))
        self.caches = [
            sparq_ipu.KVCache(
                batch,
                n_kv_heads,
                head_dim,
                CAPACITY,
                device=device,
                **options,
                **(of_ipu if device == "emulator" else {}),
            )
            for device in ["reference", *devices]
        ]
        self.most_tokens = 1 if "emulator" in devices else 4

    def tokens(self, n: int, heads: int) -> np.ndarray:
        batch, n_kv_heads, _, head_dim = self.shape
        made = self.rng.standard_normal((batch, heads * n_kv_heads, n, head_dim)).astype(np.float16)
        if self.rng.random() < 0.05:
            made.flat[self.rng.integers(made.size)] = np.nan
        return made

    def settings(self) -> Any:
        every = [s for s in SETTINGS if s is not None] if self.is_tiered else SETTINGS
        return every[self.rng.integers(len(every))]

    def call(self) -> tuple[str, Callable[[sparq_ipu.KVCache], Any]]:
        """A random one, and its name. Some are refused."""
        rng, (batch, _, group, _) = self.rng, self.shape
        lengths = self.caches[0].lengths
        name = str(
            rng.choice("append append token attend attend step step truncate reorder observe copy".split())
        )
        if name in ("append", "token"):
            n = 1 if name == "token" else int(rng.integers(1, 90))
            key, value = self.tokens(n, 1), self.tokens(n, 1)
            real = None if name == "token" else rng.integers(0, n + 1, batch)
            return name, lambda cache: cache.append(key, value, real)
        if name == "attend":
            query, settings = self.tokens(1, group)[:, :, 0], self.settings()
            return f"attend {settings}", lambda cache: attention(query, cache, settings)
        if name == "step":
            n, settings = int(rng.integers(1, self.most_tokens + 1)), self.settings()
            made = [self.tokens(n, group), self.tokens(n, 1), self.tokens(n, 1)]
            return f"step {settings}", lambda cache: sparq_ipu.append_and_attend(*made, cache, settings)
        if name == "truncate":
            kept = np.maximum(lengths - rng.integers(-1, 40, batch), 0)
            return f"truncate {kept}", lambda cache: cache.truncate(kept)
        if name == "reorder":
            index = rng.integers(0, batch + (rng.random() < 0.1), batch)
            return f"reorder {index}", lambda cache: cache.reorder(index)
        if name == "observe":
            n, settings = int(rng.integers(1, 6)), SETTINGS[int(rng.choice([4, 4, 6]))]
            query = self.tokens(n, group)
            return f"observe {n}", lambda cache: cache.observe(query, **settings.arguments())
        return name, copy.copy

    def run(self, n_calls: int) -> None:
        done: list[str] = []
        for _ in range(n_calls):
            name, call = self.call()
            done.append(name)
            before = state_of(self.caches[0])
            results = [outcome(call, cache) for cache in self.caches]
            if name == "copy":
                self.caches = results
            else:
                assert results[1:] == results[:1] * (len(results) - 1), (done, results)
            states = [state_of(cache) for cache in self.caches]
            assert states[1:] == states[:1] * (len(states) - 1), done
            if isinstance(results[0], str):
                assert states[0] == before, done


class Models:
    """The same calls of a model with a cache on every device. With windows, the first cache has a capacity
    and holds everything; the others drop positions."""

    window: int | None = None

    def __init__(self, rng: np.random.Generator, devices: list[str]):
        from tiny_models import tiny_model

        from sparq_ipu.transformers import SparqCache

        self.rng, self.devices = rng, ["reference", *devices]
        self.model = tiny_model("Mistral", sliding_window=self.window) if self.window else tiny_model()
        self.index_bits = int(rng.choice([16, 4]))
        self.enable()
        options = [dict(n_tiles=8) if device == "emulator" else {} for device in self.devices]
        self.caches: list[Any] = [
            SparqCache(self.model, device=d, index_bits=self.index_bits, **o)
            for d, o in zip(self.devices, options)
        ]
        if self.window:
            self.caches.insert(0, SparqCache(self.model, 250, "reference", index_bits=self.index_bits))
        self.batch = int(rng.integers(1, 4))

    def enable(self) -> None:
        from sparq_ipu.transformers import enable

        rng, step = self.rng, dict(tokens_per_step=int(self.rng.choice([1, 4, 4])))
        settings = dict(rank=int(rng.integers(1, 9)), top_k=int(rng.integers(2, 20)), n_local=2)
        enable(self.model, min_seq_len=0, index_bits=self.index_bits, **settings, **step)

    def begins(self) -> list[int]:
        """The first position that a cache holds in all layers, for each cache."""
        return [max(layer.begin for layer in cache.layers) for cache in self.caches]

    def call(self, is_long: bool) -> tuple[str, Callable[[Any], Any]]:
        import torch

        rng = self.rng
        held = self.caches[0].get_seq_length()
        names = "forward forward forward tokens copy select reorder crop enable refused".split()
        name = str(rng.choice(names)) if held and not is_long else "tokens"
        begin = max(self.begins()) if held else 0
        if name == "crop" and begin and held == begin + self.window:
            name = "copy"  # no token can be taken back
        if name in ("forward", "tokens", "refused"):
            n = 120 if is_long else 1 if name == "forward" else int(rng.integers(2, 12))
            tokens = torch.from_numpy(rng.integers(0, 99, (self.batch + (name == "refused"), n)))

            def forward(cache: Any) -> Any:
                with torch.no_grad():
                    return self.model(tokens, cache=cache, use_cache=True).logits.numpy()

            return f"{name} {n}", forward
        if name == "select":
            rows = torch.from_numpy(rng.integers(0, self.batch, int(rng.integers(1, 4))))
            self.batch = len(rows)
            return f"select {rows.tolist()}", lambda cache: cache.batch_select_indices(rows)
        if name == "reorder":
            rows = torch.from_numpy(rng.integers(0, self.batch, self.batch))
            return f"reorder {rows.tolist()}", lambda cache: cache.reorder_cache(rows)
        if name == "crop":
            n = int(rng.integers(1, min(held - (begin and begin + self.window), 6) + 1))
            return f"crop {n}", lambda cache: cache.crop(-n)
        if name == "enable":
            self.enable()
            return name, lambda cache: None
        return name, copy.deepcopy

    def run(self, n_calls: int) -> None:
        done: list[str] = []
        long = self.rng.integers(n_calls) if self.window else -1
        for at in range(n_calls):
            name, call = self.call(at == long)
            done.append(name)
            held = self.caches[0].get_seq_length()
            results = [outcome(call, cache) for cache in self.caches]
            if name == "copy":
                self.caches = results
            else:
                assert results[1:] == results[:1] * (len(results) - 1), (self.devices, done)
            n, begins = self.caches[0].get_seq_length(), self.begins()
            of_layers = [
                [(layer.get_seq_length(), *map(bytes, layer.read_rows(max(begins), n))) for layer in c.layers]
                for c in self.caches
            ]
            assert of_layers[1:] == of_layers[:1] * (len(of_layers) - 1), (self.devices, done)
            dropped = [begin > 0 for cache, begin in zip(self.caches, begins) if drops(cache)]
            assert at != long or (dropped and all(dropped)), done
            if isinstance(results[0], str):
                assert name.startswith(("refused", "crop")), (done, results[0])
                assert self.caches[0].get_seq_length() == held


class Windows(Models):
    window = 24


def drops(cache: Any) -> bool:
    return all(layer.capacity is None and layer._storage.stack.n_layers == 1 for layer in cache.layers)


def sequence(kind: Any, seed: int) -> None:
    """One random sequence; devices are among its choices, and the emulator is slow."""
    rng = np.random.default_rng(seed)
    fast = [device for device in DEVICES if device == "cpu"]
    slow = [device for device in DEVICES if device == "emulator"]
    kind(rng, fast + (slow if rng.random() < 0.25 else [])).run(12)


@pytest.mark.parametrize("kind, n", [(Caches, 20), (Models, 4), (Windows, 2)])
def test_random_sequences(kind: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several(kind, n, monkeypatch)


@pytest.mark.slow
def test_many_random_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    end = time.monotonic() + 60 * float(os.environ.get("SPARQ_RANDOM_MINUTES", "20"))
    n = 0
    while time.monotonic() < end:
        several(Caches, 10, monkeypatch)
        several(Models, 7, monkeypatch)
        several(Windows, 3, monkeypatch)
        n += 10
    print(f"{n} sequences of each kind")


def several(kind: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind is not Caches:
        pytest.importorskip("transformers")
        monkeypatch.setattr("sparq_ipu.transformers.cache.storage.FIRST_ROOM", 4)  # so that caches grow
        for name in ("BACK", "_MORE"):  # and layers with windows soon drop positions
            monkeypatch.setattr(f"sparq_ipu.transformers.cache.windows.{name}", 8)
    for seed in seeds(n):
        print(f"SPARQ_RANDOM_SEED={seed}")
        sequence(kind, seed)
