"""Answers to the exercises of notebook 11, and for each known misconception the answer that it leads to."""

SETUP = "import numpy as np\n"


def _measure(ttft="first - sent", itl="(last - first) / (sum(tokens) - 1)", rate="sum(tokens) / (last - sent)"):
    return (
        "def measure(sent, arrivals, tokens):\n"
        "    arrived = [time for time, count in zip(arrivals, tokens, strict=True) if count]\n"
        "    first, last = arrived[0], arrived[-1]\n"
        f"    return {ttft}, {itl}, {rate}\n"
    )


def _felt(loop, after="    return waits\n"):
    return (
        "def felt(due, busy):\n    done, waits = 0.0, []\n    for moment, seconds in zip(due, busy, strict=True):\n"
        f"{loop}{after}"
    )


_QUEUE = "        done = max(moment, done) + seconds\n"


def _highest(better="low", worse="high", result="low"):
    return (
        "def highest(share, low, high):\n"
        "    while high > 1.2 * low:\n"
        "        middle = (low + high) / 2\n"
        "        if share(middle) >= 0.95:\n"
        f"            {better} = middle\n"
        "        else:\n"
        f"            {worse} = middle\n"
        f"    return {result}\n"
    )


_STEPS = (
    "def highest(share, low, high):\n"
    "    rates = [low + 0.1 * step for step in range(1, 400)]\n"
    "    return [rate for rate in rates if share(rate) >= 0.95][-1]\n"
)
_DOUBLE = (
    "def highest(share, low, high):\n"
    "    while share(2 * low) >= 0.95:\n"
    "        low = 2 * low\n"
    "    return low\n"
)


SOLUTIONS = {
    "11.1": _measure(),
    "11.2": _felt(_QUEUE + "        waits.append(done - moment)\n"),
    "11.3": _highest(),
}

LIVE = {"11.3"}

MUTANTS = {
    "11.1": [
        ("an empty response is a token", _measure(ttft="arrivals[0] - sent"), "nothing to read yet"),
        ("TTFT is a time of the clock", _measure(ttft="first"), "subtract the time it was sent"),
        ("TTFT is a gap", _measure(ttft="arrived[0] - arrivals[0]"), "sent before both"),
        ("TTFT in milliseconds", _measure(ttft="1000 * (first - sent)"), "TTFT 500: seconds are asked"),
        ("chunks are tokens", _measure(itl="(last - first) / (len(arrived) - 1)"), "the second one held 3 tokens"),
        ("all chunks are tokens", _measure(itl="(last - arrivals[0]) / (len(arrivals) - 1)"), "the empty one too"),
        ("the empty response begins", _measure(itl="(last - arrivals[0]) / (sum(tokens) - 1)"), "the empty response"),
        ("as many waits as tokens", _measure(itl="(last - first) / sum(tokens)"), "five waits"),
        ("ITL with the first wait", _measure(itl="(last - sent) / (sum(tokens) - 1)"), "no wait between tokens"),
        ("ITL is time over tokens", _measure(itl="(last - sent) / sum(tokens)"), "mixes the first wait"),
        ("ITL in milliseconds", _measure(itl="1000 * (last - first) / (sum(tokens) - 1)"), "ITL 80: seconds are"),
        ("responses with text a second", _measure(rate="len(arrived) / (last - sent)"), "responses with text"),
        ("responses a second", _measure(rate="len(arrivals) / (last - sent)"), "count responses: count tokens"),
        ("the first wait is free", _measure(rate="sum(tokens) / (last - first)"), "the user does wait"),
        ("the pace is the rate", _measure(rate="(sum(tokens) - 1) / (last - first)"), "1 / ITL"),
        ("tokens over the clock", _measure(rate="sum(tokens) / last"), "divides by a time of the clock"),
        (
            "waits are tokens after the first response",
            _measure(itl="(last - first) / (sum(tokens) - tokens[arrivals.index(first)])"),
            "by all tokens but one",
        ),
        (
            "the empty end is text",
            _measure(itl="(arrivals[-1] - first) / (sum(tokens) - 1)"),
            "ITL 0.1667: the last response",
        ),
        (
            "the rate ends with the empty end",
            _measure(rate="sum(tokens) / (arrivals[-1] - sent)"),
            "tokens/s 5.333: the last",
        ),
        ("seconds a token", _measure(rate="(last - sent) / sum(tokens)"), "turn it round"),
    ],
    "11.2": [
        ("coordinated omission", _felt("        waits.append(seconds)\n"), "coordinated omission"),
        ("the queue alone", _felt(_QUEUE + "        waits.append(done - seconds - moment)\n"), "to be sent alone"),
        (
            "one request back",
            _felt(
                "        waits.append(max(0, done - moment) + seconds)\n        done = moment + seconds\n",
            ),
            "hands its delay on",
        ),
        (
            "never idle",
            _felt("        done = done + seconds\n        waits.append(done - moment)\n"),
            "the connection was idle",
        ),
        ("the clock", _felt(_QUEUE + "        waits.append(done)\n"), "times of the clock"),
        (
            "the mean",
            _felt(_QUEUE + "        waits.append(done - moment)\n", "    return np.mean(waits)\n"),
            "not their mean",
        ),
    ],
    "11.3": [
        ("the middle will do", "def highest(share, low, high):\n    return (low + high) / 2\n", "not one load test"),
        ("the knee is where it fails", _highest(result="high"), "only"),
        ("between the two", _highest(result="(low + high) / 2"), "was not tested"),
        ("step by step", _STEPS, "more than 8"),
        ("double and stop", _DOUBLE, "go on"),
    ],
}
