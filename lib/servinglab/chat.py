"""A prompt as the model was trained to see it: the chat template of its tokenizer, rendered without transformers.
Importing transformers takes seconds; the template itself is Jinja and takes none.
"""

import datetime
import functools
import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from servinglab.errors import CourseError

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


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

    The beginning-of-sequence token that a template writes is left out where the tokenizer puts one before every text,
    because `preprocessing` lets it: so the ids are those of transformers' apply_chat_template. Raises CourseError.
    """
    if (source := template(tokenizer_dir)) is None:
        raise CourseError(f"The model in {tokenizer_dir} has no chat template; send the prompt as it is.")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    # The settings of transformers, which templates are written for. Special tokens are text or {"content": text}.
    more = {"trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.loopcontrols", _Generation]}
    environment = ImmutableSandboxedEnvironment(**more)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    tokens = {name: token for name in _TOKENS if (token := _config(tokenizer_dir).get(name))}
    tokens = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **tokens}
    try:
        text = environment.from_string(source).render(given)
    except jinja2.TemplateError as error:
        raise CourseError(f"The chat template in {tokenizer_dir} refuses these messages: {error}") from None
    file = Path(tokenizer_dir, "tokenizer.json")
    return text.removeprefix(_put_first(file, file.stat().st_mtime_ns)) if file.is_file() else text


class _Generation(Extension):
    """The block that marks the assistant's words, for training; they stand as they are."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


@functools.lru_cache(maxsize=8)
def _put_first(file: Path, _: int) -> str:
    """The special token that a tokenizer puts before every text; "" where it puts none. Read as JSON: a client need not
    have the package tokenizers. The second argument makes a changed file a new one."""
    added = _config(file.parent, file.name).get("post_processor") or {}
    for one in added.get("processors", [added]):
        if first := (one.get("single") or [{}])[0].get("SpecialToken"):
            return first["id"]
        if "cls" in one:  # of BERT and RoBERTa
            return one["cls"][0]
    return ""


def _config(folder: Path | str, name: str = "tokenizer_config.json") -> dict[str, Any]:
    try:
        return dict(json.loads(Path(folder, name).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CourseError(f"{folder} has no {name}; give the folder of a tokenizer.") from None
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise CourseError(f"{Path(folder, name)} cannot be read ({error}); copy the tokenizer again.") from None
