# SPDX-License-Identifier: Apache-2.0
"""A way to decode of bench/decode.py, and its cache: those of transformers, and ours."""

from __future__ import annotations

import argparse
import time
from typing import Any, Iterable

from sparq_ipu.transformers.settings.layers import LayerSettings, complete, recommended_top_k

#: tokens of a prompt, and decoded tokens, before anything is timed
WARM_UP = (48, 8)

METHODS = (
    "plain-sdpa",
    "plain-eager",
    "plain-sdpa-static",
    "plain-eager-static",
    "dense",
    "sparq",
    "recommended",
)
#: those with our caches
OURS = ("dense", "sparq", "recommended")
#: wall time, and the CPU time of this thread
CLOCKS = {False: time.perf_counter, True: time.thread_time}


def head_dim_of(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def settings_of(
    name: str, a: argparse.Namespace, seq_len: int, head_dim: int
) -> tuple[dict[str, Any], LayerSettings | None]:
    """What `enable` is told for a method, and the settings of a layer that it has of that."""
    said: dict[str, Any]
    if name == "sparq":
        said = dict(published=True, rank=a.r, top_k=a.k, n_local=a.local, index_bits=a.index_bits)
        return said, LayerSettings(a.r, a.k, a.local, index_bits=a.index_bits)
    if name == "recommended":
        said = dict(top_k=recommended_top_k(seq_len))
        return said, complete("decode", head_dim, said)
    return {}, None


class Method:
    """One way to decode, and its cache.

    Args:
        name: of METHODS.
        model: shared by the methods of one type.
        a: the command line.
        seq_len: positions in the cache.
    """

    def __init__(self, name: str, model: Any, a: argparse.Namespace, seq_len: int):
        self.name, self.model = name, model
        #: what `enable` is told, and the settings that it has of that; None: another way
        self._said, self.settings = settings_of(name, a, seq_len, head_dim_of(model.config))
        # `sparq-ipu plan` predicts a dense prompt.
        self._prompts: dict[str, Any] = dict(prompt_blocks=0.0) if a.predict else {}
        self._options = dict(device="cpu", n_threads=a.threads, row_bits=a.row_bits)
        self._now = CLOCKS[a.cpu_time]
        self.seconds: list[float] = []
        self.cache: Any = None

    def turn_on(self) -> None:
        """The model decodes this way."""
        from sparq_ipu.transformers import disable, enable, enable_dense, is_enabled

        if is_enabled(self.model):
            disable(self.model)
        if self._said:
            enable(self.model, **self._said, **self._prompts)
        elif self.name == "dense":
            enable_dense(self.model)
        else:
            self.model.set_attn_implementation(self.name.split("-")[1])

    def fill(self, tensors: Iterable[tuple[Any, Any]], n_more: int) -> None:
        """Make the cache.

        Args:
            tensors: keys and values of one layer after another.
            n_more: positions that will be added.
        """
        import torch
        import transformers

        from sparq_ipu.transformers import SparqCache

        config, dtype = self.model.config, self.model.dtype
        for index, (key, value) in enumerate(tensors):
            if self.cache is None:
                capacity = key.shape[2] + n_more
                if self.name in OURS:
                    self.cache = SparqCache(config, capacity=capacity, check_finite=False, **self._options)
                elif self.name.endswith("-static"):
                    self.cache = transformers.StaticCache(config=config, max_cache_len=capacity)
                else:
                    self.cache = transformers.DynamicCache()
            if self.name in OURS:
                self.cache.layers[index].restore(key, value, self.settings)
                continue
            key, value, positions = key.to(dtype), value.to(dtype), torch.arange(key.shape[2])
            with torch.no_grad():
                self.cache.update(key, value, index, {"cache_position": positions})

    def cache_bytes(self) -> int:
        """Memory of the cache for the positions it has room for, in bytes; counted."""
        total = 0
        for layer in self.cache.layers:
            if self.name in OURS:
                total += layer.cache.one_layer("bench").n_bytes
            else:
                total += sum(x.numel() * x.element_size() for x in (layer.keys, layer.values))
        return total

    def first_token(self, prompt: list[int]) -> float:
        """Seconds from a prompt to the likeliest token after it, with a cache of its own."""
        import torch
        import transformers

        from sparq_ipu.transformers import SparqCache

        self.turn_on()
        start = 0.0
        for tokens in (prompt[: WARM_UP[0]], prompt):
            start = self._now()
            with torch.no_grad():
                config = self.model.config
                is_ours = self.name in OURS
                cache: Any = SparqCache(config) if is_ours else transformers.DynamicCache(config=config)
                given = dict(cache=cache, use_cache=True, logits_to_keep=1)
                self.model(torch.tensor([tokens]), **given).logits.argmax()
        return self._now() - start

    def decode(self, tokens: Any, is_counted: bool) -> Any:
        """Tokens (n, batch, 1), one step each; the logits of the first."""
        import torch

        self.turn_on()
        first = None
        with torch.no_grad():
            for token in tokens:
                start = self._now()
                logits = self.model(token, cache=self.cache, use_cache=True).logits
                seconds = self._now() - start
                if is_counted:
                    self.seconds.append(seconds)
                first = logits if first is None else first
        return first
