"""The folders that build() writes."""

from pathlib import Path

import pytest
from repository_helpers import engine, message, parse, spec, tokenizer

from servinglab.repository import RepositoryError, build, config_text, contract, lint


def tree(root):
    return {str(p.relative_to(root)): p.stat().st_mtime_ns for p in sorted(root.rglob("[!.]*")) if p.is_file()}


def test_layout(tmp_path):
    repository = build(spec(tmp_path), tmp_path / "root")
    assert repository == tmp_path / "root" / "model_repository"
    assert sorted(p.name for p in repository.iterdir()) == sorted(contract.MODELS)
    for model in contract.MODELS:
        assert (repository / model / "1").is_dir()
        found = [path.name for path in (repository / model / "1").iterdir()]
        assert found == ([] if model in ("ensemble", "tensorrt_llm") else ["model.py"])
        assert parse((repository / model / "config.pbtxt").read_text()).name == model
    assets = tmp_path / "root" / "_assets" / "smollm2"
    assert (assets / "tokenizer").resolve() == tmp_path / "tokenizer"
    assert (assets / "engines" / "rank0.engine").is_file()
    llm = parse((repository / "tensorrt_llm" / "config.pbtxt").read_text())
    assert llm.parameters["gpt_model_path"].string_value == str(assets / "engines")


def test_a_draft_becomes_a_sixth_model(tmp_path):
    given = {"prefix": "x-", "draft_engine_dir": engine(tmp_path / "small")}
    repository = build(spec(tmp_path, **given), tmp_path / "root")
    assert sorted(p.name for p in repository.iterdir()) == sorted(f"x-{m}" for m in (*contract.MODELS, contract.DRAFT))
    draft, llm, bls = (
        parse((repository / f"x-{model}" / "config.pbtxt").read_text())
        for model in ("tensorrt_llm_draft", "tensorrt_llm", "tensorrt_llm_bls")
    )
    assert bls.parameters["tensorrt_llm_draft_model_name"].string_value == draft.name == "x-tensorrt_llm_draft"
    links = tmp_path / "root" / "_assets" / "smollm2"
    assert draft.parameters["gpt_model_path"].string_value == str(links / "draft_engines")
    assert (links / "draft_engines").resolve() == tmp_path / "small"
    draft.name = llm.name
    draft.parameters["gpt_model_path"].string_value = str(links / "engines")
    assert draft == llm, "it differs in its engine only"
    assert lint(repository) == []
    before = tree(tmp_path / "root")
    build(spec(tmp_path, **given), tmp_path / "root")
    assert tree(tmp_path / "root") == before
    plain = build(spec(tmp_path), tmp_path / "plain")
    bls = parse((plain / "tensorrt_llm_bls" / "config.pbtxt").read_text())
    assert "tensorrt_llm_draft_model_name" not in bls.parameters


def test_what_was_edited_by_hand_is_kept_when_it_is_written_anew(tmp_path):
    """Also a model of somebody else by the same name."""
    root = tmp_path / "root"
    (theirs := root / "model_repository" / "postprocessing" / "config.pbtxt").parent.mkdir(parents=True)
    (root / "_assets").mkdir()
    theirs.write_text("theirs")
    repository = build(spec(tmp_path), root)
    assert not (root / "yours" / "2").exists()
    (repository / "preprocessing" / "config.pbtxt").write_text("edited")
    (repository / "preprocessing" / "1" / "model.py").write_text("edited model")
    build(spec(tmp_path, max_batch_size=2), root)  # other files change, and were not edited
    kept = {str(p.relative_to(root / "yours")): p.read_text() for p in (root / "yours").rglob("*") if p.is_file()}
    assert kept == {
        "1/model_repository/postprocessing/config.pbtxt": "theirs",
        "2/model_repository/preprocessing/config.pbtxt": "edited",
        "2/model_repository/preprocessing/1/model.py": "edited model",
    }
    assert {path.name for path in repository.iterdir()} == set(contract.MODELS)  # Triton takes any folder for a model


def test_a_draft_needs_an_engine(tmp_path):
    with pytest.raises(RepositoryError, match="draft_engine_dir .* lacks"):
        build(spec(tmp_path, draft_engine_dir=tmp_path / "missing"), tmp_path / "root")


def test_model_py_is_the_packages(tmp_path):
    import reference_backend

    repository = build(spec(tmp_path), tmp_path / "root")
    shipped = Path(reference_backend.__file__).parent / "models" / "tensorrt_llm_bls.py"
    assert (repository / "tensorrt_llm_bls" / "1" / "model.py").read_text() == shipped.read_text()


def test_second_build_changes_nothing(tmp_path):
    deployment = spec(tmp_path)
    repository = build(deployment, tmp_path / "root")
    before = tree(tmp_path / "root")
    assert build(deployment, tmp_path / "root") == repository
    assert tree(tmp_path / "root") == before


def test_rebuild_takes_new_values_and_a_new_engine(tmp_path):
    repository = build(spec(tmp_path), tmp_path / "root")
    other = engine(tmp_path / "other-engine")
    build(spec(tmp_path, engine_dir=other, max_batch_size=2), tmp_path / "root")
    assert parse((repository / "ensemble" / "config.pbtxt").read_text()).max_batch_size == 2
    assert (tmp_path / "root" / "_assets" / "smollm2" / "engines").resolve() == other
    assert lint(repository) == []


def test_two_deployments_in_one_repository(tmp_path):
    first = build(spec(tmp_path), tmp_path / "root")
    before = tree(tmp_path / "root")
    second = build(spec(tmp_path, prefix="gemma-gly-", name="gemma"), tmp_path / "root")
    assert first == second and len(list(first.iterdir())) == 10
    after = tree(tmp_path / "root")
    assert before.items() <= after.items()
    assert lint(first) == []
    steps = parse((first / "gemma-gly-ensemble" / "config.pbtxt").read_text()).ensemble_scheduling.step
    assert [s.model_name for s in steps] == [f"gemma-gly-{m}" for m in contract.MODELS[:3]]


def test_name_of_another_deployments_engine_is_refused(tmp_path):
    repository = build(spec(tmp_path), tmp_path / "root")
    before = tree(tmp_path / "root")
    with pytest.raises(RepositoryError, match="already points elsewhere for .*tensorrt_llm.*another name"):
        build(spec(tmp_path, prefix="b-", engine_dir=engine(tmp_path / "other")), tmp_path / "root")
    assert tree(tmp_path / "root") == before and lint(repository) == []


def test_assets_that_already_lie_in_place_stay(tmp_path):
    assets = tmp_path / "root" / "_assets" / "mine"
    tokenizer(assets / "tokenizer"), engine(assets / "engines")
    repository = build(
        spec(tmp_path, name="mine", tokenizer_dir=assets / "tokenizer", engine_dir=assets / "engines"),
        tmp_path / "root",
    )
    assert not (assets / "engines").is_symlink() and lint(repository) == []


def test_a_real_folder_is_not_replaced_by_a_link(tmp_path):
    own = engine(tmp_path / "root" / "_assets" / "smollm2" / "engines")
    with pytest.raises(RepositoryError, match="is a folder, not a link .*another name"):
        build(spec(tmp_path), tmp_path / "root")
    assert (own / "rank0.engine").is_file()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "tokenizer" / "tokenizer.json").unlink(), "tokenizer_dir .* holds no tokenizer.json"),
        (lambda d: (d / "engine" / "config.json").unlink(), "engine_dir .* lacks a readable config.json"),
        (lambda d: (d / "engine" / "config.json").write_text("{"), "lacks a readable config.json"),
        (lambda d: (d / "engine" / "rank0.engine").unlink(), "lacks rank0.engine: copy every file"),
    ],
)
def test_unusable_assets_are_refused_before_anything_is_written(tmp_path, damage, words):
    deployment = spec(tmp_path)
    damage(tmp_path)
    with pytest.raises(RepositoryError, match=words):
        build(deployment, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_missing_ranks_are_named(tmp_path):
    folder = engine(tmp_path / "engine", ranks=4)
    (folder / "rank2.engine").unlink()
    with pytest.raises(RepositoryError, match="lacks rank2.engine: copy every file"):
        build(spec(tmp_path, engine_dir=folder), tmp_path / "root")


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(RepositoryError, match="tokenizer_dir /nowhere holds no tokenizer.json"):
        build(spec(tmp_path, tokenizer_dir="/nowhere"), tmp_path / "root")


def test_a_folder_of_other_things_is_refused_and_stays(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / ".hidden").write_text("")
    (root / "01_notebook.ipynb").write_text("{}")
    (root / "README.md").write_text("")
    with pytest.raises(RepositoryError, match=r"root holds something else \(01_notebook.ipynb\).*name a new folder"):
        build(spec(tmp_path), root)
    assert sorted(p.name for p in root.iterdir()) == [".hidden", "01_notebook.ipynb", "README.md"]


def test_hidden_files_do_not_count_and_notes_beside_a_build_may_stay(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / ".gitkeep").write_text("")
    build(spec(tmp_path), root)
    (root / "notes.md").write_text("")
    assert lint(build(spec(tmp_path, max_batch_size=2), root)) == []


def test_unwritable_root_is_one_sentence(tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(RepositoryError, match="cannot be written"):
        build(spec(tmp_path), tmp_path / "root")


def test_relative_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repository = build(spec(tmp_path), "here")
    assert repository.is_absolute() and lint(repository) == []
    assert message(spec(tmp_path), "ensemble") == parse((repository / "ensemble" / "config.pbtxt").read_text())


# --- the configs, read by protobuf ---


def test_message_against_a_config_written_by_hand(tmp_path):
    deployment = spec(tmp_path, postprocessing_instance_count=2, max_batch_size=4, prefix="p-")
    by_hand = f"""
        name: "p-postprocessing" backend: "python" max_batch_size: 4 dynamic_batching {{}}
        input [ {{ name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
                {{ name: "SEQUENCE_LENGTH" data_type: TYPE_INT32 dims: [ -1 ] }} ]
        output [ {{ name: "OUTPUT" data_type: TYPE_STRING dims: [ -1 ] }} ]
        parameters {{ key: "tokenizer_dir" value {{ string_value: "{deployment.tokenizer_dir}" }} }}
        parameters {{ key: "skip_special_tokens" value {{ string_value: "true" }} }}
        instance_group [ {{ count: 2 kind: KIND_CPU }} ]"""
    assert message(deployment, "postprocessing") == parse(by_hand)


def test_a_config_begins_with_what_the_model_is_and_has_one_tensor_a_line(tmp_path):
    text = config_text(spec(tmp_path, decoupled=False), "tensorrt_llm")
    assert text.startswith('name: "tensorrt_llm"\nbackend: "tensorrtllm"\nmax_batch_size: 8\n')
    assert "decoupled: false" in text and "$" not in text
    assert 'input { name: "stop" data_type: TYPE_BOOL dims: [1] reshape { shape: [] } optional: true }' in text


def test_values_with_quotes_and_marks_survive(tmp_path):
    odd = tmp_path / 'o"d, {reshape { } \\ ü'
    read = message(spec(tmp_path, tokenizer_dir=odd), "preprocessing")
    assert read.parameters["tokenizer_dir"].string_value == str(odd)


def test_what_the_cpp_backend_reads_without_a_default_is_there(tmp_path):
    config = message(spec(tmp_path), "tensorrt_llm")
    assert config.backend == "tensorrtllm"
    for key in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        assert key in config.parameters and config.parameters[key].string_value == ""
    assert config.parameters["gpt_model_type"].string_value == "inflight_fused_batching"
    assert config.parameters["executor_worker_path"].string_value.endswith("trtllmExecutorWorker")
