"""KV memory: what is counted, what is committed, what moves."""

from __future__ import annotations

import numpy as np
import psutil

from reference_backend.executor.cache import BlockPool, KVCache


def test_blocks_are_whole_and_bounded():
    pool = BlockPool(max_tokens=1000, tokens_per_block=64)
    assert pool.total == 15
    assert [pool.blocks(tokens) for tokens in (1, 64, 65, 640)] == [1, 1, 2, 10]
    assert pool.reserve(10) and pool.used == 10
    assert not pool.reserve(6) and pool.used == 10, "a refusal takes nothing"
    assert pool.reserve(5) and pool.used == 15
    pool.release(10)
    assert pool.used == 5


def test_move_copies_what_is_used_and_drops_the_source():
    cache = KVCache(tensors=2, slots=3, heads=2, max_seq_len=64, head_size=16)
    cache.buffers[:] = np.random.default_rng(0).standard_normal(cache.buffers.shape)
    before = cache.buffers.copy()
    cache.move(2, 0, 5)
    np.testing.assert_array_equal(cache.buffers[:, 0, :, :5], before[:, 2, :, :5])
    np.testing.assert_array_equal(cache.buffers[:, 0, :, 5:], before[:, 0, :, 5:])
    np.testing.assert_array_equal(cache.buffers[:, 1], before[:, 1])
    assert not cache.buffers[:, 2].any()


def test_drop_never_touches_a_neighbour():
    # A slot of 3 x 50 x 20 floats is 12,000 bytes, so slots share pages.
    cache = KVCache(tensors=2, slots=3, heads=3, max_seq_len=50, head_size=20)
    cache.buffers[:] = 1
    cache.drop(1)
    assert cache.buffers[:, 0].all() and cache.buffers[:, 2].all()
    assert not cache.buffers[:, 1].all()


def test_memory_is_committed_when_used_and_given_back_when_dropped():
    def resident() -> float:
        return psutil.Process().memory_info().rss / 2**20

    start = resident()
    cache = KVCache(tensors=60, slots=8, heads=3, max_seq_len=8192, head_size=64)  # 2.9 GiB of address space
    assert resident() - start < 20
    cache.buffers[:, 2, :, :512] = 1  # 22.5 MiB
    assert 20 < resident() - start < 60
    cache.drop(2)
    assert resident() - start < 20


def test_neighbouring_rows_lie_as_the_operator_wants_them():
    cache = KVCache(tensors=2, slots=4, heads=2, max_seq_len=8, head_size=4)
    rows = cache.buffers[1, 1:3]
    assert rows.shape == (2, 2, 8, 4) and rows.flags.c_contiguous and rows.flags.writeable
