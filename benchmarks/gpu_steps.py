"""One step of the model on a CUDA device by the number of rows, for other values of FEW_ROWS and SPLIT_ROWS.

    python benchmarks/gpu_steps.py [--precision fp32 bf16] [--few 4 16 64] [--split 4 64] [--json]

SmolLM2-135M, each row with 300 tokens before it; the ways take turns, and the figures are medians.
`executor/cuda/model.py` says what the two numbers do; gpu_steps_fp32_ieee.json was made with input_precision="ieee" in
`_add_products` of executor/cuda/kernels.py.

Keys of --json
    step_us       {precision: {"few, split": {rows: microseconds}}}
    rounds, device, torch, triton_language, date
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import statistics
import sys
import time

import numpy as np
import torch

ROWS, SEQ, BEFORE = (1, 2, 4, 8, 16, 32, 64), 1024, 300


def measure(precision, few, split, rounds):
    """{"few, split": {rows: microseconds}} of one precision; prints on stderr what it has."""
    from reference_backend.executor import device
    from reference_backend.executor.cuda import model as cuda_model
    from reference_backend.executor.model import EngineConfig
    from servinglab import assets

    config = EngineConfig.read(assets.engine("smollm2", precision))
    size = cuda_model.DTYPES[precision].itemsize
    models, none = {}, np.arange(0)
    for way in ((f, s) for f in few for s in split):
        cuda_model.FEW_ROWS[size], cuda_model.SPLIT_ROWS = way
        models[way] = device.place(config, max(ROWS), SEQ, device="cuda")[1]
        for rows in ROWS:  # recorded now, and not again
            models[way].decode(np.full((rows, 1), 5), np.full(rows, BEFORE), 0, none)
    times = {way: {rows: [] for rows in ROWS} for way in models}
    for _ in range(rounds):
        for rows in ROWS:
            for way, model in models.items():
                start = time.perf_counter()
                model.decode(np.full((rows, 1), 5), np.full(rows, BEFORE), 0, none)
                times[way][rows].append(time.perf_counter() - start)
    found = {
        f"{way[0]}, {way[1]}": {rows: round(statistics.median(values) * 1e6) for rows, values in by_rows.items()}
        for way, by_rows in times.items()
    }
    print(precision, *found.items(), sep="\n", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--few", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--split", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_steps: there is no CUDA device here, so there is nothing to measure.")
    result = {
        "step_us": {name: measure(name, options.few, options.split, options.rounds) for name in options.precision},
        "rounds": options.rounds,
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton_language": importlib.metadata.version("triton"),
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(result, indent=2) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
