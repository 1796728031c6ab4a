"""Lint, first part: the folders and files of a repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

from servinglab.repository.findings import Finding, Model
from servinglab.repository.lint_read import is_link_to_nowhere, link_problem, read_config

_CHECKPOINTS = ".ipynb_checkpoints"
_NO_MODELS_CURE = "Give the folder whose subfolders are the models, usually …/model_repository."


def read_repository(repository: Path) -> tuple[dict[str, Model], list[Finding]]:
    """Every model folder by name, and what is wrong with folders and files."""
    found: list[Finding] = []
    entries, problem = _entries(repository)
    if problem:
        _note(found, "error", "L001", repository, f"The repository {problem}.", _NO_MODELS_CURE)
    _no_triton_folder([repository, repository.absolute().parent], found)
    models: dict[str, Model] = {}
    for entry in entries:
        if entry.name == _CHECKPOINTS:
            _checkpoints(entry, "error", found)
        elif is_link_to_nowhere(entry):
            said = f"The link {entry.name} {link_problem(entry)}."
            _note(found, "error", "L013", entry, said, "Make it again, or remove it.")
        elif os.path.isdir(entry) and (model := _read_model(entry, found)):
            models[model.name] = model
    if not models and not problem:
        inner = repository / "model_repository"
        cure = f"Did you mean {inner}?" if os.path.isdir(inner) else _NO_MODELS_CURE
        _note(found, "error", "L001", repository, "The repository holds no model folder.", cure)
    return models, found


def _read_model(folder: Path, found: list[Finding]) -> Model | None:
    model = Model(folder)
    entries, problem = _entries(folder)
    if problem:
        _note(found, "error", "L013", folder, f"The folder {problem}.", "Give this user the right to read it.")
        return model
    names = [entry.name for entry in entries]
    if "config.pbtxt" not in names and not any(name.isdigit() for name in names):
        _note(found, "warning", "L002", folder,
              f"{folder.name} is no model: Triton's default control mode tries to load it and refuses to start.",
              "Keep it beside the repository, or start Triton with --model-control-mode=explicit.")  # fmt: skip
        return None
    _no_triton_folder([folder], found)
    if _CHECKPOINTS in names:
        _checkpoints(folder / _CHECKPOINTS, "warning", found)
    if "config.pbtxt" in names:
        read_config(model)
    else:
        cure = "Write one, or build the deployment again."
        _note(found, "error", "L003", model.file, f"{folder.name} has no config.pbtxt.", cure)
    _check_versions(model, entries, found)
    return model


def _check_versions(model: Model, entries: list[Path], found: list[Finding]) -> None:
    # Triton ignores a folder like "v1" or "01"; an ensemble needs the folder too, though nothing lies in it.
    versions = [entry for entry in entries if re.fullmatch(r"[1-9][0-9]{0,17}", entry.name) and os.path.isdir(entry)]
    if not versions:
        _note(found, "error", "L011", model.folder, f"{model.name} has no version folder, so there is nothing to load.",
              f"Make the folder {model.name}/1.")  # fmt: skip
    for version in versions:
        inside, problem = _entries(version)
        if problem:
            _note(found, "error", "L013", version, f"The folder {problem}.", "Give this user the right to read it.")
            continue
        _no_triton_folder(inside, found)
        if any(entry.name == _CHECKPOINTS for entry in inside):
            _checkpoints(version / _CHECKPOINTS, "warning", found)
        wanted = (model.config.default_model_filename or "model.py") if model.config else None
        if wanted and model.config.backend == "python" and not os.path.isfile(version / wanted):
            _note(found, "error", "L012", version / wanted,
                  f"Version {version.name} of {model.name} has no {wanted}: loading it never ends.",
                  "Build the deployment again, or copy the file there.")  # fmt: skip


def _note(found: list[Finding], severity: str, code: str, path: Path, message: str, cure: str) -> None:
    found.append(Finding(severity, code, str(path), None, message, cure))


def _entries(folder: Path) -> tuple[list[Path], str | None]:
    try:
        return sorted(folder.iterdir()), None
    except NotADirectoryError:
        return [], "is no folder"
    except FileNotFoundError:
        return [], "does not exist"
    except (OSError, ValueError) as error:
        return [], f"cannot be read ({getattr(error, 'strerror', None) or error})"


def _checkpoints(path: Path, severity: str, found: list[Finding]) -> None:
    what = "Triton ignores it"
    if severity == "error":
        what = "Triton's default control mode takes it for a model and refuses to start"
    _note(found, severity, "L004", path, f"JupyterLab left {_CHECKPOINTS} in the repository: {what}.", "Delete it.")


def _no_triton_folder(folders: list[Path], found: list[Finding]) -> None:
    for folder in folders:
        if folder.name == "triton" and os.path.isdir(folder):
            _note(found, "warning", "L005", folder,
                  "A folder named triton can be imported in place of the package triton; then torch fails.",
                  "Give the folder another name.")  # fmt: skip
