"""Lint, first part: the folders of a repository, and the rules that need one config.pbtxt, or an ensemble's."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository import pbtxt, templates
from servinglab.server.install import PLAIN, odd_characters
from servinglab.server.shell_words import shell_words

CHECKPOINTS = ".ipynb_checkpoints"


@dataclass(frozen=True)
class Finding:
    """One fault. `severity` is "error" (does not load, or answers wrongly) or "warning"; `line` counts from 1.

    `code` is stable (L001 …), `file` is a path, `message` one sentence, `cure` what to do.
    """

    severity: str
    code: str
    file: str
    line: int | None
    message: str
    cure: str

    def as_dict(self) -> dict[str, str | int | None]:
        """For JSON."""
        return asdict(self)


@dataclass(eq=False)
class Model:
    """One folder: the text of its config.pbtxt and, where that parses, the message."""

    folder: Path
    text: str = ""
    config: pb.ModelConfig | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    def note(self, code: str, place: str | int | Path, message: str, cure: str, severity: str = "error") -> None:
        """A finding in config.pbtxt, at a line or the first match of a pattern (0: nowhere), or about another file."""
        line = self.line(place) if isinstance(place, str) else None if isinstance(place, Path) else place or None
        file = place if isinstance(place, Path) else self.folder / "config.pbtxt"
        # Names and values come from broken files: no line break or terminal code of theirs reaches the reader.
        shown = (text if text.isprintable() else ascii(text)[1:-1] for text in (message, cure))
        self.findings.append(Finding(severity, code, str(file), line, *shown))

    def warn(self, code: str, place: str | int | Path, message: str, cure: str) -> None:
        """Like `note`, for what may work all the same."""
        self.note(code, place, message, cure, "warning")

    def line(self, pattern: str) -> int:
        """The line of the first match, 1 where there is none."""
        found = re.search(pattern, self.text, re.M)
        return self.text.count("\n", 0, found.start()) + 1 if found else 1

    def tensor_line(self, kind: str, name: str, what: str = "name") -> int:
        """Where the tensor `name`, an "input" or "output", is declared, or `what` of it."""
        for found in re.finditer(rf'name\s*:\s*"{re.escape(name)}"', self.text):
            kinds = re.findall(r"\b(input|output)\b\s*:?\s*[\[{]", self.text[: found.start()])
            if kinds and kinds[-1] == kind:
                rest = re.compile(rf"\b(?:{what}|name|input|output)\b").search(self.text, found.end())
                at = rest.start() if rest and rest[0] == what != "name" else found.start()
                return self.text.count("\n", 0, at) + 1
        return self.line(rf"^ *{kind}\b")

    def parameter(self, key: str) -> str:
        """A string parameter of the config; empty when it is absent, empty or still a placeholder ("not set")."""
        value = self.config.parameters[key].string_value if self.config and key in self.config.parameters else ""
        return "" if value.startswith("${") else value


def read_repository(top: Model) -> dict[str, Model]:
    """Every model folder by name; what is wrong with folders goes to `top`."""
    models: dict[str, Model] = {}
    cure = "Give the folder whose subfolders are the models, usually …/model_repository."
    refuses = "Triton's default control mode takes it for a model and refuses to start."
    try:
        entries = sorted(top.folder.iterdir())
    except OSError as error:
        top.note("L001", top.folder, f"The repository cannot be read: {error.strerror}.", cure)
        return models
    for entry in entries:
        if entry.name == CHECKPOINTS:
            top.note("L004", entry, f"JupyterLab left {CHECKPOINTS} here: {refuses}", "Delete it.")
        elif not entry.exists():
            top.note("L013", entry, f"The link {entry.name} leads nowhere.", "Make it again, or remove it.")
        elif entry.is_dir() and (model := _read_model(Model(entry), top)):
            models[model.name] = model
    if not models:
        inner = top.folder / "model_repository"
        cure = f"Did you mean {inner}?" if inner.is_dir() else cure
        top.note("L001", top.folder, "The repository holds no model folder.", cure)
    return models


def _read_model(model: Model, top: Model) -> Model | None:
    try:
        entries = {entry.name for entry in model.folder.iterdir()}
    except OSError as error:
        top.note("L013", model.folder, f"The folder cannot be read: {error.strerror}.", "Give this user the right.")
        return None
    # Triton ignores a folder like "v1" or "01"; an ensemble needs the folder too, though nothing lies in it.
    versions = [n for n in entries if re.fullmatch(r"[1-9][0-9]{0,17}", n) and (model.folder / n).is_dir()]
    if "config.pbtxt" in entries:
        _read_config(model)
    elif not any(name.isdigit() for name in entries):
        what = f"{model.name} is no model: Triton's default control mode tries to load it and refuses to start."
        cure = "Keep it beside the repository, or start Triton with --model-control-mode=explicit."
        top.warn("L002", model.folder, what, cure)
        return None
    else:
        model.note("L003", 0, f"{model.name} has no config.pbtxt.", "Write one, or build the deployment again.")
    if not versions:
        what = f"{model.name} has no version folder, so there is nothing to load."
        model.note("L011", model.folder, what, f"Make the folder {model.name}/1.")
    for version in versions if model.config is not None and model.config.backend == "python" else ():
        file = model.folder / version / (model.config.default_model_filename or "model.py")
        if not file.is_file():
            what = f"Version {version} of {model.name} has no {file.name}: loading it never ends."
            model.note("L012", file, what, "Build the deployment again, or copy the file there.")
    return model


def _read_config(model: Model) -> None:
    """Fill `text` and `config`, as far as the file allows, and note what is wrong with it."""
    file = model.folder / "config.pbtxt"
    try:
        if not file.is_file():
            raise OSError(0, "it is no regular file")  # reading a pipe would wait for ever
        model.text = file.read_text(encoding="utf-8")
        model.config = pbtxt.parse(model.text)
    except pbtxt.PbtxtError as error:
        says = f"{error.line}:{error.column}: {error.reason}"
        unfilled = [p for p in templates.placeholders(model.text) if p.kind == "structural"]
        if not unfilled:
            model.note("L015", error.line, f"config.pbtxt is no model configuration: {says}", _cure(error.reason))
        for spot in unfilled:
            told = f' ("{says}")' if spot.line == error.line else ""
            what = f"${{{spot.name}}} is not filled: Triton cannot parse the file{told}."
            model.note("L016", spot.line, what, f"Fill {spot.name}, even if your model has no use for it.")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or f"no UTF-8 text: {getattr(error, 'reason', error)}"
        model.note("L013", 0, f"config.pbtxt cannot be read ({reason}).", "Write it again as plain UTF-8 text.")


def _cure(reason: str) -> str:
    if match := re.search(r'"inference\.(\w+)" has no field named "(\w*)"', reason):
        fields = getattr(pb, match[1]).DESCRIPTOR.fields_by_name if hasattr(pb, match[1]) else []
        return f"Remove or rename the field.{did_you_mean(match[2], fields)}"
    if match := re.search(r'"inference\.DataType" has no value named (\w+)', reason):
        return f"Use a TYPE_… name.{did_you_mean('TYPE_' + match[1].removeprefix('TYPE_'), pb.DataType.keys())}"
    return "Look for a missing quote, colon, comma or brace here or on the line before, or for a field written twice."


def check_config(model: Model) -> None:
    """Rules that need one config.pbtxt only."""
    config = model.config
    if config.name not in ("", model.name):  # without a name Triton takes the folder's
        what = f"The model is named {config.name!r} and its folder {model.name!r}: Triton wants the same name."
        model.note("L010", r"^ *name\s*:", what, f'Write name: "{model.name}", or rename the folder.')
    for what, pattern, word in shell_words(model.name, config):
        if odd := odd_characters(word):
            model.note("L022", pattern and model.line(pattern), f"{what} holds {odd}, {PLAIN}.", "Choose another.")
    name = config.backend or config.platform
    if config.platform != "ensemble" and not name.startswith("${") and config.backend not in ("python", "tensorrtllm"):
        what = f"The backend {name!r} is not available: both lanes have python and tensorrtllm."
        cure = "Run the model from a Python model (import its library in model.py), or serve it from the plain "
        cure += "tritonserver image, which has the other backends."
        model.note("L019", r"^ *(backend|platform)\s*:", what, cure)
    quoted = [p for p in templates.placeholders(model.text) if p.kind == "quoted"]
    for spot in (p for p in quoted if p.mandatory):
        what = f"${{{spot.name}}} is not filled: Triton passes it on as text, and the model does not load."
        model.note("L017", spot.line, what, f"Fill {spot.name}.")
    if optional := [p for p in quoted if not p.mandatory]:
        what = f"Optional placeholders are not filled and count as not set: {', '.join(p.name for p in optional)}."
        model.warn("L018", optional[0].line, what, "Fill them, or remove their parameters.")
    # Only where the rest of the shape is fixed: [-1, 3, 224, 224]. Else a leading -1 is a length more often than not.
    rows = config.max_batch_size
    for kind, tensor in [("input", t) for t in config.input] + [("output", t) for t in config.output]:
        first, rest = (tensor.dims[0], list(tensor.dims[1:])) if tensor.dims else (0, [])
        if rows > 0 and first in (-1, 1, rows) and len(rest) >= 3 and min(rest) > 0:
            what = f"{kind} {tensor.name} has dims {list(tensor.dims)} and max_batch_size is {rows}: Triton puts the "
            what += f"batch dimension in front, so a request needs {len(rest) + 2} dimensions."
            cure = f"Write dims: {rest}, unless the first really is another dimension than the batch."
            model.warn("L021", model.tensor_line(kind, tensor.name, "dims"), what, cure)


def check_ensemble(model: Model, models: dict[str, Model]) -> None:
    """Steps name models of the repository; every mapped tensor exists on both sides, with one datatype and shape."""
    steps = model.config.ensemble_scheduling.step
    if not steps:
        model.note("L044", r"^ *platform", "The ensemble has no steps.", "Write ensemble_scheduling.")
    tensors = {t.name: _kind(t, model) for t in model.config.input}  # of the ensemble: name -> what it is
    produced = tensors.keys() | {name for step in steps for name in step.output_map.values()}
    for number, step in enumerate(steps, start=1):
        target, named = models.get(step.model_name), rf'model_name\s*:\s*"{re.escape(step.model_name)}"'
        if target is None:
            what = f"Step {number} calls {step.model_name!r}, and the repository has no such model."
            cure = f"Name a model of this repository.{did_you_mean(step.model_name, models)}"
            model.note("L043", named, what, cure)
        for key, name in step.input_map.items():
            if name not in produced:
                what = f"Step {number} reads {name!r}, which is no input of the ensemble and no output of a step."
                cure = f"Correct the value of this map.{did_you_mean(name, produced)}"
                model.note("L044", _map_line(model, key, name), what, cure)
        if target is None or target.config is None:
            continue
        allowed, taken = model.config.max_batch_size, target.config.max_batch_size
        if 0 < taken < allowed and not (_reported(model) or _reported(target)):
            what = f"The ensemble allows {allowed} rows in a request, and its step {target.name} only {taken}."
            model.note("L047", "max_batch_size", what, "Lower max_batch_size here, or raise it there.")
        for kind, mapping in (("input", step.input_map), ("output", step.output_map)):
            table = {t.name: t for t in getattr(target.config, kind)}
            for key, name in mapping.items():
                if key in table:
                    _agree(model, _map_line(model, key, name), name, _kind(table[key], target), tensors)
                else:
                    what = f"Step {number} maps {kind} {key}, which {step.model_name} does not declare."
                    cure = f"Correct the key of this map.{did_you_mean(key, table)}"
                    model.note("L044", _map_line(model, key, name), what, cure)
        lacking = [t.name for t in target.config.input if not t.optional and t.name not in step.input_map]
        if lacking:
            what = f"Step {number} gives {step.model_name} no {', '.join(lacking)}, which it needs."
            model.note("L044", named, what, "Add an input_map for it.")
    for tensor in model.config.output:
        line = model.tensor_line("output", tensor.name)
        if tensor.name in produced:
            _agree(model, line, tensor.name, _kind(tensor, model), tensors)
        elif steps:
            cure = "Add it to the output_map of the step that makes it, or remove it."
            model.note("L044", line, f"No step produces the output {tensor.name}.", cure)


def _map_line(model: Model, key: str, name: str) -> int:
    return model.line(rf'key\s*:\s*"{re.escape(key)}"\s*value\s*:\s*"{re.escape(name)}"')


def _reported(model: Model) -> bool:
    """Whether its max_batch_size is known to be wrong; what follows from that is not worth a finding."""
    return any(finding.code == "L040" for finding in model.findings)


def _kind(tensor: pb.ModelInput | pb.ModelOutput, model: Model) -> tuple[str, tuple[int, ...]]:
    """Datatype and whole shape: where max_batch_size is above 0, the batch dimension comes before dims."""
    batch = (-1,) * (model.config.max_batch_size > 0 or _reported(model))
    return type_name(tensor), batch + tuple(tensor.dims)


def type_name(tensor: pb.ModelInput | pb.ModelOutput) -> str:
    """TYPE_INT32, or the number of a datatype that does not exist."""
    known = tensor.data_type in pb.DataType.values()
    return pb.DataType.Name(tensor.data_type) if known else str(tensor.data_type)


def _agree(model: Model, line: int, name: str, kind: tuple[str, tuple[int, ...]], tensors: dict) -> None:
    """Compare with what is known of the ensemble's tensor `name`, or remember it. -1 fits every size."""
    datatype, shape = tensors.setdefault(name, kind)
    same = len(shape) == len(kind[1]) and all(a == b or -1 in (a, b) for a, b in zip(shape, kind[1], strict=True))
    if datatype != kind[0] or not same:
        cure = "Give both sides the same datatype and dims."
        if len(shape) != len(kind[1]):
            cure += " With max_batch_size above 0 the batch dimension (-1 in front) is there already; do not write it."
        what = f"The ensemble's tensor {name}, batch dimension included, is {datatype}{list(shape)} in one place and "
        model.note("L044", line, f"{what}{kind[0]}{list(kind[1])} here.", cure)
