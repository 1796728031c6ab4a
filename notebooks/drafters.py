"""Where draft tokens come from: the text so far (`PromptLookup`), or a smaller model (`DraftModel`), which `generate`
runs to the end of a request. What they bring: `timed`, `in_turn` and `expected`.
"""

import itertools
import math
import queue
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reference_backend.executor import Executor, Output, Request, RequestError, SamplingParams
from reference_backend.executor.model import EngineConfig
from reference_backend.executor.params import checked
from reference_backend.executor.request import Drafter

TEXTS = 8  # of the greatest length, whose keys and values a draft model keeps
_COUNT = (1, math.inf, "1 or more")


class PromptLookup:
    """What followed the last tokens when they came before: good where the answer repeats its prompt or itself.

    It finds the latest earlier place that ends with the same `ngram` tokens, else with fewer, down to one. The draft
    has as many tokens as agree before the two places, at most `max_draft`. Where it reaches the end of the text it goes
    on with its own draft, so that a loop is followed.

    The idea is that of prompt lookup decoding (A. Saxena 2023), which takes the first place and a fixed length. No
    state, so one may serve any number of requests.
    """

    def __init__(self, ngram: int = 3, max_draft: int = 8) -> None:
        self.ngram = checked("ngram", ngram, *_COUNT, whole=True)
        self.max_draft = checked("max_draft", max_draft, *_COUNT, whole=True)

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """See `request.Drafter`."""
        end, ids = len(tokens), np.array(tokens)
        found = np.flatnonzero(ids[: end - 1] == ids[-1]) + 1  # places just behind the last token's twins
        if not found.size:
            return []
        for back in range(2, min(self.ngram, end - 1) + 1):
            longer = found[(found >= back) & (ids[found - back] == ids[-back])]
            if not longer.size:
                break
            found = longer
        place = int(found[-1])
        differ = np.flatnonzero(ids[:place][::-1] != ids[end - place :][::-1])
        agree = int(differ[0]) if differ.size else place
        draft: list[int] = []
        for at in range(place, place + min(agree, self.max_draft, at_most)):
            draft.append(tokens[at] if at < end else draft[at - end])
        return draft


class DraftModel:
    """The likeliest next tokens according to a smaller model with the same tokenizer.

    engine_dir: its engine folder. max_draft: how many tokens it proposes. It runs in an executor of its own, whose KV
    cache remembers the texts that it has read, so that only what is new is read, whatever was rejected meanwhile.

    Raises ExecutorError when the engine cannot be used.
    """

    def __init__(self, engine_dir: Path | str, max_draft: int = 4, *, threads: int | None = None) -> None:
        self.max_draft = checked("max_draft", max_draft, *_COUNT, whole=True)
        room = max(16, TEXTS * EngineConfig.read(engine_dir).max_seq_len)
        options = {"max_batch_size": 1, "enable_partial_reuse": True, "tokens_per_block": 16, "threads": threads}
        self.executor = Executor(engine_dir, max_tokens_in_paged_kv_cache=room, **options)

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        """See `request.Drafter`. None when the text is longer than the draft's engine allows."""
        limits = self.executor.limits
        count = min(self.max_draft, at_most, limits.max_seq_len - len(tokens))
        if count < 1 or max(tokens) >= limits.vocab_size:
            return []
        return generate(self.executor, tokens, count)


def generate(
    executor: Executor, prompt_ids: Sequence[int], max_tokens: int, *, end_id: int | None = None,
    stop_words: Sequence[Sequence[int]] = (), bad_words: Sequence[Sequence[int]] = (), drafter: Drafter | None = None,
    **sampling: float,
) -> list[int]:  # fmt: skip
    """The new tokens of a request, of the best beam if there are several; `sampling` as in SamplingParams.

    Raises RequestError when it fails or the executor is shut down meanwhile.
    """
    name, params, words = uuid.uuid4().hex, SamplingParams(**sampling), (stop_words, bad_words)
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    executor.submit(Request(name, prompt_ids, max_tokens, params, end_id, *words, outputs.put, drafter=drafter))
    tokens: list[int] = []
    while True:
        output = outputs.get()
        tokens += output.tokens
        if output.finish_reason in ("cancelled", "error"):
            raise RequestError(output.error or "The request was cancelled.")
        if output.finish_reason:
            return output.beams[0].tokens if output.beams else tokens


class Run(NamedTuple):
    """A request, and what its steps after the prompt did."""

    tokens: list[int]
    steps: np.ndarray  # seconds of each
    guesses: np.ndarray  # read in each
    made: int  # tokens that these steps brought, an end token included
    drafted: int
    accepted: int

    @property
    def per_step(self) -> float:
        return self.made / len(self.steps)


class _Counted:
    def __init__(self, drafter: Drafter | None) -> None:
        self.drafter, self.lengths = drafter, []

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        guesses = self.drafter.propose(tokens, at_most) if self.drafter else []
        self.lengths.append(len(guesses))
        return guesses


def timed(
    executor: Executor, ids: Sequence[int], length: int, drafter: Drafter | None, end_id: int, **sampling: float
) -> Run:
    """Send a request of one beam and time its outputs, one a step. Raises RequestError when it fails."""
    outputs, told, counted = queue.SimpleQueue(), [], _Counted(drafter)
    note = lambda output: outputs.put((time.perf_counter(), output))  # noqa: E731
    params, name = SamplingParams(**sampling), uuid.uuid4().hex
    executor.submit(Request(name, ids, length, params, end_id, on_output=note, drafter=counted))
    while not told or not told[-1][1].finish_reason:
        told.append(outputs.get(timeout=300))
    (_, first), (_, last) = told[0], told[-1]
    if last.error:
        raise RequestError(last.error)
    tokens = [token for _, output in told for token in output.tokens]
    made = len(tokens) - len(first.tokens) + (last.finish_reason == "end_id")
    guesses = np.array([*counted.lengths, 0])[1 : len(told)]  # the first were read with the prompt; no room, no call
    drafted, accepted = last.metrics.total_draft_tokens, last.metrics.total_accepted_draft_tokens
    return Run(tokens, np.diff([at for at, _ in told]), guesses, made, drafted, accepted)


class Turns:
    """Another drafter's guesses, cut to one of ``lengths`` after the other, in shuffled rounds."""

    def __init__(self, drafter: Drafter, lengths: Sequence[int], seed: int = 0) -> None:
        shuffled = np.random.default_rng(seed).permuted
        self.drafter = drafter
        self.lengths = itertools.chain.from_iterable(shuffled(lengths).tolist() for _ in itertools.count())

    def propose(self, tokens: list[int], at_most: int) -> list[int]:
        return self.drafter.propose(tokens, min(next(self.lengths), at_most))


def in_turn(
    run: Callable[[Drafter], Run], drafter: Drafter, lengths: Sequence[int], turns: int, seed: int
) -> np.ndarray:
    """Time of steps that read so many guesses [lengths, turns], in steps of the first length. Those of one turn lie
    close together in time: each is divided by their median, so what slows a whole turn down cancels.

    Raises ValueError when the answers are too short for a length.
    """
    source, runs = Turns(drafter, lengths, seed), []
    for _ in range(30):
        runs.append(run(source))
        steps, guesses = (np.concatenate([getattr(each, name) for each in runs]) for name in ("steps", "guesses"))
        found = [steps[guesses == k] for k in lengths]
        if (least := min(map(len, found))) >= turns:
            break
    if not least:
        raise ValueError(f"No answer had a step with each of {list(lengths)} guesses; ask for a longer one.")
    seconds = np.array([each[: min(least, turns)] for each in found])
    ratios = seconds / np.median(seconds, axis=0)
    return ratios / np.median(ratios[0])


def expected(a: float, c: float, v: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens a step and speed-up for 0, 1, … guesses, each right with probability ``a``; ``c``: the time of a guess,
    ``v``: of a step that reads so many, both in steps without guesses (after Leviathan et al. 2023, theorem 3.8)."""
    lengths = np.arange(len(v))
    tokens = np.cumsum(float(a) ** lengths)
    return tokens, tokens / (lengths * c + np.asarray(v))
