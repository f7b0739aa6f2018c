# SPDX-License-Identifier: Apache-2.0
"""Where the keys and values of one layer are: a `sparq_ipu.KVCache`, and a larger one when it is full."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.backends import History
from sparq_ipu.device_options import MAX_IPUS
from sparq_ipu.devices import backend_module, check_option_names, resolve_device
from sparq_ipu.kernels import Settings
from sparq_ipu.transformers.cache.columns import to_positions
from sparq_ipu.transformers.settings.layers import AnyLayerSettings
from sparq_reference import CacheSpec, checks

#: positions that a growing cache has room for beyond its first tokens
FIRST_ROOM = 256
#: positions that move at once from one KVCache to another
_MOVED = 4096


def host_device(op: str, device: str) -> str:
    """The device of a model's caches: "auto" is the CPU kernels where they are built, else the reference.

    An IPU or its emulator must be asked for by name: every layer of a model would need a program there.

    Raises: as `sparq_ipu.KVCache` for a device that is unknown, or not available here.
    """
    if device != "auto":
        return resolve_device(op, device)
    try:
        return resolve_device(op, "cpu")
    except RuntimeError:
        return resolve_device(op, "reference")


def check_names(op: str, device: str, options: dict[str, Any], settings: Sequence[str]) -> None:
    """Whether a model's caches have options of these names; `settings`: what else the caller takes by name.

    Raises:
        ValueError: one has not.
    """
    if options.get("index_components"):
        rule = "be left out: layers of a model do not order the components of a head"
        checks.fail(op, "index_components", rule, options["index_components"])
    of_spec = [name for name in CacheSpec.options() if name != "index_components"]
    rest = {name: value for name, value in options.items() if name not in CacheSpec.options()}
    check_option_names(op, device, rest, [*settings, *of_spec, "device", "capacity", "check_finite"])


def check_options(
    op: str,
    device: str,
    capacity: int | None,
    check_finite: bool,
    options: dict[str, Any],
    settings: Sequence[str] = (),
    layers: Sequence[AnyLayerSettings | None] = (),
) -> dict[str, Any]:
    """Options of a model's caches, by name, with the device resolved. Checked before there is a prompt.

    Args:
        options: others of `sparq_ipu.KVCache`.
        settings: what else the caller takes by name, for messages.
        layers: what the caches will be attended to with; None is dense attention.

    Raises:
        ValueError: an option that is unknown or out of range.
        RuntimeError: the device is not available.
    """
    device = host_device(op, device)
    if capacity is not None:
        checks.check_integer(op, "capacity", capacity, 1, checks.MAX_CAPACITY)
    check_names(op, device, options, settings)
    options = dict(options, device=device, check_finite=check_finite)
    _check_layers(op, options, layers)
    return dict(options, capacity=capacity)


def _check_layers(op: str, options: dict[str, Any], layers: Sequence[AnyLayerSettings | None]) -> None:
    """Whether layers that are attended to with these can have caches with these options; none: any."""
    # As many layers and rows as there can be IPUs split evenly over any number of them.
    n = MAX_IPUS if is_stacked(options) else 1
    checks.check_bool("KVCache", "check_finite", options["check_finite"])
    any_settings = next((of_layer for of_layer in layers if of_layer is not None), None)
    for index, of_layer in enumerate(layers or [None]):
        if of_layer in layers[:index]:
            continue
        like = any_settings if of_layer is None else of_layer
        given = {**({} if like is None else like.of_cache), **options}
        device, _ = given.pop("device"), given.pop("check_finite")
        # The model's head_dim is not known here: the largest has every option that a smaller one may have.
        spec = CacheSpec(n, 1, checks.MAX_INDEX_HEAD_DIM, 1, op="KVCache", **CacheSpec.take(given))
        of_device = backend_module(device).Options(**given, op="KVCache")
        of_device.check("KVCache", spec, n)
        attention: list[Settings] = [] if of_layer is None else [of_layer.attention]
        if layers and (of_layer is None or of_layer.min_seq_len):  # some steps are dense
            attention.append(None)
        of_device.check(op, spec, n, attention)


def is_stacked(options: dict[str, Any]) -> bool:
    """Whether layers with these options of `sparq_ipu.KVCache` share one: where a program is compiled for
    them, and takes a device."""
    return options["device"] in ("ipu", "emulator")


class Storage:
    """Keys and values of the real tokens of one layer.

    Args:
        cache: where they are, until a larger one takes its place.
        grows: whether one may, by doubling.
        options: of `sparq_ipu.KVCache`, for that one.
    """

    def __init__(self, cache: KVCache, grows: bool, options: dict[str, Any]):
        self._cache = cache
        self._grows = grows
        self._options = options

    @property
    def cache(self) -> KVCache:
        """The KVCache that attention reads."""
        return self._cache

    @classmethod
    def for_tokens(cls, key: torch.Tensor, capacity: int | None, options: dict[str, Any]) -> Storage:
        """An empty one, for tokens of that shape: key (batch, n_kv_heads, n_tokens, head_dim).

        Args:
            capacity: most positions of a row; None: no limit.
            options: of `sparq_ipu.KVCache`.
        """
        batch, n_kv_heads, n_tokens, head_dim = key.shape
        room = min(n_tokens + FIRST_ROOM, checks.MAX_CAPACITY) if capacity is None else capacity
        return cls(KVCache(batch, n_kv_heads, head_dim, room, **options), capacity is None, options)

    def reserve(self, n_positions: int) -> None:
        """Make room for `n_positions`, unless the capacity is fixed."""
        if self._grows and n_positions > self.cache.capacity:
            capacity = max(n_positions, 2 * self.cache.capacity)
            self._cache = self._moved(np.arange(self.cache.batch), min(capacity, checks.MAX_CAPACITY))

    def append(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor | None) -> None:
        """Append the real ones among tokens.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
            real: (batch, n_tokens) bool; None: all.

        Raises:
            ValueError: as `KVCache.append`; nothing has changed then.
        """
        append_real(self.cache, key, value, real)

    def replace(self, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor) -> None:
        """Hold these tokens, as `append` takes them, and no others. A history of window attention is
        forgotten: its positions are others now."""
        cache = self._empty(self.cache.batch, self.cache.capacity)
        append_real(cache, key, value, real)
        self._cache = cache

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values by position, (batch, n_kv_heads, longest length, head_dim) float16."""
        key, value = self.cache.read()
        return torch.from_numpy(key), torch.from_numpy(value)

    def select(self, index: torch.Tensor) -> Storage:
        """A copy of the rows `index`, in that order."""
        return Storage(self._moved(index.numpy(), self.cache.capacity), self._grows, self._options)

    def forget(self) -> None:
        """Nothing reads these tokens any more."""

    def _empty(self, batch: int, capacity: int) -> KVCache:
        return KVCache(batch, self.cache.n_kv_heads, self.cache.head_dim, capacity, **self._options)

    def _moved(self, index: np.ndarray, capacity: int) -> KVCache:
        """A new KVCache with what the rows `index` hold, moved a piece at a time."""
        cache = self._empty(len(index), capacity)
        move(self.cache, cache, index)
        return cache


def move(source: KVCache, target: KVCache, index: np.ndarray) -> None:
    """Append what the rows `index` of one cache hold to another, an empty one, a piece at a time; and what
    window attention remembers of them."""
    lengths = source.lengths
    longest = int(lengths.max())
    for start in range(0, longest, _MOVED):
        stop = min(start + _MOVED, longest)
        key, value = (x[index] for x in source.read(start, stop))
        target.append(key, value, np.clip(lengths[index] - start, 0, stop - start))
    history = source.one_layer("move").history()
    if history is not None:
        steps = [history.steps[row] for row in index]
        target.one_layer("move").set_history(History(history.n_recent, steps))


def append_real(cache: KVCache, key: torch.Tensor, value: torch.Tensor, real: torch.Tensor | None) -> None:
    if real is None or bool(real.all()):
        cache.append(key.numpy(), value.numpy())
    elif bool(real.any()):
        key, value = to_positions(real, key, value)
        cache.append(key.numpy(), value.numpy(), real.sum(dim=1).numpy())
