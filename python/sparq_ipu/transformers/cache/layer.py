# SPDX-License-Identifier: Apache-2.0
"""A layer of the cache that transformers carries from token to token: what transformers, the hooks of the
model and the attention function ask of it.

It has a `sparq_ipu.KVCache` (module `storage`), and knows which columns of the batch are in it (`columns`)
and what is on its way to it (`handover`).

The model's own attention takes keys and values as tensors. It gets them for several tokens at once, also on
top of a filled cache (another turn of a chat, prefill in chunks): they are then read back from the KVCache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.torch import prompt
from sparq_ipu.torch.graphs import outside_graphs
from sparq_ipu.transformers.cache.attend import attend, attend_tokens, half_of, without_backward
from sparq_ipu.transformers.cache.columns import RealColumns, to_columns
from sparq_ipu.transformers.cache.handover import Announcement, Handover
from sparq_ipu.transformers.cache.storage import LayerStack, Storage
from sparq_ipu.transformers.cache.windows import WindowStorage
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.decoder.step_layer import StepLayer, waves_of
from sparq_ipu.transformers.settings.layers import LayerSettings, cache_options
from sparq_reference import NotFinite, checks
from sparq_reference.settings import op_of

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import Wave


class SparqLayer(StepLayer):
    """Keys and values of one layer.

    Args:
        index: of the layer, for messages.
        capacity: most positions of one row; None: the cache grows by doubling, which copies it.
        window: most recent real tokens that the model lets a token attend to, itself included; None: all.
        device, check_finite, options: as `sparq_ipu.KVCache`; `index_bits`, if left out, is what the settings
            of the first tokens ask for.
        stack: the layers that share its KVCache; None: it is alone.
    """

    #: asked before assisted generation: the error of `crop` tells what to change
    is_croppable = True

    # set when the first tokens come
    _storage: Storage
    _columns: RealColumns

    def __init__(
        self,
        index: int,
        capacity: int | None = None,
        device: str = "auto",
        check_finite: bool = True,
        window: int | None = None,
        stack: LayerStack | None = None,
        **options: Any,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.index = index
        self.capacity = capacity
        self.window = window
        self._stack, self._place = (LayerStack(), 0) if stack is None else (stack, index)
        self._options = dict(options, device=device, check_finite=check_finite)
        self.is_initialized = False
        self._clear()

    def _clear(self) -> None:
        if self.is_initialized:
            self._storage.forget()
        self.is_initialized = False
        self._handover = Handover(self.index)
        #: settings that the cache was found to have what they ask for
        self._fitting: LayerSettings | None = None
        #: tokens may be taken back
        self._is_croppable = False

    @property
    def cache(self) -> KVCache:
        """The KVCache of an initialized layer."""
        return self._storage.cache

    # transformers looks for these names, and sets them to None when a layer is made

    @property
    def keys(self) -> torch.Tensor | None:
        """(batch, n_kv_heads, n_columns, head_dim) float16, read from the KVCache; 0 where padding is."""
        return self._by_column()[0] if self.is_initialized else None

    @keys.setter
    def keys(self, _: torch.Tensor | None) -> None:
        pass

    @property
    def values(self) -> torch.Tensor | None:
        """As `keys`."""
        return self._by_column()[1] if self.is_initialized else None

    @values.setter
    def values(self, _: torch.Tensor | None) -> None:
        pass

    def _by_column(self) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self._storage.read()
        return to_columns(key, self.real), to_columns(value, self.real)

    def arm(
        self,
        real: torch.Tensor | None,
        settings: LayerSettings | None,
        is_step: bool = False,
        is_croppable: bool = False,
    ) -> None:
        """Announce new tokens.

        Args:
            real: which of them are real, (batch, n_tokens) bool; None: all.
            settings: how to attend to them; None: densely.
            is_step: several tokens are decode steps in one: each attends as if it came alone.
            is_croppable: tokens may be taken back later.
        """
        self._handover.announce(Announcement(real, settings, is_step))
        self._is_croppable = is_croppable

    def check_options(self, settings: LayerSettings | None, row_bits: int | None = None) -> None:
        """Raise ValueError if `arm` can not be called with these settings: they ask for another cache than
        this one, e.g. another `index_bits`. row_bits: wanted; a cache that was not told its own takes it."""
        has_rows = row_bits is None or (self.is_initialized and self.cache.row_bits == row_bits)
        if settings is self._fitting and has_rows:  # as at the step before
            return
        asked = {} if settings is None else dict(cache_options(settings))
        if row_bits is not None:
            asked["row_bits"] = row_bits
            self._options.setdefault("row_bits", row_bits)
        for name, wanted in asked.items():
            own = getattr(self.cache, name) if self.is_initialized else self._options.get(name, wanted)
            if own != wanted:
                rule = f"be that of the cache, {own} in layer {self.index}"
                checks.fail("sparq_attention", name, rule, wanted)
        if self.is_initialized and settings is not None:
            self.cache.check_settings(op_of(settings.attention), settings.attention)
            self._fitting = settings

    @property
    def is_armed(self) -> bool:
        """An announced token has not come to attention yet."""
        return self._handover.announced is not None

    @property
    def real(self) -> torch.Tensor:
        """Which columns hold real tokens, (batch, n_columns) bool."""
        return self._columns.flags

    @property
    def is_all_real(self) -> bool:
        """No column is padding in any row."""
        return self._columns.is_all_real

    def check_real(self, real: torch.Tensor) -> None:
        """Whether `set_real` can be done.

        Raises:
            ValueError: a column that was not real would be again: its key and value are gone. Or a window
                would show tokens that are.
        """
        self._columns.check_hidden(real)
        self._storage.check_left(real.sum(dim=1).numpy())

    def set_real(self, real: torch.Tensor) -> None:
        """Change which of the columns are real, (batch, n_columns) bool. The others leave the KVCache.
        Call `check_real` before."""
        key, value = self._by_column()
        self._storage.replace(key, value, real)
        self._columns.replace(real)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        """Allocate for the shape of key_states (batch, n_kv_heads, n_tokens, head_dim)."""
        self.batch_size = self.max_batch_size = key_states.shape[0]
        announced = self._handover.announced
        asked = {} if announced is None else cache_options(announced.settings)
        options = {**asked, **self._options}
        self._storage = self._stack.storage(self._place, key_states, self.capacity, options)
        is_alone = self._storage.stack.n_layers == 1  # layers of a stack drop nothing
        if self.window is not None and self.capacity is None and is_alone:
            self._storage = WindowStorage(self._storage.stack, self.window)
        room = max(self._storage.cache.capacity, key_states.shape[2])
        self._columns = RealColumns(self.batch_size, room)
        self.is_initialized = True

    @outside_graphs
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens (batch, n_kv_heads, n_tokens, head_dim), rounded to float16.

        Returns:
            The tokens. The attention function finds those before them in `cache`, through the attribute
            `sparq_layer` of the keys.

        Raises:
            RuntimeError: the model is not enabled.
            ValueError: tokens came already in this forward pass, no room in `capacity`, NaN or infinity
                (float16 ends at 65504).
        """
        announced = self._handover.expected()
        states = key_states.detach(), value_states.detach()
        # Through float32: PyTorch converts bfloat16 to float16 one number at a time.
        key, value = (x.contiguous().float().half() for x in states)
        n_tokens = key.shape[2]
        if announced.is_step and n_tokens > 1:
            self._storage.reserve(self._columns.n_columns, n_tokens)
            self._columns.append(None, n_tokens)
            self._handover.waiting = key.numpy(), value.numpy()
        else:
            self._store(key, value, announced.real)
        key_states.sparq_layer = self  # type: ignore[attr-defined]  # a tensor takes attributes
        self._handover.give(key_states, value_states)
        return key_states, value_states

    def restore(self, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings | None) -> None:
        """Append tokens that a cache like this one held: (batch, n_kv_heads, n_tokens, head_dim) float16, all
        real. settings: as of `arm`."""
        self.arm(None, settings)
        self._store(key, value, None)
        self._handover.announce(None)

    def _store(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor | None) -> None:
        """Tokens (batch, n_kv_heads, n_tokens, head_dim) float16; `real` as in `Announcement`."""
        is_new = not self.is_initialized
        if is_new:
            self.lazy_initialization(key, value)
        self._storage.reserve(self._columns.n_columns, key.shape[2])
        try:
            self._storage.append(key, value, real)
        except ValueError as error:
            if is_new:  # nothing is held, not even a batch size
                self._clear()
            if isinstance(error, NotFinite):
                raise NotFinite(f"{error} (layer {self.index}; the cache is float16)") from error
            raise
        self._columns.append(real, key.shape[2])

    def get_seq_length(self, *args: Any) -> int:
        """Columns held, padding included."""
        return self._columns.n_columns if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns after `query_length` more tokens, 0)."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """The capacity, -1 without one."""
        return -1 if self.capacity is None else self.capacity

    def reset(self) -> None:
        """Forget everything."""
        self._clear()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row b becomes what row beam_idx[b] was: beam search."""
        if self.is_initialized:
            self._storage.reorder(beam_idx.numpy())
            self._columns = self._columns.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times."""
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices` only, in that order."""
        if self.is_initialized:
            self._select(self, indices)

    def crop(self, n_columns: int) -> None:
        """Take the last columns back: -n of them.

        Raises:
            ValueError: a positive number.
            NotImplementedError: the model is enabled for one token a step. Assisted generation and prompt
                lookup check several, which would be prefill: the model's own dense attention.
        """
        self.cut(*self.check_crop(n_columns))

    def check_crop(self, n_columns: int) -> tuple[int, np.ndarray | None]:
        """What `cut` takes, and the errors of `crop`: nothing changes. No lengths: all columns are kept."""
        if not self._is_croppable:
            raise NotImplementedError(
                "SparqCache: crop must not be called with tokens_per_step=1, got a request to drop tokens; "
                "assisted generation and prompt lookup check several tokens per step: "
                "enable(model, ..., tokens_per_step=32)"
            )
        if n_columns > 0:
            checks.fail("SparqCache", "crop", "be called with minus the number of tokens to drop", n_columns)
        held = self.get_seq_length()
        kept = max(held + n_columns, 0)
        if kept == held:
            return kept, None
        lengths: np.ndarray = self.real[:, :kept].sum(dim=1).numpy()
        self._storage.check_left(lengths)
        return kept, lengths

    def cut(self, n_columns: int, lengths: np.ndarray | None) -> None:
        """Keep the first `n_columns`, which hold `lengths` tokens, (batch,)."""
        if lengths is not None:
            self._columns.n_columns = n_columns
            self._storage.truncate(lengths)

    @property
    def begin(self) -> int:
        """First position that `read_rows` returns, of an initialized layer."""
        return self._storage.begin

    def read_rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values by position, (batch, n_kv_heads, stop - start, head_dim) float16: copies."""
        key, value = self._storage.read(start, stop)
        return key.numpy(), value.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> SparqLayer:
        """A copy that shares nothing: continue one prompt in two ways."""
        copy = SparqLayer(self.index, self.capacity, window=self.window, **self._options)
        if self.is_initialized:
            self._select(copy, torch.arange(self.batch_size))
            copy.is_initialized = True
        return copy

    def _select(self, to: SparqLayer, indices: torch.Tensor) -> None:
        """Layer `to` holds the rows `indices` of this one."""
        index = torch.arange(self.batch_size)[indices]
        selected = self._storage.select(index)
        if to is self:
            self._storage.forget()
        to._storage, to._columns = selected, self._columns.select(index)
        to._stack, to._place = selected.stack, selected.index
        to.batch_size = to.max_batch_size = len(index)

    @outside_graphs
    def attend_prefill(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Several tokens came to attention, which is the model's own or `attend_prompt`.

        Args:
            key, value: what `update` returned.

        Raises:
            ValueError: key and value are not that, or came before.
        """
        self._handover.take(key, value)

    @outside_graphs
    def attend_prompt(self, query: torch.Tensor, scaling: float | None) -> torch.Tensor | None:
        """Attention of the tokens that came last, by the contract's own (E14, E16): query (batch, n_heads,
        n_tokens, head_dim) -> (batch, n_tokens, n_heads, head_dim). None where padding is behind a text or
        in it. scaling: factor of the scores; None: 1/sqrt(head_dim)."""
        starts, window = self._columns.starts(), self.window or 0
        blocks = self.blocks_of(window)
        if starts is None:
            return None
        if self.cache.device != "cpu":
            keys, values = (x.to(query.dtype) for x in self._by_column())
            attended = prompt.prompt_attention(query, keys, values, scaling, window, starts, *blocks)
        else:
            n = query.shape[2]
            counts = [min(n, self._columns.n_columns - start) for start in starts]
            tokens = [((row + 1) * n - count, count) for row, count in enumerate(counts)]
            attended = prompt.attend_cache(query, self.cache, tokens, scaling, window, *blocks)
        self._storage.settle()
        return attended

    @outside_graphs
    def by_column(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all columns, for the model's own attention. key, value: as `update` returned."""
        columns = zip(self._by_column(), (key, value))
        keys, values = (without_backward(x.to(new.dtype), new) for x, new in columns)
        self._storage.settle()
        return keys, values

    @outside_graphs
    def check_mask(self, mask: torch.Tensor | None, n_tokens: int) -> None:
        """As `RealColumns.check_mask`."""
        self._columns.check_mask(mask, n_tokens, self.window)

    @outside_graphs
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, factor: float = 1.0
    ) -> torch.Tensor:
        """Decode steps: query (batch, n_heads, n_tokens, head_dim) -> (batch, n_tokens, n_heads, head_dim),
        in the dtype of the query. key, value: what `update` returned. factor: of the scores, beside
        1/sqrt(head_dim).

        Raises:
            ValueError: key and value are not that, or came before; a row without any real token, NaN or
                infinity in the query.
        """
        waiting = self._handover.waiting
        settings = self._handover.take(key, value)
        half = half_of(query, factor)
        if waiting is None:
            output = attend(half[:, :, 0], self.cache, settings, self.window)[:, None]
        else:
            try:
                output = attend_tokens(half, *waiting, self.cache, settings, self.window)
            except ValueError:
                self._columns.n_columns -= half.shape[2]  # none has come
                raise
        return without_backward(torch.from_numpy(output).to(query.dtype), query, key, value)

    def takes_step(self, n_tokens: int, position_ids: Any, attention_mask: Any) -> bool:
        announced = self._handover.announced
        return n_tokens == 1 or (announced is not None and announced.is_step)

    def takes_prompt(self, position_ids: Any, attention_mask: Any) -> bool:
        is_all_real = self._handover.expected().real is None and (not self.is_initialized or self.is_all_real)
        return is_all_real and (attention_mask is None or attention_mask.ndim == 2)

    def step(self, products: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        done = rotary.attend(products, self.waves(len(products)))
        if done is not None:
            output, lengths = done
            self.has_attended(lengths)
            return output
        announced = self._handover.expected()
        query, key, value = rotary.turned(products)
        how = announced.settings, self.window
        if announced.is_step:  # rows are tokens of one text
            q, k, v = (x.transpose(0, 2).contiguous().numpy() for x in (query, key, value))
            self._storage.reserve(self._columns.n_columns, len(products))
            half = attend_tokens(q, k, v, self.cache, *how)[0]
            self._columns.append(None, len(products))
        else:
            self._store(key, value, announced.real)
            half = attend(query.numpy()[:, :, 0], self.cache, *how)
        self._handover.announce(None)
        return torch.from_numpy(half).view(len(products), -1).to(products.dtype)

    def waves(self, n_rows: int) -> list[Wave] | None:
        announced = self._handover.expected()
        if announced.real is not None or not self.is_initialized:
            return None
        n_tokens = n_rows // self.batch_size
        self._storage.reserve(self._columns.n_columns, n_tokens)
        return waves_of(self.cache, announced.settings, self.window, n_tokens)

    def has_attended(self, lengths: Sequence[int]) -> None:
        self._columns.append(None, len(lengths) // self.batch_size)
        self._handover.announce(None)

    @property
    def waits(self) -> bool:
        """Several tokens of one step are on their way to `attend`."""
        return self._handover.waiting is not None
