# SPDX-License-Identifier: Apache-2.0
"""Types of poplar_ops/bindings/cpu*.cpp. tests/bindings compares both."""

from typing import Sequence

import numpy as np

from sparq_reference.settings import CacheSpec, SparqSettings, WindowSettings

def available_isas() -> list[str]: ...
def default_threads() -> int: ...
def use_openmp() -> bool: ...
def int4_product(
    rows: int,
    weights: int,
    output: int,
    n_rows: int,
    in_features: int,
    out_features: int,
    *,
    n_threads: int = 0,
    isa: str = "auto",
) -> None: ...
def int8_product(
    rows: int,
    codes: int,
    scale: int,
    output: int,
    n_rows: int,
    in_features: int,
    out_features: int,
    *,
    n_threads: int = 0,
    isa: str = "auto",
) -> None: ...
def prompt_attention(
    dtype: str,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value: tuple[int, int, int, int],
    sizes: tuple[int, int, int, int, int, int],
    scale: float,
    output: int,
    *,
    n_threads: int = 0,
    isa: str = "auto",
) -> None: ...

class KVCache:
    """Keys and values in host memory, and attention over them."""

    def __init__(self, spec: CacheSpec, *, n_threads: int = 0, isa: str = "auto") -> None: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def key_index_bytes(self) -> int: ...
    def rows(self, index: list[int]) -> KVCache: ...
    def append(
        self,
        key: object,
        value: object,
        lengths: object = None,
        check: object = None,
        check_finite: bool = False,
    ) -> None: ...
    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]: ...
    def truncate(self, lengths: np.ndarray) -> None: ...
    def reset(self) -> None: ...
    def reorder(self, index: np.ndarray) -> None: ...
    def attend(
        self,
        query: object,
        settings: object = None,
        check: object = None,
        check_finite: bool = False,
    ) -> np.ndarray: ...
    def observe(self, query: np.ndarray, settings: WindowSettings) -> None: ...
    @property
    def n_recent(self) -> int: ...
    def history(self, element: int) -> list[np.ndarray]: ...
    def begin_history(self, n_recent: int) -> None: ...
    def add_step(self, element: int, shares: np.ndarray) -> None: ...

def attend_rotary(
    cache: KVCache,
    dtype: str,
    products: int,
    cos: int,
    sin: int,
    rows: int,
    n_heads: int,
    output: int,
    settings: SparqSettings | None,
) -> list[int] | None: ...
def rms_norm(weight: int, epsilon: float, n: int, lanes: int, input: int, output: int) -> None: ...
def mean_of_squares(n: int, lanes: int, row: int) -> float: ...

class DecoderStep:
    """A step of one token through a decoder of the kind of Llama."""

    def __init__(
        self,
        norms: Sequence[int],
        linears: Sequence[tuple[int, int, int, int, int]],
        epsilon: float,
        hidden: int,
        lanes: int,
        activation: int,
    ) -> None: ...
    def begin(self, n_rows: int, hidden: int, products: int, n_threads: int) -> None: ...
    def next(
        self, layer: int, n_rows: int, attended: int, hidden: int, products: int, n_threads: int
    ) -> None: ...
    def run(
        self,
        layer: int,
        attention: Sequence[tuple[KVCache, SparqSettings | None] | None],
        cos: int,
        sin: int,
        rows: int,
        n_heads: int,
        n_rows: int,
        hidden: int,
        products: int,
        n_threads: int,
        lengths: list[list[int]],
    ) -> tuple[int, float, float]: ...

class StreamSum:
    """Reads memory as fast as it can: what a benchmark compares attention with."""

    def __init__(self, n_bytes: int, *, n_threads: int = 0, isa: str = "auto") -> None: ...
    def run(self, offset: int, n_bytes: int) -> float: ...
