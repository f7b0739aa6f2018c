# SPDX-License-Identifier: Apache-2.0
"""What a model has where nothing is said or a file of settings, and the commands of docs/models.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tiny_models import greedy, step_logits, tiny_model, tokens_of, torch

import sparq_ipu
from sparq_ipu import generate
from sparq_ipu.transformers import (
    RECOMMENDED,
    enable,
    enable_dense,
    recommended_top_k,
)
from sparq_ipu.transformers.integration import decoding
from sparq_ipu.transformers.settings.layers import LayerSettings, pays_from
from sparq_reference import transfers

ROOT = Path(__file__).resolve().parents[2]


def made(rank, top_k, n_local, mean_value, min_seq_len, index_bits):
    settings = dict(mean_value=mean_value, min_seq_len=min_seq_len, index_bits=index_bits)
    return LayerSettings(rank, top_k, n_local, **settings)


def settings_of(model, **options):
    enable(model, **options)
    return decoding("test", model).settings


def test_the_recommended_settings_at_head_dim_64():
    model = tiny_model(head_dim=64, hidden_size=384)
    first, *others = settings_of(model)
    every = made(32, 256, 64, True, 1024, 2)
    assert others == [every, every]
    assert first == made(32, 256, 64, False, 1024, 2)
    assert settings_of(model, **RECOMMENDED) == [first, *others]


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        ("bfloat16", {}, 0.0015),
        ("bfloat16", dict(prompt_blocks=0.0), 0.0),
        ("bfloat16", dict(published=True), 0.0),
        ("float16", {}, 0.0),
        ("float32", {}, 0.0),
        ("float32", dict(published=True, prompt_blocks=0.1), 0.1),
    ],
)
def test_the_share_of_attention_below_which_blocks_of_prompts_are_left_out(dtype, options, expected):
    model = tiny_model().to(getattr(torch, dtype))
    enable(model, **options)
    assert decoding("test", model).prompt_blocks == expected
    enable_dense(model)
    assert decoding("test", model).prompt_blocks == 0.0


def test_longer_texts_have_more_rows():
    wanted = {1: 256, 8192: 256, 8193: 512, 24576: 512, 24577: 1024, 32768: 1024, 1 << 24: 1024}
    assert {positions: recommended_top_k(positions) for positions in wanted} == wanted
    with pytest.raises(ValueError, match=r"^recommended_top_k: positions must be in \[1, 16777216\], got 0$"):
        recommended_top_k(0)


def test_what_is_said_stays_and_what_is_not_fits_it(model):
    first, second, third = settings_of(model, top_k=8, layers={2: {"rank": 2}, 1: None})
    assert first == made(8, 8, 2, False, pays_from(8), 2) and second is None
    assert third == made(2, 8, 2, True, pays_from(8), 2)
    assert first.min_seq_len == 32
    assert settings_of(model, mean_value=True)[0].mean_value
    assert not settings_of(model, layers={0: {"rank": 2}})[0].mean_value
    assert settings_of(model, layers={0: {"mean_value": True}})[0].mean_value
    assert settings_of(model, min_seq_len=3)[0].min_seq_len == 3


def test_published_settings_are_one_flag_away(model):
    every = made(8, 128, 32, True, 0, None)
    assert settings_of(model, published=True) == [every] * 3
    with pytest.raises(ValueError, match=r"^enable: published must be True or False, got 'yes'$"):
        enable(model, published="yes")


needs_emulator = pytest.mark.skipif(
    "emulator" not in sparq_ipu.available_devices(), reason="there is no emulator here"
)


@needs_emulator
def test_settings_do_not_depend_on_the_device(model):
    usual = settings_of(model)
    assert usual[0].min_seq_len > 256
    assert settings_of(model, device="emulator", n_tiles=8) == usual == settings_of(model, device="reference")
    # a cache in three tiers cannot attend densely
    first, *_ = settings_of(model, device="emulator", n_tiles=8, memory="tiered")
    assert first == made(8, 256, 64, False, 0, 2)


@needs_emulator
@pytest.mark.parametrize("settings", [{}, dict(rank=2, top_k=8)], ids=["recommended", "few rows"])
def test_every_device_decodes_the_same_text(model, settings):
    """The text begins shorter than `min_seq_len`; with few rows it passes that length."""
    (pays,) = {layer.min_seq_len for layer in settings_of(model, rank=2, top_k=8)[1:]}
    tokens = tokens_of(pays - 4, seed=1)

    def decoded(device, **others):
        enable(
            model, device=device, **(dict(n_tiles=16) if device == "emulator" else {}), **settings, **others
        )
        return greedy(model, tokens, 8).tolist(), step_logits(model, tokens, 8)

    texts, logits = zip(*map(decoded, ("cpu", "reference", "emulator")))
    assert texts[0] == texts[1] == texts[2]
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
    if settings:  # negative control: SparQ from the first token on
        text, other = decoded("emulator", min_seq_len=0)
        assert text != texts[0] and not torch.equal(other, logits[0])


@pytest.mark.parametrize("bits", [16, 8, 4, 2])
@pytest.mark.parametrize("rank, top_k, head_dim", [(8, 30, 16), (64, 128, 64), (8, 1, 16), (1, 400, 8)])
def test_sparq_reads_less_from_where_it_is_used(bits, rank, top_k, head_dim):
    def reads_less(n):
        sparq = transfers.sparq_bytes(n, head_dim, rank, min(top_k, n), bits)
        return sparq < transfers.dense_bytes(n, head_dim)

    assert all(reads_less(n) for n in range(pays_from(top_k), 3000)) and not reads_less(top_k)


def test_short_texts_are_dense_and_long_ones_are_not(model):
    settings = dict(rank=2, top_k=8)
    enable(model, **settings)
    pays = decoding("test", model).settings[1].min_seq_len
    for n, is_dense in ((pays - 6, True), (pays + 70, False)):
        enable(model, **settings)
        logits = step_logits(model, tokens_of(n), 5)
        enable_dense(model)
        assert torch.equal(logits, step_logits(model, tokens_of(n), 5)) == is_dense


@pytest.mark.slow
def test_the_documented_command_says_what_dense_attention_says(monkeypatch, tmp_path, capsys):
    """With the first 2,000 tokens of the play: the whole one takes a minute to read."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    sparq-ipu generate (.*--compare-dense)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (play,) = re.findall(r"^    cp (\S+) play.txt$", page, re.MULTILINE)
    shutil.copy(ROOT / play, "play.txt")

    def run(*options):
        words = [
            *shlex.split(command),
            "--new-tokens",
            "40",
            "--json",
            "rows",
            "--prompt-tokens",
            "2000",
            *options,
        ]
        assert generate.main(words) == 0
        print(capsys.readouterr().out)
        return json.loads(Path("rows").read_text().splitlines()[-1])

    row = run()
    assert row["agreement"] >= 0.92
    assert run("--published")["agreement"] < row["agreement"]  # negative control
