# SPDX-License-Identifier: Apache-2.0
"""`import sparq_ipu` needs NumPy only; each framework is needed by its own package only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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


def test_the_contract_with_popart_needs_no_torch():
    code = "import importlib.util, sys, sparq_ipu; sys.modules['torch'] = None\n"
    path = "importlib.util.find_spec('sparq_ipu').submodule_search_locations[0] + '/poptorch/contract.py'"
    code += f"spec = importlib.util.spec_from_file_location('contract', {path})\n"
    code += "module = importlib.util.module_from_spec(spec); sys.modules['contract'] = module\n"
    code += "spec.loader.exec_module(module); assert len(module.OPS) == 4"
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_settings_and_checkpoints_need_no_torch():
    """What says which model to load, and what to install, is there before torch is."""
    code = "from sparq_ipu.transformers import RECOMMENDED, LayerSettings, checkpoints, generation\n"
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
        (["torch.ops"], "torch"),
        (["transformers.enable", "transformers.SparqCache"], "transformers"),
        (["transformers.cache_traffic"], "torch"),
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


def test_every_public_name_is_there():
    """Those of sparq_ipu.transformers are looked up when they are asked for."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import sparq_ipu.transformers as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(dir(package)) == set(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
