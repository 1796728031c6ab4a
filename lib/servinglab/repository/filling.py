"""Fill every template under a folder at once, as NVIDIA's fill_template.py does for one file (notebook 03).

    reports = plan_filling("my_repository", {"triton_max_batch_size": 8, "preprocessing/engine_dir": "/engines/vit"})
    write_filling(reports)

The first looks and changes nothing; the second replaces all files or none. A key goes to every file that has its
placeholder; `folder/key` goes to the one file in that folder and wins over the plain key.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from engines import EngineError, compass
from servinglab.errors import did_you_mean
from servinglab.repository import template_history, versions
from servinglab.repository.templates import Placeholder, TemplateError, fill_parts, is_llm, placeholders


@dataclass(frozen=True)
class FillReport:
    """What becomes of one file. Every placeholder is in exactly one of the four lists.

    `filled` were given, `zero` get 0 because they were not (as with NVIDIA's script), `left` are optional and stay,
    `missing` must be given. `text` is the new content. `warning` tells that the template is of another version than the
    container.
    """

    path: Path
    name: str
    filled: tuple[Placeholder, ...]
    zero: tuple[Placeholder, ...]
    left: tuple[Placeholder, ...]
    missing: tuple[Placeholder, ...]
    text: str
    warning: str | None

    def summary(self) -> list[str]:
        """The report as lines of text: each placeholder with its line."""
        lines = [self.name + ("" if any((self.filled, self.zero, self.left, self.missing)) else ": no placeholder")]
        heads = {"filled": "filled", "zero": "0 by itself", "left": "left, optional", "missing": "MISSING"}
        for group, head in heads.items():
            if found := getattr(self, group):
                text = ", ".join(f"{name}:{','.join(map(str, lines_of))}" for name, lines_of in _by_name(found).items())
                lines.append(textwrap.fill(text, 110, initial_indent=f"  {head:16}", subsequent_indent=" " * 18))
        return lines + ([f"  warning         {self.warning}"] if self.warning else [])

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the text."""
        data = asdict(self) | {"path": str(self.path)}
        data |= {key: [p._asdict() for p in getattr(self, key)] for key in ("filled", "zero", "left", "missing")}
        del data["text"]
        return data


def plan_filling(target: str | Path, values: Mapping[str, object], *, container: str | None = None) -> list[FillReport]:
    """What filling `target` (a config.pbtxt, or a folder with models under it) would do; changes nothing.

    `container` (such as "25.12") adds warnings about templates of another version. Raises TemplateError for a file that
    cannot be read, a key that no file has, and a value that does not fit; not for what is missing.
    """
    if not str(target):
        raise TemplateError("No folder is given: name a config.pbtxt or a folder of models.")
    files = _find(Path(target))
    _check_links(files)
    texts = {path: _read(path) for path in files}
    names = {path: {p.name for p in placeholders(text)} for path, text in texts.items()}
    by_folder: dict[str, set[str]] = {}
    for path in files:
        by_folder.setdefault(path.absolute().parent.name, set()).update(names[path])
    _check_keys(values, by_folder, target)
    reports = []
    for path, text in texts.items():
        folder = path.absolute().parent.name
        name = f"{folder}/{path.name}"
        own = {key: values[key] for key in names[path] & values.keys()}
        own |= {key: values[f"{folder}/{key}"] for key in names[path] if f"{folder}/{key}" in values}
        parts = fill_parts(text, own, file=name)
        warning = _warning(text, container) if container else None
        reports.append(FillReport(path, name, *map(tuple, parts[1:]), text=parts.text, warning=warning))
    return reports


def write_filling(reports: list[FillReport]) -> None:
    """Write what `plan_filling` found: all files, or none. Raises TemplateError while something is missing."""
    missing: dict[str, list[str]] = {}
    for report in reports:
        for placeholder in report.missing:
            missing.setdefault(placeholder.name, []).append(f"{report.name}:{placeholder.line}")
    if missing:
        shown = [
            f"${{{name}}} ({places[0]}{f' and {len(places) - 1} more' if places[1:] else ''})"
            for name, places in missing.items()
        ]
        raise TemplateError(
            f"No value for {', '.join(shown)}: Triton cannot load a model without it, also where yours has no use for "
            f"it; nothing was written."
        )
    texts = {report.path.resolve(): report.text for report in reports}  # a link stays a link
    drafts = {target: target.with_name(f".{target.name}.{os.getpid()}") for target in texts}
    before: dict[Path, bytes] = {}
    try:
        for target, draft in drafts.items():
            draft.write_text(texts[target], encoding="utf-8")
            shutil.copymode(target, draft)
        for target, draft in drafts.items():
            before[target] = target.read_bytes()
            draft.replace(target)
    except BaseException as error:  # also Ctrl-C
        for target, data in before.items():
            target.write_bytes(data)
        if isinstance(error, UnicodeEncodeError):
            raise TemplateError(f"A value is not UTF-8 text ({error}); no file was changed.") from error
        if not isinstance(error, OSError):
            raise
        raise TemplateError(f"{error.filename} cannot be written: {error.strerror}; no file was changed.") from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def _by_name(found: tuple[Placeholder, ...]) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = {}
    for placeholder in found:
        lines.setdefault(placeholder.name, []).append(placeholder.line)
    return lines


def _find(target: Path) -> list[Path]:
    if target.is_file():
        return [target]
    if not target.is_dir():
        raise TemplateError(f"{target} does not exist: give a config.pbtxt or a folder of models.")
    # Triton follows a link to a model's folder; `**` does not.
    found = {*target.rglob("config.pbtxt"), *target.glob("*/config.pbtxt")}
    files = sorted(path for path in found if path.is_file())
    if not files:
        raise TemplateError(f"{target} holds no config.pbtxt: copy NVIDIA's models there first.")
    return files


def _check_links(files: list[Path]) -> None:
    first: dict[Path, Path] = {}
    for path in files:
        other = first.setdefault(path.resolve(), path)
        if other is not path:
            raise TemplateError(f"{other} and {path} are one file, by a link: give each model a file of its own.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not UTF-8 text: take a fresh copy of the template.") from error


def _check_keys(values: Mapping[str, object], names: dict[str, set[str]], target: str | Path) -> None:
    everywhere = set().union(*names.values())
    if values and not everywhere:
        raise TemplateError(f"{target} has no placeholder left: take a fresh copy of the templates to fill it anew.")
    for key in values:
        folder, slash, name = key.rpartition("/")
        if slash and folder not in names:
            raise TemplateError(f"{target} has no model {folder!r} (in {key!r}).{did_you_mean(folder, names)}")
        if name in (names[folder] if slash else everywhere):
            continue
        where = f"{folder}/config.pbtxt" if slash else "no file"
        was = template_history.history(name)
        hint = f" NVIDIA's templates have it in {was}." if was else ""
        raise TemplateError(
            f"{'There is no placeholder' if slash else 'No file has the placeholder'} ${{{name}}}"
            f"{f' in {where}' if slash else ''}: it is filled already, or of another version.{hint}"
            f"{did_you_mean(name, names[folder] if slash else everywhere)}"
        )


def _warning(text: str, container: str) -> str | None:
    """Why the template does not go with the container, as far as the file tells, or None."""
    if (coarse := versions.version_warning(text, container)) or not is_llm(text) or "${" not in text:
        return coarse
    try:
        theirs = compass.find(container).trtllm
    except EngineError:  # a container that is not in the table
        return None
    generation = versions.template_generation(text)  # "new" may also be a half-filled "1.1"
    alike = {"new": ("new", "1.1")}.get(generation, (generation,))
    ours = [release for release in template_history.releases_of(text) if compass.generation(release) in alike]
    if not ours or any(Version(theirs).release[:2] == Version(release).release[:2] for release in ours):
        return None
    span = ours[0] if len(ours) == 1 else f"{ours[0]} to {ours[-1]}"
    return (
        f"This template is of TensorRT-LLM {span} and container {container} has {theirs}: take the templates that lie "
        f"in the container."
    )
