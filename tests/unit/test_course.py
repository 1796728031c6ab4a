"""The manifest: what the repository's own says, and that each kind of mistake gives one clear sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from course import manifest

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
timeout = 60
[[notebook]]
id = "00_first"
title = "First"
minutes = 5
lanes = ["embedded"]
needs = ["triton"]
parameters = { lane = "auto", seed = 0, rate = 0.5, fast = false }
sets = [{ name = "default" }, { name = "other", seed = 3 }]
[[notebook]]
id = "01_second"
title = "Second"
minutes = 7
timeout = 5
lanes = ["embedded", "trtllm"]
needs = ["smollm2"]
parameters = { lane = "auto", streams = 2 }
sets = [{ name = "default", streams = 1 }, { name = "other", streams = 8 }]
"""


def write(folder: Path, text: str) -> Path:
    (folder / "course.toml").write_text(text)
    (folder / "notebooks").mkdir(exist_ok=True)
    return folder


@pytest.fixture
def small(tmp_path) -> manifest.Course:
    return manifest.load(write(tmp_path, GOOD))


def test_the_repository_s_own_manifest():
    own = manifest.load(ROOT)
    assert [n.id for n in own.notebooks] == sorted(n.id for n in own.notebooks)
    assert {"00_start_here", "03_model_repository", "05_streaming_grpc"} <= {n.id for n in own.notebooks}
    for notebook in own.notebooks:
        assert len(notebook.sets) >= 2
        assert notebook.values(set_name=notebook.sets[1].name) != notebook.values()
        assert {"lane", "seed"} <= set(notebook.parameters)
    assert own.models() == ["smollm2", "smollm2-draft", "minilm"]


def test_fields_are_read(small):
    first, second = small.notebooks
    assert (first.title, first.minutes, first.timeout, second.timeout) == ("First", 5, 60, 5)
    assert second.lanes == ("embedded", "trtllm")
    assert first.path == small.root / "notebooks" / "00_first.ipynb"


def test_values_merge_default_then_set_then_override(small):
    first, second = small.notebooks
    assert first.values() == {"lane": "auto", "seed": 0, "rate": 0.5, "fast": False}
    assert first.values(set_name="other")["seed"] == 3
    assert first.values({"seed": 9}, "other")["seed"] == 9
    assert second.values()["streams"] == 1, "the first set is the one that runs"


def test_select_by_id_and_by_number_keeps_the_order(small):
    assert [n.id for n in small.select(["01", "00_first"])] == ["00_first", "01_second"]
    assert small.select(["1"]) == small.select(["01"])
    assert len(small.select([])) == 2


def test_a_lab_is_selected_by_its_folder(tmp_path):
    own = manifest.load(write(tmp_path, GOOD.replace("minutes = 7", 'minutes = 7\nfolder = "labs/demo"')))
    assert [n.path for n in own.select(["labs/demo/"])] == [tmp_path / "labs/demo/01_second.ipynb"]
    with pytest.raises(
        manifest.ManifestError, match="no notebook 'labs/other'; it has: 00_first, 01_second, labs/demo"
    ):
        own.select(["labs/other"])


def test_assignments_are_typed_and_go_to_the_notebooks_that_know_them(small):
    found = manifest.parse_assignments(["seed=4", "rate=2", "lane=embedded", "streams=3", "fast=true"], small.select())
    assert found == {
        "00_first": {"seed": 4, "rate": 2.0, "lane": "embedded", "fast": True},
        "01_second": {"lane": "embedded", "streams": 3},
    }
    assert isinstance(found["00_first"]["rate"], float)
    there = "grpc://gpu-box:8001"  # where a server runs is no lane, and every notebook takes it
    assert {v["lane"] for v in manifest.parse_assignments([f"lane={there}"], small.select()).values()} == {there}


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("sede=1", ["sede", "seed"]),
        ("seed", ["NAME=VALUE"]),
        ("=3", ["NAME=VALUE"]),
        ("seed=many", ["seed", "a valid integer", "many"]),
        ("seed=1.5", ["seed", "a valid integer", "1.5"]),
        ("seed=true", ["seed", "a valid integer"]),
        ("fast=maybe", ["fast", "a valid boolean"]),
        ("lane=moon", ["moon", "only in: embedded"]),
        ("lane=trtllm", ["00_first", "trtllm", "embedded"]),
        ("seed=1\nx=2", ["seed", "a valid integer"]),
    ],
)
def test_a_wrong_assignment_is_refused_in_one_sentence(small, pair, words):
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.parse_assignments([pair], small.select())
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("minutes = 5", "", ["minutes", "00_first", "Field required"]),
        ("minutes = 5", 'minutes = "5"', ["minutes", "valid integer", "'5'"]),
        ("minutes = 5", "minutes = true", ["minutes", "True"]),
        ("minutes = 5", "minutes = 0", ["minutes", "greater than 0"]),
        ("timeout = 5", "timeout = -1", ["timeout", "greater than 0"]),
        ("minutes = 5", "minutes = 5\nminuets = 5", ["minuets", "Unexpected"]),
        ("minutes = 5", 'minutes = 5\nfolder = "../elsewhere"', ["folder", "labs/", "../elsewhere"]),
        ('id = "00_first"', 'id = "first"', ["id", "'first'"]),
        ('id = "00_first"', 'id = "01_second"', ["01_second", "more than once"]),
        ('lanes = ["embedded"]', 'lanes = ["cloud"]', ["cloud", "'embedded' or 'trtllm'"]),
        ('lanes = ["embedded"]', "lanes = []", ["lanes", "at least 1"]),
        ('needs = ["triton"]', 'needs = ["tpu"]', ["tpu", "'triton', 'docker'"]),
        ('{ name = "other", seed = 3 }', '{ name = "other", sede = 3 }', ["set 'other'", "sede", "lane, seed"]),
        ('{ name = "other", seed = 3 }', '{ name = "other", seed = "3" }', ["seed", "a valid integer"]),
        ('{ name = "other", seed = 3 }', '{ name = "default" }', ["sets", "more than once"]),
        ('{ name = "other", seed = 3 }', "{ seed = 3 }", ["sets.1.name", "valid string"]),
        (', { name = "other", seed = 3 }', "", ["sets", "at least 2"]),
        ('lane = "auto", seed = 0', "lane = [1], seed = 0", ["parameters.lane"]),
        ("[[notebook]]", "[[notebok]]", ["no [[notebook]]"]),
        ("timeout = 60", "timeout = = 60", ["not valid TOML", "line"]),
    ],
)
def test_a_mistake_in_the_manifest_is_named_in_one_sentence(tmp_path, old, new, words):
    assert old in GOOD
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.load(write(tmp_path, GOOD.replace(old, new)))
    message = str(caught.value)
    assert all(word in message for word in [*words, "course.toml"]), message
    assert "\n" not in message


def test_a_missing_manifest_says_where_to_run(tmp_path):
    with pytest.raises(manifest.ManifestError, match="run this from the course's folder"):
        manifest.load(tmp_path)


def test_unknown_ids_and_sets_list_what_there_is(small):
    with pytest.raises(manifest.ManifestError, match="no notebook '09'; it has: 00_first, 01_second"):
        small.select(["09"])
    with pytest.raises(manifest.ManifestError, match="no parameter set 'x'; it has: default, other"):
        small.notebooks[0].values(set_name="x")


def test_the_root_is_found_from_a_folder_below_and_from_elsewhere(tmp_path):
    write(tmp_path, GOOD)
    below = tmp_path / "labs" / "deep"
    below.mkdir(parents=True)
    assert manifest.find_root(below) == tmp_path.resolve()
    assert manifest.find_root(Path("/")) == ROOT


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_manifest_of_another_user_is_passed_by(tmp_path):
    """What it names is executed, and in /tmp anybody can put one above your folder."""
    write(tmp_path, GOOD)
    (below := tmp_path / "mine").mkdir()
    assert manifest.find_root(below) == tmp_path.resolve()
    os.chown(tmp_path / "course.toml", 65534, 65534)
    assert manifest.find_root(below) == ROOT
