"""The heavy steps of a preparation, each in a process of its own: PyTorch and the backend never enter the caller."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from servinglab.assets.catalogue import AssetError, missing_package
from servinglab.assets.store import disk_error

# What a request may ask for costs nothing here, unlike on a GPU, where an engine's limits are memory.
LIMITS = ("--max_batch_size", "256", "--max_beam_width", "16", "--gather_all_token_logits")
_STEPS = {
    "gguf": "from servinglab.assets.checkpoint import convert_gguf; convert_gguf(*map(Path, args))",
    "convert": "from engines.convert import convert; convert(args[0], args[1], dtype=args[2], family=args[3] or None)",
    "build": "from reference_backend.trtllm_build import main; sys.exit(main(args))",
}
_PROGRAM = """
import ctypes, os, sys
from pathlib import Path
parent, *args = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it dies with its parent, however that goes
if os.getppid() != int(parent):
    sys.exit(1)
try:
    {step}
except KeyboardInterrupt:
    sys.exit(130)
except Exception as error:
    print(f"{{type(error).__name__}}: {{' '.join(str(error).split())}}", file=sys.stderr)
    sys.exit(1)
"""


def convert_gguf(gguf: Path, out: Path) -> None:
    """A GGUF file becomes a Hugging Face checkpoint in the existing folder `out`. Raises AssetError."""
    _run("gguf", out, gguf, out)


def convert(checkpoint: Path, out: Path, *, dtype: str, family: str = "") -> None:
    """A Hugging Face checkpoint becomes one of TensorRT-LLM, as `course convert` makes it. Raises AssetError."""
    _run("convert", out, checkpoint, out, dtype, family)


def build(checkpoint: Path, out: Path, *options: str) -> None:
    """A TensorRT-LLM checkpoint becomes an engine, as `course build` makes it. Raises AssetError."""
    _run("build", out, "--checkpoint_dir", checkpoint, "--output_dir", out, *LIMITS, *options)


def _run(step: str, out: Path, *arguments: Path | str) -> None:
    package_root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    env["PYTHONPATH"] = os.pathsep.join([package_root, *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-c", _PROGRAM.format(step=_STEPS[step]), str(os.getpid()), *map(str, arguments)]
    log = out.parent / f"{step}.log"
    with log.open("wb") as output:
        # Python puts the current folder first on its path: a folder `triton` in yours would break torch.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=out.parent
        )
        try:
            child.wait()
        finally:
            child.kill()
            child.wait()
    if not child.returncode:
        return
    said = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    kind, _, sentence = said.partition(": ")
    if kind == "EngineError" or (step == "build" and child.returncode == 1 and not kind.endswith("Error")):
        raise AssetError(said.removeprefix("EngineError: "))
    if "No space left" in said:
        raise disk_error(out.parent, OSError(errno.ENOSPC, said))
    if kind == "ModuleNotFoundError":
        raise missing_package(ModuleNotFoundError(sentence, name=sentence.rpartition(" ")[2].strip("'")))
    if child.returncode < 0:
        memory = " (perhaps the machine ran out of memory)" if child.returncode == -9 else ""
        said = f"ended by signal {-child.returncode}{memory}: {said}"
    raise AssetError(f"The preparation in {out.parent.parent} failed: {said[:300]}")
