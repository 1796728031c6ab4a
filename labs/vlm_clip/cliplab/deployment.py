"""The CLIP service as five models of a Triton repository (notebook 14).

    image ─ image_preprocessing ─ pixel_values ─ vision_encoder ─┐
                                                                 ├─ fusion ─ embedding, labels, scores
    text ─── text_encoder (tokenizer inside) ────────────────────┘

`clip` is the ensemble that joins them. Both of its inputs must be sent, because an ensemble has no "if": an empty
string stands for "none". Each folder holds all that its model needs: code, weights, tokenizer, labels.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from cliplab import encoders, prepare, wordnet
from servinglab.errors import CourseError
from servinglab.keep import Keeper
from servinglab.server.install import require_plain_path

MODELS = ("image_preprocessing", "vision_encoder", "text_encoder", "fusion", "clip")
FLAVOURS = ("onnx", "tensorrt")
SOURCES = Path(__file__).parent / "triton_models"
DIMENSIONS = 384
PIXELS = (3, prepare.SIZE, prepare.SIZE)

# name -> datatype and dims, without the batch dimension; "top" is the number of labels in an answer.
INPUTS = {
    "image_preprocessing": {"image": ("STRING", (1,))},
    "vision_encoder": {"pixel_values": ("FP32", PIXELS)},
    "text_encoder": {"text": ("STRING", (1,))},
    "fusion": {
        "image_embedding": ("FP32", (DIMENSIONS,)), "image_state": ("STRING", (1,)),
        "text_embedding": ("FP32", (DIMENSIONS,)), "text_state": ("STRING", (1,)),
    },
    "clip": {"image": ("STRING", (1,)), "text": ("STRING", (1,))},
}  # fmt: skip
OUTPUTS = {
    "image_preprocessing": {"pixel_values": ("FP32", PIXELS), "image_state": ("STRING", (1,))},
    "vision_encoder": {"image_embedding": ("FP32", (DIMENSIONS,))},
    "text_encoder": {
        "text_embedding": ("FP32", (DIMENSIONS,)), "text_state": ("STRING", (1,)), "tokens_left_out": ("INT32", (1,)),
    },
    "fusion": {"embedding": ("FP32", (DIMENSIONS,)), "labels": ("STRING", ("top",)), "scores": ("FP32", ("top",))},
    "clip": {
        "embedding": ("FP32", (DIMENSIONS,)), "labels": ("STRING", ("top",)), "scores": ("FP32", ("top",)),
        "tokens_left_out": ("INT32", (1,)),
    },
}  # fmt: skip
BATCHED = ("vision_encoder", "text_encoder")  # the models that compute: requests that wait go through them together


class DeploymentError(CourseError):
    """The repository cannot be written."""


def write_repository(
    folder: str | Path, towers: encoders.Encoders | str, labels: Sequence[str], *, top: int = 5,
    max_batch_size: int = 16, flavour: str = "onnx", plan: str | Path | None = None,
) -> Path:  # fmt: skip
    """Write the five models into `folder`, beside others that are there, and return its absolute path. Safe to repeat:
    what you edited in a model moves to its folder `yours`.

    Args:
        towers: the encoders' files, or a precision of `encoders.prepare`.
        labels: what a picture may be called; each answer names the `top` nearest of them.
        max_batch_size: rows that one request, or one batch of waiting requests, may have.
        flavour: "onnx" runs both encoders on ONNX Runtime in Python models; "tensorrt" gives `vision_encoder` to
            Triton's TensorRT backend on a GPU, with the engine `plan`. The text encoder stays: its tokenizer is Python.

    Raises DeploymentError for labels, sizes, files or a flavour that cannot be; ServerError for a path on which Triton
    starts no Python model.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise DeploymentError("labels must be a list of texts.")
    labels = [label.strip() for label in labels]
    _check(labels, top, max_batch_size, flavour, plan)
    towers = encoders.prepare(towers) if isinstance(towers, str) else towers
    names = json.dumps(labels, ensure_ascii=False, indent=0) + "\n"
    files: dict[str, dict[str, str | bytes | Path]] = {
        "image_preprocessing": {"prepare.py": Path(prepare.__file__)},
        "vision_encoder": {"model.onnx": towers.vision} if flavour == "onnx" else {"model.plan": Path(plan or "")},
        "text_encoder": {"model.onnx": towers.text, "tokenizer.json": towers.tokenizer,
                         "wordnet.py": Path(wordnet.__file__), wordnet.FILE: towers.words},
        "fusion": {"labels.json": names, "labels.npy": _label_vectors(towers, labels)},
        "clip": {},
    }
    repository = Path(folder).expanduser().absolute()
    require_plain_path(repository, "the model repository", "use another folder")
    try:
        for model in MODELS:
            version = repository / model / "1"
            version.mkdir(parents=True, exist_ok=True)
            config = model_config(model, top=min(top, len(labels)), max_batch_size=max_batch_size, flavour=flavour)
            if model == "fusion":
                config.parameters["encoder"].string_value = _weights(files)
            if config.backend == "python":
                files[model]["model.py"] = SOURCES / f"{model}.py"
            keeper = Keeper(repository / model)  # what you edited moves to the model's folder `yours`
            for left in {"model.onnx", "model.plan", "model.py"} - files[model].keys():
                keeper.make_room(f"1/{left}")
                (version / left).unlink(missing_ok=True)  # of another flavour
            for name, content in files[model].items():
                put(keeper, version / name, content)
            text = text_format.MessageToString(config, use_short_repeated_primitives=True)
            put(keeper, repository / model / "config.pbtxt", text)
    except OSError as error:
        raise DeploymentError(f"{error.filename or repository} cannot be read or written: {error.strerror}.") from None
    return repository


def model_config(model: str, *, top: int = 5, max_batch_size: int = 16, flavour: str = "onnx") -> pb.ModelConfig:
    """The configuration of one of the five models; arguments as for `write_repository`."""
    config = pb.ModelConfig(name=model, max_batch_size=max_batch_size)
    for entries, tensors in ((config.input, INPUTS[model]), (config.output, OUTPUTS[model])):
        for name, (datatype, dims) in tensors.items():
            numbers = [top if size == "top" else size for size in dims]
            entries.add(name=name, data_type=pb.DataType.Value(f"TYPE_{datatype}"), dims=numbers)
    if model == "clip":
        config.platform = "ensemble"
        for step in MODELS[:-1]:  # tensors that are the same have the same name in all models
            config.ensemble_scheduling.step.add(
                model_name=step, model_version=-1, input_map={name: name for name in INPUTS[step]},
                output_map={name: name for name in OUTPUTS[step]},
            )  # fmt: skip
        return config
    on_gpu = model == "vision_encoder" and flavour == "tensorrt"
    config.backend = "tensorrt" if on_gpu else "python"
    kind = pb.ModelInstanceGroup.KIND_GPU if on_gpu else pb.ModelInstanceGroup.KIND_CPU
    config.instance_group.add(count=1, kind=kind)
    if model in BATCHED:
        config.dynamic_batching.SetInParent()
        if not on_gpu:
            config.parameters["threads"].string_value = "1"  # cores that one run may use
    return config


def _check(labels: list[str], top: int, max_batch_size: int, flavour: str, plan: str | Path | None) -> None:
    if not labels or not all(labels):
        raise DeploymentError("Give at least one label, and none that is empty: an answer names the nearest ones.")
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise DeploymentError(f"The label {sorted(twice)[0]!r} is there twice; give each once.")
    for name, value in (("top", top), ("max_batch_size", max_batch_size)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise DeploymentError(f"{name} must be a whole number from 1 to {2**31 - 1:,}, not {value!r}.")
    if flavour not in FLAVOURS:
        raise DeploymentError(f"flavour must be one of {', '.join(FLAVOURS)}, not {flavour!r}.")
    if (flavour == "tensorrt") != (plan is not None):
        raise DeploymentError("flavour 'tensorrt' needs plan, the engine's file; flavour 'onnx' has none.")


def _weights(files: Mapping[str, Mapping[str, str | bytes | Path]]) -> str:
    """A name of both encoders' weights, so that an index of other weights is noticed (`client.ClipClient.encoder`)."""
    digest = hashlib.sha256()
    for model in BATCHED:
        for name, content in files[model].items():
            if name.startswith("model.") and isinstance(content, Path) and content.suffix != ".py":
                digest.update(content.read_bytes())
    return digest.hexdigest()[:16]


def _label_vectors(towers: encoders.Encoders, labels: list[str]) -> bytes:
    """The labels as a .npy file: float32 [labels, 384]."""
    out = io.BytesIO()
    np.save(out, encoders.OnnxEncoders(towers).encode_texts(labels), allow_pickle=False)
    return out.getvalue()


def put(keeper: Keeper, target: Path, content: str | bytes | Path) -> None:
    """Write text or bytes, or link the file (a copy on another disk); never a half-written file for a server."""
    if not isinstance(content, Path) or content.suffix in (".py", ".json"):
        data = content.read_bytes() if isinstance(content, Path) else content
        keeper.write(target, data.encode() if isinstance(data, str) else data)
    elif not (target.exists() and target.samefile(content)):
        part = target.with_name(f".{target.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            os.link(content.resolve(), part)
        except OSError:
            shutil.copyfile(content, part)
        keeper.put(part, target)
