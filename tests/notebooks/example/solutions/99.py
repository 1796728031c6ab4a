"""Answers of the example notebook."""

SETUP = """
from servinglab.checks import exercise, right, wrong

@exercise("99.1", expects="a number")
def total(answer):
    if answer == 3:
        return right("1 and 2 make 3")
    return wrong("you subtracted" if answer == -1 else "add the two")


@exercise("99.2", expects="a function of two numbers")
def function(answer):
    return right("it adds") if answer(2, 5) == 7 else wrong("it does not add")
"""

SOLUTIONS = {
    "99.1": "answer_1 = 1 + 2",
    "99.2": "def add(a, b):\n    return a + b",
}

MUTANTS = {
    "99.1": [("subtracts", "answer_1 = 1 - 2", "you subtracted")],
}
