"""Answers of notebook {{ number }}, and what people believe instead."""

SOLUTIONS = {
    "{{ number }}.1": "pairs_of_five = 4",
    "{{ number }}.2": """
def probability(total):
    return sum(a + b == total for a in range(1, 7) for b in range(1, 7)) / 36
""",
}

MUTANTS = {
    "{{ number }}.1": [("the order does not count", "pairs_of_five = 2", "tell the dice apart")],
    "{{ number }}.2": [
        ("all sums are equally likely", "def probability(total):\n    return 1 / 11", "not equally likely"),
    ],
}
