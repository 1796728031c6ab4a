"""Lint, second part: rules that need one config.pbtxt only."""

from __future__ import annotations

from servinglab.repository import templates
from servinglab.repository.findings import Model
from servinglab.repository.shell_words import shell_words
from servinglab.server.install import PLAIN, odd_characters

BACKENDS = {"embedded": ("python",), "trtllm": ("python", "tensorrtllm")}


def check_model(model: Model, lane: str | None) -> None:
    """Name, words for the shell, backend, placeholders inside quotes, tensors declared twice."""
    _check_name(model)
    for what, line, word in shell_words(model):
        if odd := odd_characters(word):
            model.error("L022", line, f"{what} holds {odd}, {PLAIN}.", "Choose another.")
    _check_backend(model, lane)
    _check_quoted(model)
    _check_batch_dimension(model)
    for field in ("input", "output"):
        seen: set[str] = set()
        for index, tensor in enumerate(getattr(model.config, field)):
            if tensor.name in seen:
                model.warning(
                    "L035",
                    model.lines.at(field, index, "name"),
                    f"{field} {tensor.name} is declared twice.",
                    "Keep one of them.",
                )
            seen.add(tensor.name)


def _check_name(model: Model) -> None:
    # Without a name Triton takes the folder's.
    if model.config.name and model.config.name != model.name:
        model.error(
            "L010",
            model.lines.at("name"),
            f"The model is named {model.config.name!r} and its folder {model.name!r}: Triton wants the same name.",
            f'Write name: "{model.name}", or rename the folder.',
        )


def _check_backend(model: Model, lane: str | None) -> None:
    config = model.config
    known = BACKENDS.get(lane or "trtllm", BACKENDS["trtllm"])
    if config.platform == "ensemble" or config.backend in known or config.backend.startswith("${"):
        return
    field = "backend" if config.backend else "platform"
    name = getattr(config, field)
    if not name:
        model.error("L020", 1, "The model names no backend.", 'Write backend: "python", or platform: "ensemble".')
        return
    model.error(
        "L019",
        model.lines.at(field),
        f"{field} {name!r} is not available: the embedded lane has python, the "
        f"trtllm container has python and tensorrtllm.",
        "Run the model from a Python model (import its library in model.py), or serve it from the plain "
        "tritonserver image, which has the other backends.",
    )


def _check_batch_dimension(model: Model) -> None:
    # Only where the rest of the shape is fixed: [-1, 3, 224, 224]. Else a leading -1 is a length more often than not.
    rows = model.config.max_batch_size
    for field in ("input", "output"):
        for index, tensor in enumerate(getattr(model.config, field)):
            first, rest = (tensor.dims[0], tensor.dims[1:]) if tensor.dims else (0, ())
            if rows > 0 and first in (-1, 1, rows) and len(rest) >= 3 and min(rest) > 0:
                model.warning(
                    "L021",
                    model.lines.at(field, index, "dims"),
                    f"{field} {tensor.name} has dims {list(tensor.dims)} and max_batch_size is {rows}: Triton puts the "
                    f"batch dimension in front, so a request needs {len(rest) + 2} dimensions.",
                    f"Write dims: {list(rest)}, unless the first really is another dimension than the batch.",
                )


def _check_quoted(model: Model) -> None:
    quoted = [p for p in templates.placeholders(model.text) if p.kind == "quoted"]
    for spot in quoted:
        if spot.mandatory:
            model.error(
                "L017",
                spot.line,
                f"${{{spot.name}}} is not filled: Triton passes it on as text, and the model does not load.",
                f"Fill {spot.name}.",
            )
    optional = [p for p in quoted if not p.mandatory]
    if optional:
        names = list(dict.fromkeys(p.name for p in optional))
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        model.warning(
            "L018",
            optional[0].line,
            f"{len(optional)} optional placeholder(s) inside quotes are not filled and count as not set: {shown}.",
            "Fill them, or remove their parameters.",
        )
