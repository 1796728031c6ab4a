"""NVIDIA's own five model folders, unmodified and filled by their own fill_template.py, on the backend `tensorrtllm`.

Nothing of NVIDIA's is in here: NVIDIA_MODEL_REPOSITORY names a filled copy of all_models/inflight_batcher_llm
(decoupled, its engine_dir an engine of this course). Their BLS model needs torch. lib/reference_backend/README.md says
how to make one.
"""

import os
from pathlib import Path

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


def test_log_probs_through_their_bls_model(theirs, ours):
    def log_probs(client):
        chunks = client.stream(PROMPT, max_tokens=6, stream=False, return_log_probs=True)
        (found,) = [chunk.outputs["output_log_probs"] for chunk in chunks if chunk.outputs]
        return found.tolist()

    assert log_probs(theirs) == log_probs(ours)
