"""Exercises of notebook 09: one step of a beam search, the way back from a row to its path, settings of a server."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab import assets
from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.client import gather, inputs

# --- 09.1: one step ---------------------------------------------------------------------------------------------------

_TOTALS = np.log([0.6, 0.2])
_ROWS = np.log([[0.20, 0.28, 0.22, 0.30], [0.05, 0.50, 0.42, 0.03]])

Picks = list[tuple[int, int, float]]


def _best(scores: np.ndarray, width: int, values: np.ndarray | None = None) -> Picks:
    """The `width` highest scores as (parent, token, value)."""
    values = scores if values is None else values
    order = np.argsort(-scores, axis=None, kind="stable")[:width].tolist()
    return [(*divmod(index, scores.shape[1]), float(values.flat[index])) for index in order]


def _step_mistakes() -> dict[str, Picks]:
    """What a wrong function gives for _TOTALS, _ROWS and width 2: message → picks."""
    sums = _TOTALS[:, None] + _ROWS
    two = _best(sums, 2)
    each = [pick for row in range(2) for pick in _best(np.where(np.arange(2)[:, None] == row, sums, -np.inf), 2)]
    tops = sorted((each[0], each[2]), key=lambda pick: -pick[2])
    flat = [int(index) for index in np.argsort(-sums, axis=None)[:2]]
    return {
        "that is the best token of each beam; the beams compete: take the best of all their continuations": tops,
        "you keep the best of each beam, so the queue grows with every step: keep `width` of all together": each,
        "you keep every continuation: that is a breadth-first search without the cut to `width`": _best(sums, 8),
        "the total of the parent is missing: a likely token behind an unlikely beginning wins": _best(_ROWS, 2),
        "you rank by the token alone and add the parent's total afterwards: rank by the sum": _best(_ROWS, 2, sums),
        "you multiply log probabilities: probabilities are multiplied, and their logarithms added": _best(
            _TOTALS[:, None] * _ROWS, 2
        ),
        "you add probabilities: a path has the product of its probabilities, the sum of their logs": _best(
            np.exp(_TOTALS)[:, None] + np.exp(_ROWS), 2
        ),
        "those are probabilities: right today, but 150 steps later float32 has underflowed; keep the log": _best(
            np.exp(sums), 2
        ),
        "those are the least likely continuations: log probabilities are negative, and the best is near 0": [
            (parent, token, -total) for parent, token, total in _best(-sums, 2)
        ],
        "parent and token have changed places": [(token, parent, total) for parent, token, total in two],
        "the flat index counts through rows of the vocabulary's length, not of the number of beams": [
            (*divmod(index, 2), float(sums.flat[index])) for index in flat
        ],
        "right picks, worst first: the order is best first": two[::-1],
    }


@exercise("09.1", expects="a function step(totals, log_probs, width) that returns a list of (parent, token, total)")
def beam_step(step: Callable[[np.ndarray, np.ndarray, int], Picks]) -> Verdict:
    answer = list(step(_TOTALS.copy(), _ROWS.copy(), 2))
    if not _same(answer, _best(_TOTALS[:, None] + _ROWS, 2)):
        known = [said for said, picks in _step_mistakes().items() if _same(answer, picks)]
        otherwise = "width 2 must give parents 0 and 0, tokens 3 and 1, totals log 0.18 and log 0.168"
        return wrong(known[0] if known else otherwise)
    rng = np.random.default_rng(9)
    totals, rows = -rng.random(3), log_softmax(rng.normal(size=(3, 5)), axis=-1)
    answer, truth = list(step(totals, rows, 4)), _best(totals[:, None] + rows, 4)
    if not _same(answer, truth) and _same(sorted(answer, key=lambda pick: -pick[2]), truth):
        return wrong("the right continuations, but not sorted together: the best of all beams comes first")
    if not _same(answer, truth):
        return wrong("right for two beams of four tokens, wrong for three of five: take both numbers from the shape")
    totals, rows = np.log([0.5, 0.4]), np.log([[0.3, 0.6, 0.1], [0.2, 0.7, 0.1]])
    if not _same(list(step(totals, rows, 2)), _best(totals[:, None] + rows, 2)):
        return wrong("two beams may go on with the same token: they are two paths, and both may be kept")
    return right("the beams compete with each other: both places went to children of the first")


def _same(answer: Picks, picks: Picks) -> bool:
    if len(answer) != len(picks):
        return False
    return all(
        (int(a[0]), int(a[1])) == b[:2] and math.isclose(float(a[2]), b[2], abs_tol=1e-6)
        for a, b in zip(answer, picks, strict=True)
    )


# --- 09.2: the way back -----------------------------------------------------------------------------------------------

_TOKENS = [[10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42]]
_PARENTS = [[0, 0, 0], [1, 0, 1], [2, 2, 0], [1, 0, 1]]
_PATHS = {
    (11, 22, 31, 42): None,
    (42, 31, 22, 11): "the last token comes first: you walked back, turn it round",
    (12, 22, 32, 42): "you read one column straight down, which mixes beams: the parent's row may be another one",
    (10, 21, 30, 42): "parents[t] belongs to the tokens of step t: look up the parent before you go to step t - 1",
    (11, 21, 31, 42): "you took one parent for all earlier steps: each step has a parent of its own",
    (12, 21, 32, 41): "you walked forward, but a row knows its parent, not its children: begin at the last step",
    (22, 31, 42): "the first token is missing: the walk ends before step 0, not at it",
    (11, 22, 31): "the last token is missing: it stands in the row you were given",
    (1, 2, 1, 2): "those are the rows; the tokens in them are asked for",
    (2, 1, 2, 1): "those are the rows, the last one first; the tokens in them are asked for",
}


@exercise("09.2", expects="a function recover(parents, tokens, row) that returns a list of tokens")
def way_back(recover: Callable[[list[list[int]], list[list[int]], int], list[int]]) -> Verdict:
    answer = tuple(int(token) for token in recover(_PARENTS, _TOKENS, 2))
    if said := _PATHS.get(answer, "row 2 holds token 42, its parent is row 1 of the step before, with token 31; go on"):
        return wrong(said)
    others = [[int(token) for token in recover(_PARENTS, _TOKENS, row)] for row in (0, 1)]
    if others != [[11, 22, 31, 40], [11, 22, 30, 41]]:
        return wrong("right for row 2, wrong for row 0 or 1: begin at the row you are given")
    return right("all three beams share their first two tokens: beams are branches of one tree")


# --- 09.3: settings for a long answer that has ended, on a server -----------------------------------------------------

QUESTION, ROOM, LEAST = "Do you like tea?", 24, 13  # tokens of an answer, its end included: at most, at least


@exercise("09.3", expects="a dict with beam_width, len_penalty and early_stopping")
def long_answer(answer: tuple[dict[str, float | bool], InferenceServerClient]) -> Verdict:
    settings, client = answer
    if is_stub(settings):
        return unattempted()
    if set(settings) != {"beam_width", "len_penalty", "early_stopping"} or any(map(is_stub, settings.values())):
        return wrong("expected beam_width, len_penalty and early_stopping, each with a value")
    tokenizer = Tokenizer.from_file(f"{assets.tokenizer('smollm2')}/tokenizer.json")
    ids, end = tokenizer.encode(QUESTION).ids, tokenizer.token_to_id("<|im_end|>")
    asked = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": ROOM, "end_id": end}
    try:
        result = gather(client, "tensorrt_llm", {0: inputs(**asked, **settings, exclude_input_in_output=True)})[0][0]
    except InferenceServerException as error:
        return wrong(error.message().rstrip("."))
    size = int(result.as_numpy("sequence_length")[0, 0])
    said = tokenizer.decode(result.as_numpy("output_ids")[0, 0, :size])
    told = f"{settings} gives {said!r}, {min(size + 1, ROOM)} tokens"
    if size >= ROOM:
        return wrong(f"{told}, cut off: {_why_cut(settings)}")
    if size + 1 < LEAST:
        return wrong(f"{told}: {_why_short(settings)}")
    return right(told)


def _why_cut(settings: dict[str, float | bool]) -> str:
    if settings["beam_width"] == 1:
        return "one beam is greedy decoding; there is nothing to rank"
    if not settings["early_stopping"]:
        return "the search went on until no token was left, and a large penalty ranks unfinished answers first"
    return "too few beams: none of them met an answer that ends"


def _why_short(settings: dict[str, float | bool]) -> str:
    if settings["len_penalty"] == 0:
        return "without a penalty every further token costs probability, so the shortest answers win"
    return "the mean per token still prefers this one; the length may count for more"
