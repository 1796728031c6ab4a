"""Checks of the exercises: a right answer is explained, a wrong one has its misconception named, a stub passes by.

In a notebook the exercise is two cells, a stub tagged ``exercise:05.1`` (`answer_1 = None`) and a check tagged
``check:05.1`` (`check("05.1", answer_1)`). The check itself is a small function in ``notebooks/checks/nb05.py`` (a lab
has a folder ``checks`` of its own). Solutions and mutants (one for each known misconception) live in
``notebooks/solutions/05.py``.
"""

import contextlib
import functools
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError
from servinglab.root import find_root

PASSED = ".passed"
RIGHT, WRONG, STUB = "right", "wrong", "not attempted"


@dataclass(frozen=True)
class Verdict:
    """What a check says: ``status`` is "right", "wrong" or "not attempted"; true only when right."""

    status: str
    message: str

    def __bool__(self) -> bool:
        return self.status == RIGHT

    def _ipython_display_(self) -> None:
        """Show nothing: ``check`` has printed the verdict already, also when it is the last line of a cell."""


def right(message: str) -> Verdict:
    """The answer is right; ``message`` says why."""
    return Verdict(RIGHT, message)


def wrong(message: str) -> Verdict:
    """The answer is wrong; ``message`` names the misconception, not only the fact."""
    return Verdict(WRONG, message)


def unattempted() -> Verdict:
    """The stub is untouched; for checks whose answer holds several parts."""
    return Verdict(STUB, "replace the stub in the cell above, then run both cells again")


Check = Callable[[Any], Verdict]
_EXERCISES: dict[str, tuple[Check, str]] = {}  # id → the check, and what kind of answer it expects


def exercise(exercise_id: str, *, expects: str) -> Callable[[Check], Check]:
    """Register a check function under an id such as "05.1". ``expects`` says what kind of answer is wanted ("a list of
    token ids"); the learner reads it when the check function raises."""

    def register(function: Check) -> Check:
        known, _ = _EXERCISES.get(exercise_id, (function, ""))
        if known.__code__.co_filename != function.__code__.co_filename:
            raise CourseError(f"exercise {exercise_id!r} is registered twice; give one of them another id")
        _EXERCISES[exercise_id] = function, expects
        return function

    return register


@functools.cache
def _load(notebook: str) -> None:
    name, root = f"servinglab_checks_nb{notebook}", find_root()
    for path in (root / "notebooks" / "checks" / f"nb{notebook}.py", *root.glob(f"labs/*/checks/nb{notebook}.py")):
        if path.is_file():
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)


def known_exercises(notebook: str) -> list[str]:
    """Ids of the exercises of one notebook ("05"), in order, from `checks/nb05.py` beside it if it has that."""
    _load(notebook)
    return sorted(i for i in _EXERCISES if i.split(".")[0] == notebook)


def check(exercise_id: str, answer: Any) -> Verdict:
    """Print the verdict on ``answer`` and return it.

    Never raises for an answer, whatever its kind: a stub is "not attempted", an answer the check cannot work with is
    "wrong" with what was expected. Raises CourseError for an unknown id only.
    """
    known = known_exercises(exercise_id.split(".")[0])
    if exercise_id not in known:
        have = ", ".join(known) or "none"
        raise CourseError(f"there is no exercise {exercise_id!r}; this notebook has: {have}")
    function, expects = _EXERCISES[exercise_id]
    try:
        verdict = unattempted() if is_stub(answer) else function(answer)
    except Exception as error:
        # One sentence instead of a traceback through our code, which would teach nothing about the exercise.
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        verdict = wrong(f"expected {expects}, but using your answer raised {what}")
    print(f"{exercise_id} {verdict.status}: {verdict.message}")
    lab = os.path.join(find_root(), "build", "lab", "")
    if verdict and os.getcwd().startswith(lab):  # for `course progress`: on this machine, and for your eyes only
        with contextlib.suppress(OSError), open(lab + PASSED, "a", opener=lambda *a: os.open(*a, mode=0o600)) as file:
            file.write(f"{exercise_id}\n")
    return verdict


SLEEPER = """\
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(%s)
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]) for text in texts]
"""  # a model that takes so many seconds for a batch of any size
SLEEPER_CONFIG = """\
name: "%s"
backend: "python"
max_batch_size: %d
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""


def repository_of(name: str, code: str, config: str, root: Path | None = None) -> Path:
    """A model repository, a new temporary one or `root`, with this Python model, for a server that judges an answer."""
    root = root or Path(tempfile.mkdtemp(prefix=f"{name}-"))
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "1" / "model.py").write_text(code)
    (root / name / "config.pbtxt").write_text(config)
    return root


def is_stub(answer: Any) -> bool:
    """Whether nothing was filled in: None, ``...``, a function whose body is only that, or a container of stubs."""
    if answer is None or answer is Ellipsis:
        return True
    if isinstance(answer, types.FunctionType):  # the bytecode of a stub, and no constant but the None it returns
        return answer.__code__.co_code in _STUBS and answer.__code__.co_consts[-1:] == (None,)
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list | tuple) else ()
    return bool(parts) and all(map(is_stub, parts))


def _stub(): ...


def _documented():
    """As a stub may be."""


async def _awaited(): ...


_STUBS = {function.__code__.co_code for function in (_stub, _documented, _awaited)}
