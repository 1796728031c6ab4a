"""Filling a whole repository of NVIDIA's templates: `course repo fill`.

NVIDIA's files are not in this repository; the stand-ins here have exactly their placeholders, at the versions of
data/nvidia_placeholders.json. The kinds of fault are those of server#8592 (1), TensorRT-LLM#2758 (2),
tensorrtllm_backend#501 (3) and #396 (6), and of two lines in NVIDIA's own guides (75, 76).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from repository_helpers import spec
from typer.testing import CliRunner

from course import cli
from servinglab.repository import (
    TemplateError,
    contract,
    lint,
    parse,
    placeholders,
    plan_filling,
    write_filling,
    write_templates,
)
from servinglab.repository.template_history import releases_of

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


# --- what the files have ----------------------------------------------------------------------------------------------


def test_every_placeholder_is_found_and_accounted_for(tmp_path, version):
    folder = repository(tmp_path / "m", version)
    reports = {r.path.parent.name: r for r in plan_filling(folder, {"triton_max_batch_size": 4})}
    assert reports.keys() == set(contract.MODELS)
    for model, report in reports.items():
        found = [p for group in (report.filled, report.zero, report.left, report.missing) for p in group]
        assert sorted(p.name for p in found) == sorted(" ".join(NVIDIA[version][model].values()).split())
        text = report.path.read_text().splitlines()
        assert all(f"${{{p.name}}}" in text[p.line - 1] for p in found)
        assert {p.name for p in found if p.kind == "structural"} == {*NVIDIA[version][model]["structural"].split()}
        assert {p.name for p in report.filled} == {"triton_max_batch_size"}


def test_filled_files_parse_and_keep_what_is_optional(tmp_path, version):
    folder = repository(tmp_path / "m", version)
    write_filling(plan_filling(folder, needed(version)))
    for model in contract.MODELS:
        config = parse((folder / model / "config.pbtxt").read_text())
        assert config.max_batch_size == 4
        left = {p.name for p in placeholders((folder / model / "config.pbtxt").read_text())}
        assert left == {*NVIDIA[version][model]["quoted"].split()} - GUIDE.keys()
    llm = parse((folder / "tensorrt_llm" / "config.pbtxt").read_text())
    assert llm.parameters["gpt_model_path"].string_value == "/engines/gpt2"


def test_each_version_is_recognised(version):
    same = {"0.19.0": ["0.19.0", "0.20.0", "0.21.0", "1.0.0"], "1.3.0rc3": ["1.1.0", "1.2.1", "1.3.0rc3"]}
    same["0.20.0"] = same["0.19.0"]  # the names of tensors tell these apart, not the placeholders
    assert releases_of(stand_in(version, "tensorrt_llm")) == same.get(version, [version])


# --- problems that users had ------------------------------------------------------------------------------------------


def test_1_keys_of_an_older_guide_are_refused_with_file_line_and_placeholder(tmp_path):
    folder = repository(tmp_path / "m", "1.3.0rc3")
    before = contents(folder)
    old = {k: v for k, v in GUIDE.items() if k != "prompt_embedding_table_data_type"}
    with pytest.raises(TemplateError) as caught:
        write_filling(plan_filling(folder, old))
    lines = (folder / "tensorrt_llm" / "config.pbtxt").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "${prompt_embedding_table_data_type}" in text)
    assert f"${{prompt_embedding_table_data_type}} (tensorrt_llm/config.pbtxt:{line} and 1 more)" in str(caught.value)
    assert contents(folder) == before


def test_2_the_encoder_type_is_missing_although_a_gpt_has_no_encoder(tmp_path):
    folder = repository(tmp_path / "m", "0.16.0")
    values = {k: v for k, v in needed("0.16.0").items() if k != "encoder_input_features_data_type"}
    with pytest.raises(TemplateError, match=r"No value for \$\{encoder_input_features_data_type\} .*has no use for it"):
        write_filling(plan_filling(folder, values))


def test_3_one_key_reaches_all_five_files(tmp_path, version):
    folder = repository(tmp_path / "m", version)
    (one,) = plan_filling(folder / "tensorrt_llm" / "config.pbtxt", {"triton_max_batch_size": 4})
    assert [p.name for p in one.filled] == ["triton_max_batch_size"]
    rest = plan_filling(folder, {"tensorrt_llm/triton_max_batch_size": 4})
    missing = {r.path.parent.name for r in rest if any(p.name == "triton_max_batch_size" for p in r.missing)}
    assert missing == set(contract.MODELS) - {"tensorrt_llm"}
    assert all(r.filled for r in plan_filling(folder, {"triton_max_batch_size": 4}))


@pytest.mark.parametrize(
    ("version", "container", "words"),
    [
        ("0.19.0", "25.06", "min_length and random_seed.*min_tokens and seed"),
        ("0.20.0", "25.05", "min_tokens and seed.*min_length and random_seed"),
        ("0.20.0", "25.12", "older than container 25.12"),
        ("1.3.0rc3", "25.11", "newer than container 25.11"),
        ("0.16.0", "25.05", "of TensorRT-LLM 0.16.0 and container 25.05 has 0.19.0"),
        ("0.16.0", "25.01", "of TensorRT-LLM 0.16.0 and container 25.01 has 0.17.0"),
        ("0.19.0", "24.12", "of TensorRT-LLM 0.19.0 and container 24.12 has 0.16.0"),
    ],
)
def test_6_templates_of_another_version_are_told(tmp_path, version, container, words):
    folder = repository(tmp_path / "m", version)
    warnings = [r.warning for r in plan_filling(folder, {}, container=container) if r.warning]
    assert len(warnings) in (1, 2) and re.search(words, warnings[0])
    done = fill(folder, "--container", container, "--dry-run")
    assert "warning" in done.output and done.exit_code == 1


@pytest.mark.parametrize(
    ("version", "container"),
    [("0.9.0", "24.05"), ("0.16.0", "24.12"), ("0.19.0", "25.05"), ("0.20.0", "25.08"), ("1.3.0rc3", "26.07"),
     ("0.9.0", "24.01")],
)  # fmt: skip
def test_6_templates_of_the_same_version_are_silent(tmp_path, version, container):
    folder = repository(tmp_path / "m", version)
    assert [r.warning for r in plan_filling(folder, {}, container=container) if r.warning] == []
    write_filling(plan_filling(folder, needed(version)))
    assert [r.warning for r in plan_filling(folder, {}, container=container) if r.warning] == []


def test_75_a_key_of_an_old_guide_is_refused_with_its_history_and_the_nearest_name(tmp_path, version):
    done = fill(repository(tmp_path / "m", version), "tokenizer_type=sp", "tokenizer_dir=/tok")
    assert "${tokenizer_type}" in str(done.exception) and "0.5.0 to 0.8.0" in str(done.exception)
    assert str(done.exception).endswith("Did you mean 'tokenizer_dir'?")


def test_76_a_missing_comma_cannot_pass(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    done = fill(folder, "accumulate_tokens=Truelogits_datatype:TYPE_FP32")
    assert "accumulate_tokens must be true or false" in str(done.exception)
    done = fill(folder, "triton_max_batch_size:64,decoupled_mode:True")
    assert "not of the form KEY=VALUE" in str(done.exception)


# --- keys and values --------------------------------------------------------------------------------------------------


def test_a_key_for_one_file_wins(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    write_filling(plan_filling(folder, needed("0.19.0") | {"preprocessing/engine_dir": "/engines/vit"}))
    engines = {
        model: parse((folder / model / "config.pbtxt").read_text()).parameters["gpt_model_path"].string_value
        for model in ("preprocessing", "tensorrt_llm")
    }
    assert engines == {"preprocessing": "/engines/vit", "tensorrt_llm": "/engines/gpt2"}


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
        ("kv_cache_free_gpu_mem_fraction=0.5GB", r"tensorrt_llm/config.pbtxt:\d+: kv_cache_free_gpu_mem_fraction must"),
        ("enable_kv_cache_reuse=yes", "must be true or false"),
        ("triton_backend=tensorrt_llm", "must be one of tensorrtllm, python.*Did you mean 'tensorrtllm'"),
        ("batching_strategy=inflight", "must be one of"),
        ("logits_datatype=float32", "must be a Triton datatype"),
        ("triton_max_batch_size=0", "from 1 to 2147483647"),
        ("triton_max_batch_size=9999999999", "from 1 to 2147483647"),
        ("kv_cache_free_gpu_mem_fractoin=0.5", "Did you mean 'kv_cache_free_gpu_mem_fraction'"),
        ("preprocesing/engine_dir=x", "no model 'preprocesing'.*Did you mean 'preprocessing'"),
        ("ensemble/engine_dir=x", r"no placeholder \$\{engine_dir\} in ensemble/config.pbtxt"),
        ("not_a_placeholder=1", "No file has the placeholder"),
        ("tensorrt_llm=1", "No file has the placeholder"),
        ("=1", "not of the form"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path, assignment, words):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    done = fill(folder, assignment)
    assert done.exit_code == 1 and re.search(words, str(done.exception)), done.exception
    assert contents(folder) == before


def test_the_same_key_twice_is_refused(tmp_path):
    assert "given twice" in str(fill(tmp_path, "a=1", "a=2").exception)


def test_an_optional_value_may_be_emptied(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    write_filling(plan_filling(folder, needed("0.19.0") | {"tensorrt_llm/tokenizer_dir": "", "sink_token_length": ""}))
    llm = parse((folder / "tensorrt_llm" / "config.pbtxt").read_text())
    assert llm.parameters["tokenizer_dir"].string_value == llm.parameters["sink_token_length"].string_value == ""


def test_the_python_backend_needs_no_batching_strategy(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    values = {k: v for k, v in needed("0.19.0").items() if k != "batching_strategy"}
    write_filling(plan_filling(folder, values | {"triton_backend": "python"}))
    with pytest.raises(TemplateError, match="has no placeholder left|No value"):
        write_filling(plan_filling(repository(tmp_path / "n", "0.19.0"), values))


# --- files ------------------------------------------------------------------------------------------------------------


def test_all_files_or_none(tmp_path, monkeypatch):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    reports = plan_filling(folder, needed("0.19.0"))
    replace, calls = Path.replace, []

    def third_fails(self, target):
        calls.append(target)
        if len(calls) == 3:
            raise PermissionError(13, "Permission denied", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", third_fails)
    with pytest.raises(TemplateError, match="Permission denied; no file was changed"):
        write_filling(reports)
    assert contents(folder) == before  # the two that were replaced are back, and no draft is left
    monkeypatch.setattr(Path, "replace", replace)
    write_filling(reports)
    assert contents(folder).keys() == before.keys()


def test_mode_and_links_stay(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    file, real = folder / "ensemble" / "config.pbtxt", tmp_path / "real.pbtxt"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    write_filling(plan_filling(folder, needed("0.19.0")))
    assert file.is_symlink() and os.stat(real).st_mode & 0o777 == 0o640
    assert not placeholders(real.read_text())


def test_a_linked_model_is_filled_and_one_file_for_two_models_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.pbtxt").write_text("max_batch_size: ${triton_max_batch_size}\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x").symlink_to(tmp_path / "elsewhere")
    write_filling(plan_filling(tmp_path / "models", {"triton_max_batch_size": "08"}))
    assert (tmp_path / "elsewhere" / "config.pbtxt").read_text() == "max_batch_size: 8\n"
    (tmp_path / "models" / "y").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TemplateError, match="are one file, by a link"):
        plan_filling(tmp_path / "models", {})


def test_a_value_that_is_no_text_changes_nothing(tmp_path):
    folder = repository(tmp_path / "m", "0.19.0")
    before = contents(folder)
    with pytest.raises(TemplateError, match="not UTF-8 text.*no file was changed"):
        write_filling(plan_filling(folder, needed("0.19.0") | {"tokenizer_dir": "/\udcff"}))
    assert contents(folder) == before


def test_a_filled_repository_is_not_filled_again(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.pbtxt").write_text('name: "a"\n')
    with pytest.raises(TemplateError, match="has no placeholder left: take a fresh copy"):
        plan_filling(tmp_path, {"engine_dir": "/x"})
    assert plan_filling(tmp_path, {})[0].summary() == ["a/config.pbtxt: no placeholder"]


def test_unreadable_targets_are_a_sentence(tmp_path):
    with pytest.raises(TemplateError, match="does not exist"):
        plan_filling(tmp_path / "none", {})
    with pytest.raises(TemplateError, match="holds no config.pbtxt"):
        plan_filling(tmp_path, {})
    (tmp_path / "config.pbtxt").write_bytes(b"\xe9")
    with pytest.raises(TemplateError, match="not UTF-8"):
        plan_filling(tmp_path, {})


def test_two_models_with_the_same_folder_name(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place / "x").mkdir(parents=True)
    (tmp_path / "a" / "x" / "config.pbtxt").write_text("max_batch_size: ${triton_max_batch_size}\n")
    (tmp_path / "b" / "x" / "config.pbtxt").write_text('name: "x"\n')
    write_filling(plan_filling(tmp_path, {"x/triton_max_batch_size": 2}))
    assert (tmp_path / "a" / "x" / "config.pbtxt").read_text() == "max_batch_size: 2\n"


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
    (first,) = [p.line for p in ensemble if p.name == "triton_max_batch_size"]
    assert f"triton_max_batch_size:{first}" in done.output and "left, optional" in done.output
    assert [f for f in lint(folder) if f.severity == "error"] == []


def test_missing_ones_are_reported_and_the_exit_code_is_one(tmp_path):
    folder = repository(tmp_path / "m", "0.9.0")
    done = fill(folder, "triton_max_batch_size=4")
    assert done.exit_code == 1 and "MISSING" in done.output and "nothing was written" in str(done.exception)
    (ensemble, *_) = json.loads(fill(folder, "triton_max_batch_size=4", "--dry-run", "--json").output)
    assert ensemble["filled"] == [
        {"name": "triton_max_batch_size", "line": 3, "kind": "structural", "mandatory": True},
    ]  # fmt: skip
