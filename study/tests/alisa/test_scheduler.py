# SPDX-License-Identifier: Apache-2.0
"""The simulator of ALISA's scheduler: against a plain loop over steps, its limits, its optimiser."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

import numpy as np
import pytest

from sparq_reference import DoesNotFit
from sparq_study.alisa import (
    MACHINES,
    MODELS,
    RECOMPUTE,
    Attention,
    Costs,
    Machine,
    Model,
    Schedule,
    Workload,
    all_fast,
    best_schedule,
    flexgen,
    offload_everything,
    read_published,
    simulate,
    static_split,
)

GIB = 1 << 30
SMALL = Model("small", 256, 4, 4, 1024, 2, 1000, 1)
#: room for the weights and little more
TIGHT = Machine("tight", 8_200_000, 1e12, 1e10, 1e9, 1 << 30)
WORK = Workload(TIGHT, SMALL, 4, 30, 50)


def message(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        call()
    return str(error.value)


def loop(work: Workload, attention: Attention, s: Schedule, costs: Costs) -> dict[str, list[float]]:
    """The same run, token by token: each older token is attended to with one probability."""
    model, machine = work.model, work.machine
    row = 4 * work.batch * model.layers * model.hidden * attention.bits / 16  # bytes of a token
    half = {"input-slow": 0.5}.get(costs.recompute, 0.0)
    in_fast = {"input-fast": 0.5}.get(costs.recompute, 0.0)
    bandwidth, flops = machine.bandwidth * costs.bandwidth_efficiency, machine.flops * costs.flops_efficiency
    weights = model.layers * 12 * model.hidden**2 + model.vocabulary * model.hidden
    result: dict[str, list[float]] = {name: [] for name in ("compute", "link", "recompute", "fast", "slow")}
    away_before = 0.0
    for j in range(work.n_output):
        n = work.n_input + 1 + j
        kept = min(n, math.ceil((1 - attention.sparsity) * n)) if attention.sparsity else n
        chosen = kept // 2 if attention.sparsity else kept
        older = n - (kept - chosen)
        total = work.n_input + work.n_output
        resident = (1 - s.alpha) * total if s.fill else (1 - s.alpha) * n
        away = max(0.0, n - resident) if j >= s.p1 else 0.0
        deleted = away * s.beta / s.alpha if j >= s.p2 else 0.0
        loads = again = 0.0
        for token in range(n):  # token 0 is the oldest; a part of a token may be away
            probability = chosen / older if token < older else 1.0
            gone = min(1.0, max(0.0, deleted - token))
            loads += probability * (min(1.0, max(0.0, away - token)) - gone)
            again += probability * gone
        read = row * kept
        if attention.sparsity:
            read += 2 * kept * 4 * work.batch * model.layers * model.hidden
            read += 2 * chosen * n * work.batch * model.layers * model.heads
        memory, product = 2 * weights / bandwidth, 2 * work.batch * weights / flops
        result["compute"].append(
            max(memory, product) + model.layers * costs.layer_overhead + read / bandwidth
        )
        multiplications = again * work.batch * model.layers * 2 * model.hidden**2
        if costs.recompute == "forward":
            multiplications = again * work.batch * model.layers * 12 * model.hidden**2
        more = max(memory, product + 2 * multiplications / flops) - max(memory, product)
        result["recompute"].append(more + (model.layers * costs.recompute_overhead if again else 0.0))
        moved = row * (loads + away - away_before + half * again)
        result["link"].append(moved / machine.link)
        result["fast"].append(row * (n - away + in_fast * deleted))
        result["slow"].append(row * (away - deleted + half * deleted))
        away_before = away
    return result


@pytest.mark.parametrize("source", RECOMPUTE)
@pytest.mark.parametrize(
    ("sparsity", "bits", "schedule"),
    [
        (0.8, 8, Schedule(0.5, 0.25, 10, 20, False)),
        (0.8, 8, Schedule(0.95, 0.95, 0, 0, False)),  # local tokens too
        (0.8, 8, Schedule(0.95, 0.5, 0, 7)),
        (0.5, 16, Schedule(0.9, 0.0, 3, 50)),
        (0.6, 16, Schedule(0.4, 0.3, 30, 40)),
        (0.0, 8, Schedule(0.7, 0.4, 5, 5, False)),
    ],
)
def test_steps_are_those_of_a_loop(source: str, sparsity: float, bits: int, schedule: Schedule) -> None:
    roomy = dataclasses.replace(WORK, machine=dataclasses.replace(TIGHT, fast_bytes=1 << 30))
    costs = Costs(recompute=source, layer_overhead=1e-5)
    attention = Attention(sparsity, bits)
    run = simulate(roomy, attention, schedule, costs)
    expected = loop(roomy, attention, schedule, costs)
    for name, got in (
        ("compute", run.compute),
        ("link", run.link),
        ("recompute", run.recompute),
        ("fast", run.fast_bytes),
        ("slow", run.slow_bytes),
    ):
        rounding = 1e-6 if name in ("fast", "slow") else 0.0  # bytes that cancel
        np.testing.assert_allclose(got, expected[name], rtol=1e-9, atol=rounding, err_msg=name)
    assert run.seconds == pytest.approx(
        run.prefill + sum(map(sum, (expected[n] for n in list(expected)[:3])))
    )


def test_baselines_by_hand() -> None:
    """One step after a prompt of 30: bytes and seconds written out."""
    work = Workload(dataclasses.replace(TIGHT, fast_bytes=1 << 30), SMALL, 4, 30, 1)
    token = 4 * 4 * 4 * 256
    half = static_split(work, 0.5)
    assert half.link.tolist() == [0.5 * token * (30 + 31) / 1e9]  # loads 30, stores 31
    weights = 4 * 12 * 256**2 + 1000 * 256
    assert half.compute.tolist() == pytest.approx([(2 * weights + 31 * token) / 8e9])
    assert (half.fast_bytes + half.slow_bytes).tolist() == [31 * token]
    assert all_fast(work).link.tolist() == [0.0] and all_fast(work).recompute.tolist() == [0.0]
    everything = offload_everything(work)
    assert everything.link.tolist() == [token * 61 / 1e9] and everything.fast_bytes.tolist() == [0.0]
    assert everything.throughput == 4 / everything.seconds
    assert flexgen(work).seconds == all_fast(work).seconds  # it all fits


def test_flexgen_keeps_what_the_last_step_has_room_for() -> None:
    costs = Costs()
    run = flexgen(WORK, costs)
    assert 0 < run.slow_bytes[-1] < run.slow_bytes[-1] + run.fast_bytes[-1]
    assert run.fast_bytes[-1] == pytest.approx(costs.room(WORK))
    with pytest.raises(DoesNotFit) as error:
        all_fast(WORK, costs)
    assert error.value.resource == "fast memory" and error.value.need > error.value.room > 0


def exhaustive(work: Workload, attention: Attention, costs: Costs, steps: int = 10) -> float:
    """The least time of a grid over all four, memory checked at each."""
    best = math.inf
    for alpha in np.linspace(0, 1, steps + 1):
        for beta in np.linspace(0, alpha, steps // 2 + 1):
            for p1 in range(0, work.n_output + 1, 5):
                for p2 in range(p1, work.n_output + 1, 10):
                    try:
                        run = simulate(work, attention, Schedule(float(alpha), float(beta), p1, p2), costs)
                    except DoesNotFit:
                        continue
                    best = min(best, run.seconds)
    return best


@pytest.mark.parametrize("source", ["input-slow", "input-fast"])
def test_no_schedule_of_a_grid_is_better(source: str) -> None:
    work = dataclasses.replace(WORK, n_output=30)
    costs = Costs(recompute=source, recompute_overhead=0.0, flops_efficiency=1.0)
    attention = Attention(0.6, 16)
    schedule, run = best_schedule(work, attention, costs)
    assert run.seconds <= exhaustive(work, attention, costs) * (1 + 1e-9)
    assert simulate(work, attention, schedule, costs).seconds == run.seconds
    assert run.fast_bytes.max() <= costs.room(work) * (1 + 1e-9)
    _, without = best_schedule(work, attention, costs, recompute=False)
    assert without.seconds >= run.seconds


def test_phases() -> None:
    """Nothing is away where all fits; p1 is the last step that does; recomputation only if it pays."""
    roomy = Workload(MACHINES["H100-80"], MODELS["OPT-6.7B"], 4)
    schedule, run = best_schedule(roomy)
    assert schedule == Schedule(0.0, 0.0, 512, 512) and run.link.sum() == 0 == run.recompute.sum()
    costs = Costs()
    work = Workload(MACHINES["H100-80"], MODELS["OPT-30B"], 64)
    schedule, run = best_schedule(work, Attention(0.8, 8), costs)
    token = 2 * 64 * 48 * 7168
    assert 0 < schedule.p1 < 512 and schedule.p1 <= schedule.p2
    assert run.link[: schedule.p1].sum() == 0 < run.link[schedule.p1]
    last = work.n_input + schedule.p1  # tokens in fast memory at the last step of phase I
    assert last * token <= costs.room(work) < (last + 1) * token
    dear = Costs(recompute_overhead=1.0)
    assert best_schedule(work, Attention(0.8, 8), dear)[0].beta == 0


def test_an_index_takes_room_and_reads_a_share() -> None:
    work = Workload(MACHINES["H100-80"], MODELS["OPT-30B"], 64)
    plain, indexed = Attention(0.9, 8, 0.25), Attention(0.9, 8, 0.25, 4, 0.5)
    assert indexed.index_share == 4.5 / 32
    a, _ = best_schedule(work, plain)
    b, _ = best_schedule(work, indexed)
    assert b.alpha > a.alpha and b.p1 < a.p1
    roomy = dataclasses.replace(work, batch=1)
    _, run = best_schedule(roomy, indexed)
    assert run.fast_bytes[-1] == pytest.approx(640 * roomy.token_bytes * (0.5 + 4.5 / 32))
    _, none = best_schedule(roomy, dataclasses.replace(indexed, rank_share=0.0))
    read = (run.compute - none.compute)[-1]
    assert read == pytest.approx(640 * roomy.token_bytes * 4.5 / 32 * 0.5 / (3350e9 * 0.8))
    with pytest.raises(DoesNotFit, match="key index"):
        best_schedule(Workload(MACHINES["H100-80"], MODELS["LLaMA-33B"], 64, 2000), Attention(0.9, 8, 0.5, 8))


def test_models_have_the_weights_of_their_names() -> None:
    billions = {"OPT-6.7B": 6.7, "OPT-13B": 12.9, "OPT-30B": 30.0, "LLaMA-7B": 6.7, "LLaMA-13B": 13.0}
    for name, wanted in {**billions, "LLaMA-33B": 32.5}.items():
        assert MODELS[name].weight_bytes / 2e9 == pytest.approx(wanted, rel=0.01)
    said = read_published()
    thirteen = MODELS["OPT-13B"]
    assert 64 * 512 * thirteen.token_bytes / 1e9 > said["kv_opt13b"].low
    assert thirteen.weight_bytes / GIB == pytest.approx(said["weights_opt13b"].low, rel=0.05)


def test_published_statements() -> None:
    said = read_published()
    assert len(said) == 12 and all(s.low <= s.high and s.setting and s.source for s in said.values())
    assert (said["speedup_flexgen"].low, said["speedup_flexgen"].high) == (1.4, 3.0)
    assert all(s.source.startswith("arXiv:2403.17312 section ") for s in said.values())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Attention(1.0), "Attention: sparsity must be in [0, 1), got 1.0"),
        (lambda: Attention(0.5, 4), "Attention: bits must be 8 or 16, got 4"),
        (lambda: Attention(index_bits=16), "Attention: index_bits must be 0, 4 or 8, got 16"),
        (lambda: Attention(rank_share=2), "Attention: rank_share must be in [0, 1], got 2"),
        (lambda: Schedule(1.5, 0, 0, 0), "Schedule: alpha must be in [0, 1], got 1.5"),
        (lambda: Schedule(0.5, 0.6, 0, 0), "Schedule: beta must be in [0, alpha=0.5], got 0.6"),
        (lambda: Schedule(0.5, 0.2, 3, 2), "Schedule: p1 must be in [0, p2=2], got 3"),
        (lambda: Costs(flops_efficiency=0), "Costs: flops_efficiency must be in (0, 1], got 0"),
        (lambda: Costs(reserve=1), "Costs: reserve must be in [0, 1), got 1"),
        (lambda: Costs(layer_overhead=-1), "Costs: layer_overhead must be at least 0, got -1"),
        (lambda: Costs(software_factor=0), "Costs: software_factor must be above 0, got 0"),
        (lambda: static_split(WORK, 1.5), "static_split: slow_share must be in [0, 1], got 1.5"),
        (lambda: dataclasses.replace(WORK, batch=0), "Workload: batch must be in [1, 16777216], got 0"),
    ],
)
def test_refusals(call: Callable[[], Any], words: str) -> None:
    assert message(call) == words


def test_a_model_that_does_not_fit() -> None:
    work = Workload(MACHINES["V100-16"], MODELS["OPT-30B"], 4)
    for run in (flexgen, offload_everything, best_schedule):
        with pytest.raises(DoesNotFit, match=r"fast memory of V100-16 beside OPT-30B"):
            run(work)


def test_a_token_is_made_again_by_two_matrices_of_each_layer() -> None:
    """Of every sequence; or by the whole model."""
    matrices = 4 * 4 * (256 * 256 + 256 * 256)  # batch, layers, of the key and of the value
    for source in RECOMPUTE[:3]:
        assert Costs(recompute=source).recompute_multiplications(WORK) == matrices
    whole = 4 * 4 * (4 * 256 * 256 + 2 * 256 * 1024)
    assert Costs(recompute="forward").recompute_multiplications(WORK) == whole
