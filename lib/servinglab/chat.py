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
    separate = Path(tokenizer_dir, "chat_template.jinja")
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    found = _config(tokenizer_dir).get("chat_template")
    if isinstance(found, list):  # several named ones
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
    return found


def render(tokenizer_dir: Path | str, messages: list[dict[str, str]] | str) -> str:
    """The text to send: `messages` (one prompt, or [{"role", "content"}, …]) up to where the model's answer begins.

    The beginning-of-sequence token of some templates (Gemma, Llama) is left out: `preprocessing` adds it. Raises
    CourseError when there is no template or when it refuses the messages.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if (source := template(tokenizer_dir)) is None:
        raise CourseError(f"The model in {tokenizer_dir} has no chat template; send the prompt as it is.")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    # The settings of transformers, which templates are written for. Special tokens are text or {"content": text}.
    more = {"trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.loopcontrols"]}
    environment = ImmutableSandboxedEnvironment(**more)
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    tokens = {name: _config(tokenizer_dir).get(name) or "" for name in ("eos_token", "unk_token", "pad_token")}
    tokens = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    try:
        return environment.from_string(source).render(messages=messages, add_generation_prompt=True, **tokens)
    except jinja2.TemplateError as error:
        raise CourseError(f"The chat template in {tokenizer_dir} refuses these messages: {error}") from None


def _config(folder: Path | str) -> dict[str, Any]:
    try:
        return json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"{folder} has no tokenizer_config.json; give the folder of a tokenizer.") from None
