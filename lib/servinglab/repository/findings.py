"""What the linter reports, and the model folder that it looks at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import contract
from servinglab.repository.pbtxt_source import Lines


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

    def __post_init__(self) -> None:
        # Names and values come from broken files: no line break or terminal code of theirs reaches the reader.
        for name in ("message", "cure"):
            text = getattr(self, name)
            if not text.isprintable():
                clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
                object.__setattr__(self, name, clean)

    def as_dict(self) -> dict[str, str | int | None]:
        """For JSON."""
        return asdict(self)


@dataclass(eq=False)
class Model:
    """One model folder: its path, the text of config.pbtxt and, where that parses, the message."""

    folder: Path
    text: str = ""
    config: pb.ModelConfig | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def file(self) -> Path:
        return self.folder / "config.pbtxt"

    @cached_property
    def lines(self) -> Lines:
        return Lines(self.text)

    def error(self, code: str, line: int | None, message: str, cure: str) -> None:
        """Note an error in this model's config.pbtxt."""
        self.findings.append(Finding("error", code, str(self.file), line, message, cure))

    def warning(self, code: str, line: int | None, message: str, cure: str) -> None:
        """Note a warning in this model's config.pbtxt."""
        self.findings.append(Finding("warning", code, str(self.file), line, message, cure))

    def parameter(self, key: str) -> str | None:
        """A string parameter of the config; None when it is absent, empty or still a placeholder ("not set")."""
        value = self.config.parameters[key].string_value if self.config and key in self.config.parameters else ""
        return None if not value or value.startswith("${") else value


@dataclass(eq=False)
class Deployment:
    """The models of one name prefix, by their names in the contract."""

    prefix: str
    models: dict[str, Model]

    def get(self, name: str) -> Model | None:
        """The model if it exists and its config could be read."""
        model = self.models.get(name)
        return model if model and model.config is not None else None


def base_name(name: str) -> str | None:
    """Which of the five models a folder is by the end of its name, the longest first ("x-tensorrt_llm_bls")."""
    return max(filter(name.endswith, contract.MODELS), key=len, default=None)


def deployments(models: dict[str, Model]) -> list[Deployment]:
    """Group model folders by prefix. Only groups with an LLM model count: other services may have an `ensemble` too."""
    groups: dict[str, dict[str, Model]] = {}
    for name, model in models.items():
        base = base_name(name)
        if base:
            groups.setdefault(name.removesuffix(base), {})[base] = model
    return [
        Deployment(prefix, group)
        for prefix, group in groups.items()
        if group.keys() & {"tensorrt_llm", "tensorrt_llm_bls"}
    ]
