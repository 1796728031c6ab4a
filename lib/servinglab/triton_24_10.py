"""Faults of Triton 24.10 (the wheel's) that the course guards against; tests/reliability/README.md has those without a
guard. Where a guard is a few words of another file, it stands there:

* it listens on all interfaces, and anybody may load models, unless told otherwise: server/triton.py
* it takes the administrator's key by its command line only, makes its shared memory readable for everybody, and leaves
  an empty folder in /tmp when it is killed: server/supervisor.py
* it starts a model's process by an unquoted shell command line, in an ASCII locale: server/install.py
* a cancel at the end of a stream races with its last write, and a stream's error has no status: client.py
"""

import re

import psutil


def dead_processes(pid: int) -> set[int]:
    """Children of tritonserver that are zombies: it does not notice every death of a model's process. One that is seen
    only once belonged to a model that was being unloaded."""
    try:
        return {child.pid for child in psutil.Process(pid).children() if child.status() == psutil.STATUS_ZOMBIE}
    except psutil.Error:
        return set()


def clean(text: str) -> str:
    """One error text of Triton without quotes, escapes, status words and traceback."""
    text = text.strip().strip('"').replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
    body, _, trace = text.partition("\n\nAt:\n")
    where = re.search(r"^\s*(\S+)\((\d+)\): (\S+)", trace)
    body = re.sub(r"^failed to load '([^']+)' version \d+: ", r"model '\1' failed to load: ", body)
    body = re.sub(r": (Internal|Invalid argument|Unavailable|Not found|Unknown|Unsupported)(?: -)?: ", ": ", body)
    body = re.sub(r"^\[request id: [^\]]*\] ", "", body)
    body = re.sub(r"\s*\n\s*", " ", body).strip(" ;.").partition(". NOTE: Setting a non-zero max_batch_size")[0]
    if "Stub process" in body and "is not healthy" in body:
        model, loading, _ = body.partition(" failed to load")
        died = "Python process died, perhaps out of memory"
        body = f"{model} failed to load: its {died}" if loading else f"A model's {died}: restart the server"
    if "unable to find backend library" in body:
        body = body.partition(", try specifying")[0] + "; the embedded lane has only python and tensorrtllm"
    return f"{body} (in {where[1]}, line {where[2]})" if where else body
