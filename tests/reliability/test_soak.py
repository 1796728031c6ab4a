"""Mixed requests at concurrency 16, many of them cancelled: none is lost, doubled or out of order; memory stays."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from triton_crash import with_a_server

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PROMPTS = ["The capital of France is", "1, 2, 3, 4,", "Grüße aus 東京:"]
CONCURRENCY, MAX_TOKENS = 16, 8
ROADS = ("bls", "ensemble", "whole", "http")


def ask(client, road, prompt, tokens, stop_after=None):
    """(pieces of text, whether it was cancelled): the pieces of one request that goes by `road`."""
    options = {"max_tokens": tokens, "min_tokens": tokens, "stream": road != "whole", "deadline": 240}
    if road == "whole":
        options["exclude_input_in_output"] = True
    if road == "http":
        pieces = client.generate_stream(prompt, **options)
    else:
        model = "ensemble" if road == "ensemble" else "tensorrt_llm_bls"
        pieces = client.stream(prompt, model=model, **options)
    texts = []
    for chunk in pieces:
        if chunk.text:
            texts.append(chunk.text)
        if stop_after is not None and len(texts) >= stop_after and not chunk.final:
            pieces.close()
            return texts, True
    return texts, False


def resident(server):
    """MiB held by the server and its Python models."""
    root = psutil.Process(server.pid)
    return sum(process.memory_info().rss for process in [root, *root.children(recursive=True)]) / 2**20


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("requests", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_mixed_requests_with_cancels(repository, requests):
    with_a_server(repository, lambda server, client: soak(server, client, requests))


def soak(server, client, requests):
    expected = {}
    for road in ROADS:
        for prompt in PROMPTS:
            texts, _ = ask(client, road, prompt, MAX_TOKENS)
            expected[road, prompt] = "".join(texts)
    with ThreadPoolExecutor(CONCURRENCY) as pool:  # every row of the batch has been used once
        list(pool.map(lambda _: ask(client, "bls", PROMPTS[0], MAX_TOKENS), range(CONCURRENCY)))
    before = resident(server)
    chance = random.Random(7)
    jobs = [
        (chance.choice(ROADS), chance.choice(PROMPTS), chance.randrange(1, 6) if chance.random() < 0.3 else None)
        for _ in range(requests)
    ]

    def run(job):
        road, prompt, stop_after = job
        texts, cancelled = ask(client, road, prompt, MAX_TOKENS, stop_after)
        whole = expected[road, prompt]
        got = "".join(texts)
        if cancelled:
            assert whole.startswith(got), (job, got)
        else:
            assert got == whole, (job, got, whole)
        return cancelled

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        cancelled = list(pool.map(run, jobs))
    assert len(cancelled) == requests
    assert requests / 10 < sum(cancelled) < requests / 2  # the test did cancel, and did not cancel everything
    assert server.ready()
    deadline = time.monotonic() + 20
    while resident(server) > before + 60 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert resident(server) < before + 60, f"{before:.0f} MiB before, {resident(server):.0f} MiB after"
    texts, _ = ask(client, "bls", PROMPTS[0], MAX_TOKENS)
    assert "".join(texts) == expected["bls", PROMPTS[0]]
