"""Which flags convert_checkpoint.py and trtllm-build take in which version of TensorRT-LLM (notebooks 02 and 10); the
sources are in data/flags.toml."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines import EngineError, did_you_mean
from engines.versions import at, require_workflow, table, version


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of one program. The fields are those of a row in data/flags.toml, which explains them."""

    program: str
    flag: str
    kind: str = "text"
    explain: str = ""
    since: str = "0"
    removed: str = "9999"
    deprecated: str = "9999"
    instead: str = ""
    also: Sequence[str] = ()
    doubt: Sequence[str] = ()
    never: bool = False
    required: bool = False
    default: Any = None
    choices: Any = None

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.also)

    def exists(self, trtllm: str) -> bool:
        """Whether the program of this version takes the flag."""
        return not self.never and version(self.since) <= version(trtllm) < version(self.removed)

    def sure(self, trtllm: str) -> bool:
        """Whether the row was read in a source for this version, not inferred from the versions around it."""
        return not (self.doubt and version(self.doubt[0]) <= version(trtllm) <= version(self.doubt[1]))

    def default_for(self, trtllm: str) -> Any:
        """What counts without the flag; None where the program has no fixed default."""
        value = at(self.default, trtllm) if isinstance(self.default, Mapping) else self.default
        return None if value == "" else value

    def choices_for(self, trtllm: str) -> tuple[Any, ...] | None:
        """The values it takes; None where it takes any of its kind."""
        found = table("flags")["choices"].get(self.kind) if self.choices is None else self.choices
        found = at(found, trtllm) if isinstance(found, Mapping) else found
        return tuple(found) if found else None

    @property
    def cure(self) -> str:
        """What to do instead, as the end of a sentence."""
        if not self.instead or self.instead.startswith("nothing"):
            return "leave it out" + self.instead[len("nothing") :]
        return f"use {self.instead}"

    def caution(self, trtllm: str) -> str:
        """Why not to rely on it in this version, or "": the end of a sentence that begins with "… is"."""
        if version(trtllm) >= version(self.deprecated):
            return f"taken with a warning since {self.deprecated}: {self.cure}."
        span = " to ".join(dict.fromkeys(self.doubt))
        return "" if self.sure(trtllm) else f"inferred, no source of {span} was read; the program's --help tells."


@functools.cache
def rows(program: str) -> tuple[Flag, ...]:
    """Every row of a program, of all versions. Raises EngineError for a program that is not in the table."""
    programs = table("flags")["programs"]
    if program not in programs:
        raise EngineError(f"No flags are known of a program {program!r}.{did_you_mean(program, programs)}")
    found = (row for group in programs[program] for row in table("flags")["flags"][group])
    return tuple(Flag(program=program, **row) for row in found)


@functools.cache
def known(program: str, trtllm: str) -> Mapping[str, Flag]:
    """{spelling: Flag} of everything that the program of this version takes. Do not change what comes back."""
    require_workflow(trtllm)
    return {spelling: row for row in rows(program) if row.exists(trtllm) for spelling in row.spellings}


def check(program: str, trtllm: str, args: Iterable[tuple[str, Any] | str]) -> list[str]:
    """Look at a command line: pairs (flag, value or None), or words as a shell would pass them.

    Returns a sentence for every flag that is taken but deprecated, or not certain to exist in this version.
    Raises EngineError with one sentence for the first one that the program would refuse: a flag that this version
    lacks (with what replaces it), an unknown flag, a value of the wrong kind, a required flag left out.
    """
    taken, given, cautions = known(program, trtllm), set(), []
    for name, value in pairs(args):
        doubtful = (row for row in rows(program) if name in row.spellings and not row.sure(trtllm))
        row = taken.get(name) or next(doubtful, None)
        if row is None:
            raise EngineError(_absent(program, trtllm, name))
        _check_value(row, name, value, trtllm)
        given.add(row.flag)
        if caution := row.caution(trtllm):
            cautions.append(f"{name} of {program} in TensorRT-LLM {trtllm} is {caution}")
    for row in taken.values():
        if row.required and row.flag not in given:
            raise EngineError(f"{program} needs {row.flag}: {row.explain}")
    return cautions


def explain(program: str, flag: str, trtllm: str) -> str:
    """What a flag does, what counts without it, and how certain that is. Raises EngineError as check() does."""
    if (row := known(program, trtllm).get(flag)) is None:
        raise EngineError(_absent(program, trtllm, flag))
    default, caution = row.default_for(trtllm), row.caution(trtllm)
    return " ".join(
        [row.explain, *[f"Default: {default}."] * (default is not None), *[f"It is {caution}"] * bool(caution)]
    )


def pairs(args: Iterable[tuple[str, Any] | str]) -> Iterable[tuple[str, Any]]:
    """(flag, value) pairs of a command line; several values of one flag are one text."""
    name, values = None, []
    for word in args:
        if not isinstance(word, str):
            yield word
        elif re.match(r"--?[A-Za-z]", word):
            if name:
                yield name, " ".join(values) if values else None
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif name is None:
            raise EngineError(f"{word!r} stands where a flag is expected: flags begin with --.")
        else:
            values.append(word)
    if name:
        yield name, " ".join(values) if values else None


def _absent(program: str, trtllm: str, name: str) -> str:
    found = [row for row in rows(program) if name in row.spellings]
    if not found:
        return f"{program} of TensorRT-LLM {trtllm} has no flag {name}.{did_you_mean(name, known(program, trtllm))}"
    row = found[-1]
    if row.never:
        return f"{program} has no flag {name}: {row.cure}."
    if gone := [row for row in found if version(row.removed) <= version(trtllm)]:
        return f"{program} lost {name} in TensorRT-LLM {gone[-1].removed}, and this is {trtllm}: {gone[-1].cure}."
    return f"{program} has {name} only since TensorRT-LLM {row.since}, and this is {trtllm}: {row.cure}."


def _check_value(row: Flag, name: str, value: Any, trtllm: str) -> None:
    where, needs = f"{row.program}: {name}", table("flags")["needs"].get(row.kind, "a value")
    if row.kind == "switch":
        if value is not None:
            raise EngineError(f"{where} takes no value, not {value!r}: leave the flag out to switch it off.")
        return
    if value is None and row.kind == "value?":
        return
    try:
        read = {"int": int, "float": float}.get(row.kind, str)("" if value is None else str(value))
    except ValueError:
        raise EngineError(f"{where} needs {needs}, not {value!r}.") from None
    if read == "":
        raise EngineError(f"{where} needs {needs}.")
    if (choices := row.choices_for(trtllm)) and read not in choices:
        one = f"{where} in TensorRT-LLM {trtllm} is one of {', '.join(map(str, choices))}, not {value!r}."
        raise EngineError(one + did_you_mean(value, choices))
