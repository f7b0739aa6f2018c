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
import functools
import math
from typing import Any, Callable

from sparq_ipu.kernels import DENSE_SRAM
from sparq_ipu.planning.device_model import DeviceModel, device_model
from sparq_ipu.planning.links import exchange_seconds, link_seconds
from sparq_ipu.planning.model_plan import ATTENTION, SPLITS, IpuPlan, ModelPlan, ModelRequest
from sparq_ipu.planning.model_shape import NO_WEIGHTS, WEIGHT_BITS, ModelShape, shape_of
from sparq_ipu.planning.planner import most_on_chip
from sparq_ipu.planning.record import Plan
from sparq_ipu.transformers.settings.layers import RECOMMENDED, recommended
from sparq_reference import CacheSpec, DoesNotFit, SparqSettings, checks

#: where weights can lie; "auto": in SRAM if they fit beside the caches' share of it
WEIGHTS_IN = ("auto", "sram", "streaming")
#: of a tile, for code, activations and buffers of the products, which are not planned
PRODUCTS_TILE_BYTES = 96 * 1024

#: IPUs that heads split over, and that are tried where fewer do not suffice
MACHINES = tuple(2**i for i in range(7))

_PACKET = 1024


def plan_model(
    model: str | ModelShape,
    *,
    seq_len: int = 16384,
    batch: int = 1,
    in_flight: int = 1,
    n_ipus: int = 1,
    split: str = "auto",
    attention: str = "best",
    weights: str = "fp16",
    weights_in: str = "auto",
    device: str | DeviceModel = "bow",
    **options: Any,
) -> ModelPlan:
    """Plan a whole model: everything that is in memory at once, and the time of a token.

    Args:
        model: a name of `model_shape.MODELS`, the path of a config.json, or a shape.
        seq_len: positions of every cache, all held.
        batch: elements of one batch; they share the reading of weights.
        in_flight: batches at once; with split "layers" up to n_ipus of them work at the same time.
        n_ipus: with split "layers" in [1, n_layers]; with "heads" a power of two up to 64 that splits KV
            heads, then the batch, evenly.
        split: "layers" or "heads", as `sparq_ipu.KVCache`; "auto": the faster of those that fit.
        attention: "dense" (as many layers in SRAM as fit, the others in streaming memory; with row_bits 8 a
            lower bound, for no program computes it), "dense-streaming", "published" (SparQ as published: fp16
            index, streaming memory), or "best": SparQ, with as many layers in three tiers as fit and are
            worth it; the others stream their key index.
        weights: "fp16", "int8", "int4", or "none": attention alone, in the whole memory.
        weights_in: "sram", "streaming", or "auto": the faster of those that fit.
        device: name of a device model, or a model.
        options: settings of SparQ attention; index_bits (8, 4 or 2) where attention is "best"; row_bits,
            index_components, hot_rows and hit_rate of layers in three tiers. All as in `sparq_ipu.plan`.

    Returns:
        A plan; where something does not fit, one that says what.

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
    given = dict(options)
    of_cache = {"index_bits": RECOMMENDED["index_bits"], **CacheSpec.take(given)}
    checks.check_index_bits(op, of_cache["index_bits"], shape.head_dim)
    if attention != "best":
        of_cache["index_bits"] = checks.INDEX_BITS[0]
    settings = recommended(op, SparqSettings.take(given), shape.head_dim)
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
        n_ipus=_check_ipus(op, n_ipus, split, shape, batch),
        split=split,
        attention=attention,
        weights=weights,
        weights_in=weights_in,
        hot_rows=hot_rows,
        hit_rate=hit_rate,
    )
    return _planned(request)


def _splits(n_ipus: int, split: str, shape: ModelShape, batch: int) -> list[str]:
    """The ways to split a model over so many IPUs."""
    ways = [split] if split != "auto" else ["layers"] if n_ipus == 1 else ["layers", "heads"]
    heads = math.gcd(n_ipus, shape.n_kv_heads)
    possible = {
        "layers": n_ipus <= shape.n_layers,
        "heads": n_ipus in MACHINES and batch % (n_ipus // heads) == 0,
    }
    return [way for way in ways if possible[way]]


def _check_ipus(op: str, n_ipus: object, split: str, shape: ModelShape, batch: int) -> int:
    rules = {
        "layers": f"in [1, n_layers={shape.n_layers}] to split layers",
        "heads": f"a power of two up to {MACHINES[-1]} that splits n_kv_heads={shape.n_kv_heads}, then "
        f"batch={batch}, evenly, to split heads",
    }
    checked = checks.check_integer(op, "n_ipus", n_ipus, 1, checks.MAX_LAYERS)
    if not _splits(checked, split, shape, batch):
        rule = ", or ".join(rules.values()) if split == "auto" else rules[split]
        checks.fail(op, "n_ipus", f"be {rule}", n_ipus)
    return checked


#: the plan of so many caches of a layer on one IPU
_Layers = Callable[..., "Plan | DoesNotFit"]


def _planned(request: ModelRequest) -> ModelPlan:
    """The fastest of all splits and places for weights, among those that fit; else one that does not."""
    layers: _Layers = functools.lru_cache(maxsize=None)(_layers)  # each is counted once
    places = ("sram", "streaming") if request.weights_in == "auto" else (request.weights_in,)
    if request.weights == NO_WEIGHTS:
        places = places[:1]
    plans = [
        _with_weights(dataclasses.replace(request, split=way), place, layers)
        for way in _splits(request.n_ipus, request.split, request.shape, request.cache.batch)
        for place in places
    ]
    fitting = [p for p in plans if p.fits]
    if fitting:
        return min(fitting, key=lambda p: p.seconds_per_step)
    return plans[len(places) - 1]


def _layers(request: ModelRequest, kernel: str, n_caches: int, may_widen: bool = False) -> Plan | DoesNotFit:
    """So many caches; what is too little, where they do not fit by themselves."""
    if n_caches > checks.MAX_LAYERS:
        rule = f"caches of a layer on an IPU must be at most {checks.MAX_LAYERS}, got {n_caches}"
        return DoesNotFit(f"plan: {rule}", "caches", n_caches, checks.MAX_LAYERS)
    try:
        return request.layer(kernel, n_caches, may_widen)
    except DoesNotFit as error:
        return error


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
    by_part = {part: _ipu(request, place, layers, *part) for part in dict.fromkeys(parts)}
    missing: list[str] = []
    for part, ipu in by_part.items():
        which = [index for index, other in enumerate(parts) if other == part]
        name = f"IPU {which[0]}" if len(which) == 1 else f"IPUs {which[0]} to {which[-1]}"
        missing += [f"{name}: {what}" for what in ipu.missing]
    ipus = tuple(by_part[part] for part in parts)
    return ModelPlan(request, place, ipus, _link_seconds(request), tuple(missing))


def _link_seconds(request: ModelRequest) -> float:
    """What passes between IPUs in a step: hidden states in fp16, from part to part; with heads split every
    layer adds up the parts' contributions twice, on IPU 0, and hands the sums out again."""
    n, model = request.n_ipus, request.model
    n_bytes = 2 * request.cache.batch * request.shape.hidden_size

    def exchange(*flows: tuple[int, int]) -> float:
        tile_bytes = math.ceil(len(flows) * n_bytes / model.tiles)
        on_chip = sum(exchange_seconds(model, tile_bytes).values())
        return on_chip + link_seconds(model, dict.fromkeys(flows, n_bytes), n)

    if n == 1:
        return 0.0
    if request.split == "layers":
        return sum(exchange((i, i + 1)) for i in range(n - 1))
    there, back = ([way(i) for i in range(1, n)] for way in (lambda i: (i, 0), lambda i: (0, i)))
    return 2 * request.shape.n_layers * (exchange(*there) + exchange(*back))


def _ipu(
    request: ModelRequest, place: str, layers: _Layers, n_layers: int, is_first: bool, has_head: bool
) -> IpuPlan:
    model = request.model
    read = _weight_bytes(request, n_layers, has_head)
    in_sram = place == "sram"
    weights_tile = math.ceil(read / model.tiles) if in_sram else 0
    streamed_weights = (0 if in_sram else read) + _input_bytes(request, is_first, in_sram)
    packets = math.ceil(read / _PACKET)
    seconds = 0.0 if in_sram else model.streaming_seconds(read, packets, packets)
    if not in_sram:  # one copy for each layer's matrices
        seconds += (n_layers - 1) * model.remote_copy_seconds
    products = 0 if request.weights == NO_WEIGHTS else PRODUCTS_TILE_BYTES
    room = model.tile_bytes - products - weights_tile
    n_on_chip, on_chip, others, problem = _choose(request, layers, n_layers, room)
    plans = [p for p in (on_chip, others) if p is not None]
    attention = {
        "tile memory": 0,
        "streaming memory": 0,
        **({problem.resource: problem.need} if problem else {}),
    }
    planned = IpuPlan(
        n_layers,
        n_on_chip,
        on_chip,
        others,
        attention["tile memory"] + sum(p.max_tile_bytes for p in plans),
        weights_tile,
        products,
        attention["streaming memory"] + sum(p.streaming_memory_bytes for p in plans),
        streamed_weights,
        read,
        seconds,
    )
    missing = []
    if problem is not None:
        missing = [f"{problem.resource} ({problem.need} of {problem.room} for attention and caches alone)"]
    elif planned.tile > model.tile_bytes:
        missing = [f"tile memory ({planned.tile} of {model.tile_bytes} bytes of the fullest tile)"]
    room = model.streaming_memory_bytes
    if planned.streaming > room and problem is None:
        missing.append(f"streaming memory ({planned.streaming} of {room} bytes)")
    return dataclasses.replace(planned, missing=tuple(missing))


def _choose(
    request: ModelRequest, layers: _Layers, n_layers: int, room: int
) -> tuple[int, Plan | None, Plan | None, DoesNotFit | None]:
    """How many layers are in three tiers, or in SRAM: as many as fit a tile beside the others, if that pays.
    Returns their number, the plan of their caches, that of the others' caches, or what there is too little
    of."""
    kernels, flight = ATTENTION[request.attention], request.in_flight
    plain = layers(request, kernels[-1], n_layers * flight)
    without = (0, None, plain, None) if isinstance(plain, Plan) else (0, None, None, plain)
    if len(kernels) == 1:
        return without

    def widened(n: int) -> Plan | DoesNotFit:
        return layers(request, kernels[0], n * flight, may_widen=kernels[0] == DENSE_SRAM.name)

    n_on_chip, on_chip, rest = most_on_chip(
        n_layers,
        lambda n: layers(request, kernels[0], n * flight),
        lambda n: layers(request, kernels[-1], n * flight),
        room,
        widened,
    )
    if on_chip is None:
        return without
    if isinstance(plain, Plan) and on_chip.seconds_per_query >= plain.seconds_per_query:
        return without  # of short contexts there is little to stream
    return n_on_chip, on_chip, rest, None
