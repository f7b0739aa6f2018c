# SPDX-License-Identifier: Apache-2.0
"""What the tests of index_bits share: a shape of a few blocks of 64 positions, and what to expect of it."""

from __future__ import annotations

import re

import numpy as np

import sparq_ipu
from sparq_reference import exact

#: where caches of models live
DEVICES = [d for d in sparq_ipu.available_devices() if d in ("cpu", "reference")]
SHAPE = dict(batch=2, n_kv_heads=2, head_dim=16, capacity=150)
SETTINGS = dict(rank=4, top_k=12, n_local=2, mean_value=True)
#: what is no index_bits, and how messages show it
REFUSED = [(5, "5"), (0, "0"), (-4, "-4"), (True, "True"), (4.0, "4.0"), ("4", "'4'"), (None, "None")]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def expected(query, key, value, lengths, index_bits, settings=SETTINGS):
    return exact.sparq_attention(
        query, key, value, lengths=np.array(lengths), index_bits=index_bits, **settings
    )


def refusal(op, shown):
    return "^" + re.escape(f"{op}: index_bits must be one of 16, 8, 4, 2, got {shown}") + "$"
