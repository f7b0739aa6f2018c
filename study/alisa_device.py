# SPDX-License-Identifier: Apache-2.0
"""ALISA's phases on an emulated IPU, for study/alisa.py --device: phases I and II as a cache in three tiers
executes them, on recorded decode steps, beside what the schedule predicts; phase III by the device model.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import numpy as np
from alisa_lines import SCHEMA, Line

import sparq_ipu
from sparq_ipu.attention import attention
from sparq_ipu.kernels import attention_over
from sparq_ipu.planning.device_model import device_model
from sparq_reference import SparqSettings, WindowSettings, checks, transfers
from sparq_study import traces
from sparq_study.alisa import MODELS, Model

#: steps whose attention ALISA's history begins with: the prompt's last ones
N_RECENT = 32
#: what is compared: a name and settings. By the accuracy study ALISA needs three times as many tokens as
#: SparQ for nearly the same bits per character
RUNS = (("ALISA", WindowSettings(768, n_recent=N_RECENT)), ("SparQ", SparqSettings(32, 256, 64)))
#: of the matrix products of an IPU: what the vendor states for fp16, and the share of it that is reached, as
#: in the simulator
FLOPS = {"bow": 350e12}
FLOPS_EFFICIENCY = 0.5


@dataclasses.dataclass(frozen=True)
class Step:
    """What one attention call did."""

    held: int  #: positions
    predicted: float  #: rows of a KV head to be loaded, by ALISA's schedule
    counted: float  #: rows of a KV head that were read from streaming memory, the mean of all heads
    seconds: float  #: modelled


def predicted_rows(held: int, settings: SparqSettings | WindowSettings, hot_rows: int) -> float:
    """As `sparq_study.alisa.simulate` has it: the oldest tokens are away, those that are attended to beside
    the recent ones are spread evenly over the older ones, and nothing that was loaded is kept."""
    n_local = min(settings.n_local, settings.top_k, held)
    older, chosen = held - n_local, min(settings.top_k, held) - n_local
    away = min(max(0, held - hot_rows), older)
    return chosen * away / older if older else 0.0


def executed(
    trace: traces.Trace, layer: int, settings: SparqSettings | WindowSettings, hot_rows: int, n_tiles: int = 0
) -> Iterator[Step]:
    """Decodes a trace, from its step N_RECENT on. The device appends every token."""
    from sparq_ipu import _core

    of_layer = trace.layers[layer]
    n_kv_heads, n_positions, head_dim = of_layer.key.shape
    cache = sparq_ipu.KVCache(
        1,
        n_kv_heads,
        head_dim,
        n_positions,
        device="emulator",
        n_tiles=n_tiles,
        memory="tiered",
        index_bits=4,
        hot_rows=hot_rows,
        check_finite=False,
    )
    start = trace.start + N_RECENT
    for p in range(start):
        cache.append(of_layer.key[None, :, p : p + 1], of_layer.value[None, :, p : p + 1])
    if isinstance(settings, WindowSettings):
        observed = np.ascontiguousarray(of_layer.query[:N_RECENT].swapaxes(0, 1)[None])
        cache.observe(observed, **settings.arguments())
    model = device_model().parameters()
    for p, query in enumerate(of_layer.query[N_RECENT:], start):
        cache.append(of_layer.key[None, :, p : p + 1], of_layer.value[None, :, p : p + 1])
        attention(query[None], cache, settings)
        session: Any = cache.one_layer("bench")
        run = _core.emulator_last_run(session.session, model)
        misses = session.session.misses()
        yield Step(
            p + 1, predicted_rows(p + 1, settings, hot_rows), float(np.mean(misses)), run["seconds"]["total"]
        )


def lines_of(
    path: Path,
    layers: Sequence[int] | None,
    hot_rows: Sequence[int],
    progress: Callable[[str], object],
    n_tiles: int = 0,
) -> list[Line]:
    """A line for each layer, buffer and run: what the first step read, and means of the others by phase."""
    trace = traces.load(path)
    lines = []
    for layer in layers or trace.layers:
        if layer not in trace.layers:
            checks.fail("alisa", "layers", f"be among {list(trace.layers)}", layer)
        for n_hot in hot_rows:
            for name, settings in RUNS:
                progress(f"layer {layer}, {n_hot} hot rows, {name}")
                first, *steps = executed(trace, layer, settings, n_hot, n_tiles)
                line: Line = {
                    "schema": SCHEMA,
                    "kind": "device",
                    "trace": f"{trace.kind}: {trace.text}",
                    "layer": layer,
                    "attention": name,
                    **{f"of_{key}": value for key, value in settings.arguments().items()},
                    "hot_rows": n_hot,
                    "first": round(first.counted, 2),
                }
                for phase, of in (
                    ("I", [s for s in steps if s.held <= n_hot]),
                    ("II", [s for s in steps if s.held > n_hot]),
                ):
                    line[phase] = of and {
                        "steps": len(of),
                        **{
                            field: round(float(np.mean([getattr(s, field) for s in of])), digits)
                            for field, digits in (("predicted", 2), ("counted", 2), ("seconds", 9))
                        },
                    }
                lines.append(line)
    return lines


# ---- what that would take on an IPU


#: heads and KV heads of a layer of head_dim 128: LLaMA-7B's, and one with grouped queries
SHAPES = ((32, 32), (32, 8))


def plan_lines(lines: Sequence[Line], seq_len: int, n_tiles: int = 0) -> list[Line]:
    """Modelled seconds of a step of a larger layer, rows of 8 bits, with the hit rates that were counted in
    phase II, of buffers that phase I does not fit."""
    made = []
    for line in lines:
        if line["kind"] != "device" or line["I"]:
            continue
        hit_rate = 1 - line["II"]["counted"] / line["of_top_k"]
        given = {key[3:]: value for key, value in line.items() if key.startswith("of_")}
        settings = WindowSettings(**given) if "n_recent" in given else SparqSettings(**given)
        kernel = attention_over("tiered", settings).kernel
        for n_heads, n_kv_heads in SHAPES:
            plan = sparq_ipu.plan(
                1,
                n_heads,
                n_kv_heads,
                128,
                seq_len,
                kernel=kernel,
                index_bits=4,
                row_bits=8,
                hot_rows=line["hot_rows"],
                hit_rate=hit_rate,
                n_tiles=n_tiles,
                append=True,
                baseline=False,
                **settings.arguments(),
            )
            made.append(
                {
                    "schema": SCHEMA,
                    "kind": "device-plan",
                    "trace": line["trace"],
                    "attention": line["attention"],
                    "of_top_k": line["of_top_k"],
                    "hot_rows": line["hot_rows"],
                    "n_kv_heads": n_kv_heads,
                    "seq_len": seq_len,
                    "hit_rate": round(hit_rate, 4),
                    "seconds": plan.seconds_per_query,
                    "streaming": plan.seconds_by_category["streaming"],
                    "seconds_low": plan.seconds_low,
                    "seconds_high": plan.seconds_high,
                    "max_tile_bytes": plan.max_tile_bytes,
                }
            )
    return made


# ---- phase III, by the device model


@dataclasses.dataclass(frozen=True)
class Layer:
    """Of one layer: what a token's key and value are made from, and how many heads they have."""

    hidden: int
    n_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: Model) -> Layer:
        return cls(model.hidden, model.heads, model.hidden // model.heads)


LAYERS = {
    "OPT-6.7B, LLaMA-7B": Layer.of(MODELS["LLaMA-7B"]),
    "OPT-13B, LLaMA-13B": Layer.of(MODELS["LLaMA-13B"]),
    "Llama-3-8B (8 KV heads)": Layer(4096, 8, 128),
}


def recompute_lines(device: str = "bow") -> list[Line]:
    """Of one token and layer the seconds to load its rows, and to make them again from the layer's input."""
    model = device_model(device)
    lines = []
    for name, layer in LAYERS.items():

        def seconds(n_bytes: float, packets: float) -> float:
            return (n_bytes + packets * model.packet_overhead_bytes) / model.streaming_bytes_per_second

        numbers = 2 * layer.n_kv_heads * layer.head_dim
        products = 2 * layer.hidden * numbers / (FLOPS[device] * FLOPS_EFFICIENCY)
        of_input = 2 * layer.hidden
        lines.append(
            {
                "schema": SCHEMA,
                "kind": "device-recompute",
                "layer": name,
                "rows_16": seconds(2 * numbers, layer.n_kv_heads),
                "rows_8": seconds(
                    layer.n_kv_heads * transfers.row_bytes(layer.head_dim, 8), layer.n_kv_heads
                ),
                "input": seconds(of_input, -(-of_input // 1024)),
                "products": products,
            }
        )
    return lines
