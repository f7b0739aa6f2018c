# SPDX-License-Identifier: Apache-2.0
"""The cache of a server: texts come and go one by one, each in a place of its own.

`SparqCache` holds one batch, whose rows begin and end together. Here each layer has one `sparq_ipu.KVCache`
with a batch element for each place. A forward pass is one of some places: a piece of one prompt, or the
next tokens of many texts. `sparq_ipu.serve` makes these passes. Between two layers of one, another may be
made of other places.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence, cast

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.kept_prefixes import Rows
from sparq_ipu.tokens import append_and_attend
from sparq_ipu.torch.graphs import outside_graphs
from sparq_ipu.torch.prompt import attend_cache
from sparq_ipu.transformers.cache.attend import attend, half_of, without_backward
from sparq_ipu.transformers.cache.sparq_cache import PreparedCache
from sparq_ipu.transformers.cache.windows import keep_last, room_of
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.decoder.step_layer import StepLayer, waves_of
from sparq_ipu.transformers.settings.layers import (
    LayerSettings,
    ModelSettings,
    cache_options,
    dense_attention_of,
)

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import CPUBackend, Wave

#: sets of places with rows that are kept ready
_SETS = 32


class _Layer:
    """Keys and values of one layer, of all places.

    Args:
        n_places: texts that it has room for.
        capacity: most positions that it holds of each.
        window: most recent positions that the layer sees; None: all.
        options: of `sparq_ipu.KVCache`.
    """

    def __init__(self, n_places: int, capacity: int, window: int | None, options: dict[str, Any]):
        self.capacity = capacity
        self.window = window
        #: of each place, the first positions that are no longer held
        self.dropped = np.zeros(n_places, np.int64)
        self._n_places = n_places
        self._options = options
        self._cache: KVCache | None = None
        self._rows: dict[tuple[int, ...], KVCache] = {}

    def make(self, key: torch.Tensor, settings: LayerSettings | None) -> None:
        """Make room for tokens like `key` (..., n_kv_heads, n_tokens, head_dim), unless there is."""
        if self._cache is None:
            shape = self._n_places, key.shape[1], key.shape[3], self.capacity
            self._cache = KVCache(*shape, **{**cache_options(settings), **self._options})

    @property
    def cache(self) -> KVCache:
        """The cache of all places; it exists as soon as tokens came."""
        assert self._cache is not None
        return self._cache

    @property
    def is_empty(self) -> bool:
        """No tokens came yet."""
        return self._cache is None

    @property
    def bytes(self) -> int:
        """Memory of keys, values and the key index of full places."""
        return cast("CPUBackend", self.cache.one_layer("bytes")).n_bytes

    def rows(self, places: Sequence[int]) -> KVCache:
        """The cache of these places."""
        key = tuple(places)
        if key not in self._rows:
            if len(self._rows) == _SETS:
                del self._rows[next(iter(self._rows))]
            self._rows[key] = self.cache.rows(key)
        return self._rows[key]


class _LayerPass(StepLayer):
    """A layer in one forward pass. Arguments as of `Places.tokens`."""

    def __init__(
        self,
        of: _Layer,
        settings: LayerSettings | None,
        places: tuple[int, ...],
        pieces: Sequence[tuple[int, int]],
        groups: Sequence[tuple[tuple[int, ...], int]],
        between: Callable[[], None] | None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self._of = of
        self._settings = settings
        self._places = places
        self._pieces = pieces
        #: rows of a step that are attended to together: their places, and the tokens of each
        self._groups = groups
        self._between = between
        #: keys and values of a step, which are appended when their queries come
        self._waiting: tuple[np.ndarray, np.ndarray] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        self._of.make(key_states, self._settings)

    @outside_graphs
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store pieces of prompts (1, n_kv_heads, n_tokens, head_dim), rounded to float16. Of a step nothing
        is stored yet. Returns the keys and values, by which attention finds this layer."""
        if self._between is not None:
            self._between()
        self.lazy_initialization(key_states)
        key = key_states.detach().to(torch.float16).contiguous().numpy()
        value = value_states.detach().to(torch.float16).contiguous().numpy()
        for place, (first, n) in zip(self._places, self._pieces):
            piece = slice(first, first + n)
            self._of.rows((place,)).append(key[:, :, piece], value[:, :, piece])
        if not self._pieces:
            self._waiting = key, value
        key_states.sparq_layer = self  # type: ignore[attr-defined]  # a tensor takes attributes
        return key_states, value_states

    def check_mask(self, mask: torch.Tensor | None, n_tokens: int) -> None:
        """No mask is given: tokens see all earlier tokens of their place."""

    @outside_graphs
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, factor: float = 1.0
    ) -> torch.Tensor:
        """A step, or pieces in one row: query (rows, n_heads, n_tokens, head_dim) -> (rows, n_tokens,
        n_heads, head_dim).

        Raises:
            ValueError: NaN or infinity, a place that is full.
        """
        if self._pieces:
            scale = factor / float(query.shape[-1]) ** 0.5
            rows, window = self._of.rows(self._places), self._of.window or 0
            attended = attend_cache(query, rows, self._pieces, scale, window, *self.blocks_of(window))
        else:
            assert self._waiting is not None
            new, self._waiting = self._waiting, None
            attended = torch.from_numpy(self._attend_rows(half_of(query, factor), *new)).to(query.dtype)
        return without_backward(attended, query, key, value)

    def takes_step(self, n_tokens: int, position_ids: Any, attention_mask: Any) -> bool:
        return n_tokens == 1 and position_ids is not None and attention_mask is None and not self._pieces

    def takes_prompt(self, position_ids: Any, attention_mask: Any) -> bool:
        return position_ids is not None and attention_mask is None

    def step(self, products: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        done = rotary.attend(products, self.waves(len(products)))
        if done is not None:
            return done[0]
        query, key, value = rotary.turned(products)
        self.lazy_initialization(key)
        half = self._attend_rows(query.numpy(), key.numpy(), value.numpy())
        return torch.from_numpy(half).view(len(products), -1).to(products.dtype)

    def waves(self, n_rows: int) -> list[Wave] | None:
        waves: list[Wave] = []
        n_before = 0
        for places, n_tokens in () if self._of.is_empty else self._groups:
            more = waves_of(self._of.rows(places), self._settings, self._of.window, n_tokens, n_before)
            if more is None:
                return None
            waves += more
            n_before += n_tokens
        return waves or None

    def has_attended(self, lengths: Sequence[int]) -> None:
        """The places know their lengths."""

    def _attend_rows(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Store the tokens of a step and attend to them: (rows, heads, 1, head_dim) of each -> (rows, 1,
        n_heads, head_dim)."""
        outputs = []
        end = 0
        for places, n in self._groups:
            begin, end = end, end + n * len(places)
            rows = self._of.rows(places)
            q, k, v = (
                np.ascontiguousarray(x[begin:end, :, 0].reshape(n, -1, *x.shape[1::2]).transpose(1, 2, 0, 3))
                for x in (query, key, value)
            )
            if n > 1:
                output = append_and_attend(q, k, v, rows, dense_attention_of(self._of.window))
                outputs.append(output.transpose(2, 0, 1, 3).reshape(end - begin, 1, *output.shape[1::2]))
            else:
                rows.append(k, v)
                output = attend(q[:, :, 0], rows, self._settings, window=self._of.window)
                outputs.append(output[:, None])
        return np.concatenate(outputs)

    def get_seq_length(self, *args: Any) -> int:
        """0: the model is told the positions of all tokens."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(tokens of the pass, 0): no mask is needed for what is before them."""
        return query_length, 0

    def get_max_length(self) -> int:
        """Positions that a place has room for."""
        return self._of.capacity


def _once_each(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The places of rows in parts, each as long as may be with no place twice."""
    part: list[int] = []
    for place in places:
        if place in part:
            yield tuple(part)
            part = []
        part.append(place)
    yield tuple(part)


class Places:
    """The contexts of a model: of each place, keys and values of all layers.

    Args:
        settings: of each layer, those that the model is enabled with.
        n_places: texts that there is room for.
        capacity: most positions of each.
        options: of `sparq_ipu.KVCache`, with device "cpu".
        prompt_blocks: of `sparq_ipu.transformers.enable`.
        windows: of each layer, the most recent positions that it sees; None: all. (): all of all.
    """

    def __init__(
        self,
        settings: ModelSettings,
        n_places: int,
        capacity: int,
        options: dict[str, Any],
        prompt_blocks: float = 0.0,
        windows: Sequence[int | None] = (),
    ):
        self._settings = settings
        self._prompt_blocks = prompt_blocks
        #: the longest window; of texts that are longer, such layers hold as much as it takes
        self._window = max((window for window in windows if window is not None), default=0)
        self._room = min(capacity, room_of(self._window))
        self._layers = [
            _Layer(n_places, capacity if window is None else self._room, window, options)
            for window in windows or [None] * len(settings)
        ]
        self._windowed = [layer for layer in self._layers if layer.window is not None]

    def tokens(
        self,
        places: Sequence[int],
        pieces: Sequence[tuple[int, int]] = (),
        between: Callable[[], None] | None = None,
    ) -> PreparedCache:
        """The cache for one forward pass with tokens of these places.

        Args:
            places: the places of the tokens, in order. In a step, a place comes once for each of its tokens,
                after the earlier tokens of all other places.
            pieces: of prompts, side by side in one row, which are read with dense attention: for each place,
                its first token in the row and the number of tokens. Others are not stored. Empty: steps.
            between: called in each layer before its tokens are stored; it may make passes of other places.
        """
        counts = [n for _, n in pieces] or [1] * len(places)
        self._make_room(places, counts)
        one_by_one = [] if pieces else list(_once_each(places))
        singly = [(group, 1) for group in one_by_one]
        # dense attention reads the cache once for several tokens
        together = [(group, len(list(same))) for group, same in itertools.groupby(one_by_one)]
        layers: list[Any] = []
        for layer, settings in zip(self._layers, self._settings):
            groups = together if settings is None else singly
            layers.append(_LayerPass(layer, settings, tuple(places), pieces, groups, between))
            layers[-1].prompt_blocks = self._prompt_blocks
        return PreparedCache(layers=layers)

    @property
    def bytes(self) -> int:
        """Memory of all places when they are full."""
        return sum(layer.bytes for layer in self._layers)

    def _make_room(self, places: Sequence[int], counts: Sequence[int]) -> None:
        """For so many tokens of places, in layers with windows, that drop positions which none will see."""
        if not self._windowed or self._windowed[-1].is_empty:
            return
        after = self._windowed[-1].cache.lengths  # the last one to drop, also where memory ran out before
        np.add.at(after, list(places), counts)
        for place in set(places):
            if after[place] > self._room:
                for layer in self._windowed:
                    layer.dropped[place] += keep_last(layer.rows((place,)), self._window)[0]

    def shortest(self, place: int) -> int:
        """Tokens that a text can be cut to, other than 0: layers with windows hold what the next one sees."""
        dropped = self.begin(place)
        return dropped + self._window if dropped else 0

    def begin(self, place: int) -> int:
        """First position of a place that `read` returns."""
        return max(int(layer.dropped[place]) for layer in self._layers)

    def keep(self, places: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Forget what is behind these lengths, where there is more, in every layer: also after a pass that
        ended in the middle. A place whose `shortest` is longer is emptied. Returns the lengths."""
        kept = [n if n >= self.shortest(place) else 0 for place, n in zip(places, lengths)]
        index = list(places)
        for layer in self._layers:
            layer.dropped[index] *= np.array(kept) > 0
            if not layer.is_empty:
                rows = layer.rows(places)
                rows.truncate(np.minimum(rows.lengths, np.array(kept) - layer.dropped[index]))
        return kept

    def read(self, place: int, start: int, stop: int) -> Rows:
        """What a place holds of these positions, from `begin` on: copies."""
        read = []
        for layer in self._layers:
            before = int(layer.dropped[place])
            read.append(layer.rows((place,)).read(start - before, stop - before))
        return [(key[0], value[0]) for key, value in read]

    def append(self, place: int, rows: Rows) -> None:
        """Tokens that `read` returned, behind those of a place."""
        self._make_room([place], [rows[0][0].shape[1]])
        for layer, (key, value) in zip(self._layers, rows):
            layer.rows((place,)).append(key[None], value[None])

    def copy(self, source: int, target: int, length: int) -> None:
        """Place `target` holds the first tokens of `source`."""
        for layer in self._layers:
            layer.rows((source, target)).reorder(np.zeros(2, np.int64))
            layer.dropped[target] = layer.dropped[source]
        self.keep([target], [length])
