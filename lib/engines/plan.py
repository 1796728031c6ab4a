"""A TensorRT engine file ("plan"): built from ONNX with TensorRT-RTX, read, searched, and shown to the runtime.

Notebook 01 teaches this. Building needs no GPU. Sources: NVIDIA TensorRT-RTX documentation, "CPU-Only AOT and
TensorRT-RTX Engines", "Working with Dynamic Shapes", "Engine Compatibility"; what is said of the bytes of a plan was
found by looking at plans of TensorRT-RTX 1.7 and is documented nowhere.
"""

from __future__ import annotations

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
    job = {
        "flags": ["STRIP_PLAN"] * strip + ["REFIT"] * refit,
        "targets": list(targets),
        "profile": None if profiles is None else _shapes(profiles),
    }
    with TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        job["onnx"] = str(_onnx_file(model, folder))
        reply = _work("build", folder, **job)
        if "refused" in reply:
            raise EngineError(f"TensorRT-RTX cannot build this network: {reply['refused']}.{_cure(reply, job)}")
        log = tuple(f"{level} {text}" for level, text in reply["log"])
        return Plan((folder / "plan").read_bytes(), reply["seconds"], log, tuple(reply["network_layers"]))


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
    with TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        (folder / "plan").write_bytes(data)
        return _work("load", folder)["said"]


def run(data: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan on this machine's GPU: {name: numpy array} in and out. Raises EngineError where it cannot run."""
    import numpy as np

    with TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        (folder / "plan").write_bytes(data)
        np.savez(folder / "inputs.npz", **inputs)
        reply = _work("run", folder)
        if "refused" in reply:
            raise EngineError(f"This plan does not run here: {reply['refused']}.")
        with np.load(folder / "outputs.npz", allow_pickle=False) as outputs:
            return dict(outputs)


def _work(action: str, folder: Path, **job: Any) -> dict[str, Any]:
    """Have ``plan_worker`` do one job; its reply. Raises EngineError when it is not installed, or died."""
    (folder / "job.json").write_text(json.dumps({"action": action, **job}), encoding="utf-8")
    command = [sys.executable, "-m", "engines.plan_worker", str(folder)]
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
    return reply


def _onnx_file(model: Any, folder: Path) -> Path:
    if isinstance(model, (str, Path)):
        path = Path(model).absolute()
        if not path.is_file():
            raise EngineError(f"There is no ONNX file {path}.")
        return path
    data = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    if not isinstance(data, bytes):
        raise EngineError(f"A model is an ONNX ModelProto, its bytes or a path, not {type(model).__name__}.")
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def _shapes(profile: Profile) -> dict[str, list[list[int]]]:
    try:
        shapes = {name: [[int(size) for size in shape] for shape in three] for name, three in profile.items()}
        if all(len(three) == 3 for three in shapes.values()):
            return shapes
    except (TypeError, ValueError, AttributeError):
        pass
    raise EngineError(f"A profile gives three shapes (min, opt, max) for each input, not {profile!r:.80}.")


def _cure(reply: dict[str, Any], job: dict[str, Any]) -> str:
    text = reply["refused"]
    if "no optimization profile" in text:
        return " Give profiles={input: (min, opt, max)} with a shape each."
    if "Plugin not found" in text:
        return " Write the node with operators that the parser knows, or give it a plugin that computes it."
    if job["flags"] and "CUDA" in text:
        need = "the GPU is one that TensorRT-RTX supports" if reply["gpu"] else "a GPU is: here is none"
        return f" Plans without weights, or with weights to exchange, are built only where {need}."
    return ""
