# SPDX-License-Identifier: Apache-2.0
"""A key index of some components, for models of transformers: against an oracle that puts keys and queries in
the order of each row, layer and head, and calls the reference."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from index_bits import DEVICES  # noqa: E402
from tiny_models import (  # noqa: E402
    Oracle,
    enable,
    greedy,
    left_padded,
    step_logits,
    tiny_model,
    tokens_of,
)

from sparq_ipu.transformers import (  # noqa: E402
    LayerSettings,
    SparqCache,
    enable_dense,
    enable_window,
    generate_lossless,
)
from sparq_ipu.transformers.cache_name import cache_of, with_cache  # noqa: E402
from sparq_ipu.transformers.settings.file import read_settings, write_settings  # noqa: E402
from sparq_reference import component_order, exact  # noqa: E402

FOUR = dict(rank=4, top_k=12, n_local=3, mean_value=True, index_bits=4)
EIGHT_OF_16 = dict(FOUR, index_components=8)


class OrderedOracle(Oracle):
    """With an order of components for each row of each layer, from the queries of its prompt.

    Args:
        settings: of each layer, or of all; `index_components` among them.
        n_last: queries of a prompt that count.
    """

    name = "sparq_ipu_test_ordered_oracle"

    def __init__(self, *settings: Any, n_last: int = 512):
        super().__init__(list(settings) if len(settings) == 3 else list(settings) * 3)
        self.n_last = n_last
        #: of layer and row: columns and their queries (n_heads, head_dim), until there is an order
        self.seen: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = {}
        self.orders: dict[tuple[int, int], np.ndarray] = {}

    def install(self, model: Any) -> OrderedOracle:
        super().install(model)
        own = transformers.AttentionInterface()[self.name]

        def attention(module, query, key, value, mask, **kwargs):
            if query.shape[2] > 1:
                self.see(module.layer_idx, query, mask)
            return own(module, query, key, value, mask, **kwargs)

        transformers.AttentionInterface.register(self.name, attention)
        return self

    def see(self, layer: int, query: Any, mask: Any) -> None:
        n_columns, n_tokens = mask.shape[3], query.shape[2]
        half = query.to(torch.float16).numpy()
        for b in range(len(query)):
            for token in range(n_tokens):
                column = n_columns - n_tokens + token
                if mask[b, 0, token, column] and (layer, b) not in self.orders:
                    self.seen.setdefault((layer, b), []).append((column, half[b, :, token]))

    def _row(self, layer: int, b: int, query: Any, key: Any, value: Any, mask: Any) -> np.ndarray:
        settings = self.settings[layer]
        real = mask[b, 0, 0].bool()
        q = query[b : b + 1, :, 0].to(torch.float16).numpy()
        k, v = key[b : b + 1, :, real].numpy(), value[b : b + 1, :, real].numpy()
        if settings and 0 < settings.get("index_components", 0) < 16:
            seen = [q for column, q in self.seen.pop((layer, b), []) if real[column]][-self.n_last :]
            if seen:
                last = np.stack(seen, axis=1)[None]
                self.orders[layer, b] = component_order.by_prompt(last, k[:, :, :-1])
            if (layer, b) in self.orders:
                q, k = (component_order.reorder(x, self.orders[layer, b]) for x in (q, k))
        if settings is None:
            return exact.dense_attention(q, k, v)[0]
        return exact.sparq_attention(q, k, v, **settings)[0]


class NoOrder(OrderedOracle):
    """The same index, of the first components of the model."""

    def see(self, *_: Any) -> None:
        pass


def twin(oracle: OrderedOracle) -> Any:
    model = tiny_model()
    oracle.install(model)
    return model


def ragged() -> tuple[Any, Any]:
    return left_padded([tokens_of(126), tokens_of(61, seed=1), tokens_of(9, seed=2)])


def orders_of(cache: Any) -> list[Any]:
    return [layer.order.order for layer in cache.layers]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("index_bits", [16, 8, 4, 2])
def test_padded_batch_equals_the_oracle(model, device, lean, index_bits):
    """Rows of different lengths, each with orders of its own."""
    tokens, mask = ragged()
    settings = dict(EIGHT_OF_16, index_bits=index_bits)
    enable(model, device=device, lean=lean, **settings)
    cache = SparqCache(model, device=device)
    got = step_logits(model, tokens, 6, mask, cache)
    oracle = OrderedOracle(settings)
    assert torch.equal(got, step_logits(twin(oracle), tokens, 6, mask))
    for layer, order in enumerate(orders_of(cache)):
        assert order.shape == (3, 2, 16) and order.dtype == np.int32
        for row in range(3):
            np.testing.assert_array_equal(order[row], oracle.orders[layer, row][0])
    assert len(np.unique(np.concatenate(orders_of(cache)).reshape(-1, 16), axis=0)) == 3 * 3 * 2
    for other in (NoOrder(settings), OrderedOracle(dict(settings, index_components=0))):  # negative controls
        assert not torch.equal(got, step_logits(twin(other), tokens, 6, mask))


@pytest.mark.parametrize("n_last", [20, 90])
@pytest.mark.parametrize("pieces", [(136,), (60, 60, 16), (100, 36)])
def test_the_last_tokens_of_a_prompt_in_pieces(model, monkeypatch, n_last, pieces):
    """As many queries count, whatever the pieces."""
    monkeypatch.setattr("sparq_ipu.transformers.cache.component_order.LAST_TOKENS", n_last)
    tokens, mask = left_padded([tokens_of(136), tokens_of(78, seed=1), tokens_of(46, seed=2)])
    mask[1, 90:125] = 0  # a hole
    enable(model, **EIGHT_OF_16)
    oracle, logits = OrderedOracle(EIGHT_OF_16, n_last=n_last), []
    for used in (model, twin(oracle)):
        logits.append(in_pieces(used, tokens, mask, pieces))
    assert torch.equal(*logits)
    assert len(oracle.orders) == 9


def in_pieces(used: Any, tokens: Any, mask: Any, pieces: Any) -> Any:
    """The logits of a token behind a prompt."""
    tokens = torch.cat([tokens, tokens_of(1, seed=4).expand(len(tokens), 1)], dim=1)
    mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache, start = None, 0
    for n in (*pieces, 1):
        piece, start = slice(start, start + n), start + n
        given = dict(attention_mask=mask[:, :start], position_ids=positions[:, piece], use_cache=True)
        with torch.no_grad():
            output = used(tokens[:, piece], **given, **with_cache(cache))
        cache = cache_of(output)
    return output.logits[:, -1]


def test_a_piece_of_one_token_is_decoded_and_ends_the_prompt(model):
    enable(model, **EIGHT_OF_16)
    tokens, logits = tokens_of(60, batch=2), []
    for used in (model, twin(OrderedOracle(EIGHT_OF_16))):
        logits.append(in_pieces(used, tokens, torch.ones_like(tokens), (7, 1, 52)))
    assert torch.equal(*logits)
    assert not torch.equal(logits[0], in_pieces(model, tokens, torch.ones_like(tokens), (60,)))


def test_another_turn(model):
    """Tokens that come after decoding, many at once and one by one, and keys that are read back."""
    tokens, mask = ragged()
    enable(model, **EIGHT_OF_16)
    logits, caches = [], []
    for used in (model, twin(OrderedOracle(EIGHT_OF_16))):
        shown, new, cache, following = mask, tokens, None, tokens_of(60, seed=5, batch=3)
        for n in (1, 1, 40, 1, 3, 1, 1, 0):
            positions = (shown.cumsum(-1) - 1).clamp(min=0)[:, -new.shape[1] :]
            with torch.no_grad():
                given = dict(attention_mask=shown, position_ids=positions, use_cache=True)
                output = used(new, **given, **with_cache(cache))
            logits.append(output.logits[:, -1])
            cache = cache_of(output)
            new, following = following[:, :n], following.roll(-n, 1)
            shown = torch.cat([shown, torch.ones(3, n, dtype=mask.dtype)], dim=1)
        caches.append(cache)
    for ours, theirs in zip(logits[:8], logits[8:]):
        assert torch.equal(ours, theirs)
    for layer, other in zip(caches[0].layers, caches[1].layers):
        real = layer.real[:, None, :, None]
        assert torch.equal(layer.keys, torch.where(real, other.keys.half(), 0))
        assert torch.equal(layer.values, torch.where(real, other.values.half(), 0))
        assert not np.array_equal(layer.keys.numpy(), layer._held_by_column()[0].numpy())


def test_a_prompt_of_one_token_has_no_order(model):
    enable(model, **EIGHT_OF_16)
    cache = SparqCache(model)
    got = step_logits(model, tokens_of(1), 40, cache=cache)
    assert orders_of(cache) == [None] * 3
    assert torch.equal(got, step_logits(twin(OrderedOracle(EIGHT_OF_16)), tokens_of(1), 40))


@pytest.mark.parametrize("settings", [FOUR, dict(FOUR, index_bits=2), dict(FOUR, rank=16)])
def test_an_index_of_all_components_is_as_without(model, settings):
    tokens, mask = ragged()
    enable(model, **settings)
    expected = step_logits(model, tokens, 4, mask)
    enable(model, index_components=16, **settings)
    cache = SparqCache(model)
    assert torch.equal(step_logits(model, tokens, 4, mask, cache), expected)
    assert orders_of(cache) == [None] * 3 and cache.layers[0].cache.index_components == 16


def test_by_layer(model):
    tokens, cache = tokens_of(130), SparqCache(model)
    enable(model, layers={0: None, 1: {"index_components": 0, "index_bits": 8}}, **EIGHT_OF_16)
    got = step_logits(model, tokens, 4, cache=cache)
    assert [layer.cache.index_components for layer in cache.layers] == [0, 0, 8]
    assert [order is None for order in orders_of(cache)] == [True, True, False]
    oracle = OrderedOracle(None, dict(FOUR, index_bits=8), EIGHT_OF_16)
    assert torch.equal(got, step_logits(twin(oracle), tokens, 4))
    enable(model, layers={0: None}, **EIGHT_OF_16)
    shown = "sparq_attention: index_components must be that of the cache, 0 in layer 1, got 8"
    enable(model, layers={0: None, 1: {"index_bits": 8}}, **EIGHT_OF_16)
    with pytest.raises(ValueError, match="^" + re.escape(shown) + "$"):
        step_logits(model, tokens, 1, cache=cache)


def test_generate_with_beams_equals_the_oracle(model):
    tokens, mask = left_padded([tokens_of(70), tokens_of(52, seed=1)])
    beams = dict(num_beams=4, num_return_sequences=2, max_new_tokens=16, do_sample=False)

    def run(used: Any) -> Any:
        return used.generate(tokens, attention_mask=mask, **beams)

    enable(model, **EIGHT_OF_16)
    got = run(model)
    assert torch.equal(got, run(twin(OrderedOracle(EIGHT_OF_16))))
    assert not torch.equal(got, run(twin(NoOrder(EIGHT_OF_16))))


@pytest.mark.parametrize("n_steps", [0, 2])
@pytest.mark.parametrize("device", [*DEVICES])
def test_rows_that_move_take_their_order_along(model, n_steps, device):
    """Before there is one, and after: it is then of the queries of that row."""
    tokens, mask = left_padded([tokens_of(70), tokens_of(52, seed=1), tokens_of(90, seed=2)])
    enable(model, **EIGHT_OF_16)
    model.double()  # so that products of few rows are those of many
    cache = SparqCache(model, device=device)

    def forward(cache: Any, new: Any, rows: Any) -> Any:
        held, n = cache.get_seq_length(), new.shape[1]
        shown = torch.cat([mask[rows], torch.ones(len(rows), held + n - mask.shape[1]).long()], dim=1)
        if not held:
            shown = mask[rows]
        positions = (shown.cumsum(-1) - 1).clamp(min=0)[:, -n:]
        with torch.no_grad():
            return model(new, attention_mask=shown, position_ids=positions, **with_cache(cache)).logits

    def step(cache: Any, rows: Any) -> Any:
        return forward(cache, tokens_of(1, seed=9, batch=1).expand(len(rows), 1), rows)

    forward(cache, tokens, [0, 1, 2])
    for _ in range(n_steps):
        step(cache, [0, 1, 2])
    whole = copy.deepcopy(cache)
    expected, again = step(whole, [0, 1, 2]), step(whole, [0, 1, 2])
    orders = orders_of(whole)

    def check(cache: Any, rows: list[int]) -> None:
        for logits in (expected, again):
            torch.testing.assert_close(step(cache, rows), logits[rows], rtol=1e-9, atol=1e-9)
        for order, of_whole in zip(orders_of(cache), orders):
            np.testing.assert_array_equal(order, of_whole[rows])

    cache.reorder_cache(torch.tensor([2, 0, 1]))
    check(copy.deepcopy(cache), [2, 0, 1])
    cache.batch_select_indices(torch.tensor([2, 0]))
    check(copy.deepcopy(cache), [1, 2])
    cache.batch_repeat_interleave(2)
    check(cache, [1, 1, 2, 2])
    cache.reset()
    with torch.no_grad():  # another prompt, another order
        model(tokens_of(30, seed=5), **with_cache(cache))
        assert orders_of(cache) == [None] * 3
        model(tokens_of(1), **with_cache(cache))
    assert not np.array_equal(orders_of(cache)[0], orders[0][:1])


def test_tokens_that_are_taken_back(model):
    """Before there is an order, they have no part in it; afterwards it stays as long as a token does."""
    model.double()
    enable(model, tokens_per_step=8, **EIGHT_OF_16)
    tokens, text = tokens_of(90), tokens_of(8, seed=3)

    def forward(cache: Any, new: Any) -> Any:
        with torch.no_grad():
            return model(new, **with_cache(cache)).logits

    cropped, short = SparqCache(model), SparqCache(model)
    forward(cropped, tokens)
    cropped.crop(-30)
    forward(short, tokens[:, :60])
    torch.testing.assert_close(forward(cropped, text), forward(short, text), rtol=1e-9, atol=1e-9)
    orders = orders_of(short)
    for order, other in zip(orders_of(cropped), orders):
        np.testing.assert_array_equal(order, other)
    cropped.crop(-3)
    short.crop(65)
    assert torch.equal(forward(cropped, text[:, :1]), forward(short, text[:, :1]))
    assert all(np.array_equal(a, b) for a, b in zip(orders_of(cropped), orders))
    short.crop(-66)
    assert orders_of(short) == [None] * 3
    forward(short, tokens[:, 30:])
    forward(short, text[:, :1])
    assert not np.array_equal(orders_of(short)[1], orders[1])


@pytest.mark.parametrize("device", DEVICES)
def test_several_tokens_are_as_one_after_another(model, device):
    model.double()
    prompt, text, logits = tokens_of(60, batch=2), tokens_of(9, seed=3, batch=2), []
    enable(model, device=device, tokens_per_step=9, **EIGHT_OF_16)
    for at_once in (1, 9, 4):
        cache = SparqCache(model, device=device)
        with torch.no_grad():
            model(prompt, **with_cache(cache))
            parts = [model(part, **with_cache(cache)).logits for part in text.split(at_once, dim=1)]
        logits.append(torch.cat(parts, dim=1))
        assert all(order is not None for order in orders_of(cache))
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-9, atol=1e-9)


def test_tokens_that_a_mask_hides_have_no_part_in_it(model):
    enable(model, **EIGHT_OF_16)
    tokens, logits = tokens_of(140), []
    for used in (model, twin(OrderedOracle(EIGHT_OF_16))):
        with torch.no_grad():
            cache = cache_of(used(tokens, use_cache=True))
            mask = torch.ones(1, 140, dtype=torch.int64)
            mask[0, 100:130] = 0
            for n_tokens in (1, 1, 3, 1):
                if mask.shape[1] == 142:
                    mask[0, 20:30] = 0  # keys are in order by now
                positions = torch.arange(mask.shape[1], mask.shape[1] + n_tokens)[None]
                mask = torch.cat([mask, torch.ones(1, n_tokens, dtype=torch.int64)], dim=1)
                options = dict(attention_mask=mask, position_ids=positions, **with_cache(cache))
                logits.append(used(tokens[:, :n_tokens], **options).logits)
    for ours, theirs in zip(logits[:4], logits[4:]):
        assert torch.equal(ours, theirs)


def test_a_cache_that_grows_keeps_it(model, monkeypatch):
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage._MOVED", 37)
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage.FIRST_ROOM", 3)
    tokens, mask = ragged()
    enable(model, **EIGHT_OF_16)
    cache = SparqCache(model)
    got = step_logits(model, tokens, 6, mask, cache)
    assert cache.layers[0].cache.capacity == 2 * (126 + 3)
    assert torch.equal(got, step_logits(twin(OrderedOracle(EIGHT_OF_16)), tokens, 6, mask))


def test_a_cache_of_its_own(model):
    """Where the model says nothing, the cache decides; one that a dense run filled has its queries too."""
    tokens, logits = tokens_of(130), []
    enable_dense(model)
    cache = SparqCache(model, index_bits=4, index_components=8)
    oracle = twin(OrderedOracle(EIGHT_OF_16))
    with torch.no_grad():
        model(tokens, **with_cache(cache))
        enable(model, **FOUR)
        for used, held in ((model, cache), (oracle, cache_of(oracle(tokens, use_cache=True)))):
            logits.append(used(tokens_of(1), **with_cache(held)).logits)
    assert torch.equal(*logits)


def test_window_attention_does_not_look_at_it(model):
    """Nor forgets what it remembers when keys are put in order."""
    said = []
    for options in ({}, dict(index_components=8, index_bits=4)):
        enable_window(model, top_k=8, n_local=2, n_recent=4, **options)
        cache = SparqCache(model, **options)
        said.append(step_logits(model, tokens_of(60), 6, cache=cache))
        history = cache.layers[0].cache.one_layer("test").history()
        assert [len(steps) for steps in history.steps] == [4]
    torch.testing.assert_close(said[1], said[0], rtol=1e-3, atol=1e-3)


def test_layers_that_see_a_window():
    """Tokens behind it attend densely, to keys in the model's order."""
    tokens, said = tokens_of(70), []
    for components in (0, 8):
        model = tiny_model("Mistral", sliding_window=40)
        enable(model, **dict(FOUR, index_components=components))
        said.append(step_logits(model, tokens, 4))
    assert torch.equal(*said)  # all steps are behind it


def test_lossless(model):
    """Drafts are checked by dense attention, whose products are added up in another order."""
    model.double()
    enable_dense(model)
    tokens = tokens_of(60)
    expected = greedy(model, tokens, 12)[0].tolist()
    enable(model, tokens_per_step=5, **EIGHT_OF_16)
    run = generate_lossless(model, tokens, 12, stop=())
    assert run.tokens == expected and run.n_drafted > run.n_accepted > 0


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(index_components=12), "enable: index_components must be a multiple of 8, got 12"),
        (dict(index_components=24), "enable: index_components must be in [0, head_dim=16], got 24"),
        (dict(index_components=-8), "enable: index_components must be in [0, head_dim=16], got -8"),
        (
            dict(index_components=8.0),
            "enable: index_components must be an integer in [0, head_dim=16], got 8.0",
        ),
        (dict(index_components=8, rank=9), "enable: rank must be in [1, index_components=8], got 9"),
        (
            dict(index_components=8, index_bits=4, index_read_bits=9),
            "enable: index_components must be in [0, 0] with index_read_bits, got 8",
        ),
        (
            dict(layers={1: {"index_components": 7}}),
            "enable: layers[1]: index_components must be a multiple of 8, got 7",
        ),
    ],
)
def test_what_is_refused(model, options, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        enable(model, **{"rank": 4, "top_k": 12, **options})


def test_the_rank_is_at_most_as_many(model):
    """What is recommended would be more."""
    import sparq_ipu.transformers
    from sparq_ipu.transformers.integration import decoding

    wide = tiny_model(head_dim=64, hidden_size=384)
    sparq_ipu.transformers.enable(wide, index_components=24)
    assert [layer.rank for layer in decoding("test", wide).settings] == [24] * 3
    sparq_ipu.transformers.enable(wide, index_components=40)
    assert [layer.rank for layer in decoding("test", wide).settings] == [32] * 3


def test_a_file_of_settings_has_it(model, tmp_path):
    layers = [LayerSettings(4, 12, index_components=8), None, LayerSettings(4, 12)]
    write_settings(tmp_path / "file", layers, {})
    read = read_settings("test", tmp_path / "file")
    assert {read["index_components"], read["layers"][2]["index_components"]} == {8, None}
    enable(model, settings=tmp_path / "file")
    cache = SparqCache(model)
    step_logits(model, tokens_of(20), 1, cache=cache)
    assert [layer.cache.index_components for layer in cache.layers] == [8, 0, 0]
