# SPDX-License-Identifier: Apache-2.0
"""What a file of 4-bit weights takes while it is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

import random_gguf
from gguf import GGUFReader
from gguf.quants import dequantize

from sparq_ipu.planning.model_shape import ModelShape

LOAD = """
import sys, torch, transformers
from transformers.models.llama import modeling_llama
from sparq_ipu.transformers.loading.checkpoints import Checkpoint

def of_process(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) << 10

small = Checkpoint(sys.argv[1]).model()  # all modules are imported
before = of_process("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the most so far is forgotten
model = Checkpoint(sys.argv[2]).model()
print(of_process("VmHWM") - before)
"""


def test_fewer_layers(tmp_path: Path) -> None:
    file = tmp_path / "one.gguf"
    assert random_gguf.main(["tiny", str(file), "--layers", "1"]) == 0
    made = GGUFReader(file)
    assert made.fields["llama.block_count"].contents() == 1
    assert {name.split(".")[1] for name in (x.name for x in made.tensors) if "blk." in name} == {"0"}


def test_inputs_that_blocks_of_256_do_not_divide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ("qwen2", ModelShape("odd", 1, 14, 2, 64, 896, 512, 512, True, True), 1e6)
    monkeypatch.setitem(random_gguf.SHAPES, "odd", odd)
    random_gguf.write("odd", tmp_path / "odd.gguf")
    tensors = {x.name[:-7]: x for x in GGUFReader(tmp_path / "odd.gguf").tensors if len(x.shape) == 2}
    kinds = [tensors[name].tensor_type.name for name in ("token_embd", "blk.0.attn_q", "blk.0.ffn_down")]
    assert kinds == ["Q8_0", "Q4_0", "Q4_K"]  # inputs: 896, 896, 512
    for x in tensors.values():  # about 1 / sqrt(inputs)
        assert 0.5 < dequantize(x.data, x.tensor_type).std() * x.shape[0] ** 0.5 < 2


def test_less_than_twice_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shape whose embedding, which gets 16 bits, has a tenth of the weights, as that of 8B."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not say what a process took")
    wide = ("llama", ModelShape("wide", 8, 16, 8, 64, 1024, 4096, 8192, True, False), 1e4)
    monkeypatch.setitem(random_gguf.SHAPES, "wide", wide)
    files = [tmp_path / "tiny.gguf", tmp_path / "wide.gguf"]
    for name, file in zip(("tiny", "wide"), files):
        random_gguf.write(name, file)
    run = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, files)], capture_output=True, text=True, check=True
    )
    assert files[1].stat().st_size < int(run.stdout) < 2 * files[1].stat().st_size
