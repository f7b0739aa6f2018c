# SPDX-License-Identifier: Apache-2.0
"""`enable_window`: window attention in a model, bit for bit an oracle over the ordinary cache."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import Oracle, left_padded, step_logits, tiny_model, tokens_of  # noqa: E402

import sparq_ipu  # noqa: E402
from sparq_ipu.transformers import (  # noqa: E402
    SparqCache,
    cache_traffic,
    disable,
    enable_dense,
    enable_window,
)
from sparq_ipu.transformers.cache import storage  # noqa: E402
from sparq_ipu.transformers.cache_name import cache_of, with_cache  # noqa: E402
from sparq_reference import WindowSettings, exact, window  # noqa: E402

SETTINGS = dict(top_k=8, n_local=4, n_recent=5)
DEVICES = [d for d in sparq_ipu.available_devices() if d in ("cpu", "reference")]


class WindowOracle(Oracle):
    """Window attention, with a history of its own for each layer and row."""

    def __init__(self, n_layers: int, batch: int, **settings: int):
        super().__init__([None] * n_layers)
        self.window = settings
        self.histories = [
            [window.WindowHistory(1, max(1, settings["n_recent"])) for _ in range(batch)]
            for _ in range(n_layers)
        ]

    def install(self, model) -> None:
        super().install(model)
        own = transformers.AttentionInterface()[self.name]

        def attention(module, query, key, value, attention_mask, **kwargs):
            if query.shape[2] > 1 and WindowSettings(**self.window).remembers:
                self._observe(module.layer_idx, query, key, value, attention_mask)
            return own(module, query, key, value, attention_mask, **kwargs)

        transformers.AttentionInterface.register(self.name, attention)

    def _observe(self, layer, query, key, value, mask) -> None:
        """The prompt's last tokens, as many as every row has."""
        real = mask[:, 0, -1].bool()
        n = min(self.window["n_recent"], query.shape[2], int(real.sum(1).min()))
        for b, history in enumerate(self.histories[layer]):
            k, v = (x[b : b + 1, :, real[b]].to(torch.float16).numpy() for x in (key, value))
            for back in reversed(range(n)):
                q = query[b : b + 1, :, query.shape[2] - 1 - back].to(torch.float16).numpy()
                length = k.shape[2] - back
                history.add(0, exact.dense_shares(q, k, v, np.array([length]))[0, :length])

    def _row(self, layer, b, query, key, value, mask) -> np.ndarray:
        real = mask[b, 0, 0].bool()
        q = query[b : b + 1, :, 0].to(torch.float16).numpy()
        k, v = key[b : b + 1, :, real].numpy(), value[b : b + 1, :, real].numpy()
        return exact.window_attention(q, k, v, self.histories[layer][b], **self.window)[0]


@pytest.fixture
def model():
    return tiny_model()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("changes", [{}, dict(n_recent=0, n_local=0), dict(n_local=8)], ids=str)
def test_padded_batch_equals_the_oracle_bit_for_bit(model, device, changes):
    tokens, mask = left_padded([tokens_of(40), tokens_of(23, seed=1), tokens_of(4, seed=2)])
    settings = {**SETTINGS, **changes}
    enable_window(model, device=device, **settings)
    got = step_logits(model, tokens, 8, mask)
    disable(model)
    oracle = copy.deepcopy(model)
    WindowOracle(3, 3, **settings).install(oracle)
    assert torch.equal(got, step_logits(oracle, tokens, 8, mask))
    # negative control: one token more
    WindowOracle(3, 3, **{**settings, "top_k": 9}).install(oracle)
    assert not torch.equal(got, step_logits(oracle, tokens, 8, mask))


def on(device):
    """Options of caches there, small ones."""
    return dict(device=device, n_tiles=8) if device == "emulator" else dict(device=device)


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_a_growing_cache_and_rows_keep_the_history(model, monkeypatch, device):
    """The cache grows twice; beams reorder and repeat its rows."""
    monkeypatch.setattr(storage, "FIRST_ROOM", 4)
    tokens = tokens_of(12)
    enable_window(model, capacity=300, device="reference", **SETTINGS)
    expected = step_logits(model, tokens, 24)
    options = dict(num_beams=3, do_sample=False, max_new_tokens=8)
    beams = model.generate(tokens, **options)
    enable_window(model, **on(device), **SETTINGS)
    assert torch.equal(step_logits(model, tokens, 24), expected)
    assert torch.equal(model.generate(tokens, **options), beams)


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_copies_and_chosen_rows_keep_the_history(model, device):
    """Of rows that are chosen, each has its own."""
    tokens, rows = tokens_of(12, batch=3), [2, 0]

    def logits(past, following):
        with torch.no_grad():
            parts = [model(part, **with_cache(past)).logits[:, -1] for part in following.split(1, dim=1)]
        return torch.stack(parts)

    enable_window(model, **on(device), **SETTINGS)
    plain, chosen = (SparqCache(model, **on(device)) for _ in range(2))
    for cache in (plain, chosen):
        with torch.no_grad():
            model(tokens, **with_cache(cache))
            logits(cache, tokens_of(3, batch=3, seed=1))
    copied, following = copy.deepcopy(chosen), tokens_of(6, batch=3, seed=2)
    chosen.batch_select_indices(torch.tensor(rows))
    for layer, of_all in zip(chosen.layers, plain.layers):
        held, every = (x.cache.one_layer("test").history() for x in (layer, of_all))
        assert held.n_recent == every.n_recent == SETTINGS["n_recent"]
        for steps, expected in zip(held.steps, (every.steps[row] for row in rows)):
            assert [s.tolist() for s in steps] == [s.tolist() for s in expected] and len(steps) == 5
    expected = logits(plain, following)
    assert torch.equal(logits(copied, following), expected)
    # PyTorch's products of fewer rows may differ in their last bits
    assert torch.allclose(logits(chosen, following[rows]), expected[:, rows], atol=1e-4)


@pytest.mark.parametrize("device", sparq_ipu.available_devices())
def test_another_n_recent_is_refused_before_anything_changes(model, device):
    cache = SparqCache(model, **on(device))
    enable_window(model, **on(device), **SETTINGS)
    tokens = tokens_of(12)
    with torch.no_grad():
        model(tokens, **with_cache(cache))
        enable_window(model, **on(device), **{**SETTINGS, "n_recent": 4})
        words = "window_attention: n_recent must be the n_recent=5 of the steps so far, got 4"
        for n_tokens in (1, 3):
            with pytest.raises(ValueError, match=words):
                model(tokens[:, :n_tokens], **with_cache(cache))
        assert {layer.get_seq_length() for layer in cache.layers} == {12}
        enable_window(model, **on(device), **SETTINGS)
        model(tokens[:, :1], **with_cache(cache))  # negative control
    assert {layer.get_seq_length() for layer in cache.layers} == {13}


def test_enough_tokens_are_dense_attention(model):
    tokens = tokens_of(20, batch=2)
    enable_dense(model)
    dense = step_logits(model, tokens, 6)
    enable_window(model, top_k=26, n_local=0)
    assert torch.equal(step_logits(model, tokens, 6), dense)
    enable_window(model, top_k=10)
    assert not torch.equal(step_logits(model, tokens, 6), dense)  # negative control


def test_several_tokens_a_step_are_one_after_another(model):
    """Prompt lookup checks several tokens at once and takes some back. The history is long enough to drop no
    step, for those would not come back. (Products of several tokens at once differ in their last bits.)"""
    tokens = tokens_of(8).repeat(1, 4)
    end = dict(eos_token_id=100)  # lookup of transformers 4 needs one; it does not come here

    def outputs(top_k, **options):
        enable_window(model, tokens_per_step=8, top_k=top_k, n_recent=64)
        generated = model.generate(
            tokens, max_new_tokens=24, do_sample=False, return_dict_in_generate=True, output_logits=True,
            **end, **options,
        )  # fmt: skip
        return generated.sequences, torch.stack(generated.logits)

    plain, logits = outputs(20)
    looked_up, same = outputs(20, prompt_lookup_num_tokens=3)
    assert torch.equal(plain, looked_up) and torch.allclose(logits, same, atol=0.01)
    assert not torch.allclose(logits, outputs(19)[1], atol=0.01)  # negative control


def test_traffic_is_that_of_the_kernel(model):
    enable_window(model, **SETTINGS)
    output = model.generate(
        tokens_of(30), max_new_tokens=4, do_sample=False, return_dict_in_generate=True, use_cache=True
    )
    moved = cache_traffic(cache_of(output))
    steps = range(31, 31 + moved["n_steps"])
    per_head = sum(2 * (2 * 8 * 16 + 2 * 16 + 2 * n) for n in steps)
    assert moved["n_steps"] == 3 and moved["bytes_read"] == 3 * 2 * per_head < moved["bytes_dense"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(top_k=0), "top_k must be in [1, 16777216], got 0"),
        (dict(top_k=8, n_recent=6000), "n_recent must be in [0, 5461] for n_heads=6, got 6000"),
        (dict(top_k=8, tokens_per_step=0), "tokens_per_step must be in [1, 32], got 0"),
        (dict(top_k=8, foo=1), "options must be among"),
    ],
)
def test_refusals(model, arguments, words):
    with pytest.raises(ValueError) as error:
        enable_window(model, **arguments)
    assert str(error.value).startswith(f"enable_window: {words}")
    assert not sparq_ipu.transformers.is_enabled(model)


@pytest.mark.skipif("emulator" not in sparq_ipu.available_devices(), reason="there is no emulator here")
@pytest.mark.parametrize("options", [{}, dict(memory="tiered", index_bits=4, row_bits=8)], ids=str)
def test_an_emulated_ipu_does_the_same(model, options):
    tokens, mask = left_padded([tokens_of(20), tokens_of(13, seed=1)])
    of_cache = {name: options[name] for name in ("index_bits", "row_bits") if name in options}
    enable_window(model, device="reference", **SETTINGS, **of_cache)
    expected = step_logits(model, tokens, 4, mask)
    enable_window(model, device="emulator", n_tiles=16, **SETTINGS, **options)
    assert torch.equal(step_logits(model, tokens, 4, mask), expected)
    enable_window(model, device="emulator", n_tiles=16, **{**SETTINGS, "top_k": 9}, **options)
    assert not torch.equal(step_logits(model, tokens, 4, mask), expected)  # negative control
