"""Which flags convert_checkpoint.py and trtllm-build take in which version of TensorRT-LLM (notebook 02).

Source: data/engine/flags.toml, which says for each version how its flags are known.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines import EngineError, compass
from servinglab.errors import did_you_mean

_OLDEST, _FOREVER = "0", "9999"
_TAKES = {"int": "a whole number", "float": "a number", "text": "a value", "words": "one or more values",
          "on_off": "enable or disable", "plugin": "a dtype or disable"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of one program. The fields are those of a row in data/engine/flags.toml, which explains them."""

    program: str
    flag: str
    kind: str = "text"
    explain: str = ""
    since: str = _OLDEST
    removed: str = _FOREVER
    deprecated: str = _FOREVER
    instead: str = ""
    also: tuple[str, ...] = ()
    doubt: tuple[str, ...] = ()
    never: bool = False
    required: bool = False
    default: Any = None
    choices: Any = field(default=None)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.also)

    def exists(self, trtllm: str) -> bool:
        """Whether the program of this version takes the flag."""
        now = compass.version(trtllm)
        return not self.never and compass.version(self.since) <= now < compass.version(self.removed)

    def sure(self, trtllm: str) -> bool:
        """Whether the row was read in a source for this version, not inferred from the versions around it."""
        now = compass.version(trtllm)
        return not (self.doubt and compass.version(self.doubt[0]) <= now <= compass.version(self.doubt[1]))

    def default_for(self, trtllm: str) -> Any:
        """What counts without the flag; None where the program has no fixed default."""
        value = compass.at(self.default, trtllm) if isinstance(self.default, Mapping) else self.default
        return None if value == "" else value

    def choices_for(self, trtllm: str) -> tuple[Any, ...] | None:
        """The values it takes; None where it takes any of its kind."""
        if self.choices is not None:
            found = compass.at(self.choices, trtllm) if isinstance(self.choices, Mapping) else self.choices
            return tuple(found) if found else None
        if self.kind == "on_off":
            return ("enable", "disable")
        if self.kind == "plugin":
            return tuple(compass.at(compass.table("flags")["plugin_choices"], trtllm))
        return None


@functools.cache
def _rows(program: str) -> tuple[Flag, ...]:
    table = compass.table("flags")
    if program not in table["programs"]:
        raise EngineError(
            f"No flags are known of a program {program!r}; known are {', '.join(table['programs'])}."
            f"{did_you_mean(program, table['programs'])}"
        )
    rows = (row for group in table["programs"][program] for row in table["flags"][group])
    return tuple(Flag(program=program, **{k: tuple(v) if k in ("also", "doubt") else v for k, v in row.items()})
                 for row in rows)  # fmt: skip


def programs() -> tuple[str, ...]:
    """The programs whose flags are known, such as "trtllm-build" and "gpt/convert_checkpoint.py"."""
    return tuple(compass.table("flags")["programs"])


@functools.cache
def known(program: str, trtllm: str) -> Mapping[str, Flag]:
    """{spelling: Flag} of everything that the program of this version takes. Do not change what comes back."""
    compass.require_workflow(trtllm)
    return {spelling: row for row in _rows(program) if row.exists(trtllm) for spelling in row.spellings}


def check(program: str, trtllm: str, args: Iterable[tuple[str, Any] | str]) -> list[str]:
    """Look at a command line: pairs (flag, value or None), or words as a shell would pass them.

    Returns a sentence for every flag that is taken but deprecated, or not certain to exist in this version.
    Raises EngineError with one sentence for the first one that the program would refuse: a flag that this version
    lacks (with what replaces it), an unknown flag, a value of the wrong kind, a required flag left out.
    """
    flags, said, cautions = known(program, trtllm), set(), []
    for name, value in pairs(args):
        row = flags.get(name) or _uncertain(program, trtllm, name)
        if row is None:
            raise EngineError(_absent(program, trtllm, name))
        _check_value(row, name, value, trtllm)
        said.add(row.flag)
        if compass.version(trtllm) >= compass.version(row.deprecated):
            cautions.append(f"{program} takes {name} with a warning since {row.deprecated}: {_cure(row)}.")
        elif not row.sure(trtllm):
            cautions.append(f"{name} of {program} in TensorRT-LLM {trtllm}: {_doubt(row)}.")
    missing = [row.flag for row in flags.values() if row.required and row.flag not in said]
    if missing:
        raise EngineError(f"{program} needs {missing[0]}: {flags[missing[0]].explain}")
    return cautions


def explain(program: str, flag: str, trtllm: str) -> str:
    """What a flag does, what counts without it, and how certain that is. Raises EngineError as check() does."""
    row = known(program, trtllm).get(flag)
    if row is None:
        raise EngineError(_absent(program, trtllm, flag))
    parts = [row.explain]
    if (default := row.default_for(trtllm)) is not None:
        changes = list(row.default) if isinstance(row.default, Mapping) else []
        since = max((v for v in changes if compass.version(v) <= compass.version(trtllm)), key=compass.version,
                    default="")  # fmt: skip
        parts.append(f"Default: {default}{f' (since {since})' if since and since != changes[0] else ''}.")
    if compass.version(trtllm) >= compass.version(row.deprecated):
        parts.append(f"Deprecated since {row.deprecated}: {_cure(row)}.")
    if not row.sure(trtllm):
        parts.append(f"For {trtllm}: {_doubt(row)}.")
    return " ".join(parts)


def source(trtllm: str) -> str:
    """How the flags of this version are known, in one phrase."""
    sources, now = compass.table("flags")["sources"], compass.version(trtllm)
    if found := next((how for text, how in sources.items() if compass.version(text) == now), None):
        return found
    read = sorted(sources, key=compass.version)
    below = [text for text in read if compass.version(text) < now][-1:]
    above = [text for text in read if compass.version(text) > now][:1]
    return f"inferred from {' and '.join(below + above)}"


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


def _uncertain(program: str, trtllm: str, name: str) -> Flag | None:
    """The row of a flag of which it is not known whether this version has it already, or still."""
    return next((row for row in _rows(program) if name in row.spellings and not row.sure(trtllm)), None)


def _absent(program: str, trtllm: str, name: str) -> str:
    rows = [row for row in _rows(program) if name in row.spellings]
    if not rows:
        flags = known(program, trtllm)
        return f"{program} of TensorRT-LLM {trtllm} has no flag {name}.{did_you_mean(name, flags)}"
    row, now = rows[-1], compass.version(trtllm)
    if row.never:
        return f"{program} has no flag {name}: {_cure(row)}."
    gone = [row for row in rows if compass.version(row.removed) <= now]
    if gone:
        return f"{program} lost {name} in TensorRT-LLM {gone[-1].removed}, and this is {trtllm}: {_cure(gone[-1])}."
    return f"{program} has {name} only since TensorRT-LLM {row.since}, and this is {trtllm}: {_cure(row)}."


def _check_value(row: Flag, name: str, value: Any, trtllm: str) -> None:
    where = f"{row.program}: {name}"
    if row.kind == "switch":
        if value is not None:
            raise EngineError(f"{where} takes no value, not {value!r}: leave the flag out to switch it off.")
        return
    if value is None or str(value) == "":
        if row.kind == "value?" and value is None:
            return
        raise EngineError(f"{where} needs {_TAKES.get(row.kind, 'a value')}.")
    choices = row.choices_for(trtllm)
    try:
        read = {"int": int, "float": float}.get(row.kind, str)(str(value))
    except ValueError:
        raise EngineError(f"{where} needs {_TAKES[row.kind]}, not {value!r}.") from None
    if choices is not None and read not in choices:
        words = [str(choice) for choice in choices]
        hint = did_you_mean(str(value), words)
        raise EngineError(f"{where} in TensorRT-LLM {trtllm} is one of {', '.join(words)}, not {value!r}.{hint}")


def _cure(row: Flag) -> str:
    if not row.instead or row.instead.startswith("nothing"):
        return "leave it out" + row.instead[len("nothing") :]
    return f"use {row.instead}"


def _doubt(row: Flag) -> str:
    span = row.doubt[0] if row.doubt[0] == row.doubt[1] else f"{row.doubt[0]} to {row.doubt[1]}"
    return f"inferred, no source of {span} was read; the program's --help tells"
