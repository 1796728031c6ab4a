"""A small VLM as six models of a Triton repository, on NVIDIA's multimodal contract.

    text, pictures ─ preprocessing ─┬─ ids, of which those behind the vocabulary stand for rows ─┐
                                    └─ pixel_values ─ vision_encoder ─ prompt_embedding_table ───┴─ tensorrt_llm ─ …

`llava_ensemble` joins them as a graph and needs a picture; `tensorrt_llm_bls` joins them by calls, with pictures or
without, and streams whole characters. Names of tensors and parameters: triton_backend/all_models/multimodal of
TensorRT-LLM 1.1, where the encoder is called `multimodal_encoders`.
"""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from cliplab import prepare
from cliplab.deployment import FLAVOURS, SOURCES, DeploymentError, put
from cliplab.encoders import OPSET
from servinglab.keep import Keeper
from servinglab.repository import DeploymentSpec, config_text
from servinglab.repository.templates import parse
from servinglab.server.install import require_plain_path

ENCODER, ENSEMBLE = "vision_encoder", "llava_ensemble"
MODELS = ("preprocessing", ENCODER, "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", ENSEMBLE)
PIXELS = (3, prepare.SIZE, prepare.SIZE)
TABLE, ROWS = "OUT_PROMPT_EMBEDDING_TABLE", "OUT_PROMPT_VOCAB_SIZE"


def export_vision(tower: Any, path: str | Path) -> Path:
    """Write a torch module, pixel_values float32 [n, 3, 224, 224] to rows float32 [n, tokens, hidden], as an ONNX file
    with the tensors of the contract: pixel_values float16 [texts, pictures, 3, 224, 224] to OUT_PROMPT_EMBEDDING_TABLE
    float16 [texts, pictures * tokens, hidden]. A TensorRT plan of that file serves without any Python."""
    import torch

    class Contract(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = tower

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            rows = self.tower(pixel_values.float().reshape(-1, *PIXELS))
            return rows.reshape(pixel_values.shape[0], -1, rows.shape[-1]).half()

    axes = {"pixel_values": {0: "texts", 1: "pictures"}, TABLE: {0: "texts", 1: "rows"}}
    sample = torch.zeros((2, 2, *PIXELS), dtype=torch.float16)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the exporter warns of itself, and of shapes that it takes as constants
        torch.onnx.export(
            Contract().eval(), (sample,), str(path), dynamo=False, opset_version=OPSET, input_names=["pixel_values"],
            output_names=[TABLE], dynamic_axes=axes,
        )  # fmt: skip
    return Path(path)


def write_vlm_repository(
    folder: str | Path, vision: str | Path, *, engine_dir: str | Path, tokenizer_dir: str | Path, tokens: int,
    most_pictures: int = 4, flavour: str = "onnx", **options: Any,
) -> Path:  # fmt: skip
    """Write the six models into `folder` and return its absolute path. Safe to repeat: what you edited in a model moves
    to its folder `yours`.

    Args:
        vision: the file of `export_vision`, or with flavour "tensorrt" a plan of it (for a GPU; the ensemble alone can
            use it, a BLS model asks an encoder for more outputs than the plan has).
        tokens: rows that the encoder makes of one picture.
        most_pictures: of one request.
        options: fields of `servinglab.repository.DeploymentSpec`.

    Raises DeploymentError, RepositoryError or ServerError, one sentence each.
    """
    vision, repository = Path(vision), Path(folder).expanduser().absolute()
    if flavour not in FLAVOURS or not vision.is_file():
        raise DeploymentError(f"flavour {flavour!r} must be one of {', '.join(FLAVOURS)}, and {vision} a file.")
    require_plain_path(repository, "the model repository", "use another folder")
    given = {"generation": "1.1", "exclude_input_in_output": True, **options}
    spec = DeploymentSpec(engine_dir=Path(engine_dir), tokenizer_dir=Path(tokenizer_dir), name="vlm", **given)
    # What NVIDIA's build of a vision encoder leaves beside its engine, and how many rows a picture has.
    about = {"builder_config": {"model_type": "llava", "precision": "float16"}, "visual_tokens": tokens}
    file = "model.onnx" if flavour == "onnx" else "model.plan"
    files: dict[str, dict[str, Any]] = {model: {} for model in MODELS}
    files["preprocessing"] = {"model.py": SOURCES / "llava_preprocessing.py", "prepare.py": Path(prepare.__file__)}
    files[ENCODER] = {file: vision, "config.json": json.dumps(about) + "\n"}
    if flavour == "onnx":
        files[ENCODER]["model.py"] = SOURCES / "llava_vision_encoder.py"
    for model in ("postprocessing", "tensorrt_llm_bls"):
        files[model]["model.py"] = Path(find_spec("reference_backend").origin).parent / "models" / f"{model}.py"
    more = {
        "preprocessing": {
            "gpt_model_path": spec.engine_dir, "multimodal_model_path": repository / ENCODER / "1",
            "max_num_images": most_pictures,
        },
        "tensorrt_llm_bls": {"multimodal_encoders_name": ENCODER},
    }  # fmt: skip
    try:
        for model in MODELS:
            own = {ENCODER: _encoder, ENSEMBLE: _ensemble}.get(model)
            config = own(spec, flavour) if own else parse(config_text(spec, model))
            for tensor in config.input:
                if tensor.name == "image_url_input":  # NVIDIA's BLS model takes one, its ensemble several
                    tensor.dims[:] = [-1]
            for name, value in more.get(model, {}).items():
                config.parameters[name].string_value = str(value)
            (repository / model / "1").mkdir(parents=True, exist_ok=True)
            keeper = Keeper(repository / model)
            for name, content in files[model].items():
                put(keeper, repository / model / "1" / name, content)
            text = text_format.MessageToString(config, use_short_repeated_primitives=True)
            put(keeper, repository / model / "config.pbtxt", text)
    except OSError as error:
        raise DeploymentError(f"{error.filename or repository} cannot be written: {error.strerror}.") from None
    return repository


def _encoder(spec: DeploymentSpec, flavour: str) -> pb.ModelConfig:
    config = pb.ModelConfig(name=ENCODER, max_batch_size=spec.max_batch_size)
    on_gpu = flavour == "tensorrt"
    for name in ["pixel_values"] if on_gpu else ["pixel_values", "IMAGE"]:
        dims = (-1, *PIXELS) if on_gpu else (-1,) * 4  # of a plan, those that it was built with
        config.input.add(name=name, data_type=pb.TYPE_FP16, dims=dims, optional=not on_gpu)
    config.output.add(name=TABLE, data_type=pb.TYPE_FP16, dims=(-1, -1))
    if not on_gpu:
        config.output.add(name=ROWS, data_type=pb.TYPE_INT32, dims=(1,))
    config.backend = "tensorrt" if on_gpu else "python"
    kind = pb.ModelInstanceGroup.KIND_GPU if on_gpu else pb.ModelInstanceGroup.KIND_CPU
    config.instance_group.add(count=1, kind=kind)
    config.dynamic_batching.SetInParent()
    return config


def _ensemble(spec: DeploymentSpec, _: str) -> pb.ModelConfig:
    """The text ensemble with the encoder between its first two steps."""
    config = parse(config_text(spec, "ensemble"))
    config.name = ENSEMBLE
    for name in ("prompt_embedding_table", "prompt_vocab_size"):  # not the client's, but the encoder's
        config.input.remove(next(tensor for tensor in config.input if tensor.name == name))
    config.input.add(name="image_url_input", data_type=pb.TYPE_STRING, dims=(-1,), optional=True)
    before, llm, after = config.ensemble_scheduling.step
    before.input_map["IMAGE_URL"] = "image_url_input"
    before.output_map["PIXEL_VALUES"] = "_PIXEL_VALUES"
    llm.input_map["prompt_embedding_table"] = "_TABLE"
    del llm.input_map["prompt_vocab_size"]
    encoder = pb.ModelEnsembling.Step(
        model_name=ENCODER, model_version=-1, input_map={"pixel_values": "_PIXEL_VALUES"}, output_map={TABLE: "_TABLE"}
    )
    steps = [pb.ModelEnsembling.Step.FromString(step.SerializeToString()) for step in (before, llm, after)]
    del config.ensemble_scheduling.step[:]
    config.ensemble_scheduling.step.extend([steps[0], encoder, *steps[1:]])
    return config
