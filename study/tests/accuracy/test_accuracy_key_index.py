# SPDX-License-Identifier: Apache-2.0
"""The study's key index against the exact arithmetic (rules E9 and E12 of docs/exactness.md), step by step.

Of float16 inputs, codes, coefficients, totals and scores before the temperature are equal bit for bit. The
study divides by the temperature and sums the open block in an order of its own: there float32 rounding may
differ. The positions selected are the same.
"""

from __future__ import annotations

from pathlib import Path

import method_oracles as oracles
import numpy as np
import pytest
import torch

from sparq_ipu import KVCache, available_devices, sparq_attention
from sparq_reference import SparqSettings, exact, key_index
from sparq_study.accuracy.methods import Span, SparQ
from sparq_study.accuracy.methods.base import top_positions
from sparq_study.accuracy.methods.key_index import KeyIndex

REAL = Path(__file__).resolve().parents[3] / "tests/data" / "smollm2_hamlet.npz"
KV_HEADS, GROUP, DIM, STEPS, SEQ = 3, 3, 64, 4, 768
LAYERS = (2, 23)
DEVICES = [device for device in available_devices() if device in ("cpu", "reference")]


def real(layer: int, name: str) -> np.ndarray:
    with np.load(REAL) as arrays:
        return arrays[f"{name}_{layer}"]


def hard(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """query (STEPS, 9, DIM), key (3, 128, DIM) float16 that a model does not have."""
    rng = np.random.default_rng(7)
    query = rng.standard_normal((STEPS, KV_HEADS * GROUP, DIM)).astype(np.float16)
    key = rng.standard_normal((KV_HEADS, 128, DIM))
    if kind == "equal":
        key[:] = key[:, :1]
    elif kind == "tiny":  # steps that are denormal float16 numbers, or 0
        key *= 2.0**-15
    elif kind == "huge":
        key = np.sign(key) * 65504
    elif kind == "zero query":
        query[:] = 0
    elif kind == "one component":
        query[:, :, 1:] = 0
    elif kind in ("halves of 4", "halves of 8"):
        # v * limit / m is half an integer, and becomes one or the other by the rounding of limit / m
        n, largest, factor = (15, 1778, 7) if kind == "halves of 4" else (255, 1958, 11)
        key[:] = (np.arange(128) % 64 * n // 63)[:, None]  # low 0, step 1: v = q
        query[:] = factor * (2 * np.arange(64) + 1)
        query[:, :, 0] = largest
    return query, key.astype(np.float16)


INPUTS = {
    **{f"layer {layer}": lambda layer=layer: (real(layer, "query"), real(layer, "key")) for layer in LAYERS},
    **{
        kind: lambda kind=kind: hard(kind)
        for kind in (
            "normal",
            "equal",
            "tiny",
            "huge",
            "zero query",
            "one component",
            "halves of 4",
            "halves of 8",
        )
    },
}


def by_group(query: np.ndarray) -> torch.Tensor:
    """(steps, n_heads, d) -> (n_kv_heads, group_size, steps, d) float32."""
    tensor = torch.from_numpy(query.astype(np.float32))
    return tensor.reshape(len(query), KV_HEADS, GROUP, DIM).permute(1, 2, 0, 3)


def masked(query: np.ndarray, rank: int) -> tuple[torch.Tensor, np.ndarray]:
    """(query of a span, 0 outside i1; i1 (steps, n_kv_heads, rank))."""
    components = exact.query_components(query, rank=rank, n_kv_heads=KV_HEADS)
    chosen = np.zeros((len(query), KV_HEADS, DIM), bool)
    np.put_along_axis(chosen, components, True, axis=-1)
    used = torch.from_numpy(chosen).permute(1, 0, 2)[:, None]
    return by_group(query) * used, components


@pytest.mark.parametrize("index_bits", [8, 4])
@pytest.mark.parametrize("name", INPUTS)
def test_what_is_stored_equals_the_reference(name, index_bits):
    _, key = INPUTS[name]()
    index = KeyIndex.of(torch.from_numpy(key.astype(np.float32)), index_bits)
    assert index.n_positions == key.shape[1]
    for head in range(KV_HEADS):
        stored = key_index.quantise(key[head].T, index_bits)
        np.testing.assert_array_equal(index.low[head].numpy().T, stored.low.astype(np.float32))
        np.testing.assert_array_equal(index.step[head].numpy().T, stored.step.astype(np.float32))
        np.testing.assert_array_equal(index.code[head].permute(2, 0, 1).numpy(), stored.code)


@pytest.mark.parametrize("rank", [1, 16, 32, 64])
@pytest.mark.parametrize("index_bits", [8, 4])
@pytest.mark.parametrize("name", INPUTS)
def test_scores_of_full_blocks_equal_the_reference_bit_for_bit(name, index_bits, rank):
    query, key = INPUTS[name]()
    span_query, components = masked(query, rank)
    index = KeyIndex.of(torch.from_numpy(key.astype(np.float32)), index_bits)
    scores = index.scores(span_query, rank)
    assert scores.shape == (KV_HEADS, GROUP, STEPS, index.n_positions)
    for step in range(STEPS):
        for head in range(KV_HEADS):
            chosen = components[step, head]
            q = query[step].reshape(KV_HEADS, GROUP, DIM)[head][:, chosen].astype(np.float32)
            columns = np.ascontiguousarray(key[head].T[chosen])
            stored = key_index.quantise(columns, index_bits)
            expected = key_index.block_scores(q, stored, index_bits)
            np.testing.assert_array_equal(scores[head, :, step].numpy(), expected)


@pytest.mark.parametrize("rank", [1, 32])
@pytest.mark.parametrize("index_bits", [8, 4])
@pytest.mark.parametrize("name", INPUTS)
def test_coefficients_and_totals_are_the_integers_of_the_rule(name, index_bits, rank):
    query, key = INPUTS[name]()
    span_query, components = masked(query, rank)
    index = KeyIndex.of(torch.from_numpy(key.astype(np.float32)), index_bits)
    coefficient, unit = index.coefficients(span_query, rank)
    totals = index.totals(coefficient)
    for step, head, block in ((0, 0, 0), (1, 2, 1), (3, 1, 1)):
        steps = index.step[head, block].numpy()
        codes = index.code[head, block].numpy().astype(np.int64)
        for h in range(GROUP):
            q = [np.float32(query[step, head * GROUP + h, c]) for c in components[step, head]]
            wanted, wanted_unit = oracles.integers(q, [steps[c] for c in components[step, head]], index_bits)
            found = coefficient[head, block, h, step].numpy()
            assert found[components[step, head]].tolist() == wanted
            assert np.count_nonzero(found) == np.count_nonzero(wanted)  # 0 in the other components
            assert unit[head, block, h, step].item() == wanted_unit
            total = codes @ found.astype(np.int64)
            assert totals[head, block, h, step].tolist() == total.tolist()
            assert np.abs(codes).max(initial=0) * np.abs(found).sum() < 2**24  # of any codes


def test_float32_inputs_are_rounded_to_float16_first():
    """A model of the study has float32 tensors; a cache would hold, and a kernel get, float16."""
    query, key = real(23, "query"), real(23, "key")
    rng = np.random.default_rng(1)
    noise = [1 + rng.uniform(-1, 1, x.shape).astype(np.float32) / 2**13 for x in (query, key)]
    fine_query, fine_key = (x.astype(np.float32) * n for x, n in zip((query, key), noise))
    assert (fine_key != key).mean() > 0.9
    span_query, _ = masked(fine_query.astype(np.float16), 32)
    used = span_query != 0
    fine = torch.from_numpy(fine_query).reshape(STEPS, KV_HEADS, GROUP, DIM).permute(1, 2, 0, 3) * used
    index = KeyIndex.of(torch.from_numpy(fine_key), 4)
    same = KeyIndex.of(torch.from_numpy(fine_key.astype(np.float16).astype(np.float32)), 4)
    assert torch.equal(index.code, same.code) and torch.equal(index.low, same.low)
    assert torch.equal(index.scores(fine, 32), same.scores(span_query, 32))
    far = KeyIndex.of(torch.from_numpy(fine_key) * 1e9, 4)  # saturates, as a conversion on the device does
    assert far.low.min() == -65504 and torch.isfinite(far.scores(fine, 32)).all()


def span_of(layer: int, seq_len: int) -> Span:
    """The four real queries as the last ones of `seq_len` positions."""
    key, value = (
        torch.from_numpy(real(layer, name)[:, :seq_len].astype(np.float32)) for name in ("key", "value")
    )
    return Span(by_group(real(layer, "query")), key, value, 0, DIM**-0.5)


# the last query completes a block; a block is complete from the second one on; one block is open throughout
LENGTHS = (SEQ, 642, 200)


@pytest.mark.parametrize("rank", [16, 32])
@pytest.mark.parametrize("index_bits", [16, 8, 4])
@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_scores_and_selection_are_those_of_the_exact_arithmetic(layer, seq_len, index_bits, rank):
    settings = SparqSettings(rank, 64, 16)
    method = SparQ.from_settings(**settings.arguments(), index_bits=index_bits)
    span = span_of(layer, seq_len)
    scores, (selected, _) = method.approx_scores(span), method.select(span)
    for i in range(STEPS):
        length = span.first + i + 1
        inputs = (
            real(layer, "query")[i : i + 1],
            *(real(layer, n)[None, :, :length] for n in ("key", "value")),
        )
        steps = exact.sparq_steps(*inputs, settings, index_bits=index_bits)
        found = scores[:, :, i, :length].reshape(KV_HEADS * GROUP, length).numpy()
        n_index = length // 64 * 64 if index_bits < 16 else 0
        # equal but for the division by the temperature; then but for the order of a sum
        np.testing.assert_allclose(found[:, :n_index], steps.scores[0, :, :n_index], rtol=5e-7)
        np.testing.assert_allclose(found[:, n_index:], steps.scores[0, :, n_index:], atol=1e-5)
        for head in range(KV_HEADS):
            positions = np.flatnonzero(selected[head, i].numpy())
            assert positions.tolist() == steps.positions[0, head].tolist()


@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_number_of_bits_changes_the_selection(layer, seq_len):
    """Negative control of the test above: on these inputs 8 and 4 bits do not select what 16 do."""
    span = span_of(layer, seq_len)
    selected = {
        bits: SparQ(rank=16, top_k=64, index_bits=bits).select(span)[0].float() for bits in (16, 8, 4)
    }
    assert torch.equal(selected[16].sum(-1), selected[4].sum(-1))
    assert 0 < (selected[16] - selected[4]).abs().mean() < 0.1
    if seq_len > 200:
        assert not torch.equal(selected[16], selected[8])


def positions_read(cache_of, query: np.ndarray, key: np.ndarray, settings: dict) -> np.ndarray:
    """(n_kv_heads, n) bool: which positions a cache attends to, told by its output alone.

    One batch element for each 64 positions: its value rows there are unit vectors, all others 0, so that a
    component of the output is the weight of one position. query (n_heads, d), key (n_kv_heads, n, d).
    """
    n = key.shape[1]
    batch = -(-n // DIM)
    value = np.zeros((batch, *key.shape), np.float16)
    for position in range(n):
        value[position // DIM, :, position, position % DIM] = 60000  # so that small weights do not become 0
    cache = cache_of(batch=batch, capacity=n)
    cache.append(np.repeat(key[None], batch, 0), value)
    output = sparq_attention(np.repeat(query[None], batch, 0), cache, **settings, mean_value=False)
    weight = output.reshape(batch, KV_HEADS, GROUP, DIM).max(2).transpose(1, 0, 2).reshape(KV_HEADS, -1)
    return weight[:, :n] > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index_bits", [8, 4])
@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_real_cache_reads_the_positions_that_the_study_selects(layer, seq_len, index_bits, device):
    """And, with real values, returns what the study does but for float16."""

    def cache_of(**sizes):
        return KVCache(n_kv_heads=KV_HEADS, head_dim=DIM, device=device, index_bits=index_bits, **sizes)

    settings = {"rank": 32, "top_k": 64, "n_local": 16}
    method = SparQ.from_settings(**settings, index_bits=index_bits)
    span = span_of(layer, seq_len)
    selected, _ = method.select(span)
    outputs = method.attend(span)
    query, key, value = (real(layer, name) for name in ("query", "key", "value"))
    decoding = cache_of(batch=1, capacity=seq_len)
    decoding.append(key[None, :, : span.first], value[None, :, : span.first])
    for i in range(STEPS):
        length = span.first + i + 1
        read = positions_read(cache_of, query[i], key[:, :length], settings)
        np.testing.assert_array_equal(read, selected[:, i, :length].numpy())
        decoding.append(key[None, :, length - 1 : length], value[None, :, length - 1 : length])
        output = sparq_attention(query[i : i + 1], decoding, **settings)[0]
        wanted = outputs[:, :, i].reshape(KV_HEADS * GROUP, DIM).numpy()
        np.testing.assert_allclose(output.astype(np.float32), wanted, rtol=2**-10, atol=1e-5)


@pytest.mark.parametrize("index_bits", [8, 4])
def test_equal_scores_go_to_the_lower_index_as_in_the_kernels(index_bits):
    """Two keys in turn: half of all positions score the same."""
    rng = np.random.default_rng(3)
    query = rng.standard_normal((1, KV_HEADS * GROUP, DIM)).astype(np.float16)
    key = np.tile(rng.standard_normal((KV_HEADS, 2, DIM)), (1, 100, 1)).astype(np.float16)
    settings = SparqSettings(16, 50, 8)
    steps = exact.sparq_steps(query, key[None], key[None], settings, index_bits=index_bits)
    tensor = torch.from_numpy(key.astype(np.float32))
    method = SparQ.from_settings(**settings.arguments(), index_bits=index_bits)
    selected, _ = method.select(Span(by_group(query), tensor, tensor, 0, DIM**-0.5))
    for head in range(KV_HEADS):
        assert np.flatnonzero(selected[head, 0].numpy()).tolist() == steps.positions[0, head].tolist()


def test_top_positions_of_equal_entries():
    weight = torch.tensor([[1.0, 3, 3, 2, 3], [0, 0, 0, 0, 0], [5, 4, 3, 2, 1]])
    mask = top_positions(weight, 2, lower_first=True)
    assert [row.nonzero()[:, 0].tolist() for row in mask] == [[1, 2], [0, 1], [0, 1]]
    assert top_positions(weight, 9, lower_first=True).all()
    assert not top_positions(weight, 0, lower_first=True).any()


@pytest.mark.parametrize("index_bits", [8, 4])
def test_the_open_block_and_short_caches_are_scored_from_the_keys(index_bits):
    span = span_of(2, 63)
    exact_bits, few_bits = (SparQ(rank=16, top_k=8, index_bits=bits) for bits in (16, index_bits))
    assert torch.equal(exact_bits.approx_scores(span), few_bits.approx_scores(span))
    span = span_of(2, 100)
    one, other = exact_bits.approx_scores(span), few_bits.approx_scores(span)
    assert torch.equal(one[..., 64:], other[..., 64:]) and not torch.equal(one[..., :64], other[..., :64])
