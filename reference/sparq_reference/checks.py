# SPDX-License-Identifier: Apache-2.0
"""Validation of arguments, in one place for every package of the project.

Each failure is one ValueError, `<op>: <argument> must <rule>, got <value>`, raised before any state changes.
The functions take NumPy arrays; callers that hold other containers pass views of them.
"""

from __future__ import annotations

import operator
from typing import NoReturn, Protocol, Sequence

import numpy as np

from sparq_reference.errors import NotFinite


class CacheShape(Protocol):
    """What the checks below read of a `CacheSpec`."""

    @property
    def batch(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def capacity(self) -> int: ...


#: most positions of one batch element: a count up to here is exact in fp32 (E7)
MAX_CAPACITY = 1 << 24
#: most layers of one cache
MAX_LAYERS = 1024
#: bits of a number of the key index (E9); 16: the keys themselves
INDEX_BITS = (16, 8, 4, 2)
#: bits of a number of a row of keys and values (docs/exactness.md, E10)
ROW_BITS = (16, 8)
#: largest head_dim with a key index of fewer bits: the sum of head_dim products of a code and a coefficient
#: of at least 1 stays below 2**24 (E9)
MAX_INDEX_HEAD_DIM = 1 << 16
#: head_dim is a multiple of this: the lanes of a dot product
HEAD_DIM_MULTIPLE = 8

_HALF = np.dtype(np.float16)
# Arrays without axes: these cost less beside an array than numbers, which are converted anew each time.
_HALF_MAGNITUDE = np.array(0x7FFF, np.uint16)
_HALF_INFINITY = np.array(0x7C00, np.uint16)
#: elements that are looked at in one go: bounds the memory that takes
_AT_ONCE = 1 << 20


def fail(op: str, argument: str, rule: str, got: object, kind: type[ValueError] = ValueError) -> NoReturn:
    """Raise the ValueError `<op>: <argument> must <rule>, got <got>`; `kind` is a type derived from it."""
    raise kind(f"{op}: {argument} must {rule}, got {got}")


def check_integer(
    op: str, argument: str, value: object, low: int, high: int, interval: str | None = None
) -> int:
    """`value` as an int in [low, high]; `interval` is its text if names make it clearer. bool is refused."""
    if type(value) is int and low <= value <= high:  # nearly every call
        return value
    interval = interval or f"[{low}, {high}]"
    number = _index(op, argument, value, f"be an integer in {interval}")
    if not low <= number <= high:
        fail(op, argument, f"be in {interval}", number)
    return number


def _index(op: str, argument: str, value: object, rule: str) -> int:
    """`value` as an int; bool is refused, with this rule."""
    if isinstance(value, (bool, np.bool_)):
        fail(op, argument, rule, repr(value))
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        fail(op, argument, rule, repr(value))


def _check_bits(op: str, argument: str, value: object, allowed: Sequence[int]) -> int:
    """`value` as an int, one of `allowed`."""
    rule = f"be one of {', '.join(map(str, allowed))}"
    number = _index(op, argument, value, rule)
    if number not in allowed:
        fail(op, argument, rule, number)
    return number


def check_index_bits(op: str, value: object, head_dim: int) -> int:
    """`value` as an int of INDEX_BITS; with fewer than 16, head_dim has a limit."""
    number = _check_bits(op, "index_bits", value, INDEX_BITS)
    if number != INDEX_BITS[0] and head_dim > MAX_INDEX_HEAD_DIM:
        fail(op, "head_dim", f"be at most {MAX_INDEX_HEAD_DIM} with index_bits={number}", head_dim)
    return number


def check_index_components(op: str, value: object, head_dim: int) -> int:
    """`value` as an int: 0, or a multiple of HEAD_DIM_MULTIPLE up to head_dim."""
    number = check_integer(op, "index_components", value, 0, head_dim, f"[0, head_dim={head_dim}]")
    if number % HEAD_DIM_MULTIPLE:
        fail(op, "index_components", f"be a multiple of {HEAD_DIM_MULTIPLE}", number)
    return number


def check_rank(op: str, rank: object, head_dim: int, index_components: int = 0) -> int:
    """`rank` as an int: at most as many components as there are in the key index."""
    name = "index_components" if index_components else "head_dim"
    most = index_components or head_dim
    return check_integer(op, "rank", rank, 1, most, f"[1, {name}={most}]")


def check_row_bits(op: str, value: object) -> int:
    """`value` as an int of ROW_BITS."""
    return _check_bits(op, "row_bits", value, ROW_BITS)


def check_bool(op: str, argument: str, value: object) -> bool:
    """`value` as a bool."""
    if not isinstance(value, (bool, np.bool_)):
        fail(op, argument, "be True or False", repr(value))
    return bool(value)


def check_integers(
    op: str, argument: str, values: object, batch: int, low: int, high: np.ndarray, interval: str
) -> np.ndarray:
    """`values` as int64 (batch,), each in [low, high[b]]. `interval` is the text of the interval: {b} stands
    for the first element that is not in it, {high} for its end."""
    if isinstance(values, np.ma.MaskedArray):  # masked elements would be read
        fail(op, argument, "be integers without a mask", type(values).__name__)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        fail(op, argument, "be integers", repr(values))
    if array.dtype.kind not in "iu":
        fail(op, argument, "be integers", array.dtype)
    if array.shape != (batch,):
        fail(op, argument, f"have shape (batch={batch},)", array.shape)
    bad = (array < low) | (array > high)
    if bad.any():
        b = int(np.argmax(bad))
        fail(op, argument, "be in " + interval.format(b=b, high=high[b]), int(array[b]))
    return array.astype(np.int64)


def _all_finite(array: np.ndarray) -> bool:
    # float16 by its bits: isfinite widens every element, which takes a third of a SparQ call
    if array.dtype == _HALF:
        return not np.count_nonzero((array.view(np.uint16) & _HALF_MAGNITUDE) >= _HALF_INFINITY)
    return bool(np.isfinite(array).all())


def check_finite(op: str, argument: str, array: np.ndarray, lengths: np.ndarray | None = None) -> None:
    """No NaN, no infinity; of (batch, heads, n, head_dim) with `lengths`, in the positions that exist."""
    # The common case, without a loop. Numbers beyond a length need not be finite, so the loop decides.
    if array.size <= _AT_ONCE and _all_finite(array):
        return
    for b in range(array.shape[0]):
        for h in range(array.shape[1]):
            part = array[b, h] if lengths is None else array[b, h, : lengths[b]]
            if not _all_finite(part):
                where = tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
                fail(op, argument, "be finite", f"{part[where]} at {[b, h, *where]}", NotFinite)


def _check_dtype(op: str, argument: str, array: object, dtype: np.dtype | None) -> None:
    if type(array) is not np.ndarray:  # nearly no call
        if not isinstance(array, np.ndarray):
            fail(op, argument, "be a NumPy array", type(array).__name__)
        if isinstance(array, np.ma.MaskedArray):  # masked elements would be read
            fail(op, argument, "be a NumPy array without a mask", type(array).__name__)
    if dtype is None:
        if array.dtype.kind != "f":
            fail(op, argument, "be floating point", array.dtype)
    elif array.dtype != dtype:
        fail(op, argument, f"be {np.dtype(dtype).name}", array.dtype)


def check_attention(
    op: str,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    lengths: object = None,
    value_sum: np.ndarray | None = None,
    check_finite: bool,
    exact: bool,
) -> np.ndarray:
    """Validate the tensors of one attention call, see `Twin.dense_attention`; return `lengths` as int64
    (batch,). exact: require float16 (value_sum float32) and head_dim a multiple of 8; else any floating
    dtype."""
    half = _HALF if exact else None
    for name, array, axes in (
        ("query", query, "(batch, n_heads, head_dim)"),
        ("key", key, "(batch, n_kv_heads, seq_len, head_dim)"),
        ("value", value, "(batch, n_kv_heads, seq_len, head_dim)"),
    ):
        _check_dtype(op, name, array, half)
        if array.ndim != axes.count(",") + 1 or 0 in array.shape:
            fail(op, name, f"have shape {axes}, none of them 0", array.shape)
    batch, n_heads, head_dim = query.shape
    n_kv_heads, seq_len = key.shape[1:3]
    if key.shape[0] != batch or key.shape[3] != head_dim:
        fail(op, "key", f"have shape (batch={batch}, n_kv_heads, seq_len, head_dim={head_dim})", key.shape)
    if value.shape != key.shape:
        fail(op, "value", f"have the shape of key, {key.shape}", value.shape)
    if n_heads % n_kv_heads:
        fail(op, "n_heads", f"be a multiple of n_kv_heads={n_kv_heads}", n_heads)
    if exact and head_dim % HEAD_DIM_MULTIPLE:
        fail(op, "head_dim", f"be a multiple of {HEAD_DIM_MULTIPLE}", head_dim)
    if seq_len > MAX_CAPACITY:
        fail(op, "seq_len", f"be in [1, {MAX_CAPACITY}]", seq_len)
    if lengths is None:
        checked = np.full(batch, seq_len, np.int64)
    else:
        high = np.full(batch, seq_len, np.int64)
        checked = check_integers(op, "lengths", lengths, batch, 1, high, f"[1, seq_len={seq_len}]")
    if value_sum is not None:
        _check_dtype(op, "value_sum", value_sum, np.dtype(np.float32) if exact else None)
        if value_sum.shape != (batch, n_kv_heads, head_dim):
            rule = f"have shape (batch={batch}, n_kv_heads={n_kv_heads}, head_dim={head_dim})"
            fail(op, "value_sum", rule, value_sum.shape)
    if check_finite:
        _check_finite(op, "query", query)
        _check_finite(op, "key", key, checked)
        _check_finite(op, "value", value, checked)
        if value_sum is not None:
            _check_finite(op, "value_sum", value_sum)
    return checked


_check_finite = check_finite  # the name without the underscore is also an argument above


def check_query(op: str, query: np.ndarray, cache: CacheShape, *, check_finite: bool = True) -> None:
    """A query for a cache: (batch, n_heads, head_dim) float16, n_heads a multiple of n_kv_heads."""
    _check_dtype(op, "query", query, _HALF)
    shape = query.shape
    if len(shape) != 3 or shape[0] != cache.batch or shape[1] == 0 or shape[2] != cache.head_dim:
        fail(op, "query", f"have shape (batch={cache.batch}, n_heads, head_dim={cache.head_dim})", shape)
    if shape[1] % cache.n_kv_heads:
        fail(op, "n_heads", f"be a multiple of n_kv_heads={cache.n_kv_heads}", shape[1])
    if check_finite:
        _check_finite(op, "query", query)


def check_tokens(
    op: str, query: np.ndarray, cache: CacheShape, lengths: np.ndarray, *, check_finite: bool = True
) -> int:
    """Queries (batch, n_heads, n_tokens, head_dim) of the last positions of a cache of such lengths; return
    n_tokens."""
    shape: tuple[int, ...] = getattr(query, "shape", ())
    if len(shape) != 4 or shape[2] == 0:
        got = shape or type(query).__name__
        fail(op, "query", "have shape (batch, n_heads, n_tokens, head_dim), none of them 0", got)
    for index in range(shape[2]):
        check_query(op, query[:, :, index], cache, check_finite=check_finite)
    if np.count_nonzero(lengths < shape[2]):
        b = int(np.argmin(lengths))
        got = f"{lengths[b]} positions of element {b}"
        fail(op, "cache", f"hold the {shape[2]} tokens of the query", got)
    return int(shape[2])


def check_not_empty(op: str, lengths: np.ndarray) -> None:
    """Attention needs a position in every batch element."""
    if np.count_nonzero(lengths < 1):
        b = int(np.argmax(lengths < 1))
        fail(op, "cache", "hold at least one position of every batch element", f"none of element {b}")


def check_append(
    op: str,
    key: np.ndarray,
    value: np.ndarray,
    cache: CacheShape,
    cache_lengths: np.ndarray,
    *,
    lengths: object = None,
    check_finite: bool = True,
) -> np.ndarray:
    """Validate tokens (batch, n_kv_heads, n_tokens, head_dim) float16 for a cache that holds `cache_lengths`;
    return how many are real, int64 (batch,): `lengths`, or n_tokens where it is None."""
    batch, n_kv_heads, head_dim = cache.batch, cache.n_kv_heads, cache.head_dim
    for name, array in (("key", key), ("value", value)):
        _check_dtype(op, name, array, _HALF)
        shape = array.shape
        if len(shape) != 4 or shape[:2] != (batch, n_kv_heads) or shape[3] != head_dim or shape[2] == 0:
            axes = f"(batch={batch}, n_kv_heads={n_kv_heads}, n_tokens >= 1, head_dim={head_dim})"
            fail(op, name, f"have shape {axes}", shape)
    if value.shape != key.shape:
        fail(op, "value", f"have the shape of key, {key.shape}", value.shape)
    n_tokens = key.shape[2]
    high = np.full(batch, n_tokens, np.int64)
    if lengths is None:
        checked = high
    else:
        checked = check_integers(op, "lengths", lengths, batch, 0, high, f"[0, n_tokens={n_tokens}]")
    after = cache_lengths + checked
    if np.count_nonzero(after > cache.capacity):
        b = int(np.argmax(after > cache.capacity))
        rule = (
            f"be at most capacity={cache.capacity} (element {b} holds {cache_lengths[b]}, {checked[b]} more)"
        )
        fail(op, "length", rule, after[b])
    if check_finite:
        _check_finite(op, "key", key, checked)
        _check_finite(op, "value", value, checked)
    return checked


def check_reorder(op: str, index: object, batch: int) -> np.ndarray:
    """`index` as int64 (batch,), each in [0, batch)."""
    high = np.full(batch, batch - 1, np.int64)
    return check_integers(op, "index", index, batch, 0, high, f"[0, batch={batch})")


def check_truncate(op: str, lengths: object, held: np.ndarray) -> np.ndarray:
    """`lengths` as int64 (batch,), each in [0, held[b]]."""
    interval = "[0, {high}] (element {b} holds {high})"
    return check_integers(op, "lengths", lengths, len(held), 0, held, interval)
