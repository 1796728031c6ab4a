"""The arrows of the house: which package may import which, no private name of another room, no circle of rooms.

A room is a package below one of the four, or a module that lies directly in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[2] / "lib"
ARROWS = {"course": {"servinglab", "engines"}, "servinglab": set(), "engines": set(), "reference_backend": set()}


@dataclass(frozen=True)
class Import:
    """`names` of the module `target` are imported at `line` of the module `source`, inside a function or not."""

    source: str
    target: str
    names: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}: {self.target} {' '.join(self.names)}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(LIB).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(LIB.rglob("*.py"))}


def imports_of(module: str) -> Iterator[Import]:
    """Every import of ours in a module, relative ones resolved; `import a.b` and `from a import b` alike."""
    path = MODULES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            modules = [alias.name for alias in node.names if f"{start}.{alias.name}" in MODULES]
            found = [(f"{start}.{name}", ()) for name in modules]
            if names := tuple(alias.name for alias in node.names if alias.name not in modules):
                found.append((start, names))
        else:
            continue
        for target, names in found:
            if target.split(".")[0] in ARROWS:
                yield Import(module, target, names, node.lineno)


IMPORTS = [each for module in MODULES for each in imports_of(module)]


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def private(each: Import) -> bool:
    """Whether it reaches for something that begins with an underscore."""
    parts = (*each.target.split(".")[1:], *each.names)
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def test_the_four_packages_are_all_there_is():
    assert {module.split(".")[0] for module in MODULES} == set(ARROWS)
    assert len(IMPORTS) > 100, "the imports are found"


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_what_its_arrows_allow(package):
    wrong = [
        str(each)
        for each in IMPORTS
        if each.source.split(".")[0] == package and each.target.split(".")[0] not in {package, *ARROWS[package]}
    ]
    assert wrong == []


def test_no_private_name_crosses_a_room():
    assert [str(each) for each in IMPORTS if room(each.source) != room(each.target) and private(each)] == []


@pytest.mark.parametrize("package", ARROWS)
def test_the_rooms_of_a_package_import_in_no_circle(package):
    """A package's own __init__ stands for the package: it may gather names from its rooms."""
    rooms: dict[str, set[str]] = {}
    for each in IMPORTS:
        ends = {end.split(".")[0] for end in (each.source, each.target)}
        if ends == {package} and package not in (each.source, each.target) and room(each.source) != room(each.target):
            rooms.setdefault(room(each.source), set()).add(room(each.target))
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))
