# SPDX-License-Identifier: Apache-2.0
"""Types of poplar_ops/bindings/core.cpp, run_probe.cpp and emulator.cpp. tests/bindings compares both."""

from typing import Any, Sequence

import numpy as np

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_reference.settings import CacheSpec

#: whether this build has the emulator; without it, no function below whose name begins so
has_emulator: bool

class EngineOwner:
    """What counts of a run are asked of."""

class Session(EngineOwner):
    """Attention programs over one cache, compiled and on a device."""

    def __init__(
        self,
        cache: CacheSpec,
        n_heads: int,
        *,
        attention: Sequence[Attention] = (),
        options: DeviceOptions | None = None,
        device: str = "emulator",
        n_layers: int = 1,
        append: bool = True,
        timed: bool = False,
        fill_tokens: int = 0,
        stacked: bool = False,
    ) -> None: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_ipus(self) -> int: ...
    @property
    def n_recent(self) -> int: ...
    def history(self, layer: int = 0) -> list[list[np.ndarray]]: ...
    def set_history(self, steps: Sequence[Sequence[np.ndarray]], layer: int = 0) -> None: ...
    def misses(self) -> list[int]: ...
    def forget_hot(self) -> None: ...
    def cycles(self) -> int: ...
    @property
    def clock_hz(self) -> float: ...
    def lengths(self, layer: int = 0) -> list[int]: ...
    @property
    def streaming_memory_bytes(self) -> list[int]: ...
    @property
    def extended_memory(self) -> bool: ...
    def write(self, key: np.ndarray, value: np.ndarray, counts: Sequence[int], layer: int = 0) -> None: ...
    def append(self, key: np.ndarray, value: np.ndarray, active: Sequence[int], layer: int = 0) -> None: ...
    def fill(self, key: np.ndarray, value: np.ndarray, lengths: Sequence[int], layer: int = 0) -> None: ...
    def read(self, n_tokens: int, layer: int = 0) -> tuple[np.ndarray, np.ndarray]: ...
    def reset(self, layer: int = 0) -> None: ...
    def attention(self, index: int, query: np.ndarray, layer: int = 0) -> np.ndarray: ...
    def attend_all(self, index: int, query: np.ndarray) -> np.ndarray: ...

class Timed(EngineOwner):
    """One thing alone on a device, of which tile 0 counts the cycles."""

    def run(self) -> tuple[int, float]: ...
    @property
    def clock_hz(self) -> float: ...

class Probe(Timed):
    """What the device model has a rule of, often."""

    def __init__(
        self,
        kind: str,
        sizes: dict[str, int],
        *,
        options: DeviceOptions | None = None,
        device: str = "emulator",
    ) -> None: ...

class VertexProbe(Timed):
    """One vertex, with its edges on its tile."""

    def __init__(
        self,
        name: str,
        fields: dict[str, np.ndarray],
        settings: dict[str, Any],
        estimate: int = 0,
        *,
        device: str = "emulator",
    ) -> None: ...
    def reset(self) -> None: ...
    def arrays(self) -> dict[str, np.ndarray]: ...

def kernels() -> list[dict[str, Any]]: ...
def device_unavailable(device: str) -> str: ...
def run_vertex(
    name: str, fields: dict[str, np.ndarray], settings: dict[str, Any], device: str = "emulator"
) -> dict[str, np.ndarray]: ...
def emulator_device_model() -> dict[str, Any]: ...
def emulator_streaming_seconds(bytes: int, packets: int, rows: int, model: dict[str, Any] = {}) -> float: ...
def emulator_host_calls(session: EngineOwner) -> dict[str, Any]: ...
def emulator_last_run(session: EngineOwner, model: dict[str, Any] = {}) -> dict[str, Any]: ...
def emulator_memory(session: EngineOwner) -> dict[str, Any]: ...
def emulator_plan(
    cache: CacheSpec,
    n_heads: int,
    attention: Attention,
    lengths: Sequence[int],
    *,
    options: DeviceOptions | None = None,
    model: dict[str, Any] = {},
    append: bool = True,
    n_layers: int = 1,
    hit_rate: float = 0.0,
    stacked: bool = False,
    misses: Sequence[int] = [],
    only_between: bool = False,
) -> dict[str, Any]: ...
