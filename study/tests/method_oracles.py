# SPDX-License-Identifier: Apache-2.0
"""Every method once more, as plain loops over one query at a time in float64.

`sparq_study.accuracy.methods` must agree with them. They are written from the papers and share no code with
it. A step is (query (g, d), key (s, d), value (s, d)) of one KV head, s positions seen.
"""

from __future__ import annotations

import math

import numpy as np


def softmax(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def attention(query, key, value, chosen):
    """(output (g, d), weights by head) of exact attention over the chosen positions."""
    chosen = sorted(chosen)
    outputs, weights = [], []
    for q in query:
        row = softmax([float(q @ key[p]) / math.sqrt(len(q)) for p in chosen])
        outputs.append(sum(w * value[p] for w, p in zip(row, chosen)))
        weights.append(dict(zip(chosen, row)))
    return np.array(outputs), weights


def largest(scores, count, among):
    return sorted(among, key=lambda p: (-scores[p], p))[:count]


def dense(query, key, value, **options):
    return attention(query, key, value, range(len(key)))[0]


def sparq(
    query,
    key,
    value,
    *,
    rank,
    top_k,
    n_local,
    mean_value=True,
    temperature="sparq",
    index_bits=16,
    scores=None,
    components=None,
):
    """Algorithm 1. index_bits: of the key index; scores: (g, s) to use instead of step 1's; components: that
    score positions, in place of the query's largest."""
    d, s = len(query[0]), len(key)
    size = [sum(abs(float(q[c])) for q in query) for c in range(d)]
    i1 = sorted(largest(size, rank, range(d)) if components is None else components)
    indexed = [[] for _ in query] if index_bits == 16 else index_scores(query, key, i1, index_bits)
    s_hat = []
    for h, q in enumerate(query):
        kept, total = sum(abs(float(q[c])) for c in i1), sum(abs(float(x)) for x in q)
        tau = {
            "sparq": math.sqrt(d * kept / total),
            "sqrt_d": math.sqrt(d),
            "sqrt_r": math.sqrt(rank),
            "none": 1.0,
        }[temperature]
        behind = [sum(float(q[c] * key[p][c]) for c in i1) for p in range(len(indexed[h]), s)]
        row = [score / tau for score in indexed[h] + behind]
        s_hat.append(softmax(row if scores is None else list(scores[h])))
    local = list(range(max(0, s - n_local), s))
    total_key = [sum(row[p] for row in s_hat) for p in range(s)]
    others = [p for p in range(s) if p not in local]
    i2 = local + largest(total_key, top_k - len(local), others)
    out, _ = attention(query, key, value, i2)
    if not mean_value:
        return out
    mean = sum(value) / s
    alphas = [sum(row[p] for p in i2) for row in s_hat]
    return np.array([alpha * y + (1 - alpha) * mean for alpha, y in zip(alphas, out)])


def exact_scores(query, key):
    return [[float(q @ k) / math.sqrt(len(q)) for k in key] for q in query]


def flexgen(query, key, value, *, top_k):
    rows = [softmax(row) for row in exact_scores(query, key)]
    total = [sum(row[p] for row in rows) for p in range(len(key))]
    return attention(query, key, value, largest(total, top_k, range(len(key))))[0]


def quest(query, key, value, *, top_k, page):
    s, d = len(key), len(query[0])
    newest = (s - 1) // page
    rows = []
    for q in query:
        bounds = []
        for first in range(0, newest * page, page):
            bound = 0.0
            for c in range(d):
                low, high = min(key[first : first + page, c]), max(key[first : first + page, c])
                bound += max(float(q[c]) * low, float(q[c]) * high)
            bounds.append(bound / math.sqrt(d))
        rows.append(softmax(bounds) if bounds else [])
    weight = [sum(row[j] for row in rows) for j in range(newest)]
    read = [newest, *largest(weight, top_k // page - 1, range(newest))]
    return attention(query, key, value, [p for p in range(s) if p // page in read])[0]


def important(queries, keys, rank):
    """Channels with the largest mean |q k|. queries (g, n, d), keys (s, d) of a calibration."""
    d = len(keys[0])
    mean = [
        sum(abs(float(q[c]) * float(k[c])) for rows in queries for q in rows for k in keys) for c in range(d)
    ]
    return largest(mean, rank, range(d))


def lm_infinite(query, key, value, *, top_k, sinks):
    s = len(key)
    return attention(
        query, key, value, set(range(min(sinks, s))) | set(range(max(0, s - (top_k - sinks)), s))
    )[0]


def local(query, key, value, *, top_k):
    return lm_infinite(query, key, value, top_k=top_k, sinks=0)


def strided(query, key, value, *, top_k):
    s = len(key)
    stride = -(-s // top_k)
    return attention(query, key, value, range(s - 1, -1, -stride))[0]


def prefill_weights(query, key):
    """Group-summed causal attention rows of a dense prefill: rows[i][p]. query (g, n, d), key (n, d)."""
    rows = []
    for i in range(len(key)):
        heads = [softmax(row) for row in exact_scores(query[:, i], key[: i + 1])]
        rows.append([sum(row[p] for row in heads) for p in range(i + 1)])
    return rows


def h2o(queries, key, value, first, rows, *, top_k, n_local):
    """All steps of one KV head; rows: prefill_weights of the first `first` positions."""
    total = {p: sum(row[p] for row in rows if p < len(row)) for p in range(first)}
    recent = set(range(max(0, first - (n_local - 1)), first))
    others = [p for p in range(first) if p not in recent]
    kept = recent | set(largest(total, top_k - len(recent), others))
    outputs = []
    for i in range(queries.shape[1]):
        now = first + i
        kept.add(now)
        total[now] = 0.0
        if len(kept) > top_k:
            old = [p for p in kept if p <= now - n_local]
            kept.remove(min(old, key=lambda p: total[p]))
        out, weights = attention(queries[:, i], key[: now + 1], value[: now + 1], kept)
        for p in kept:
            total[p] += sum(w[p] for w in weights)
        outputs.append(out)
    return np.stack(outputs, 1)


def alisa(queries, key, value, first, rows, *, top_k, n_recent):
    rows = [dict(enumerate(row)) for row in rows]
    outputs = []
    for i in range(queries.shape[1]):
        now = first + i
        recent = set(range(max(0, now + 1 - (top_k - top_k // 2)), now + 1))
        total = [sum(row.get(p, 0.0) for row in rows[-n_recent:]) for p in range(now + 1)]
        chosen = recent | set(largest(total, top_k // 2, [p for p in range(now + 1) if p not in recent]))
        out, weights = attention(queries[:, i], key[: now + 1], value[: now + 1], chosen)
        rows.append({p: sum(w[p] for w in weights) for p in chosen})
        outputs.append(out)
    return np.stack(outputs, 1)


# Both roundings are in float32, so that what lies half-way between two codes (common where one rounding
# follows the other) goes the same way.
def channel_int(tensor, first, bits):
    """ALISA's x_q = round(x / step + zero), ranges from the first positions; each value clamped to the
    codes."""
    tensor = np.asarray(tensor, dtype=np.float32)
    out = tensor.copy()
    for c in range(len(tensor[0])):
        column = [row[c] for row in tensor[:first]]
        step = (max(column) - min(column)) / np.float32(2**bits - 1) or np.float32(1)
        zero = np.float32(round(-min(column) / step))
        for p in range(len(tensor)):
            code = min(2**bits - 1, max(0, round(tensor[p][c] / step + zero)))
            out[p][c] = (np.float32(code) - zero) * step
    return out


def stored(column, bits):
    """(low, step, codes) of one component of a full block: E9 of docs/exactness.md, "What is stored"."""
    x = [np.float32(np.float16(value)) for value in column]
    low = min(x)
    step = np.float32(np.float16((max(x) - low) * (np.float32(1) / np.float32(2**bits - 1))))
    if step == 0:
        return low, step, [0] * len(x)
    inverse = np.float32(1) / step
    return low, step, [min(2**bits - 1, round(float((value - low) * inverse))) for value in x]


def integers(q, steps, bits):
    """(coefficients, unit) of one query head in a block: E9, "Score of a full block". q: selected
    components."""
    limit = min({2: 127, 4: 127, 8: 2047}[bits], (2**24 - 1) // ((2**bits - 1) * len(q)))
    v = [x * step for x, step in zip(q, steps)]
    m = max(abs(x) for x in v)
    if m == 0:
        return [0] * len(q), np.float32(0)
    factor = np.float32(limit) / m
    return [round(float(x * factor)) for x in v], m * (np.float32(1) / np.float32(limit))


def index_scores(query, key, components, bits):
    """Scores of the positions in full blocks, (g, n), before the temperature; components ascending."""
    scores = [[] for _ in query]
    for start in range(0, len(key) - 63, 64):
        block = [stored(key[start : start + 64, c], bits) for c in components]
        for h, row in enumerate(query):
            q = [np.float32(np.float16(row[c])) for c in components]
            coefficients, unit = integers(q, [step for _, step, _ in block], bits)
            offset = np.float32(0)
            for x, (low, _, _) in zip(q, block):
                offset = offset + x * low
            for p in range(64):
                total = sum(a * codes[p] for a, (_, _, codes) in zip(coefficients, block))
                scores[h].append(float(unit * np.float32(total) + offset))
    return scores
