# SPDX-License-Identifier: Apache-2.0
"""Files of models with random damage, by seed: each is refused in one line, or loads whole."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any, Iterator

import pytest
from gguf_files import a_gguf
from tiny_models import tiny_model, tiny_tokenizer, torch

from sparq_ipu.transformers.loading.checkpoints import load_model

pytest.importorskip("gguf")

#: flips of each file; more by hand
FLIPS = int(os.environ.get("SPARQ_TEST_FLIPS", "67"))
SECONDS = 20.0


class TooLong(BaseException):
    """Not an Exception: nothing may take it for a refusal."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def flipped(data: bytes, generator: random.Random, end: int) -> bytes:
    """One to three bytes of the first `end` become others, or the file is cut there."""
    damaged = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        damaged[generator.randrange(end)] ^= 1 << generator.randrange(8)
    if generator.random() < 0.1:
        del damaged[generator.randrange(end) :]
    return bytes(damaged)


def check_load(path: Path, whole: dict[str, Any]) -> bool:
    """Whether it loads, with all tensors as they were."""
    with time_limit(SECONDS):
        try:
            model, _ = load_model(path, "float32")
        except ValueError as error:
            text = str(error)
            assert text.startswith("load_model: ") and "\n" not in text and str(path) in text, text
            return False
    state = model.state_dict()
    assert set(state) == set(whole)
    different = [name for name, value in whole.items() if not torch.equal(state[name], value)]
    assert len(different) <= 3, different  # flips in the numbers themselves
    return True


@pytest.mark.filterwarnings("ignore")
def test_gguf_files(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=112)
    data = a_gguf(tmp_path, model, {}).read_bytes()
    header = data.index(b"output_norm.weight") + 2000
    path = tmp_path / "damaged.gguf"
    for seed in range(FLIPS):
        path.write_bytes(flipped(data, random.Random(seed), header))
        check_load(path, model.state_dict())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_checkpoint_folders(tmp_path: Path, name: str) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / name
    data = file.read_bytes()
    end = len(data) if name == "config.json" else 8 + int.from_bytes(data[:8], "little")
    for seed in range(FLIPS // 2):
        file.write_bytes(flipped(data, random.Random(seed), end))
        check_load(tmp_path, model.state_dict())


# --- what was found by hand


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"head_dim": 0},
        {"num_hidden_layers": "2"},
        {"num_hidden_layers": None},
        {"num_hidden_layers": [2, 2]},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 4},
        {"num_hidden_layers": 10**6},
        {"vocab_size": 50},
        {"rope_parameters": [1]},
        {"rope_parameters": {"rope_type": "nothing"}},
        {"dtype": "float7"},
        {"model_type": "nothing"},
        {"hidden_act": 3},
    ],
    ids=str,
)
def test_odd_configs(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert not check_load(tmp_path, model.state_dict())


@pytest.mark.parametrize("text", ["[]", "{", "", "null", "[" * 100_000])
def test_configs_that_are_no_object(tmp_path: Path, text: str) -> None:
    tiny_model().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert not check_load(tmp_path, {})


@pytest.mark.parametrize("data", [b"", b"garbage" * 20, None])
def test_weights_that_are_cut(tmp_path: Path, data: bytes | None) -> None:
    tiny_model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if data is None else data)
    line = rf"^load_model: {re.escape(str(file))} must be readable, got .+\Z"
    with time_limit(SECONDS), pytest.raises(ValueError, match=line):
        load_model(tmp_path)


def test_a_weight_that_is_missing_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"have all weights of its model, got no model.layers.1.mlp.up_proj"):
        load_model(tmp_path)
