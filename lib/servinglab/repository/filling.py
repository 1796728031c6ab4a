"""Fill every template under a folder at once, as NVIDIA's fill_template.py does for one file: `course repo fill`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from servinglab.errors import did_you_mean
from servinglab.repository.templates import Filled, TemplateError, fill_parts, placeholders, version_warning


class FillReport(NamedTuple):
    """What becomes of one config.pbtxt; `warning`: its template is of another generation than the container."""

    path: Path
    result: Filled
    warning: str | None

    def summary(self) -> dict[str, object]:
        """{group: placeholders as "name:line"}, for people and for JSON."""
        _, *groups = self.result
        named = zip(("filled", "zero", "left", "missing"), groups, strict=True)
        shown = {name: [f"{p.name}:{p.line}" for p in found] for name, found in named}
        return {"file": str(self.path), **shown, "warning": self.warning}


def fill_repository(
    target: str | Path, values: Mapping[str, object], *, container: str | None = None, write: bool = True
) -> list[FillReport]:
    """Fill `target`, a config.pbtxt or a folder with models under it: all files, or none.

    A key goes to every file that has its placeholder; `folder/key` goes to the one file in that folder and wins over
    the plain key. Without `write` nothing is changed. Raises TemplateError for a file that cannot be read, a key that
    no file has, a value that does not fit, and (with `write`) a mandatory placeholder without a value.
    """
    target = Path(target)
    files = [target] if target.is_file() else sorted({*target.glob("**/config.pbtxt"), *target.glob("*/config.pbtxt")})
    if not files:
        raise TemplateError(f"{target} holds no config.pbtxt: copy NVIDIA's models there first.")
    try:
        texts = {path: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"A config.pbtxt under {target} cannot be read: {error}.") from None
    names = {path: {p.name for p in placeholders(text)} for path, text in texts.items()}
    folders = {path: path.absolute().parent.name for path in files}
    known = {key for path, own in names.items() for name in own for key in (name, f"{folders[path]}/{name}")}
    for key in values:
        if key not in known:
            raise TemplateError(
                f"No file has the placeholder ${{{key}}}: it is filled already, or of another version."
                f"{did_you_mean(key, known)}"
            )
    reports = []
    for path, text in texts.items():
        folder = folders[path]
        own = {key: values.get(f"{folder}/{key}", values.get(key)) for key in names[path]}
        given = {key: value for key, value in own.items() if value is not None}
        result = fill_parts(text, given, file=f"{folder}/{path.name}")
        reports.append(FillReport(path, result, version_warning(text, container) if container else None))
    if write:
        _write(reports)
    return reports


def _write(reports: list[FillReport]) -> None:
    missing = [f"${{{p.name}}} ({r.path.parent.name}:{p.line})" for r in reports for p in r.result.missing]
    if missing:
        raise TemplateError(
            f"No value for {', '.join(missing)}: Triton cannot load a model without it, also where yours has no use "
            "for it; nothing was written."
        )
    texts = {report.path.resolve(): report.result.text for report in reports}  # a link stays a link
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts}
    try:
        for path, draft in drafts.items():
            draft.write_text(texts[path], encoding="utf-8")
            shutil.copymode(path, draft)
        for path, draft in drafts.items():
            draft.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        raise TemplateError(f"The files under {reports[0].path.parent} cannot be written: {error}.") from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
