"""A stand-in for the language model whose next token depends on everything in the KV cache and that can be predicted
without it, so that one wrong slot, move or position shows in the tokens."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from reference_backend.executor import Executor, Output, Request, SamplingParams
from reference_backend.executor.rank_files import ENGINE_VERSION
from reference_backend.executor.request import Limits

VOCAB = 97
MAX_SEQ_LEN = 128
GATHER = {"gather_context_logits": True, "gather_generation_logits": True}


def expected_tokens(prompt, count: int) -> list[int]:
    """What the fake model continues a prompt with, greedily."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def next_token(tokens) -> int:
    return int(sum((position + 1) * (int(token) + 3) for position, token in enumerate(tokens)) % VOCAB)


class FakeModel:
    """Keeps each token in the KV cache, as a real model keeps its key. Set `broken` to make the next steps fail."""

    chooses = False

    def __init__(self, config, cache, *, threads):
        self.cache = cache
        self.calls: list[tuple[int, int, int]] = []  # first slot, rows, new tokens of a row
        self._permits: threading.Semaphore | None = None
        self.broken: Exception | None = None

    def hold(self) -> None:
        """From here on a step waits to be allowed."""
        self._permits = threading.Semaphore(0)

    def allow(self, steps: int) -> None:
        self._permits.release(steps)

    def release(self) -> None:
        """Ends `hold`."""
        permits, self._permits = self._permits, None
        if permits:
            permits.release(100)

    def forward(self, ids, lengths, first_slot, logit_rows, table=None):
        if permits := self._permits:
            assert permits.acquire(timeout=10), "the test forgot to allow this step"
        if self.broken:
            raise self.broken
        rows, new = ids.shape
        self.calls.append((first_slot, rows, new))
        logits = np.zeros((rows * new, VOCAB), np.float32)
        for row in range(rows):
            seen = self.cache.buffers[0, first_slot + row, 0, :, 0]
            for step in range(new):
                position = lengths[row] - new + step
                seen[position] = ids[row, step]
                logits[row * new + step, next_token(seen[: position + 1])] = 10
        return logits[logit_rows]


class Collector:
    """Receives outputs and keeps them by request."""

    def __init__(self):
        self.outputs: dict[str, list[Output]] = defaultdict(list)
        self.order: list[str] = []  # the request of each output, as they came
        self._changed = threading.Condition()

    def __call__(self, output: Output) -> None:
        with self._changed:
            self.outputs[output.request_id].append(output)
            self.order.append(output.request_id)
            self._changed.notify_all()

    def wait(self, *ids: str, seconds: float = 20) -> None:
        """Until each request has its last output."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(self.reason(name) for name in ids), seconds), "no last output"

    def wait_for_tokens(self, name: str, count: int, seconds: float = 20) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.tokens(name)) >= count, seconds), "no tokens"

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs.get(name, []) for token in output.tokens]

    def reason(self, name: str) -> str | None:
        """The finish reason; that there is one last output and nothing after it is checked on the way."""
        reasons = [output.finish_reason for output in self.outputs.get(name, [])]
        assert not any(reasons[:-1]), f"{name}: an output after the last one: {reasons}"
        return reasons[-1] if reasons else None


def request(name: str, prompt, max_tokens: int, receiver, *, end_id=None, stop_words=(), bad_words=(), **sampling):
    return Request(
        name, np.array(prompt), max_tokens, SamplingParams(**sampling), end_id, stop_words, bad_words, receiver
    )


def limits(vocab_size: int, max_seq_len: int, max_beam_width: int = 1, **gather: bool) -> Limits:
    return Limits(vocab_size, max_seq_len, max_beam_width, max_seq_len - 1, **gather)


def write_fake_engine(folder: Path, **limits) -> None:
    """The config.json of an engine over `FakeModel`, which needs no weights; limits as in trtllm-build."""
    folder.mkdir(exist_ok=True)
    model = {"vocab_size": VOCAB, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_size": 4}
    build = {"max_seq_len": MAX_SEQ_LEN, "max_batch_size": 256, "max_beam_width": 16, **GATHER, **limits}
    config = {"version": f"0+reference.{ENGINE_VERSION}", "pretrained_config": model, "build_config": build}
    (folder / "config.json").write_text(json.dumps(config))


def fake_executor(folder, monkeypatch, **options) -> tuple[Executor, FakeModel]:
    """An executor over the fake model; everything else is real."""
    made = []
    monkeypatch.setattr(
        "reference_backend.executor.device.Model", lambda *a, **k: made.append(FakeModel(*a, **k)) or made[0]
    )
    write_fake_engine(folder)
    return Executor(folder, **{"enable_partial_reuse": True, **options}), made[0]


def wait_until(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)
