"""The heavy half of a preparation, in a process of its own: `python -m servinglab.assets.worker JOB`.

PyTorch and transformers are imported once for the conversion and all graphs, and never into the caller. Each line of
standard output is a JSON object: {"stage": text} while it works, {"error": text} when it cannot.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from servinglab.assets.catalogue import AssetError, missing_package
from servinglab.assets.progress import Progress
from servinglab.assets.store import disk_error, publish, read_stamp, stamp
from servinglab.errors import CourseError


def run(job: dict[str, Any], scratch: Path, progress: Progress) -> None:
    """Do `job` in a child process. Raises AssetError with the child's reason; the child dies with its parent.

    job: home (the model's place); gguf (a file to convert, or None); checkpoint (its final folder); engines (a list of
    precisions); recipes {"checkpoint" or a precision: text} and facts {name, licence, source} for the stamps.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    env["PYTHONPATH"] = os.pathsep.join([package_root, *filter(None, [env.get("PYTHONPATH")])])
    log = scratch / "prepare.log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "servinglab.assets.worker", json.dumps({**job, "scratch": str(scratch)})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, text=True,
            cwd=scratch,  # `-m` puts the current folder first on the path: a folder `triton` in yours would break torch
        )  # fmt: skip
        reason = None
        try:
            for line in child.stdout:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    reason = message.get("error", reason)
                    if "stage" in message:
                        progress.stage(message["stage"])
            child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
    if reason:
        raise AssetError(reason)
    if child.returncode:
        said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        memory = " (perhaps the machine ran out of memory)" if child.returncode == -9 else ""
        raise AssetError(f"The preparation in {job['home']} ended by {how}{memory}: {said[-1][:300]}")


def _work(job: dict[str, Any]) -> None:
    scratch, checkpoint = Path(job["scratch"]), Path(job["checkpoint"])
    if job["gguf"]:
        from servinglab.assets.checkpoint import convert_gguf

        _say(stage="converting the weights to a safetensors checkpoint")
        made = scratch / "checkpoint"
        made.mkdir()
        convert_gguf(Path(job["gguf"]), made)
        stamp(made, job["recipes"]["checkpoint"], **job["facts"])
        publish(made, checkpoint)
    for precision in sorted(job["engines"]):  # fp32 first: int4 is made from it
        from reference_backend.executor.graph import write_engine

        fp32 = Path(job["home"]) / "engine-fp32"
        current = (read_stamp(fp32) or {}).get("recipe") == job["recipes"]["fp32"]
        _say(stage=f"writing the {precision} graph")
        made = scratch / f"engine-{precision}"
        made.mkdir()
        write_engine(checkpoint, made, precision, fp32=fp32 if current else None)
        stamp(made, job["recipes"][precision], **job["facts"])
        publish(made, Path(job["home"]) / made.name)


def _main() -> int:
    job = json.loads(sys.argv[1])
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        _work(job)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the parent shows it as one sentence
        _say(error=_sentence(error, Path(job["home"])))
        return 1
    return 0


def _sentence(error: Exception, home: Path) -> str:
    if isinstance(error, CourseError):
        return str(error)
    if "No space left" in str(error):  # safetensors has its own class for it
        error = OSError(errno.ENOSPC, str(error))
    if isinstance(error, OSError) and error.errno:  # transformers raises bare ones for much else
        return str(disk_error(home, error))
    if isinstance(error, ModuleNotFoundError):
        return str(missing_package(error))
    return f"The preparation in {home} failed: {type(error).__name__}: {error}"


def _say(**message: str) -> None:
    print(json.dumps(message), file=_out, flush=True)


def _die_with_parent() -> None:
    # Its end of the pipe closes when the parent goes, however it goes. Not sys.stdin.read(): a daemon thread that holds
    # the lock of a buffered reader aborts the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    _out = sys.stdout
    sys.stdout = sys.stderr  # libraries print; standard output is for messages
    sys.exit(_main())
