# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the model tests; the builders are in tests/helpers/tiny_models.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import pytest


@pytest.fixture
def model() -> Any:
    """A tiny random Llama."""
    from tiny_models import tiny_model

    return tiny_model()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with such a model and its tokenizer, and a file with a text of 60 words."""
    from tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """Of `sparq-ipu serve`, for such a model."""
    from tiny_server import running_engine

    with running_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Any) -> Iterator[str]:
    """Of a server with the engine."""
    from tiny_server import running_server

    with running_server(engine) as url:
        yield url
