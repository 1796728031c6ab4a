"""Checks of the exercises: a right answer is explained, a wrong one has its misconception named, a stub passes by.

In a notebook the exercise is two cells, a stub tagged ``exercise:05.1`` and a check tagged ``check:05.1``::

    answer_1 = None  # your answer: which field of the response carries the final flag?

    check("05.1", answer_1)

The check itself is a small function in ``checks/nb05.py``::

    @exercise("05.1", expects="the name of a response parameter")
    def final_flag(answer):
        if answer == "triton_final_response":
            return right("the flag travels in the response's parameters, beside the outputs")
        if answer == "sequence_end":
            return wrong("that is an output tensor of tensorrt_llm; the flag is a parameter of every response")
        return wrong("look at response.parameters of the last message")

Solutions and mutants (one for each known misconception) live in ``notebooks/solutions/05.py``.
"""

from __future__ import annotations

from servinglab.checks._core import RIGHT, STUB, WRONG, Verdict, check, exercise, is_stub, right, unattempted, wrong

__all__ = ["RIGHT", "STUB", "WRONG", "Verdict", "check", "exercise", "is_stub", "right", "unattempted", "wrong"]
