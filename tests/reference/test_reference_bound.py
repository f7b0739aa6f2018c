# SPDX-License-Identifier: Apache-2.0
"""The exact twin stays within the bound of docs/error_bound.md from the ideal one, in every intermediate."""

from __future__ import annotations

from pathlib import Path

import error_bound
import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from sparq_reference import SparqSettings, exact, ideal, numerics
from sparq_reference.twin import Steps

REAL = Path(__file__).resolve().parent.parent / "data" / "smollm2_hamlet.npz"
PAGE = Path(__file__).resolve().parents[2] / "docs/error_bound.md"
LAYERS = (2, 23)


def real_attention(layer: int) -> strategies.Attention:
    """Four decode steps of a real model as a batch: each sees one position more than the one before."""
    with np.load(REAL) as arrays:
        query, key, value = (arrays[f"{name}_{layer}"] for name in ("query", "key", "value"))
    batch, seq_len = query.shape[0], key.shape[1]
    lengths = seq_len - batch + 1 + np.arange(batch)
    return strategies.Attention(
        query, np.repeat(key[None], batch, axis=0), np.repeat(value[None], batch, axis=0), lengths
    )


def check_sparq(x: strategies.Attention, settings: SparqSettings, index_bits: int = 16) -> dict[str, float]:
    """Compare every intermediate against its bound; return the largest share of the bound that each takes."""
    steps = exact.sparq_steps(*x.qkv, settings, index_bits=index_bits, lengths=x.lengths)
    bounds = error_bound.sparq(
        *x.qkv, x.lengths, steps.components, steps.positions, settings.mean_value, index_bits
    )
    got = steps._asdict()
    got["mean"] = exact.mean_value(exact.sum_values(x.value, lengths=x.lengths), x.lengths)
    got["inv_tau"] = got["inv_tau"] / bounds.ideal["inv_tau"]  # its error is relative
    shares = {}
    for name in ("inv_tau", "scores", "attended", "alpha", "mean", "output"):
        with np.errstate(invalid="ignore"):
            distance = np.abs(got[name] - (1 if name == "inv_tau" else bounds.ideal[name]))
        real = ~np.isnan(bounds.error[name])
        assert real.any()
        error = np.maximum(bounds.error[name][real], 1e-300)
        shares[name] = float((distance[real] / error).max())
        assert shares[name] <= 1, f"{name} is {shares[name]} of its bound away from the ideal"
    check_selections(x, settings, steps, bounds)
    return shares


def check_selections(
    x: strategies.Attention, settings: SparqSettings, steps: Steps, bounds: error_bound.Bounds
) -> None:
    """Section 8: no component and no position was passed over that is better by more than the bound."""
    n_kv_heads = x.key.shape[1]
    group_size = x.query.shape[1] // n_kv_heads
    magnitude = np.abs(x.query.astype(float)).reshape(len(x.lengths), n_kv_heads, group_size, -1).sum(axis=2)
    slack = 1 + error_bound.k(group_size - 1)
    for b, n in enumerate(x.lengths):
        for kv in range(n_kv_heads):
            chosen = steps.components[b, kv]
            others = np.delete(magnitude[b, kv], chosen)
            assert (np.diff(chosen) > 0).all() and len(chosen) == settings.rank
            assert not len(others) or magnitude[b, kv, chosen].min() * slack >= others.max() / slack

            count = min(settings.top_k, n)
            positions = steps.positions[b, kv]
            assert steps.counts[b] == count and (positions[count:] == -1).all()
            positions = positions[:count]
            assert (np.diff(positions) > 0).all() and 0 <= positions[0] and positions[-1] < n
            first_local = n - min(settings.n_local, count)
            assert set(range(first_local, n)) <= set(positions.tolist())
            merit, t = bounds.ideal["merit"][b, kv, :n], bounds.error["merit"][b, kv, :n]
            best = positions[positions < first_local]
            passed_over = np.setdiff1d(np.arange(n), positions)
            if len(best) and len(passed_over):
                assert (merit + t)[best].min() >= (merit - t)[passed_over].max()


@given(st.data())
def test_sparq_is_within_the_bound(data: st.DataObject) -> None:
    x = data.draw(strategies.attentions())
    check_sparq(x, data.draw(strategies.sparq_settings(x)), data.draw(strategies.index_bits))


@given(strategies.attentions())
def test_dense_is_within_the_bound(x: strategies.Attention) -> None:
    got, expected = (twin.dense_attention(*x.qkv, lengths=x.lengths) for twin in (exact, ideal))
    group_size = x.query.shape[1] // x.key.shape[1]
    for b, n in enumerate(x.lengths):
        for h in range(x.query.shape[1]):
            kv = h // group_size
            f = error_bound.attended_error(x.query[b, h], x.key[b, kv, :n], x.value[b, kv, :n])
            limit = error_bound.narrowing_error(expected[b, h], f)
            assert (np.abs(got[b, h].astype(float) - expected[b, h]) <= limit).all()


@pytest.mark.parametrize("kind", strategies.KINDS)
@pytest.mark.parametrize(("n_local", "index_bits"), [(0, 16), (16, 16), (0, 8), (0, 4)])
def test_each_kind_of_input(kind: str, n_local: int, index_bits: int) -> None:
    rng = np.random.default_rng(7)
    sizes = dict(batch=2, n_kv_heads=2, group_size=3, seq_len=300, head_dim=80)
    for kinds in ((kind,) * 3, (kind, "normal", "normal"), ("normal", "normal", kind)):
        x = strategies.make_attention(rng, lengths=[129, 300], kinds=kinds, **sizes)
        check_sparq(x, SparqSettings(20, 64, n_local, True), index_bits)


def test_the_example_of_the_page() -> None:
    rng = np.random.default_rng(0)
    shapes = ((1, 1, 128), (1, 1, 16384, 128), (1, 1, 16384, 128))
    query, key, value = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    x = strategies.Attention(query, key, value, np.array([16384]))
    settings = SparqSettings(32, 128)
    steps = exact.sparq_steps(*x.qkv, settings, lengths=x.lengths)
    bounds = error_bound.sparq(*x.qkv, x.lengths, steps.components, steps.positions, settings.mean_value, 16)
    ideal_output = bounds.ideal["output"]
    error = np.abs(steps.output - ideal_output).max()
    bound, largest = bounds.error["output"].max(), np.abs(ideal_output).max()
    said = f"the bound is {bound:.1e}, the error {error:.1e} and the largest output {largest:.1e}"
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("mean_value", "index_bits"), [(True, 16), (False, 16), (True, 8), (True, 4)])
def test_real_inputs(layer: int, mean_value: bool, index_bits: int) -> None:
    x = real_attention(layer)
    shares = check_sparq(x, SparqSettings(16, 128, 32, mean_value), index_bits)
    assert max(shares.values()) > 1e-3  # the bound is not so wide that it says nothing


def test_real_inputs_are_what_they_claim() -> None:
    for layer in LAYERS:
        x = real_attention(layer)
        assert x.query.shape == (4, 9, 64) and x.key.shape == x.value.shape == (4, 3, 768, 64)
        assert all(a.dtype == np.float16 and np.isfinite(a).all() for a in x.qkv)
        # the first positions of real text draw attention, which is why they are in the slice
        weights, total, _ = ideal.softmax_weights(
            np.einsum("hc,npc->hnp", x.query[-1].astype(float), x.key[-1].astype(float))[::3].reshape(9, -1)
            / 8
        )
        assert (weights / total[:, None]).max() > 0.01


def _wrong_temperature(query: np.ndarray, components: np.ndarray) -> np.ndarray:
    return np.full(query.shape[:2], 1 / np.sqrt(query.shape[-1]), np.float32)


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (exact, "inverse_temperature", _wrong_temperature),
        (
            exact,
            "query_components",
            lambda q, *, rank, n_kv_heads, **_: np.tile(np.arange(rank), (len(q), n_kv_heads, 1)),
        ),
        (exact, "mean_value", lambda value_sum, lengths: value_sum / np.float32(769)),
        (exact, "combine", lambda attended, alpha, mean: attended),
        (numerics, "exp", lambda x: np.exp(x) * np.float32(1 + 1e-4 * np.sin(1e4 * x))),
        (numerics, "sqrt", lambda t: np.sqrt(t) * np.float32(1 + 1e-5)),
        (
            numerics,
            "dot",
            lambda a, b: (a.astype(np.float16) * b.astype(np.float16)).sum(-1).astype(np.float32),
        ),
        (numerics, "scale", lambda d: np.float32(1 / np.sqrt(d + 1))),
    ],
)
def test_a_wrong_step_leaves_the_bound(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, wrong: object
) -> None:
    x = real_attention(LAYERS[0])
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        check_sparq(x, SparqSettings(16, 128, 32, True))


def test_a_wrong_selection_leaves_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    x = real_attention(LAYERS[0])
    right = exact.key_topk
    monkeypatch.setattr(exact, "key_topk", lambda weights, *a, **k: right(weights[..., ::-1].copy(), *a, **k))
    with pytest.raises(AssertionError):
        check_sparq(x, SparqSettings(16, 128, 32, True))
