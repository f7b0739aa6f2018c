# SPDX-License-Identifier: Apache-2.0
"""`sparq-ipu generate` on a tiny checkpoint: text, figures, comparison, bad usage."""

from __future__ import annotations

import copy
import io
import itertools
import json
import re
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from calls import noted
from lean_steps import skip_trials
from tiny_models import enable, greedy, save_checkpoint, tiny_model, tokens_of, torch, transformers

import sparq_ipu
from sparq_ipu import generate
from sparq_ipu.serve import command as serve_command
from sparq_ipu.torch import prompt
from sparq_ipu.transformers import SparqCache, disable, enable_dense
from sparq_ipu.transformers.generation import runs
from sparq_ipu.transformers.loading import checkpoints

#: nothing that is recommended
PUBLISHED = ("--published", "--n-local", "0")


def call(checkpoint, *options):
    common = (
        "--model",
        str(checkpoint),
        "--prompt-file",
        str(checkpoint / "prompt.txt"),
        "--new-tokens",
        "12",
    )
    return generate.main([*common, *options])


def test_text_and_figures(checkpoint, capsys, tmp_path):
    settings = ("--published", "--rank", "3", "--top-k", "9", "--prompt-tokens", "50")
    for _ in range(2):
        assert call(checkpoint, *settings, "--json", str(tmp_path / "runs.jsonl")) == 0
    out = capsys.readouterr().out
    model = tiny_model()
    enable(model, rank=3, top_k=9, n_local=2)
    expected = " ".join(f"w{int(token)}" for token in greedy(model, tokens_of(60)[:, :50], 12)[0])
    assert out.startswith(expected)
    assert re.search(r"prompt +50 tokens", out) and re.search(r"decode +12 tokens", out)
    assert re.search(r"dense +[\d.]+ ms a token at this length, SparQ [\d.]+ ms \(timed afterwards\)\n", out)
    one, other = (json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines())
    assert one["seq_len"] == 50 and one["n_new"] == 12
    assert one["tokens_per_second"] > 0 and one["prefill_seconds"] > 0
    assert "--rank 3" in one["repro"] and one["rank"] == other["rank"] == 3


def test_key_index_of_few_bits(checkpoint, capsys, tmp_path):
    """The text, the comparison and the figures are those of a model that is enabled so."""
    path = tmp_path / "runs.jsonl"
    settings = (*PUBLISHED, "--rank", "3", "--top-k", "9", "--compare-dense", "--json", str(path))
    for bits in ("4", "16"):
        assert call(checkpoint, *settings, "--index-bits", bits) == 0
    assert call(checkpoint, *settings) == 0
    out = capsys.readouterr().out
    four, sixteen, default = (json.loads(line) for line in path.read_text().splitlines())
    assert [line["index_bits"] for line in (four, sixteen, default)] == [4, 16, 16]
    assert "--index-bits 4" in four["repro"]
    model = tiny_model()
    enable(model, rank=3, top_k=9, index_bits=4)
    assert out.startswith(" ".join(f"w{int(token)}" for token in greedy(model, tokens_of(60), 12)[0]))
    enable_dense(model, index_bits=4)
    dense = greedy(model, tokens_of(60), 12)
    enable(model, rank=3, top_k=9, index_bits=4)
    read = torch.cat([tokens_of(60), dense[:, :1]], dim=1)  # the first token is from prefill
    forced = generate.forced_predictions(model, read, dense[:, 1:])
    assert four["agreement"] == float(np.mean(forced == dense[0, 1:].numpy()))


def test_comparison_with_dense(checkpoint, capsys, tmp_path):
    path = tmp_path / "runs.jsonl"
    call(checkpoint, *PUBLISHED, "--rank", "3", "--top-k", "100", "--compare-dense", "--json", str(path))
    same = capsys.readouterr().out
    assert "texts     the same, 12 tokens" in same and "agreement 1.000" in same
    call(checkpoint, *PUBLISHED, "--rank", "3", "--top-k", "4", "--compare-dense", "--json", str(path))
    other = capsys.readouterr().out
    line = json.loads(path.read_text().splitlines()[1])
    assert f"differ from new token {line['parts_after'] + 1} on" in other
    assert f"agreement {line['agreement']:.3f}" in other and line["agreement"] < 1
    model = tiny_model()
    enable(model, rank=3, top_k=4)
    ours = greedy(model, tokens_of(60), 12)[0].tolist()
    enable_dense(model)
    dense = greedy(model, tokens_of(60), 12)[0].tolist()
    assert line["parts_after"] == generate.first_difference(ours, dense) is not None


@pytest.mark.parametrize("settings", [("--top-k", k) for k in "3456789"])
def test_figures_agree_with_one_another(checkpoint, capsys, tmp_path, settings):
    """Greedy texts part exactly where SparQ first disagrees along the dense one; if nowhere, not at all."""
    path = tmp_path / "runs.jsonl"
    call(checkpoint, *PUBLISHED, "--rank", "3", *settings, "--compare-dense", "--json", str(path))
    line = json.loads(path.read_text())
    model = tiny_model()
    enable_dense(model)
    dense = greedy(model, tokens_of(60), 12)
    enable(model, rank=3, top_k=int(settings[1]))
    read = torch.cat([tokens_of(60), dense[:, :1]], dim=1)
    agreed = generate.forced_predictions(model, read, dense[:, 1:]) == dense[0, 1:].numpy()
    assert line["agreement"] == agreed.mean()
    assert line["parts_after"] == (None if agreed.all() else 1 + int(np.argmin(agreed)))
    assert f"at {agreed.sum()} of 11 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("more, times", [((), 2), (("--temperature", "3"), 2), (("--device", "emulator"), 3)])
def test_a_prompt_is_read_once_for_each_attention(checkpoint, monkeypatch, capsys, more, times):
    """It may be long. Caches on IPUs are not copied: only one may have the devices."""
    if "emulator" in more and "emulator" not in sparq_ipu.available_devices():
        pytest.skip("there is no emulator here")

    def is_prompt(output, model, input_ids=None, **inputs):
        return input_ids.shape[1] > 1

    reads = noted(monkeypatch, transformers.LlamaModel, "forward", is_prompt)
    assert call(checkpoint, "--rank", "3", "--top-k", "9", "--compare-dense", *more) == 0
    assert sum(reads) == times and "agreement" in capsys.readouterr().out


def test_what_was_read_is_kept_as_it_was(checkpoint, monkeypatch):
    """Not as the run left it; and copying it, here for a second, is not in the times of the run."""
    slow = types.SimpleNamespace(deepcopy=lambda x: time.sleep(1) or copy.deepcopy(x))
    monkeypatch.setattr(runs, "copy", slow)
    model, tokens = tiny_model(), tokens_of(60)
    enable(model, rank=3, top_k=9)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert generate.generate(model, tokenizer, tokens, 12).read is None
    run = generate.generate(model, tokenizer, tokens, 12, keep_read=True)
    assert run.read.get_seq_length() == 60 and run.step_seconds[0] < 0.8
    read = torch.cat([tokens, torch.tensor([run.tokens[:1]])], dim=1)
    again = generate.forced_predictions(model, read, torch.tensor([run.tokens[1:]]), run.read)
    assert again.tolist() == run.tokens[1:]


def test_agreement_of_sampled_texts(checkpoint, capsys):
    """Of the most likely tokens, not of those that chance drew."""
    call(checkpoint, "--rank", "16", "--top-k", "100", "--compare-dense", "--temperature", "3")
    out = capsys.readouterr().out
    assert "texts     the same" in out and "agreement 1.000" in out


def test_comparison_of_one_token(checkpoint, capsys):
    call(checkpoint, "--rank", "3", "--top-k", "4", "--compare-dense", "--new-tokens", "1")
    out = capsys.readouterr().out
    assert "texts     the same, 1 tokens" in out and "agreement" not in out


def test_speed_has_a_spread(checkpoint, capsys, tmp_path):
    path = tmp_path / "runs.jsonl"
    call(checkpoint, "--rank", "3", "--top-k", "4", "--json", str(path))
    step = json.loads(path.read_text())["step_milliseconds"]
    assert 0 < step["p10"] <= step["median"] <= step["p90"]
    out = capsys.readouterr().out
    assert f"tokens/s after the first (80% of the steps: {step['p10']:.1f} to {step['p90']:.1f} ms)" in out
    total = re.search(r"^total +([\d.]+) s: loading ([\d.]+), reading ([\d.]+), writing ([\d.]+)$", out, re.M)
    assert total is not None
    whole, *parts = map(float, total.groups())
    assert whole == pytest.approx(sum(parts), abs=0.21)
    text = generate._total(1.0, 2.25, 3.5)
    assert text == "total     6.8 s: loading 1.0, reading 2.2, writing 3.5"
    steps = types.SimpleNamespace(step_seconds=np.arange(101) / 1e3)
    assert generate._step_milliseconds(steps) == pytest.approx([10, 50, 90])


@pytest.mark.parametrize(
    "options, message",
    [
        (("--rank", "0"), "generate: rank must be in [1, 16777216], got 0"),
        (("--rank", "4", "--device", "gpu"), "generate: device must be one of"),
        (("--rank", "4", "--index-bits", "5"), "generate: index_bits must be one of 16, 8, 4, 2, got 5"),
        (("--rank", "4", "--n-local", "-1"), "generate: n_local must be in [0, top_k=256], got -1"),
        (("--rank", "4", "--model", "nowhere"), "load_model: path must exist, got nowhere"),
        (
            ("--dense", "--rank", "3", "--index-bits", "4"),
            "generate: --dense must be without settings of SparQ, got --rank, --index-bits too",
        ),
        (("--top-p", "0.5"), "generate: --top-p must be given with --temperature, got 0.5 alone"),
        (("--dense", "--published"), "--dense must be without settings of SparQ, got --published too"),
    ],
)
def test_bad_usage(checkpoint, capsys, monkeypatch, options, message):
    """Said before torch is imported."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert call(checkpoint, *options) == 2
    assert message in capsys.readouterr().err


def test_what_the_model_can_not_have(checkpoint, capsys, monkeypatch):
    """Said by its config, before the weights are read."""
    monkeypatch.setattr(generate.Checkpoint, "model", None)
    assert call(checkpoint, "--rank", "17") == 2
    error = capsys.readouterr().err
    assert "generate: rank must be in [1, head_dim=16], got 17" in error and "loaded" not in error


def test_a_config_without_heads(checkpoint, capsys, monkeypatch, tmp_path):
    folder = save_checkpoint(tmp_path)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    monkeypatch.setattr(generate.Checkpoint, "model", None)
    assert call(checkpoint, "--rank", "3", "--model", str(folder)) == 2
    assert "load_model: config must have the layers and heads" in capsys.readouterr().err


def test_the_settings_that_were_used(checkpoint, capsys, tmp_path):
    """In the output and in the line of JSON, wherever they came from."""
    same = "rank=3 top_k=256 n_local=64 mean_value=True min_seq_len="
    first = "layer 0: mean_value=False"
    rows = tmp_path / "rows"
    for options, said in [
        ((), f"rank=8 {same[7:]}1024 index_bits=2; {first}"),
        (("--rank", "3"), f"{same}1024 index_bits=2; {first}"),
        (("--rank", "3", "--top-k", "9"), f"{same[:7]}top_k=9 n_local=2 {same[28:]}36 index_bits=2; {first}"),
        (("--published",), "rank=8 top_k=128 n_local=32 mean_value=True min_seq_len=0 index_bits=16"),
        (("--dense", "--row-bits", "8"), "dense attention; row_bits=8"),
    ]:
        assert call(checkpoint, *options, "--json", str(rows)) == 0
        assert f"\nsettings  {said}\n" in capsys.readouterr().out
    assert json.loads(rows.read_text().splitlines()[2])["top_k"] == 9


def test_help_says_the_defaults(capsys):
    with pytest.raises(SystemExit):
        generate.main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    defaults = dict(
        rank="32, or half of a smaller head_dim",
        top_k="256;",
        n_local="a quarter of top_k",
        index_bits="2",
        min_seq_len="4 * top_k",
    )
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        # behind the short form too
        begin = words.index(f"{name.upper()} ", words.rindex(f"{flag} {name.upper()}"))
        found = words.index(f"default {default}".replace(" :", ":"), begin)
        assert found < words.index(" --", begin), flag


def test_a_prompt_of_one_token(checkpoint, capsys):
    """Its text is that of the model; SparQ's is the dense one where everything is selected."""
    options = ("--prompt-tokens", "1", "--rank", "3", "--top-k", "100", "--compare-dense")
    assert call(checkpoint, *options) == 0
    out = capsys.readouterr().out
    model = tiny_model()
    assert out.startswith(" ".join(f"w{int(token)}" for token in greedy(model, tokens_of(60)[:, :1], 12)[0]))
    assert "texts     the same, 12 tokens" in out and "agreement 1.000" in out
    assert "prompt    1 tokens" in out


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("--new-tokens", "0", "must be a positive integer, got '0'"),
        ("--prompt-tokens", "-1", "must be a positive integer, got '-1'"),
        ("--temperature", "0", "must be a positive number, got '0'"),
        ("--temperature", "inf", "must be a positive number, got 'inf'"),
        ("--top-p", "1.5", "must be in [0, 1], got '1.5'"),
        ("--threads", "100000", "must be an integer in [1, 1024], got '100000'"),
        ("--seed", "-1", "must be an integer in [0, 2**63), got '-1'"),
        ("--json", "nowhere/runs.jsonl", "must be a file that can be written, got 'nowhere/runs.jsonl'"),
        ("--json", ".", "must be a file that can be written, got '.'"),
    ],
)
def test_bad_values(checkpoint, capsys, option, value, message):
    """Before the model is loaded, let alone run."""
    with pytest.raises(SystemExit) as caught:
        call(checkpoint, f"{option}={value}")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {option}: {message}" in error and "loading" not in error


def test_checkpoint_without_a_tokenizer(checkpoint, capsys, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert call(checkpoint, "--model", str(tmp_path)) == 2
    assert f"generate: --model must have a tokenizer, got none in {tmp_path}" in capsys.readouterr().err


def test_a_text_of_no_tokens(checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(generate.Checkpoint, "model", None)
    assert generate.main(["--model", str(checkpoint), "--prompt", "", "--rank", "3"]) == 2
    assert "generate: the prompt must have at least 1 token, got 0" in capsys.readouterr().err


def test_paths_come_first(checkpoint, capsys, monkeypatch, tmp_path):
    """Before torch is imported, which takes seconds, and before the model is loaded."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(generate.Checkpoint, "model", None)
    assert call(checkpoint, "--model", "nowhere") == 2
    assert "load_model: path must exist, got nowhere" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"\xe9t\xe9 ")
    for name, reason in (("none", "No such file or directory"), ("latin", "'utf-8' codec can't decode")):
        path = tmp_path / name
        assert generate.main(["--model", str(checkpoint), "--prompt-file", str(path)]) == 2
        error = capsys.readouterr().err
        rule = "generate: --prompt-file must be a file of UTF-8 text that can be read, got "
        assert f"{rule}{path} ({reason}" in error


@pytest.mark.parametrize(
    "one, other, expected",
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([], [], None), ([1], [1, 2], 1), ([2], [1, 2], 0)],
)
def test_first_difference(one, other, expected):
    assert generate.first_difference(one, other) == expected


def test_the_first_token_is_of_prefill_and_in_no_speed():
    run = generate.Run([5, 6, 7], "", 9.0, 4.0, {})
    assert run.tokens_per_second == 0.5
    assert generate.Run([5], "", 9.0, 0.0, {}).tokens_per_second == 0.0


def test_by_default_the_text_is_that_of_the_recommended_settings(checkpoint, capsys, tmp_path):
    """Of a text so long that SparQ reads less, and so of a short one, which is dense."""
    text = " ".join(f"w{int(token)}" for token in tokens_of(190)[0])
    model = tiny_model()
    for n, is_short in ((190, False), (60, True)):
        options = ("--prompt-tokens", str(n), "--top-k", "8", "--rank", "4")
        options += ("--min-seq-len", "100") if n == 60 else ()
        assert (
            generate.main(["--model", str(checkpoint), "--prompt", text, "--new-tokens", "12", *options]) == 0
        )
        out = capsys.readouterr().out
        enable(model, rank=4, top_k=8, n_local=2, index_bits=2, layers={0: {"mean_value": False}})
        sparq = greedy(model, tokens_of(190)[:, :n], 12)
        enable_dense(model)
        dense = greedy(model, tokens_of(190)[:, :n], 12)
        assert not torch.equal(sparq, dense)
        expected = dense if is_short else sparq
        assert out.startswith(" ".join(f"w{int(token)}" for token in expected[0]))


def test_blocks_of_a_prompt(checkpoint, capsys, monkeypatch):
    """By default in bfloat16 alone, and not in what SparQ is compared with."""
    used = noted(monkeypatch, prompt, "attend_cache", lambda *given: given[-2:])
    skip_trials(monkeypatch)
    narrow = ("--dtype", "bfloat16")
    for options, shares in (
        ((), [0.0]),
        (narrow, [0.0015]),
        ((*narrow, "--prompt-blocks", "0"), [0.0]),
        ((*narrow, "--published"), [0.0]),
        ((*narrow, "--dense"), [0.0]),
        (("--prompt-blocks", "0.25"), [0.25]),
        (("--prompt-blocks", "0.25", "--dense"), [0.25]),
        (("--prompt-blocks", "0.25", "--compare-dense"), [0.25, 0.0]),
        ((*narrow, "--compare-dense"), [0.0015, 0.0]),
    ):
        used.clear()
        assert call(checkpoint, *options) == 0
        assert [one for one, _ in itertools.groupby(used)] == [(share, 2048) for share in shares], options
    capsys.readouterr()
    with pytest.raises(SystemExit):
        call(checkpoint, "--prompt-blocks", "0.75")
    assert "--prompt-blocks" in capsys.readouterr().err


def test_a_cache_that_was_not_told_has_the_rows_that_enable_asks_for():
    model, tokens = tiny_model(), torch.arange(20)[None]
    for turn_on in (sparq_ipu.transformers.enable, enable_dense):
        turn_on(model, row_bits=8)
        caches = [SparqCache(model, **told) for told in ({}, {"row_bits": 16})]
        with torch.no_grad():
            model(tokens, cache=caches[0], use_cache=True)
            assert {layer.cache.row_bits for layer in caches[0].layers} == {8}
            with pytest.raises(ValueError, match=r"row_bits must be that of the cache, 16 in layer 0, got"):
                model(tokens, cache=caches[1], use_cache=True)
        disable(model)


def test_rows_of_8_bits(checkpoint, tmp_path, capsys, monkeypatch):
    used = noted(monkeypatch, prompt, "attend_cache", lambda output, query, cache, *_: cache.row_bits)
    for options in ((), ("--dense",), ("--compare-dense",)):
        for bits in (16, 8):
            used.clear()
            row = tmp_path / "row.jsonl"
            row.unlink(missing_ok=True)
            assert call(checkpoint, "--row-bits", str(bits), "--json", str(row), *options) == 0
            assert (8 in used) == (bits == 8) == (json.loads(row.read_text())["row_bits"] == 8), options


def test_a_short_text_says_so(checkpoint, capsys):
    assert call(checkpoint) == 0
    words = "short     every token was decoded densely: SparQ pays from about 1024 tokens on"
    assert words in capsys.readouterr().out
    assert call(checkpoint, "--published") == 0
    words = "short     dense may be faster: SparQ pays from about 512 tokens on"
    assert words in capsys.readouterr().out
    assert call(checkpoint, "--rank", "3", "--top-k", "4") == 0  # negative control
    assert "short " not in capsys.readouterr().out


def test_a_prompt_from_standard_input(checkpoint, capsys, monkeypatch):
    text = (checkpoint / "prompt.txt").read_bytes()
    assert call(checkpoint, "--dense") == 0
    expected = capsys.readouterr().out.splitlines()[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    model = ("--model", str(checkpoint), "--dense", "--new-tokens", "12", "--prompt-file", "-")
    assert generate.main([*model]) == 0
    assert capsys.readouterr().out.splitlines()[0] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert generate.main([*model]) == 2
    wanted = capsys.readouterr().err
    assert "generate: --prompt-file must be a file of UTF-8 text that can be read, got -" in wanted


def test_reading_a_prompt_shows_progress(checkpoint, capsys, monkeypatch):
    """A line every few seconds; on a terminal one that is rewritten, up to the last token and no further."""
    assert call(checkpoint) == 0
    assert "prompt:" not in capsys.readouterr().err
    monkeypatch.setattr(generate, "EVERY", 0.0)
    assert call(checkpoint) == 0
    line = r"prompt: (\d+) of 60 tokens, \d+ tokens/s(?:, about \d+ s left)?"
    assert re.findall(f"^{line}$", capsys.readouterr().err, re.M) == ["20", "40", "60"]
    monkeypatch.setattr(generate, "_REWRITTEN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert call(checkpoint, "--compare-dense") == 0
    shown = re.findall(rf"\r{line}\033\[K(\n?)", capsys.readouterr().err)
    assert shown == [("20", ""), ("40", ""), ("60", "\n")] * 2  # two runs


class ChatTokenizer:
    """Of turns that end with token 5; 6 begins one."""

    all_special_ids = (7,)

    @property
    def added_tokens_decoder(self):
        return {5: "<|im_end|>", 6: "<|im_start|>"}

    def apply_chat_template(self, turns, tokenize):
        return [token for turn in turns for token in (6, 1 if turn["role"] == "user" else 2, 5, 3)]

    def __call__(self, text, add_special_tokens=True):
        return types.SimpleNamespace(input_ids=[*text, *[7] * add_special_tokens])


def test_a_chat_stops_where_an_answer_ends(model):
    model.generation_config.eos_token_id = 9
    assert generate.stop_tokens(model, ChatTokenizer(), True) == [9, 5]
    assert generate.stop_tokens(model, ChatTokenizer(), False) == [9]
    model.generation_config.eos_token_id = [9, 8]
    assert generate.stop_tokens(model, ChatTokenizer(), True) == [9, 8, 5]


def test_the_command_ends_a_chat_there(checkpoint, capsys, monkeypatch):
    """What ends an answer ends the text."""
    assert call(checkpoint) == 0
    words = capsys.readouterr().out.splitlines()[0].split()
    last = next(i for i in range(3, len(words)) if words[i] not in words[:i])
    end = int(words[last][1:])
    monkeypatch.setattr("sparq_ipu.transformers.generation.runs._end_of_turn", lambda tokenizer: [end])
    monkeypatch.setattr(generate, "_encode", lambda arguments, text, tokenizer: tokens_of(60))
    for options, is_cut in (((), False), (("--chat",), True)):
        assert call(checkpoint, *options) == 0
        shown = capsys.readouterr().out.splitlines()[0].split()
        assert (len(shown) <= last + 1) == is_cut and shown[:last] == words[:last], options


def test_forced_predictions_are_those_of_generation(model):
    """Along its own greedy text a model predicts that text."""
    prompt = tokens_of(30)
    enable(model, rank=3, top_k=9)
    first = greedy(model, prompt, 1)  # from prefill, which is dense
    text = torch.cat([prompt, first], dim=1)
    own = []
    for _ in range(6):
        own.append(int(generate.forced_predictions(model, text, torch.tensor([[*own, 0]]))[-1]))
    assert generate.forced_predictions(model, text, torch.tensor([own])).tolist() == own
    another = [own[0] + 1 if own[0] == 0 else 0, *own[1:]]  # what is given is followed, not what is said
    said = generate.forced_predictions(model, text, torch.tensor([another])).tolist()
    assert said[0] == own[0] and said[1:] != own[1:]
    enable_dense(model)
    assert generate.forced_predictions(model, text, torch.tensor([own])).tolist() != own


def test_short_forms_are_the_same_flags():
    long = ["--rank", "3", "--top-k", "9", "--n-local", "2"]
    short = ["--r", "3", "--k", "9", "--local", "2"]
    for parse, words in (
        (generate._parser("generate").parse_args, ["--prompt", "a"]),
        (serve_command.parsed, []),
    ):
        assert vars(parse([*words, *long])) == vars(parse([*words, *short]))
        assert vars(parse([*words, *long])) != vars(parse(words))


def test_smollm2_is_the_name_of_a_model(monkeypatch):
    monkeypatch.setattr(checkpoints, "smollm2_path", lambda: Path("elsewhere.gguf"))
    assert checkpoints.check_path("smollm2") == Path("elsewhere.gguf")
    assert generate._parser("generate").parse_args(["--prompt", "a"]).model == "smollm2"
    assert serve_command.parsed([]).model == "smollm2"
    with pytest.raises(FileNotFoundError, match=r"^load_model: path must exist, got smollm3$"):
        checkpoints.check_path("smollm3")
