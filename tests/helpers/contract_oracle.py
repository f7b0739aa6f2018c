# SPDX-License-Identifier: Apache-2.0
"""docs/exactness.md once more, in plain Python without NumPy: an oracle with no line of the exact twin.

Numbers are Python floats (double) that hold fp32 values. `fl` rounds after every operation; for + - * /
of fp32 numbers, a double result rounded once more to fp32 is the correctly rounded one, because 53 >= 2 *
24 + 2. Tensors are nested lists, without the batch.
"""

from __future__ import annotations

import math
import struct
from typing import List, Tuple


def fl(x: float) -> float:
    """Round to fp32, nearest, ties to even."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def narrow(x: float) -> float:
    """E1: clamp, then round to fp16, nearest, ties to even."""
    x = min(max(x, -65504.0), 65504.0)
    return struct.unpack("<e", struct.pack("<e", x))[0]


def bits(x: float) -> int:
    """The bit pattern of an fp32 number, unsigned."""
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(n: int) -> float:
    """The fp32 number of a bit pattern, modulo 2**32."""
    return struct.unpack("<f", struct.pack("<I", n & 0xFFFFFFFF))[0]


def flush(x: float) -> float:
    """E2."""
    return x if abs(x) >= 2.0**-48 else 0.0


def lane_sum(numbers: list[float]) -> float:
    """E3, lane sum."""
    lanes = [0.0] * 8
    for c, x in enumerate(numbers):
        lanes[c % 8] = fl(lanes[c % 8] + x)
    four = [fl(lanes[i] + lanes[i + 4]) for i in range(4)]
    return fl(fl(four[0] + four[2]) + fl(four[1] + four[3]))


def sum_weights(weights: list[float]) -> float:
    """E3, sum of weights: lane sums of blocks of 64, added ascending."""
    total = 0.0
    for start in range(0, len(weights), 64):
        total = fl(total + lane_sum(weights[start : start + 64]))
    return total


def sum_weighted(weights: list[float], rows: list[list[float]]) -> list[float]:
    """E3, weighted sum of values."""
    total = [0.0] * len(rows[0])
    for c in range(len(total)):
        for start in range(0, len(rows), 64):
            partial = 0.0
            for w, row in zip(weights[start : start + 64], rows[start : start + 64]):
                partial = fl(partial + fl(w * row[c]))
            total[c] = fl(total[c] + partial)
    return total


def ascending_sum(numbers: list[float]) -> float:
    """E3, group sums, approximate scores, sum of values: from +0, ascending."""
    total = 0.0
    for x in numbers:
        total = fl(total + x)
    return total


def scale(head_dim: int) -> float:
    """E4."""
    return fl(1.0 / math.sqrt(head_dim))


def sqrt(t: float) -> float:
    """E4."""
    x = from_bits((bits(t) >> 1) + 0x1FBB4F2E)
    for _ in range(3):
        x = fl(0.5 * fl(x + fl(t / x)))
    return x


def exp(x: float) -> float:
    """E5."""
    if x > -(2.0**-25):
        x = 0.0
    h = float.fromhex
    t = fl(fl(x * h("0x1.715476p+0")) + h("0x1.8p+23"))
    n = fl(t - h("0x1.8p+23"))
    r = fl(fl(x - fl(n * h("0x1.63p-1"))) - fl(n * h("-0x1.bd0106p-13")))
    p = h("0x1.6d4352p-10")
    for coefficient in ("0x1.120b96p-7", "0x1.5554e8p-5", "0x1.5554dcp-3", "0x1p-1"):
        p = fl(fl(p * r) + h(coefficient))
    y = fl(1.0 + fl(r + fl(fl(r * r) * p)))
    return from_bits(bits(y) + ((bits(t) - 0x4B400000) << 23))


def softmax(scores: list[float]) -> tuple[list[float], float]:
    """E5: weights and their sum."""
    m = max(scores)
    differences = [fl(s - m) for s in scores]
    weights = [0.0 if x < -54.0 else exp(x) for x in differences]
    return weights, sum_weights(weights)


def best(numbers: list[float], count: int) -> list[int]:
    """E7: the `count` largest, equal by lower index; ascending."""
    return sorted(sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))[:count])


def attend(q: list[float], keys: list[list[float]], rows: list[list[float]]) -> list[float]:
    """E6, step 4, before narrowing."""
    scores = [fl(lane_sum([fl(a * b) for a, b in zip(q, key)]) * scale(len(q))) for key in keys]
    e, total = softmax(scores)
    return [fl(flush(x) / total) for x in sum_weighted(e, rows)]


def rne(x: float) -> float:
    """E9: the nearest integer, ties to even."""
    return fl(fl(x + 1.5 * 2.0**23) - 1.5 * 2.0**23)


def store(numbers: list[float], index_bits: int) -> tuple[float, float, list[int]]:
    """E9, what is stored: low, step and codes of one component of a full block."""
    n = 2**index_bits - 1
    low = min(numbers)
    step = narrow(fl(fl(max(numbers) - low) * fl(1.0 / n)))
    if step == 0:
        return low, step, [0] * len(numbers)
    inverse = fl(1.0 / step)
    return low, step, [min(n, int(rne(fl(fl(x - low) * inverse)))) for x in numbers]


Stored = List[Tuple[float, float, List[int]]]  #: low, step and codes of each component of a block


def block_scores(q: list[float], stored: Stored, index_bits: int) -> list[float]:
    """E9, score of a full block: the selected components `q` of one head, and what is stored of each."""
    n = 2**index_bits - 1
    limit = float(min({8: 2047, 4: 127, 2: 127}[index_bits], (2**24 - 1) // (n * len(q))))
    v = [fl(x * step) for x, (_, step, _) in zip(q, stored)]
    m = max(abs(x) for x in v)
    if m == 0:
        a, unit = [0] * len(v), 0.0
    else:
        factor = fl(limit / m)
        a = [int(rne(fl(x * factor))) for x in v]
        unit = fl(m * fl(1.0 / limit))
    offset = ascending_sum([fl(x * low) for x, (low, _, _) in zip(q, stored)])
    totals = [sum(i * codes[p] for i, (_, _, codes) in zip(a, stored)) for p in range(64)]
    return [fl(fl(unit * total) + offset) for total in totals]


def approx_scores(q: list[float], keys: list[list[float]], i1: list[int], index_bits: int) -> list[float]:
    """E6, step 2, before the temperature: full blocks as E9 where index_bits is below 16; the rest as E3."""
    full = 0 if index_bits == 16 else len(keys) // 64 * 64
    scores = []
    for start in range(0, full, 64):
        block = keys[start : start + 64]
        stored = [store([key[c] for key in block], index_bits) for c in i1]
        scores += block_scores([q[c] for c in i1], stored, index_bits)
    return scores + [ascending_sum([fl(q[c] * key[c]) for c in i1]) for key in keys[full:]]


def dense(group: list[list[float]], keys: list[list[float]], rows: list[list[float]]) -> list[list[float]]:
    """Dense attention of the heads of one KV head, before narrowing."""
    return [attend(q, keys, rows) for q in group]


def sparq(
    group: list[list[float]],
    keys: list[list[float]],
    rows: list[list[float]],
    rank: int,
    top_k: int,
    n_local: int,
    mean_value: bool,
    index_bits: int = 16,
) -> list[list[float]]:
    """E6 whole, with E9: SparQ attention of the heads of one KV head, before narrowing."""
    head_dim, length = len(group[0]), len(keys)
    # 1
    i1 = best([ascending_sum([abs(q[c]) for q in group]) for c in range(head_dim)], rank)
    # 2
    softmaxes = []
    for q in group:
        selected = lane_sum([abs(q[c]) if c in i1 else 0.0 for c in range(head_dim)])
        everything = lane_sum([abs(x) for x in q])
        inv_tau = scale(head_dim) if selected == 0 else sqrt(fl(everything / fl(head_dim * selected)))
        softmaxes.append(softmax([fl(s * inv_tau) for s in approx_scores(q, keys, i1, index_bits)]))
    # 3
    if length <= top_k:
        i2 = list(range(length))
    else:
        first_local = length - n_local
        merit = [ascending_sum([fl(w[p] / z) for w, z in softmaxes]) for p in range(first_local)]
        i2 = best(merit, top_k - n_local) + list(range(first_local, length))
    # 4 and 5
    v_mean = [fl(ascending_sum([row[c] for row in rows]) / float(length)) for c in range(head_dim)]
    output = []
    for q, (w, z) in zip(group, softmaxes):
        y3 = attend(q, [keys[p] for p in i2], [rows[p] for p in i2])
        alpha = min(1.0, flush(fl(sum_weights([w[p] if p in i2 else 0.0 for p in range(len(w))]) / z)))
        y = [fl(fl(alpha * a) + fl(fl(1.0 - alpha) * m)) for a, m in zip(y3, v_mean)]
        output.append(y if mean_value else y3)
    return output


def window(
    heads: list[list[float]],
    keys: list[list[list[float]]],
    rows: list[list[list[float]]],
    steps: list[list[int]],
    top_k: int,
    n_local: int,
    n_recent: int,
) -> tuple[list[list[float]], list[int]]:
    """E11: all heads of a layer over the keys and values of each KV head, before narrowing; the shares of
    this step. `steps` has the shares of all those before it."""
    length, group_size = len(keys[0]), len(heads) // len(keys)
    if length <= top_k:
        chosen = list(range(length))
    else:
        first_local = length - n_local
        remembered = steps[max(0, len(steps) - n_recent) :]
        if n_local == top_k:
            others = []
        elif n_recent:
            sums = [sum(step[p] for step in remembered if p < len(step)) for p in range(first_local)]
            others = best([float(x) for x in sums], top_k - n_local)
        else:
            stride = math.ceil(first_local / (top_k - n_local))
            others = [p for p in range(first_local) if (first_local - 1 - p) % stride == 0]
        chosen = others + list(range(first_local, length))
    shares = [0] * length
    output = []
    for h, q in enumerate(heads):
        kv = h // group_size
        own_keys, own_rows = [keys[kv][p] for p in chosen], [rows[kv][p] for p in chosen]
        output.append(attend(q, own_keys, own_rows))
        scores = [fl(lane_sum([fl(a * b) for a, b in zip(q, key)]) * scale(len(q))) for key in own_keys]
        weights, total = softmax(scores)
        for p, w in zip(chosen, weights):
            shares[p] += int(rne(fl(fl(w / total) * 2.0**16)))
    return output, shares
