"""No update loses what a person wrote: touched, added or renamed files, two updates, and one killed at every step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servinglab import keep

OLD = {"notebooks/1.ipynb": "one", "notebooks/2.ipynb": "two", "notebooks/text/1.py": "one", "lib/gone.py": "gone"}
OLD |= {"lib/a.py": "a", "notebooks/dropped.ipynb": "dropped", "was_file": "file"}
NEW = {"notebooks/1.ipynb": "one, second edition", "notebooks/2.ipynb": "two, second edition", "lib/a.py": "a2"}
NEW |= {"notebooks/text/1.py": "one, second edition", "notebooks/mine.ipynb": "ours now", "was_file/now/folder": "x"}
NEW |= {"extra/x": "x"}
THIRD = {**NEW, "notebooks/1.ipynb": "one, third edition", "lib/a.py": "a3"}
# Edited (a notebook, its twin, code), written where the next version brings a file, in one that it no longer has.
ANSWERS = {"notebooks/1.ipynb": "ANSWER 1", "notebooks/text/1.py": "ANSWER 2", "lib/a.py": "ANSWER 3"}
ANSWERS |= {"notebooks/mine.ipynb": "ANSWER 4", "notebooks/dropped.ipynb": "ANSWER 5", "extra": "ANSWER 6"}
ANSWERS |= {"notebooks/scribbles.txt": "ANSWER 7"}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def bring(dest: Path, files: dict[str, str], stays: bool = False, die_at: int | None = None) -> bool:
    """One update, in a process that is killed before its nth change of the disk. Whether it came to its end."""
    shutil.rmtree(new := dest.with_name("new"), ignore_errors=True)
    write(new, files)
    if die_at is None:
        keep.update(new, dest, stays=stays)
        return True
    if (child := os.fork()) == 0:
        steps = 0

        def count(event: str, arguments: tuple) -> None:
            nonlocal steps
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"):
                steps += 1
                if steps == die_at:
                    os._exit(9)

        try:
            sys.addaudithook(count)
            keep.update(new, dest, stays=stays)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


def texts(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != keep.NOTES)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_untouched_files_become_the_new_version_and_nothing_else_is_left(tmp_path):
    dest = write(tmp_path / "dest", {})
    for files in (OLD, NEW, NEW, THIRD, OLD):
        assert bring(dest, files)
        assert texts(dest) == files
        assert not list(dest.glob("**/gone.py")) or files is OLD
    assert not (dest / "was_file").is_dir() and not (dest / "extra").exists()  # folders that became empty


@pytest.mark.parametrize("stays", [False, True])
def test_every_answer_is_found_after_updates_that_were_killed_at_any_step(tmp_path, stays):
    """Killed before step n of the second update, then brought to its end, or followed by the third edition at once."""
    died = n = 0
    while died == n:
        n += 1
        for after in [((NEW, THIRD), (THIRD,))[(n + stays) % 2]]:
            shutil.rmtree(tmp_path / "dest", ignore_errors=True)
            dest = write(tmp_path / "dest", {})
            bring(dest, OLD)
            shutil.rmtree(dest / "extra", ignore_errors=True)
            write(dest, ANSWERS)
            ended = bring(dest, NEW, stays, die_at=n)
            assert set(ANSWERS.values()) <= set(texts(dest).values()), n
            write(dest, {"lib/later.txt": "ANSWER 8"})
            for files in after:
                assert bring(dest, files, stays)
            found = texts(dest)
            assert {*ANSWERS.values(), "ANSWER 8"} <= set(found.values()), n
            assert set(after[-1].values()) <= set(found.values()), n  # and the course is whole
            assert {t for name, t in found.items() if name.startswith(keep.YOURS)} <= set(ANSWERS.values()), n
            main = {**THIRD, **({name: text for name, text in ANSWERS.items() if name in THIRD} if stays else {})}
            assert {name: found[name] for name in main} == main
        died += not ended
    assert n > 15  # steps of this update; the last run met none


def test_a_version_is_brought_beside_yours_once_and_a_newer_one_takes_its_place(tmp_path):
    dest, name = write(tmp_path / "dest", {}), "notebooks/1.ipynb"
    bring(dest, OLD)
    write(dest, {name: "ANSWER"})
    bring(dest, OLD, stays=True)
    assert len(texts(dest)) == len(OLD)  # the version that you began with is not new to you
    bring(dest, NEW, stays=True)
    assert texts(dest)["notebooks/1.new.ipynb"] == NEW[name]
    bring(dest, THIRD, stays=True)
    assert texts(dest)["notebooks/1.new.ipynb"] == THIRD[name]
    write(dest, {"notebooks/1.new.ipynb": "ANSWER 2"})
    bring(dest, {**THIRD, name: "fourth"}, stays=True)
    found = texts(dest)
    assert [found[f"notebooks/1{more}.ipynb"] for more in ("", ".new", ".new2")] == ["ANSWER", "ANSWER 2", "fourth"]


def test_a_file_that_is_edited_again_before_each_update(tmp_path):
    dest, answers = write(tmp_path / "dest", {}), set()
    bring(dest, OLD)
    for n, files in enumerate((NEW, THIRD, OLD)):
        write(dest, {"notebooks/1.ipynb": f"ANSWER {n}"})
        answers.add(f"ANSWER {n}")
        bring(dest, files)
        assert answers <= set(texts(dest).values())


def test_without_its_notes_everything_is_yours(tmp_path):
    """Notes that are damaged, or an install from before there were notes."""
    dest = write(tmp_path / "dest", {})
    bring(dest, OLD)
    for damage in ("", "{"):
        (dest / keep.NOTES).write_text(damage)
        before = texts(dest)
        bring(dest, NEW)
        assert set(before.values()) <= set(texts(dest).values())


def test_bytecode_is_nobodys_and_goes_out_of_date_with_its_source(tmp_path):
    """Files of an archive have one age, whatever their version, and Python compares the size and the age."""
    for n in (1, 2):
        new = write(tmp_path / "new", {"a.py": f"print({n})", "__pycache__/b.pyc": f"{n}"})
        os.utime(new / "a.py", (10**9, 10**9))
        assert keep.update(new, write(tmp_path / "dest", {})) == []
        command = [sys.executable, "-c", "import a"]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        assert subprocess.run(command, cwd=tmp_path / "dest", env=env, capture_output=True).stdout == b"%d\n" % n


def test_links_are_known_by_where_they_lead(tmp_path):
    dest, new = write(tmp_path / "dest", {}), tmp_path / "new"
    write(tmp_path / "real", {"file": "real"})
    for target in ("../real", "../other"):
        write(new, {"x": "x"})
        (new / "data").symlink_to(target)
        keep.update(new, dest)
        assert os.readlink(dest / "data") == target
    (dest / "data").unlink()
    (dest / "data").symlink_to("../real")  # known, so ours
    write(dest, {"x": "ANSWER"})
    (dest / "data").unlink()
    (dest / "data").symlink_to("/mine")
    write(new, {"x": "x2"})
    (new / "data").symlink_to("../third")
    assert keep.update(new, dest) == [("data", "yours/1/data"), ("x", "yours/1/x")]
    assert os.readlink(dest / "yours/1/data") == "/mine" and (tmp_path / "real" / "file").read_text() == "real"


def test_a_file_is_written_whole_by_a_relative_name_too_and_yours_moves_aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "page").write_text("mine")
    for content in (b"first", b"second", b"second"):
        keep.Keeper(Path("out")).write(Path("out/page"), content)
    files = {p.relative_to(tmp_path).as_posix(): p.read_text() for p in tmp_path.rglob("[!.]*") if p.is_file()}
    assert files == {"out/page": "second", "out/yours/1/page": "mine"}
