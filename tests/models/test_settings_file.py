# SPDX-License-Identifier: Apache-2.0
"""Files of settings: a model takes them, and refuses others."""

from __future__ import annotations

import json
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import enable, step_logits, tokens_of  # noqa: E402

from sparq_ipu.transformers import is_enabled  # noqa: E402
from sparq_ipu.transformers.settings.file import settings_text  # noqa: E402
from sparq_ipu.transformers.settings.layers import LayerSettings  # noqa: E402


@pytest.mark.parametrize("index", [0, 2])
def test_a_file_says_what_enable_does(model, tmp_path, index):
    settings = [LayerSettings(4, 12, 3, index_bits=4)] * 3
    settings[index] = None
    settings[1] = LayerSettings(2, 12, mean_value=False, index_bits=8)
    (tmp_path / "s.json").write_text(settings_text(settings, {"model": "tiny"}))
    layers = {index: None, 1: settings[1].arguments()}
    enable(model, **settings[2 - index].arguments(), layers=layers)
    expected = step_logits(model, tokens_of(40), 3)
    enable(model, settings=tmp_path / "s.json")
    assert torch.equal(step_logits(model, tokens_of(40), 3), expected)
    enable(model, **settings[2 - index].arguments())  # negative control
    assert not torch.equal(step_logits(model, tokens_of(40), 3), expected)


def edited(tmp_path, **changes):
    (tmp_path / "s.json").write_text(settings_text([LayerSettings(4, 12)] * 3, {}))
    content = json.loads((tmp_path / "s.json").read_text())
    content.update(changes)
    (tmp_path / "s.json").write_text(json.dumps(content))
    return tmp_path / "s.json"


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(format="x"), "a file of 'sparq-ipu settings 1', got "),
        (dict(settings=[]), "a file of 'sparq-ipu settings 1', got "),
        (dict(settings=dict(rank=4, top_k=2, topk=3, layers={})), "a file of "),
        (dict(settings=dict(rank=0, top_k=2, layers={})), "(rank must be in [1, 16777216], got 0)"),
        (
            dict(settings=dict(rank=99, top_k=2, layers={})),
            "s.json (rank must be in [1, head_dim=16], got 99)",
        ),
        (
            dict(settings=dict(rank=4, top_k=2, layers={"7": None})),
            "(layers must be in [0, n_layers=3), got 7)",
        ),
        (dict(n_layers=4), "s.json, of one with 4"),
    ],
)
def test_other_files_are_refused(model, tmp_path, changes, message):
    """By a message that names the file, and the setting that is wrong."""
    with pytest.raises(ValueError, match="^enable: .*" + re.escape(message)):
        enable(model, settings=edited(tmp_path, **changes))
    assert not is_enabled(model)


def test_files_that_are_none(model, tmp_path):
    (tmp_path / "text").write_text("rank=4")
    for path in (tmp_path / "absent", tmp_path / "text", tmp_path):
        with pytest.raises(ValueError, match=r"^enable: settings must be a file of "):
            enable(model, settings=path)
    path = edited(tmp_path)
    for options in (dict(rank=4), dict(layers={}), dict(top_k=3)):
        with pytest.raises(ValueError, match=r"^enable: settings must be given alone, got a file and "):
            enable(model, settings=path, **options)
