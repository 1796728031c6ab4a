"""Filling a whole repository of NVIDIA's templates: `course repo fill`.

NVIDIA's files are not in this repository; the stand-ins here have exactly their placeholders, at the versions of
data/nvidia_placeholders.json. The kinds of fault are those of server#8592 (1), TensorRT-LLM#2758 (2),
tensorrtllm_backend#501 (3) and #396 (6), and of two lines in NVIDIA's own guides (75, 76).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from repository_helpers import parse, spec
from typer.testing import CliRunner

from course import cli
from servinglab.repository import RepositoryError, contract, lint, placeholders, write_templates
from servinglab.repository import fill_repository as fill_all

NVIDIA = json.loads((Path(__file__).parent / "data" / "nvidia_placeholders.json").read_text())
PLACES = {  # where a structural placeholder stands; the names of data types are put into an output
    "triton_max_batch_size": "max_batch_size: ${triton_max_batch_size}",
    "decoupled_mode": "model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}",
}
QUEUE = {
    "max_queue_delay_microseconds": "  max_queue_delay_microseconds: ${max_queue_delay_microseconds}",
    "max_queue_size": "  default_queue_policy: { max_queue_size: ${max_queue_size} }",
}
KEYS = {
    "batching_strategy": "gpt_model_type", "engine_dir": "gpt_model_path", "encoder_engine_dir": "encoder_model_path",
}  # fmt: skip
GUIDE = {  # what a deployment of gpt2-medium needs
    "triton_max_batch_size": "4", "decoupled_mode": "False", "max_queue_delay_microseconds": "0", "max_queue_size": "0",
    "engine_dir": "/engines/gpt2", "tokenizer_dir": "/tok", "batching_strategy": "inflight_fused_batching",
    "triton_backend": "tensorrtllm", "preprocessing_instance_count": "1", "postprocessing_instance_count": "1",
    "bls_instance_count": "1", "logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16",
    "prompt_embedding_table_data_type": "TYPE_FP16",
}  # fmt: skip


def stand_in(version: str, model: str) -> str:
    """A config.pbtxt of our own with the placeholders of NVIDIA's template."""
    found = NVIDIA[version][model]
    lines = ["# ${not_a_placeholder}", f'name: "{model}"']
    quoted = found["quoted"].split()
    if "triton_backend" in quoted:
        lines.append('backend: "${triton_backend}"')
    structural = found["structural"].split()
    if queue := [text for name, text in QUEUE.items() if name in structural]:
        lines += ["dynamic_batching {", *queue, "}"]
    for name in (name for name in structural if name not in QUEUE):
        typed = f'output [ {{ name: "{name}" data_type: ${{{name}}} dims: [ 1 ] }} ]'
        counted = f"instance_group [ {{ count: ${{{name}}} }} ]"
        lines.append(PLACES.get(name) or (counted if name.endswith("_count") else typed))
    if model == "tensorrt_llm":
        name = "min_length" if version in ("0.9.0", "0.11.0", "0.16.0", "0.19.0") else "min_tokens"
        lines.append(f'input [ {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] }} ]')
    for name in quoted:
        if name != "triton_backend":
            value = f'string_value: "${{{name}}}"'
            lines.append(f'parameters: {{\n  key: "{KEYS.get(name, name)}"\n  value: {{\n    {value}\n  }}\n}}')
    return "\n".join(lines) + "\n"


@pytest.fixture(params=NVIDIA)
def version(request) -> str:
    return request.param


def repository(folder: Path, version: str) -> Path:
    for model in contract.MODELS:
        (folder / model / "1").mkdir(parents=True)
        (folder / model / "config.pbtxt").write_text(stand_in(version, model))
    return folder


def needed(version: str) -> dict[str, str]:
    names = {name for kinds in NVIDIA[version].values() for names in kinds.values() for name in names.split()}
    return {name: value for name, value in GUIDE.items() if name in names}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(*arguments: str):
    return CliRunner().invoke(cli.app, ["repo", "fill", *map(str, arguments)])


def test_every_placeholder_is_found_and_accounted_for(tmp_path, version):
    folder = repository(tmp_path / "m", version)
    files = fill_all(folder, needed(version), write=False)
    assert {path.parent.name for path in files} == set(contract.MODELS)
    for path, (filled, left) in files.items():
        kinds = {kind: {*names.split()} for kind, names in NVIDIA[version][path.parent.name].items()}
        found = placeholders(path.read_text())
        assert {p.name for p in found} == kinds["structural"] | kinds["quoted"]
        assert all(f"${{{p.name}}}" in path.read_text().splitlines()[p.line - 1] for p in found)
        assert {p.name for p in found if p.kind == "structural"} == kinds["structural"]
        assert set(filled) | set(left) == kinds["structural"] | kinds["quoted"] and set(left) <= kinds["quoted"]


def test_filled_files_parse_and_keep_what_is_optional(tmp_path, version):
    folder = repository(tmp_path / "m", version)
    fill_all(folder, needed(version))
    for model in contract.MODELS:
        config = parse((folder / model / "config.pbtxt").read_text())
        assert config.max_batch_size == 4
        left = {p.name for p in placeholders((folder / model / "config.pbtxt").read_text())}
        assert left == {*NVIDIA[version][model]["quoted"].split()} - GUIDE.keys()
    llm = parse((folder / "tensorrt_llm" / "config.pbtxt").read_text())
    assert llm.parameters["gpt_model_path"].string_value == "/engines/gpt2"


def test_keys_of_an_older_guide_are_refused_with_file_line_and_placeholder(tmp_path):
    folder = repository(tmp_path / "m", "1.3.0rc3")
    before = contents(folder)
    old = {k: v for k, v in GUIDE.items() if k != "prompt_embedding_table_data_type"}
    with pytest.raises(RepositoryError) as caught:
        fill_all(folder, old)
    lines = (folder / "tensorrt_llm" / "config.pbtxt").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "${prompt_embedding_table_data_type}" in text)
    assert f"tensorrt_llm/config.pbtxt:{line}: no value for ${{prompt_embedding_table_data_type}}" in str(caught.value)
    assert contents(folder) == before


def test_one_key_reaches_all_five_files_and_a_key_for_one_file_wins(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    fill_all(folder, needed("0.19.0") | {"preprocessing/engine_dir": "/engines/vit"})
    configs = {model: parse((folder / model / "config.pbtxt").read_text()) for model in contract.MODELS}
    assert {config.max_batch_size for config in configs.values()} == {4}
    assert configs["preprocessing"].parameters["gpt_model_path"].string_value == "/engines/vit"
    assert configs["tensorrt_llm"].parameters["gpt_model_path"].string_value == "/engines/gpt2"


@pytest.mark.parametrize("value", ["C:/a", "0,1:2", 'a"b', "back\\slash", "a=b", "ü$&\\1", "${x}", "a b", ""])
def test_text_may_hold_anything(tmp_path, value):
    folder = repository(tmp_path / "m", "0.19.0")
    done = fill(folder, *(f"{k}={v}" for k, v in (needed("0.19.0") | {"tokenizer_dir": value}).items()))
    assert done.exit_code == 0, done.exception
    config = parse((folder / "preprocessing" / "config.pbtxt").read_text())
    assert config.parameters["tokenizer_dir"].string_value == value


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("kv_cache_free_gpu_mem_fraction=0.5GB", "kv_cache_free_gpu_mem_fraction must be a number between"),
        ("enable_kv_cache_reuse=yes", "must be true or false"),
        ("accumulate_tokens=Truelogits_datatype:TYPE_FP32", "must be true or false"),
        ("batching_strategy=inflight", "must be one of"),
        ("logits_datatype=float32", r"/config.pbtxt:\d+: .*no value named float32"),
        ("triton_max_batch_size=many", r"/config.pbtxt:\d+: .*integer: many max_batch_size: many"),
        ("triton_max_batch_size:64", "not of the form KEY=VALUE"),
        ("kv_cache_free_gpu_mem_fractoin=0.5", "Did you mean 'kv_cache_free_gpu_mem_fraction'"),
        ("preprocesing/engine_dir=x", "No file has the placeholder.*Did you mean 'preprocessing/engine_dir'"),
        ("tokenizer_type=sp", "No file has the placeholder.*Did you mean"),
        ("=1", "not of the form"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path, assignment, words):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    given = needed("0.19.0")
    given.pop(assignment.partition("=")[0], None)
    done = fill(folder, *(f"{key}={value}" for key, value in given.items()), assignment)
    assert done.exit_code == 1 and re.search(words, str(done.exception)), done.exception
    assert contents(folder) == before


def test_a_value_that_is_no_text_changes_nothing_and_a_link_stays_one(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    with pytest.raises(RepositoryError, match="surrogates not allowed"):
        fill_all(folder, needed("0.19.0") | {"tokenizer_dir": "/\udcff"})
    assert contents(folder) == before
    file, real = folder / "ensemble" / "config.pbtxt", tmp_path / "real.pbtxt"
    file.rename(real)
    file.symlink_to(real)
    fill_all(folder, needed("0.19.0"))
    assert file.is_symlink() and not placeholders(real.read_text())


def test_a_disk_that_is_full_in_the_middle_changes_nothing(tmp_path, monkeypatch):
    folder = repository(tmp_path / "m", "0.19.0")
    before, writes, write = contents(folder), [], Path.write_bytes

    def full(path, content):
        writes.append(path)
        if len(writes) == 3:
            write(path, content[:10])
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patched, pytest.raises(RepositoryError, match="No space left on device"):
        patched.setattr(Path, "write_bytes", full)
        fill_all(folder, needed("0.19.0"))
    assert contents(folder) == before and not list(folder.rglob("*/.*"))


def test_unreadable_targets_are_a_sentence(tmp_path):
    for target in (tmp_path / "none", tmp_path):
        with pytest.raises(RepositoryError, match="holds no config.pbtxt"):
            fill_all(target, {})
    (tmp_path / "config.pbtxt").write_bytes(b"\xe9")
    with pytest.raises(RepositoryError, match="cannot be read"):
        fill_all(tmp_path, {})


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reports_fills_and_the_result_passes_the_linter(tmp_path):
    deployment = spec(tmp_path)
    folder = write_templates(tmp_path / "model_repository")
    given = {f"{model}/{key}": value for model in contract.MODELS for key, value in deployment.values(model).items()}
    arguments = [f"{key}={value}" for key, value in given.items()]
    before = contents(folder)
    done = fill(folder, *arguments, "--dry-run")
    assert done.exit_code == 0 and "nothing written" in done.output and contents(folder) == before
    done = fill(folder, *arguments)
    assert done.exit_code == 0, done.exception
    ensemble = placeholders(before[folder / "ensemble" / "config.pbtxt"].decode())
    assert {p.name for p in ensemble} == {"triton_max_batch_size", "logits_datatype"}
    assert "triton_max_batch_size" in done.output and "left" in done.output
    assert [f for f in lint(folder) if f.severity == "error"] == []


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_missing_ones_of_all_files_are_reported_and_the_exit_code_is_one(tmp_path, dry_run):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    done = fill(folder, "triton_max_batch_size=4", *dry_run)
    assert done.exit_code == 1 and contents(folder) == before
    for model in ("preprocessing", "tensorrt_llm", "tensorrt_llm_bls", "postprocessing"):
        assert f"{model}/config.pbtxt:" in str(done.exception)
