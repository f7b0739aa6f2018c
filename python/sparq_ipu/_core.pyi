# SPDX-License-Identifier: Apache-2.0
"""Types of poplar_ops/bindings/core.cpp, run_vertex.cpp and emulator.cpp. tests/bindings compares both."""

from typing import Any, Sequence

import numpy as np

from sparq_ipu.kernels import Attention
from sparq_reference.settings import CacheSpec

#: whether this build has the emulator; without it, no function below whose name begins so
has_emulator: bool

class Session:
    """Attention programs over one cache, compiled and on a device."""

    def __init__(
        self,
        cache: CacheSpec,
        n_heads: int,
        *,
        attention: Sequence[Attention] = (),
        append: bool = True,
        device: str = "emulator",
        n_tiles: int = 0,
        repeats: int = 0,
        fill_tokens: int = 0,
    ) -> None: ...
    @property
    def lengths(self) -> list[int]: ...
    def write(self, key: np.ndarray, value: np.ndarray, counts: Sequence[int]) -> None: ...
    def append(self, key: np.ndarray, value: np.ndarray, active: Sequence[int]) -> None: ...
    def fill(self, key: np.ndarray, value: np.ndarray, lengths: Sequence[int]) -> None: ...
    def read(self, n_tokens: int) -> tuple[np.ndarray, np.ndarray]: ...
    def reset(self) -> None: ...
    def attention(self, index: int, query: np.ndarray, repeated: bool = False) -> np.ndarray: ...

def kernels() -> list[dict[str, Any]]: ...
def device_unavailable(device: str) -> str: ...
def run_vertex(
    name: str, fields: dict[str, np.ndarray], settings: dict[str, Any], device: str = "emulator"
) -> dict[str, np.ndarray]: ...
def emulator_device_model() -> dict[str, Any]: ...
def emulator_streaming_seconds(bytes: int, packets: int, rows: int, model: dict[str, Any] = {}) -> float: ...
def emulator_last_run(session: Session, model: dict[str, Any] = {}) -> dict[str, Any]: ...
def emulator_memory(session: Session) -> dict[str, Any]: ...
def emulator_plan(
    cache: CacheSpec,
    n_heads: int,
    attention: Attention,
    append: bool,
    n_tiles: int,
    lengths: Sequence[int],
    model: dict[str, Any],
) -> dict[str, Any]: ...
