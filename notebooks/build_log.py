"""What TensorRT says while it builds or loads (notebook 01): its first error, the layers that it made, their memory.

`lines`: each "SEVERITY words", as the notebook's logger keeps them.
"""

import re
from collections.abc import Sequence


def problem(lines: Sequence[str]) -> str:
    """The core of the first error, without the place in NVIDIA's source."""
    line = next(line for line in lines if line.split()[0].endswith("ERROR"))
    line = re.sub(r"\(?In \w+ at \S+", "", line.rstrip(")"))
    return re.sub(r"^.*: ([A-Z][\w ]+ \()?", "", line).split(". ")[0].strip(". ")


def layers(lines: Sequence[str]) -> list[str]:
    """The layers of the last build, one line each; they are logged with ProfilingVerbosity.DETAILED."""
    listed = next(line for line in lines if line.startswith("VERBOSE Layers:"))
    return re.findall("^Name: .*, LayerType: .*$", listed, re.MULTILINE)


def nodes(layer: str) -> list[str]:
    """The ONNX nodes that a layer works for."""
    return re.findall(r"ONNX Layer: ([^\]]+)", layer)


def activations(lines: Sequence[str]) -> float:
    """Megabytes between the layers of the last build."""
    return int(re.findall(r"Total Activation Memory: (\d+) bytes", "\n".join(lines))[-1]) / 1e6
