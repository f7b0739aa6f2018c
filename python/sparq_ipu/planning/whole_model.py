# SPDX-License-Identifier: Apache-2.0
"""A whole model on IPUs: its weights, the caches of all batches in flight, what fits, and how long a token
takes.

    print(sparq_ipu.planning.plan_model("Llama-3-8B", seq_len=16384, n_ipus=16))

Everything counts that is stored at once. Planned are attention of all layers (counted in dry runs, as by
`plan`), reading weights from streaming memory, and transfers between IPUs. Not planned, and in no time here,
are products with weights in SRAM, norms, sampling, prefill and the host.
Every time is modelled (docs/ipu_plans.md).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Sequence

from sparq_ipu.kernels import BASELINE, DEFAULT, DENSE_SRAM, KERNELS, TIERED
from sparq_ipu.planning.defaults import INDEX_BITS, with_recommended
from sparq_ipu.planning.device_model import DeviceModel, device_model
from sparq_ipu.planning.links import link_seconds
from sparq_ipu.planning.model_shape import WEIGHT_BITS, ModelShape, shape_of
from sparq_ipu.planning.placement import most_tiered
from sparq_ipu.planning.planner import plan
from sparq_ipu.planning.record import Plan
from sparq_ipu.planning.request import split
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, checks

#: how attention is done: what `kernels` an IPU may have
ATTENTION = {
    "dense": (DENSE_SRAM.name, BASELINE.name),
    "dense-streaming": (BASELINE.name,),
    "published": (DEFAULT.name,),
    "best": (TIERED.name, DEFAULT.name),
}
SPLITS = ("layers", "heads")
#: where weights can lie; "auto": in SRAM if they fit beside the caches' share of it
WEIGHTS_IN = ("auto", "sram", "streaming")
#: of a tile, for code, activations and buffers of the products, which are not planned
PRODUCTS_TILE_BYTES = 96 * 1024

_PACKET, _ON_CHIP = 1024, ("in SRAM", "in three tiers")


@dataclasses.dataclass(frozen=True)
class Need:
    """What one IPU holds, in bytes, all at once.

    Attributes:
        attention_tile: of the fullest tile: programs of attention, with what SRAM keeps of all caches.
        weights_tile: of every tile: its share of the weights in SRAM.
        products_tile: of every tile, see PRODUCTS_TILE_BYTES.
        cache_streaming, weights_streaming: in streaming memory.
    """

    attention_tile: int
    weights_tile: int
    products_tile: int
    cache_streaming: int
    weights_streaming: int

    @property
    def tile(self) -> int:
        return self.attention_tile + self.weights_tile + self.products_tile

    @property
    def streaming(self) -> int:
        return self.cache_streaming + self.weights_streaming


@dataclasses.dataclass(frozen=True)
class IpuPlan:
    """One IPU's part of a model; `on_chip` and `others` are of one layer's call."""

    n_layers: int
    has_head: bool
    n_on_chip: int
    on_chip: Plan | None
    others: Plan | None
    need: Need
    weights_read: int  # bytes of streaming memory that a step reads
    seconds_weights: float

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

    def layer(self, kernel: str, n_layers: int) -> Plan:
        """Attention over the caches of one layer, `n_layers` of them, on one IPU.

        Raises:
            DoesNotFit: it is too large, by itself.
        """
        cache, n_parts = self.cache, self.n_ipus if self.split == "heads" else 1
        batch, n_heads, n_kv_heads = split(cache.batch, self.shape.n_heads, cache.n_kv_heads, n_parts)
        options: dict[str, Any] = {}
        if not KERNELS[kernel].is_dense:
            options.update(index_bits=cache.index_bits, **self.settings.arguments())
        if kernel == TIERED.name:
            options.update(row_bits=cache.row_bits, index_components=cache.index_components)
            options.update(hot_rows=self.hot_rows, hit_rate=self.hit_rate)
        return plan(
            batch,
            n_heads,
            n_kv_heads,
            cache.head_dim,
            cache.capacity,
            kernel=kernel,
            append=True,
            device=self.model,
            n_layers=n_layers,
            baseline=False,
            **options,
        )

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
        would_fit: changes, each alone, with which it would fit.
        weights_would_fit: where weights lie in streaming memory for want of SRAM, changes with which they
            would lie in SRAM.
    """

    request: ModelRequest
    weights_in: str
    ipus: tuple[IpuPlan, ...]
    seconds_links: float
    missing: tuple[str, ...] = ()
    would_fit: tuple[str, ...] = ()
    weights_would_fit: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.missing

    @property
    def in_turn(self) -> bool:
        """IPUs work one after the other on a step."""
        return self.request.split == "layers"

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
        needs = [ipu.need for ipu in self.ipus]
        return {
            **self.request.columns(),
            "weights_in": self.weights_in,
            "n_layers_per_ipu": [ipu.n_layers for ipu in self.ipus],
            "n_on_chip_per_ipu": [ipu.n_on_chip for ipu in self.ipus],
            "seconds_per_step": self.seconds_per_step,
            "seconds_low": self.seconds_low,
            "seconds_high": self.seconds_high,
            **{f"seconds_{name.split()[0]}": ms / 1e3 for name, ms in self.milliseconds.items()},
            "tokens_per_second": self.tokens_per_second,
            "tile_bytes": max(need.tile for need in needs),
            "tile_bytes_limit": self.request.model.tile_bytes,
            "streaming_bytes": max(need.streaming for need in needs),
            "streaming_bytes_limit": self.request.model.streaming_memory_bytes,
            "fits": self.fits,
            "missing": list(self.missing),
            "would_fit": list(self.would_fit),
            "weights_would_fit": list(self.weights_would_fit),
            "time_source": "modelled",
        }

    def __str__(self) -> str:
        r = self.request
        fullest = max(self.ipus, key=lambda ipu: ipu.need.tile)
        most = max(self.ipus, key=lambda ipu: ipu.need.streaming).need
        need, kib = fullest.need, 1024
        n_layers, n_on_chip = (sum(getattr(i, name) for i in self.ipus) for name in ("n_layers", "n_on_chip"))
        ipus = f"{r.n_ipus} IPU{'s' if r.n_ipus > 1 else ''} ({r.model.name})"
        each = max(i.n_layers for i in self.ipus)
        tiers = f", {n_on_chip} of {n_layers} layers {_ON_CHIP[r.attention == 'best']}" if n_on_chip else ""
        result = (
            f"{self.seconds_per_step * 1e3:.3f} ms a token (modelled; work on chip low "
            f"{self.seconds_low * 1e3:.3f}, high {self.seconds_high * 1e3:.3f}), "
            f"{self.tokens_per_second:.1f} tokens/s of all batches in flight"
        )
        lines = [
            f"{r.shape.name} on {ipus}: {'does not fit' if self.missing else result}",
            f"  model: {r.shape.parameters / 1e9:.2f} billion weights ({r.weights}), "
            f"{r.cache.capacity} positions, batch {r.cache.batch}, {r.in_flight} in flight",
            f"  attention: {r.attention}, split by {r.split}, "
            f"{each} layer{'s' if each > 1 else ''} on an IPU{tiers}",
        ]
        if n_on_chip and r.attention == "best":
            slowest = ", the slowest case" if r.hit_rate == 0 else ""
            lines.append(f"  hit rate: {r.hit_rate:.0%} of the selected rows, assumed{slowest}")
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
            lines += [f"  does not fit: {what}" for what in self.missing]
            lines += [f"  would fit: {what}" for what in self.would_fit]
            return "\n".join(lines)
        parts = " + ".join(f"{name} {ms:.3f}" for name, ms in self.milliseconds.items())
        lines.append(f"  time: {parts} ms")
        if self.weights_would_fit:
            lines.append(f"  weights would fit SRAM: {'; or '.join(self.weights_would_fit)}")
        lines.append("  not included: products with weights in SRAM, norms, sampling, prefill, the host")
        return "\n".join(lines)


def plan_model(
    model: str | ModelShape,
    *,
    seq_len: int = 16384,
    batch: int = 1,
    in_flight: int = 1,
    n_ipus: int = 1,
    split: str = "layers",
    attention: str = "best",
    weights: str = "fp16",
    weights_in: str = "auto",
    device: str | DeviceModel = "bow",
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> ModelPlan:
    """Plan a whole model: everything that is in memory at once, and the time of a token.

    Args:
        model: a name of `model_shape.MODELS`, the path of a config.json, or a shape.
        seq_len: positions of every cache, all held.
        batch: elements of one batch; they share the reading of weights.
        in_flight: batches at once; with split "layers" up to n_ipus of them work at the same time.
        n_ipus: with split "layers" in [1, n_layers]; with "heads" KV heads, then the batch, split evenly.
        split: "layers" or "heads", as `sparq_ipu.KVCache`.
        attention: "dense" (as many layers in SRAM as fit, the others in streaming memory), "dense-streaming",
            "published" (SparQ as published: fp16 index, streaming memory), or "best": SparQ, with as many
            layers in three tiers as fit and are worth it; the others stream their key index.
        weights: "fp16", "int8" or "int4".
        weights_in: "sram", "streaming", or "auto": the faster of those that fit.
        device: name of a device model, or a model.
        progress: called with a line about what is being planned.
        options: rank, top_k, n_local and mean_value of SparQ attention; index_bits (8, 4 or 2) where
            attention is "best"; row_bits, index_components, hot_rows and hit_rate of layers in three tiers.
            All as in `sparq_ipu.plan`, with the same defaults.

    Returns:
        A plan; where something does not fit, one that says what, and which single changes would do.

    Raises:
        ValueError: an argument out of range.
        RuntimeError: as `sparq_ipu.plan`.
    """
    op = "plan_model"
    shape = model if isinstance(model, ModelShape) else shape_of(op, model)
    for name, value, among in (
        ("split", split, SPLITS),
        ("attention", attention, tuple(ATTENTION)),
        ("weights", weights, tuple(WEIGHT_BITS)),
        ("weights_in", weights_in, WEIGHTS_IN),
    ):
        if value not in among:
            checks.fail(op, name, f"be one of {', '.join(among)}", repr(value))
    most = shape.n_layers if split == "layers" else 64
    given = dict(options)
    of_cache = {"index_bits": INDEX_BITS, **CacheSpec.take(given)}
    checks.check_index_bits(op, of_cache["index_bits"], shape.head_dim)
    if attention != "best":
        of_cache["index_bits"] = checks.INDEX_BITS[0]
    settings = with_recommended(SparqSettings.take(given), shape.head_dim)
    hot_rows, hit_rate = given.pop("hot_rows", 0), given.pop("hit_rate", 0.0)
    for name in given:
        checks.fail(op, "options", "be those of sparq_ipu.plan", repr(name))
    seq_len = checks.check_integer(op, "seq_len", seq_len, 1, checks.MAX_CAPACITY)
    request = ModelRequest(
        shape=shape,
        model=device if isinstance(device, DeviceModel) else device_model(device),
        cache=CacheSpec(batch, shape.n_kv_heads, shape.head_dim, seq_len, op=op, **of_cache),
        settings=SparqSettings(**settings, op=op, head_dim=shape.head_dim),
        in_flight=checks.check_integer(op, "in_flight", in_flight, 1, checks.MAX_LAYERS),
        n_ipus=checks.check_integer(op, "n_ipus", n_ipus, 1, most),
        split=split,
        attention=attention,
        weights=weights,
        weights_in=weights_in,
        hot_rows=hot_rows,
        hit_rate=hit_rate,
    )
    say = progress or (lambda line: None)
    result = _planned(request, say)
    if not result.fits:
        return dataclasses.replace(result, would_fit=tuple(_changes(request, say)))
    if result.weights_in == "streaming" and weights_in == "auto":
        inside = dataclasses.replace(request, weights_in="sram")
        return dataclasses.replace(result, weights_would_fit=tuple(_changes(inside, say, _SMALLER)))
    return result


def _planned(request: ModelRequest, say: Callable[[str], None]) -> ModelPlan:
    """The faster of both places for weights, among those that fit; else the one that misses least."""
    places = ("sram", "streaming") if request.weights_in == "auto" else (request.weights_in,)
    layers = _Layers(request, say)
    plans = [_with_weights(request, place, layers) for place in places]
    fitting = [p for p in plans if p.fits]
    if fitting:
        return min(fitting, key=lambda p: p.seconds_per_step)
    return plans[-1]


class _Layers:
    """Attention plans of one IPU by kernel and number of caches: each is counted once."""

    def __init__(self, request: ModelRequest, say: Callable[[str], None]):
        self._request = request
        self._say = say
        self._plans: dict[tuple[str, int], Plan | DoesNotFit] = {}

    def plan(self, kernel: str, n_caches: int) -> Plan | DoesNotFit:
        """So many caches; what is too little, where they do not fit by themselves."""
        key = kernel, n_caches
        if key not in self._plans:
            self._say(f"{kernel}: {n_caches} caches of a layer on an IPU")
            if n_caches > checks.MAX_LAYERS:
                rule = f"caches of a layer on an IPU must be at most {checks.MAX_LAYERS}, got {n_caches}"
                return DoesNotFit(f"plan: {rule}", "caches", n_caches, checks.MAX_LAYERS)
            try:
                self._plans[key] = self._request.layer(kernel, n_caches)
            except DoesNotFit as error:
                self._plans[key] = error
        return self._plans[key]


def _weight_bytes(request: ModelRequest, n_layers: int, has_head: bool) -> int:
    """What a step reads of an IPU's weights: its share of the layers and of the output's embedding."""
    shape, bits = request.shape, WEIGHT_BITS[request.weights]
    numbers = n_layers * shape.layer_weights + (shape.embedding_weights if has_head else 0)
    share = request.n_ipus if request.split == "heads" else 1
    return math.ceil(numbers * bits / 8 / share)


def _input_bytes(request: ModelRequest, is_first: bool, in_sram: bool) -> int:
    """The input's embedding lies in streaming memory: a token reads one row. Where it is the output's too,
    and that lies there on the same IPU, it is there already."""
    shape = request.shape
    shares_output = shape.tied and not in_sram and (request.split == "heads" or request.n_ipus == 1)
    if not is_first or shares_output:
        return 0
    share = request.n_ipus if request.split == "heads" else 1
    return math.ceil(shape.embedding_weights * WEIGHT_BITS[request.weights] / 8 / share)


def _parts(request: ModelRequest) -> list[tuple[int, bool, bool]]:
    """Of each IPU: its layers, whether it has the input's embedding, whether it has the output's."""
    n, layers = request.n_ipus, request.shape.n_layers
    if request.split == "heads":
        return [(layers, True, True)] * n
    owner = [layer * n // layers for layer in range(layers)]
    return [(owner.count(ipu), ipu == 0, ipu == n - 1) for ipu in range(n)]


def _with_weights(request: ModelRequest, place: str, layers: _Layers) -> ModelPlan:
    parts = _parts(request)
    by_part: dict[tuple[int, bool, bool], tuple[IpuPlan, list[str]]] = {}
    for part in parts:
        if part not in by_part:
            by_part[part] = _ipu(request, place, layers, *part)
    missing: list[str] = []
    for part, (_, problems) in by_part.items():
        which = [ipu for ipu, other in enumerate(parts) if other == part]
        name = f"IPU {which[0]}" if len(which) == 1 else f"IPUs {which[0]} to {which[-1]}"
        missing += [f"{name}: {what}" for what in problems]
    return ModelPlan(
        request,
        place,
        tuple(by_part[part][0] for part in parts),
        _link_seconds(request),
        tuple(missing),
    )


def _link_seconds(request: ModelRequest) -> float:
    """What passes between IPUs in a step: hidden states in fp16, from part to part; with heads split every
    layer adds up the parts' contributions twice, on IPU 0, and hands the sums out again."""
    n, n_bytes = request.n_ipus, 2 * request.cache.batch * request.shape.hidden_size
    if n == 1:
        return 0.0
    if request.split == "layers":
        return sum(link_seconds(request.model, {(i, i + 1): n_bytes}, n) for i in range(n - 1))
    there = link_seconds(request.model, {(i, 0): n_bytes for i in range(1, n)}, n)
    back = link_seconds(request.model, {(0, i): n_bytes for i in range(1, n)}, n)
    return 2 * request.shape.n_layers * (there + back)


def _ipu(
    request: ModelRequest, place: str, layers: _Layers, n_layers: int, is_first: bool, has_head: bool
) -> tuple[IpuPlan, list[str]]:
    """One IPU, and what does not fit on it."""
    model = request.model
    read = _weight_bytes(request, n_layers, has_head)
    in_sram = place == "sram"
    weights_tile = math.ceil(read / model.tiles) if in_sram else 0
    streamed_weights = (0 if in_sram else read) + _input_bytes(request, is_first, in_sram)
    packets = math.ceil(read / _PACKET)
    seconds = 0.0 if in_sram else model.streaming_seconds(read, packets, packets)
    if not in_sram:  # one copy for each layer's matrices
        seconds += (n_layers - 1) * model.remote_copy_seconds
    room = model.tile_bytes - PRODUCTS_TILE_BYTES - weights_tile
    n_on_chip, on_chip, others, problem = _choose(request, layers, n_layers, room)
    plans = [p for p in (on_chip, others) if p is not None]
    attention = {
        "tile memory": 0,
        "streaming memory": 0,
        **({problem.resource: problem.need} if problem else {}),
    }
    need = Need(
        attention["tile memory"] + sum(p.max_tile_bytes for p in plans),
        weights_tile,
        PRODUCTS_TILE_BYTES,
        attention["streaming memory"] + sum(p.streaming_memory_bytes for p in plans),
        streamed_weights,
    )
    missing = []
    if problem is not None:
        missing.append(
            f"{problem.resource} ({problem.need} of {problem.room} for attention and caches alone)"
        )
    elif need.tile > model.tile_bytes:
        missing.append(f"tile memory ({need.tile} of {model.tile_bytes} bytes of the fullest tile)")
    if need.streaming > model.streaming_memory_bytes and problem is None:
        missing.append(f"streaming memory ({need.streaming} of {model.streaming_memory_bytes} bytes)")
    return IpuPlan(n_layers, has_head, n_on_chip, on_chip, others, need, read, seconds), missing


def _choose(
    request: ModelRequest, layers: _Layers, n_layers: int, room: int
) -> tuple[int, Plan | None, Plan | None, DoesNotFit | None]:
    """How many layers are in three tiers, or in SRAM: as many as fit a tile beside the others, if that pays.

    Returns:
        Their number, the plan of their caches, that of the others' caches, or what there is too little of.
    """
    kernels, flight = ATTENTION[request.attention], request.in_flight
    plain = layers.plan(kernels[-1], n_layers * flight)
    without = (0, None, plain, None) if isinstance(plain, Plan) else (0, None, None, plain)
    if len(kernels) == 1:
        return without

    def planned(kernel: str, n: int) -> Plan | None:
        found = layers.plan(kernel, n * flight)
        return found if isinstance(found, Plan) else None

    n_on_chip, on_chip, rest = most_tiered(
        n_layers, lambda n: planned(kernels[0], n), lambda n: planned(kernels[-1], n), room
    )
    if on_chip is None:
        return without
    if isinstance(plain, Plan) and on_chip.seconds_per_query >= plain.seconds_per_query:
        return without  # of short contexts there is little to stream
    return n_on_chip, on_chip, rest, None


#: changes that let weights fit SRAM; of the others nobody would make one for that
_SMALLER = ("n_ipus", "weights")


def _changes(
    request: ModelRequest, say: Callable[[str], None], names: Sequence[str] | None = None
) -> Sequence[str]:
    """Single changes, of these names or any, with which it would fit: the smallest of each kind."""
    found = []

    def first(
        name: str,
        values: Sequence[Any],
        words: Callable[[Any], str],
        of_cache: str | None = None,
    ) -> None:
        for value in values if names is None or name in names else ():
            say(f"would it fit with {words(value)}?")
            change = {name: value}
            if of_cache:
                change = {"cache": dataclasses.replace(request.cache, **{of_cache: value})}
            try:
                changed = _planned(dataclasses.replace(request, **change), lambda line: None)
            except ValueError:
                continue
            if changed.fits:
                found.append(words(value))
                return

    def halves(value: int, most: int, least: int = 1) -> list[int]:
        return [value >> i for i in range(1, most) if value >> i >= least]

    more = [2**i for i in range(7) if 2**i > request.n_ipus]
    if request.split == "layers":
        more = [n for n in more if n <= request.shape.n_layers]
    first("n_ipus", more, lambda n: f"{n} IPUs")
    bits = [w for w in WEIGHT_BITS if WEIGHT_BITS[w] < WEIGHT_BITS[request.weights]]
    first("weights", bits, lambda w: f"weights in {w}")
    if request.weights_in == "sram":
        first("weights_in", ["streaming"], lambda w: "weights in streaming memory")
    first("in_flight", halves(request.in_flight, 10), lambda n: f"{n} in flight")
    cache = request.cache
    first("batch", halves(cache.batch, 10), lambda n: f"batch {n}", "batch")
    first("seq_len", halves(cache.capacity, 6, 1024), lambda n: f"{n} positions", "capacity")
    return found
