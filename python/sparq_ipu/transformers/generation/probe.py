# SPDX-License-Identifier: Apache-2.0
"""How fast this machine decodes a model, from a probe of a few of its layers with random weights.

The probe runs the code that decodes real models, so it needs no constants of a processor. A step takes a
fixed time and one that grows with the length: both come from steps at two lengths. Prefill takes a fixed
time and one per token, both from two short prompts, and one per pair of tokens: the latter is attention's,
measured at the full length.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from typing import Any, Callable, Mapping

import torch
import transformers

from sparq_ipu.torch.prompt import prompt_attention
from sparq_ipu.transformers.cache.sparq_cache import SparqCache
from sparq_ipu.transformers.decoder.weights import quantise_weights
from sparq_ipu.transformers.integration import disable, enable, enable_dense, is_enabled
from sparq_ipu.transformers.settings.layers import WEIGHTS, LayerSettings
from sparq_ipu.transformers.supported import head_dim_of

METHODS = ("dense", "sparq")
#: bytes of the probed layers: a small model whole, as Python between layers takes much of its time, and more
#: than the caches of a processor hold; weights of the output layer
_LAYER_BYTES, _HEAD_WEIGHTS = 256 << 20, 1 << 25
#: bytes for the caches of the probe, and bytes that are read to empty the processor's caches
_CACHE_BYTES, _FLUSHED_BYTES = 1 << 29, 1 << 27
#: rounds, the first of which does not count; steps in a round, the first two of which do not count
_ROUNDS, _STEPS = 5, 6
#: most tokens of the probe's long prompt, of which the short one is a quarter, and queries of its attention
_PROMPT, _QUERIES = 2048, 256


@dataclasses.dataclass(frozen=True)
class Probe:
    """Predicted seconds of a whole model.

    Attributes:
        lengths: the two that steps were timed at.
        steps: by method, seconds of a step at these lengths.
        prompt_seconds, token_seconds, pair_seconds: of prefill: fixed, with the output layer; per token; per
            pair of a token and one before it.
        n_layers: layers that were timed.
        spread: the third quartile of steps over the first, where it is largest: above 1.3 on a busy machine.
    """

    lengths: tuple[int, int]
    steps: Mapping[str, tuple[float, float]]
    prompt_seconds: float
    token_seconds: float
    pair_seconds: float
    n_layers: int
    spread: float = 1.0

    def step_seconds(self, method: str, seq_len: int) -> float:
        """One decode step of `method` with `seq_len` positions."""
        (low, high), (first, last) = self.lengths, self.steps[method]
        return first + (last - first) * (seq_len - low) / (high - low)

    def first_token_seconds(self, seq_len: int) -> float:
        """From a prompt of `seq_len` tokens to the first token."""
        return self.prompt_seconds + self.token_seconds * seq_len + self.pair_seconds * _pairs(seq_len)

    @property
    def break_even(self) -> int | None:
        """The length from which on SparQ decodes faster; None: at no length."""
        growth = [self.steps[m][1] - self.steps[m][0] for m in METHODS]
        if growth[0] <= growth[1]:
            return None
        behind = self.steps["sparq"][0] - self.steps["dense"][0]
        low, high = self.lengths
        return max(low, round(low + behind / (growth[0] - growth[1]) * (high - low)))


def probe(
    config: Any,
    weights: str,
    seq_len: int,
    batch: int,
    settings: LayerSettings,
    layer_bytes: int,
    row_bits: int,
) -> Probe:
    """Time a few layers of a model; weights: "int4", "int8", or a type of PyTorch. layer_bytes: of the
    weights of one layer."""
    config = copy.deepcopy(config)
    n_layers, vocabulary = config.num_hidden_layers, config.vocab_size
    config.num_hidden_layers = n_probed = min(n_layers, max(2, -(-_LAYER_BYTES // layer_bytes)))
    config.vocab_size = min(vocabulary, _HEAD_WEIGHTS // config.hidden_size // 64 * 64 or 64)
    config.pad_token_id = None
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types[:n_probed])
    dtype = torch.bfloat16 if weights in WEIGHTS else getattr(torch, weights)
    models: Any = transformers.AutoModelForCausalLM
    model = models.from_config(config, dtype=dtype).eval().requires_grad_(False)
    if weights in WEIGHTS:
        quantise_weights(model, weights, op="plan")
    said = {name: getattr(settings, name) for name in ("rank", "top_k", "n_local", "index_bits")}
    turn_on: dict[str, Callable[[], None]] = {
        "dense": lambda: enable_dense(model, index_bits=settings.index_bits),
        "sparq": lambda: enable(model, **said),
    }
    turn_on["sparq"]()
    output = _output_seconds(model, batch)
    factor = n_layers / n_probed
    whole_output = output * vocabulary / config.vocab_size

    def whole(seconds: float) -> float:
        return float((seconds - output) * factor + whole_output)

    lengths = _lengths(config, seq_len, batch, settings)
    of_cache = dict(index_bits=settings.index_bits, row_bits=row_bits)
    caches = {n: _filled(config, n, batch, of_cache) for n in lengths}
    took = _steps(model, caches, batch, turn_on)
    steps = {which: statistics.median(some) for which, some in took.items()}
    quartiles = [statistics.quantiles(some, n=4) for some in took.values()]
    of_pair = _pair_seconds(config, dtype, min(seq_len, lengths[1]), batch)
    n = max(4, min(seq_len, _PROMPT))
    short, long = (
        _prompt_seconds(model, m, batch, row_bits) - of_pair * n_probed * _pairs(m) for m in (n // 4, n)
    )
    of_token = max((long - short) / (n - n // 4), long / (2 * n))  # also on a busy machine
    return Probe(
        lengths,
        {method: (whole(steps[method, lengths[0]]), whole(steps[method, lengths[1]])) for method in METHODS},
        whole(max(output, short - of_token * (n // 4))),
        of_token * factor,
        of_pair * n_layers,
        n_probed,
        max(last / first for first, _, last in quartiles),
    )


def _n_kv_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _pairs(seq_len: int) -> float:
    return seq_len * (seq_len + 1) / 2


def _lengths(config: Any, seq_len: int, batch: int, settings: LayerSettings) -> tuple[int, int]:
    """From where SparQ reads less, to `seq_len` or as far as memory reaches."""
    low = max(settings.min_seq_len, 64)
    of_position = 5 * _n_kv_heads(config) * head_dim_of(config) * batch * config.num_hidden_layers
    return low, max(2 * low, min(max(seq_len, 4 * low), _CACHE_BYTES // of_position))


def _filled(config: Any, seq_len: int, batch: int, options: Mapping[str, int | None]) -> Any:
    """A cache of random keys and values."""
    room = _ROUNDS * len(METHODS) * _STEPS
    cache: Any = SparqCache(config, capacity=seq_len + room, check_finite=False, device="cpu", **options)
    some = torch.randn(2, batch, _n_kv_heads(config), min(seq_len, 1024), head_dim_of(config)).half()
    key, value = some.repeat(1, 1, 1, -(-seq_len // some.shape[3]), 1)[:, :, :, :seq_len]
    for layer in cache.layers:
        layer.restore(key, value, None)
    return cache


def _steps(
    model: Any, caches: Mapping[int, Any], batch: int, turn_on: Mapping[str, Callable[[], None]]
) -> dict[tuple[str, int], list[float]]:
    """Seconds of steps, by method and length; methods are interleaved."""
    seconds: dict[tuple[str, int], list[float]] = {(m, n): [] for m in METHODS for n in caches}
    for turn in range(_ROUNDS):
        for method in METHODS:
            if is_enabled(model):
                disable(model)
            turn_on[method]()
            for length, cache in caches.items():
                for step in range(_STEPS):
                    took = _seconds(model, torch.randint(64, (batch, 1)), cache)
                    if turn > 0 and step > 1:
                        seconds[method, length].append(took)
    return seconds


def _seconds(model: Any, tokens: torch.Tensor, cache: Any) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        model(tokens, cache=cache, use_cache=True, logits_to_keep=1)
    return time.perf_counter() - start


def _prompt_seconds(model: Any, n_tokens: int, batch: int, row_bits: int) -> float:
    """The quicker of two, since the first also allocates; the first alone if it takes long."""
    tokens = torch.randint(64, (batch, n_tokens))

    def read() -> float:
        return _seconds(model, tokens, SparqCache(model.config, row_bits=row_bits))

    first = read()
    return first if first > 1 else min(first, read())


def _pair_seconds(config: Any, dtype: torch.dtype, seq_len: int, batch: int) -> float:
    """Attention of one layer, for each pair of a token and one before it."""
    heads, head_dim = config.num_attention_heads, head_dim_of(config)
    n = min(seq_len, _QUERIES)
    query = torch.randn(batch, heads, n, head_dim).to(dtype)
    key, value = torch.randn(2, batch, _n_kv_heads(config), seq_len, head_dim).to(dtype)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        prompt_attention(query, key, value)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / (_pairs(seq_len) - _pairs(seq_len - n))


def _output_seconds(model: Any, batch: int) -> float:
    """The output layer, with its weights in no cache of the processor."""
    head = model.get_output_embeddings()
    row = torch.randn(batch, 1, model.config.hidden_size).to(model.dtype)
    other = torch.zeros(_FLUSHED_BYTES, dtype=torch.int8)
    seconds = []
    for _ in range(5):
        other.add_(1)
        start = time.perf_counter()
        with torch.no_grad():
            head(row)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
