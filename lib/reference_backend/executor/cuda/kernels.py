"""The kernels of a decoder layer, in Triton's language (which the CUDA build of torch brings).

At batch 1 a model of this size is nothing but launches: a step of separate torch operations has some 500 of them. Here
a layer has five (six where the attention is split), because what can happen on the way of a matrix product does: the
norm before it, the rotation and the KV cache write, the activation or the residual sum behind.

A row is one token: that of a running request, or one of a prompt. `slots` [rows] says in which slot of the cache its
request lies and `lengths` [rows] how many tokens are there with it; a row of length 0 is padding. Weights are
[out, in], bfloat16 or float32; sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _add_products(a, b, x, w, low, pair_ok, at, K: tl.constexpr, GROUP: tl.constexpr, DOT: tl.constexpr):
    """a, b [rows, pairs] += x [rows, at] times the weight rows `low`, and times those GROUP further."""
    ok = pair_ok[:, None] & (at < K)[None, :]
    where = w + low.to(tl.int64)[:, None] * K + at[None, :]
    wa = tl.load(where, mask=ok, other=0.0)
    wb = tl.load(where + GROUP * K, mask=ok, other=0.0)
    if DOT:  # fp32 as three TF32 products: 2 to 4 times as fast as "ieee" (data/results/h200), and it passes its tests
        x = x.to(wa.dtype)
        a = tl.dot(x, tl.trans(wa), a, input_precision="tf32x3")
        b = tl.dot(x, tl.trans(wb), b, input_precision="tf32x3")
    else:  # few rows, each a program of its own: a matrix unit would compute 16
        x = x.to(tl.float32)
        a += tl.sum(x * wa.to(tl.float32), axis=1)[None, :]
        b += tl.sum(x * wb.to(tl.float32), axis=1)[None, :]
    return a, b


@triton.jit
def _normed_products(
    x, gain, w, rows, row_ok, low, pair_ok, eps, K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """a, b [rows, pairs]: x through the norm, times the weight rows `low`, and times those GROUP further."""
    a = tl.zeros((BLOCK_R, BLOCK_P), tl.float32)
    b = tl.zeros((BLOCK_R, BLOCK_P), tl.float32)
    squares = tl.zeros((BLOCK_R,), tl.float32)
    for k in range(0, K, BLOCK_K):
        at = k + tl.arange(0, BLOCK_K)
        ok = row_ok[:, None] & (at < K)[None, :]
        chunk = tl.load(x + rows[:, None] * K + at[None, :], mask=ok, other=0.0)
        squares += tl.sum(chunk * chunk, axis=1)
        chunk *= tl.load(gain + at, mask=at < K, other=0.0)[None, :]
        a, b = _add_products(a, b, chunk, w, low, pair_ok, at, K, GROUP, DOT)
    scale = tl.rsqrt(squares / K + eps)[:, None]  # of a whole row: known only now
    return a * scale, b * scale


@triton.jit
def _places(PAIRS: tl.constexpr, GROUP: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    """Rows and pairs of this program. Pair p stands for two outputs, `low` and low + GROUP."""
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    pairs = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    return rows, pairs, (pairs // GROUP) * (2 * GROUP) + pairs % GROUP, pairs < PAIRS


@triton.jit
def project_qkv(
    x, gain, w, cos, sin, slots, lengths, queries, keys, values, count, seq, eps,
    K: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Norm, product and rotary position; queries [rows, HEADS, D] go out, keys and values into the cache."""
    HALF: tl.constexpr = D // 2
    rows, pairs, low, pair_ok = _places((HEADS + 2 * KV_HEADS) * HALF, HALF, BLOCK_R, BLOCK_P)
    length = tl.load(lengths + rows, mask=rows < count, other=0)
    row_ok = length > 0
    a, b = _normed_products(
        x, gain, w, rows, row_ok, low, pair_ok, eps, K, HALF, BLOCK_R, BLOCK_P, BLOCK_K, DOT
    )  # fmt: skip

    position = tl.where(row_ok, length - 1, 0)
    head, lane = pairs // HALF, pairs % HALF
    ok = row_ok[:, None] & pair_ok[None, :]
    turned = head < HEADS + KV_HEADS
    angle = position[:, None] * HALF + lane[None, :]
    c = tl.load(cos + angle, mask=ok & turned[None, :], other=1.0)
    s = tl.load(sin + angle, mask=ok & turned[None, :], other=0.0)
    a, b = a * c - b * s, b * c + a * s

    out = queries + rows[:, None] * (HEADS * D) + (head * D + lane)[None, :]
    tl.store(out, a, mask=ok & (head < HEADS)[None, :])
    tl.store(out + HALF, b, mask=ok & (head < HEADS)[None, :])
    slot = tl.load(slots + rows, mask=row_ok, other=0).to(tl.int64)
    kv_head = tl.where(turned, head - HEADS, head - HEADS - KV_HEADS)
    cell = ((slot[:, None] * KV_HEADS + kv_head[None, :]) * seq + position[:, None]) * D + lane[None, :]
    key = ok & (turned & (head >= HEADS))[None, :]
    tl.store(keys + cell, a, mask=key)
    tl.store(keys + cell + HALF, b, mask=key)
    value = ok & (head >= HEADS + KV_HEADS)[None, :]
    tl.store(values + cell, a, mask=value)
    tl.store(values + cell + HALF, b, mask=value)


@triton.jit
def attend(
    queries, keys, values, slots, lengths, attended, parts, peaks, sums, seq, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One row, the query heads of one key head, one of SPLITS pieces of its tokens (FlashDecoding).

    One piece: attended [rows, HEADS, D]. Several, for `merge_splits`: parts [rows, HEADS, SPLITS, D], the sum of
    e^(score - peak) times value; sums, that of e^(score - peak); peaks, the highest score, -inf where a piece is empty.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    length = tl.load(lengths + row)
    per_split = tl.cdiv(tl.cdiv(length, BLOCK_T), SPLITS) * BLOCK_T
    first = split * per_split
    end = tl.minimum(first + per_split, length)
    heads, d = tl.arange(0, BLOCK_H), tl.arange(0, D)
    head_ok = heads < GROUP
    head = row * HEADS + kv_head * GROUP + heads
    query = tl.load(queries + head[:, None] * D + d[None, :], mask=head_ok[:, None], other=0.0)
    cell = (tl.load(slots + row).to(tl.int64) * KV_HEADS + kv_head) * seq * D
    peak = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    found = tl.zeros((BLOCK_H, D), tl.float32)
    for t in range(first, end, BLOCK_T):
        tokens = t + tl.arange(0, BLOCK_T)
        there = tokens < end
        where = cell + tokens[:, None] * D + d[None, :]
        key = tl.load(keys + where, mask=there[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shrink = tl.exp(peak - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        value = tl.load(values + where, mask=there[:, None], other=0.0)
        found = found * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        peak = higher
    if SPLITS == 1:
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(attended + head[:, None] * D + d[None, :], found, mask=head_ok[:, None])
    else:
        out = head * SPLITS + split
        tl.store(peaks + out, peak, mask=head_ok)
        tl.store(sums + out, total, mask=head_ok)
        tl.store(parts + out[:, None] * D + d[None, :], found, mask=head_ok[:, None])


@triton.jit
def merge_splits(attended, parts, peaks, sums, D: tl.constexpr, SPLITS: tl.constexpr):
    """attended [rows, HEADS, D] of one row and head, from its pieces; an empty piece has peak -inf and sums of 0."""
    place = tl.program_id(0)
    splits, d = tl.arange(0, SPLITS), tl.arange(0, D)
    peak = tl.load(peaks + place * SPLITS + splits)
    best = tl.max(peak, axis=0)
    share = tl.where(peak > float("-inf"), tl.exp(peak - best), 0.0)
    total = tl.sum(share * tl.load(sums + place * SPLITS + splits), axis=0)
    part = tl.load(parts + (place * SPLITS + splits)[:, None] * D + d[None, :])
    found = tl.sum(share[:, None] * part, axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(attended + place * D + d, found)


@triton.jit
def gate_up(
    x, gain, w, gated, lengths, count, eps, K: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """gated [rows, WIDTH] = silu(gate) * up of the normalised x; w holds the rows of gate, then those of up."""
    rows, pairs, low, pair_ok = _places(WIDTH, WIDTH, BLOCK_R, BLOCK_P)
    row_ok = tl.load(lengths + rows, mask=rows < count, other=0) > 0
    a, b = _normed_products(
        x, gain, w, rows, row_ok, low, pair_ok, eps, K, WIDTH, BLOCK_R, BLOCK_P, BLOCK_K, DOT
    )  # fmt: skip
    out = gated + rows[:, None] * WIDTH + pairs[None, :]
    tl.store(out, a * tl.sigmoid(a) * b, mask=row_ok[:, None] & pair_ok[None, :])


@triton.jit
def add_product(
    y, w, x, lengths, count, K: tl.constexpr, OUT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """x [rows, OUT] += y [rows, K] times w: behind the attention, and behind the activation."""
    rows, pairs, low, pair_ok = _places(OUT // 2, OUT // 2, BLOCK_R, BLOCK_P)
    row_ok = tl.load(lengths + rows, mask=rows < count, other=0) > 0
    a = tl.zeros((BLOCK_R, BLOCK_P), tl.float32)
    b = tl.zeros((BLOCK_R, BLOCK_P), tl.float32)
    for k in range(0, K, BLOCK_K):
        at = k + tl.arange(0, BLOCK_K)
        ok = row_ok[:, None] & (at < K)[None, :]
        chunk = tl.load(y + rows[:, None] * K + at[None, :], mask=ok, other=0.0)
        a, b = _add_products(a, b, chunk, w, low, pair_ok, at, K, OUT // 2, DOT)
    out = x + rows[:, None] * OUT + low[None, :]
    ok = row_ok[:, None] & pair_ok[None, :]
    tl.store(out, tl.load(out, mask=ok) + a, mask=ok)
    tl.store(out + OUT // 2, tl.load(out + OUT // 2, mask=ok) + b, mask=ok)


@triton.jit
def vocabulary(
    x, gain, w, picked, logits, count, eps, K: tl.constexpr, VOCAB: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """logits [count, VOCAB] float32 of the rows `picked` [count] of x."""
    to, pairs, low, pair_ok = _places(VOCAB // 2, VOCAB // 2, BLOCK_R, BLOCK_P)
    row_ok = to < count
    rows = tl.load(picked + to, mask=row_ok, other=0)
    a, b = _normed_products(
        x, gain, w, rows, row_ok, low, pair_ok, eps, K, VOCAB // 2, BLOCK_R, BLOCK_P, BLOCK_K, DOT
    )  # fmt: skip
    ok = row_ok[:, None] & pair_ok[None, :]
    out = logits + to.to(tl.int64)[:, None] * VOCAB + pairs[None, :]
    tl.store(out, a, mask=ok)
    tl.store(out + VOCAB // 2, b, mask=ok)
