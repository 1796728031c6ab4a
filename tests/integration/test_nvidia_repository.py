"""NVIDIA's own five model folders, unmodified and filled by their own fill_template.py, on the backend `tensorrtllm`.

Nothing of NVIDIA's is in here: NVIDIA_MODEL_REPOSITORY names a filled copy of all_models/inflight_batcher_llm
(decoupled, its engine_dir an engine of this course). Their BLS model needs torch. lib/reference_backend/README.md says
how to make one.
"""

import os
import re
import shutil
from pathlib import Path

import jupytext
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import DeploymentSpec, build, contract
from servinglab.server import TritonServer
from triton_client import TritonClient

FOLDER = os.environ.get("NVIDIA_MODEL_REPOSITORY")
PROMPT = "The capital of France is"
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not FOLDER, reason="NVIDIA_MODEL_REPOSITORY is not set")]


@pytest.fixture(scope="module")
def theirs():
    with TritonServer(FOLDER, timeout=300) as server, TritonClient(server.grpc_url, server.http_url) as client:
        assert sorted(server.models()) == sorted(contract.MODELS)
        yield client


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The course's own models over the same engine and tokenizer."""

    def parameter(model, key):
        return (
            text_format.Parse((Path(FOLDER) / model / "config.pbtxt").read_text(), pb.ModelConfig())
            .parameters[key]
            .string_value
        )

    spec = DeploymentSpec(
        tokenizer_dir=parameter("preprocessing", "tokenizer_dir"),
        engine_dir=parameter("tensorrt_llm", "gpt_model_path"),
    )
    repository = build(spec, tmp_path_factory.mktemp("ours"))
    with TritonServer(repository) as server, TritonClient(server.grpc_url, server.http_url) as client:
        yield client


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"top_k": 40, "temperature": 0.9, "seed": 7, "repetition_penalty": 1.2},
        {"stop_words": ["answer"], "bad_words": [" Paris"]},
        {"embedding_bias_words": [" Rome"], "embedding_bias_weights": [50.0]},
    ],
    ids=["greedy", "sampled", "words", "biased"],
)
def test_their_models_stream_what_ours_do(theirs, ours, model, inputs):
    texts = [
        [chunk.text for chunk in client.stream(PROMPT, model=model, max_tokens=12, **inputs)]
        for client in (theirs, ours)
    ]
    assert "".join(texts[0]) == "".join(texts[1]) and len(texts[0]) > 3


def patch():
    """`with_prefix` of notebook 03."""
    page = Path(__file__).parents[2] / "notebooks" / "text" / "03_model_repository.py"
    (cell,) = [cell.source for cell in jupytext.read(page).cells if "def with_prefix(" in cell.source]
    exec(cell.partition("\n\n\n")[0], names := {"re": re})
    return names["with_prefix"]


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory):
    """Their five folders under other names, with the file of their BLS model patched as notebook 03 does it."""
    copy, prefix = tmp_path_factory.mktemp("prefixed"), "gemma-gly-"
    for model in contract.MODELS:
        shutil.copytree(Path(FOLDER) / model, copy / f"{prefix}{model}")
        file = copy / f"{prefix}{model}" / "config.pbtxt"
        config = text_format.Parse(file.read_text(), pb.ModelConfig())
        config.name = prefix + model
        for step in config.ensemble_scheduling.step:
            step.model_name = prefix + step.model_name
        if model == "tensorrt_llm_bls":
            config.parameters["tensorrt_llm_model_name"].string_value = f"{prefix}tensorrt_llm"
        file.write_text(text_format.MessageToString(config))
    program = copy / f"{prefix}tensorrt_llm_bls" / "1" / "model.py"
    patched, places = patch()(program.read_text(), prefix)
    program.write_text(patched)
    assert places == 2
    with TritonServer(copy, timeout=300) as server, TritonClient(server.grpc_url, server.http_url) as client:
        yield client


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_their_patched_models_serve_under_a_prefix(theirs, prefixed, model):
    """Nothing of the names without the prefix is on that server."""
    texts = [
        "".join(chunk.text for chunk in client.stream(PROMPT, model=f"{prefix}{model}", max_tokens=12))
        for client, prefix in ((theirs, ""), (prefixed, "gemma-gly-"))
    ]
    assert texts[0] == texts[1] and len(texts[0]) > len(PROMPT)


def test_log_probs_through_their_bls_model(theirs, ours):
    def log_probs(client):
        chunks = client.stream(PROMPT, max_tokens=6, stream=False, return_log_probs=True)
        (found,) = [chunk.outputs["output_log_probs"] for chunk in chunks if chunk.outputs]
        return found.tolist()

    assert log_probs(theirs) == log_probs(ours)
