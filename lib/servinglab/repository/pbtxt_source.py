"""Where things stand in the text of a config.pbtxt: fields' lines and `${…}` placeholders. For templates and lint."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

_COMMENT = r"#[^\n]*"
_STRING = r'"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?'
_TOKENS = re.compile(rf"{_COMMENT}|(?P<string>{_STRING})|(?P<mark>[{{}}\[\]<>:;,])|(?P<word>[^\s{{}}\[\]<>:;,#\"']+)")
PLACEHOLDER = re.compile(r"\$\{(\w*)\}")
_PARTS = re.compile(rf"{_COMMENT}|(?P<string>{_STRING})|{PLACEHOLDER.pattern}")


@dataclass(frozen=True)
class Spot:
    """One placeholder in a text: `start`/`end` are offsets, `line` counts from 1, `quoted` means inside a string."""

    name: str
    start: int
    end: int
    line: int
    quoted: bool


def spots(text: str) -> list[Spot]:
    """Every placeholder of the text, in order. Comments are skipped, as the parser does."""
    breaks = [match.start() for match in re.finditer("\n", text)]
    found = []
    for part in _PARTS.finditer(text):
        if part["string"] is None and part[2] is None:
            continue  # a comment
        for match in PLACEHOLDER.finditer(text, *part.span()):
            line = bisect.bisect_left(breaks, match.start()) + 1
            found.append(Spot(match[1], match.start(), match.end(), line, part["string"] is not None))
    return found


class Lines:
    """The lines of a parsed config's fields: `at("input", 2, "dims")` is the line of the third input's first dims.

    A path alternates field names and indices; a left-out index is 0. What is not in the text falls back to the message
    around it, at last to line 1.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple, int] = {}
        self._values: dict[tuple, str] = {}
        self._tokens: list[tuple[str, int]] = []
        line, last = 1, 0
        for match in _TOKENS.finditer(text):
            line += text.count("\n", last, match.start())
            last = match.start()
            if match.lastgroup:
                self._tokens.append((match[0], line))
        self._tokens.reverse()  # a stack: the next token is the last
        while self._tokens:
            self._message(())

    def at(self, *path: str | int) -> int:
        """The line of a field, from 1."""
        full = self._full(path)
        while full and full not in self._lines:
            full = full[:-2]
        return self._lines.get(full, 1)

    def entry(self, *path: str | int, key: str) -> int:
        """The line of the last entry with this key in the map field at `path`, e.g. `entry("parameters", key="x")`."""
        *parent, name = path
        start = self._full(tuple(parent))
        found = [
            full
            for full, value in self._values.items()
            if len(full) == len(start) + 4 and full[: len(start) + 1] == (*start, name)
            if full[-2] == "key" and value[1:-1] == key
        ]
        return self._lines[found[-1][:-2]] if found else self.at(*path)

    @staticmethod
    def _full(path: tuple) -> tuple:
        full: list = []
        for item in path:
            if isinstance(item, str) and len(full) % 2:
                full.append(0)
            full.append(item)
        return tuple(full) + ((0,) if len(full) % 2 else ())

    def _message(self, path: tuple, depth: int = 0) -> None:
        counts: dict[str, int] = {}
        while self._tokens:
            name, line = self._tokens.pop()
            if name in ("}", ">") or depth > 50:
                return
            if name in (",", ";"):
                continue
            if self._tokens and self._tokens[-1][0] == ":":
                self._tokens.pop()
            in_list = bool(self._tokens) and self._tokens[-1][0] == "["
            if in_list:
                self._tokens.pop()
            while self._tokens and not (in_list and self._tokens[-1][0] == "]"):
                value, line_of_value = self._tokens.pop()
                if value == ",":
                    continue
                field = (*path, name, counts.get(name, 0))
                counts[name] = counts.get(name, 0) + 1
                self._lines[field] = line_of_value if in_list else line
                if value in ("{", "<"):
                    self._message(field, depth + 1)
                else:
                    self._values[field] = value
                    while value[0] in "\"'" and self._tokens and self._tokens[-1][0][0] in "\"'":
                        self._tokens.pop()  # "a" "b" is one string
                if not in_list:
                    break
            if in_list and self._tokens:
                self._tokens.pop()
