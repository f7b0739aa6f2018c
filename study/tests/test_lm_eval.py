# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness over an enabled model: tasks made here, and what their scores must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api import registry  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tiny_models import enable, save_checkpoint  # noqa: E402

from sparq_ipu.transformers import RECOMMENDED, disable, is_enabled  # noqa: E402
from sparq_ipu.transformers.decoder.weights import weights_of  # noqa: E402
from sparq_ipu.transformers.integration import decoding  # noqa: E402
from sparq_study.lm_eval import SparqLM  # noqa: E402

FEW = dict(rank=2, top_k=2, n_local=0, mean_value=False, published=True)
#: (context, continuation): two answers to one question, another question, and a question without words
PAIRS = [
    ("w1 w2 w3 w4 w5 w6", " w7 w8"),
    ("w3 w4", " w8 w9 w1"),
    ("w1 w2 w3 w4 w5 w6", " w9"),
    ("", " w2 w3"),
]
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_choice: "{{answers}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "continue": """
output_type: generate_until
doc_to_target: "w1"
generation_kwargs: {until: ["w0"], max_gen_toks: 5, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def model(checkpoint: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    found = transformers.AutoTokenizer.from_pretrained(checkpoint)
    found.eos_token = "w98"  # lm_eval stops there
    return found


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks of lm_eval, over a local file."""
    folder = tmp_path_factory.mktemp("tasks")
    questions = [
        {"question": f"w{n} w{n + 1} w{n + 2} w5", "answers": ["w7", "w8 w9", "w3"], "right": n % 3}
        for n in range(10, 16)
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, questions)))
    for name, text in TASKS.items():
        data = f"{{data_files: {{test: {folder / 'data.jsonl'}}}}}"
        common = f"task: {name}\ndataset_path: json\ndataset_kwargs: {data}\ntest_split: test\n"
        (folder / f"{name}.yaml").write_text(common + 'doc_to_text: "{{question}}"' + text)
    return folder


def scores(lm: Any) -> list[tuple[float, bool]]:
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(PAIRS)]
    found: list[tuple[float, bool]] = lm.loglikelihood(requests, disable_tqdm=True)
    return found


def test_everything_selected_is_what_lm_eval_says_of_the_model(model: Any, tokenizer: Any) -> None:
    expected = scores(SparqLM(model, tokenizer=tokenizer, attention="own"))
    assert not is_enabled(model)
    for options in ({"attention": "dense"}, {"rank": 3, "top_k": 64}):
        found = scores(SparqLM(model, tokenizer=tokenizer, **options))
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        assert [s for s, _ in found] == pytest.approx([s for s, _ in expected], rel=1e-3)


def by_hand(model: Any, tokenizer: Any, n_more: int) -> list[float]:
    """Prefill, then one token after another."""
    enable(model, **FEW)
    found = []
    for context, continuation in PAIRS:
        words, wanted = tokenizer.encode(context) or [99], tokenizer.encode(continuation)
        tokens = words + wanted
        first = max(len(words) - 1 - n_more, 1)
        out = model(torch.tensor([tokens[:first]]), use_cache=True)
        logits = [out.logits[0, -1]]
        for token in tokens[first:-1]:
            out = model(torch.tensor([[token]]), cache=out.cache, use_cache=True)
            logits.append(out.logits[0, -1])
        chances = torch.log_softmax(torch.stack(logits[-len(wanted) :]), -1)
        found.append(float(chances[range(len(wanted)), wanted].sum()))
    disable(model)
    return found


@pytest.mark.parametrize("n_more", [0, 2])
@pytest.mark.parametrize("tokens_per_step", [1, 32])
def test_each_scored_token_comes_from_a_decode_step(
    model: Any, tokenizer: Any, n_more: int, tokens_per_step: int
) -> None:
    expected = by_hand(model, tokenizer, n_more)
    options = dict(FEW, decoded_context=n_more, tokens_per_step=tokens_per_step)
    found = [score for score, _ in scores(SparqLM(model, tokenizer=tokenizer, **options))]
    assert found == pytest.approx(expected, rel=1e-4)  # PyTorch rounds products of several rows otherwise
    dense = [score for score, _ in scores(SparqLM(model, tokenizer=tokenizer, attention="dense"))]
    assert abs(dense[0] - found[0]) > 0.01  # SparQ attention selects 2 of 6 here, and it tells


def test_what_is_too_long_is_cut_as_lm_eval_cuts_it(model: Any, tokenizer: Any) -> None:
    text = " ".join(f"w{n % 90}" for n in range(30))
    rolling = Instance("loglikelihood_rolling", {}, (text,), 0)
    answer = Instance("loglikelihood", {}, (text, " w7 w8"), 0)
    own, everything = (
        SparqLM(model, tokenizer=tokenizer, max_length=8, **options)
        for options in ({"attention": "own"}, {"rank": 3, "top_k": 64})
    )
    found = everything.loglikelihood_rolling([rolling], disable_tqdm=True)
    assert found == pytest.approx(own.loglikelihood_rolling([rolling], disable_tqdm=True), rel=1e-3)
    ((score, _),) = everything.loglikelihood([answer], disable_tqdm=True)
    assert score == pytest.approx(own.loglikelihood([answer], disable_tqdm=True)[0][0], rel=1e-3)


def test_tasks(model: Any, tokenizer: Any, tasks: Path) -> None:
    lm = SparqLM(model, tokenizer=tokenizer, **FEW, batch_size=2)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    run = lm_eval.simple_evaluate(lm, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)
    assert set(run["results"]) == set(TASKS)
    for number, sample in enumerate(run["samples"]["choices"]):
        question = sample["doc"]["question"]
        requests = [
            Instance("loglikelihood", {}, (question, " " + answer), i)
            for i, answer in enumerate(["w7", "w8 w9", "w3"])
        ]
        said = [score for score, _ in lm.loglikelihood(requests, disable_tqdm=True)]
        assert sample["acc"] == float(said.index(max(said)) == (10 + number) % 3)
        assert [score for ((score, _),) in sample["resps"]] == pytest.approx(said)
    for sample in run["samples"]["continue"]:
        prompt = tokenizer(sample["doc"]["question"], return_tensors="pt")["input_ids"]
        expected = model.generate(prompt, max_new_tokens=5, do_sample=False)[0, prompt.shape[1] :]
        wanted = tokenizer.decode(expected, skip_special_tokens=True).split("w0")[0].split()
        assert sample["resps"][0][0].split() == wanted


@pytest.mark.parametrize("attention", ["sparq", "dense", "own"])
def test_weights_of_few_bits(checkpoint: Path, attention: str) -> None:
    words = f"pretrained={checkpoint},attention={attention}"
    both = [
        registry.get_model("sparq").create_from_arg_string(words + more, {"batch_size": 1})
        for more in (",dtype=bfloat16", ",weights=int4")
    ]
    assert [weights_of(lm.model) for lm in both] == [None, "int4"]
    of_16_bits, of_few = (scores(lm) for lm in both)
    assert of_16_bits != of_few


def test_weights_are_checked_before_a_model_is_read() -> None:
    with pytest.raises(ValueError, match=r"^SparqLM: weights must be one of int8, int4, or None, got"):
        SparqLM("/nowhere", weights="int2")


def test_what_the_command_line_makes(checkpoint: Path) -> None:
    words = f"pretrained={checkpoint},rank=2,top_k=3,layers=0:dense 1:no-mean-value"
    lm = registry.get_model("sparq").create_from_arg_string(words, {"batch_size": 1})
    assert type(lm) is SparqLM and is_enabled(lm.model)
    first, second, third = decoding("test", lm.model).settings
    assert first is None and not second.mean_value and third.mean_value
    assert (third.rank, third.top_k) == (2, 3)


def test_settings(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}
    monkeypatch.setattr("sparq_study.lm_eval.enable", lambda model, **options: given.update(options))
    SparqLM(model, tokenizer=tokenizer)
    assert (
        not set(given) & set(RECOMMENDED) - {"layers"} and given["layers"] is None and not given["published"]
    )
    for options, message in [
        (dict(attention="sparse"), "SparqLM: attention must be one of sparq, dense, own, got 'sparse'"),
        (dict(attention="dense", rank=3), "SparqLM: attention must be sparq where it has settings"),
        (dict(decoded_context=-1), "SparqLM: decoded_context must"),
    ]:
        with pytest.raises(ValueError, match=message):
            SparqLM(model, tokenizer=tokenizer, **options)


def test_an_answer_is_the_likeliest_if_each_token_is() -> None:
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for tokens, likeliest in (([1, 0], True), ([1, 1], False), ([0, 0], False)):
        chosen, is_likeliest = SparqLM._score(logits, tokens)
        expected = sum(row[token] for row, token in zip(logits.log_softmax(-1), tokens))
        assert chosen == pytest.approx(float(expected)) and is_likeliest is likeliest
