"""A JSON file that was cut short, or is something else, is named in one sentence by whoever reads it."""

from __future__ import annotations

import shutil

import pytest
import triton_fakes  # noqa: F401  (before the models)

from reference_backend import BackendError
from reference_backend.build import BuildError, build
from reference_backend.executor.model import EngineConfig
from reference_backend.models.text import Tokenizer
from servinglab import assets, chat
from servinglab.errors import CourseError
from servinglab.openai_frontend import OpenAIFrontend

READERS = [
    ("config.json", EngineConfig.read, BackendError),
    ("config.json", lambda folder: build(folder, folder / "engine"), BuildError),
    ("config.json", assets.resolve, CourseError),
    *((name, lambda folder: Tokenizer(str(folder)), BackendError)
      for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")),
    ("tokenizer.json", lambda folder: chat.render(folder, "x"), CourseError),
    ("tokenizer_config.json", lambda folder: chat.render(folder, "x"), CourseError),
    ("tokenizer.json", lambda folder: OpenAIFrontend("127.0.0.1:9", folder), CourseError),
]  # fmt: skip


@pytest.mark.parametrize("content", [b"{", b"5", b"[" * 100_000, b"\xff\xfe{", b'{"a":1' + b"0" * 5000 + b"}"],
                         ids=["half", "number", "deep", "utf16", "digits"])  # fmt: skip
@pytest.mark.parametrize(("name", "read", "error"), READERS)
def test_a_damaged_file_is_named(smollm2_tokenizer_dir, tmp_path, name, read, error, content):
    weights = shutil.ignore_patterns("*.safetensors*")
    folder = shutil.copytree(smollm2_tokenizer_dir, tmp_path / "model", ignore=weights)
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(error) as caught:
        read(folder)
    assert str(folder) in str(caught.value) and len(str(caught.value).splitlines()) == 1
    if name != "config.json":
        assert name in str(caught.value)
