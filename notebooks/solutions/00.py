"""Answers of notebook 00."""

SOLUTIONS = {
    "00.1": 'longest_first = ["start", "first", "next"]',
    "00.2": """def tokens_per_second(arrivals):
    return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])""",
    "00.3": "total_tokens = 30 + 12",
}

_RATE = "def tokens_per_second(arrivals):\n    return "

MUTANTS = {
    "00.1": [
        ("the first token is as quick as the next", 'longest_first = ["start", "next", "first"]', "not as quick"),
        ("weights are loaded for every answer", 'longest_first = ["first", "start", "next"]', "loaded once"),
        ("two names are enough", 'longest_first = ["start", "first"]', "once"),
    ],
    "00.2": [
        ("n instead of n - 1", _RATE + "len(arrivals) / (arrivals[-1] - arrivals[0])", "n - 1 waits"),
        ("first wait counted", _RATE + "len(arrivals) / arrivals[-1]", "counted the wait for the first token"),
        ("clock from the request", _RATE + "(len(arrivals) - 1) / arrivals[-1]", "not at the request"),
        ("seconds per token", _RATE + "(arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)", "its inverse"),
    ],
    "00.3": [
        ("prompt and answer together", "total_tokens = 12", "new tokens only"),
        ("a long prompt leaves no room", "total_tokens = 30", "no obstacle"),
    ],
}
