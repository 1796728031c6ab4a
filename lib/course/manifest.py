"""The course manifest `course.toml`, read and checked. Every other place that lists notebooks asks here."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from servinglab.errors import CourseError
from servinglab.lane import ADDRESS
from servinglab.root import MANIFEST, find_root, tomllib

MODELS = ("smollm2", "smollm2-draft", "minilm")
Lane = Literal["embedded", "trtllm"]
Need = Literal["triton", "docker", "gpu", "smollm2", "smollm2-draft", "minilm"]
Count = Annotated[int, Field(strict=True, gt=0)]
Values = dict[str, bool | int | float | str]


class ManifestError(CourseError):
    """`course.toml` is missing or wrong, or a notebook or parameter was asked for that it does not list."""


@dataclass(frozen=True)
class ParameterSet:
    """Named values for a notebook's parameters; what is not named keeps its default."""

    name: str
    values: Values


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Notebook:
    """One entry of the manifest. `minutes` is reading time, `timeout` the seconds a run may take, `folder` where it
    lies, from the course's root: "notebooks", or a lab such as "labs/vlm_clip"; of what is `untimed` no figure is a
    time, so another may run beside it."""

    id: Annotated[str, Field(pattern=r"^(\d\d_[a-z0-9_]+|playground)$")]
    title: str
    minutes: Count
    lanes: Annotated[tuple[Lane, ...], Field(min_length=1)]
    needs: tuple[Need, ...]
    parameters: Values
    sets: Annotated[tuple[ParameterSet, ...], Field(min_length=2)]  # CI runs each notebook with two
    timeout: Count
    path: Path
    folder: Annotated[str, Field(pattern=r"^(notebooks|labs/[a-z0-9_]+)$")] = "notebooks"
    untimed: bool = False

    @property
    def number(self) -> str:
        """ "05" of "05_streaming_grpc"; the playground has none, and its name instead."""
        return self.id.partition("_")[0]

    @field_validator("sets", mode="before")
    @classmethod
    def _as_written(cls, sets: Any) -> Any:
        """In the file a set is one table: its name beside its values."""
        if not isinstance(sets, list):
            return sets
        return [{"name": s.pop("name", None), "values": s} if isinstance(s, dict) else s for s in sets]

    def values(self, overrides: dict[str, Any] | None = None, set_name: str | None = None) -> dict[str, Any]:
        """Every parameter with its value: default, then the set (the first if None), then `overrides`.

        Raises ManifestError for a name or a type the notebook does not have.
        """
        sets = {s.name: s.values for s in self.sets}
        if set_name is not None and set_name not in sets:
            raise ManifestError(f"{self.id} has no parameter set '{set_name}'; it has: {', '.join(sets)}.")
        merged = dict(self.parameters)
        for name, value in {**sets[set_name or self.sets[0].name], **(overrides or {})}.items():
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
        names = {n.id: {n.id, n.number, n.folder, str(n.path.relative_to(self.root))} for n in self.notebooks}
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
    if not data.get("notebook"):
        raise ManifestError(f"{path} lists no [[notebook]].")
    notebooks: list[Notebook] = []
    for number, entry in enumerate(data["notebook"], 1):
        where = f"{path}, notebook {number}" + (f" ({entry['id']})" if "id" in entry else "")
        place = folder / str(entry.get("folder", "notebooks")) / f"{entry.get('id')}.ipynb"
        try:
            notebook = Notebook(**{"timeout": data.get("timeout", 600), **entry, "path": place})
            for one in notebook.sets:
                notebook.values(set_name=one.name)
        except ValidationError as error:
            raise ManifestError(f"{where}: {one_sentence(error)}") from None
        except ManifestError as error:
            raise ManifestError(f"{where}, set '{one.name}': {error}") from None
        if notebook.id in [n.id for n in notebooks] or len({s.name for s in notebook.sets}) < len(notebook.sets):
            raise ManifestError(f"{where}: this id, or the name of one of its sets, is there more than once.")
        notebooks.append(notebook)
    return Course(folder, tuple(notebooks))


def one_sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, found {first['input']!r}."


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
        for notebook in owners:
            if name == "lane" and not text.startswith(ADDRESS) and text not in (*notebook.lanes, "auto"):
                raise ManifestError(
                    f"{notebook.id} does not run in lane '{text}', only in: {', '.join(notebook.lanes)}."
                )
            overrides[notebook.id][name] = _typed(name, text, notebook.parameters[name], text=True)
    return overrides


def _typed(name: str, value: Any, default: Any, *, text: bool = False) -> Any:
    """`value` with the type of `default`; a whole number may stand for a float, and `text` for what it spells."""
    adapter = TypeAdapter(type(default))
    try:
        return (adapter.validate_strings if text else adapter.validate_python)(value, strict=True)
    except ValidationError as error:
        kind = error.errors()[0]["msg"].removeprefix("Input should be ").partition(",")[0]
        raise ManifestError(f"Parameter '{name}' takes {kind}, not {value!r}.") from None
