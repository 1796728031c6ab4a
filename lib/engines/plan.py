"""A TensorRT engine file ("plan"): built from ONNX with TensorRT-RTX, read, searched, and shown to the runtime.

Notebook 01 teaches this. Building needs no GPU. Sources: NVIDIA TensorRT-RTX documentation, "CPU-Only AOT and
TensorRT-RTX Engines", "Working with Dynamic Shapes", "Engine Compatibility"; what is said of the bytes of a plan was
found by looking at plans of TensorRT-RTX 1.7 and is documented nowhere.
"""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engines.errors import EngineError

TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # in the order of their bits in a plan's header
MAGIC = b"vtrt"  # 1953657974 as a number: the "serialization version" of the runtime's message
_HEADER, _SECTION = struct.Struct("<4sIQQ4B4sQQQQ"), struct.Struct("<8sQQ")
_LAYER = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w+), .*?Metadata: ?(?P<nodes>.*)$", re.MULTILINE)

Shape = Sequence[int]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True)
class Layer:
    """One layer of an engine. ``nodes``: the ONNX nodes it computes; several of them are a fusion, none is work
    that the builder added."""

    name: str
    kind: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Header:
    """What the first bytes of a plan say. ``sections``: name → (offset, length) in bytes, ENGN and WGHT (weights)."""

    version: str
    size: int
    targets: tuple[str, ...]
    sections: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Plan:
    """A built engine: the ``data`` of its file, ``seconds`` to build, the builder's ``log``.

    ``network_layers`` are the names of the parser's layers, before any fusion.
    """

    data: bytes
    seconds: float
    log: tuple[str, ...]
    network_layers: tuple[str, ...]

    @property
    def header(self) -> Header:
        return read_header(self.data)

    @property
    def layers(self) -> list[Layer]:
        """The layers of the engine as the builder lists them in its log.

        It is the text that TensorRT's engine inspector gives of a loaded engine, without the need to load it.
        """
        listed = next((line for line in self.log if line.startswith("VERBOSE Layers:\n")), "")
        listed = listed.partition("\nI/O Tensors:")[0]
        return [
            Layer(found["name"], found["kind"], tuple(re.findall(r"\[ONNX Layer: ([^\]]+)\]", found["nodes"])))
            for found in _LAYER.finditer(listed)
        ]

    @property
    def activation_bytes(self) -> int:
        """Memory for everything between the layers, in bytes, as the builder planned it for the largest shapes."""
        sizes = re.findall(r"Total Activation Memory: (\d+) bytes", "\n".join(self.log))
        return int(sizes[-1])

    def section(self, name: str) -> bytes:
        """The bytes of section "ENGN" (what to do) or "WGHT" (the weights)."""
        offset, length = self.header.sections[name]
        return self.data[offset : offset + length]

    def find(self, array: Any) -> int | None:
        """Where the bytes of a numpy array (C order) lie in the file; None when they do not."""
        offset = self.data.find(array.tobytes())
        return None if offset < 0 else offset


def build(
    model: Any,
    *,
    profiles: Profile | None = None,
    strip: bool = False,
    refit: bool = False,
    targets: Sequence[str] = (),
) -> Plan:
    """Build a plan with TensorRT-RTX.

    model: an ONNX ModelProto, its bytes, or the path of its file. profiles: for inputs with open dimensions, {input:
    (min, opt, max)} of shapes. strip: leave out refittable weights; refit: let weights be exchanged later. targets:
    compute capabilities such as "sm86"; none means every card from "sm80" on that the library knows.
    Raises EngineError with the parser's or the builder's own sentence.
    """
    if isinstance(targets, str) or not set(targets) <= set(TARGETS):
        raise EngineError(f"targets is a list of {', '.join(TARGETS)}, not {targets!r}.")
    try:
        shapes = {name: [list(map(int, shape)) for shape in three] for name, three in (profiles or {}).items()}
    except (TypeError, ValueError, AttributeError):
        shapes = {"": []}
    if any(len(three) != 3 for three in shapes.values()):
        raise EngineError(f"A profile gives three shapes (min, opt, max) for each input, not {profiles!r:.80}.")
    flags = ["STRIP_PLAN"] * strip + ["REFIT"] * refit
    path, data = _onnx(model)
    reply, plan = _work("build", "plan", data, onnx=path, flags=flags, targets=list(targets), profile=shapes)
    if "refused" in reply:
        raise EngineError(f"TensorRT-RTX cannot build this network: {reply['refused']}.{_cure(reply, flags)}")
    log = tuple(f"{level} {text}" for level, text in reply["log"])
    return Plan(plan, reply["seconds"], log, tuple(reply["network_layers"]))


def read_header(data: bytes) -> Header:
    """Read the header of a plan. Raises EngineError when the bytes are no plan of TensorRT-RTX, or a cut one."""
    if data[:4] != MAGIC:
        raise EngineError(f"This is no TensorRT-RTX plan: it begins with {data[:4]!r} and a plan with {MAGIC!r}.")
    if len(data) < _HEADER.size:
        raise EngineError(f"This plan is cut: its header alone has {_HEADER.size} bytes, and there are {len(data)}.")
    _, _, count, size, major, minor, patch, number, _, mask, *_ = _HEADER.unpack_from(data)
    if size != len(data):
        raise EngineError(f"This plan is cut or has something appended: it says {size} bytes and has {len(data)}.")
    targets = tuple(name for bit, name in enumerate(TARGETS) if mask >> bit & 1)
    try:
        rows = [_SECTION.unpack_from(data, _HEADER.size + _SECTION.size * row) for row in range(count)]
    except struct.error:
        raise EngineError(f"This plan is damaged: its header promises {count} sections.") from None
    sections = {name.rstrip(b"\0")[::-1].decode("latin-1"): (offset, length) for name, offset, length in rows}
    return Header(f"{major}.{minor}.{patch}.{number}", size, targets, sections)


def refusals(data: bytes) -> list[str]:
    """What TensorRT-RTX's runtime on this machine says against a plan, in its own words; [] when the plan loads."""
    return _work("load", "", {"plan": data})[0]["said"]


def run(data: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan on this machine's GPU: {name: numpy array} in and out. Raises EngineError where it cannot run."""
    import numpy as np

    np.savez(given := io.BytesIO(), **inputs)
    reply, made = _work("run", "outputs.npz", {"plan": data, "inputs.npz": given.getvalue()})
    if "refused" in reply:
        raise EngineError(f"This plan does not run here: {reply['refused']}.")
    with np.load(io.BytesIO(made), allow_pickle=False) as outputs:
        return dict(outputs)


def _work(action: str, wanted: str, files: Mapping[str, bytes], **job: Any) -> tuple[dict[str, Any], bytes]:
    """Have ``plan_worker`` do one job with files by name; its reply, and the file that it made.

    Raises EngineError when TensorRT-RTX is not installed, or died.
    """
    with TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps({"action": action, **job}), encoding="utf-8")
        for file, data in files.items():
            (folder / file).write_bytes(data)
        command = [sys.executable, "-m", "engines.plan_worker", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise EngineError(f"TensorRT-RTX ended with exit code {done.returncode}: {last}.")
        reply = json.loads((folder / "reply.json").read_text(encoding="utf-8"))
        if reply.get("refused", "").startswith("import: "):
            raise EngineError(
                f"TensorRT-RTX is not here ({reply['refused'][8:]}): on x86-64 Linux install it with "
                "`pip install 'servinglab[engines]'`; other machines can read this notebook, not build an engine."
            )
        made = folder / wanted
        return reply, made.read_bytes() if made.is_file() else b""


def _onnx(model: Any) -> tuple[str, dict[str, bytes]]:
    """The path of the ONNX file, and the file where the worker must be given one."""
    if isinstance(model, (str, Path)):
        if not Path(model).is_file():
            raise EngineError(f"There is no ONNX file {model}.")
        return str(Path(model).absolute()), {}  # its weights may lie beside it
    data = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    if not isinstance(data, bytes):
        raise EngineError(f"A model is an ONNX ModelProto, its bytes or a path, not {type(model).__name__}.")
    return "onnx", {"onnx": data}


def _cure(reply: dict[str, Any], flags: Sequence[str]) -> str:
    if "no optimization profile" in reply["refused"]:
        return " Give profiles={input: (min, opt, max)} with a shape each."
    if "Plugin not found" in reply["refused"]:
        return " Write the node with operators that the parser knows, or give it a plugin that computes it."
    if flags and "CUDA" in reply["refused"]:
        need = "the GPU is one that TensorRT-RTX supports" if reply["gpu"] else "a GPU is: here is none"
        return f" Plans without weights, or with weights to exchange, are built only where {need}."
    return ""
