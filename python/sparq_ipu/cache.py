# SPDX-License-Identifier: Apache-2.0
"""The KV cache: keys and values of every position so far, where attention reads them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sparq_ipu.backends import Backend
from sparq_ipu.devices import backend_module, options_of, resolve_device
from sparq_reference import checks
from sparq_reference.settings import CacheSpec, HasSpec, SparqSettings


class KVCache(HasSpec):
    """A KV cache for one attention layer, on any device.

    On an IPU or the emulator, keys and values live in streaming memory: rows of K and V, and K once more
    by component for the score step (docs/design.md). Elements of the batch have lengths of their own.

    Args:
        batch: batch elements.
        n_kv_heads: KV heads; query heads h belong to KV head h // (n_heads // n_kv_heads).
        head_dim: components of a head, a multiple of 8.
        capacity: most positions of one batch element, at most 2**24.
        device: "auto" (the best one here), "ipu", "cpu", "emulator" or "reference".
        check_finite: refuse NaN and infinity in keys, values and queries. Off is faster; the result is then
            unspecified for such input.
        options: of the cache, as `sparq_reference.CacheSpec`: `index_bits`, 16 (the default), 8 or 4, bits of
            a number of the key index that SparQ scores positions from (docs/exactness.md E9); and of the
            device's backend, e.g. `n_threads` on "cpu", `n_tiles` on "emulator".

    A copy (`copy.copy`, `copy.deepcopy`) and an unpickled cache hold the same positions on the same device,
    and share nothing with this one.

    Raises:
        ValueError: an argument out of range, an option that the device's backend does not have.
        RuntimeError: the device is not available here; the message says why.
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        device: str = "auto",
        check_finite: bool = True,
        **options: Any,
    ):
        of_spec = CacheSpec.take(options)
        self.spec = CacheSpec(batch, n_kv_heads, head_dim, capacity, op="KVCache", **of_spec)
        self.device = resolve_device("KVCache", device)
        self.check_finite = checks.check_bool("KVCache", "check_finite", check_finite)
        self._options = options
        known = options_of(self.device)
        for name in options:
            if name not in known:
                checks.fail("KVCache", "options", f"be among {CacheSpec.options() + known}", repr(name))
        self._backend: Backend = backend_module(self.device).create(self.device, self.spec, **options)

    @property
    def lengths(self) -> np.ndarray:
        """Positions held, (batch,) int64."""
        return np.array(self._backend.lengths, dtype=np.int64)

    def check_settings(self, op: str, settings: SparqSettings | None) -> None:
        """Whether attention over this cache can have these settings; None: dense attention.

        Raises:
            ValueError: `<op>: <argument> must <rule>, got <value>`.
        """
        if settings is not None:
            settings.check(op, self.head_dim)
        self._backend.check_settings(op, settings)

    def append(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray | None = None) -> None:
        """Append tokens: one while decoding, many to fill a prompt. The same tokens in any number of calls
        give the same cache.

        Args:
            key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
            lengths: (batch,) integers, how many of the n_tokens are real in each element (from the first);
                None: all.

        Raises:
            ValueError: wrong shape or dtype, NaN or infinity, or more tokens than the capacity has room for;
                the cache is then unchanged.
        """
        counts = checks.check_append(
            "append",
            key,
            value,
            self.spec,
            self.lengths,
            lengths=lengths,
            check_finite=self.check_finite,
        )
        self._backend.append(key, value, counts)

    def read(self, start: int = 0, stop: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the positions from `start` to before `stop`; None: all that are held.

        Returns:
            key, value: (batch, n_kv_heads, stop - start, head_dim) float16, copies; 0 at positions that an
            element of the batch does not hold.

        Raises:
            ValueError: not 0 <= start <= stop <= the longest length.
        """
        longest = int(self.lengths.max())
        stop = longest if stop is None else checks.check_integer("read", "stop", stop, 0, longest)
        start = checks.check_integer("read", "start", start, 0, stop)
        return self._backend.read(start, stop)

    def reset(self) -> None:
        """Forget every position."""
        self._backend.reset()

    def reorder(self, index: np.ndarray) -> None:
        """Batch element b becomes a copy of what element index[b] was: beam search.

        Args:
            index: (batch,) integers in [0, batch).

        Raises:
            ValueError: wrong shape or an index out of range; the cache is then unchanged.
        """
        self._backend.reorder(checks.check_reorder("reorder", index, self.batch))

    def __getstate__(self) -> dict[str, Any]:
        key, value = self.read()
        arguments = {
            **dataclasses.asdict(self.spec),
            "device": self.device,
            "check_finite": self.check_finite,
        }
        held = {"key": key, "value": value, "lengths": self.lengths}
        return {"arguments": {**arguments, **self._options}, **held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        KVCache.__init__(self, **state["arguments"])
        if state["lengths"].any():  # they were looked at when they came first
            self._backend.append(state["key"], state["value"], state["lengths"])

    def __copy__(self) -> KVCache:
        copied = type(self).__new__(type(self))
        copied.__setstate__(self.__getstate__())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return self.__copy__()

    def __repr__(self) -> str:
        return (
            f"KVCache(batch={self.batch}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}, "
            f"capacity={self.capacity}, index_bits={self.index_bits}, device={self.device!r})"
        )
