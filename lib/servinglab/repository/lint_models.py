"""Lint, first part: the folders of a repository, the rules that need one config.pbtxt, and the assets beside it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import templates


@dataclass(frozen=True)
class Finding:
    """One fault: an "error" (does not load, or answers wrongly) or a "warning"; a stable code; a path and a line from 1,
    if there is one; one sentence about what is wrong, and what to do."""

    severity: str
    code: str
    file: str
    line: int | None
    message: str
    cure: str


@dataclass(eq=False)
class Model:
    """One folder: the text of its config.pbtxt and, where that parses, the message."""

    folder: Path
    text: str = ""
    config: pb.ModelConfig | None = None
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.folder.name

    def note(self, code: str, place: str | int | Path, message: str, cure: str, severity: str = "error") -> None:
        """A finding in config.pbtxt, at a line or the first match of a pattern (0: nowhere), or about another file."""
        file, line = (place, 0) if isinstance(place, Path) else (self.folder / "config.pbtxt", place)
        line = (self.line(line) if isinstance(line, str) else line) or None
        # Names and values come from broken files: no line break or terminal code of theirs reaches the reader.
        shown = (text if text.isprintable() else ascii(text)[1:-1] for text in (message, cure))
        self.findings.append(Finding(severity, code, str(file), line, *shown))

    def line(self, pattern: str) -> int:
        """The line on which the first match ends, 1 where there is none."""
        found = re.search(pattern, self.text, re.M)
        return self.text.count("\n", 0, found.end()) + 1 if found else 1

    def tensor(self, kind: str, name: str) -> str:
        """The pattern for where the tensor `name`, an "input" or "output", is declared."""
        return rf'(?s:^ *{kind}\b.*?name\s*:\s*"{re.escape(name)}")'

    def parameter(self, key: str) -> str:
        """A string parameter of the config; empty when it is absent, empty or still a placeholder ("not set")."""
        value = self.config.parameters[key].string_value if key in self.config.parameters else ""
        return "" if value.startswith("${") else value


def read_repository(top: Model) -> dict[str, Model]:
    """Every model folder by name; what is wrong with folders goes to `top`."""
    models: dict[str, Model] = {}
    try:
        for entry in sorted(entry for entry in top.folder.iterdir() if entry.is_dir()):
            if (entry / "config.pbtxt").exists() or any(path.name.isdigit() for path in entry.iterdir()):
                models[entry.name] = _read_model(Model(entry))
                continue
            cure = "Keep it beside the repository, or start Triton with --model-control-mode=explicit."
            what = f"{entry.name} is no model: Triton's default control mode takes it for one and refuses to start."
            top.note("L004" if entry.name == ".ipynb_checkpoints" else "L002", entry, what, cure, "warning")
    except OSError as error:
        top.note("L001", top.folder, f"The repository cannot be read: {error.strerror}.", "Give a model repository.")
    if not models and not top.findings:
        cure = "Give the folder whose subfolders are the models, usually …/model_repository."
        top.note("L001", top.folder, "The repository holds no model folder.", cure)
    return models


def _read_model(model: Model) -> Model:
    """Read its config, as far as the file allows, and look at its version folders."""
    try:
        if not (file := model.folder / "config.pbtxt").is_file():
            raise OSError(0, "no such regular file")  # reading a pipe would wait for ever
        model.text = file.read_text(encoding="utf-8")
        model.config = text_format.Parse(model.text, pb.ModelConfig())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or f"no UTF-8 text: {getattr(error, 'reason', error)}"
        model.note("L013", 0, f"config.pbtxt cannot be read ({reason}).", "Write it anew, as plain UTF-8 text.")
    except (text_format.ParseError, ValueError, RecursionError) as error:
        unfilled = [spot for spot in templates.placeholders(model.text) if spot.kind == "structural"]
        for spot in unfilled:
            what = f"${{{spot.name}}} is not filled: Triton cannot parse the file."
            model.note("L016", spot.line, what, f"Fill {spot.name}, even if your model has no use for it.")
        if not unfilled:
            line, reason = templates.place(error)
            cure = "Look for a misspelt name, a missing quote, colon, comma or brace, or a field written twice."
            model.note("L015", line, f"config.pbtxt is no model configuration: {reason}", cure)
    # Triton ignores a folder like "v1" or "01"; an ensemble needs the folder too, though nothing lies in it.
    versions = [e for e in model.folder.iterdir() if re.fullmatch(r"[1-9][0-9]{0,17}", e.name) and e.is_dir()]
    if not versions:
        what = f"{model.name} has no version folder, so there is nothing to load."
        model.note("L011", model.folder, what, f"Make the folder {model.name}/1.")
    for version in versions if model.config is not None and model.config.backend == "python" else ():
        file = version / (model.config.default_model_filename or "model.py")
        if not file.is_file():
            what = f"Version {version.name} of {model.name} has no {file.name}: loading it never ends."
            model.note("L012", file, what, "Build the deployment again, or copy the file there.")
    return model


def check_config(model: Model) -> None:
    """Rules that need one config.pbtxt only."""
    config = model.config
    if config.name not in ("", model.name):  # without a name Triton takes the folder's
        what = f"The model is named {config.name!r} and its folder {model.name!r}: Triton wants the same name."
        model.note("L010", r"^ *name\s*:", what, f'Write name: "{model.name}", or rename the folder.')
    name = config.backend or config.platform
    if config.platform != "ensemble" and not name.startswith("${") and config.backend not in ("python", "tensorrtllm"):
        what = f"The backend {name!r} is not available: both lanes have python and tensorrtllm."
        cure = "Import its library in a Python model, or take the plain tritonserver image, which has the others."
        model.note("L019", r"^ *(backend|platform)\s*:", what, cure)
    for spot in templates.placeholders(model.text):
        says = "the model does not load" if spot.mandatory else "that counts as not set"
        what = f"${{{spot.name}}} is not filled: Triton passes it on as text, and {says}."
        code, severity = ("L017", "error") if spot.mandatory else ("L018", "warning")
        model.note(code, spot.line, what, f"Fill {spot.name}, or remove the parameter.", severity)
    # Only where the rest of the shape is fixed: [-1, 3, 224, 224]. Else a leading -1 is a length more often than not.
    for kind, tensor in [("input", t) for t in config.input] + [("output", t) for t in config.output]:
        rows, rest = config.max_batch_size, list(tensor.dims[1:])
        if rows > 0 and len(rest) >= 3 and min(rest) > 0 and tensor.dims[0] in (-1, 1, rows):
            what = f"{kind} {tensor.name} has dims {list(tensor.dims)} and max_batch_size is {rows}: Triton puts the "
            what += f"batch dimension in front, so a request needs {len(rest) + 2} dimensions."
            cure = f"Write dims: {rest}, unless the first really is another dimension than the batch."
            model.note("L021", model.tensor(kind, tensor.name), what, cure, "warning")


def tokenizer_problem(folder: Path) -> str | None:
    """Why `folder` holds no tokenizer (the end of a sentence with the cure), or None."""
    return None if _has(folder, "tokenizer.json") else "holds no tokenizer.json: copy the checkpoint's tokenizer there."


def engine_problem(folder: Path) -> str | None:
    """Why `folder` is no engine (the end of a sentence with the cure), or None: it holds config.json and a
    rank{r}.engine for each rank."""
    names = [f"rank{n}.engine" for n in range(engine_sizes(folder)[0])]
    missing = [name for name in names or ["a readable config.json"] if not _has(folder, name)]
    return f"lacks {', '.join(missing[:4])}: copy every file of the build there." if missing else None


def engine_sizes(folder: Path) -> tuple[int, int | None]:
    """World size and max_batch_size of an engine, by its config.json; (0, None) where that cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        mapping = config.get("pretrained_config", {}).get("mapping", {})
        ranks = mapping.get("world_size", mapping.get("tp_size", 1) * mapping.get("pp_size", 1))
        return min(int(ranks), 4096), config.get("build_config", {}).get("max_batch_size")
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return 0, None


def _has(folder: Path, name: str) -> bool:
    try:
        return (folder / name).exists()
    except (OSError, ValueError):  # what no file system can hold: NUL bytes, endless names
        return False
