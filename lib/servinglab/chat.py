"""A prompt as the model was trained to see it: the chat template of its tokenizer, rendered without transformers.

Importing transformers takes seconds; the template itself is Jinja and takes none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError


def template(tokenizer_dir: Path | str) -> str | None:
    """The Jinja source of the chat template in a tokenizer's folder; None for a model that has none (GPT-2)."""
    folder = Path(tokenizer_dir)
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    found = _config(folder).get("chat_template")
    if isinstance(found, list):  # several named ones
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
    return found


def render(tokenizer_dir: Path | str, messages: list[dict[str, str]] | str, *, bos: bool = False) -> str:
    """The text to send: `messages` (one prompt, or [{"role", "content"}, …]) up to where the model's answer begins.

    `bos=False` leaves out the beginning-of-sequence token that some templates (Gemma, Llama) write, because
    `preprocessing` adds it; with both, the prompt would begin with two. Raises CourseError when there is no template
    or when it refuses the messages.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = template(tokenizer_dir)
    if source is None:
        raise CourseError(f"The model in {tokenizer_dir} has no chat template; send the prompt as it is.")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    # The settings of transformers, which templates are written for.
    extensions = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    config = _config(Path(tokenizer_dir))
    tokens = {name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    if not bos:
        tokens["bos_token"] = ""
    try:
        return environment.from_string(source).render(messages=messages, add_generation_prompt=True, **tokens)
    except jinja2.TemplateError as error:
        raise CourseError(f"The chat template in {tokenizer_dir} refuses these messages: {error}") from None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"{folder} has no tokenizer_config.json; give the folder of a tokenizer.") from None


def _token(value: Any) -> str:
    """Special tokens are stored as text or as {"content": text}."""
    return value.get("content", "") if isinstance(value, dict) else value or ""
