# SPDX-License-Identifier: Apache-2.0
"""What is to be planned: one object, checked once, of which `plan` and `plan_pod` count. Both take the same
options, by the same names and with the same defaults."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Mapping

import numpy as np

from sparq_ipu.device_options import DeviceOptions, Share
from sparq_ipu.kernels import Kernel, Settings, kernel_named
from sparq_ipu.planning.device_model import DeviceModel, device_model
from sparq_ipu.transformers.settings.layers import RECOMMENDED, recommended
from sparq_reference import CacheSpec, SparqSettings, WindowSettings, checks
from sparq_reference.settings import settings_columns

#: the fields of `DeviceOptions` that a caller gives by name; its memory is the kernel's
OF_DEVICE = ("n_tiles", "hot_rows")
#: options of a plan: settings, of the device, of the cache
OPTIONS = list(
    dict.fromkeys(
        [
            *(field.name for kind in (SparqSettings, WindowSettings) for field in dataclasses.fields(kind)),
            *OF_DEVICE,
            *CacheSpec.options(),
        ]
    )
)


@dataclasses.dataclass(frozen=True)
class Request:
    """Attention of a kernel over the caches of a model."""

    kernel: Kernel
    #: None for dense attention
    settings: Settings
    #: of a layer, before it is split over IPUs; its capacity is the seq_len
    cache: CacheSpec
    n_heads: int
    #: positions held by each batch element
    lengths: tuple[int, ...]
    append: bool
    model: DeviceModel
    #: layers of this shape
    n_layers: int
    device_options: DeviceOptions
    #: share of the selected rows that is taken to be hot; None where none can be
    hit_rate: float | None
    #: of each KV head of each batch element, where they are given; the rate is their mean then
    misses: tuple[int, ...] | None = None
    #: keys and values in SRAM are in fp32 if there is room: less time, for more memory of the tiles
    may_widen: bool = True

    @property
    def n_ipus(self) -> int:
        return self.device_options.n_ipus

    @property
    def options(self) -> dict[str, Any]:
        """Of the cache, by name."""
        return self.cache.option_values

    @property
    def shares(self) -> list[Share]:
        """What each IPU of a program has."""
        return self.device_options.shares("plan", self.cache, self.n_layers)

    def dense(self, kernel: Kernel) -> Request:
        """The same by a kernel that takes no settings and does not append."""
        usual = DeviceOptions(self.device_options.n_tiles, kernel.memory)
        return dataclasses.replace(
            self,
            kernel=kernel,
            settings=None,
            cache=self.cache.plain(),
            append=False,
            device_options=usual,
            hit_rate=None,
            misses=None,
        )

    def columns(self) -> dict[str, Any]:
        """For a row of results; the names are those of bench/ipu_sparq.py."""
        return {
            "kernel": self.kernel.name,
            "device": self.model.name,
            "batch": self.cache.batch,
            "n_heads": self.n_heads,
            "n_kv_heads": self.cache.n_kv_heads,
            "head_dim": self.cache.head_dim,
            "seq_len": self.cache.capacity,
            **self.options,
            **settings_columns(self.settings),
            "n_ipus": self.n_ipus,
            "n_layers": self.n_layers,
            "hit_rate": self.hit_rate,
        }

    def __str__(self) -> str:
        cache, usual = self.cache, self.cache.plain().option_values
        words = [
            f"batch {cache.batch}",
            f"{self.n_heads} heads",
            f"{cache.n_kv_heads} KV heads",
            f"head_dim {cache.head_dim}",
            f"seq_len {cache.capacity}",
            *(f"{name} {value}" for name, value in self.options.items() if value != usual[name]),
        ]
        return ", ".join(words if self.settings is None else [*words, str(self.settings)])


def check_request(
    of: Callable[..., object],
    sizes: Mapping[str, Any],
    kernel: str,
    options: Mapping[str, Any],
    *,
    lengths: object = None,
    append: object,
    device: str | DeviceModel,
    n_layers: object,
    n_ipus: int = 1,
    split: str = "layers",
    hit_rate: float,
    misses: object = None,
) -> Request:
    """Arguments of a plan as a request.

    Args:
        of: the function that plans, whose keyword arguments messages name.
        sizes: batch, n_heads, n_kv_heads (None: as many as heads), head_dim, seq_len.
        options: of OPTIONS, by name.
    """
    op = "plan"
    chosen = kernel_named(op, kernel)
    is_tiered = chosen.memory == "tiered"
    given = dict(options)
    for name in given:
        if name not in OPTIONS:
            own = [p.name for p in inspect.signature(of).parameters.values() if p.kind is p.KEYWORD_ONLY]
            checks.fail(op, "options", f"be among {[*own, *OPTIONS]}", repr(name))
    for name, value in {"hot_rows": given.get("hot_rows", 0), "hit_rate": hit_rate}.items():
        if not is_tiered and value != 0:
            checks.fail(op, name, f"be 0 for kernel {kernel!r}, which has no hot rows", repr(value))
    as_heads = {
        **sizes,
        "n_kv_heads": sizes["n_heads"] if sizes["n_kv_heads"] is None else sizes["n_kv_heads"],
    }
    batch, n_heads, n_kv_heads, head_dim, seq_len = (
        checks.check_integer(op, name, value, 1, checks.MAX_CAPACITY) for name, value in as_heads.items()
    )
    of_cache = CacheSpec.take(given)
    if is_tiered or chosen.takes == "sparq":
        of_cache = {"index_bits": RECOMMENDED["index_bits"], **of_cache}
    cache = CacheSpec(batch, n_kv_heads, head_dim, seq_len, op=op, **of_cache)
    of_device = {name: given.pop(name) for name in OF_DEVICE if name in given}
    model = device if isinstance(device, DeviceModel) else device_model(device)
    if model.tiles != device_model().tiles:  # of a model that a caller made
        of_device.setdefault("n_tiles", model.tiles)
    placed = DeviceOptions(memory=chosen.memory, n_ipus=n_ipus, split=split, op=op, **of_device)
    tiles = checks.check_integer(op, "n_tiles", placed.n_tiles, 0, model.tiles)
    if n_heads % n_kv_heads != 0:
        checks.fail(op, "n_heads", f"be a multiple of n_kv_heads={n_kv_heads}", n_heads)
    held = np.full(batch, seq_len)
    if lengths is not None:
        held = checks.check_integers(op, "lengths", lengths, batch, 1, held, f"[1, seq_len={seq_len}]")
    request = Request(
        kernel=chosen,
        settings=_settings(op, chosen, head_dim, given),
        cache=cache.plain() if chosen.is_dense else cache,
        n_heads=n_heads,
        lengths=tuple(held.tolist()),
        append=checks.check_bool(op, "append", append),
        model=dataclasses.replace(model, tiles=tiles) if tiles else model,
        n_layers=checks.check_integer(op, "n_layers", n_layers, 1, checks.MAX_LAYERS),
        device_options=placed,
        hit_rate=_check_hit_rate(op, hit_rate) if is_tiered else None,
    )
    if misses is not None:
        request = _with_misses(op, request, misses)
    if request.settings is not None:
        request.settings.check_heads(op, n_heads)
    placed.check(op, request.cache, request.n_layers, [request.settings])
    return request


def _settings(op: str, kernel: Kernel, head_dim: int, options: dict[str, Any]) -> Settings:
    """Of these options those that the kernel takes; n_local may be None."""
    if kernel.takes == "window":
        given = {"top_k": RECOMMENDED["top_k"], **WindowSettings.take(options)}
        return WindowSettings(**given, op=op)
    if kernel.is_dense:
        return None
    given = {name: value for name, value in SparqSettings.take(options).items() if value is not None}
    return SparqSettings(**recommended(op, given, head_dim), op=op, head_dim=head_dim)


def _with_misses(op: str, request: Request, misses: object) -> Request:
    """The request with a number of misses for each KV head, in place of a rate."""
    if request.hit_rate is None:
        rule = f"be None for kernel {request.kernel.name!r}, which has no hot rows"
        checks.fail(op, "misses", rule, misses)
    if request.hit_rate != 0:
        checks.fail(op, "misses", "be None where hit_rate is given", misses)
    assert request.settings is not None
    n, top_k = request.cache.batch * request.cache.n_kv_heads, request.settings.top_k
    shape = np.asarray(misses).shape
    if shape != (n,):
        checks.fail(op, "misses", f"have shape (batch * n_kv_heads={n},)", shape)
    given = checks.check_integers(op, "misses", misses, n, 0, np.full(n, top_k), f"[0, top_k={top_k}]")
    rate = 1 - float(given.mean()) / top_k
    return dataclasses.replace(request, misses=tuple(given.tolist()), hit_rate=rate)


def _check_hit_rate(op: str, hit_rate: object) -> float:
    if isinstance(hit_rate, bool) or not isinstance(hit_rate, (int, float)) or not 0 <= hit_rate <= 1:
        checks.fail(op, "hit_rate", "be in [0, 1]", repr(hit_rate))
    return float(hit_rate)
