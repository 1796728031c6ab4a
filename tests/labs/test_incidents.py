"""labs/incidents: each deployment is broken as its README.md says, in Triton's own words, and its repair serves.

All are started broken. Repaired, each has the files that were never broken, so a run starts one of them: it plays it
from the command line, as a learner would. COURSE_TURN says which; the others are marked long.
"""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servinglab.repository import build_default, fill_repository, lint

LAB = Path(__file__).resolve().parents[2] / "labs" / "incidents"
sys.path.insert(0, str(LAB))

import drill  # noqa: E402

README = (LAB / "README.md").read_text()
SECTIONS = dict(re.findall(r"^## ([\w-]+) \(.*?\)\n(.*?)(?=^## |\Z)", README, re.M | re.S))
TURN = [*drill.FAULTS][int(os.environ.get("COURSE_TURN", datetime.date.today().toordinal())) % len(drill.FAULTS)]


def config(copy, model, old, new):
    file = copy / "model_repository" / model / "config.pbtxt"
    assert old in (text := file.read_text())
    file.write_text(text.replace(old, new))


def version_folders(copy):
    for model in ("tensorrt_llm", "ensemble"):
        folder = copy / "model_repository" / model / "1"
        folder.mkdir()
        (folder / ".gitkeep").touch()


def engine_folder(copy):
    folder = copy / "_assets" / "smollm2-int4" / "engines"
    fill_repository(copy / "model_repository" / "tensorrt_llm", {"engine_dir": folder})


ANY_PORTS = '{\n  "http": 0,\n  "grpc": 0,\n  "metrics": 0\n}\n'

# As the solutions of the page say.
REPAIRS = {
    "name-and-folder": lambda copy: config(copy, "postprocessing", "post_processing", "postprocessing"),
    "missing-version": version_folders,
    "unfilled-placeholder": engine_folder,
    "port-in-use": lambda copy: (copy / "ports.json").write_text(ANY_PORTS),
    "wrong-dims": lambda copy: config(copy, "tensorrt_llm_bls", "dims: [-1, 1] }", "dims: [1] }"),
    "decoupled-mismatch": lambda copy: config(copy, "tensorrt_llm", "decoupled: false", "decoupled: true"),
    "cache-too-small": lambda copy: config(
        copy, "tensorrt_llm",
        'parameters { key: "max_tokens_in_paged_kv_cache" value { string_value: "64" } }\n', ""),
    "wrong-tokenizer": lambda copy: config(copy, "postprocessing", "/other/", "/smollm2-int4/"),
}  # fmt: skip


def command(home, *words, **options):
    argv = [sys.executable, str(LAB / "drill.py"), f"--home={home}", *map(str, words)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def require_symptoms(name, copy, said):
    """What the page quotes stands in Triton's log, or in what the drill said of the clients."""
    log = (copy / "triton.log").read_text()
    for line in re.search(r"```text\n(.*?)```", SECTIONS[name], re.S)[1].splitlines():
        if line.startswith("error: creating server") and "terminate called" in log:
            continue  # Triton 24.10 sometimes dies while it cleans up, and then its last line is missing
        quote = ".*".join(map(re.escape, line.split("…")))
        assert re.search(quote, f"{log}\n{said}"), f"{line}\n{log}\n{said}"


def written(copy):
    """Every file of the deployment, by name, with what it says of its own folder left out."""
    found = [copy / "ports.json", *(copy / "model_repository").rglob("*")]
    return {
        str(path.relative_to(copy)): path.read_text().replace(str(copy), "") if path.is_file() else "folder"
        for path in found if not re.search(r"/\.|__pycache__", str(path.relative_to(copy)))
    }  # fmt: skip


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A copy of each incident, for whoever leaves it as it is."""
    home = tmp_path_factory.mktemp("incidents")
    return {name: drill.make_copy(name, home) for name in drill.FAULTS}


def test_the_page_has_every_incident_with_what_is_seen_two_hints_and_a_solution(capsys):
    assert SECTIONS.keys() == drill.FAULTS.keys() == REPAIRS.keys()
    for name, text in SECTIONS.items():
        parts = re.findall(r"<details><summary>([\w ]+)", text)
        assert parts[1:] == ["Hint 1", "Hint 2", "Solution"] and text.count("</details>") == 4, name
        assert parts[0] in ("In the log", "The client sees"), name
        assert drill.main(["solution", name]) == 0 and drill.section(name)[1] in text
        assert capsys.readouterr().out.strip() in text
    assert drill.main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*drill.FAULTS]


@pytest.mark.parametrize("name", drill.FAULTS)
def test_the_linter_says_what_the_hint_says(name, broken):
    hint = re.search(r"Hint 2.*?</summary>\n(.*?)</details>", SECTIONS[name], re.S)[1]
    found = lint(broken[name] / "model_repository")
    said = set(re.findall(r"^(L\d+: .*)$", hint, re.M))
    assert said == {f"{finding.code}: {finding.message}" for finding in found}
    assert ("The linter finds nothing" in hint) == (not found)


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name in drill.FAULTS if name != TURN])
def test_broken_it_fails_in_the_words_of_the_page(name, broken, capsys):
    assert not drill.check(broken[name])
    said = capsys.readouterr().out
    assert f"{name}-1 still fails: " in said and said.count("\n") == 1
    require_symptoms(name, broken[name], said)


@pytest.mark.parametrize("name", drill.FAULTS)
def test_repaired_it_is_what_was_never_broken(name, tmp_path):
    """Which the next test starts. So nothing but the fault is broken, and the solution mends all of it."""
    copy, whole = drill.make_copy(name, tmp_path), tmp_path / "whole"
    build_default(whole, precision="int4")
    (whole / "ports.json").write_text(ANY_PORTS)
    assert written(copy) != written(whole)
    REPAIRS[name](copy)
    assert written(copy) == written(whole)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != TURN)) for name in drill.FAULTS]
)
def test_as_a_learner_plays_it(name, tmp_path):
    """start, stop, repair, check; the next start leaves alone what was repaired."""
    started = command(tmp_path, "start", name)
    said = []
    for line in started.stdout:
        said.append(line)
        if "Ctrl-C stops it" in line:
            assert command(tmp_path, "stop").communicate(timeout=60)[0].endswith(f"{name}-1 is stopped.\n")
    assert started.wait(timeout=30) == 0, started.stderr.read()
    copy = tmp_path / f"{name}-1"
    require_symptoms(name, copy, "".join(said))
    assert "drill.py check" in said[-1] and not (copy / drill.RUNNING).exists()
    REPAIRS[name](copy)
    repaired = written(copy)
    checked = command(tmp_path, "check")
    assert checked.communicate(timeout=120)[0].endswith(f"{name}-1 passed: all of its users are served.\n")
    assert checked.returncode == 0 and written(copy) == repaired
    again = drill.make_copy(name, tmp_path)
    assert again.name == f"{name}-2" and drill.newest(tmp_path) == again and written(copy) == repaired


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        (["start", "wrong-dim"], None, "No incident 'wrong-dim': drill.py list shows them. Did you mean 'wrong-dims'?"),
        (["check"], None, "There is no copy in "),
        (["check", "nowhere"], None, "is missing: is this a folder that drill.py start has made?"),
        (["check", "made"], '{"http": "8000"}', "says 'http': '8000', and a port is from 0 (any) to 65535."),
        (["check", "made"], '{"http": 8000', "is not what drill.py start wrote there"),
    ],
)
def test_a_mistake_is_one_sentence(words, content, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content:
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / drill.FACTS).write_text("{}")
        (tmp_path / "made" / "ports.json").write_text(content)
    assert drill.main(["--home", str(tmp_path / "none"), *words]) == 1
    output = capsys.readouterr().err
    assert said in output and output.count("\n") == 1


def test_stop_is_for_a_start_that_still_runs(tmp_path, capsys):
    """A process that has the same number by now is left alone."""
    other = subprocess.Popen(["sleep", "60"])
    file = tmp_path / "wrong-dims-1" / drill.RUNNING
    file.parent.mkdir()
    file.write_text(f'{{"pid": {other.pid}, "identity": "{drill.identity(os.getpid())}"}}')
    assert drill.main(["--home", str(tmp_path), "stop"]) == 0
    assert capsys.readouterr().out == "Nothing runs.\n" and not file.exists()
    assert other.poll() is None
    other.kill()
    other.wait()
