"""A TensorRT engine file ("plan"): built from ONNX with TensorRT-RTX in a process of its own, and its own words.

Notebook 01 makes the same calls cell by cell; here they are for callers who build several plans. A process for each
job, because the library keeps one logger for a whole process and writes to the terminal past Python. Building needs no
GPU. Sources: NVIDIA TensorRT-RTX documentation, "CPU-Only AOT and TensorRT-RTX Engines", "Working with Dynamic Shapes";
the bytes of a header were found by looking at plans of TensorRT-RTX 1.7 and are documented nowhere.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engines import EngineError

TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # in the order of their bits in a plan's header
MAGIC = b"vtrt"  # 1953657974 as a number: the "serialization version" of the runtime's message

Shape = Sequence[int]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True)
class Plan:
    """A built engine: the `data` of its file, `seconds` to build, and the builder's `log`, lines "LEVEL text"."""

    data: bytes
    seconds: float
    log: tuple[str, ...]

    @property
    def layers(self) -> list[str]:
        """One line a layer of the engine, from the list that ends the build's log.

        It is the text that TensorRT's engine inspector gives of a loaded engine, without the need to load it.
        """
        listed = next((line for line in self.log if line.startswith("VERBOSE Layers:\n")), "")
        return re.findall(r"^Name: .*, LayerType: .*$", listed, re.MULTILINE)

    @property
    def activation_bytes(self) -> int:
        """Memory for everything between the layers, in bytes, as the builder planned it for the largest shapes."""
        return int(re.findall(r"Total Activation Memory: (\d+) bytes", "\n".join(self.log))[-1])

    @property
    def version(self) -> str:
        """Of the TensorRT-RTX that built it and alone can load it."""
        return ".".join(map(str, self.data[24:28]))

    @property
    def targets(self) -> tuple[str, ...]:
        """The compute capabilities that it was built for."""
        mask = int.from_bytes(self.data[32:40], "little")
        return tuple(name for bit, name in enumerate(TARGETS) if mask >> bit & 1)


def build(model: Any, *, profiles: Profile | None = None, targets: Sequence[str] = (), refit: bool = False) -> Plan:
    """Build a plan with TensorRT-RTX.

    model: an ONNX ModelProto, or the path of its file. profiles: for inputs with open dimensions, {input: (min, opt,
    max)} of shapes. targets: compute capabilities such as "sm86"; none means every card from "sm80" on that the library
    knows. refit: let weights be exchanged later. Raises EngineError with the parser's or the builder's own sentence.
    """
    if not set(targets) <= set(TARGETS):
        raise EngineError(f"targets is a list of {', '.join(TARGETS)}, not {targets!r}.")
    path, given = str(Path(model).absolute()) if isinstance(model, (str, Path)) else "model.onnx", {}
    if path == "model.onnx":
        given[path] = model.SerializeToString()
    elif not Path(path).is_file():
        raise EngineError(f"There is no ONNX file {model}.")
    job = {"action": "build", "onnx": path, "profiles": profiles or {}, "targets": list(targets), "refit": refit}
    reply, data = _in_a_process(job, given)
    if reply["refused"]:
        raise EngineError(f"TensorRT-RTX cannot build this network: {reply['refused']}.")
    return Plan(data, reply["seconds"], tuple(reply["log"]))


def refusals(data: bytes) -> list[str]:
    """What TensorRT-RTX's runtime on this machine says against a plan, in its own words; [] when the plan loads."""
    return _in_a_process({"action": "load"}, {"plan": data})[0]["said"]


def _in_a_process(job: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[dict[str, Any], bytes]:
    """The reply of `python -m engines.plan FOLDER`, and the plan in it. Raises EngineError when the process died."""
    with TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        for file, data in {**files, "job.json": json.dumps(job).encode()}.items():
            (folder / file).write_bytes(data)
        command = [sys.executable, "-m", "engines.plan", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise EngineError(
                f"TensorRT-RTX ended with exit code {done.returncode}: {last}. Where it is not installed, on x86-64 "
                "Linux, `pip install 'servinglab[engines]'` brings it."
            )
        reply = json.loads((folder / "reply.json").read_text(encoding="utf-8"))
        return reply, (folder / "plan").read_bytes() if (folder / "plan").is_file() else b""


def _job(folder: Path) -> None:
    """In the process: do what job.json says, write reply.json and, after a build, the plan."""
    import tensorrt_rtx_bindings as trt

    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            self.lines.append(f"{severity.name} {text}")

    job, log = json.loads((folder / "job.json").read_text(encoding="utf-8")), Log()
    reply: dict[str, Any] = {"refused": ""}
    if job["action"] == "load":
        data, runtime = (folder / "plan").read_bytes(), trt.Runtime(log)
        reply["said"] = [] if runtime.deserialize_cuda_engine(data) else [_error(log.lines)]
        if reply["said"]:  # the header alone makes it say more about versions
            runtime.get_engine_validity(data[: runtime.engine_header_size])
            reply["said"] += [line.removeprefix("INFO ") for line in log.lines if line.startswith("INFO The engine")]
    else:
        began = time.perf_counter()
        try:
            (folder / "plan").write_bytes(_build(trt, log, job))
        except RuntimeError as error:
            reply["refused"] = str(error)
        reply |= {"seconds": time.perf_counter() - began, "log": log.lines}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def _build(trt: Any, log: Any, job: Mapping[str, Any]) -> Any:
    builder = trt.Builder(log)
    # Types come from the network: there is no flag that lets the builder choose fp16.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(job["onnx"]):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        raise RuntimeError(" ".join(f"{e.node_name()} ({e.node_operator()}): {e.desc()}" for e in errors).strip())
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if job["refit"]:
        config.set_flag(trt.BuilderFlag.REFIT)
    config.num_compute_capabilities = len(job["targets"])  # without this, the targets are silently left out
    for index, target in enumerate(job["targets"]):
        config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), index)
    profile = builder.create_optimization_profile()
    for name, shapes in job["profiles"].items():
        profile.set_shape(name, *shapes)
    if job["profiles"] and config.add_optimization_profile(profile) < 0:
        raise RuntimeError(_error(log.lines))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError(_error(log.lines))
    return plan


def _error(lines: Sequence[str]) -> str:
    """The library's own words for the first error."""
    found = (line for line in lines if line.split(" ")[0].endswith("ERROR"))
    return " ".join(next(found, "ERROR no reason was given").split()[1:])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a stop ends it at once; Python would wait for the end of the build
    _job(Path(sys.argv[1]))
