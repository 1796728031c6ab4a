"""From the ONNX files to TensorRT: plans built on this machine, and the commands for NVIDIA's container.

Notebook 13 teaches it. Sources: NVIDIA TensorRT documentation, "trtexec", "Working with Dynamic Shapes" and "Migrating
from TensorRT 10.x to 11.x"; Triton's documentation of the TensorRT backend (the plan is ``1/model.plan``).
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from cliplab.encoder_tensors import LONGEST, TEXT_INPUTS, TEXT_OUTPUT, VISION_INPUTS, VISION_OUTPUT, EncoderError
from cliplab.prepare import SIZE
from engines.plan import Plan, Profile, build
from servinglab.assets.store import publish, workspace

TOWERS = ("vision", "text")
PRECISIONS = ("fp32", "fp16", "int8")
FLAVOURS = ("onnx", "tensorrt_plan")
VECTOR = 384
Three = tuple[int, int, int]  # min, opt, max
LEAST_TENSORRT = 10  # up to 8.6 it built CLIP's towers into engines whose outputs were all the same, or failed


def profile(tower: str, *, batch: Three = (1, 8, 32), tokens: Three = (1, 16, LONGEST)) -> Profile:
    """The optimisation profile of a tower: for each input its min, opt and max shape.

    batch: pictures or sentences at once, min, opt, max. tokens: the same for a sentence's length.
    Raises EncoderError for an unknown tower or sizes that do not ascend.
    """
    _known(tower)
    for what, three in (("batch", batch), ("tokens", tokens)):
        if len(three) != 3 or not 0 < three[0] <= three[1] <= three[2]:
            raise EncoderError(f"{what} needs three ascending sizes (min, opt, max), not {three!r}.")
    if tower == "vision":
        return {name: tuple((size, 3, SIZE, SIZE) for size in batch) for name in VISION_INPUTS}
    return {name: tuple(zip(batch, tokens, strict=True)) for name in TEXT_INPUTS}


def build_plan(onnx: Path, tower: str, **sizes: Three) -> Plan:
    """Build a tower's plan with TensorRT-RTX; needs no GPU. ``sizes``: batch and tokens of ``profile``.

    The types in the ONNX file decide the plan's precision. Raises EngineError with the builder's own sentence.
    """
    return build(onnx, profiles=profile(tower, **sizes))


def trtexec(tower: str, precision: str = "fp16", *, version: str = "10.14", **sizes: Three) -> str:
    """The command that builds the plan in NVIDIA's container, for the card it runs on.

    precision: "fp32", "fp16" or "int8": which ONNX file it reads, ``vision.fp16.onnx`` for example; the plan becomes
    ``vision.fp16.plan``. The file's types are the plan's: ``--stronglyTyped`` says so to TensorRT 10, and TensorRT 11,
    which has no other way, lets it pass. version: of TensorRT. Raises EncoderError for a version below 10 or an
    unknown precision.
    """
    _known(tower)
    require_tensorrt(version)
    if precision not in PRECISIONS:
        raise EncoderError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}.")
    shapes = profile(tower, **sizes)
    words = ["trtexec", f"--onnx={tower}.{precision}.onnx", f"--saveEngine={tower}.{precision}.plan", "--stronglyTyped"]
    for flag, place in (("min", 0), ("opt", 1), ("max", 2)):
        each = (f"{name}:{'x'.join(map(str, three[place]))}" for name, three in shapes.items())
        words.append(f"--{flag}Shapes={','.join(each)}")
    return shlex.join(words)


def keep(files: Mapping[str, Path | bytes], folder: Path) -> Path:
    """Put files, by name, into ``folder``, which is replaced as a whole, and return it. Raises AssetError."""
    need = sum(len(content) if isinstance(content, bytes) else content.stat().st_size for content in files.values())
    with workspace(folder.parent, need) as scratch:
        (made := scratch / folder.name).mkdir()
        for name, content in files.items():
            if isinstance(content, bytes):
                (made / name).write_bytes(content)
            else:
                shutil.copyfile(content, made / name)
        publish(made, folder)
    return folder


def require_tensorrt(version: str) -> None:
    """Raise EncoderError for a TensorRT older than 10, or a version that is none."""
    major = version.split(".")[0]
    if not major.isdigit():
        raise EncoderError(f"{version!r} is no version of TensorRT, such as 10.9.0.")
    if int(major) < LEAST_TENSORRT:
        raise EncoderError(
            f"TensorRT {version} is too old for these towers: take {LEAST_TENSORRT}.0 or newer. Version 8.6 built CLIP "
            "encoders that return the same numbers for every input."
        )


def config_pbtxt(tower: str, flavour: str = "onnx", *, batch: int = 32) -> str:
    """The config.pbtxt that serves a tower: "onnx" inside a Python model, or a "tensorrt_plan" on a GPU.

    Both have the same tensors, so a client and an ensemble cannot tell them apart. batch: the most rows of one run; for
    a plan at most the largest batch of its profile. Raises EncoderError for an unknown tower or flavour.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    _known(tower)
    if flavour not in FLAVOURS:
        raise EncoderError(f"flavour must be one of {', '.join(FLAVOURS)}, not {flavour!r}.")
    inputs: Mapping[str, tuple[int, list[int]]] = (
        {name: (pb.TYPE_FP32, [3, SIZE, SIZE]) for name in VISION_INPUTS}
        if tower == "vision"
        else {name: (pb.TYPE_INT64, [-1]) for name in TEXT_INPUTS}
    )
    output = VISION_OUTPUT if tower == "vision" else TEXT_OUTPUT
    config = pb.ModelConfig(name=f"{tower}_encoder", max_batch_size=batch)
    if flavour == "onnx":
        config.backend = "python"
    else:
        config.platform = "tensorrt_plan"
    for name, (kind, dims) in inputs.items():
        config.input.add(name=name, data_type=kind, dims=dims)
    config.output.add(name=output, data_type=pb.TYPE_FP32, dims=[VECTOR])
    kind = pb.ModelInstanceGroup.KIND_CPU if flavour == "onnx" else pb.ModelInstanceGroup.KIND_GPU
    config.instance_group.add(count=1, kind=kind)
    config.dynamic_batching.max_queue_delay_microseconds = 2000
    return text_format.MessageToString(config)


def _known(tower: str) -> None:
    if tower not in TOWERS:
        raise EncoderError(f"The towers are {' and '.join(TOWERS)}, not {tower!r}.")
