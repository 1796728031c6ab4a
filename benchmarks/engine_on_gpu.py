"""What notebook 01 can only show with a GPU: launches one by one against a CUDA graph, and what the runtime says.

    python benchmarks/engine_on_gpu.py [--json]

Needs a CUDA build of torch, and the extra `engines`. Keys: device, compute_capability, torch, tensorrt_rtx, targets;
launches, one_by_one_us, graph_us (medians of the rounds), graph_ratio (of the same rounds); runtime_says (the refusal
of a plan that was built for every card that TensorRT-RTX knows, or null), refit_says (why no refit plan is built, or
null).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import onnx.parser
import torch
from onnx import numpy_helper

LAUNCHES, ROUNDS, REPEATS = 99, 7, 100
NETWORK = (
    '<ir_version: 8, opset_import: ["" : 17]> mlp (float[4, 64] x) => (float[4, 64] y) { a = MatMul(x, w) y = Relu(a) }'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("engine_on_gpu: there is no CUDA device here, so there is nothing to measure.")
    result = {
        "device": torch.cuda.get_device_name(0),
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability(0)),
        "torch": torch.__version__,
        **cuda_graph(),
        **runtime(),
    }
    print(json.dumps(result, indent=2) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


def cuda_graph() -> dict[str, float]:
    """Chains of small products; the identity keeps the numbers, so the replay can be checked."""
    y, w = torch.rand(8, 384, device="cuda"), torch.eye(384, device="cuda")

    def chain() -> torch.Tensor:
        found = y
        for _ in range(LAUNCHES):
            found = found @ w
        return found

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    pairs = [(microseconds(chain), microseconds(graph.replay)) for _ in range(ROUNDS)]
    torch.testing.assert_close(out, y)
    return {
        "launches": LAUNCHES,
        "one_by_one_us": round(statistics.median(a for a, _ in pairs)),
        "graph_us": round(statistics.median(b for _, b in pairs)),
        "graph_ratio": round(statistics.median(a / b for a, b in pairs), 2),
    }


def microseconds(call) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / REPEATS * 1e6


def runtime() -> dict[str, str | None]:
    """What TensorRT-RTX says here, in its own words; notebook 01 explains the calls."""
    import tensorrt_rtx_bindings as trt

    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[str] = []

        def log(self, severity, text: str) -> None:
            self.lines.append(f"{severity.name} {text}")

    def build(*flags):
        builder = trt.Builder(log)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert trt.OnnxParser(network, log).parse(model.SerializeToString())
        config = builder.create_builder_config()
        for flag in flags:
            config.set_flag(flag)
        return builder.build_serialized_network(network, config)

    def error() -> str:
        return next(line for line in log.lines if line.split()[0].endswith("ERROR"))

    log, model = Log(), onnx.parser.parse_model(NETWORK)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    made = bytes(build())
    kinds = [name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    log.lines.clear()
    loaded = trt.Runtime(log).deserialize_cuda_engine(made)
    says = None if loaded else error()
    log.lines.clear()
    return {
        "tensorrt_rtx": trt.__version__,
        "targets": " ".join(kind for bit, kind in enumerate(kinds) if made[32] >> bit & 1),
        "runtime_says": says,
        "refit_says": None if build(trt.BuilderFlag.REFIT) else error(),
    }


if __name__ == "__main__":
    main()
