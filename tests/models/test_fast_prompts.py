# SPDX-License-Identifier: Apache-2.0
"""Prompts through the CPU kernels: the bits of the model's own forward pass, in any pieces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from calls import noted
from families import FAMILIES
from lean_steps import FAST, SETTINGS, a_wide_model, enabled, of_family
from tiny_models import tokens_of, torch

import sparq_ipu.transformers
from sparq_ipu.transformers import SparqCache
from sparq_ipu.transformers.decoder.few_bits_step import FewBitsStep
from sparq_ipu.transformers.decoder.lean_step import LeanStep
from sparq_ipu.transformers.supported import decoder_of

_cpu = pytest.importorskip("sparq_ipu._cpu")

#: more than go through a layer together
N = 300


@pytest.fixture
def prompts(monkeypatch: Any) -> list[tuple[int, int]]:
    """Batch and tokens of the prompts that the kernels computed."""

    def prompt(normed: Any, step: Any, embedded: Any, *given: Any) -> Any:
        return None if normed is None or embedded.shape[1] == 1 else tuple(embedded.shape[:2])

    return noted(monkeypatch, FewBitsStep, "__call__", prompt)


def read(model: Any, cuts: Any = (), lean: bool = True, batch: int = 1, mask: Any = None) -> Any:
    """The logits of a text that is read in pieces which end at `cuts`."""
    sparq_ipu.transformers.enable(model, lean=lean, **SETTINGS)
    tokens, cache, said = tokens_of(N, batch=batch), SparqCache(model), []
    with torch.no_grad():
        for begin, end in zip((0, *cuts), (*cuts, N)):
            masked = {} if mask is None else dict(attention_mask=mask[:, :end])
            said.append(model(tokens[:, begin:end], cache=cache, **masked).logits)
    return torch.cat(said, 1)


@pytest.mark.parametrize("name", FAST)
def test_the_bits_are_those_of_the_model(name: str, prompts: list[tuple[int, int]]) -> None:
    for weights, batch in (("int4", 1), ("int8", 2)):
        model = of_family(name, weights)
        own = read(model, lean=False, batch=batch)
        prompts.clear()
        lean = read(model, batch=batch)
        assert prompts[-1] == (batch, N)
        assert torch.equal(own, lean), (weights, batch)


@pytest.mark.parametrize("name", FAST)
def test_the_last_layer_computes_what_is_taken(name: str, monkeypatch: Any) -> None:
    """Of the last token alone; the cache holds them all."""
    model, batch = of_family(name, "int4"), 1 + FAST.index(name) % 2
    whole = read(model, batch=batch)
    outputs = noted(monkeypatch, LeanStep, "step", lambda output, *_: output.last_hidden_state)
    tokens, cache, half = tokens_of(N, batch=batch), SparqCache(model), N // 2
    with torch.no_grad():
        decoder_of(model)(input_ids=tokens)
        model(tokens, logits_to_keep=2)
        model(tokens[:, :half], cache=cache, logits_to_keep=1)
        last = model(tokens[:, half:], cache=cache, logits_to_keep=torch.tensor([N - half - 1])).logits
        handle = decoder_of(model).register_forward_hook(lambda *_: None)
        model(tokens, logits_to_keep=1)
        handle.remove()
    every, two, *pieces, seen = outputs
    assert torch.equal(last[:, 0], whole[:, -1])
    assert torch.equal(pieces[1][:, -1], every[:, -1])
    assert not any(piece[:, :-1].any() for piece in pieces)
    assert torch.equal(two, every) and torch.equal(seen, every)  # where others are taken, or looked at


@pytest.mark.parametrize("n", [5, 40])
def test_several_tokens_of_each_text_are_a_step_or_a_prompt(n: int) -> None:
    """With up to 32 tokens in a step. The last one is enough, and all are stored."""
    model = enabled(a_wide_model("int4"), tokens_per_step=32)
    tokens, last = tokens_of(60 + n + 1, batch=2), []
    for kept in ({}, dict(logits_to_keep=1)):
        cache = SparqCache(model)
        with torch.no_grad():
            for begin, end in ((0, 60), (60, 60 + n), (60 + n, 60 + n + 1)):
                last.append(model(tokens[:, begin:end], cache=cache, **kept).logits[:, -1])
    assert all(torch.equal(one, other) for one, other in zip(last[:3], last[3:]))


def test_embeddings_in_place_of_tokens() -> None:
    model = enabled(a_wide_model("int4"))
    embedded = model.get_input_embeddings()(tokens_of(N))
    with torch.no_grad():
        every = model(inputs_embeds=embedded).logits
        for kept, rows in ((1, [N - 1]), (torch.tensor([3, N - 1]), [3, N - 1])):
            assert torch.equal(model(inputs_embeds=embedded, logits_to_keep=kept).logits, every[:, rows])


@pytest.mark.parametrize("seed", range(4))
def test_pieces_change_no_bit(seed: int, prompts: list[tuple[int, int]]) -> None:
    model, numbers = a_wide_model("int4"), random.Random(seed)
    whole = read(model)
    cuts = sorted(numbers.sample(range(2, N - 1), 5))
    prompts.clear()
    assert torch.equal(read(model, cuts)[:, cuts[-1] :], whole[:, cuts[-1] :])
    assert sum(n for _, n in prompts[1:]) > N / 2  # the first is the trial's


def test_threads_change_no_bit() -> None:
    model, before = a_wide_model("int4"), torch.get_num_threads()
    try:
        said = []
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            said.append(read(model))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])


def test_padding_is_left_to_the_model(prompts: list[tuple[int, int]]) -> None:
    model, mask = a_wide_model("int4"), torch.ones(2, N, dtype=torch.int64)
    mask[1, :9] = 0
    own = read(model, lean=False, batch=2, mask=mask)
    prompts.clear()
    assert torch.equal(own[0], read(model, batch=2, mask=mask)[0])
    assert all(batch == 1 for batch, _ in prompts)  # those of the trial
    mask[1, :9] = 1
    own = read(model, lean=False, batch=2, mask=mask)
    assert torch.equal(own, read(model, batch=2, mask=mask))
    assert prompts[-1] == (2, N)


def test_other_prompt_attention_is_left_to_the_model(prompts: list[tuple[int, int]]) -> None:
    model = a_wide_model("int4")
    model.set_attn_implementation("flex_attention")  # whose sums are in another order
    own = read(model, lean=False)
    assert torch.equal(own, read(model))
    assert not prompts


@pytest.mark.parametrize("family", ["Qwen 3", "OLMo 2"])
def test_every_instruction_set_has_the_same_bits(family: str) -> None:
    """Norms of heads, wide angles, gates and sums of a layer."""
    assert family in FAMILIES
    n, hidden, inner, head_dim, rows = 2, 96, 160, 16, 5
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    def linear(n_in: int, n_out: int) -> Any:
        packed = torch.randint(0, 256, (n_out // 16, n_in // 32, 576), generator=generator).to(torch.uint8)
        packed[:, :, 512:] = numbers(n_out // 16, n_in // 32, 32).half().view(torch.uint8)
        return packed

    linears = [[linear(hidden, 128), linear(64, hidden), linear(hidden, 2 * inner), linear(inner, hidden)]]
    linears *= n
    shapes = (128, hidden), (hidden, 64), (2 * inner, hidden), (hidden, inner)
    norms = [numbers(size) for size in (hidden, head_dim, head_dim, hidden, hidden, hidden)]
    table, is_wide = numbers(1 << 16), family == "OLMo 2"
    angles = [numbers(rows, head_dim) for _ in range(2)]
    angles = [x.float() for x in angles] if is_wide else angles
    said = []
    for isa in _cpu.available_isas():
        layers = [
            (
                [norm.data_ptr() for norm in norms],
                [([(p.data_ptr(), 8, o)], 0, i) for p, (o, i) in zip(of_layer, shapes)],
                True,
            )
            for of_layer in linears
        ]
        norm = (1e-5, 16, 0.0, not is_wide)
        given = layers, norms[0].data_ptr(), norm, (4, head_dim, 2, head_dim), hidden, 0.5, table.data_ptr()
        step = _cpu.DecoderStep(*given, isa=isa)
        x = torch.linspace(-3, 3, rows * hidden).to(torch.bfloat16)
        products = torch.empty(rows, 128, dtype=torch.bfloat16)
        step.begin(rows, x.data_ptr(), products.data_ptr(), 1)
        cos, sin = (x.data_ptr() for x in angles)
        rotary = "float32" if is_wide else "bfloat16", cos, sin, rows, head_dim, 4, 1.0
        step.turn(0, rotary, rows, products.data_ptr(), 1)
        attended = products[:, :64].contiguous()
        step.next(0, rows, attended.data_ptr(), x.data_ptr(), products.data_ptr(), 1)
        said.append(torch.cat((attended, products, x.view(rows, -1)), 1))
    assert len(said) > 1 and said[0].isfinite().all()
    assert all(torch.equal(said[0], other) for other in said)
