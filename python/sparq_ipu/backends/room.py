# SPDX-License-Identifier: Apache-2.0
"""Whether a device has room for a cache that is full, asked when the cache is made.

Memory is taken as positions come. Without this question, a cache that can never be full would be noticed when
the machine has none left.
"""

from __future__ import annotations

import os

from sparq_reference import CacheSpec, DoesNotFit, transfers

#: of an emulated IPU: SRAM of a tile, and the streaming memory of one IPU (a test compares these with
#: data/device_models.json)
TILE_BYTES = 638976
STREAMING_MEMORY_BYTES = 64 * 10**9


def host_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def sizes_of(spec: CacheSpec, n_layers: int) -> str:
    """The sizes of a cache that memory depends on beside its capacity, for messages."""
    sizes = f"batch={spec.batch}, n_kv_heads={spec.n_kv_heads}, head_dim={spec.head_dim}"
    return sizes + (f", n_layers={n_layers}" if n_layers != 1 else "")


def check_room(spec: CacheSpec, n_layers: int, room: int | None, resource: str) -> None:
    """Whether keys and values alone fit; what a device stores beside them is its own to refuse.

    Args:
        room: bytes of `resource`; None: not known.

    Raises:
        DoesNotFit: they do not; the message says which capacity would.
    """
    of_position = spec.n_tasks * transfers.row_bytes(spec.head_dim, spec.row_bits) * n_layers
    need = of_position * spec.capacity
    if room is None or need <= room:
        return
    shape = sizes_of(spec, n_layers)
    has = f"({room} bytes of {resource}; keys and values of {shape} take {of_position} a position)"
    most = room // of_position
    if most:
        message = f"KVCache: capacity must be at most {most} {has}, got {spec.capacity}"
    else:
        sizes = "batch * n_kv_heads * head_dim" + (" * n_layers" if n_layers != 1 else "")
        message = f"KVCache: {sizes} must leave room for a position {has}, got {shape}"
    raise DoesNotFit(message, resource, need, room)
