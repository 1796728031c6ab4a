"""The faults, each put into a deployment that was just built. To read on is to know the solutions."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

from servinglab.errors import CourseError
from servinglab.server.process import HOST

Fault = Callable[[Path], dict | None]  # gets the copy; gives what a start of it has to know


def edited(model: str, pattern: str, new: str) -> Fault:
    """A fault in a model's config.pbtxt: the one match of `pattern` becomes `new`."""

    def put(copy: Path) -> None:
        file = copy / "model_repository" / model / "config.pbtxt"
        text, count = re.subn(pattern, new, file.read_text(), flags=re.M)
        if count != 1:
            raise CourseError(f"{file} has {count} places for this fault, not one: the lab is older than the course.")
        file.write_text(text)

    return put


def without_versions(copy: Path) -> None:
    for model in ("tensorrt_llm", "ensemble"):  # empty folders, which git does not keep
        (copy / "model_repository" / model / "1").rmdir()


def taken_port(copy: Path) -> dict:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    ports = copy / "ports.json"
    ports.write_text(ports.read_text().replace('"http": 0', f'"http": {port}'))
    return {"taken": port}


def other_tokenizer(copy: Path) -> None:
    """One with the same words under other ids, as of a model with a training of its own."""
    right, wrong = next(copy.glob("_assets/*/tokenizer")), copy / "_assets" / "other" / "tokenizer"
    wrong.mkdir(parents=True)
    for file in right.glob("*.json"):
        if file.name != "tokenizer.json":
            (wrong / file.name).symlink_to(file.resolve())
    content = json.loads((right / "tokenizer.json").read_text(encoding="utf-8"))
    words, special = content["model"]["vocab"], {token["content"] for token in content["added_tokens"]}
    plain = [word for word in words if word not in special]
    words.update(zip(sorted(plain), sorted(words[word] for word in plain), strict=True))
    (wrong / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    edited("postprocessing", rf'"{re.escape(str(right))}"', f'"{wrong}"')(copy)


FAULTS: dict[str, Fault] = {
    "name-and-folder": edited("postprocessing", r'^name: "postprocessing"', 'name: "post_processing"'),
    "missing-version": without_versions,
    "unfilled-placeholder": edited("tensorrt_llm", r'("gpt_model_path" .*: )".*"', r'\1"${engine_dir}"'),
    "port-in-use": taken_port,
    "wrong-dims": edited("tensorrt_llm_bls", r'("text_input" .* dims: )\[1\]', r"\1[-1, 1]"),
    "decoupled-mismatch": edited("tensorrt_llm", "decoupled: true", "decoupled: false"),
    "cache-too-small": edited(
        "tensorrt_llm", r"\Z", 'parameters { key: "max_tokens_in_paged_kv_cache" value { string_value: "64" } }\n'
    ),
    "wrong-tokenizer": other_tokenizer,
}
