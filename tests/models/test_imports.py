# SPDX-License-Identifier: Apache-2.0
"""`import sparq_ipu` needs NumPy only; each framework is needed by its own package only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparq_ipu import models
from sparq_ipu.commands.extras import needed
from sparq_ipu.transformers.loading import checkpoints

# a process in which some packages cannot be imported
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
"""


def run(code: str, *blocked: str) -> subprocess.CompletedProcess:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", BLOCK.format(blocked=blocked) + code]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


USE_A_CACHE = """
import numpy as np
import sparq_ipu
cache = sparq_ipu.KVCache(1, 1, 8, 4)
row = np.ones((1, 1, 8), np.float16)
cache.append(row[:, :, None], row[:, :, None])
assert sparq_ipu.sparq_attention(row, cache, rank=2, top_k=1).tolist() == row.tolist()
"""


def test_sparq_ipu_needs_neither_torch_nor_transformers():
    result = run(USE_A_CACHE, "torch", "transformers", "poptorch", "sklearn", "matplotlib")
    assert result.returncode == 0, result.stderr


def test_settings_and_checkpoints_need_no_torch():
    """What says which model to load, and what to install, is there before torch is."""
    code = "from sparq_ipu.transformers import RECOMMENDED, LayerSettings\n"
    code += "from sparq_ipu.transformers.generation import runs\n"
    code += "from sparq_ipu.transformers.loading import checkpoints\n"
    code += "layers = RECOMMENDED.pop('layers'); LayerSettings(**RECOMMENDED)\n"
    code += "import sparq_ipu.generate, sparq_ipu.models"
    result = run(code, "torch", "transformers")
    assert result.returncode == 0, result.stderr


def test_packages_need_their_own_framework_only():
    pytest.importorskip("torch")
    result = run("import sparq_ipu.poptorch, sparq_ipu.torch", "transformers")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "names, framework",
    [
        (["torch.SparqAttention"], "torch"),
        (["transformers.enable", "transformers.SparqCache"], "transformers"),
        (["transformers.quantise_weights"], "torch"),
    ],
)
def test_a_missing_framework_is_an_import_error(names, framework):
    """Negative control of the above: blocking does block, and packages do not hide it."""
    pytest.importorskip("torch")  # which would be missed first
    code = "import importlib\n"
    for package, name in (name.split(".") for name in names):
        code += f"try: importlib.import_module('sparq_ipu.{package}').{name}; print('{name} is there')\n"
        code += "except ImportError as error: print(error)\n"
    result = run(code, framework)
    lines = [f"blocked: {framework}" in line for line in result.stdout.splitlines()]
    assert lines == [True] * len(names), result.stdout + result.stderr


#: of an optional package: what asks for it and begins the message, and what installs it
MISSING = {"torch": (["sparq_ipu.torch", "sparq_ipu.poptorch", "sparq_ipu.transformers.enable"], "models")}
#: of commands: words, the package that is missing, how the message begins
COMMANDS = [
    (["bench/decode.py", "--model", "tiny-shape"], "torch", "bench/decode.py: torch"),
    (["bench/decode.py", "--model", "tiny-shape"], "transformers", "bench/decode.py: transformers"),
    (["examples/poptorch_decoder.py"], "torch", "poptorch_decoder.py: torch"),
    (["examples/poptorch_pod.py"], "torch", "poptorch_pod.py: torch"),
]


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_says_what_to_install(package):
    names, extra = MISSING[package]
    code = "import importlib\n" + f"sys.modules[{package!r}] = None\n"
    for name in names:
        module, _, last = name.rpartition(".")
        ask = f"importlib.import_module({name!r})" if last != "enable" else f"import {module}; {name}"
        code += f"try: {ask}\nexcept ModuleNotFoundError as error: print(error)\n"
    result = run(code)
    lines = result.stdout.splitlines()
    assert len(lines) == len(names), result.stdout + result.stderr
    for name, line in zip(names, lines):
        assert line.startswith(f"{name}: {package} must be installed, got ")
        assert line.endswith(f"; run: pip install '.[{extra}]' in a checkout of sparq-ipu")


@pytest.mark.parametrize("words, package, message", COMMANDS)
def test_a_command_says_it_in_one_line(words, package, message, tmp_path):
    """Status 2 and no traceback. A module of that name that is not there is in its place."""
    if package != "torch":
        pytest.importorskip("torch")
    name, path = f"{package}.py", Path(__file__).resolve().parents[2]
    (tmp_path / name).write_text(f"raise ModuleNotFoundError('blocked', name={package!r})\n")
    if words[0] != "-m":
        words = [str(path / words[0]), *words[1:]]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    expected = (
        f"{message} must be installed, got blocked; run: pip install '.[models]' in a checkout of sparq-ipu\n"
    )
    assert (result.returncode, result.stdout, result.stderr) == (2, "", expected)


def test_other_errors_of_an_import_pass():
    """A package that is there and broken: to install it again may not help."""
    with pytest.raises(ImportError, match=r"^libx\.so: cannot open$"):
        with needed("x"):
            raise ImportError("libx.so: cannot open", name="torch")
    with pytest.raises(ModuleNotFoundError, match=r"^other$"):
        with needed("x", is_command=True):
            raise ModuleNotFoundError("other", name="sparq_ipu.nothing")


def test_an_older_transformers_is_refused_by_name():
    """In a process of its own: modules imported anew would be others than those that tests hold."""
    pytest.importorskip("transformers")
    old = "import transformers; transformers.__version__ = '5.9.1'\n"
    result = run(old + "import sparq_ipu.transformers.integration")
    message = "sparq_ipu.transformers: transformers must be 5.24 or newer, got 5.9.1; run: pip install "
    assert result.stderr.splitlines()[-1].startswith(f"ImportError: {message}")


def test_a_folder_without_a_config_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must have a config\.json, got .* without one$"):
        checkpoints.check_path(tmp_path)


def test_a_gguf_file_needs_gguf(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    (tmp_path / "model.gguf").touch()
    monkeypatch.setitem(sys.modules, "gguf", None)
    for load in (models.load_model, lambda path: checkpoints.Checkpoint(path).config):
        with pytest.raises(ImportError, match=r"^load_model: gguf must be installed, got "):
            load(tmp_path / "model.gguf")


def test_every_public_name_is_there():
    """Those of sparq_ipu.transformers are looked up when they are asked for."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import sparq_ipu.transformers as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(dir(package)) == set(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
