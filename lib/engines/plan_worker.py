"""One job with TensorRT-RTX in a process of its own: build a plan, ask the runtime about one, or run one.

``plan.py`` starts it as ``python -m engines.plan_worker FOLDER``. FOLDER holds ``job.json`` (and a plan, and
inputs); the answer is ``reply.json`` (and a plan, or outputs). A process for each job, because the library keeps one
logger for the whole process, writes to the terminal past Python, and after a build that failed in the middle gives the
next build another result.
"""

from __future__ import annotations

import ctypes
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

_DRIVER = "catchCudaError"  # without a driver, every other error brings one with this name along


class Refused(Exception):
    """The library said no; the text is its own sentence."""


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    reply: dict[str, Any] = {"gpu": gpus() > 0}
    try:
        trt = _library()
        logger = _logger(trt)
        try:
            reply |= {"build": _build, "load": _load, "run": _run}[job["action"]](trt, logger, job, folder)
        finally:
            reply["log"] = logger.lines
    except Refused as refusal:
        reply["refused"] = _sentence(str(refusal))
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def gpus() -> int:
    """How many CUDA devices the driver shows, asked from the driver itself."""
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _library() -> Any:
    try:
        import tensorrt_rtx_bindings as trt  # the name in NVIDIA's plain wheels
    except ImportError:
        try:
            import tensorrt_rtx as trt
        except ImportError as error:
            raise Refused(f"import: {error}") from None
    return trt


def _logger(trt: Any) -> Any:
    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[list[str]] = []

        def log(self, severity: Any, text: str) -> None:
            self.lines.append([str(severity).rsplit(".", 1)[-1], text])

    return Log()


def _build(trt: Any, logger: Any, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    builder = trt.Builder(logger)
    # Types come from the network: there is no flag that lets the builder choose fp16.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(job["onnx"]):
        raise Refused(_parser_errors(parser))
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for flag in job["flags"]:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    config.num_compute_capabilities = len(job["targets"])  # without this, the targets are silently left out
    for index, target in enumerate(job["targets"]):
        if not config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), index):
            raise Refused(f"target {target} was not accepted")
    if job["profile"]:
        _add_profile(builder, network, config, job["profile"])
    layers = [network.get_layer(index).name for index in range(network.num_layers)]  # parser's view, before fusion
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused(_first_error(logger.lines))
    (folder / "plan").write_bytes(plan)
    return {"seconds": time.perf_counter() - began, "network_layers": layers}


def _add_profile(builder: Any, network: Any, config: Any, shapes: dict[str, list[list[int]]]) -> None:
    inputs = [network.get_input(index).name for index in range(network.num_inputs)]
    profile = builder.create_optimization_profile()
    for name, (smallest, usual, largest) in shapes.items():
        if name not in inputs:
            raise Refused(f"a profile names the input {name!r}; the network has: {', '.join(inputs)}")
        try:
            profile.set_shape(name, smallest, usual, largest)
        except RuntimeError as error:
            raise Refused(f"input {name}: {error}") from None
    if config.add_optimization_profile(profile) < 0:
        raise Refused(_first_error(builder.logger.lines))


def _parser_errors(parser: Any) -> str:
    found = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        where = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_operator() else ""
        found.append(where + " ".join(line for line in error.desc().splitlines() if _DRIVER not in line))
    return "; ".join(dict.fromkeys(found)) or "the file is not an ONNX model"


def _first_error(lines: list[list[str]]) -> str:
    return next((text for level, text in lines if level.endswith("ERROR")), "it gave no reason")


def _load(trt: Any, logger: Any, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the runtime says about a plan: nothing when it loads."""
    data = (folder / "plan").read_bytes()
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(data)
    if engine is not None:
        return {"said": []}
    said = [_first_error(logger.lines)]
    runtime.get_engine_validity(data[: runtime.engine_header_size])  # reads the header only and is more talkative
    said += [text for _, text in logger.lines if text.startswith("The engine")]
    return {"said": [_sentence(text) for text in said]}


def _run(trt: Any, logger: Any, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a plan on the first GPU. inputs.npz → outputs.npz."""
    import numpy as np
    import torch

    engine = trt.Runtime(logger).deserialize_cuda_engine((folder / "plan").read_bytes())
    if engine is None:
        raise Refused(_first_error(logger.lines))
    if not torch.cuda.is_available():
        raise Refused("the torch of this environment has no CUDA, and its tensors are the engine's buffers")
    context, outputs, buffers = engine.create_execution_context(), [], {}
    with np.load(folder / "inputs.npz", allow_pickle=False) as given:
        for name in given.files:
            buffers[name] = torch.from_numpy(given[name]).cuda().contiguous()
            if not context.set_input_shape(name, given[name].shape):
                raise Refused(_first_error(logger.lines))
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT:
            empty = np.empty(tuple(context.get_tensor_shape(name)), trt.nptype(engine.get_tensor_dtype(name)))
            buffers[name] = torch.from_numpy(empty).cuda()
            outputs.append(name)
        context.set_tensor_address(name, buffers[name].data_ptr())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    if not context.execute_async_v3(stream.cuda_stream):
        raise Refused(_first_error(logger.lines))
    stream.synchronize()
    np.savez(folder / "outputs.npz", **{name: buffers[name].cpu().numpy() for name in outputs})
    return {}


def _sentence(text: str) -> str:
    """A message without the library's function and file names; version numbers written as raw bytes become digits."""
    text = re.sub(r"[\x01-\x08\x0b-\x1f]", lambda byte: str(ord(byte[0])), " ".join(text.split(" ")))
    text = re.sub(r"^\S+: Error Code \d+: ", "", text.strip())
    return re.sub(r"\s*In \w+ at \S+?:\d+(?=\)|\s|$)", "", text).strip().rstrip(".")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a stop ends it at once; Python would wait for the end of the build
    main(Path(sys.argv[1]))
