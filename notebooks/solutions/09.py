"""Answers of notebook 09, and what people believe instead."""

SETUP = "import exercises, numpy as np; client = exercises.served"

LIVE = {"09.3"}

SOLUTIONS = {
    "09.1": """
def step(totals, log_probs, width):
    sums = totals[:, None] + log_probs
    best = np.argsort(-sums, axis=None)[:width]
    return [(i // sums.shape[1], i % sums.shape[1], sums.flat[i]) for i in best]
""",
    "09.2": """
def recover(parents, tokens, row):
    path = []
    for step in reversed(range(len(tokens))):
        path.append(tokens[step][row])
        row = parents[step][row]
    return path[::-1]
""",
    "09.3": """
answer_3 = {"beam_width": 8, "len_penalty": 2.0, "early_stopping": True}
""",
}


def _step(scores: str = "totals[:, None] + log_probs", last: str = "best(scores, width)", value: str = "scores") -> str:
    return f"""
def step(totals, log_probs, width):
    scores = {scores}

    def best(scores, width):
        order = np.argsort(-scores, axis=None)[:width]
        return [(i // scores.shape[1], i % scores.shape[1], ({value}).flat[i]) for i in order]

    return {last}
"""


def _recover(body: str) -> str:
    return f"""
def recover(parents, tokens, row):
    path = []
    for step in reversed(range(len(tokens))):
        {body}
    return path[::-1]
"""


def _settings(width: int, penalty: float, early: bool) -> str:
    return f'answer_3 = {{"beam_width": {width}, "len_penalty": {penalty}, "early_stopping": {early}}}'


_EACH = "sorted([(b, int(row.argmax()), row.max()) for b, row in enumerate(scores)], key=lambda pick: -pick[2])"
_PER_BEAM = "[(b, i, row[i]) for b, row in enumerate(scores) for i in np.argsort(-row)[:width]]"
_BY_BEAMS = "[(i // len(scores), i % len(scores), scores.flat[i]) for i in np.argsort(-scores, axis=None)[:width]]"
_LAST = "{t: (b, t, s) for b, t, s in best(scores, scores.size)[::-1]}.values()"
_BY_TOKEN = f"sorted({_LAST}, key=lambda pick: -pick[2])[:width]"
_APART = "sorted(best(scores, width), key=lambda pick: (pick[0], -pick[2]))"
_LEAST = "[(b, i, -s) for b, i, s in best(-scores, width)]"

MUTANTS = {
    "09.1": [
        ("every beam has one child", _step(last=_EACH), "the best token of each beam"),
        ("every beam keeps its best children", _step(last=_PER_BEAM), "the queue grows"),
        ("nothing is pruned", _step(last="best(scores, scores.size)"), "without the cut"),
        ("the past does not count", _step("log_probs"), "total of the parent is missing"),
        ("the past counts afterwards", _step("log_probs", value="totals[:, None] + log_probs"), "rank by the sum"),
        ("log probabilities are multiplied", _step("totals[:, None] * log_probs"), "you multiply log"),
        ("probabilities are added", _step("np.exp(totals)[:, None] + np.exp(log_probs)"), "you add probabilities"),
        ("probabilities will do", _step("np.exp(totals[:, None] + log_probs)"), "underflowed"),
        ("a log probability is a cost", _step(last=_LEAST), "least likely"),
        ("token before parent", _step(last="[(t, b, s) for b, t, s in best(scores, width)]"), "changed places"),
        ("a beam is its token", _step(last=_BY_TOKEN), "the same token"),
        ("each beam sorts its own", _step(last=_APART), "not sorted together"),
        ("rows are as long as there are beams", _step(last=_BY_BEAMS), "the flat index"),
        ("the best comes last", _step(last="best(scores, width)[::-1]"), "worst first"),
    ],
    "09.2": [
        ("the walk is the path", _recover("path.insert(0, tokens[step][row]); row = parents[step][row]"), "turn it"),
        ("a beam stays in its row", _recover("path.append(tokens[step][row])"), "mixes beams"),
        (
            "the parent stands a step earlier",
            _recover("path.append(tokens[step][row]); row = parents[step - 1][row]"),
            "look up the parent before",
        ),
        (
            "one parent for all",
            _recover("path.append(tokens[step][row]); row = parents[-1][2] if step == 3 else row"),
            "a parent of its own",
        ),
        (
            "a path is walked forward",
            """
def recover(parents, tokens, row):
    path = [tokens[0][row]]
    for step in range(1, len(tokens)):
        row = parents[step][row]
        path.append(tokens[step][row])
    return path
""",
            "you walked forward",
        ),
        (
            "step 0 has no token",
            _recover("path += [tokens[step][row]] * (step > 0); row = parents[step][row]"),
            "the first token is missing",
        ),
        (
            "the parent comes first",
            _recover("row, last = parents[step][row], row; path += [tokens[step][last]] * (step < 3)"),
            "the last token is missing",
        ),
        ("rows are tokens", _recover("path.append(row); row = parents[step][row]"), "those are the rows; the tokens"),
    ],
    "09.3": [
        ("more beams are enough", _settings(8, 0.0, True), "shortest answers win"),
        ("the mean is fair", _settings(8, 1.0, True), "the mean per token"),
        ("a longer search is better", _settings(8, 2.0, False), "ranks unfinished answers first"),
        ("a penalty needs no beams", _settings(1, 2.0, True), "nothing to rank"),
        ("two are a choice", _settings(2, 2.0, True), "too few beams"),
        ("as many as you like", _settings(16, 2.0, True), "exceeds max_beam_width"),
    ],
}
