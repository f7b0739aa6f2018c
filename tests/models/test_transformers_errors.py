# SPDX-License-Identifier: Apache-2.0
"""What `sparq_ipu.transformers` refuses, with which words, and that nothing has changed afterwards."""

from __future__ import annotations

import re

import pytest
from calls import refusal
from tiny_models import enable, greedy, tiny_config, tiny_model, tokens_of, torch, transformers

import sparq_ipu
from sparq_ipu import KVCache
from sparq_ipu.transformers import (
    SparqCache,
    disable,
    enable_dense,
    is_enabled,
)
from sparq_reference import NotFinite

SETTINGS = dict(rank=4, top_k=12)


@pytest.fixture
def enabled(model):
    enable(model, **SETTINGS)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(rank=0), "enable: rank must be in [1, head_dim=16], got 0"),
        (dict(min_seq_len=-1), "enable: min_seq_len must be in [0, 16777216], got -1"),
        (dict(min_seq_len=2.0), "enable: min_seq_len must be an integer in [0, 16777216], got 2.0"),
        (dict(layers={3: None}), "enable: layers must be in [0, n_layers=3), got 3"),
        (
            dict(layers={0: "dense"}),
            "enable: layers[0] must be None (dense) or a mapping of settings, got 'dense'",
        ),
        (
            dict(layers={1: {"topk": 3}}),
            "enable: layers[1]: settings must be among rank, top_k, n_local, mean_value, min_seq_len, "
            "index_bits, got 'topk'",
        ),
        (dict(index_bits=5), "enable: index_bits must be one of 16, 8, 4, 2, got 5"),
        (
            dict(layers={1: {"index_bits": 3}}),
            "enable: layers[1]: index_bits must be one of 16, 8, 4, 2, got 3",
        ),
        (dict(layers={1: {"rank": 0}}), "enable: layers[1]: rank must be in [1, head_dim=16], got 0"),
        (dict(capacity=0), "enable: capacity must be in [1, 16777216], got 0"),
        (dict(layers=[0]), "enable: layers must be a mapping of layers to None (dense) or settings, got [0]"),
        (
            dict(layers="0:dense"),
            "enable: layers must be a mapping of layers to None (dense) or settings, got",
        ),
        (dict(device="gpu"), "enable: device must be one of "),
        (dict(index_components=8), "enable: index_components must be left out: layers of a model do not "),
        (
            dict(device="reference", min_seqlen=12),
            "enable: options must be among ['rank', 'top_k', 'n_local', 'mean_value', 'min_seq_len', "
            "'index_bits', 'layers', 'published', 'row_bits', "
            "'device', 'capacity', 'check_finite'], got 'min_seqlen'",
        ),
        (dict(topk=12), "enable: options must be among ['rank', "),
        (
            dict(device="reference", n_threads=2),
            "enable: n_threads must be left out on device 'reference': it is for 'cpu', got 2",
        ),
        (dict(check_finite="no"), "KVCache: check_finite must be True or False, got 'no'"),
    ],
)
def test_settings(model, changes, message):
    assert refusal(enable, model, **{**SETTINGS, **changes}).startswith(message)
    assert not is_enabled(model) and model.config._attn_implementation == "sdpa"


needs_cpu = pytest.mark.skipif("cpu" not in sparq_ipu.available_devices(), reason="no CPU kernels here")


@needs_cpu
@pytest.mark.parametrize(
    "options, message",
    [
        (dict(n_threads=0), "KVCache: n_threads must be in [1, 1024], got 0"),
        (dict(isa="foo"), "KVCache: isa must be one of ['auto', "),
        (dict(n_thread=2), "{op}: options must be among "),
    ],
)
def test_options_of_the_cache(model, enabled, options, message):
    """At once, not in the middle of a prompt; what was enabled stays so."""
    expected = greedy(model, tokens_of(20), 4).tolist()
    for op, refused in (
        ("enable", lambda: enable(model, device="cpu", rank=1, top_k=1, **options)),
        ("enable_dense", lambda: enable_dense(model, device="cpu", **options)),
        ("SparqCache", lambda: SparqCache(model, device="cpu", **options)),
    ):
        assert refusal(refused).startswith(message.format(op=op))
    assert is_enabled(model) and greedy(model, tokens_of(20), 4).tolist() == expected


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(capacity=-1), "SparqCache: capacity must be in [1, 16777216], got -1"),
        (
            dict(device="reference", foo=1),
            "SparqCache: options must be among ['index_bits', 'row_bits', 'device', 'capacity', "
            "'check_finite'], got 'foo'",
        ),
        (
            dict(device="reference", index_components=8),
            "SparqCache: index_components must be left out: layers of a model do not order the components "
            "of a head, got 8",
        ),
        (dict(index_bits=32), "KVCache: index_bits must be one of 16, 8, 4, 2, got 32"),
    ],
)
def test_arguments_of_a_cache(model, options, message):
    assert refusal(SparqCache, model, **options).startswith(message)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: torch.nn.Linear(2, 2), "model must be a transformers PreTrainedModel, got Linear"),
        (lambda: tiny_model("Gemma2"), "model must have no attn_logit_softcapping, got Gemma2ForCausalLM"),
        (
            lambda: tiny_model("Gemma2", layer_types=["full_attention"] * 3, sliding_window=None),
            "model must have no attn_logit_softcapping, got Gemma2ForCausalLM with 50.0",
        ),
        (
            lambda: tiny_model("Llama", layer_types=["full_attention"] * 2 + ["chunked_attention"]),
            "model must have layers of full_attention or sliding_attention alone, got LlamaForCausalLM with "
            "chunked_attention, full_attention",
        ),
        (
            lambda: tiny_model("Llama", layer_types=["full_attention"] * 2 + ["sliding_attention"]),
            "model must have a sliding_window, got LlamaForCausalLM with sliding_attention and none",
        ),
        (lambda: tiny_model("Mamba"), "model must have one attention per layer"),
        (lambda: tiny_model("Bloom"), "model must have one attention per layer"),
        (lambda: tiny_model("DeepseekV3", first_k_dense_replace=3), "model must have no kv_lora_rank"),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16, vocab_size=101)
            ).eval(),
            "model must be a decoder, got the encoder-decoder T5ForConditionalGeneration",
        ),
        (lambda: tiny_model(head_dim=12), "head_dim must be a multiple of 8, got 12"),
        (lambda: tiny_model().train(), "model must be in eval mode, got training mode"),
        (lambda: tiny_model().to("meta"), "model must be on the CPU, got meta"),
    ],
)
def test_models(make, message):
    model = make()
    for op, turn_on in (("enable", lambda m: enable(m, **SETTINGS)), ("enable_dense", enable_dense)):
        assert refusal(turn_on, model).startswith(f"{op}: {message}")


def test_attention_sinks():
    """They change the softmax."""
    changes = dict(num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 3)
    config = tiny_config("GptOss", **changes)
    config.sliding_window = None
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    message = "enable: model must have no attention sinks, got GptOssForCausalLM"
    assert refusal(enable, model, **SETTINGS).startswith(message)


def test_heads_of_several_sizes_are_refused_by_name():
    """Gemma 4: transformers has no one head_dim for it."""
    sizes = dict(global_head_dim=32, vocab_size_per_layer_input=101, hidden_size_per_layer_input=8)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("Gemma4Text", **sizes)).eval()
    assert refusal(enable, model).startswith("enable: model must have one head_dim in all layers, got Gemma4")


def test_training_mode(model, enabled):
    with pytest.raises(ValueError, match=r"^sparq_attention: model must be in eval mode, got training mode"):
        model.train()(tokens_of(10))


def test_output_attentions():
    model = tiny_model()
    enable(model, **SETTINGS)
    with pytest.raises(ValueError, match=r"^sparq_attention: output_attentions must be False, got True"):
        model(tokens_of(10), output_attentions=True)


@pytest.mark.parametrize("trained", ["", "q_proj", "k_proj", "v_proj", "norm"])
def test_gradients(model, trained):
    """They would be silently wrong: keys and values leave autograd at the cache. Without a cache they are
    right."""
    tokens = tokens_of(10)

    def gradients(**options):
        model.zero_grad()
        model(tokens, labels=tokens, **options).loss.backward()
        return [parameter.grad for parameter in parameters]

    parameters = [p for name, p in model.named_parameters() if trained in name and name.startswith("model.")]
    for parameter in parameters:
        parameter.requires_grad_(True)
    expected = gradients()
    enable(model, **SETTINGS)
    message = (
        "sparq_attention: model must be disabled, or called with use_cache=False, for gradients, "
        "got a backward pass through its float16 cache"
    )
    with pytest.raises(RuntimeError, match=r"^" + re.escape(message)):
        gradients()
    cache = model(tokens).cache  # forward passes alone are fine
    with pytest.raises(RuntimeError, match=r"^" + re.escape(message)):
        model(tokens_of(1), cache=cache).logits.sum().backward()
    for got, one in zip(gradients(use_cache=False), expected):
        assert torch.equal(got, one)
    disable(model)
    for got, one in zip(gradients(), expected):
        assert torch.equal(got, one)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(softcap=30.0), "softcap must not be set: it is not supported, got 30.0"),
        (dict(s_aux="sinks"), "s_aux must not be set: it is not supported, got 'sinks'"),
        (dict(sliding_window=64), "sliding_window must not be set: it is not supported, got 64"),
        (dict(dropout=0.1), "dropout must be 0, got 0.1"),
    ],
)
def test_arguments_of_attention(model, enabled, arguments, message):
    attention = transformers.AttentionInterface()[model.config._attn_implementation]
    query = torch.zeros(1, 6, 3, 16)
    with pytest.raises(ValueError, match=r"^" + re.escape(f"sparq_attention: {message}")):
        attention(model.model.layers[0].self_attn, query, query[:, :2], query[:, :2], None, **arguments)


def filled(cache, model):
    disable(model)
    with torch.no_grad():
        model(tokens_of(10), cache=cache)
    enable(model, **SETTINGS)
    return cache


@pytest.mark.parametrize(
    "make, got",
    [
        (
            lambda model: transformers.StaticCache(config=model.config, max_cache_len=64),
            "StaticCache of length 0",
        ),
        (lambda model: filled(transformers.DynamicCache(), model), "DynamicCache of length 10"),
        (lambda model: (torch.zeros(1, 2, 3, 16),) * 2, "tuple"),  # as before transformers had caches
    ],
)
def test_foreign_caches(model, enabled, make, got):
    message = (
        f"sparq_attention: cache must be a SparqCache, "
        f"an empty DynamicCache that offloads nothing, or None, got {got}"
    )
    assert refusal(model.base_model, tokens_of(3), cache=make(model)).startswith(message)


def test_keys_of_a_foreign_cache_in_the_attention_function(model, enabled):
    attention = transformers.AttentionInterface()[model.config._attn_implementation]
    query, key = torch.zeros(1, 6, 1, 16), torch.zeros(1, 2, 9, 16)
    message = "sparq_attention: cache must be a SparqCache, got keys of another"
    assert refusal(attention, model.model.layers[0].self_attn, query, key, key, None).startswith(message)


@pytest.mark.parametrize(
    "mask, got",
    [
        (torch.ones(1, 9), "(1, 9)"),
        (torch.ones(1, 1, 10, 10), "(1, 1, 10, 10)"),
        ({"full_attention": None}, "dict"),
    ],
)
def test_attention_masks(model, enabled, mask, got):
    message = f"sparq_attention: attention_mask must have shape (batch=1, n_tokens so far=10), got {got}"
    assert refusal(model, tokens_of(10), attention_mask=mask).startswith(message)


def test_a_padded_cache_needs_its_mask(model, enabled):
    mask = torch.ones(1, 10, dtype=torch.int64)
    mask[0, :3] = 0
    cache = model(tokens_of(10), attention_mask=mask).cache
    message = "attention_mask must repeat that of the tokens in the cache, got None"
    with pytest.raises(ValueError, match=message):
        model(tokens_of(1), cache=cache)


def test_a_hidden_token_stays_hidden(model, enabled):
    """Its keys and values are gone. The refusal changes nothing."""
    hidden, shown = torch.ones(1, 11, dtype=torch.int64), torch.ones(1, 11, dtype=torch.int64)
    hidden[0, 3:5] = 0

    def cache():
        return model(tokens_of(10), attention_mask=hidden[:, :10]).cache

    refused, other = cache(), cache()
    message = (
        "sparq_attention: attention_mask must keep hidden what it hid of the tokens in the cache, "
        "got 1 for token 3 of row 0"
    )
    with torch.no_grad():
        assert refusal(model, tokens_of(1), attention_mask=shown, cache=refused).startswith(message)
        a, b = (model(tokens_of(1), attention_mask=hidden, cache=c).logits for c in (refused, other))
    assert torch.equal(a, b)


def test_batch_of_another_size(model, enabled):
    cache = model(tokens_of(10)).cache
    with pytest.raises(ValueError, match=r"^sparq_attention: batch must be that of the cache, 1, got 2"):
        model(tokens_of(1, batch=2), cache=cache)


def test_row_without_a_token(model, enabled):
    mask = torch.tensor([[1], [0]])
    with pytest.raises(ValueError, match=r"must leave a real token in every row .*, got lengths \[1, 0\]"):
        model(tokens_of(1, batch=2), attention_mask=mask)


def test_capacity_leaves_the_cache_as_it_was(model, enabled):
    cache = SparqCache(model, capacity=12)
    expected = greedy(model, tokens_of(11), 2)
    with torch.no_grad():
        model(tokens_of(10), cache=cache)
    with pytest.raises(ValueError, match=r"^append: length must be at most capacity=12 ") as caught:
        model(tokens_of(3, seed=1), cache=cache)
    assert "float16" not in str(caught.value)
    assert cache.get_seq_length() == 10
    assert greedy(model, tokens_of(11), 2, cache=cache).tolist() == expected.tolist()


@pytest.mark.parametrize("padded", [False, True])
def test_capacity_refuses_a_prompt_before_anything_changes(model, enabled, padded):
    cache = SparqCache(model, capacity=12)
    mask = torch.ones(2, 14, dtype=torch.int64)
    mask[0, :3] = 1 - int(padded)
    with pytest.raises(ValueError, match=r"^append: length must be at most capacity=12 "):
        model(tokens_of(14, batch=2), attention_mask=mask, cache=cache)
    assert cache.get_seq_length() == 0
    expected = greedy(model, tokens_of(10), 3)
    assert greedy(model, tokens_of(10), 3, cache=cache).tolist() == expected.tolist()


def test_numbers_beyond_float16_in_the_first_layer(model, enabled):
    """No layer holds anything then: the cache can be used again, for another batch too."""
    cache = SparqCache(model)
    weight = model.model.layers[0].self_attn.v_proj.weight
    weight.mul_(1e6)
    message = r"^append: value must be finite, .*\(layer 0; the cache is float16\)"
    with pytest.raises(NotFinite, match=message):
        model(tokens_of(10, batch=2), cache=cache)
    weight.mul_(1e-6)
    expected = greedy(model, tokens_of(10), 3)
    assert greedy(model, tokens_of(10), 3, cache=cache).tolist() == expected.tolist()


def test_kinds_of_errors_are_not_told_by_their_text(model, enabled, monkeypatch):
    """Another error stays what it is, even in the same words."""
    refusal = ValueError("append: value must be finite, got a full moon")

    def refuse(*arguments):
        raise refusal

    monkeypatch.setattr(KVCache, "append", refuse)
    with pytest.raises(ValueError) as caught:
        model(tokens_of(10))
    assert caught.value is refusal


def test_cache_of_a_failed_pass(model, enabled):
    """Layer 0 has the token, layer 1 refused it: such a cache is of no use, and is not used."""
    cache = SparqCache(model)
    weight = model.model.layers[1].self_attn.v_proj.weight
    with torch.no_grad():
        model(tokens_of(10), cache=cache)
        weight.mul_(1e6)
        with pytest.raises(ValueError, match="finite"):
            model(tokens_of(1), cache=cache)
        weight.mul_(1e-6)
        message = "sparq_attention: cache must hold the same tokens in all 3 layers, got"
        assert refusal(model, tokens_of(1), cache=cache).startswith(message)


def test_a_layer_that_does_not_attend(model, enabled):
    """A model that keeps the cache but attends otherwise would decode nonsense: it is noticed in the same
    pass."""
    module = model.model.layers[1].self_attn

    def elsewhere(hidden_states, **given):
        given.get("cache").update(torch.zeros(1, 2, 10, 16), torch.zeros(1, 2, 10, 16), 1)
        return torch.zeros_like(hidden_states), None

    module.forward = elsewhere
    with pytest.raises(RuntimeError, match=r"must attend through its cache in every layer, not so in \[1\]"):
        model(tokens_of(10))


ONCE = (
    "sparq_attention: model must attend once in every layer, to the keys and values that its cache returned, "
)

OTHER_MASK = (
    "sparq_attention: attention_mask must show a token all real tokens before it, "
    "got one of the model that hides others"
)


class Attends:
    """Attention of a layer as most models have it, and other ways to use the same cache and interface."""

    def __init__(self, module):
        self.module = module
        self.how = "as it should"
        self.hidden = -1e4

    def __call__(self, hidden_states, position_embeddings, attention_mask=None, **given):
        module, cache = self.module, given.get("cache")
        heads = (*hidden_states.shape[:-1], -1, module.head_dim)
        q, k, v = (
            project(hidden_states).view(heads).transpose(1, 2)
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        for _ in range(0 if cache is None else 2 if self.how == "updates twice" else 1):
            kept = cache.update(k, v, module.layer_idx)
        k, v = (k, v) if cache is None else kept
        if self.how == "other values":
            v = v.flip(1)
        elif self.how == "other keys":
            k = k * 2
        elif self.how == "keys for values":
            v = k
        elif self.how == "values written over":
            v.mul_(2)
        elif self.how == "keys written over":
            k.mul_(2)
        elif self.how == "a mask":
            attention_mask = torch.zeros(1, 1, q.shape[2], cache.get_seq_length())
            attention_mask[..., 3] = self.hidden
        interface = transformers.AttentionInterface()[module.config._attn_implementation]

        def attend(k):
            return interface(module, q, k, v, attention_mask, scaling=module.scaling, dropout=0.0)[0]

        output = attend(k)
        if self.how == "attends twice":
            output = output + attend(k)
        elif self.how == "attends to other keys too":
            output = output + attend(k.flip(1))
        return module.o_proj(output.reshape(hidden_states.shape)), None


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("n_tokens", [5, 1])
@pytest.mark.parametrize(
    "how, got",
    [
        ("updates twice", "one more call of update in layer 1"),
        ("other values", "other values in layer 1"),
        ("other keys", "other keys in LlamaAttention"),
        ("keys for values", "other values in layer 1"),
        ("values written over", "other values in layer 1"),
        ("keys written over", "other keys in layer 1"),
        ("attends twice", "one more call in layer 1"),
        ("attends to other keys too", "other keys in LlamaAttention"),
    ],
)
def test_attention_of_another_kind(model, how, got, n_tokens, grad):
    """The cache's contents are what is attended to: whoever wants something else is refused, in prefill and
    in a decode step."""
    if grad is torch.inference_mode and how.endswith("written over"):
        pytest.skip("torch does not count what is written into tensors of inference mode")
    layer = model.model.layers[1]
    attends = layer.self_attn.forward = Attends(layer.self_attn)
    enable(model, **SETTINGS)
    with grad():
        cache = model(tokens_of(10)).cache
        model(tokens_of(1), cache=cache)
        attends.how = how
        assert refusal(model, tokens_of(n_tokens), cache=cache) == f"{ONCE}got {got}"
        with pytest.raises(ValueError, match="^" + re.escape(f"{ONCE}got {got}") + "$"):
            model(tokens_of(n_tokens))  # of a cache that is made for it
        model(tokens_of(n_tokens), use_cache=False)  # without a cache, attention is the model's own


@pytest.mark.parametrize("n_tokens", [5, 1])
def test_a_mask_of_the_model_itself(model, n_tokens):
    """Decoding attends to all real tokens; several tokens are the model's own attention."""
    layer = model.model.layers[1]
    attends = layer.self_attn.forward = Attends(layer.self_attn)
    enable(model, **SETTINGS)
    with torch.no_grad():
        cache = model(tokens_of(10)).cache
        attends.how = "a mask"
        if n_tokens > 1:
            model(tokens_of(n_tokens), cache=cache)
            return
        assert refusal(model, tokens_of(n_tokens), cache=cache).startswith(OTHER_MASK)
        attends.hidden = 0.0  # it hides nothing
        model(tokens_of(n_tokens), cache=model(tokens_of(10)).cache)


@pytest.mark.parametrize(
    "kind, message",
    [
        # attends twice a layer, to halves of the values
        ("DiffLlama", ONCE + "got other values in layer 0"),
        # adds what it makes of the values to the scores
        ("Doge", OTHER_MASK),
    ],
)
@pytest.mark.parametrize("turn_on", [lambda model: enable(model, **SETTINGS), enable_dense])
def test_models_that_attend_otherwise(kind, message, turn_on):
    model = tiny_model(kind)
    early = (
        r"enable(_dense)?: model must have one attention per layer"  # as in transformers 4, by its structure
    )
    with pytest.raises(ValueError, match=f"^({re.escape(message)}|{early})"):
        turn_on(model)
        greedy(model, tokens_of(20), 3)


@pytest.mark.parametrize("options", [dict(prompt_lookup_num_tokens=3), dict(assistant_model=None)])
def test_assisted_generation(model, enabled, options):
    if "assistant_model" in options:
        options = dict(assistant_model=tiny_model(seed=1))
        options["assistant_model"].generation_config.num_assistant_tokens = 2
    with pytest.raises(NotImplementedError, match="crop must not be called"):
        greedy(model, tokens_of(30), 12, **options)
