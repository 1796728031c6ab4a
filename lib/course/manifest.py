"""The course manifest `course.toml`, read and checked. Every other place that lists notebooks asks here."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError
from servinglab.root import MANIFEST, find_root

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANES = ("embedded", "trtllm")
MODELS = ("smollm2", "smollm2-draft", "minilm")
NEEDS = ("triton", "docker", "gpu", *MODELS)
_FIELDS = {"id": str, "title": str, "minutes": int, "lanes": list, "needs": list, "parameters": dict, "sets": list}
_OPTIONAL = ("timeout", "folder")
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table"}


class ManifestError(CourseError):
    """`course.toml` is missing or wrong, or a notebook or parameter was asked for that it does not list."""


@dataclass(frozen=True)
class ParameterSet:
    """Named values for a notebook's parameters; what is not named keeps its default."""

    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Notebook:
    """One entry of the manifest. `minutes` is reading time, `timeout` the seconds a run may take, `folder` where it
    lies, from the course's root: "notebooks", or a lab such as "labs/vlm_clip"."""

    id: str
    title: str
    minutes: int
    lanes: tuple[str, ...]
    needs: tuple[str, ...]
    parameters: dict[str, Any]
    sets: tuple[ParameterSet, ...]
    timeout: int
    path: Path
    folder: str = "notebooks"

    def values(self, overrides: dict[str, Any] | None = None, set_name: str | None = None) -> dict[str, Any]:
        """Every parameter with its value: default, then the set (the first if None), then `overrides`.

        Raises ManifestError for a name or a type the notebook does not have.
        """
        chosen = self.sets[0] if set_name is None else next((s for s in self.sets if s.name == set_name), None)
        if chosen is None:
            names = ", ".join(s.name for s in self.sets)
            raise ManifestError(f"{self.id} has no parameter set '{set_name}'; it has: {names}.")
        merged = dict(self.parameters)
        for name, value in {**chosen.values, **(overrides or {})}.items():
            if name not in merged:
                known = ", ".join(self.parameters)
                raise ManifestError(f"{self.id} has no parameter '{name}'; it has: {known}.")
            merged[name] = _typed(name, value, self.parameters[name])
        return merged


@dataclass(frozen=True)
class Course:
    """The whole course, in the order in which its notebooks are read and run."""

    root: Path
    notebooks: tuple[Notebook, ...]

    def select(self, ids: list[str] | None = None) -> list[Notebook]:
        """Notebooks by id, by its leading number ("03", "3") or by folder ("labs/vlm_clip"), in the order of the
        manifest; all when `ids` is empty."""
        if not ids:
            return list(self.notebooks)
        names = {n.id: {n.id, n.id.split("_")[0], n.folder} for n in self.notebooks}
        wanted = {i.removeprefix("./").rstrip("/") if "/" in i else i.zfill(2) if i.isdigit() else i for i in ids}
        if unknown := wanted - set().union(*names.values()):
            labs = dict.fromkeys(n.folder for n in self.notebooks if n.folder != "notebooks")
            known = ", ".join([*names, *labs])
            raise ManifestError(f"The course has no notebook '{min(unknown)}'; it has: {known}.")
        return [n for n in self.notebooks if names[n.id] & wanted]

    def models(self) -> list[str]:
        """Names of the models that the notebooks need, each once."""
        return [m for m in MODELS if any(m in n.needs for n in self.notebooks)]


def load(root: Path | str | None = None) -> Course:
    """Read and check the manifest under `root` (default: found from the current folder). Raises ManifestError."""
    folder = Path(root) if root is not None else find_root()
    path = folder / MANIFEST
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{path} does not exist; run this from the course's folder.") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path} is not valid TOML: {error}.") from None
    entries = data.get("notebook")
    if not isinstance(entries, list) or not entries:
        raise ManifestError(f"{path} lists no [[notebook]].")
    timeout = data.get("timeout", 600)
    notebooks = tuple(_notebook(entry, number, path, timeout) for number, entry in enumerate(entries, 1))
    ids = [n.id for n in notebooks]
    for repeated in {i for i in ids if ids.count(i) > 1}:
        raise ManifestError(f"{path}: notebook '{repeated}' is listed more than once.")
    return Course(folder, notebooks)


def parse_assignments(pairs: list[str], notebooks: list[Notebook]) -> dict[str, dict[str, Any]]:
    """`["seed=3", …]` → for each notebook id the overrides it knows, typed like its defaults.

    A name that none of the notebooks has raises ManifestError, so that a misspelt name never runs unnoticed.
    """
    overrides: dict[str, dict[str, Any]] = {n.id: {} for n in notebooks}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise ManifestError(f"'{pair}' is not a parameter; write NAME=VALUE, for example -p max_tokens=16.")
        owners = [n for n in notebooks if name in n.parameters]
        if not owners:
            known = ", ".join(dict.fromkeys(p for n in notebooks for p in n.parameters))
            raise ManifestError(f"No selected notebook has a parameter '{name}'; they have: {known}.")
        if name == "lane":
            _check_lane(text, owners)
        for notebook in owners:
            overrides[notebook.id][name] = _from_text(name, text, notebook.parameters[name])
    return overrides


def _check_lane(lane: str, notebooks: list[Notebook]) -> None:
    if lane not in (*LANES, "auto"):
        raise ManifestError(f"There is no lane '{lane}'; choose one of {', '.join(LANES)}, auto.")
    for notebook in notebooks:
        if lane != "auto" and lane not in notebook.lanes:
            raise ManifestError(f"{notebook.id} does not run in lane '{lane}', only in: {', '.join(notebook.lanes)}.")


def _notebook(entry: Any, number: int, path: Path, default_timeout: Any) -> Notebook:
    where = f"{path}, notebook {number}"
    if not isinstance(entry, dict):
        raise ManifestError(f"{where} is not a table.")
    where += f" ({entry['id']})" if isinstance(entry.get("id"), str) else ""
    for name, kind in _FIELDS.items():
        if name not in entry:
            raise ManifestError(f"{where} has no '{name}'.")
        if type(entry[name]) is not kind:
            raise ManifestError(f"{where}: '{name}' must be {_KINDS[kind]}, not {entry[name]!r}.")
    for name in entry:
        if name not in (*_FIELDS, *_OPTIONAL):
            raise ManifestError(f"{where}: unknown key '{name}'; known are {', '.join((*_FIELDS, *_OPTIONAL))}.")
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", entry["id"]):
        raise ManifestError(f"{where}: an id is two digits and lower-case words joined by _, like 05_streaming_grpc.")
    for name, known in (("lanes", LANES), ("needs", NEEDS)):
        for value in entry[name]:
            if value not in known:
                raise ManifestError(f"{where}: '{value}' in {name} is unknown; known are {', '.join(known)}.")
    for name, value in entry["parameters"].items():
        if type(value) not in (str, int, float, bool):
            raise ManifestError(f"{where}: parameter '{name}' must be text, a number or true/false, not {value!r}.")
    if not entry["lanes"]:
        raise ManifestError(f"{where}: lanes is empty; name at least one of {', '.join(LANES)}.")
    timeout = entry.get("timeout", default_timeout)
    for name, value in (("minutes", entry["minutes"]), ("timeout", timeout)):
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ManifestError(f"{where}: {name} must be a whole number above 0, not {value!r}.")
    folder = entry.get("folder", "notebooks")
    if not isinstance(folder, str) or not re.fullmatch(r"notebooks|labs/[a-z0-9_]+", folder):
        raise ManifestError(f"{where}: folder must be notebooks or labs/NAME, not {folder!r}.")
    notebook = Notebook(
        id=entry["id"],
        title=entry["title"],
        minutes=entry["minutes"],
        lanes=tuple(entry["lanes"]),
        needs=tuple(entry["needs"]),
        parameters=dict(entry["parameters"]),
        sets=_sets(entry["sets"], where),
        timeout=timeout,
        path=path.parent / folder / f"{entry['id']}.ipynb",
        folder=folder,
    )
    for one in notebook.sets:
        try:
            notebook.values(set_name=one.name)
        except ManifestError as error:
            raise ManifestError(f"{where}, set '{one.name}': {error}") from None
    return notebook


def _sets(entries: list, where: str) -> tuple[ParameterSet, ...]:
    if len(entries) < 2:
        raise ManifestError(f"{where}: sets needs at least two parameter sets, because CI runs each notebook with two.")
    sets = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ManifestError(f"{where}: each parameter set is a table with a name, not {entry!r}.")
        if entry["name"] in [s.name for s in sets]:
            raise ManifestError(f"{where}: the parameter set '{entry['name']}' is there more than once.")
        sets.append(ParameterSet(entry["name"], {k: v for k, v in entry.items() if k != "name"}))
    return tuple(sets)


def _typed(name: str, value: Any, default: Any) -> Any:
    """`value` with the type of `default`; a whole number may stand for a float, nothing else is converted."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ManifestError(f"Parameter '{name}' takes {_KINDS[type(default)]}, not {value!r}.")
    return value


def _from_text(name: str, text: str, default: Any) -> Any:
    """The value that `text` from the command line stands for, by the type of the default."""
    if isinstance(default, str):
        return text
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if set(parsed) != {"v"}:
        raise ManifestError(f"Parameter '{name}' takes {_KINDS[type(default)]}, not {text!r}.")
    return _typed(name, parsed["v"], default)
