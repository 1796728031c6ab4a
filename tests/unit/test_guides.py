"""The guides beside the notebooks say what is so: run sheets, glossary, cheat sheet, how to contribute."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest
from notebook_files import text_sources
from typer.main import get_command

from course import cli, engine_cli, manifest
from course.manifest import tomllib
from reference_backend.executor.params import SamplingParams
from servinglab.root import find_root

ROOT = find_root()
NOTEBOOKS = {n.number: n for n in manifest.load(ROOT).notebooks if n.number.isdigit()}
TWINS = {source.stem[:2]: source.read_text() for source in text_sources()}
SHEETS = sorted((ROOT / "docs" / "instructors").glob("[0-9]*.md"))
CHEATS = (ROOT / "docs" / "cheatsheet.md").read_text()
GLOSSARY = (ROOT / "GLOSSARY.md").read_text()


def rows(text: str, columns: int) -> list[list[str]]:
    """The rows of all tables with so many columns, without their heads."""
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [
        row for row in found if len(row) == columns and row[0] not in ("where", "term", "setting", "you see", "command")
    ]


def shown(number: str) -> str:
    """Everything that the stored notebook shows: texts of its outputs, and what stands for its pictures."""
    notebook = nbformat.read(NOTEBOOKS[number].path, as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.get("text", "") + json.dumps(output.get("metadata", {}), ensure_ascii=False) for output in outputs]
    texts += [str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    return " ".join(" ".join(texts).split())


def test_every_notebook_has_a_run_sheet_and_the_plan_names_them_all():
    assert [path.stem for path in SHEETS] == list(NOTEBOOKS)
    plan = (ROOT / "docs" / "instructors" / "README.md").read_text()
    two_days, half = plan.partition("## Two days")[2].split("## Half a day")
    assert set(re.findall(r"\((\d\d)\.md\)", two_days)) == set(NOTEBOOKS)
    assert all("**must**" in line or "*optional*" in line for line in half.splitlines() if ".md)" in line)


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.stem)
def test_a_run_sheet_is_short_and_names_what_its_notebook_has(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    for heading in ("## Demo, five minutes", "## Lab, twenty minutes", "## Expect", "## What fails, and the cure"):
        assert heading in text, heading
    lab = text.partition("## Lab")[2].partition("## ")[0]
    assert sum(int(n) for n in re.findall(r"(?m)^\| (\d+) \|", lab)) == 20
    sections = set(re.findall(r"(?m)^# ## (\d+) ", TWINS[path.stem]))
    named = re.findall(r"§(\d+)|[Ss]ections? (\d+)(?: (?:to|and) (\d+))?", text)
    assert named and {number for group in named for number in group if number} <= sections
    exercises = set(re.findall(r'"exercise:(\d\d\.\d)"', TWINS[path.stem]))
    assert set(re.findall(rf"\b{path.stem}\.\d\b", lab)) <= exercises


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.stem)
def test_what_a_run_sheet_expects_is_what_the_notebook_shows(path):
    everything = shown(path.stem)
    expected = [row for row in rows(path.read_text(), 2) if re.match(r"§\d|Break it", row[0])]
    quoted = [word for row in expected for word in re.findall(r"`([^`]+)`", row[1])]
    assert len(quoted) >= 3
    assert [word for word in quoted if " ".join(word.split()) not in everything] == []


def test_the_glossary_is_sorted_and_each_term_is_explained_where_it_says():
    terms = rows(GLOSSARY, 3)
    names = [term.lower() for term, _, _ in terms]
    assert len(terms) > 50 and names == sorted(names) and len(set(names)) == len(names)
    for term, meaning, where in terms:
        assert 20 < len(meaning) < 220, term
        for link in re.findall(r"\(([^)]+)\)", where):
            assert (ROOT / link).is_file(), link
            text = " ".join(TWINS[Path(link).stem[:2]].replace("\n#", "\n").split()).lower()
            known = {"final flag": "triton_final_response", "recall": "recall at k", "itl": "inter-token"}
            assert known.get(term.lower(), term.lower()) in text, f"{term} is not in {link}"


def test_the_cheat_sheet_s_settings_are_those_of_the_code():
    settings = {setting.name: setting for setting in fields(SamplingParams)}
    for name, default, says, zero, note in rows(CHEATS, 5):
        setting = settings[name.strip("`")]
        assert default == str(setting.default) and says == setting.metadata["says"], name
        refused = zero == "refused"
        assert refused == (setting.metadata["low"] > 0), name
        for other in re.findall(r"`(\w+)` on `tensorrt_llm`|`(\w+)` up to 0.19", note):
            assert set(filter(None, other)) <= set(setting.metadata["tensors"]), note


def test_the_cheat_sheet_s_errors_are_said_by_the_server_or_the_library():
    errors = rows(CHEATS.partition("## Ten errors")[2].partition("## Commands")[0], 3)
    assert len(errors) == 10
    everything = " ".join(shown(number) for number in ("03", "04", "05"))
    for error, _, _ in errors:
        for words in re.findall(r"`([^`]+)`", error):
            assert words in everything or words == "/generate", words


def test_the_cheat_sheet_s_flags_exist():
    table = {
        row[0].split("`")[1]: set(re.findall(r"`(-[\w-]+)", row[1])) for row in rows(CHEATS, 2) if "`course" in row[0]
    }
    build = tomllib.loads((ROOT / "lib" / "reference_backend" / "data" / "trtllm_build.toml").read_text())
    assert table.pop("course convert") <= set(engine_cli.HONOURED)
    known = {f"--{name}" for name in build["limits"] + build["gather"]} | {"--checkpoint_dir", "--output_dir"}
    assert table.pop("course build") == known
    for command, options in table.items():
        current = get_command(cli.app)
        for word in [w for w in command.split()[1:] if w.islower()]:
            current = current.commands[word]
        assert options <= {name for parameter in current.params for name in parameter.opts}, command


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/cheatsheet.md", "docs/instructors/README.md"])
def test_the_commands_of_a_guide_exist(name):
    text = (ROOT / name).read_text()
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    for command in re.findall(r"`((?:make|course) [^`]+)`", text):
        words = shlex.split(command)
        if words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= set(targets), command
        else:
            assert words[1] in get_command(cli.app).commands, command
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert ((ROOT / name).parent / target).exists(), target
