# SPDX-License-Identifier: Apache-2.0
"""What `plan_model` is asked for, and the plan that it returns: records, their rows and text."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparq_ipu.kernels import BASELINE, DEFAULT, DENSE_SRAM, KERNELS, TIERED
from sparq_ipu.planning import planner, pod
from sparq_ipu.planning.device_model import DeviceModel
from sparq_ipu.planning.model_shape import NO_WEIGHTS, ModelShape
from sparq_ipu.planning.record import Plan
from sparq_ipu.planning.request import check_request
from sparq_reference import CacheSpec, SparqSettings

#: how attention is done: what `kernels` an IPU may have
ATTENTION = {
    "dense": (DENSE_SRAM.name, BASELINE.name),
    "dense-streaming": (BASELINE.name,),
    "published": (DEFAULT.name,),
    "best": (TIERED.name, DEFAULT.name),
}
#: "auto": the faster of both, among those that fit
SPLITS = ("auto", "layers", "heads")
_ON_CHIP = ("in SRAM", "in three tiers")
_TIMES = ("seconds_per_step", "seconds_low", "seconds_high")


@dataclasses.dataclass(frozen=True)
class IpuPlan:
    """One IPU's part of a model; `on_chip` and `others` are of one layer's call. Bytes are held all at once.

    Attributes:
        attention_tile: of the fullest tile: programs of attention, with what SRAM keeps of all caches.
        weights_tile: of every tile: its share of the weights in SRAM.
        products_tile: of every tile, reserved for products with weights.
        cache_streaming, weights_streaming: in streaming memory.
        weights_read: of streaming memory, in a step.
        missing: what does not fit, in words.
    """

    n_layers: int
    n_on_chip: int
    on_chip: Plan | None
    others: Plan | None
    attention_tile: int
    weights_tile: int
    products_tile: int
    cache_streaming: int
    weights_streaming: int
    weights_read: int
    seconds_weights: float
    missing: tuple[str, ...] = ()

    @property
    def tile(self) -> int:
        return self.attention_tile + self.weights_tile + self.products_tile

    @property
    def streaming(self) -> int:
        return self.cache_streaming + self.weights_streaming

    @property
    def seconds_attention(self) -> float:
        of_chip = self.n_on_chip * self.on_chip.seconds_per_query if self.on_chip else 0.0
        rest = self.n_layers - self.n_on_chip
        return of_chip + (rest * self.others.seconds_per_query if self.others else 0.0)

    @property
    def seconds_off(self) -> tuple[float, float]:
        """By how much attention is faster at the low end of its range, and slower at the high one."""
        faster = slower = 0.0
        for n, of in ((self.n_on_chip, self.on_chip), (self.n_layers - self.n_on_chip, self.others)):
            if of:
                faster += n * (of.seconds_per_query - of.seconds_low)
                slower += n * (of.seconds_high - of.seconds_per_query)
        return faster, slower

    @property
    def seconds(self) -> float:
        return self.seconds_attention + self.seconds_weights


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """What is to be planned, checked."""

    shape: ModelShape
    model: DeviceModel
    #: of one layer, before it is split over IPUs; full
    cache: CacheSpec
    settings: SparqSettings
    in_flight: int
    n_ipus: int
    split: str
    attention: str
    weights: str
    weights_in: str
    #: of layers in three tiers
    hot_rows: int
    hit_rate: float

    @property
    def dense_half(self) -> bool:
        """Dense attention with rows of 8 bits. No program computes it, so it is planned as a bound: rows of
        16 bits that take half of the memory and half of the time to stream, and no time to be widened."""
        return self.attention == "dense" and self.cache.row_bits == 8

    def layer(self, kernel: str, n_layers: int, may_widen: bool = False) -> Plan:
        """Attention over the caches of one layer, `n_layers` of them, on one IPU, or DoesNotFit."""
        cache, n_parts = self.cache, self.n_ipus if self.split == "heads" else 1
        sizes = dict(
            batch=cache.batch,
            n_heads=self.shape.n_heads,
            n_kv_heads=cache.n_kv_heads,
            head_dim=cache.head_dim,
            seq_len=cache.capacity,
        )
        options: dict[str, Any] = {}
        if not KERNELS[kernel].is_dense:
            options.update(index_bits=cache.index_bits, **self.settings.arguments())
        if kernel == TIERED.name:
            options.update(row_bits=cache.row_bits, index_components=cache.index_components)
            options.update(hot_rows=self.hot_rows)
        request = check_request(
            planner.plan,
            sizes,
            kernel,
            options,
            append=True,
            device=self.model,
            n_layers=-(-n_layers // 2) if self.dense_half else n_layers,
            n_ipus=n_parts,
            split="layers" if n_parts == 1 else "heads",
            hit_rate=self.hit_rate if kernel == TIERED.name else 0.0,
        )
        request = dataclasses.replace(request, may_widen=may_widen)
        if n_parts == 1:
            result = planner.planned(request)
        else:  # the steps of all IPUs together, with what passes between them
            together = pod.planned(request)
            categories = {name: t / request.n_layers for name, t in together.seconds_by_category.items()}
            result = planner.of_counts(request, together.counts, request.n_layers)
            result = _with_times(result, categories)
        if self.dense_half:
            seconds = result.seconds_by_category
            result = _with_times(result, {**seconds, "streaming": seconds["streaming"] / 2})
        return result

    def columns(self) -> dict[str, Any]:
        """For a row of results."""
        names = ("in_flight", "n_ipus", "split", "attention", "weights", "hot_rows", "hit_rate")
        settings = self.settings.arguments()
        del settings["mean_value"]
        return {
            "model": self.shape.name,
            "parameters": self.shape.parameters,
            "device": self.model.name,
            "batch": self.cache.batch,
            "seq_len": self.cache.capacity,
            **{name: getattr(self, name) for name in names},
            **settings,
            "index_bits": self.cache.index_bits,
            "row_bits": self.cache.row_bits,
            "index_components": self.cache.index_components,
        }


def _with_times(plan: Plan, categories: dict[str, float]) -> Plan:
    """The plan with these seconds by category."""
    total = sum(seconds for name, seconds in categories.items() if name != "total")
    return dataclasses.replace(
        plan, seconds_by_category={**categories, "total": total}, seconds_per_query=total
    )


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """A model on IPUs; times in modelled seconds.

    Attributes:
        request: what was to be planned. Of the batches in flight, with split "layers" one follows another
            through the IPUs, each with caches of its own.
        weights_in: where they lie, "sram" or "streaming".
        ipus: a plan for each IPU.
        seconds_links: of a step: what passes from IPU to IPU.
        missing: what does not fit, in words; empty where all does.
    """

    request: ModelRequest
    weights_in: str
    ipus: tuple[IpuPlan, ...]
    seconds_links: float
    missing: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.missing

    @property
    def in_turn(self) -> bool:
        """IPUs work one after the other on a step."""
        return self.request.split == "layers"

    @property
    def layers_on_chip(self) -> tuple[int, int]:
        """Layers of the model on chip, and all. Split by heads, every IPU has its part of each layer."""
        parts = self.ipus if self.in_turn else self.ipus[:1]
        return sum(ipu.n_on_chip for ipu in parts), sum(ipu.n_layers for ipu in parts)

    @property
    def wide_rows(self) -> bool:
        """Whether layers in SRAM have keys and values in fp32."""
        return any(ipu.on_chip is not None and ipu.on_chip.wide_rows for ipu in self.ipus)

    @property
    def seconds_per_step(self) -> float:
        """From a token of every element of one batch to the next."""
        seconds = [ipu.seconds for ipu in self.ipus]
        return (sum(seconds) if self.in_turn else max(seconds)) + self.seconds_links

    @property
    def seconds_low(self) -> float:
        faster = [ipu.seconds_off[0] for ipu in self.ipus]
        return self.seconds_per_step - (sum(faster) if self.in_turn else min(faster))

    @property
    def seconds_high(self) -> float:
        slower = [ipu.seconds_off[1] for ipu in self.ipus]
        return self.seconds_per_step + (sum(slower) if self.in_turn else max(slower))

    @property
    def milliseconds(self) -> dict[str, float]:
        """Of a step, by what takes them."""
        share = 1 if self.in_turn else self.request.n_ipus  # IPUs that work at once, all alike
        return {
            "attention": sum(ipu.seconds_attention for ipu in self.ipus) / share * 1e3,
            "weights from streaming memory": sum(ipu.seconds_weights for ipu in self.ipus) / share * 1e3,
            "links": self.seconds_links * 1e3,
        }

    @property
    def tokens_per_second(self) -> float:
        """Of all batches in flight: bound by a step's length, and by the IPU that works longest."""
        busiest = max(ipu.seconds for ipu in self.ipus)
        return self.request.cache.batch / max(self.seconds_per_step / self.request.in_flight, busiest)

    def row(self) -> dict[str, Any]:
        """One flat record, for JSON lines; bytes are of the IPU that has most."""
        return {
            **self.request.columns(),
            **{name: getattr(self, name) for name in ("weights_in", *_TIMES, "tokens_per_second", "fits")},
            "n_layers_per_ipu": [ipu.n_layers for ipu in self.ipus],
            "n_on_chip_per_ipu": [ipu.n_on_chip for ipu in self.ipus],
            **{f"seconds_{name.split()[0]}": ms / 1e3 for name, ms in self.milliseconds.items()},
            "tile_bytes": max(ipu.tile for ipu in self.ipus),
            "tile_bytes_limit": self.request.model.tile_bytes,
            "streaming_bytes": max(ipu.streaming for ipu in self.ipus),
            "streaming_bytes_limit": self.request.model.streaming_memory_bytes,
            "missing": list(self.missing),
            "time_source": "modelled",
        }

    def __str__(self) -> str:
        r = self.request
        need = max(self.ipus, key=lambda ipu: ipu.tile)
        most, kib = max(self.ipus, key=lambda ipu: ipu.streaming), 1024
        n_on_chip, n_layers = self.layers_on_chip
        ipus = f"{r.n_ipus} IPU{'s' if r.n_ipus > 1 else ''} ({r.model.name})"
        each = max(i.n_layers for i in self.ipus)
        tiers = f", {n_on_chip} of {n_layers} layers {_ON_CHIP[r.attention == 'best']}" if n_on_chip else ""
        tiers += ", keys and values in fp32" if self.wide_rows else ""
        result = (
            f"{self.seconds_per_step * 1e3:.3f} ms a token (modelled; work on chip low "
            f"{self.seconds_low * 1e3:.3f}, high {self.seconds_high * 1e3:.3f}), "
            f"{self.tokens_per_second:.1f} tokens/s of all batches in flight"
        )
        weights = f"{r.shape.parameters / 1e9:.2f} billion weights ({r.weights})"
        if r.weights == NO_WEIGHTS:
            weights = "attention alone, without weights"
        lines = [
            f"{r.shape.name} on {ipus}: {'does not fit' if self.missing else result}",
            f"  model: {weights}, "
            f"{r.cache.capacity} positions, batch {r.cache.batch}, {r.in_flight} in flight",
            f"  attention: {r.attention}, split by {r.split}, "
            f"{each} layer{'s' if each > 1 else ''} on an IPU{tiers}",
        ]
        if n_on_chip and r.attention == "best":
            slowest = ", the slowest case" if r.hit_rate == 0 else ""
            lines.append(f"  hit rate: {r.hit_rate:.0%} of the selected rows, assumed{slowest}")
        if r.dense_half:
            lines.append("  rows of 8 bits: a lower bound, for no program computes it")
        lines += [
            f"  weights: in {'SRAM' if self.weights_in == 'sram' else 'streaming memory'}",
            f"  SRAM: {need.tile / kib:.0f} of {r.model.tile_bytes / kib:.0f} KiB on the fullest tile: "
            f"attention and caches {need.attention_tile / kib:.0f}, weights {need.weights_tile / kib:.0f}, "
            f"reserved for products {need.products_tile / kib:.0f}",
            f"  streaming memory: {most.streaming / 1e9:.2f} of "
            f"{r.model.streaming_memory_bytes / 1e9:.0f} GB on the fullest IPU: caches "
            f"{most.cache_streaming / 1e9:.2f}, weights {most.weights_streaming / 1e9:.2f}",
        ]
        if self.missing:
            return "\n".join([*lines, *(f"  does not fit: {what}" for what in self.missing)])
        parts = " + ".join(f"{name} {ms:.3f}" for name, ms in self.milliseconds.items())
        lines.append(f"  time: {parts} ms")
        lines.append("  not included: products with weights in SRAM, norms, sampling, prefill, the host")
        return "\n".join(lines)
