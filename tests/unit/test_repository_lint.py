"""Every code of the linter: exactly that fault in a clean repository gives that code, file and line."""

import inspect
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from repository_helpers import engine, spec

from servinglab.repository import Finding, build, contract, lint
from servinglab.root import data


@pytest.fixture
def repo(tmp_path) -> Path:
    """A clean repository with one deployment."""
    return build(spec(tmp_path), tmp_path / "root")


def config(repo: Path, model: str) -> Path:
    return repo / model / "config.pbtxt"


def replace(repo: Path, model: str, old: str, new: str, count: int = 1) -> int:
    """Change a config's text; returns the line (from 1) of the change."""
    text = config(repo, model).read_text()
    assert old in text, old
    config(repo, model).write_text(text.replace(old, new, count))
    return text[: text.index(old)].count("\n") + 1


def place(finding: Finding, repo: Path) -> tuple:
    assert finding.message and finding.cure and (finding.message + finding.cure).isprintable()
    assert finding.severity in ("error", "warning") and re.fullmatch(r"L0\d\d", finding.code)
    return finding.severity, finding.code, str(Path(finding.file).relative_to(repo)), finding.line


def found(repo: Path) -> list[tuple]:
    return [place(finding, repo) for finding in lint(repo)]


def only(repo: Path, severity: str, code: str, file: str, line: int | None, *words: str) -> Finding:
    """The repository has exactly this one finding."""
    findings = lint(repo)
    assert [place(f, repo) for f in findings] == [(severity, code, file, line)]
    finding = findings[0]
    for word in words:
        assert word in finding.message + finding.cure, word
    return finding


@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("decoupled", [True, False])
def test_clean_repositories_have_no_findings(tmp_path, generation, decoupled):
    built = engine(tmp_path / "engine", version="0.19.0" if generation == "old" else "1.1.0")
    deployment = spec(tmp_path, engine_dir=built, generation=generation, decoupled=decoupled, prefix="p-")
    repository = build(deployment, tmp_path / "root")
    assert lint(repository) == []


def test_every_sentence_of_the_table_has_its_rule():
    source = Path(inspect.getfile(lint)).read_text()
    assert [rule for rule in data("repository.toml")["findings"] if f'"{rule}"' not in source] == []


# --- folders -----------------------------------------------------------------------------------------------------


def test_l001_no_repository(tmp_path):
    for path, words in ((tmp_path / "none", "No such file"), (tmp_path / "file", "Not a directory")):
        (tmp_path / "file").write_text("")
        (finding,) = lint(path)
        assert (finding.code, finding.severity) == ("L001", "error") and words in finding.message
    (tmp_path / "empty").mkdir()
    (finding,) = lint(tmp_path / "empty")
    assert finding.code == "L001" and "no model folder" in finding.message


@pytest.mark.parametrize("name", ["_assets", "notes", ".git"])
def test_l002_a_folder_that_is_no_model(repo, name):
    (repo / name / "smollm2").mkdir(parents=True)
    only(repo, "warning", "L002", name, None, "default control mode", "--model-control-mode=explicit")


def test_l004_checkpoints(repo):
    (repo / ".ipynb_checkpoints").mkdir()
    only(repo, "warning", "L004", ".ipynb_checkpoints", None)


# --- one model's files -------------------------------------------------------------------------------------------


def test_l010_name_is_not_the_folder(repo):
    line = replace(repo, "postprocessing", 'name: "postprocessing"', '# a comment\nname: "post"') + 1
    only(repo, "error", "L010", "postprocessing/config.pbtxt", line, "'post'", 'name: "postprocessing"')


def test_a_config_without_a_name_is_fine(repo):
    replace(repo, "postprocessing", 'name: "postprocessing"\n', "")
    assert lint(repo) == []


@pytest.mark.parametrize("name", [None, "v1", "01", "0", "-1", "1.0"])
def test_l011_no_version_folder(repo, name):
    (repo / "ensemble" / "1").rmdir()
    if name:
        (repo / "ensemble" / name).mkdir()
    only(repo, "error", "L011", "ensemble", None, "ensemble/1")


def test_l011_a_file_named_1_is_no_version(repo):
    (repo / "ensemble" / "1").rmdir()
    (repo / "ensemble" / "1").write_text("")
    only(repo, "error", "L011", "ensemble", None)


def test_l012_no_model_py(repo):
    (repo / "tensorrt_llm_bls" / "1" / "model.py").unlink()
    only(repo, "error", "L012", "tensorrt_llm_bls/1/model.py", None)


def test_l012_every_version_needs_it_and_the_name_can_change(repo):
    (repo / "preprocessing" / "2").mkdir()
    only(repo, "error", "L012", "preprocessing/2/model.py", None)
    (repo / "preprocessing" / "2").rmdir()
    (repo / "preprocessing" / "1" / "model.py").rename(repo / "preprocessing" / "1" / "main.py")
    with config(repo, "preprocessing").open("a") as file:
        file.write('default_model_filename: "main.py"\n')
    assert lint(repo) == []


def _loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_bytes(b'name: "caf\xe9"\n'), "no UTF-8 text"),
        (lambda p: None, "No such file"),
        (lambda p: p.mkdir(), "Is a directory"),
        (os.mkfifo, "no regular file"),
        (_loop, "Too many levels"),
        (lambda p: p.symlink_to("/nowhere/config.pbtxt"), "No such file"),
        (lambda p: p.symlink_to("/dev/zero"), "no regular file"),
        (lambda p: p.write_bytes(b"#" * 2**23), "larger than 4 MiB"),
    ],
    ids=["latin1", "missing", "folder", "pipe", "loop", "dangling", "endless", "large"],
)
def test_l013_unreadable_config(repo, make, words):
    config(repo, "postprocessing").unlink()
    make(config(repo, "postprocessing"))
    only(repo, "error", "L013", "postprocessing/config.pbtxt", None, words)


def test_a_link_back_into_the_repository_ends(repo):
    (repo / "ensemble" / "1" / "up").symlink_to(repo)
    assert lint(repo) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_l013_no_permission(repo):
    config(repo, "postprocessing").chmod(0)
    try:
        assert [(s, c) for s, c, *_ in found(repo)] == [("error", "L013")]
    finally:
        config(repo, "postprocessing").chmod(0o644)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_batch_size: 8", "max_batchsize: 8", ("has no field named",)),
        ("data_type: TYPE_INT32", "data_type: INT32", ("no value named INT32", "Did you mean TYPE_INT32?")),
        ("data_type: TYPE_STRING", "data_type: TYPE_BYTES", ("no value named TYPE_BYTES", "Did you mean TYPE_STRING?")),
        ("data_type: TYPE_INT32", "data_type: FLOAT16", ("no value named FLOAT16", "Did you mean TYPE_FP16?")),
        ('backend: "python"', 'backend: "python', ("missing ending quote",)),
        ("max_batch_size: 8", "max_batch_size 8", ('Expected ":"',)),
        ("max_batch_size: 8", "max_batch_size: eight", ("integer", "nothing else in it was looked at")),
        ("max_batch_size: 8", "max_batch_size: 8\nmax_batch_size: 8", ("multiple", "written twice")),
    ],
)
def test_l015_unparsable(repo, old, new, words):
    line = replace(repo, "postprocessing", old, new) + new.count("\n")
    only(repo, "error", "L015", "postprocessing/config.pbtxt", line, *words)


def test_l015_missing_brace_points_at_the_end(repo):
    text = config(repo, "postprocessing").read_text().rstrip()
    config(repo, "postprocessing").write_text(text.rstrip("}"))
    only(repo, "error", "L015", "postprocessing/config.pbtxt", text.count("\n") + 1, "brace")


def test_l016_structural_placeholder(repo):
    line = replace(repo, "preprocessing", "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}")
    only(repo, "error", "L016", "preprocessing/config.pbtxt", line, "${triton_max_batch_size}",
         "nothing else in it was looked at")  # fmt: skip


def test_l017_mandatory_quoted_placeholder(repo):
    folder = re.search(r'"(/[^"]*tokenizer)"', config(repo, "postprocessing").read_text())[1]
    line = replace(repo, "postprocessing", folder, "${tokenizer_dir}")
    only(repo, "error", "L017", "postprocessing/config.pbtxt", line, "${tokenizer_dir}")


def test_l017_backend_and_engine(repo):
    first = replace(repo, "tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "${triton_backend}"')
    text = config(repo, "tensorrt_llm").read_text()
    second = replace(repo, "tensorrt_llm", re.search(r'"(/[^"]*engines)"', text)[1], "${engine_dir}")
    expected = [("error", "L017", "tensorrt_llm/config.pbtxt", line) for line in (first, second)]
    assert found(repo) == expected


def test_l018_optional_quoted_placeholder(repo):
    line = replace(repo, "postprocessing", 'string_value: "true"', 'string_value: "${skip_special_tokens}"')
    only(repo, "warning", "L018", "postprocessing/config.pbtxt", line, "skip_special_tokens", "not set")


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        ("postprocessing", 'backend: "python"', 'backend: "onnxruntime"'),
        ("postprocessing", 'backend: "python"', 'platform: "onnxruntime_onnx"'),
        ("ensemble", 'platform: "ensemble"', 'platform: "ensembel"'),
    ],
)
def test_l019_unknown_backend(repo, model, old, new):
    """The message lists what there is."""
    line = replace(repo, model, old, new)
    only(repo, "error", "L019", f"{model}/config.pbtxt", line, "python", "tensorrtllm", "plain tritonserver image")


def test_l019_no_backend(repo):
    replace(repo, "postprocessing", 'backend: "python"\n', "")
    only(repo, "error", "L019", "postprocessing/config.pbtxt", 1)


# --- the contract ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "right", "wrong"),
    [
        ("tensorrt_llm", 'input { name: "early_stopping" data_type: TYPE_BOOL', "TYPE_INT32"),
        ("tensorrt_llm", 'input { name: "early_stopping" data_type: TYPE_BOOL', "TYPE_INVALID"),
        ("tensorrt_llm_bls", 'input { name: "seed" data_type: TYPE_UINT64', "77"),
        ("preprocessing", 'output { name: "STOP_WORDS_IDS" data_type: TYPE_INT32 dims: [2, -1]', "[-1, 2]"),
        ("tensorrt_llm_bls", 'output { name: "generation_logits" data_type: TYPE_FP32', "TYPE_FP64"),
        ("tensorrt_llm", 'input { name: "stop" data_type: TYPE_BOOL dims: [1] reshape { shape: [] }', ""),
        ("tensorrt_llm_bls", 'input { name: "seed" data_type: TYPE_UINT64 dims: [1] optional: true', ""),
    ],
)
def test_l030_tensors_against_the_contract(repo, model, right, wrong):
    """The cure is the line as it must be."""
    part = re.search(r"(TYPE_\w+|\[2, -1\]|reshape .*|optional: true)$", right)[0]
    line = replace(repo, model, right, right.removesuffix(part) + wrong)
    cure = re.sub(r"TYPE_FP32", "${logits_datatype}", f"Write {right}")
    only(repo, "error", "L030", f"{model}/config.pbtxt", line, cure)


def test_l030_the_deployment_chooses_some_datatypes(repo):
    old = 'output { name: "generation_logits" data_type: TYPE_FP32'
    for model in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble"):
        replace(repo, model, old, old.replace("FP32", "FP16"))
    assert lint(repo) == []


def test_a_tensor_of_the_wrong_type_also_disagrees_with_the_ensemble(repo):
    old = '"runtime_top_k" data_type: TYPE_INT32'
    line = replace(repo, "tensorrt_llm", old, old.replace("INT32", "INT64"))
    places = {(code, file): line for _, code, file, line in found(repo)}
    assert places.keys() == {("L030", "tensorrt_llm/config.pbtxt"), ("L044", "ensemble/config.pbtxt")}
    assert places["L030", "tensorrt_llm/config.pbtxt"] == line


def test_l030_line_is_that_of_the_name(repo):
    old = 'input { name: "stop" data_type: TYPE_BOOL dims: [1] reshape { shape: [] } optional: true }'
    new = 'input [\n{\nname: "stop"\ndata_type: TYPE_BOOL\ndims: [ 2 ]\nreshape: { shape: [ ] }\noptional: true\n}\n]'
    line = replace(repo, "tensorrt_llm", old, new)
    only(repo, "error", "L030", "tensorrt_llm/config.pbtxt", line + 2, "dims: [1]")


def test_l031_missing_tensors(repo):
    line = replace(repo, "tensorrt_llm_bls", 'output { name: "text_output" data_type: TYPE_STRING dims: [-1] }\n', "")
    only(repo, "error", "L031", "tensorrt_llm_bls/config.pbtxt", line, "text_output")


def test_l031_missing_optional_tensors_are_a_warning(repo):
    text = config(repo, "tensorrt_llm_bls").read_text()
    config(repo, "tensorrt_llm_bls").write_text(re.sub(r'input { name: "(seed|top_k)".*\n', "", text))
    line = text[: text.index("input {")].count("\n") + 1
    assert found(repo) == [("warning", "L031", "tensorrt_llm_bls/config.pbtxt", line)] * 2
    assert "top_k" in lint(repo)[1].message and "unexpected inference input" in lint(repo)[0].message


def test_tensors_of_later_releases_may_be_there(repo):
    extra = 'output { name: "num_input_tokens" data_type: TYPE_INT32 dims: [1] }\noutput { name: "text_output"'
    replace(repo, "tensorrt_llm_bls", 'output { name: "text_output"', extra)
    assert lint(repo) == []


# --- models that must agree --------------------------------------------------------------------------------------


def test_l040_mixed_batch_sizes(repo):
    line = replace(repo, "tensorrt_llm_bls", "max_batch_size: 8", "max_batch_size: 4")
    only(repo, "error", "L040", "tensorrt_llm_bls/config.pbtxt", line, "4 here and should be 8", "max_batch_size: 8")


@pytest.mark.parametrize("models", [("postprocessing",), ("tensorrt_llm", "postprocessing")])
def test_l040_of_a_step_is_not_said_again_of_the_ensemble_with_another_cure(repo, models):
    for model in models:
        replace(repo, model, "max_batch_size: 8", "max_batch_size: 4")
    assert {(code, file.split("/")[0]) for _, code, file, _ in found(repo)} == {("L040", model) for model in models}


def test_l040_no_batch_dimension(repo):
    line = replace(repo, "ensemble", "max_batch_size: 8", "max_batch_size: 0")
    (first, *others) = found(repo)  # then it does not fit its steps either
    assert first == ("error", "L040", "ensemble/config.pbtxt", line)
    assert {(code, file) for _, code, file, _ in others} == {("L044", "ensemble/config.pbtxt")}


@pytest.mark.parametrize(("model", "value"), [("tensorrt_llm_bls", "true"), ("tensorrt_llm", "false")])
def test_l041_decoupled_mismatch(repo, model, value):
    replace(repo, model, "decoupled: true", "decoupled: false")
    only(repo, "error", "L041", "tensorrt_llm_bls/config.pbtxt", 5, f"decoupled: {value}")


def test_l041_preprocessing_is_never_decoupled(repo):
    line = replace(repo, "preprocessing", "max_batch_size: 8",
                   "max_batch_size: 8\nmodel_transaction_policy {\n  decoupled: true\n}") + 2  # fmt: skip
    # The ensemble, which feeds it and what comes behind it, is none any more then.
    assert ("error", "L041", "preprocessing/config.pbtxt", line) in found(repo)
    assert {code for _, code, *_ in found(repo)} == {"L041", "L046"}


@pytest.mark.parametrize("inner", ["tensorrt_llm", "preprocessing", "postprocessing"])
def test_l042_bls_points_at_a_missing_model(repo, inner):
    line = replace(repo, "tensorrt_llm_bls", f'string_value: "{inner}"', f'string_value: "{inner}_v2"')
    only(repo, "error", "L042", "tensorrt_llm_bls/config.pbtxt", line, f"'{inner}_v2'", f"{inner}_model_name",
         f"Did you mean '{inner}'?")  # fmt: skip


def test_l042_default_name_in_a_prefixed_deployment(tmp_path):
    """NVIDIA's BLS has "preprocessing" written into it: with a prefix that model does not exist."""
    repository = build(spec(tmp_path, prefix="p-"), tmp_path / "root")
    text = config(repository, "p-tensorrt_llm_bls").read_text()
    config(repository, "p-tensorrt_llm_bls").write_text(re.sub(r'parameters { key: "preprocessing_.*\n', "", text))
    (finding,) = lint(repository)
    assert finding.code == "L042" and "value or default of preprocessing_model_name" in finding.message
    assert "p-preprocessing" in finding.cure


def test_l042_and_l043_when_a_model_is_gone(repo):
    shutil.rmtree(repo / "postprocessing")
    assert [(code, file) for _, code, file, _ in found(repo)] == [
        ("L043", "ensemble/config.pbtxt"), ("L042", "tensorrt_llm_bls/config.pbtxt"),
    ]  # fmt: skip


def test_a_model_with_a_broken_config_is_not_reported_as_missing(repo):
    replace(repo, "postprocessing", 'backend: "python"', "backend:")
    assert [code for _, code, *_ in found(repo)] == ["L015"]


def test_l043_ensemble_points_at_a_missing_model(repo):
    line = replace(repo, "ensemble", 'model_name: "tensorrt_llm"', 'model_name: "tensorrt-llm"')
    finding = only(repo, "error", "L043", "ensemble/config.pbtxt", line, "'tensorrt-llm'")
    assert "Did you mean 'tensorrt_llm'?" in finding.cure


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('key: "runtime_top_k" value: "top_k"', 'key: "top_k" value: "top_k"', "declares no input top_k"),
        ('key: "runtime_top_k" value: "top_k"', 'key: "runtime_top_k" value: "topk"', "Did you mean 'top_k'?"),
        ('key: "runtime_top_k" value: "top_k"', 'key: "runtime_top_k" value: "top_p"', "TYPE_FP32[-1, 1] in one place"),
        ('key: "cum_log_probs" value', 'key: "cumulative" value', "declares no output cumulative"),
    ],
)  # fmt: skip
def test_l044_wrong_maps(repo, old, new, words):
    line = replace(repo, "ensemble", old, new)
    only(repo, "error", "L044", "ensemble/config.pbtxt", line, words)


def test_l044_needed_input_without_a_map(repo):
    text = config(repo, "ensemble").read_text()
    config(repo, "ensemble").write_text(re.sub(r' *input_map { key: "input_lengths".*\n', "", text))
    line = text[: text.index('model_name: "tensorrt_llm"')].count("\n") + 1
    only(repo, "error", "L044", "ensemble/config.pbtxt", line, "input_lengths")


def test_l044_output_that_no_step_makes(repo):
    text = config(repo, "ensemble").read_text()
    config(repo, "ensemble").write_text(re.sub(r' *output_map { key: "OUTPUT".*\n', "", text))
    line = text[: text.index('"text_output"')].count("\n") + 1
    only(repo, "error", "L044", "ensemble/config.pbtxt", line, "No step produces the output text_output")


def test_l044_no_steps(repo):
    text = config(repo, "ensemble").read_text()
    config(repo, "ensemble").write_text(text[: text.index("ensemble_scheduling")])
    assert {code for _, code, *_ in found(repo)} == {"L044"}


def test_l045_instances_of_postprocessing(repo):
    line = replace(repo, "postprocessing", "count: 1", "count: 2")
    only(repo, "error", "L045", "postprocessing/config.pbtxt", line, "several instances", "count: 1")


def test_l045_only_where_it_streams(tmp_path):
    repository = build(spec(tmp_path, decoupled=False, postprocessing_instance_count=4), tmp_path / "root")
    assert lint(repository) == []


PARTS = {"whole": ("", ""), "often": ("model_transaction_policy { decoupled: true }", ""), "join": ("", "B")}


def ensemble_of(folder: Path, steps: list[tuple[str, dict, str]], inputs: tuple[str, ...] = ("text",)) -> Path:
    """Models `whole`, `often` (decoupled) and `join` (two inputs), and an ensemble of (model, its inputs, output)."""
    tensor = 'name: "{}" data_type: TYPE_STRING dims: [1]'
    for name, (more, second) in PARTS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text("")
        declared = "".join(f"input {{ {tensor.format(each)} }}\n" for each in f"A{second}")
        config(folder, name).write_text(f'backend: "python"\n{more}\n{declared}output {{ {tensor.format("OUT")} }}\n')
    (folder / "all" / "1").mkdir(parents=True)
    text = 'platform: "ensemble"\n' + "".join(f"input {{ {tensor.format(name)} }}\n" for name in inputs)
    text += f"output {{ {tensor.format(steps[-1][2])} }}\nensemble_scheduling {{\n"
    for model, given, made in steps:
        maps = " ".join(f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in given.items())
        text += f'step {{ model_name: "{model}" {maps} output_map {{ key: "OUT" value: "{made}" }} }}\n'
    config(folder, "all").write_text(text + "}\n")
    return folder


MIXED = {
    "an input of the ensemble": [("often", {"A": "text"}, "piece"), ("join", {"A": "piece", "B": "text"}, "end")],
    "a step before": [
        ("whole", {"A": "text"}, "ids"), ("often", {"A": "ids"}, "piece"), ("join", {"A": "ids", "B": "piece"}, "end"),
    ],
    "a step behind, listed first": [
        ("join", {"A": "later", "B": "text"}, "end"), ("whole", {"A": "piece"}, "later"),
        ("often", {"A": "text"}, "piece"), ("whole", {"A": "end"}, "last"),
    ],
    "two of one model": [
        ("often", {"A": "text"}, "one"), ("often", {"A": "text"}, "two"), ("join", {"A": "one", "B": "two"}, "end"),
    ],
    "two that answer often": [
        ("often", {"A": "text"}, "piece"), ("often", {"A": "piece"}, "part"), ("whole", {"A": "text"}, "ids"),
        ("join", {"A": "part", "B": "ids"}, "end"),
    ],
}  # fmt: skip
ALONE = {
    "all from behind it": [
        ("often", {"A": "text"}, "piece"), ("whole", {"A": "piece"}, "part"),
        ("join", {"A": "piece", "B": "part"}, "end"),
    ],
    "all from before it": [
        ("whole", {"A": "text"}, "ids"), ("join", {"A": "ids", "B": "text"}, "both"), ("often", {"A": "both"}, "end"),
    ],
    "no decoupled step": [("whole", {"A": "text"}, "ids"), ("join", {"A": "ids", "B": "text"}, "end")],
}  # fmt: skip


@pytest.mark.parametrize("steps", MIXED.values(), ids=MIXED)
def test_l046_a_step_fed_from_before_and_behind_a_decoupled_one(tmp_path, steps):
    """Triton does not load such an ensemble: tests/integration/test_repository_load.py."""
    repo = ensemble_of(tmp_path, steps)
    line = 1 + config(repo, "all").read_text().split('model_name: "join"')[0].count("\n")
    only(repo, "error", "L046", "all/config.pbtxt", line, "join gets", "from the decoupled step often")


@pytest.mark.parametrize("steps", ALONE.values(), ids=ALONE)
def test_steps_that_stay_on_one_side_of_it(tmp_path, steps):
    assert lint(ensemble_of(tmp_path, steps)) == []


def test_l046_in_the_deployment(repo):
    line = replace(repo, "ensemble", '"SEQUENCE_LENGTH" value: "_SEQUENCE_LENGTH"',
                   '"SEQUENCE_LENGTH" value: "_REQUEST_INPUT_LEN"')  # fmt: skip
    findings = [f for f in lint(repo) if f.code == "L046"]
    step = 1 + config(repo, "ensemble").read_text().split('"postprocessing"')[0].count("\n")
    assert [f.line for f in findings] == [step]
    assert "'_REQUEST_INPUT_LEN' from elsewhere" in findings[0].message and findings[0].line < line


# --- assets ------------------------------------------------------------------------------------------------------


def mapping(folder: Path, **sizes) -> None:
    told = json.loads((folder / "config.json").read_text())
    told["pretrained_config"]["mapping"] = sizes
    (folder / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[" * 100000), "config.json"),
        (lambda folder: (folder / "rank0.engine").unlink(), "rank0.engine"),
        (lambda folder: (folder / "rank0.engine").write_bytes(b""), "has nothing in rank0.engine"),
        (lambda folder: mapping(folder, world_size=1, tp_size=2), "says world_size 1 and tp × pp × cp = 2"),
        (lambda folder: mapping(folder, world_size=1, tp_size=1, pp_size=1, cp_size=2), "tp × pp × cp = 2"),
        (shutil.rmtree, "config.json"),
    ],
)
def test_l050_engine(repo, tmp_path, damage, words):
    line = 1 + config(repo, "tensorrt_llm").read_text().split('"gpt_model_path"')[0].count("\n")
    damage(tmp_path / "engine")
    only(repo, "error", "L050", "tensorrt_llm/config.pbtxt", line, words)


@pytest.mark.parametrize("missing", ["config.json", "rank0.engine", "rank1.engine"])
def test_l050_engine_of_two_ranks(tmp_path, missing):
    folder = engine(tmp_path / "engine", ranks=2)
    repository = build(spec(tmp_path, engine_dir=folder), tmp_path / "root")
    (folder / missing).unlink()
    line = 1 + config(repository, "tensorrt_llm").read_text().split('"gpt_model_path"')[0].count("\n")
    only(repository, "error", "L050", "tensorrt_llm/config.pbtxt", line, missing)


@pytest.mark.parametrize("value", ["\\000", "x" * 5000, "\\n", "."])
def test_l050_paths_that_no_file_system_has(repo, value):
    text = config(repo, "tensorrt_llm").read_text()
    line = replace(repo, "tensorrt_llm", re.search(r'"(/[^"]*engines)"', text)[1], value)
    assert found(repo) == [("error", "L050", "tensorrt_llm/config.pbtxt", line)]


@pytest.mark.parametrize(("model", "key", "code"), [
    ("tensorrt_llm", "gpt_model_path", "L050"), ("preprocessing", "tokenizer_dir", "L051"),
    ("postprocessing", "tokenizer_dir", "L051"),
])  # fmt: skip
def test_parameter_not_set(repo, model, key, code):
    text = config(repo, model).read_text()
    config(repo, model).write_text(re.sub(rf'parameters {{ key: "{key}".*\n', "", text))
    (finding,) = lint(repo)
    assert finding.code == code and f"{key}" in finding.message and "not set" in finding.message


def test_l051_tokenizer(repo, tmp_path):
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    lines = [
        ("error", "L051", f"{model}/config.pbtxt",
         1 + config(repo, model).read_text().split('"tokenizer_dir"')[0].count("\n"))
        for model in ("postprocessing", "preprocessing")
    ]  # fmt: skip
    assert found(repo) == lines
    shutil.rmtree(tmp_path / "tokenizer")
    assert found(repo) == lines


def test_l052_larger_batch_than_the_engine(tmp_path):
    folder = engine(tmp_path / "engine", max_batch_size=4)
    repository = build(spec(tmp_path, engine_dir=folder), tmp_path / "root")
    only(repository, "error", "L052", "tensorrt_llm/config.pbtxt", 3, "at most 4")


@pytest.mark.parametrize("added", [0, 1, 2])
@pytest.mark.parametrize("kind", ["WordLevel", "Unigram"])
def test_l053_a_tokenizer_with_more_ids_than_the_engine(repo, tmp_path, kind, added):
    """98 words, and up to two tokens beyond them: 100 ids fit into the engine, 101 do not."""
    words = [f"w{n}" for n in range(99)]
    model = {"vocab": {word: n for n, word in enumerate(words)}, "unk_token": "w0"}
    if kind == "Unigram":
        model = {"vocab": [[word, 0.0] for word in words], "unk_id": 0}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    more = [{"id": 99 + n, "content": f"<{n}>", "special": True, **flags} for n in range(added)]
    told = {"version": "1.0", "model": {"type": kind, **model}, "added_tokens": more}
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(told))
    line = 1 + config(repo, "preprocessing").read_text().split('"tokenizer_dir"')[0].count("\n")
    findings = [f for f in lint(repo) if "preprocessing" in f.file]
    assert [place(f, repo)[1:] for f in findings] == [("L053", "preprocessing/config.pbtxt", line)] * (added > 1)
    assert len(lint(repo)) == 2 * (added > 1)  # postprocessing reads it too
    assert all("ids up to 100" in f.message and "100 tokens" in f.message for f in findings)


@pytest.mark.parametrize(
    ("version", "generation", "told"),
    [
        ("0.19.0", "new", {"min_tokens": "min_length", "seed": "random_seed"}),
        ("0.20.0", "old", {"min_length": "min_tokens", "random_seed": "seed"}),
        ("1.3.0rc3", "old", {"min_length": "min_tokens", "random_seed": "seed"}),
        ("0.20.0rc3", "new", {}),
        ("0.9.0", "old", {}),
        ("1.0.0+reference.3", "old", {}),  # the course's executor takes the names of either
        ("unknown", "old", {}),
    ],
)
def test_l054_templates_of_another_generation_than_the_engine(tmp_path, version, generation, told):
    built = engine(tmp_path / "engine", version=version)
    repo = build(spec(tmp_path, engine_dir=built, generation=generation), tmp_path / "root")
    lines = config(repo, "tensorrt_llm").read_text().splitlines()
    findings = lint(repo)
    assert dict(re.search(r"input (\w+),.* is (\w+): this", f.message).groups() for f in findings) == told
    for finding in findings:
        severity, code, file, line = place(finding, repo)
        assert (severity, code, file) == ("warning", "L054", "tensorrt_llm/config.pbtxt")
        assert re.search(r'name: "(\w+)"', lines[line - 1])[1] in told and version in finding.message


def test_l050_of_a_draft(tmp_path):
    small = engine(tmp_path / "small")
    repository = build(spec(tmp_path, draft_engine_dir=small), tmp_path / "root")
    assert lint(repository) == []
    (small / "rank0.engine").unlink()
    line = 1 + config(repository, "tensorrt_llm_draft").read_text().split('"gpt_model_path"')[0].count("\n")
    only(repository, "error", "L050", "tensorrt_llm_draft/config.pbtxt", line)


# --- what the linter leaves alone --------------------------------------------------------------------------------


def test_services_other_than_the_llm(tmp_path):
    """An ensemble of another service is checked for its maps, not against the LLM's contract."""
    repo = tmp_path / "model_repository"
    tensor = 'name: "{}" data_type: TYPE_{} dims: [-1]'
    for name, source, target in (("clip_preprocessing", ("IMAGE", "UINT8"), ("PIXELS", "FP32")),
                                 ("clip_postprocessing", ("PIXELS", "FP32"), ("SCORE", "FP32"))):  # fmt: skip
        (repo / name / "1").mkdir(parents=True)
        (repo / name / "1" / "model.py").write_text("")
        config(repo, name).write_text(
            f'backend: "python"\nmax_batch_size: 1\ninput {{ {tensor.format(*source)} }}\n'
            f"output {{ {tensor.format(*target)} }}\n"
        )
    (repo / "clip_ensemble" / "1").mkdir(parents=True)
    config(repo, "clip_ensemble").write_text(
        f'platform: "ensemble"\nmax_batch_size: 1\ninput {{ {tensor.format("image", "UINT8")} }}\n'
        f"output {{ {tensor.format('score', 'FP32')} }}\n"
        "ensemble_scheduling {\n"
        '  step { model_name: "clip_preprocessing" model_version: -1 input_map { key: "IMAGE" value: "image" }\n'
        '    output_map { key: "PIXELS" value: "pixels" } }\n'
        '  step { model_name: "clip_postprocessing" model_version: -1 input_map { key: "PIXELS" value: "pixels" }\n'
        '    output_map { key: "SCORE" value: "score" } }\n}\n'
    )
    assert lint(repo) == []
    line = replace(repo, "clip_ensemble", '{ key: "PIXELS" value: "pixels" }\n', '{ key: "PIXELS" value: "px" }\n')
    only(repo, "error", "L044", "clip_ensemble/config.pbtxt", line, "'px'")


def test_control_characters_of_a_config_do_not_reach_the_terminal(repo):
    replace(repo, "tensorrt_llm_bls", 'string_value: "preprocessing"', 'string_value: "\\033[2Jx\\n"')
    (finding,) = lint(repo)
    assert finding.code == "L042" and finding.message.isprintable() and "x1b[2Jx" in finding.message


def test_several_faults_come_sorted(repo, tmp_path):
    replace(repo, "tensorrt_llm", "decoupled: true", "decoupled: ${decoupled_mode}")
    replace(repo, "ensemble", "max_batch_size: 8", "max_batch_size: 2")
    (repo / "postprocessing" / "1" / "model.py").unlink()
    codes = [(file, code) for _, code, file, _ in found(repo)]
    assert codes == [
        ("ensemble/config.pbtxt", "L040"), ("postprocessing/1/model.py", "L012"), ("tensorrt_llm/config.pbtxt", "L016"),
    ]  # fmt: skip
