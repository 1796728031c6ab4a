"""`trtllm-build` for machines without TensorRT-LLM: its flags, and an engine for the reference backend.

    python -m reference_backend.trtllm_build --checkpoint_dir tllm_checkpoint --output_dir engine --max_beam_width 4

Flags that change speed or memory on a GPU are taken and said to have no effect; those that would change what the engine
can do, and cannot be honoured, are refused by name. `--weights q4_1` is ours.
"""

import argparse
import sys
import time

from reference_backend import BackendError, table
from reference_backend.build import WEIGHTS, build


def main(args: list[str] | None = None) -> int:
    """0, or 1 with one sentence on standard error when a flag or the checkpoint cannot be honoured."""
    parser = argparse.ArgumentParser(prog="course build", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--checkpoint_dir", required=True)
    parser.add_argument("--output_dir", default="engine_outputs")
    flags = table("trtllm_build")
    limits, gather, speed, switches, only = (flags[key] for key in ("limits", "gather", "speed", "switches", "only"))
    for name in limits:
        parser.add_argument(f"--{name}", type=int)
    for name in (*gather, "gather_all_token_logits", *switches):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--weights", choices=WEIGHTS, default="checkpoint", help="not a flag of trtllm-build")
    for name in (*speed, *only):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given, unknown = parser.parse_known_args(args)
    try:
        if unknown:
            raise BackendError(f"{unknown[0]} cannot be honoured: the reference backend has nothing like it.")
        for name, value in only.items():
            if (asked := getattr(given, name)) not in (None, value):
                raise BackendError(f"--{name} {asked} cannot be honoured by the reference backend, only {value}.")
        if given.gemm_plugin in ("fp8", "nvfp4"):
            raise BackendError(f"--gemm_plugin {given.gemm_plugin} cannot be honoured: there is no FP8 here.")
        idle = {name: getattr(given, name) for name in (*speed, *switches) if getattr(given, name)}
        if idle:
            print(f"Without effect here: {', '.join('--' + name for name in idle)}.", file=sys.stderr)
        start = time.perf_counter()
        out = build(
            given.checkpoint_dir,
            given.output_dir,
            **{name: getattr(given, name) for name in limits if getattr(given, name) is not None},
            **{name: getattr(given, name) or given.gather_all_token_logits for name in gather},
            weights=given.weights,
            plugins={name: value for name, value in idle.items() if name not in switches},
        )
    except (BackendError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in sorted(out.glob("rank*.engine")):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"built in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
