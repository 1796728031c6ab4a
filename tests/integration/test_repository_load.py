"""What build() writes, Triton loads; what lint() calls an error, Triton refuses or answers wrongly."""

import itertools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig

from servinglab.assets import cache_dir
from servinglab.repository import (
    DeploymentSpec,
    build,
    build_default,
    contract,
    fill,
    lint,
    write_templates,
)
from servinglab.server import ServerError, TritonServer
from servinglab.server import install as triton_install
from triton_client import ClientError, TritonClient

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("model", contract.MODELS)
def test_triton_keeps_every_declaration(server, repository, model):
    """The configuration that Triton reports is the file's: nothing was dropped or completed."""
    with InferenceServerClient(server.grpc_url) as client:
        reported = client.get_model_config(model).config
    written = text_format.Parse((repository / model / "config.pbtxt").read_text(), ModelConfig())
    # Triton itself makes an ensemble decoupled when one of its steps is.
    assert reported.model_transaction_policy.decoupled == (model in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble"))
    for field in ("name", "backend", "platform", "max_batch_size", "ensemble_scheduling"):
        assert getattr(reported, field) == getattr(written, field), field
    assert list(reported.input) == list(written.input)
    assert list(reported.output) == list(written.output)
    assert {k: v.string_value for k, v in reported.parameters.items()} == {
        k: v.string_value for k, v in written.parameters.items()
    }


def test_the_default_repository_is_clean(repository):
    assert lint(repository) == []


# --- several deployments, both name generations, templates -------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory, smollm2_tokenizer_dir, smollm2_engine_int4):
    """One repository, two complete deployments: the second with a prefix and the names of TensorRT-LLM 0.19."""
    root = tmp_path_factory.mktemp("two")
    build_default(root, precision="int4")
    repository = build(
        DeploymentSpec(
            name="second", prefix="gemma-gly-", generation="old", max_batch_size=2,
            tokenizer_dir=smollm2_tokenizer_dir, engine_dir=smollm2_engine_int4,
        ),
        root,
    )  # fmt: skip
    assert lint(repository) == []
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        yield server, client


def answer(client, model):
    return client.generate("1, 2, 3, 4, 5,", model=model, max_tokens=6)["text_output"]


def test_two_deployments_answer_alike(two):
    server, client = two
    assert len(server.models()) == 10
    texts = {name: answer(client, name) for prefix in ("", "gemma-gly-") for name in (
        f"{prefix}tensorrt_llm_bls", f"{prefix}ensemble")}  # fmt: skip
    assert len(set(texts.values())) == 1 and "6, 7" in texts["ensemble"]


def test_one_deployment_goes_and_the_other_stays(two):
    server, client = two
    names = [f"gemma-gly-{model}" for model in contract.MODELS]
    try:
        with InferenceServerClient(server.grpc_url) as raw:
            for name in reversed(names):
                raw.unload_model(name, headers=server.admin_headers)
        deadline = time.monotonic() + 30  # it answers before the model is gone
        while sorted(server.models()) != sorted(contract.MODELS):
            assert time.monotonic() < deadline
        assert "6, 7" in answer(client, "tensorrt_llm_bls")
    finally:
        for name in names:
            server.load(name)
    assert "6, 7" in answer(client, "gemma-gly-tensorrt_llm_bls")


def test_each_generation_knows_its_own_names_only(two):
    """Over gRPC: over HTTP the wrong name would be ignored without a word."""
    _, client = two

    def sample(model, **inputs):
        with client.stream("Once", model=model, max_tokens=6, top_k=50, temperature=1.0, **inputs) as stream:
            return "".join(chunk.text for chunk in stream)

    for prefix, ours, theirs in (("", "seed", "random_seed"), ("gemma-gly-", "random_seed", "seed")):
        for model in (f"{prefix}ensemble", f"{prefix}tensorrt_llm_bls"):
            assert sample(model, **{ours: 7}) == sample(model, **{ours: 7})
            with pytest.raises(ClientError, match=theirs):
                sample(model, **{theirs: 7})


def test_filled_templates_serve(tmp_path, smollm2_tokenizer_dir, smollm2_engine_int4):
    """The learner's way: templates, filled one by one, optional placeholders left as they are."""
    repository = write_templates(tmp_path / "model_repository")
    spec = DeploymentSpec(tokenizer_dir=smollm2_tokenizer_dir, engine_dir=smollm2_engine_int4)
    for model in contract.MODELS:
        file = repository / model / "config.pbtxt"
        file.write_text(fill(file.read_text(), spec.values(model)))
    assert {f.severity for f in lint(repository)} == {"warning"}
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        assert "6, 7" in answer(client, "ensemble")
        assert "6, 7" in answer(client, "tensorrt_llm_bls")


# --- lint against Triton -----------------------------------------------------------------------------------------

MODEL_PY = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    """A running Triton over a small copy of the five models (empty model.py, so that loading takes no time)."""
    folder = tmp_path_factory.mktemp("loader")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "engine").mkdir()
    (folder / "engine" / "config.json").write_text("{}")
    (folder / "engine" / "rank0.engine").write_text("plan")
    spec = DeploymentSpec(tokenizer_dir=folder / "tokenizer", engine_dir=folder / "engine")
    repository = build(spec, folder / "root")
    config_change("tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "python"')(repository)
    for model in (*contract.PYTHON_MODELS, "tensorrt_llm"):
        (repository / model / "1" / "model.py").write_text(MODEL_PY)
    with TritonServer(repository, models=["postprocessing"]) as server:
        yield server, repository


_clock = itertools.count(2_000_000_000)


def touch(folder):
    """Triton reads a model again only when one of its files is newer than before."""
    now = next(_clock)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (now, now))


def config_change(model, old, new):
    def change(repository):
        file = repository / model / "config.pbtxt"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


REFUSED = [
    ("L010", "postprocessing", config_change("postprocessing", 'name: "postprocessing"', 'name: "post"')),
    ("L011", "postprocessing", lambda r: (r / "postprocessing" / "1").rename(r / "postprocessing" / "v1")),
    ("L011", "postprocessing", lambda r: (r / "postprocessing" / "1").rename(r / "postprocessing" / "01")),
    # Not L012: without its model.py Triton 24.10 never answers the load (the stub ends, and nobody notices).
    ("L013", "postprocessing", lambda r: (r / "postprocessing" / "config.pbtxt").write_bytes(b'name: "\xff"')),
    ("L015", "postprocessing", config_change("postprocessing", "max_batch_size: 8", "max_batchsize: 8")),
    ("L015", "postprocessing", config_change("postprocessing", "TYPE_INT32", "INT32")),
    (
        "L016",
        "postprocessing",
        config_change("postprocessing", "batch_size: 8", "batch_size: ${triton_max_batch_size}"),
    ),
    ("L019", "postprocessing", config_change("postprocessing", 'backend: "python"', 'backend: "onnxruntime"')),
    ("L043", "ensemble", config_change("ensemble", 'model_name: "tensorrt_llm"', 'model_name: "tensorrt-llm"')),
    ("L044", "ensemble", config_change("ensemble", 'key: "runtime_top_k"', 'key: "top_k"')),
    ("L044", "ensemble", config_change("ensemble", 'value: "top_k"', 'value: "top_p"')),
    ("L044", "ensemble", config_change("ensemble", 'input_map { key: "QUERY" value: "text_input" }', "")),
    ("L044", "ensemble", config_change("ensemble", 'key: "OUTPUT" value: "text_output"', 'key: "OUTPUT" value: "t"')),
    ("L044", "ensemble", config_change("ensemble", "TYPE_UINT64", "TYPE_INT64")),
    (
        "L046",
        "ensemble",
        config_change(
            "ensemble", '"SEQUENCE_LENGTH" value: "_SEQUENCE_LENGTH', '"SEQUENCE_LENGTH" value: "_REQUEST_OUTPUT_LEN'
        ),
    ),
]


@pytest.mark.parametrize(("code", "model", "change"), REFUSED, ids=[f"{i}-{c}" for i, (c, *_) in enumerate(REFUSED)])
def test_what_lint_calls_an_error_triton_refuses(loader, tmp_path, code, model, change):
    server, repository = loader
    whole = tmp_path / "whole"
    shutil.copytree(repository / model, whole)
    server.load(model)
    try:
        change(repository)
        assert code in {f.code for f in lint(repository) if f.severity == "error"}
        touch(repository / model)
        with pytest.raises(ServerError):
            server.load(model)
    finally:
        shutil.rmtree(repository / model)
        shutil.copytree(whole, repository / model)
        touch(repository / model)
    assert lint(repository) == []
    server.load(model)


def test_a_model_in_two_repositories_is_in_none(tmp_path):
    """As notebook 03 says; TritonServer takes one repository, so the second comes by a flag of its own."""
    tiny = Path(__file__).parents[1] / "models"
    shutil.copytree(tiny, tmp_path / "mine")
    shutil.copytree(tiny / "echo", tmp_path / "theirs" / "echo")
    shutil.copytree(tiny / "echo", tmp_path / "theirs" / "third")
    config = tmp_path / "theirs" / "third" / "config.pbtxt"
    config.write_text(config.read_text().replace('"echo"', '"third"'))

    class Two(TritonServer):
        def _command(self, *args):
            command, environment = super()._command(*args)
            more = [f"--model-repository={tmp_path / 'theirs'}", *(f"--load-model={name}" for name in self.more)]
            return [*command, *more], environment

    Two.more = ["third"]
    with Two(tmp_path / "mine", models=["counter"]) as server:
        assert server.models() == ["counter", "third"]
        with pytest.raises(ServerError, match="'echo'.*not unique across all model repositories|failed to poll"):
            server.load("echo")
        with InferenceServerClient(server.grpc_url) as client:
            index = client.get_model_repository_index(headers=server.admin_headers).models
        assert {each.name: each.state for each in index} == {
            "counter": "READY", "third": "READY", "echo": "UNAVAILABLE",
        }  # fmt: skip
    with pytest.raises(ServerError, match="did not start"):
        Two(tmp_path / "mine", models=["echo"]).start()


@pytest.mark.parametrize("code", [None, "L002", "L004"])
def test_folders_that_keep_the_default_control_mode_from_starting(loader, tmp_path, code):
    """Only explicit model control, which TritonServer uses, starts with a foreign folder in the repository."""
    _, repository = loader
    copy = tmp_path / "model_repository"
    (copy / {None: "", "L002": "_assets", "L004": ".ipynb_checkpoints"}[code]).mkdir(parents=True)
    shutil.copytree(repository / "postprocessing", copy / "postprocessing")
    assert {f.code for f in lint(copy)} == ({code} if code else set())
    log = start_in_default_mode(copy, tmp_path / "log")
    assert ("Poll failed for model directory" in log) == (code is not None)
    assert ("Started HTTPService" in log) == (code is None)


def start_in_default_mode(repository: Path, log: Path) -> str:
    """Start Triton, as people do by hand, until it serves or ends; its log."""
    flags = [f"--model-repository={repository}", f"--backend-directory={triton_install.backend_directory(cache_dir())}",
             "--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1", f"--http-port={free_port()}",
             "--disable-auto-complete-config"]  # fmt: skip
    binary = triton_install.locate() / "bin" / "tritonserver"
    with log.open("wb") as sink:
        process = subprocess.Popen([binary, *flags], env=triton_install.environment(), stdout=sink, stderr=sink)
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None and b"HTTPService" not in log.read_bytes():
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(30)
    return log.read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
