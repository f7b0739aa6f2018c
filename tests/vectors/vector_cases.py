# SPDX-License-Identifier: Apache-2.0
"""What the conformance vectors hold: inputs made of integers alone, so that they are the same with every
NumPy, and what the reference makes of them."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import numpy as np
from vector_file import INDEX_OF, VERSION, Record

from sparq_reference import SparqSettings, WindowSettings, exact, numerics, prompt, window
from sparq_reference.cache import KVCache

_HALF_MAX = 65504.0


def _random(seed: int, n: int) -> np.ndarray:
    """(n,) uint64: splitmix64."""
    x = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))


def contents(kind: str, seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """float16 numbers of a kind: normal (nearly), ties (few different ones), huge (saturating), tiny
    (denormal), zeros (of both signs), equal, wide (magnitudes of all of float16), peaks (a few are large),
    apart (far from 0, but for one in 64 of the rows)."""
    u = _random(seed, int(np.prod(shape))).reshape(shape)
    sign = 1.0 - 2.0 * (u >> np.uint64(63))

    def below(n: int, shift: int = 0) -> np.ndarray:
        return ((u >> np.uint64(shift)) % np.uint64(n)).astype(np.float64)

    normal = 1.75 * (sum(below(1 << 16, shift) for shift in (0, 16, 32, 47)) / 2**16 - 2)
    made = {
        "normal": normal,
        "ties": below(5) / 2 - 1,
        "huge": sign * (_HALF_MAX - 32 * below(2) - 32752 * below(2, 8)),
        "tiny": (below(2049) - 1024) * 2.0**-24,
        "zeros": sign * 0.0,
        "equal": np.full(shape, 0.75),
        "wide": sign * (1 + below(1024, 20) / 1024) * 2.0 ** (below(40) - 24),
        "peaks": normal * np.where(below(16, 3) == 0, 6.0, 0.25),
        "apart": np.where(np.arange(shape[-2])[:, None] % 64 == 37, 8 * normal, normal - 2),
    }[kind]
    return np.asarray(made).astype(np.float16)


class Case:
    """A file as it is written: every call goes to the reference, and what comes of it is kept."""

    def __init__(
        self, seed: int, batch: int, n_kv_heads: int, n_heads: int, head_dim: int, capacity: int, **bits: int
    ):
        options = {"index_bits": 16, "row_bits": 16, **bits}
        index = {name: options.pop(name) for name in INDEX_OF.values() if name in options}
        numbers = dict(
            version=VERSION,
            batch=batch,
            n_kv_heads=n_kv_heads,
            n_heads=n_heads,
            head_dim=head_dim,
            capacity=capacity,
            **options,
        )
        self.cache = KVCache(batch, n_kv_heads, head_dim, capacity, **options, **index)
        self.n_heads = n_heads
        self.records = [Record("cache", numbers, {})]
        self._seed = seed << 8

    def _keep(self, kind: str, numbers: dict[str, int], **arrays: np.ndarray) -> None:
        self.records.append(Record(kind, numbers, arrays))

    def make(self, kind: str, n_heads: int, *n: int) -> np.ndarray:
        self._seed += 1
        return contents(kind, self._seed, (self.cache.batch, n_heads, *n, self.cache.head_dim))

    def append(self, n: int | list[int], kind: str = "normal", of_value: str | None = None) -> None:
        """So many tokens, in all elements of the batch or each; behind them the arrays hold NaN."""
        lengths = np.broadcast_to(n, self.cache.batch)
        most = int(lengths.max())
        key = self.make(kind, self.cache.n_kv_heads, most)
        self.append_rows(key, self.make(of_value or kind, self.cache.n_kv_heads, most), lengths)

    def append_rows(self, key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> None:
        for b, length in enumerate(lengths):
            key[b, :, length:] = value[b, :, length:] = np.nan
        self.cache.append(key, value, lengths)
        self._keep("append", dict(n_tokens=key.shape[2]), lengths=lengths, key=key, value=value)

    def truncate(self, lengths: list[int]) -> None:
        self.cache.truncate(np.array(lengths))
        self._keep("truncate", {}, lengths=np.array(lengths))

    def reorder(self, index: list[int]) -> None:
        self.cache.reorder(np.array(index))
        self._keep("reorder", {}, index=np.array(index))

    def reset(self) -> None:
        self.cache.reset()
        self._keep("reset", {})

    def observe(self, n_tokens: int, settings: WindowSettings) -> None:
        query = self.make("normal", self.n_heads, n_tokens)
        self.cache.observe(query, settings)
        self._keep("observe", dict(n_tokens=n_tokens, **settings.arguments()), query=query)

    def dense(self, kind: str = "normal") -> None:
        query = self.make(kind, self.n_heads)
        self._keep("dense", {}, query=query, output=self.cache.attention(query))

    def sparq(
        self, rank: int, top_k: int, n_local: int = 0, mean_value: bool = True, kind: str = "normal"
    ) -> None:
        """Of a cache with an option of INDEX_OF a record of its own kind."""
        query, cache = self.make(kind, self.n_heads), self.cache
        settings = SparqSettings(rank, top_k, n_local, mean_value)
        steps = exact.sparq_steps(
            query,
            cache.key,
            cache.value,
            settings,
            index_bits=cache.index_bits,
            index_components=cache.index_components,
            lengths=cache.lengths,
            value_sum=cache.value_sum,
        )
        numbers = dict(
            rank=rank,
            top_k=top_k,
            n_local=n_local,
            mean_value=int(mean_value),
            width=steps.positions.shape[2],
        )
        arrays = dict(
            query=query,
            output=cache.attention(query, settings),
            components=steps.components,
            positions=steps.positions,
        )
        (kind,) = [kind for kind, name in INDEX_OF.items() if getattr(cache, name)] or ["sparq"]
        if kind != "sparq":
            numbers[INDEX_OF[kind]] = getattr(cache, INDEX_OF[kind])
        self._keep(kind, numbers, **arrays)

    def window(self, settings: WindowSettings, kind: str = "normal") -> None:
        query, cache = self.make(kind, self.n_heads), self.cache
        seq_len = int(cache.lengths.max())
        sums = np.zeros((cache.batch, seq_len), np.uint32)
        if settings.remembers and cache.history is not None:
            sums = cache.history.sums(seq_len)
        positions, _ = window.select_positions(sums, settings, cache.lengths)
        output = cache.attention(query, settings)
        numbers = dict(**settings.arguments(), width=positions.shape[1])
        self._keep("window", numbers, query=query, output=output, positions=positions)

    def prompt(
        self,
        n_tokens: int,
        n: int,
        integers: bool,
        window: int,
        starts: list[int],
        kind: str = "normal",
        blocks: int = 0,
        blocks_from: int = 0,
        of_key: str = "",
    ) -> None:
        """Of float16 numbers in fp32: no rounding of outputs hides a bit. blocks: -log2 of the share."""
        n_kv_heads = self.cache.n_kv_heads
        arrays = dict(query=self.make(kind, self.n_heads, n_tokens))
        arrays["key"], arrays["value"] = (self.make(x, n_kv_heads, n) for x in (of_key or kind, kind))
        wide = {name: x.astype(np.float32) for name, x in arrays.items()}
        settings: Any = dict(integers=integers, window=window, starts=starts)
        share = 2.0**-blocks if blocks else 0.0
        output = prompt.prompt_attention(**wide, **settings, blocks=share, blocks_from=blocks_from)
        numbers = dict(n_tokens=n_tokens, n_positions=n, integers=int(integers), window=window, blocks=blocks)
        numbers.update(blocks_from=blocks_from)
        self._keep("prompt", numbers, starts=np.array(starts), **arrays, output=output)

    def rows(self) -> None:
        key, value = (np.nan_to_num(rows) for rows in (self.cache.key, self.cache.value))
        self._keep("rows", dict(n_positions=key.shape[2]), lengths=self.cache.lengths, key=key, value=value)

    def shares(self) -> None:
        assert self.cache.history is not None
        n = int(self.cache.lengths.max())
        self._keep("shares", dict(n_positions=n), sums=self.cache.history.sums(n))


def _narrowing() -> Case:
    """Means of two float16 numbers: ties of rounding, those between denormals among them."""
    case = Case(1, 4, 1, 1, 256, 2)
    value = np.zeros((4, 1, 2, 256))
    value[0, 0, 0] = np.arange(256) * 2.0**-24
    value[1, 0] = (1024 + np.arange(256)) * 2.0**-10 + np.array([[0], [2.0**-10]])
    value[2, 0] = -value[1, 0] * 2.0**-14
    value[3, 0] = _HALF_MAX - 32 * (np.arange(256) % 3) * np.array([[0], [1]])
    key = np.zeros(value.shape, np.float16)
    case.append_rows(key, value.astype(np.float16), np.full(4, 2))
    case.dense()
    case.sparq(4, 1)
    return case


def _lengths(bits: int) -> Case:
    case = Case(10 + bits, 6, 1, 1, 8, 140, index_bits=bits)
    case.append([1, 7, 63, 64, 65, 129], of_value="wide")
    case.dense()
    for settings in ((2, 8, 3), (8, 200, 0), (1, 1, 0), (3, 5, 5, False), (5, 64, 1)):
        case.sparq(*settings)
    case.append(1)
    case.dense("peaks")
    case.sparq(2, 8, 3)
    return case


def _appends(bits: int) -> Case:
    case = Case(30 + bits, 2, 1, 2, 16, 260, index_bits=bits)
    case.append([150, 77])
    case.dense()
    case.sparq(4, 20, 5)
    case.append([45, 42], "peaks")
    for _ in range(9):  # to 204 and 128: the second block of the shorter becomes full
        case.append(1)
    case.sparq(4, 20, 5)
    case.truncate([190, 63])
    case.sparq(4, 20, 5)
    case.append([4, 1])
    case.dense()
    case.sparq(7, 33, 0, False)
    case.reorder([1, 1])
    case.append([3, 0])
    case.sparq(4, 20, 5)
    case.rows()
    case.reset()
    case.append([1, 9])
    case.dense()
    case.sparq(4, 20, 5)
    return case


def _contents(kind: str, bits: int) -> Case:
    seed = 100 + bits + 20 * sum(map(ord, kind))
    case = Case(seed, 1, 1, 2, 16, 130, index_bits=bits)
    case.append(130, kind)
    case.dense(kind)
    for of_query in (kind, "normal"):
        case.sparq(4, 24, 3, kind=of_query)
    case.sparq(16, 10, 0, False, kind="normal")
    return case


def _steps_near_ties(bits: int) -> Case:
    """Blocks whose step is another number where a range is divided by the largest code, and not multiplied
    by its inverse (E9); of a million random ranges hundreds are such."""
    case = Case(50 + bits, 1, 1, 2, 64, 128, index_bits=bits)
    u = _random(50 + bits, 1 << 20)
    low = ((u % np.uint64(2001)).astype(np.float64) / 1000 - 1) * 2.0**-6
    high = 1 + ((u >> np.uint64(20)) % np.uint64(7168)).astype(np.float64) / 1024
    low, high = low.astype(np.float16), high.astype(np.float16)
    span, most = numerics.widen(high) - numerics.widen(low), np.float32(2**bits - 1)
    multiplied = numerics.to_half(span * (np.float32(1) / most))
    differ = np.flatnonzero(multiplied != numerics.to_half(span / most))[:64]
    assert len(differ) == 64
    key = case.make("normal", 1, 70)
    between = (np.abs(key[0, 0, 2:64].astype(np.float64)) / 4) * (high[differ] - low[differ]) + low[differ]
    key[0, 0, 0], key[0, 0, 1], key[0, 0, 2:64] = low[differ], high[differ], between.astype(np.float16)
    case.append_rows(key, case.make("normal", 1, 70), np.array([70]))
    for settings in ((64, 10, 0), (9, 10, 2)):
        case.sparq(*settings)
    return case


def _head_dim(head_dim: int, n_kv_heads: int, n_heads: int) -> Case:
    case = Case(70 + head_dim, 1, n_kv_heads, n_heads, head_dim, 66)
    case.append(66, "peaks")
    case.dense()
    case.sparq(head_dim // 3, 20, 4, kind="peaks")
    case.sparq(head_dim, 17)
    return case


def _long(bits: int) -> Case:
    case = Case(400 + bits, 1, 1, 2, 8, 1100, index_bits=bits)
    case.append(1100, "peaks")
    case.dense()
    case.sparq(3, 200, 20)
    case.sparq(5, 1000, 1, False)
    return case


def _rows_of_8_bits(kind: str, bits: int) -> Case:
    case = Case(500 + bits + sum(map(ord, kind)), 2, 1, 2, 24, 120, index_bits=bits, row_bits=8)
    case.append([100, 64], kind)
    case.rows()
    case.dense()
    case.sparq(6, 16, 2)
    for _ in range(3):
        case.append(1, kind)
    case.sparq(6, 16, 2)
    case.truncate([99, 66])
    case.dense(kind)
    case.sparq(24, 300)
    return case


def _first(kind: str, bits: int, row_bits: int, components: int) -> Case:
    case = Case(
        800 + bits + row_bits + components + sum(map(ord, kind)),
        2,
        1,
        2,
        24,
        80,
        index_bits=bits,
        row_bits=row_bits,
        index_components=components,
    )
    case.append([66, 63], kind)
    case.sparq(8, 16, 2)
    case.append([3, 1])  # the shorter has its first full block
    case.sparq(components, 16, 2, kind=kind)
    case.sparq(3, 9, 0, False)
    case.truncate([65, 64])
    case.sparq(1, 20, 0)
    case.reorder([1, 0])
    case.sparq(5, 33, 4)
    return case


def _prompt(integers: bool) -> Case:
    case = Case(900 + integers, 2, 1, 2, 16, 1)
    case.prompt(15, 131, integers, 0, [0, 0], "peaks")
    case.prompt(70, 70, integers, 0, [0, 6])
    case.prompt(9, 140, integers, 66, [3, 138])
    for kind in ("huge", "tiny", "zeros", "wide"):
        case.prompt(3, 65, integers, 0, [0, 1], kind)
    case.prompt(9, 389, integers, 0, [0, 2], blocks=2, blocks_from=383, of_key="apart")
    return case


def _prompt_of_head_dim(head_dim: int, integers: bool) -> Case:
    case = Case(920 + head_dim + integers, 1, 1, 3, head_dim, 1)
    case.prompt(2, 66, integers, 0, [0], "peaks")
    return case


def _window(settings: tuple[int, int | None, int], bits: int, row_bits: int) -> Case:
    n_recent = settings[2]
    case = Case(600 + n_recent + bits + row_bits, 2, 2, 4, 16, 130, index_bits=bits, row_bits=row_bits)
    chosen = WindowSettings(*settings)  # type: ignore[arg-type]  # None: half
    case.append([90, 36])  # of the shorter every sixth: fewer than there is room for
    case.observe(3, chosen)
    for n in range(6):
        case.append([1, n % 2])
        case.window(chosen, "peaks" if n % 2 else "normal")
    if chosen.remembers:
        case.shares()
    case.truncate([94, 38])
    case.append(2)
    case.window(chosen)
    case.reorder([1, 0])
    case.append([1, 30])
    for _ in range(2):
        case.window(chosen)
    if chosen.remembers:
        case.shares()
    case.sparq(4, 9, 2)
    case.window(chosen)
    return case


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Names, and what makes the case."""

    def of(function: Callable[..., Case], *arguments: Any) -> Callable[[], Case]:
        return lambda: function(*arguments)

    yield "narrowing", _narrowing
    for bits in (16, 8, 4, 2):
        yield f"lengths_index{bits}", of(_lengths, bits)
        yield f"appends_index{bits}", of(_appends, bits)
        yield f"long_index{bits}", of(_long, bits)
        for kind in ("ties", "huge", "tiny", "zeros", "equal", "wide"):
            yield f"{kind}_index{bits}", of(_contents, kind, bits)
        if bits in (8, 4):  # of 2 bits such ranges are rare
            yield f"steps_near_ties_index{bits}", of(_steps_near_ties, bits)
        yield f"rows8_index{bits}", of(_rows_of_8_bits, "peaks", bits)
    for kind in ("huge", "tiny", "wide"):
        yield f"rows8_{kind}_index4", of(_rows_of_8_bits, kind, 4)
    for kind, bits, row_bits, components in (
        ("peaks", 4, 16, 16),
        ("peaks", 2, 16, 8),
        ("huge", 8, 16, 16),
        ("ties", 2, 8, 16),
        ("wide", 16, 16, 8),
    ):
        rows = "" if row_bits == 16 else "_rows8"
        yield f"first_{kind}_index{bits}{rows}", of(_first, kind, bits, row_bits, components)
    for shape in ((80, 1, 3), (128, 2, 2), (256, 1, 8)):
        yield f"head_dim{shape[0]}", of(_head_dim, *shape)
    for integers in (False, True):
        form = "integers" if integers else "floats"
        yield f"prompt_{form}", of(_prompt, integers)
        for head_dim in (80, 136):
            yield f"prompt_{form}_head_dim{head_dim}", of(_prompt_of_head_dim, head_dim, integers)
    yield "window_index16", of(_window, (9, None, 3), 16, 16)
    yield "window_index4_rows8", of(_window, (12, 2, 5), 4, 8)
    yield "window_local_index16", of(_window, (8, 8, 4), 16, 16)
    yield "window_strided_index16", of(_window, (9, 2, 0), 16, 16)
