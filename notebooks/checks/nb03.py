"""Exercises of notebook 03: three configs that Triton must load and answer with."""

from __future__ import annotations

import functools
import re
import tempfile
import time
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from servinglab import assets
from servinglab.checks import Verdict, exercise, repository_of, right, wrong
from servinglab.client import inputs, stream
from servinglab.repository import build_default, contract, write_templates
from servinglab.scratch import shorten
from servinglab.server import ServerError, TritonServer

BATCH = 8
MODEL, TEXT = "postprocessing", "A fox ran."
PREFIX, INNER = "judge-", ("preprocessing", "tensorrt_llm", "postprocessing")


@exercise("03.1", expects="the text of the config")
def pairs(answer: str) -> Verdict:
    """A Triton must load it, and answer at most four rows of two texts each, nothing longer or wider."""
    if not isinstance(answer, str):
        return wrong("expected the whole text of the config: a string")
    server, folder = _server()
    repository_of("shout", _SHOUT, answer, folder.parent)
    try:
        server.load("shout")
        with InferenceServerClient(server.grpc_url) as client:
            said = {shape: _shouted(client, shape) for shape in ((1, 2), (4, 2), (5, 2), (1, 3))}
            promised = [list(output.shape) for output in client.get_model_metadata("shout").outputs]
    except (ServerError, InferenceServerException) as error:
        return wrong(f"{_reason(error)}. Compare the text with section 1's config")
    for shape in ((1, 2), (4, 2)):
        if said[shape] != "FOX":
            return wrong(f"{said[shape]}. The rows are max_batch_size's, and dims describe one row: here two texts")
    if said[5, 2] == "FOX":
        size = text_format.Parse(answer, pb.ModelConfig()).max_batch_size
        return wrong(f"a request of five pairs got an answer: max_batch_size is {size}")
    if said[1, 3] == "FOX":
        return wrong("a row of three texts got an answer: -1 in dims lets any length through")
    if promised != [[-1, 2]]:
        return wrong(f"it answers, but tells every client that asks that loud has the shape {promised[0]}")
    return right("four pairs pass; five, or a row of three texts, Triton refuses before your model sees them")


_SHOUT = """\
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        louds = [pb_utils.Tensor("loud", np.vectorize(bytes.upper, otypes=[object])(text)) for text in texts]
        return [pb_utils.InferenceResponse([loud]) for loud in louds]
"""


def _shouted(client: InferenceServerClient, shape: tuple[int, int]) -> str:
    """The last text of the answer, or why there is none."""
    tensor = InferInput("text", shape, "BYTES").set_data_from_numpy(np.full(shape, b"fox", object))
    try:
        return client.infer("shout", [tensor], client_timeout=30).as_numpy("loud").flat[-1].decode()
    except InferenceServerException as error:
        return _reason(error)


def _reason(error: ServerError | InferenceServerException) -> str:
    said = error.message() if isinstance(error, InferenceServerException) else str(error)
    return re.split(r"\n| NOTE:", shorten(said).split("] ")[-1])[0].rstrip(". ")


@exercise("03.2", expects="the repaired text of the config")
def repaired(answer: str) -> Verdict:
    """A Triton must load it, with the course's model.py, and decode the ids of a text."""
    if not isinstance(answer, str):
        return wrong("expected the whole text of the config: a string")
    server, folder = _server()
    tokenizer = assets.tokenizer("smollm2")
    (folder / "config.pbtxt").write_text(answer.replace("/models/tokenizer", str(tokenizer)))
    try:
        server.load(MODEL)
        said = _decoded(server, Tokenizer.from_file(f"{tokenizer}/tokenizer.json").encode(TEXT).ids)
    except (ServerError, InferenceServerException) as error:
        reason = _reason(error)
        return wrong(f"{reason}. {_hint(reason, answer)}")
    if fault := _fault(text_format.Parse(answer, pb.ModelConfig())):
        return wrong(f"Triton loads it, but {fault}")
    if said != TEXT:
        return wrong(f"Triton loads it, but the ids of {TEXT!r} came back as {said!r}")
    return right(f"Triton loaded it and decoded {said!r}; one instance keeps streamed pieces in order")


@functools.cache
def _server() -> tuple[TritonServer, Path]:
    """A Triton without a model, and the folder of the one that it may load; they end with this process."""
    root = write_templates(tempfile.mkdtemp(prefix="repaired-"))
    return TritonServer(root, models=[]).start(), root / MODEL


def _decoded(server: TritonServer, ids: list[int]) -> str:
    tensors = inputs(TOKENS_BATCH=np.array([[ids]], np.int32), SEQUENCE_LENGTH=np.array([[len(ids)]], np.int32))
    with InferenceServerClient(server.grpc_url) as client:
        return client.infer(MODEL, tensors, client_timeout=30).as_numpy("OUTPUT").flat[0].decode()


def _hint(reason: str, answer: str) -> str:
    try:
        return _sentence(_fault(text_format.Parse(answer, pb.ModelConfig())) or "Compare each line with BROKEN")
    except text_format.ParseError:
        return _syntax_hint(reason, answer)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _syntax_hint(reason: str, answer: str) -> str:
    if "${" in answer:
        return "A structural placeholder needs a value, here the number of rows in a batch"
    if "TYPE_BYTES" in reason:
        return "BYTES is its name on the wire; look what a config calls text"
    return "Compare that line with BROKEN: a replacement may have taken too much"


def _fault(config: pb.ModelConfig) -> str | None:
    """The first thing that is still wrong with a config that parses."""
    model = MODEL
    if config.name != model:
        return f"the name is {config.name!r}, and Triton wants the name of the folder"
    if config.backend != "python":
        return "the backend was right as it was: this model is a Python file"
    if config.max_batch_size != BATCH:
        return f"max_batch_size is {config.max_batch_size}, and this deployment has {BATCH} rows a batch"
    for field in ("input", "output"):
        declared = contract.tensors(field, model)
        found = {tensor.name: tensor for tensor in getattr(config, field)}
        if found.keys() != {tensor.name for tensor in declared}:
            return f"each {field} must keep its name: {', '.join(tensor.name for tensor in declared)}"
        for tensor in declared:
            if tuple(found[tensor.name].dims) == (-1, *tensor.dims):
                return f"the dims of {tensor.name} begin with the batch dimension, which dims leave out"
            if tuple(found[tensor.name].dims) != tensor.dims:
                return f"{tensor.name} must have dims {list(tensor.dims)}: one size for each dimension of a row"
            if found[tensor.name].data_type != pb.DataType.Value(f"TYPE_{tensor.datatype}"):
                return f"{tensor.name} must be TYPE_{tensor.datatype}: another datatype breaks the contract"
    if config.parameters["tokenizer_dir"].string_value != "/models/tokenizer":
        return "the parameter tokenizer_dir was right as it was"
    count = sum(max(group.count, 1) for group in config.instance_group)
    return f"{count} instances answer at once, so pieces of a stream can overtake each other" if count > 1 else None


@exercise("03.3", expects="the text of a config")
def prefixed(answer: str) -> Verdict:
    """A Triton with two deployments must load it, and of its statistics only those of one may grow."""
    if not isinstance(answer, str):
        return wrong("expected the whole text of the config: a string")
    server, folder = _deployments()
    (folder / "config.pbtxt").write_text(answer)
    try:
        server.load(folder.name)
        with InferenceServerClient(server.grpc_url) as client:
            before = _runs(client)
            list(stream(client, folder.name, inputs(text_input=TEXT, max_tokens=1)))
            ran = _ran_since(client, before)
    except (ServerError, InferenceServerException) as error:
        return wrong(f"{_reason(error)}. The folders are {PREFIX}tensorrt_llm_bls and, of the models that it calls, "
                     f"{', '.join(PREFIX + name for name in INNER)}")  # fmt: skip
    if foreign := [name for name in INNER if name in ran]:
        return wrong(f"Triton loads it and it answers, but with {' and '.join(foreign)} of the first deployment")
    return right(f"Triton loaded it, and only models of its own answered: {', '.join(sorted(ran))}")


@functools.cache
def _deployments() -> tuple[TritonServer, Path]:
    """A Triton that runs the inner models of two deployments, and the folder of the second one's BLS model."""
    root = tempfile.mkdtemp(prefix="two-")
    for prefix in ("", PREFIX):
        repository = build_default(root, name=f"{prefix}smollm2", prefix=prefix)
    models = [prefix + name for prefix in ("", PREFIX) for name in INNER]
    return TritonServer(repository, models=models).start(), repository / f"{PREFIX}tensorrt_llm_bls"


def _runs(client: InferenceServerClient) -> dict[str, int]:
    return {model.name: model.execution_count for model in client.get_inference_statistics().model_stats}


def _ran_since(client: InferenceServerClient, before: dict[str, int]) -> set[str]:
    """Those of the inner models that ran; a model counts a run only after its response, so this waits for three."""
    for _ in range(50):
        ran = {name for name, count in _runs(client).items() if count > before.get(name, 0) and "bls" not in name}
        if len(ran) >= len(INNER):
            break
        time.sleep(0.02)
    return ran
