"""Paths and ports that Triton would stumble over are refused before it starts, in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servinglab import assets
from servinglab.assets import AssetError
from servinglab.repository import lint
from servinglab.server import ServerError, TritonServer
from servinglab.server import install as triton_install
from servinglab.server import process as triton_process
from servinglab.server.launch import TrtllmServer


@pytest.mark.parametrize("name", ["with space", "do$(touch pwned)x", 'quo"te', "semi;colon", "new\nline", "Jürgen"])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / name
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('name: "m"')
    with pytest.raises(ServerError, match="path of the model repository, .* use another folder"):
        TritonServer(repository).start()
    with pytest.raises(ServerError, match="path of the model repository, .* use another folder"):
        TrtllmServer(repository)
    assert not (tmp_path / "pwned").exists()


WORDS = {  # the folder's name, what stands in its config.pbtxt, and what is said of it; PWN is run by a shell
    "command": ("a;PWN;", "", r"The name of the folder .*'a;PWN;', holds .*';'"),
    "substitution": ("$(PWN)", "", r"The name of the folder .*'\$\(PWN\)'"),
    "space": ("my model", "", "The name of the folder .*'my model', holds ' '"),
    "not ASCII": ("modèle", "", "'modèle', holds 'è'"),
    "instance": (
        "m", 'instance_group [ {}, {\nname: "`PWN`" } ]', "config.pbtxt: The name of an instance_group, '`PWN`'",
    ),
    "file": ("m", 'default_model_filename: "m$(PWN).py"', "config.pbtxt: default_model_filename, "),
    "escaped": ("m", r'default_model_filename: "m\x24\x28PWN\x29.py"', "default_model_filename, .*PWN"),
    "environment": (
        "m", 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/$(PWN)" } }',
        r"EXECUTION_ENV_PATH, '/\$\(PWN\)'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("folder, config, sentence", WORDS.values(), ids=WORDS)
def test_nothing_of_a_model_is_read_by_a_shell(tmp_path, folder, config, sentence):
    """Triton 24.10 runs each of these as it loads the model; so they are refused wherever a model is about to load."""
    (tmp_path / folder / "1").mkdir(parents=True)
    (tmp_path / folder / "config.pbtxt").write_text(f'{config}\nbackend: "python"')
    other = tmp_path / "other"
    (other / "1").mkdir(parents=True)
    every = [
        TritonServer(tmp_path).start, TritonServer(tmp_path, models=[folder]).start,
        lambda: TritonServer(tmp_path).load(folder), lambda: TrtllmServer(tmp_path),
    ]  # fmt: skip
    for enter in every:
        with pytest.raises(ServerError, match=sentence) as refused:
            enter()
        assert "\n" not in str(refused.value)
    assert TritonServer(tmp_path, models=["other"])._model_names() == ["other"]  # what is not loaded does no harm


BASE = b'backend: "python"\ninput { name: "a" data_type: TYPE_INT32 dims: [ - 1 ] }\n'  # Triton reads "- 1", we do not
NAMED = b'instance_group { name: "$(PWN)" }'
HARD = {
    "what only Triton's parser takes": (
        BASE + b'instance_group { name: "i\x0c#$(touch${IFS}PWN)" }',
        ":2: Couldn't parse integer: -: correct",
    ),
    "a parser that gives up": (NAMED + b" and more", ":1: .*and"),
    "letters of another age": (b"# caf\xe9\n" + NAMED, "cannot be read .no UTF-8 text"),
    "a megabyte": (b"#" * 2**20 + b"\n" + NAMED, r"instance_group, '\$\(PWN\)'"),
    "too much": (b"#" * 2**23 + b"\n" + NAMED, "cannot be read .larger than 4 MiB"),
    "a byte of zero": (b"# \0\n" + NAMED, r"instance_group, '\$\(PWN\)'"),
    "another line end": (b"# \r" + NAMED + b"\n# \x0c" + NAMED + b"\n" + NAMED, r"instance_group, '\$\(PWN\)'"),
    "an ensemble with a step": (
        BASE + b'ensemble_scheduling { step { model_name: "m$(PWN)" } }',
        ":2: Couldn't parse integer: -: correct",
    ),
    "a placeholder": (
        b"# m\nmax_batch_size: ${rows}",
        r":2: \$\{rows\} is not filled: course repo fill .* rows=…",
    ),
}


def doors(repository: Path) -> list:
    """Every way by which the model m gets into a server, `--lane trtllm` included."""
    return [
        TritonServer(repository).start, TritonServer(repository, models=["m"]).start,
        lambda: TritonServer(repository).load("m"), lambda: TrtllmServer(repository),
    ]  # fmt: skip


@pytest.mark.parametrize("config, sentence", HARD.values(), ids=HARD)
def test_a_config_that_is_hard_to_read_is_no_way_around(tmp_path, config, sentence):
    """Whatever our parser cannot read is refused: Triton's reads more, and then a shell does."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_bytes(config)
    for enter in doors(tmp_path):
        with pytest.raises(ServerError, match=f"m/config.pbtxt.*{sentence}") as refused:
            enter()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["endless", "pipe", "folder", "nowhere"])
def test_a_config_that_is_no_regular_file_is_neither_read_nor_waited_for(tmp_path, kind):
    (tmp_path / "m" / "1").mkdir(parents=True)
    file = tmp_path / "m" / "config.pbtxt"
    {
        "endless": lambda: file.symlink_to("/dev/zero"), "pipe": lambda: os.mkfifo(file), "folder": file.mkdir,
        "nowhere": lambda: file.symlink_to("/nowhere"),
    }[kind]()  # fmt: skip
    for enter in doors(tmp_path)[:3] if kind == "nowhere" else doors(tmp_path):
        with pytest.raises(ServerError, match=r"m/config.pbtxt cannot be read \("):
            enter()
    assert [found.code for found in lint(tmp_path)] == ["L013"]


def test_what_an_ensemble_loads_with_it_is_looked_at(tmp_path):
    steps = {"outer": "inner", "inner": "a$(PWN)b", "a$(PWN)b": ""}
    for name, step in steps.items():
        (tmp_path / name / "1").mkdir(parents=True)
        text = f'ensemble_scheduling {{ step {{ model_name: "{step}" }} }}' if step else 'backend: "python"'
        (tmp_path / name / "config.pbtxt").write_text(text)
    for enter in (TritonServer(tmp_path, models=["outer"]).start, lambda: TritonServer(tmp_path).load("outer")):
        with pytest.raises(ServerError, match=r"The name of the folder .*'a\$\(PWN\)b'"):
            enter()


def test_the_cache_is_looked_at_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "a b"))
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(ServerError, match="path of the cache, .*SERVINGLAB_CACHE"):
        TritonServer(tmp_path).start()


def test_in_a_temporary_folder_it_is_tmpdir_that_the_sentence_names(tmp_path, monkeypatch):
    """A notebook and `course ask` write their repositories there."""
    odd = tmp_path / "my temp"
    monkeypatch.setattr(triton_install.tempfile, "tempdir", str(odd))
    (odd / "made" / "m" / "1").mkdir(parents=True)
    with pytest.raises(ServerError, match="path of the model repository, .* holds ' ', .*: set TMPDIR to another"):
        TritonServer(odd / "made").start()
    with pytest.raises(ServerError, match=r": cure\.$"):  # here it is the name that was chosen
        monkeypatch.setattr(triton_install.tempfile, "tempdir", str(tmp_path))
        triton_install.require_plain_path(tmp_path / "a b", "it", "cure")


def test_ordinary_paths_pass(tmp_path):
    plain = tmp_path / "a-b_c.d+e=f@g%h,i:j"
    triton_install.require_plain_path(plain, "it", "no")
    (plain / "1").mkdir(parents=True)
    value = '{ key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }'
    (plain / "config.pbtxt").write_text(f"parameters {value}")
    assert TritonServer(tmp_path)._model_names() == [plain.name]


def test_one_port_for_two_services():
    with pytest.raises(ServerError, match="Port 45998 is given twice"):
        triton_process.choose_ports({"http": 45998, "grpc": 45998, "metrics": None})


def test_a_cache_of_nobody(monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", "~nosuchuser/x")
    with pytest.raises(AssetError, match="set SERVINGLAB_CACHE"):
        assets.cache_dir()


def test_a_full_cache_is_named_and_left_clean(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(triton_install.shutil, "copy2", full)
    with pytest.raises(ServerError, match=r"Cannot write to the cache .*No space left on device.*SERVINGLAB_CACHE"):
        triton_install.backend_directory(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("file", ["model.py", "other.py"])
def test_a_python_model_without_its_file_is_refused(tmp_path, file):
    """Triton itself would never answer. Of several versions it serves the highest."""
    for version in (9, 10):
        (tmp_path / "m" / str(version)).mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "python"\ndefault_model_filename: "{file}"')
    (tmp_path / "m" / "9" / file).touch()
    for enter in (TritonServer(tmp_path).start, lambda: TritonServer(tmp_path).load("m")):
        with pytest.raises(ServerError, match=rf"has no {file}: .*m/10/{file} does not exist"):
            enter()
    (tmp_path / "m" / "10" / file).touch()
    assert TritonServer(tmp_path)._model_names() == ["m"]
