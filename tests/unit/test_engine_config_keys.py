"""Every key of a config.json: our logits are those of transformers, or there is no engine (data/config_keys.toml)."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_graph import logits
from tiny_models import VOCABULARY, write_checkpoint

from engines import EngineError
from engines.convert import convert
from reference_backend import BackendError
from reference_backend.build import build

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads((Path(__file__).parent / "data" / "config_keys.toml").read_text(encoding="utf-8"))
KINDS = ("Llama", "Gemma", "GPT2", "Mistral")
PROMPT = np.random.default_rng(1).integers(3, VOCABULARY, (1, 24))


def keys(kind: str) -> dict[str, list[list[Any]]]:
    return TABLE["all"] | (TABLE["rotary"] if kind != "GPT2" else {}) | TABLE[kind]


CASES = [(kind, key, *case) for kind in KINDS for key, cases in keys(kind).items() for case in cases]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_transformers_has_a_verdict(kind):
    fields = {field.name for field in dataclasses.fields(getattr(transformers, f"{kind}Config"))}
    assert fields <= keys(kind).keys(), "a new one: say in config_keys.toml what it does"


def theirs(folder: Path) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor(PROMPT), return_dict=True).logits.numpy()[0]


def ours(folder: Path, out: Path, kind: str) -> np.ndarray:
    checkpoint = convert(folder, out / "checkpoint", dtype="float32", family="llama" if kind == "Mistral" else None)
    return logits(build(checkpoint, out / "engine", max_seq_len=PROMPT.shape[1]), PROMPT)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{kind: (folder, transformers' logits)}; norms and biases differ from what they begin with."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        model = write_checkpoint(folder, kind, **({"sliding_window": None} if kind == "Mistral" else {}))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        found[kind] = folder, theirs(folder)
    return found


@pytest.mark.parametrize(("kind", "key", "verdict", "value"), CASES, ids=lambda part: str(part)[:40])
def test_a_key_is_computed_with_or_changes_nothing_or_is_refused(models, tmp_path, kind, key, verdict, value):
    source, before = models[kind]
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    config = json.loads((folder / "config.json").read_text())
    config[key] = None if value == "<null>" else value
    if value == "<none>":
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    if verdict == "refused":
        with pytest.raises((EngineError, BackendError)) as caught:
            ours(folder, tmp_path, kind)
        assert "\n" not in str(caught.value) and str(caught.value).endswith((".", "?"))
        return
    if verdict == "broken":
        with pytest.raises(Exception):  # noqa: B017, PT011  whatever it is
            theirs(folder)
        expected = before
    else:
        expected = theirs(folder)
    assert bool(abs(expected - before).max() > 1e-3) == (verdict in ("computed", "near")), "transformers' own logits"
    off = abs(ours(folder, tmp_path, kind) - expected).max()
    assert off < (0.01 * np.ptp(expected) if verdict == "near" else 1e-4)
