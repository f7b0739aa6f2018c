# SPDX-License-Identifier: Apache-2.0
"""Which settings for a model: the least cache traffic within a bound on how far it is from dense attention.

Each layer is measured by itself, all others being dense: the Kullback-Leibler divergence of the next token,
dense attention's against the model's, along a text. First with the mean value and without it; then the other
settings. Divergences of layers are taken to add up. That gives, for a bound on the sum, the settings of the
least traffic. Then all layers together are measured on another part of the text, and the bound on the sum is
tightened until what was asked for holds there.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Callable, Sequence, Tuple

import torch

from sparq_ipu.kernels import BASELINE, DEFAULT
from sparq_ipu.tokens import MAX_TOKENS
from sparq_ipu.transformers.cache.sparq_cache import SparqCache
from sparq_ipu.transformers.cache_name import with_cache
from sparq_ipu.transformers.integration import decoding, enable_dense
from sparq_ipu.transformers.settings.layers import LayerSettings, ModelSettings, recommended
from sparq_ipu.transformers.supported import LayerKinds, head_dim_of, n_layers_of, text_config
from sparq_reference import CacheSpec, checks

#: the bound on the sum is at first this much above what is asked for, and is then multiplied by TIGHTER
LOOSEST, TIGHTER, TIGHTENINGS = 4.0, 0.6, 24
#: options of a cache: name and value
Options = Tuple[Tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Text:
    """A piece of text: what is read densely, and what follows, token by token. (1, n) int64 each."""

    prompt: torch.Tensor
    following: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far decoding is from dense attention, along some texts.

    Attributes:
        kl: mean divergence of the next token, in nats.
        agreement: share of tokens with the same most likely one.
    """

    kl: float
    agreement: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings that one layer could have.

    Attributes:
        settings: None: dense attention. kl: measured with all other layers dense. n_bytes: of cache a KV head
            reads for one token.
    """

    settings: LayerSettings | None
    kl: float
    n_bytes: int


@dataclasses.dataclass
class Tuned:
    """The result of `tune`.

    Attributes:
        settings: of each layer.
        kl_by_mean_value: of each layer, with and without; None for one that attends densely to a window.
        held_out: measured there, all layers together.
        traffic: bytes read, as a share of those of dense attention.
        holds: what was asked for does.
    """

    settings: ModelSettings
    kl_by_mean_value: list[tuple[float, float] | None]
    held_out: Distance
    traffic: float
    holds: bool


def candidates(
    head_dim: int | None,
    ranks: Sequence[int],
    top_ks: Sequence[int],
    bits: Sequence[int],
    n_local: int | None = None,
) -> list[LayerSettings]:
    """Every combination, with the mean value: what `tune` chooses from.

    Args:
        head_dim: of the model; None: not known yet.
        n_local: None: as `recommended`.

    Raises:
        ValueError: a setting out of range.
    """

    def settings(rank: int, top_k: int, index_bits: int) -> LayerSettings:
        given = dict(rank=rank, top_k=top_k, index_bits=index_bits)
        if n_local is not None:
            given["n_local"] = n_local
        return LayerSettings.of("tune", head_dim, recommended("tune", given, head_dim))

    return [settings(*each) for each in itertools.product(ranks, top_ks, bits)]


def cut(tokens: torch.Tensor, n_prompt: int, n_following: int, n_texts: int) -> list[Text]:
    """Pieces that follow one another.

    Raises:
        ValueError: (1, n) tokens are too few.
    """
    each = n_prompt + n_following
    if tokens.shape[1] < n_texts * each:
        rule = f"have at least {n_texts} x ({n_prompt} + {n_following}) tokens"
        checks.fail("tune", "text", rule, tokens.shape[1])
    pieces = [tokens[:, i * each : (i + 1) * each] for i in range(n_texts)]
    return [Text(piece[:, :n_prompt], piece[:, n_prompt:]) for piece in pieces]


class Probe:
    """Measures a model, which is left enabled densely, along texts."""

    def __init__(self, model: Any, texts: Sequence[Text]):
        self._model, self._texts = model, texts
        enable_dense(model, tokens_per_step=MAX_TOKENS)
        self._hooks = decoding("tune", model)
        self._dense: ModelSettings = [None] * n_layers_of(model)
        #: by options of the cache, one for each text
        self._caches: dict[Options, list[SparqCache]] = {}
        self._expected = [self._log_p(text, self._prefilled(text)) for text in texts]

    def _prefilled(self, text: Text, options: Options = ()) -> SparqCache:
        said: dict[str, Any] = dict(options)
        return self._read(text, SparqCache(self._model.config, **said))

    def _read(self, text: Text, cache: Any) -> SparqCache:
        """The cache with the prompt in it."""
        with torch.no_grad():
            self._model(text.prompt, **with_cache(cache), use_cache=True, logits_to_keep=1)
        filled: SparqCache = cache
        return filled

    def _log_p(self, text: Text, cache: Any) -> torch.Tensor:
        """(n, vocabulary) log-probabilities along the text; the cache is as before then."""
        with torch.no_grad():
            parts = [
                self._model(part, **with_cache(cache), use_cache=True).logits[0].float().log_softmax(-1)
                for part in torch.split(text.following, MAX_TOKENS, dim=1)
            ]
        cache.crop(-text.following.shape[1])
        return torch.cat(parts)

    def distance(self, settings: ModelSettings) -> Distance:
        """From dense attention, with these settings of each layer."""
        asked = {tuple(layer.of_cache.items()) for layer in settings if layer is not None} or {()}
        self._hooks.settings = list(settings)
        try:
            kls, same = [], []
            for number, text in enumerate(self._texts):
                log_q, log_p = self._log_p(text, self._cache(number, asked)), self._expected[number]
                kls.append((log_p.exp() * (log_p - log_q)).sum(-1))
                same.append(log_p.argmax(-1) == log_q.argmax(-1))
        finally:
            self._hooks.settings = self._dense
        return Distance(float(torch.cat(kls).mean()), float(torch.cat(same).float().mean()))

    def _cache(self, number: int, asked: set[Options]) -> SparqCache:
        if len(asked) > 1:  # layers differ: each takes those of its settings
            return self._read(self._texts[number], SparqCache(self._model.config))
        (one,) = asked
        if one not in self._caches:
            settings, self._hooks.settings = self._hooks.settings, self._dense
            self._caches[one] = [self._prefilled(text, one) for text in self._texts]
            self._hooks.settings = settings
        return self._caches[one][number]


def least_traffic(choices: Sequence[Sequence[Choice]], bound: float) -> list[Choice]:
    """One choice for each layer, with a sum of divergences of at most `bound` and little traffic. One rate
    between divergence and bytes decides in all layers; the best such rate is found. Every layer has a
    choice with divergence 0: dense.
    """

    def at(rate: float) -> list[Choice]:
        return [min(layer, key=lambda c: (c.n_bytes + rate * max(c.kl, 0.0), c.n_bytes)) for layer in choices]

    def fits(picked: list[Choice]) -> bool:
        return sum(max(c.kl, 0.0) for c in picked) <= bound

    if fits(at(0.0)):
        return at(0.0)
    low, high = 0.0, 1.0
    while not fits(at(high)):
        low, high = high, 4 * high
        if high > 1e30:  # a divergence of 0 is dense
            return [next(c for c in layer if c.settings is None) for layer in choices]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(at(middle)) else (middle, high)
    return at(high)


def bytes_read(settings: LayerSettings | None, seq_len: int, head_dim: int) -> int:
    """Bytes that one token reads for one KV head, at that length."""
    if settings is None:
        return BASELINE.transfer_bytes(CacheSpec(1, 1, head_dim, seq_len), None)
    cache = CacheSpec(1, 1, head_dim, seq_len, **settings.of_cache)
    return DEFAULT.transfer_bytes(cache, settings.attention)


def tune(
    model: Any,
    calibration: Sequence[Text],
    held_out: Sequence[Text],
    grid: Sequence[LayerSettings],
    *,
    max_kl: float | None = None,
    min_agreement: float | None = None,
    seq_len: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
    probe: Callable[[Any, Sequence[Text]], Any] = Probe,
) -> Tuned:
    """Settings of each layer. The model is left enabled densely.

    Args:
        calibration, held_out: texts to measure layers on, and all of them together.
        grid: what a layer may have beside dense attention; without the mean value where that is better.
        max_kl: bound on the mean divergence along the texts held out, in nats; or
        min_agreement: on the share of tokens with the same most likely one.
        seq_len: positions at which traffic counts; None: those of the texts.
        progress: called with a line for each step.
        probe: makes what measures: `Probe`.
    """
    if (max_kl is None) == (min_agreement is None):
        checks.fail("tune", "max_kl", "be given, or else min_agreement", (max_kl, min_agreement))
    head_dim, n_layers = head_dim_of(model), n_layers_of(model)
    windowed = LayerKinds.of(text_config(model)).dense
    seq_len = seq_len or calibration[0].prompt.shape[1] + calibration[0].following.shape[1]
    measured = probe(model, calibration)

    def alone(index: int, settings: LayerSettings) -> float:
        every: list[Any] = [None] * n_layers
        every[index] = settings
        return float(measured.distance(every).kl)

    def without_mean(settings: LayerSettings) -> LayerSettings:
        return dataclasses.replace(settings, mean_value=False)

    by_mean: list[tuple[float, float] | None] = []
    choices: list[list[Choice]] = []
    middle = sorted(grid, key=lambda s: bytes_read(s, seq_len, head_dim))[len(grid) // 2]
    for index in range(n_layers):
        dense = Choice(None, 0.0, bytes_read(None, seq_len, head_dim))
        choices.append([dense])
        if index in windowed:
            by_mean.append(None)
            continue
        both = alone(index, middle), alone(index, without_mean(middle))
        by_mean.append(both)
        harms = both[1] < both[0]
        for settings in grid:
            used = without_mean(settings) if harms else settings
            kl = both[harms] if settings == middle else alone(index, used)
            choices[-1].append(Choice(used, kl, bytes_read(used, seq_len, head_dim)))
        words = "harms" if harms else "helps"
        progress(f"layer {index}: KL {both[0]:.2e} with the mean value, {both[1]:.2e} without: it {words}")

    check = probe(model, held_out)

    def holds(distance: Distance) -> bool:
        if max_kl is not None:
            return distance.kl <= max_kl
        assert min_agreement is not None
        return distance.agreement >= min_agreement

    target = max_kl if max_kl is not None else 1.0 - (min_agreement or 0.0)
    tried: list[ModelSettings] = []
    for turn in range(TIGHTENINGS):
        picked = least_traffic(choices, LOOSEST * target * TIGHTER**turn)
        chosen: ModelSettings = [choice.settings for choice in picked]
        if chosen in tried:
            continue
        tried.append(chosen)
        distance = check.distance(chosen)
        total = sum(c.n_bytes for i, c in enumerate(picked) if i not in windowed)
        traffic = total / ((n_layers - len(windowed)) * bytes_read(None, seq_len, head_dim))
        progress(
            f"all layers: KL {distance.kl:.4f}, agreement {distance.agreement:.3f}, "
            f"{traffic:.3f} of the traffic of dense attention"
        )
        if holds(distance) or all(layer is None for layer in chosen):
            break
    return Tuned(chosen, by_mean, distance, traffic, holds(distance))
