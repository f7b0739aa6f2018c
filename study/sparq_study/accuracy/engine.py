# SPDX-License-Identifier: Apache-2.0
"""Runs a transformers model with any method of `accuracy.methods` in place of its decode attention.

The prefill is dense and exact. A *span* then follows: its queries are evaluated all at once, each with its
own mask, and K and V of the span's tokens come from the sparse run itself, so the result is that of
token-by-token decoding. `Evaluator.decode` is that decoding, through transformers' own KV cache, and exists
to check it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .kernels import KernelCaches, KernelRun, has_kernel
from .methods import HIDDEN, Calibration, History, Method, Span, SparQ
from .prefix import LAST_QUERIES, LayerCache, Prefix

ATTENTION = "sparq_ipu_accuracy"
N_RECENT = 32  # rows of attention weights kept of the prefill: the largest n_recent of `alisa`
_CHUNK = 256  # queries per step of the dense prefill
_CALIBRATED_ON = 128  # queries that a calibration keeps, the last ones
_ROOM = 256  # tokens of the spans after one prefix for which caches have room, or more


def _last_magnitudes(query: torch.Tensor, old: LayerCache | None) -> torch.Tensor:
    """`LayerCache.magnitudes` once `query` (n_kv_heads, group_size, n, d) has followed `old`."""
    new = query[:, :, -LAST_QUERIES:].float().abs().sum(1)
    return torch.cat([old.magnitudes, new], 1)[:, -LAST_QUERIES:] if old else new


class _Run(Protocol):
    """Attention of every layer, during one call of the model."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (n_kv_heads, group_size, n, d), key and value (n_kv_heads, s, d) -> the shape of query."""
        ...


class _Record:
    """Dense attention that records: the prefill, or more dense tokens after a prefix."""

    def __init__(self, prefix: Prefix | None) -> None:
        self.prefix = prefix
        self.layers: dict[int, LayerCache] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        old = self.prefix.layers[layer] if self.prefix else None
        new_key, new_value = key, value
        if old:
            key, value = torch.cat([*old.keys, key], 1), torch.cat([*old.values, value], 1)
        n_heads, _, n_queries, _ = query.shape
        seq_len = key.shape[1]
        first = seq_len - n_queries
        weight_sum = torch.zeros(n_heads, seq_len)
        recent = torch.zeros(n_heads, min(N_RECENT, n_queries), seq_len)
        if old:
            assert old.weight_sum is not None and old.recent_weights is not None
            weight_sum[:, :first] = old.weight_sum
        outputs = []
        for start in range(0, n_queries, _CHUNK):
            stop = min(start + _CHUNK, n_queries)
            end = first + stop
            scores = torch.einsum("hgnd,hsd->hgns", query[:, :, start:stop], key[:, :end]) * scale
            future = torch.arange(end)[None, :] > torch.arange(first + start, end)[:, None]
            weights = torch.softmax(scores.masked_fill_(future, HIDDEN), dim=-1)
            outputs.append(torch.einsum("hgns,hsd->hgnd", weights, value[:, :end]))
            weights = weights.sum(1)
            weight_sum[:, :end] += weights.sum(1)
            kept_from = n_queries - recent.shape[1]
            if stop > kept_from:
                rows = weights[:, max(0, kept_from - start) :]
                at = max(start, kept_from) - kept_from
                recent[:, at : at + rows.shape[1], :end] = rows
        if old and old.recent_weights is not None:
            before = torch.nn.functional.pad(old.recent_weights, (0, n_queries))
            recent = torch.cat([before, recent], 1)[:, -N_RECENT:]
        self.layers[layer] = LayerCache(
            [*(old.keys if old else []), new_key],
            [*(old.values if old else []), new_value],
            _last_magnitudes(query, old),
            weight_sum,
            recent,
        )
        return torch.cat(outputs, 2)


class _Plain:
    """The same without a record of weights: for methods that start from none, in less time."""

    def __init__(self, prefix: Prefix | None) -> None:
        self.prefix = prefix
        self.layers: dict[int, LayerCache] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        old = self.prefix.layers[layer] if self.prefix else None
        old_keys, old_values = (old.keys, old.values) if old else ([], [])
        # Products in bfloat16 leave some of these in that type; what follows is float32.
        self.layers[layer] = LayerCache(
            [*old_keys, key.float()], [*old_values, value.float()], _last_magnitudes(query, old)
        )
        key, value = torch.cat([*old_keys, key], 1)[:, None], torch.cat([*old_values, value], 1)[:, None]
        n_queries, seq_len = query.shape[2], key.shape[2]
        # With a prefix the last query still sees everything; `is_causal` would align the first.
        mask = torch.ones(n_queries, seq_len, dtype=torch.bool).tril_(seq_len - n_queries)
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key.expand(-1, query.shape[1], -1, -1),
            value.expand(-1, query.shape[1], -1, -1),
            attn_mask=mask if old else None,
            is_causal=not old,
            scale=scale,
        )


class _Calibrate(_Plain):
    """Dense attention that keeps what a calibration is made from."""

    def __init__(self) -> None:
        super().__init__(None)
        self.found: dict[int, Calibration] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        self.found[layer] = Calibration(key.clone(), query[:, :, -_CALIBRATED_ON:].clone())
        return super().attend(layer, query, key, value, scale)


class _Sparse:
    """A method over a span after a prefix; without one, over a real cache that holds all positions."""

    def __init__(
        self,
        method: Method,
        histories: dict[int, History],
        prefix: Prefix | None,
        calibrations: dict[int, Calibration],
    ) -> None:
        self.method, self.histories, self.prefix = method, histories, prefix
        self.calibrations = calibrations

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        if self.prefix:
            old = self.prefix.layers[layer]
            key, value = torch.cat([*old.keys, key], 1), torch.cat([*old.values, value], 1)
        span = Span(query, key, value, layer, scale, self.histories[layer], self.calibrations.get(layer))
        # A method with a state takes the queries in turn itself.
        parts = [span] if self.method.needs_history else span.parts()
        return torch.cat([self.method.attend(part) for part in parts], 2)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sparq_run: _Run | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface.

    query (1, n_heads, n, d), key and value (1, n_kv_heads, s, d) -> (1, n, n_heads, d).
    """
    for name in ("sliding_window", "softcap", "position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            message = f"accuracy: {name} must be absent from the model's attention, got {kwargs[name]!r}"
            raise ValueError(message)
    if sparq_run is None or query.shape[0] != 1:
        raise ValueError(
            f"accuracy: {ATTENTION} must be called by Evaluator with batch 1, got batch {query.shape[0]}"
        )
    _, n_heads, n_queries, dim = query.shape
    n_kv_heads = key.shape[1]
    grouped = query[0].view(n_kv_heads, n_heads // n_kv_heads, n_queries, dim)
    scale = dim**-0.5 if scaling is None else scaling
    out = sparq_run.attend(module.layer_idx, grouped, key[0], value[0], scale)
    return out.reshape(1, n_heads, n_queries, dim).transpose(1, 2), None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _attention)
    # The runs mask by position themselves. Without this entry transformers would drop the mask too, silently.
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


class Evaluator:
    """A causal language model whose attention can be replaced from call to call.

    model: transformers model in float32 with plain (grouped-query) attention in every layer; its attention
        implementation is changed for good. One sequence at a time.
    prefill_bits: 32; 16 makes the products of a prefill in bfloat16, where no weights are recorded. That is
        three times as quick on some processors. What is compared after it is in float32 all the same.
    kernels: spans of SparQ attention by the CPU kernels, where these have the method (`kernels.has_kernel`).
    """

    def __init__(self, model: Any, prefill_bits: int = 32, kernels: bool = False) -> None:
        if model.dtype != torch.float32:
            raise ValueError(f"accuracy: model dtype must be float32, got {model.dtype}")
        _register()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.set_attn_implementation(ATTENTION)
        self.model = model
        config = model.config
        self.head_dim: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.prefill_bits = prefill_bits
        self.kernels = kernels
        self._caches: KernelCaches | None = None
        self.calibrations: dict[int, Calibration] = {}

    @torch.inference_mode()
    def calibrate(self, tokens: Sequence[int]) -> None:
        """Find out what methods that are calibrated need, from a text that no task has."""
        run = _Calibrate()
        self._forward(tokens, 0, run, logits_to_keep=1)
        self.calibrations = run.found

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], prefix: Prefix | None = None, *, record: bool = True) -> Prefix:
        """Dense processing of `tokens`, after `prefix` if given.

        The prefix is not changed; the result shares its tensors. record: the weights that stateful methods
        start from (`Method.needs_history`); a prefix without them can not go on with them.
        """
        if len(tokens) == 0:
            if prefix is None:
                raise ValueError("accuracy: tokens must not be empty without a prefix, got 0")
            return prefix
        run = _Record(prefix) if record else _Plain(prefix)
        start = prefix.length if prefix else 0
        in_bfloat16 = self.prefill_bits == 16 and not record
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16, cache_enabled=False):
            self._forward(tokens, start, run, logits_to_keep=1)
        return Prefix(start + len(tokens), run.layers)

    @torch.inference_mode()
    def span(self, prefix: Prefix, tokens: Sequence[int], method: Method) -> torch.Tensor:
        """Logits (len(tokens), vocab) float32 after each of `tokens`, which follow the prefix.

        The attention of these tokens is that of `method`.
        """
        self._check(method)
        if self.kernels and has_kernel(method):
            return self._forward(tokens, prefix.length, self._kernel_run(prefix, len(tokens), method))
        run = _Sparse(method, self._histories(prefix.layers), prefix, self.calibrations)
        return self._forward(tokens, prefix.length, run)

    def _kernel_run(self, prefix: Prefix, n_tokens: int, method: Method) -> KernelRun:
        """Of a span after a prefix, whose caches are kept for the next one."""
        assert isinstance(method, SparQ)
        if self._caches is None or self._caches.prefix is not prefix or self._caches.room < n_tokens:
            self._caches = None  # first: two sets may be more than there is room for
            self._caches = KernelCaches(prefix, max(n_tokens, _ROOM))
        return KernelRun(method, self._caches.of(method.index_bits))

    @torch.inference_mode()
    def decode(self, context: Sequence[int], tokens: Sequence[int], method: Method) -> torch.Tensor:
        """As `prefill(context)` then `span(tokens)`, token by token through transformers' DynamicCache."""
        from transformers import DynamicCache

        self._check(method)
        cache = DynamicCache(config=self.model.config)
        record = _Record(None)
        self._forward(context, 0, record, logits_to_keep=1, cache=cache, use_cache=True)
        run = _Sparse(method, self._histories(record.layers), None, self.calibrations)
        rows = []
        for i, token in enumerate(tokens):
            rows.append(self._forward([token], len(context) + i, run, cache=cache, use_cache=True))
        return torch.cat(rows)

    @staticmethod
    def _check(method: Method) -> None:
        n_recent = getattr(method, "n_recent", 0)
        if n_recent > N_RECENT:
            raise ValueError(f"accuracy: n_recent must be at most {N_RECENT}, got {n_recent}")

    @staticmethod
    def _histories(layers: dict[int, LayerCache]) -> dict[int, History]:
        return {
            i: History(cache.weight_sum, cache.recent_weights, cache.magnitudes.double().mean(1))
            for i, cache in layers.items()
        }

    def _forward(self, tokens: Sequence[int], start: int, run: _Run, **options: Any) -> torch.Tensor:
        ids = torch.tensor([list(tokens)])
        positions = torch.arange(start, start + len(tokens))[None]
        options.setdefault("use_cache", False)
        output = self.model(input_ids=ids, position_ids=positions, sparq_run=run, **options)
        logits: torch.Tensor = output.logits[0]
        return logits
