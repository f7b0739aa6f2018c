# SPDX-License-Identifier: Apache-2.0
"""Decoding with `sparq_ipu.transformers`: against an oracle over the ordinary cache, and the laws that must
hold."""

from __future__ import annotations

import copy
import functools
import pickle
import types

import pytest
from tiny_models import (
    Oracle,
    enable,
    greedy,
    left_padded,
    step_logits,
    tiny_config,
    tiny_model,
    tokens_of,
    torch,
    transformers,
)

import sparq_ipu
from sparq_ipu import devices
from sparq_ipu.transformers import (
    SparqCache,
    disable,
    enable_dense,
    is_enabled,
)
from sparq_ipu.transformers.cache.attend import half_of

SETTINGS = dict(rank=4, top_k=12, n_local=3, mean_value=True)


@pytest.mark.parametrize("device", [d for d in sparq_ipu.available_devices() if d in ("cpu", "reference")])
@pytest.mark.parametrize("mean_value", [True, False])
def test_padded_batch_equals_the_oracle_bit_for_bit(model, device, mean_value):
    tokens, mask = left_padded([tokens_of(40), tokens_of(23, seed=1), tokens_of(9, seed=2)])
    settings = dict(SETTINGS, mean_value=mean_value)
    enable(model, device=device, **settings)
    got = step_logits(model, tokens, 6, mask)
    disable(model)
    oracle = Oracle([settings] * 3).install(copy.deepcopy(model))
    assert torch.equal(got, step_logits(oracle, tokens, 6, mask))
    # negative control: an oracle with one component more must not agree
    Oracle([dict(settings, rank=5)] * 3).install(oracle)
    assert not torch.equal(got, step_logits(oracle, tokens, 6, mask))


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Olmo2"])
def test_every_family_equals_the_oracle(kind):
    changes = {"Mistral": {"sliding_window": None}}.get(kind, {})
    model, oracle = tiny_model(kind, **changes), tiny_model(kind, **changes)
    tokens = tokens_of(30, batch=2)
    enable(model, **SETTINGS)
    Oracle([SETTINGS] * 3).install(oracle)
    assert torch.equal(step_logits(model, tokens, 4), step_logits(oracle, tokens, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_equal_the_oracle(dtype):
    model, oracle = tiny_model().to(dtype), Oracle([SETTINGS] * 3).install(tiny_model().to(dtype))
    enable(model, **SETTINGS)
    assert torch.equal(step_logits(model, tokens_of(30), 4), step_logits(oracle, tokens_of(30), 4))


@pytest.mark.parametrize("rank", [1, 16])
def test_top_k_of_the_whole_length_is_dense(model, rank):
    tokens, mask = left_padded([tokens_of(40), tokens_of(23, seed=1)])
    enable_dense(model)
    dense = step_logits(model, tokens, 8, mask)
    dense_tokens = greedy(model, tokens, 20, attention_mask=mask)
    enable(model, rank=rank, top_k=60)
    assert torch.equal(step_logits(model, tokens, 8, mask), dense)
    assert torch.equal(greedy(model, tokens, 20, attention_mask=mask), dense_tokens)
    # negative control: one position fewer than the longest row
    enable(model, rank=rank, top_k=40)
    assert not torch.equal(step_logits(model, tokens, 8, mask), dense)


def test_dense_through_the_cache_is_close_to_the_model_itself(model):
    tokens = tokens_of(40, batch=2)
    own = step_logits(model, tokens, 8)
    enable_dense(model)
    through = step_logits(model, tokens, 8)
    # float16 cache, query and output: relative error 2^-11 each, through three layers of random weights
    assert (own - through).abs().max() < 0.03 * own.abs().max()
    assert not torch.equal(own, through)


def test_right_padding_and_padding_between_turns(model):
    oracle = Oracle([SETTINGS] * 3).install(tiny_model())
    enable(model, **SETTINGS)
    tokens = tokens_of(30, batch=2)
    mask = torch.ones_like(tokens)
    mask[0, 25:] = 0
    mask[1, 10:14] = 0
    assert torch.equal(step_logits(model, tokens, 4, mask), step_logits(oracle, tokens, 4, mask))


def test_below_min_seq_len_is_dense_bit_for_bit(model):
    tokens, mask = left_padded([tokens_of(40), tokens_of(20, seed=1)])
    enable_dense(model)
    dense = step_logits(model, tokens, 6, mask)
    enable(model, min_seq_len=47, **SETTINGS)
    assert torch.equal(step_logits(model, tokens, 6, mask), dense)
    # the first row reaches 44 positions in step 4, the second never does
    enable(model, min_seq_len=44, **SETTINGS)
    mixed = step_logits(model, tokens, 6, mask)
    assert torch.equal(mixed[:3], dense[:3])
    assert torch.equal(mixed[:, 1], dense[:, 1])
    assert not torch.equal(mixed[3, 0], dense[3, 0])
    disable(model)
    Oracle([SETTINGS] * 3, min_seq_len=44).install(model)
    assert torch.equal(mixed, step_logits(model, tokens, 6, mask))


def test_stop_strings_end_a_text(model):
    """transformers hands the tokenizer on to attention."""
    enable(model, **SETTINGS)
    tokenizers = pytest.importorskip("tokenizers")
    letters = tokenizers.models.BPE({chr(97 + index): index for index in range(101)}, [])
    words = tokenizers.Tokenizer(letters)
    words.decoder = tokenizers.decoders.Fuse()
    tokenizer, prompt = transformers.PreTrainedTokenizerFast(tokenizer_object=words), tokens_of(20)
    said = greedy(model, prompt, 6)[0]
    stop = tokenizer.decode(said[2:3])
    n_until = 1 + [tokenizer.decode(token) for token in said].index(stop)
    stopped = greedy(model, prompt, 6, stop_strings=[stop], tokenizer=tokenizer)
    assert stopped[0].tolist() == said[:n_until].tolist()


def test_disable_twice(model):
    own = step_logits(model, tokens_of(40), 2)
    enable(model, **SETTINGS)
    for _ in range(2):
        disable(model)
        assert not is_enabled(model) and torch.equal(step_logits(model, tokens_of(40), 2), own)
        assert model.config._attn_implementation == "sdpa"


def test_settings_by_layer(model):
    tokens = tokens_of(40)
    enable(model, layers={0: None, 1: {"mean_value": False, "rank": 2}}, **SETTINGS)
    got = step_logits(model, tokens, 4)
    enable(model, **SETTINGS)
    assert not torch.equal(got, step_logits(model, tokens, 4))
    disable(model)
    Oracle([None, dict(SETTINGS, mean_value=False, rank=2), SETTINGS]).install(model)
    assert torch.equal(got, step_logits(model, tokens, 4))


@pytest.mark.parametrize("how", ["beams", "beams of 4 bits", "sampling", "several sequences"])
def test_generate_equals_the_oracle(model, how):
    settings, n = (dict(SETTINGS, index_bits=4), 70) if "bits" in how else (SETTINGS, 30)
    beams = dict(num_beams=4, num_return_sequences=2, do_sample=False)
    options = {
        "beams": beams,
        "beams of 4 bits": beams,
        "sampling": dict(do_sample=True, temperature=1.5),
        "several sequences": dict(do_sample=True, num_return_sequences=3),
    }[how]
    tokens, mask = left_padded([tokens_of(n), tokens_of(n - 18, seed=1)])

    def run(used):
        torch.manual_seed(5)
        return used.generate(tokens, attention_mask=mask, max_new_tokens=12, **options)

    plain = run(model)
    oracle = Oracle([settings] * 3).install(copy.deepcopy(model))
    enable(model, **settings)
    assert torch.equal(run(model), run(oracle))
    assert not torch.equal(run(model), plain)


def test_cache_is_reused_over_turns(model):
    first, second = tokens_of(30), tokens_of(11, seed=3)

    def chat(used, cache):
        replies = []
        text = first
        for _ in range(2):
            mask = torch.ones_like(text)
            text = used.generate(text, attention_mask=mask, cache=cache, max_new_tokens=8, do_sample=False)
            replies.append(text[0, -8:].tolist())
            assert cache.get_seq_length() == text.shape[1] - 1
            text = torch.cat([text, second], dim=1)
        return replies

    oracle = Oracle([SETTINGS] * 3).install(copy.deepcopy(model))
    expected = chat(oracle, transformers.DynamicCache())
    enable(model, **SETTINGS)
    assert chat(model, transformers.DynamicCache()) == expected
    assert chat(model, SparqCache(model)) == expected
    cache = SparqCache(model.config, capacity=64)
    assert chat(model, cache) == expected
    cache.reset()
    assert cache.get_seq_length() == 0
    assert chat(model, cache) == expected


def test_prefill_in_chunks(model):
    tokens, mask = left_padded([tokens_of(40), tokens_of(23, seed=1)])
    enable(model, **SETTINGS)
    whole = step_logits(model, tokens, 4, mask)
    cache = SparqCache(model)
    with torch.no_grad():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for start, stop in ((0, 13), (13, 29)):
            model(
                tokens[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=positions[:, start:stop],
                cache=cache,
            )
        model(tokens[:, 29:], attention_mask=mask, position_ids=positions[:, 29:], cache=cache)
        following = tokens_of(4, seed=77, batch=2)
        output = model(
            following[:, :1],
            attention_mask=torch.cat([mask, mask[:, -1:]], dim=1),
            position_ids=mask.sum(-1, keepdim=True),
            cache=cache,
        )
    # float32 sums in another order move keys across a float16 rounding now and then
    assert (output.logits[:, -1] - whole[0]).abs().max() < 0.01 * whole[0].abs().max()
    assert output.logits[:, -1].argmax(-1).tolist() == whole[0].argmax(-1).tolist()


@pytest.mark.parametrize("moved", [4096, 37])
def test_cache_grows(model, monkeypatch, moved):
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage._MOVED", moved)  # at once, or in pieces
    monkeypatch.setattr("sparq_ipu.transformers.cache.storage.FIRST_ROOM", 20)
    enable(model, **SETTINGS)
    fixed = SparqCache(model, capacity=640)
    growing = SparqCache(model)
    tokens, mask = left_padded([tokens_of(30), tokens_of(12, seed=1)])
    n = 60
    wanted = greedy(model, tokens, n, cache=fixed, attention_mask=mask).tolist()
    assert greedy(model, tokens, n, cache=growing, attention_mask=mask).tolist() == wanted
    for layer, other in zip(growing.layers, fixed.layers):
        assert layer.cache.capacity == 2 * (30 + 20)  # doubled once, not moved at every step
        assert layer.cache.lengths.tolist() == other.cache.lengths.tolist() == [89, 71]


@pytest.mark.parametrize("available, expected", [(True, "cpu"), (False, "reference")])
def test_auto_device_is_the_host(model, monkeypatch, available, expected):
    """Whatever else this machine has: an IPU would need a program per layer."""
    fresh = functools.lru_cache(maxsize=None)(devices.why_unavailable.__wrapped__)
    monkeypatch.setattr(devices, "why_unavailable", fresh)  # which devices there are is asked once
    plain = devices.backend_module
    kernels = types.SimpleNamespace(
        unavailable=lambda device: None if available else "not built",
        Options=plain("cpu").Options,
        create=plain("cpu").create,
    )
    monkeypatch.setattr(devices, "backend_module", lambda name: kernels if name == "cpu" else plain(name))
    enable(model, **SETTINGS)
    layer = SparqCache(model).layers[0]
    assert layer._options["device"] == expected


def test_copied_cache_continues_by_itself(model):
    enable(model, **SETTINGS)
    prompt, ends = tokens_of(30), [tokens_of(6, seed=4), tokens_of(6, seed=5)]
    shared = SparqCache(model)
    with torch.no_grad():
        model(prompt, cache=shared)
    for end in ends:
        text = torch.cat([prompt, end], dim=1)
        fresh = SparqCache(model)
        with torch.no_grad():
            model(prompt, cache=fresh)
        alone = greedy(model, text, 8, cache=fresh)
        assert greedy(model, text, 8, cache=copy.deepcopy(shared)).tolist() == alone.tolist()
    assert shared.get_seq_length() == 30


def test_rows_are_repeated_and_selected(model):
    enable(model, **SETTINGS)
    tokens, mask = left_padded([tokens_of(30), tokens_of(12, seed=1)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = SparqCache(model)

    def step(cache, rows):
        used = mask[rows]
        with torch.no_grad():
            return model(
                tokens_of(1, seed=9).expand(len(rows), 1),
                attention_mask=torch.cat([used, torch.ones_like(used[:, :1])], dim=1),
                position_ids=used.sum(-1, keepdim=True),
                cache=cache,
            ).logits

    with torch.no_grad():
        model(tokens, attention_mask=mask, position_ids=positions, cache=cache)
    expected = step(copy.deepcopy(cache), [0, 1])
    cache.batch_repeat_interleave(2)
    torch.testing.assert_close(step(copy.deepcopy(cache), [0, 0, 1, 1]), expected[[0, 0, 1, 1]])
    cache.batch_select_indices(torch.tensor([3, 0]))
    torch.testing.assert_close(step(cache, [1, 0]), expected[[1, 0]])


def test_reordered_cache_takes_a_prompt_and_a_token(model):
    enable(model, **SETTINGS)
    oracle = Oracle([SETTINGS] * 3).install(tiny_model())
    tokens, mask = left_padded([tokens_of(30), tokens_of(12, seed=1), tokens_of(21, seed=2)])
    order = torch.tensor([2, 0, 0])
    logits = []
    for used in (model, oracle):
        with torch.no_grad():
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            cache = used(tokens, attention_mask=mask, position_ids=positions, use_cache=True).cache
            cache.reorder_cache(order)
            grown = mask[order]
            for new in (tokens_of(5, seed=3, batch=3), tokens_of(1, seed=4, batch=3)):
                past = grown.sum(-1, keepdim=True)
                grown = torch.cat([grown, torch.ones_like(new)], dim=1)
                positions = past + torch.arange(new.shape[1])
                output = used(new, attention_mask=grown, position_ids=positions, cache=cache)
                logits.append(output.logits)
    assert torch.equal(logits[0], logits[2]) and torch.equal(logits[1], logits[3])


@pytest.mark.parametrize("n, index_bits", [(30, 16), (140, 4)])
def test_a_mask_that_hides_earlier_tokens_is_followed(model, n, index_bits):
    """Positions behind them move to other blocks of the key index."""
    settings = dict(SETTINGS, index_bits=index_bits)
    enable(model, **settings)
    oracle = Oracle([settings] * 3).install(tiny_model())
    tokens = tokens_of(n)
    logits = {}
    for used in (model, oracle):
        with torch.no_grad():
            cache = used(tokens, use_cache=True).cache
            mask = torch.ones(1, n, dtype=torch.int64)
            mask[0, 4:9] = 0
            for n_tokens in (1, 1, 3, 1):  # the others stay hidden, also where keys are read back
                positions = torch.arange(mask.shape[1], mask.shape[1] + n_tokens)[None]
                mask = torch.cat([mask, torch.ones(1, n_tokens, dtype=torch.int64)], dim=1)
                options = dict(attention_mask=mask, position_ids=positions, cache=cache)
                logits.setdefault(used, []).append(used(tokens[:, :n_tokens], **options).logits)
    for ours, theirs in zip(logits[model], logits[oracle]):
        assert torch.equal(ours, theirs)


def test_keys_and_values_are_read_back_by_column(model):
    """As `DynamicCache` has them, rounded to float16, and 0 where padding is."""
    tokens, mask = left_padded([tokens_of(30), tokens_of(12, seed=1)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    arguments = dict(attention_mask=mask, position_ids=positions, use_cache=True)
    with torch.no_grad():
        plain = model(tokens, **arguments).cache.layers[0]
        enable(model, **SETTINGS)
        layer = model(tokens, **arguments).cache.layers[0]
    real = mask.bool()[:, None, :, None]
    for got, expected in ((layer.keys, plain.keys), (layer.values, plain.values)):
        assert torch.equal(got, torch.where(real, expected.half(), torch.zeros((), dtype=torch.float16)))
    layer.reset()
    assert layer.keys is None and layer.values is None


def test_forward_without_a_cache_is_the_model_itself(model):
    tokens = tokens_of(20, batch=2)
    with torch.no_grad():
        own = model(tokens, use_cache=False).logits
        enable(model, **SETTINGS)
        assert torch.equal(model(tokens, use_cache=False).logits, own)


def test_base_model_alone_and_positional_arguments(model):
    enable(model, **SETTINGS)
    tokens = tokens_of(20)
    with torch.no_grad():
        output = model.model(tokens, torch.ones_like(tokens), None, None)
        assert output.cache.get_seq_length() == 20
        embedded = model.model(inputs_embeds=model.get_input_embeddings()(tokens))
    assert torch.equal(embedded.last_hidden_state, output.last_hidden_state)


def test_hidden_states_are_given(model):
    enable(model, **SETTINGS)
    tokens = tokens_of(20)
    output = model(tokens, output_hidden_states=True)
    step = model(tokens[:, :1], cache=output.cache, output_hidden_states=True)
    assert [len(output.hidden_states), len(step.hidden_states)] == [4, 4]
    assert torch.equal(output.logits, model(tokens).logits)
    assert torch.equal(model.lm_head(step.hidden_states[-1]), step.logits)


def test_compiled_model_decodes_the_same(model):
    """torch.compile leaves its graphs at the cache; the NumPy reference inside must not be traced."""
    enable(model, device="reference", **SETTINGS)
    tokens = tokens_of(20)
    expected = step_logits(model, tokens, 2)
    compiled = torch.compile(model, backend="eager")
    cache = SparqCache(model, device="reference")
    assert torch.equal(step_logits(compiled, tokens, 2, cache=cache), expected)


def test_disable_restores(model):
    tokens = tokens_of(30)
    before = model.generate(
        tokens, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    implementation = model.config._attn_implementation
    hooks = len(model.model._forward_hooks), len(model.model._forward_pre_hooks)
    assert not is_enabled(model)
    enable(model, **SETTINGS)
    enable(model, **dict(SETTINGS, rank=3))
    assert is_enabled(model)
    cache = SparqCache(model)
    greedy(model, tokens, 4, cache=cache)
    disable(model)
    assert not is_enabled(model)
    assert model.config._attn_implementation == implementation
    assert (len(model.model._forward_hooks), len(model.model._forward_pre_hooks)) == hooks
    after = model.generate(
        tokens, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    assert torch.equal(torch.stack(before.logits), torch.stack(after.logits))
    assert type(after.cache.layers[0]).__name__ == "DynamicLayer"
    message = r"SparqCache: the model must be enabled by sparq_ipu\.transformers\.enable"
    with pytest.raises(RuntimeError, match=message):
        model(tokens[:, :1], cache=cache)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_is_an_enabled_model_of_its_own(model, copied):
    tokens = tokens_of(30)
    plain = greedy(model, tokens, 8).tolist()
    enable_dense(model)
    dense = greedy(model, tokens, 8).tolist()
    enable(model, rank=1, top_k=2)
    sparq = greedy(model, tokens, 8).tolist()
    assert sparq != dense
    other = copied(model)
    assert is_enabled(other) and greedy(other, tokens, 8).tolist() == sparq
    enable_dense(other)
    assert greedy(other, tokens, 8).tolist() == dense and greedy(model, tokens, 8).tolist() == sparq
    disable(other)
    assert not is_enabled(other) and other.config._attn_implementation == "sdpa"
    assert greedy(other, tokens, 8).tolist() == plain
    assert is_enabled(model) and greedy(model, tokens, 8).tolist() == sparq
    third = copied(model)
    disable(model)
    assert greedy(model, tokens, 8).tolist() == plain
    assert greedy(third, tokens, 8).tolist() == sparq
    disable(third)
    assert not third.model._forward_hooks and not third.model._forward_pre_hooks


@pytest.mark.parametrize("one, other", [("model", "whole"), ("whole", "model"), ("model", "model")])
def test_a_model_and_its_decoder_are_one(model, one, other):
    part = {"model": model.model, "whole": model}
    tokens = tokens_of(30)
    plain = greedy(model, tokens, 8).tolist()
    enable_dense(model)
    dense = greedy(model, tokens, 8).tolist()
    enable(model, rank=1, top_k=2)
    enable_dense(part[one])
    assert is_enabled(model) and is_enabled(model.model)
    assert greedy(model, tokens, 8).tolist() == dense
    disable(part[other])
    assert not is_enabled(model) and not is_enabled(model.model)
    assert model.config._attn_implementation == "sdpa" and greedy(model, tokens, 8).tolist() == plain


def test_two_models_of_one_config():
    """What is enabled in one, or enabled no more, is not in the other."""
    config, tokens = tiny_config(), tokens_of(30)
    one, other = (transformers.LlamaForCausalLM(config).eval().requires_grad_(False) for _ in range(2))
    other.load_state_dict(tiny_model().state_dict())
    one.load_state_dict(tiny_model(seed=1).state_dict())
    config._attn_implementation = "sdpa"
    plain = [greedy(model, tokens, 8).tolist() for model in (one, other)]
    padded, mask = left_padded([tokens_of(30), tokens_of(9, seed=2)])
    ragged = step_logits(other, padded, 3, mask)
    enable(one, **SETTINGS)
    sparq = greedy(one, tokens, 8).tolist()
    assert sparq != plain[0] and greedy(other, tokens, 8).tolist() == plain[1]
    assert torch.equal(step_logits(other, padded, 3, mask), ragged)  # its mask too
    assert not is_enabled(other) and config._attn_implementation == "sdpa"
    enable(other, **SETTINGS)
    both = greedy(other, tokens, 8).tolist()
    disable(one)
    assert greedy(one, tokens, 8).tolist() == plain[0]
    assert both != plain[1] and greedy(other, tokens, 8).tolist() == both
    disable(other)
    assert greedy(other, tokens, 8).tolist() == plain[1]


def test_a_model_has_one_config(model):
    """Of its own, and in all its parts, as before."""
    theirs = model.config
    enable(model, **SETTINGS)
    assert model.config is not theirs and theirs._attn_implementation == "sdpa"
    assert {id(m.config) for m in model.modules() if hasattr(m, "config")} == {id(model.config)}


def test_two_models_do_not_mix(model):
    other = tiny_model(seed=1)
    plain = greedy(other, tokens_of(30), 8)
    enable(model, **SETTINGS)
    alone = greedy(model, tokens_of(30), 8)
    assert greedy(other, tokens_of(30), 8).tolist() == plain.tolist()
    enable_dense(other)
    greedy(other, tokens_of(30), 8)
    assert greedy(model, tokens_of(30), 8).tolist() == alone.tolist()


def test_the_output_layer_gets_the_last_token_with_usual_strides(model):
    """PyTorch multiplies a row with the strides of the whole prompt 40 times as slowly in bfloat16."""
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, args, __: seen.append(args[0].stride()))
    for _ in range(2):
        with torch.no_grad():
            model(tokens_of(30), logits_to_keep=1)
        enable(model, **SETTINGS)
    handle.remove()
    width = model.config.hidden_size
    assert seen == [(30 * width, width, 1), (width, width, 1)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("off", "changes"), [(0.0, False), (5e-7, False), (2e-6, True), (1e-3, True)])
def test_a_factor_of_nearly_one_changes_no_bit(off: float, changes: bool, sign: int) -> None:
    """The factor of scores is left out where it is 1 but for rounding."""
    between = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11])  # ties: the least factor moves one of the two
    scaled = half_of(between, 1 + sign * off)
    assert (scaled.tolist() != [1.0, 1 + 2**-9]) == changes
