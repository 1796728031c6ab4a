"""Templates and filling.

The kinds of fault are those of server#8592 (A1), TensorRT-LLM#2758 (A2), tensorrtllm_backend#501 (A3) and #396 (A6).
"""

import pytest
from repository_helpers import message, parse, spec

from servinglab.repository import (
    RepositoryError,
    contract,
    fill,
    fill_repository,
    lint,
    placeholders,
    template,
    write_templates,
)

# What NVIDIA's fill_template.py needs in its own templates of 0.17 to 1.0 (and what it writes by itself).
STRUCTURAL = {
    "ensemble": {"triton_max_batch_size", "logits_datatype"},
    "preprocessing": {"triton_max_batch_size", "max_queue_delay_microseconds", "max_queue_size",
                      "preprocessing_instance_count"},
    "postprocessing": {"triton_max_batch_size", "postprocessing_instance_count"},
    "tensorrt_llm": {"triton_max_batch_size", "decoupled_mode", "max_queue_delay_microseconds", "max_queue_size",
                     "encoder_input_features_data_type", "logits_datatype"},
    "tensorrt_llm_bls": {"triton_max_batch_size", "decoupled_mode", "logits_datatype", "bls_instance_count"},
}  # fmt: skip
WRITTEN_BY_ITSELF = {"max_queue_delay_microseconds", "max_queue_size"}


def names(text, kind=None, mandatory=None):
    return {p.name for p in placeholders(text) if kind in (None, p.kind) and mandatory in (None, p.mandatory)}


@pytest.mark.parametrize("model", contract.MODELS)
@pytest.mark.parametrize("generation", ["old", "new"])
def test_structural_placeholders(model, generation):
    assert names(template(model, generation), "structural") == STRUCTURAL[model]


def test_quoted_placeholders_and_which_are_mandatory():
    llm = template("tensorrt_llm")
    assert names(llm, "quoted", True) == {"triton_backend", "engine_dir", "batching_strategy"}
    assert {"tokenizer_dir", "kv_cache_free_gpu_mem_fraction", "gpu_device_ids"} <= names(llm, "quoted", False)
    assert names(template("preprocessing"), "quoted", True) == {"tokenizer_dir"}
    assert names(template("preprocessing"), "quoted", False) >= {"add_special_tokens", "engine_dir"}
    assert names(template("tensorrt_llm_bls"), "quoted", True) == set()


def test_encoder_type_is_mandatory_although_a_gpt_has_no_encoder():
    """A2."""
    found = [p for p in placeholders(template("tensorrt_llm")) if p.name == "encoder_input_features_data_type"]
    assert [(p.kind, p.mandatory) for p in found] == [("structural", True)]
    line = template("tensorrt_llm").splitlines()[found[0].line - 1]
    assert '"encoder_input_features"' in line


@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("model", contract.MODELS)
def test_filled_template_is_the_built_config(tmp_path, model, generation):
    deployment = spec(tmp_path, generation=generation)
    filled = parse(fill(template(model, generation), deployment.values(model)))
    built = message(deployment, model)
    for config in (filled, built):  # what is not set is a placeholder in the one, absent or empty in the other
        for key in list(config.parameters):
            if config.parameters[key].string_value.startswith("${") or not config.parameters[key].string_value:
                del config.parameters[key]
    assert filled == built


@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("model", contract.MODELS)
def test_each_mandatory_key_left_out_is_refused_by_name_and_line(tmp_path, model, generation):
    """A1: refused before a server starts, with file, line and placeholder."""
    text = template(model, generation)
    values = spec(tmp_path, generation=generation).values(model)
    for key in names(text, mandatory=True) - WRITTEN_BY_ITSELF:
        line = next(i for i, content in enumerate(text.splitlines(), 1) if f"${{{key}}}" in content)
        with pytest.raises(RepositoryError) as caught:
            fill(text, {k: v for k, v in values.items() if k != key}, file=f"{model}/config.pbtxt")
        message = str(caught.value)
        assert message.startswith(f"{model}/config.pbtxt:{line}: ") and f"${{{key}}}" in message


def fill_one(repository, model, deployment):
    file = repository / model / "config.pbtxt"
    file.write_text(fill(file.read_text(), deployment.values(model)))


def test_filling_one_file_leaves_four_reported(tmp_path):
    """A3: the report names every other file that still has the placeholder."""
    repository = write_templates(tmp_path / "model_repository")
    fill_one(repository, "tensorrt_llm", spec(tmp_path))
    reported = {(f.file, f.line) for f in lint(repository) if f.code == "L016" and "triton_max_batch_size" in f.message}
    others = set(contract.MODELS) - {"tensorrt_llm"}
    assert {file for file, _ in reported} == {str(repository / model / "config.pbtxt") for model in others}
    for file, line in reported:
        assert "${triton_max_batch_size}" in open(file).read().splitlines()[line - 1]


def test_all_five_filled_is_a_repository_without_errors(tmp_path):
    repository, deployment = write_templates(tmp_path / "model_repository"), spec(tmp_path)
    for model in contract.MODELS:
        fill_one(repository, model, deployment)
    assert [f for f in lint(repository) if f.severity == "error"] == []
    assert {f.code for f in lint(repository)} == {"L018"}  # optional ones stay, as in NVIDIA's own repositories


@pytest.mark.parametrize(
    "value", ["C:/a", "0,1", "0,1;2,3", "{0, 0}, {0}", 'a"b', "back\\slash", "line\nbreak", "é$&\\1", "", "${x}"]
)
def test_quoted_values_may_hold_anything(value):
    text = fill('parameters { key: "k" value { string_value: "${engine_dir}" } }', {"engine_dir": value})
    assert parse(text).parameters["k"].string_value == value


@pytest.mark.parametrize("value", ["eight", -(2**31) - 1, 2**31, "8 }", "", 1.5])
def test_what_is_not_filled_with_a_number_does_not_parse(value):
    with pytest.raises(RepositoryError, match="f:1: .*max_batch_size:"):
        fill("max_batch_size: ${triton_max_batch_size}", {"triton_max_batch_size": value}, file="f")


@pytest.mark.parametrize("value", ["float32", "TYPE_FLOAT", ""])
def test_nor_does_a_name_that_is_no_datatype(value):
    with pytest.raises(RepositoryError, match="f:2: "):
        fill("output {\n data_type: ${logits_datatype} }", {"logits_datatype": value}, file="f")


@pytest.mark.parametrize("value", [True, "True", "true"])
def test_python_and_pbtxt_booleans_fit(value):
    text = fill("model_transaction_policy { decoupled: ${decoupled_mode} }", {"decoupled_mode": value})
    assert parse(text).model_transaction_policy.decoupled is True


def test_queue_settings_are_zero_when_not_given():
    queue = "dynamic_batching { max_queue_delay_microseconds: ${max_queue_delay_microseconds} }"
    assert parse(fill(queue, {})) == parse("dynamic_batching { max_queue_delay_microseconds: 0 }")


def test_comments_are_left_alone():
    text = '# ${enable_trt_overlap}\nname: "x"\n'
    assert fill(text, {}) == text and placeholders(text) == []


def test_unknown_templates():
    with pytest.raises(RepositoryError, match="No template 'bls'"):
        template("bls")
    with pytest.raises(RepositoryError, match="No template .*0.19"):
        template("ensemble", "0.19")


SOURCE = """\
name: "a"   # ${not_this}
parameters: {
  key: "k"
  value: { string_value: "p/${q}" " and ${r}" }
}
max_batch_size: ${n}
"""


def test_placeholders_skip_comments_and_know_quotes():
    found = [(p.name, p.line, p.kind) for p in placeholders(SOURCE)]
    assert found == [("q", 4, "quoted"), ("r", 4, "quoted"), ("n", 6, "structural")]


def test_templates_that_are_written_again_lose_nothing_of_yours(tmp_path):
    repository = write_templates(tmp_path / "mine" / "model_repository")
    model, config = repository / "tensorrt_llm_bls" / "1" / "model.py", repository / "ensemble" / "config.pbtxt"
    for round_ in ("first", "second"):
        model.write_text(f"MY MODEL, {round_}")
        config.write_text(f"MY CONFIG, {round_}")
        write_templates(repository)
        assert config.read_text() == template("ensemble") and "class TritonPythonModel" in model.read_text()
    texts = [path.read_text() for path in repository.rglob("*") if path.is_file()]
    for text in ("MY MODEL, first", "MY CONFIG, first", "MY MODEL, second", "MY CONFIG, second"):
        assert text in texts
    with pytest.raises(RepositoryError, match=" ensemble/config.pbtxt:|^ensemble/config.pbtxt:") as told:
        fill_repository(repository, {})
    assert "1/config.pbtxt" not in str(told.value), "what was moved aside is nothing to fill"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["model_repository"], "nothing beside it"
    assert {f.code for f in lint(repository)} == {f.code for f in lint(write_templates(tmp_path / "fresh"))}
