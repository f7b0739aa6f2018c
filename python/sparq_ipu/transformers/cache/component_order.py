# SPDX-License-Identifier: Apache-2.0
"""The order of the components of a head, where the key index has some of them (docs/exactness.md, E13).

Such an index has the first components. Which ones matter differs by layer, by head and by text, so each row
of each layer has an order of its own. It comes from the last tokens of the prompt, by
`component_order.by_prompt` of `sparq_reference`, and is found when the first token after the prompt comes.
From then on keys are in this order in the cache, and queries are put in it before attention. Values and
outputs stay as they are, and a dot product does not care but for rounding. Who reads keys from a layer gets
them in the model's order.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.transformers.cache.storage import Storage
from sparq_reference import component_order

#: tokens of a prompt, the last ones, whose queries say what matters
LAST_TOKENS = 512


class ComponentOrder:
    """The order of the components in the KVCache of one layer, once there is one.

    Args:
        batch: rows.
        is_wanted: the key index has some of the components. Else nothing is ever put in another order.
    """

    def __init__(self, batch: int, is_wanted: bool):
        self._is_wanted = is_wanted
        self._batch = batch
        self.forget()

    @classmethod
    def of(cls, cache: KVCache) -> ComponentOrder:
        """Of a cache that is new. An index that has all components needs no order."""
        return cls(cache.batch, 0 < cache.index_components < cache.head_dim)

    def forget(self) -> None:
        """Have no order, and no prompt to find one from."""
        #: (batch, n_kv_heads, head_dim) int32: which component comes first, second and so on
        self._order: torch.Tensor | None = None
        #: by the number of heads: the order as `gather` takes it, and its inverse
        self._indices: dict[tuple[int, bool], torch.Tensor] = {}
        #: of each row the queries of its last real tokens, (n_heads, at most LAST_TOKENS, head_dim) float16
        self._queries: list[np.ndarray] | None = None

    @property
    def order(self) -> np.ndarray | None:
        """(batch, n_kv_heads, head_dim) int32: which component of the model comes first, second and so on.
        None: as in the model."""
        return None if self._order is None else self._order.numpy()

    @property
    def address(self) -> int:
        """Of `order`, for kernels; 0: there is none."""
        return 0 if self._order is None else self._order.data_ptr()

    def observe(self, query: torch.Tensor, real: torch.Tensor) -> None:
        """Tokens of a prompt attend, densely: their queries are kept until there is an order.

        Args:
            query: (batch, n_heads, n_tokens, head_dim).
            real: (batch, n_tokens) bool.
        """
        if not self._is_wanted or self._order is not None:
            return
        rows = []
        for row, flags in enumerate(real):
            last = flags.nonzero()[-LAST_TOKENS:, 0]
            rows.append(query[row].detach()[:, last].to(torch.float16).numpy())  # an index copies
        if self._queries is not None:
            pairs = zip(self._queries, rows)
            rows = [np.concatenate(pair, axis=1)[:, -LAST_TOKENS:].copy() for pair in pairs]
        self._queries = rows

    def settle(self, storage: Storage) -> None:
        """A token comes behind the prompt. If there is a prompt and no order: find it, and put the keys that
        are held in it."""
        if self._queries is None:
            return
        queries, self._queries = self._queries, None
        cache = storage.cache
        key, _ = cache.read()
        order = np.empty((cache.batch, cache.n_kv_heads, cache.head_dim), np.int32)
        order[:] = np.arange(cache.head_dim)
        group = queries[0].shape[0] // cache.n_kv_heads
        for row, (query, length) in enumerate(zip(queries, cache.lengths.tolist())):
            if not query.shape[1] or not length:
                continue  # nothing is known of it
            for head in range(cache.n_kv_heads):  # one by one: it takes double precision
                of_group = query[None, head * group : (head + 1) * group]
                of_head = key[row : row + 1, head : head + 1, :length]
                order[row, head] = component_order.by_prompt(of_group, of_head)[0, 0]
        self._order = torch.from_numpy(order)
        storage.change_keys(lambda key: self.to_cache(torch.from_numpy(key)).numpy())

    def to_cache(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or queries (batch, heads, n_tokens, head_dim) of the model, as the cache has them."""
        return self._gathered(rows, False)

    def to_model(self, key: torch.Tensor) -> torch.Tensor:
        """The inverse of `to_cache`."""
        return self._gathered(key, True)

    def _gathered(self, rows: torch.Tensor, is_inverse: bool) -> torch.Tensor:
        if self._order is None:
            return rows
        which = rows.shape[1], is_inverse
        index = self._indices.get(which)
        if index is None:
            order = self._order.long()
            order = order.argsort(-1) if is_inverse else order
            index = order.repeat_interleave(rows.shape[1] // order.shape[1], 1)[:, :, None]
            self._indices[which] = index
        return rows.gather(3, index.expand(-1, -1, rows.shape[2], -1))

    def select(self, index: torch.Tensor) -> ComponentOrder:
        """That of the rows `index`, in that order."""
        selected = ComponentOrder(len(index), self._is_wanted)
        if self._order is not None:
            selected._order = self._order[index]
        if self._queries is not None:
            selected._queries = [self._queries[row] for row in index.tolist()]
        return selected

    def hide(self, kept: Sequence[torch.Tensor]) -> None:
        """Tokens leave the cache. `kept`: of each row, which of its positions stay, (length,) bool."""
        if self._queries is not None:
            for row, (query, flags) in enumerate(zip(self._queries, kept)):
                n = query.shape[1]
                self._queries[row] = query[:, flags.numpy()[len(flags) - n :]]
