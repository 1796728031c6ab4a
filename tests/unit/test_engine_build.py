"""The build runner with programs that only pretend: what runs again, what is left behind, and what an error says."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from importlib import metadata

import pytest
from typer.testing import CliRunner

from course.cli import app
from engines import EngineError, program
from engines.build import build
from engines.recipes import recipe

# Each appends its name to the file `calls`, and does what the file named by its last word says: fail, hang, half, fork.
FAKE = """#!{python}
import os, pathlib, signal, subprocess, sys, time
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open("calls", "a") as log:
    log.write(name + "\\n")
flags = dict(zip(words, words[1:]))
out = pathlib.Path(flags.get("--local-dir") or flags.get("--output_dir") or flags.get("--output-model-dir"))
out.mkdir(parents=True, exist_ok=True)
print("hello from", name, "into", out, flush=True)
mode = pathlib.Path("mode-" + name)
mode = mode.read_text() if mode.exists() else ""
if mode == "fail":
    (out / "rubbish").touch()
    sys.exit("something broke in " + name)
if mode in ("hang", "deaf"):
    (out / "rubbish").touch()
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("pids").write_text(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
if mode == "fork":
    pathlib.Path("pids").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
(out / "config.json").write_text("{{}}")
ending = {{"trtllm-build": "engine", "convert_checkpoint.py": "safetensors"}}.get(name)
if ending and mode != "half":
    for rank in range(int(pathlib.Path("ranks").read_text())):
        (out / f"rank{{rank}}.{{ending}}").write_text("x" * 10)
print("last words", end="")
"""
DOCKER = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] == "kill":
    open("killed", "w").write(words[1])
    sys.exit(0)
assert words[0] == "run", words
os.chdir(words[words.index("-v") + 1].removesuffix(":/work"))
open("docker", "a").write(" ".join(words) + "\\n")
rest = words[words.index("-w") + 3:]
os.execvp(rest[0], rest)
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A work folder, with programs on PATH that pretend to be NVIDIA's."""
    bin_dir, work = tmp_path / "bin", tmp_path / "work"
    for name in ("hf", "trtllm-build"):
        write(bin_dir / name, FAKE)
    write(bin_dir / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA A100, 8.0'\n")
    write(bin_dir / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for folder in ("gpt", "models/core/gpt", "models/core/gemma", "models/core/llama"):
        write(work / "examples" / folder / "convert_checkpoint.py", FAKE)
    (work / "ranks").write_text("1")
    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
    return work


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if "#!/bin/sh" in text else text.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def gpt(**options):
    return recipe("gpt2-medium", examples="examples", **options)


def calls(work):
    """What ran since the last time this was asked."""
    path = work / "calls"
    found = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def leftovers(work):
    return [p.name for p in work.rglob("*") if p.name.endswith((".partial", ".old")) or p.name == "rubbish"]


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid, seconds=10):
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


ALL = ["hf", "convert_checkpoint.py", "trtllm-build"]


def test_everything_runs_once_and_then_only_what_changed(lab):
    said = []
    engine = build(gpt(), lab, on_line=said.append)
    assert calls(lab) == ALL and leftovers(lab) == []
    assert engine == lab / "engines/gpt2-medium/float16-tp1"
    assert {p.name for p in engine.iterdir()} == {"config.json", "rank0.engine", "built_on.json", ".servinglab.json"}
    assert "hello from trtllm-build into engines/gpt2-medium/float16-tp1.partial" in said
    assert said.count("last words") == 3, "also a line without an end"
    log = (lab / "logs/gpt2-medium-3-trtllm-build.log").read_text()
    assert log.endswith("last words") and "hello" in log
    assert sum(bool(re.search(r"\[\d/3\] \S+: done in \d", line)) for line in said) == 3

    said.clear()
    build(gpt(), lab, on_line=said.append)
    assert calls(lab) == [] and len(said) == 3 and all(line.endswith("is there already") for line in said)
    build(gpt(max_batch_size=4), lab)
    assert calls(lab) == ["trtllm-build"], "only the build's flags differ"
    build(gpt(max_batch_size=4, weight_only="int8"), lab)
    assert calls(lab) == ["convert_checkpoint.py", "trtllm-build"]
    build(gpt(max_batch_size=4), lab)
    assert calls(lab) == [], "the other split has a folder of its own"
    build(gpt(max_batch_size=4, trtllm="1.2.0"), lab)
    assert calls(lab) == ["convert_checkpoint.py", "trtllm-build"], "a download belongs to all versions"


def test_the_card_is_noted_beside_the_engine(lab):
    engine = build(recipe("gpt2-medium", trtllm="1.2.1", examples="examples"), lab)
    note = json.loads((engine / "built_on.json").read_text())
    assert (note["trtllm"], note["compute_capability"]) == ("1.2.1", "8.0")


def test_changed_or_damaged_files_are_noticed(lab):
    build(gpt(), lab)
    calls(lab)
    (lab / "checkpoints/gpt2-medium/float16-tp1/rank0.safetensors").write_text("other length")
    build(gpt(), lab)
    assert calls(lab) == ["convert_checkpoint.py", "trtllm-build"]
    (lab / "engines/gpt2-medium/float16-tp1/rank0.engine").unlink()
    build(gpt(), lab)
    assert calls(lab) == ["trtllm-build"]
    (lab / "checkpoints/gpt2-medium/hf/config.json").write_text("{ }")
    build(gpt(), lab)
    assert calls(lab) == ALL, "the download is damaged"


def test_weights_that_were_there_before_are_taken(lab):
    source = lab / "checkpoints/gpt2-medium/hf"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    said = []
    build(gpt(), lab, on_line=said.append)
    assert calls(lab) == ALL[1:] and "taken as it is" in said[0]
    (source / "config.json").write_text('{"n_layer": 3}')
    build(gpt(), lab)
    assert calls(lab) == ALL[1:], "their change is noticed all the same"


def test_an_engine_that_was_not_made_here_is_kept(lab):
    engine = lab / "engines/gpt2-medium/float16-tp1"
    write(engine / "rank0.engine", "an hour of somebody's GPU")
    write(engine.with_name("float16-tp1.old") / "rank0.engine", "another")
    said = []
    build(gpt(), lab, on_line=said.append)
    assert f"{engine} was not made here: it is now {engine.parent}/yours/1/{engine.name}" in said
    assert (engine.parent / "yours/1" / engine.name / "rank0.engine").read_text() == "an hour of somebody's GPU"
    assert (engine.with_name("float16-tp1.old") / "rank0.engine").exists()
    build(gpt(max_batch_size=4), lab)
    assert not (engine.parent / "yours/2").exists()


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_failure_is_told_leaves_nothing_and_is_taken_up_again(lab, step):
    (lab / f"mode-{ALL[step]}").write_text("fail")
    with pytest.raises(EngineError, match=rf"\[{step + 1}/3\] \S+ ended with code 1; its log .*\.log .* something"):
        build(gpt(), lab)
    assert calls(lab) == ALL[: step + 1]
    kept = ["hf.partial", "rubbish"] if step == 0 else []
    assert sorted(leftovers(lab)) == kept, "only a download is kept, to go on with"
    assert not (lab / "engines/gpt2-medium/float16-tp1").exists()
    (lab / f"mode-{ALL[step]}").unlink()
    build(gpt(), lab)
    assert calls(lab) == ALL[step:]


def test_a_failed_build_keeps_the_engine_that_was_there(lab):
    engine = build(gpt(), lab)
    (lab / "mode-trtllm-build").write_text("fail")
    with pytest.raises(EngineError):
        build(gpt(max_batch_size=2), lab)
    assert (engine / "rank0.engine").exists() and leftovers(lab) == []


def test_a_program_that_writes_too_little_is_caught(lab):
    (lab / "mode-trtllm-build").write_text("half")
    with pytest.raises(EngineError, match="ended well but wrote no rank0.engine"):
        build(gpt(), lab)
    with pytest.raises(EngineError, match="convert_checkpoint.py ended well but wrote no rank1.safetensors"):
        build(gpt(tp_size=2), lab)
    (lab / "ranks").write_text("2")
    (lab / "mode-trtllm-build").unlink()
    assert (build(gpt(tp_size=2), lab) / "rank1.engine").exists()


def start(lab, **options):
    code = (
        "import sys\nfrom engines.build import build\nfrom engines.recipes import recipe\n"
        f"build(recipe('gpt2-medium', examples='examples', **{options!r}), sys.argv[1])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(lab)], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (lab / "pids").exists() or not (lab / "pids").read_text():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    return process, [int(pid) for pid in (lab / "pids").read_text().split()]


@pytest.mark.parametrize("mode", ["hang", "deaf"])
def test_ctrl_c_ends_the_program_and_its_children_and_the_next_run_goes_on(lab, mode):
    (lab / "mode-convert_checkpoint.py").write_text(mode)
    process, pids = start(lab)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert all(map(gone, pids)) and leftovers(lab) == []
    assert calls(lab) == ALL[:2]
    (lab / "mode-convert_checkpoint.py").unlink()
    build(gpt(), lab)
    assert calls(lab) == ALL[1:]


def test_after_a_kill_the_program_that_is_left_holds_the_folder(lab):
    (lab / "mode-trtllm-build").write_text("hang")
    process, pids = start(lab)
    with pytest.raises(EngineError, match="Another build runs in"):
        build(gpt(), lab)
    process.kill()
    process.communicate()
    with pytest.raises(EngineError, match="Another build runs in"):
        build(gpt(), lab)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert all(map(gone, pids))
    (lab / "mode-trtllm-build").unlink()
    calls(lab)
    build(gpt(), lab)
    assert calls(lab) == ["trtllm-build"] and leftovers(lab) == []


def test_what_a_program_leaves_running_is_ended(lab):
    (lab / "mode-hf").write_text("fork")
    build(gpt(), lab)
    assert gone(int((lab / "pids").read_text()))


def test_the_download_program_has_two_names(lab):
    (lab.parent / "bin" / "hf").rename(lab.parent / "bin" / "huggingface-cli")
    build(gpt(), lab)
    assert calls(lab)[0] == "huggingface-cli"
    build(gpt(trtllm="0.16.0"), lab)
    assert calls(lab) == ["convert_checkpoint.py", "trtllm-build"], "the same download under its other name"


def test_in_the_container(lab):
    (lab.parent / "bin" / "trtllm-build").rename(lab.parent / "inside")
    with pytest.raises(EngineError, match="needs Docker, or else trtllm-build on PATH.*--dry-run"):
        build(gpt(), lab)
    write(lab.parent / "bin" / "docker", DOCKER)
    (lab.parent / "inside").rename(lab.parent / "bin" / "trtllm-build")
    (lab.parent / "bin" / "hf").rename(lab.parent / "bin" / "huggingface-cli")
    build(gpt(trtllm="0.16.0"), lab, container="24.12")
    assert calls(lab) == ["huggingface-cli", *ALL[1:]]
    lines = (lab / "docker").read_text().splitlines()
    docker = (
        f"run --name servinglab-build-{os.getpid()} --rm --init --gpus all --ipc=host --ulimit memlock=-1 "
        f"--ulimit stack=67108864 -e HF_TOKEN -v {lab}:/work -w /work "
        f"nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3 "
    )
    assert [line.removeprefix(docker).split()[0] for line in lines] == ["huggingface-cli", "python3", "trtllm-build"]


def test_a_container_of_another_version_is_refused(lab):
    with pytest.raises(EngineError, match=r"25\.05 holds TensorRT-LLM 0\.19\.0, and the recipe is for 1\.2\.1"):
        build(gpt(), lab, container="25.05")
    with pytest.raises(EngineError, match="neither a container tag"):
        build(gpt(), lab, container="mine")
    said = []
    build(gpt(), lab, container="registry.example/mine:1", dry_run=True, on_line=said.append)
    assert all("/work registry.example/mine:1 \\\n" in line for line in said) and len(said) == 3


def test_a_dry_run_needs_nothing_and_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []
    engine = build(recipe("llama-7b-tp4"), tmp_path / "w", dry_run=True, on_line=said.append)
    assert engine == tmp_path / "w/engines/llama-7b/float16-tp4" and not (tmp_path / "w").exists()
    docker = f"-v {tmp_path}/w:/work -w /work nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 \\\n    "
    made = recipe("llama-7b-tp4")
    assert [line.split(docker)[1].rstrip() for line in said] == [c.text() for c in made.commands]
    result = CliRunner().invoke(app, ["engine", "build", "llama-7b-tp4", "--dry-run", "--workdir", str(tmp_path / "w")])
    assert result.exit_code == 0 and result.output.count("docker run") == 3 and "gated" in result.output


def test_no_gpu(lab):
    (lab.parent / "bin" / "nvidia-smi").unlink()
    with pytest.raises(EngineError, match="No NVIDIA GPU.*--dry-run"):
        build(gpt(), lab)
    assert calls(lab) == []


def test_converter_and_wheel_must_be_of_one_version(lab, monkeypatch):
    """E54, the Gemma trap, before anything runs."""
    with pytest.raises(EngineError, match="no converter at .*--examples"):
        build(recipe("gpt2-medium", examples="elsewhere"), lab)
    made = recipe("gemma-2b", examples="examples", trtllm="1.2.1")
    (lab / "tensorrt_llm").mkdir()
    (lab / "tensorrt_llm" / "version.py").write_text('__version__ = "0.12.0"\n')
    with pytest.raises(EngineError, match=r"converter is of TensorRT-LLM 0\.12\.0 and the wheel is 1\.2\.1.*TypeError"):
        build(made, lab)
    (lab / "tensorrt_llm" / "version.py").write_text('__version__ = "1.2.1"\n')
    monkeypatch.setattr(metadata, "version", lambda name: {"tensorrt_llm": "1.2.0"}[name])
    with pytest.raises(EngineError, match=r"1\.2\.0 is installed and the recipe is for 1\.2\.1: --trtllm 1\.2\.0"):
        build(made, lab)
    with pytest.raises(EngineError, match=r"examples are of TensorRT-LLM 1\.2\.1 and the wheel is 1\.2\.0"):
        build(gpt(trtllm="1.2.0"), lab)
    assert calls(lab) == []


def test_the_container_is_killed_when_the_run_is_given_up(tmp_path, monkeypatch):
    write(tmp_path / "bin" / "docker", DOCKER)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    place = program.Place(tmp_path, "image")

    def give_up(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.run(["sh", "-c", "echo $$; exec sleep 600"], tmp_path / "log", give_up)
    assert (tmp_path / "killed").read_text() == place.container
    assert gone(int((tmp_path / "log").read_text()))
