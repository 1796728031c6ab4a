"""check(): stubs pass by, wrong kinds of answers get a sentence, unknown ids are an author's mistake."""

from __future__ import annotations

import sys
import types

import pytest

from servinglab import checks
from servinglab.errors import CourseError


@pytest.fixture
def module(monkeypatch):
    """A checks module of a notebook "98" with three exercises."""
    name = "servinglab_checks_nb98"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(checks, "_EXERCISES", {})

    @checks.exercise("98.1", expects="a whole number")
    def double(answer):
        if answer == 8:
            return checks.right("twice four is eight")
        return checks.wrong("four squared is not twice four" if answer == 16 else "double it")

    @checks.exercise("98.2", expects="a function of one number")
    def function(answer):
        return checks.right("it doubles") if answer(4) == 8 else checks.wrong("it does not double")

    @checks.exercise("98.10", expects="two numbers")
    def pair(answer):
        first, second = answer
        if first is None or second is None:
            return checks.unattempted()
        return checks.right("both")


def test_right_wrong_and_untouched_answers(module, capsys):
    assert checks.check("98.1", 8)
    assert not checks.check("98.1", 16)
    assert not checks.check("98.1", None)
    assert capsys.readouterr().out.splitlines() == [
        "98.1 right: twice four is eight",
        "98.1 wrong: four squared is not twice four",
        "98.1 not attempted: replace the stub in the cell above, then run both cells again",
    ]


def _documented(x):
    """Doubles."""


def _dots(x): ...


def _passes(x):
    pass


def _returns_none(x):
    return None


async def _awaits(x): ...


@pytest.mark.parametrize(
    "stub",
    [
        None,
        ...,
        _documented,
        _dots,
        _passes,
        _returns_none,
        _awaits,
        lambda x: None,
        [None, None],
        {"a": None},
        (..., None),
    ],
)
def test_stubs_are_recognised(stub):
    assert checks.is_stub(stub)


def _generates(x):
    yield


async def _streams(x):
    yield x


async def _awaits_something(x):
    await x


def _prints(x):
    print(x)


@pytest.mark.parametrize(
    "answer",
    [0, "", False, [], {}, (), [None, 1], {"a": 1, "b": None}, _generates, _streams, _awaits_something, _prints, print,
     lambda x: x, lambda x: 0, checks.check, types.SimpleNamespace()],
)  # fmt: skip
def test_answers_are_not_taken_for_stubs(answer):
    assert not checks.is_stub(answer)


def test_an_answer_of_another_kind_gets_what_was_expected(module, capsys):
    verdict = checks.check("98.2", "x * 2")
    assert verdict.status == checks.WRONG
    assert "expected a function of one number, but using your answer raised TypeError" in verdict.message
    assert "98.2 wrong" in capsys.readouterr().out


def test_an_error_inside_the_learner_s_function_is_told(module):
    def divides(x):
        return x / 0

    assert "raised ZeroDivisionError: division by zero" in checks.check("98.2", divides).message


def test_an_answer_in_parts_may_be_unattempted(module):
    assert checks.check("98.10", (1, None)).status == checks.STUB
    assert checks.check("98.10", (1, 2))


def test_unknown_ids_name_the_known_ones(module):
    with pytest.raises(CourseError, match="no exercise '98.7'; this notebook has: 98.1, 98.10, 98.2"):
        checks.check("98.7", 1)
    with pytest.raises(CourseError, match="this notebook has: none"):
        checks.check("97.1", 1)


def test_the_same_id_twice_is_refused(module):
    code = "from servinglab.checks import exercise\n@exercise('98.1', expects='x')\ndef f(a): ..."
    with pytest.raises(CourseError, match="'98.1' is registered twice"):
        exec(compile(code, "nb99.py", "exec"), {})


def test_a_checks_module_that_does_not_import_is_not_taken_for_a_missing_one(monkeypatch, tmp_path):
    (tmp_path / "notebooks" / "checks").mkdir(parents=True)
    (tmp_path / "notebooks" / "checks" / "nb96.py").write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(checks, "find_root", lambda: tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        checks.check("96.1", 1)


def test_a_verdict_shows_nothing_as_the_value_of_a_cell():
    assert checks.right("x")._ipython_display_() is None
