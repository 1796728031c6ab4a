"""Exercises of notebook 02: rows of the fused qkv, an engine whose limits serve four requests, on a Triton."""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from numbers import Integral
from pathlib import Path

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.client import gather, inputs
from servinglab.errors import CourseError
from servinglab.lane import resolve_lane
from servinglab.repository import build_default
from servinglab.scratch import shorten
from servinglab.server import TritonServer


@exercise("02.1", expects="a function that returns a whole number")
def qkv_rows(answer: Callable[..., int]) -> Verdict:
    one, four, copied, few = (
        answer(*case) for case in ((9, 3, 64, 1), (32, 32, 128, 4), (8, 1, 256, 4), (8, 4, 8, 8))
    )
    if one == 3 * 9 * 64:
        return wrong("there is a q for each of the 9 heads, k and v only for 3: SmolLM2 has grouped-query attention")
    if one == (9 + 3) * 64:
        return wrong("keys and values are two tensors: the KV heads count twice")
    if one != 960:
        return wrong(f"for SmolLM2 on one rank you return {one}; there are 960 rows (section 1)")
    if four == 3 * 32 * 128:
        return wrong("that is the tensor of the whole model; each of 4 ranks has a quarter of the heads")
    if four == (8 + 2 * 32) * 128:
        return wrong("with 32 KV heads and 4 ranks, keys and values are cut as well, not only the queries")
    if four != 3 * 8 * 128:
        return wrong(f"for 32 heads of 128 on 4 ranks you return {four}; each rank has 8 heads of q, k and v")
    if copied == (2 + 2 / 4) * 256:
        return wrong("that cuts one KV head into four pieces; a head stays whole, and every rank gets a copy")
    if copied == 2 * 256:
        return wrong("a rank without any KV head has nothing to attend to: it holds at least one")
    if (copied, few) != (4 * 256, 3 * 8):
        return wrong("look at the case of fewer KV heads than ranks: each rank has exactly one of them")
    if not all(isinstance(number, Integral) for number in (one, four, copied, few)):
        return wrong("the number is right, but a float; rows are counted in whole numbers, so divide with //")
    return right("queries are cut, KV heads too, but never below one: then neighbours hold the same")


# --- 02.2: limits of a build for four requests, on a Triton -----------------------------------------------------------

# name → tokens of the prompt, tokens of the answer, beams; as in the notebook
_JOBS = {"short question": (5, 40, 1), "long prompt": (150, 20, 1), "long answer": (100, 80, 1), "3 beams": (5, 40, 3)}
_LARGE = {
    "max_seq_len": (
        max(prompt + answer for prompt, answer, _ in _JOBS.values()),
        "no request has the longest prompt and the longest answer; left out, the limit is what the model was made for",
    ),
    "max_batch_size": (len(_JOBS), "it counts requests, and one with three beams is one request"),
    "max_beam_width": (max(beams for *_, beams in _JOBS.values()), "no request asks for so many"),
}


@exercise("02.2", expects="a text of flags for trtllm-build")
def limits(answer: tuple[str, Path]) -> Verdict:
    flags, checkpoint = answer
    if is_stub(flags):
        return unattempted()
    if not isinstance(flags, str):
        return wrong("one text, please: the flags, as you would type them")
    folder = _folder()
    try:
        built = _built(checkpoint, folder / "engine", flags)
        most = {name: built[name] for name in ("max_batch_size", "max_beam_width")}
        name = f"limits-{zlib.crc32(flags.encode())}"  # Triton loads a model again only when its config has changed
        server = _server(build_default(folder / "deployment", engine_dir=folder / "engine", name=name, **most))
        server.load("tensorrt_llm")
        got, together = _served(server)
    except (CourseError, InferenceServerException) as error:
        said = error.message() if isinstance(error, InferenceServerException) else str(error)
        return wrong(f"{shorten(said).partition(chr(10))[0].rstrip('.')}. {_why_refused(said)}".rstrip())
    for name, (_, wanted, _) in _JOBS.items():
        if got[name] < wanted:
            return wrong(f"{name!r} got {got[name]} of {wanted} tokens: prompt and answer share max_seq_len")
    if together < len(_JOBS):
        return wrong(f"all are served, but only {together} of 4 ran at the same time: which limit counts requests?")
    for name, (needed, why) in _LARGE.items():
        if built[name] > needed:
            return wrong(f"all are served, but {name} {built[name]} plans for more than they use: {why}")
    return right("all four came whole and at the same time, and no limit is larger than they need")


def _why_refused(said: str) -> str:
    if "input length" in said:
        return "Which of the four is the longest, prompt and answer together?"
    return "A request may have no more beams than the engine was built for" if "max_beam_width" in said else ""


def _built(checkpoint: Path, engine: Path, flags: str) -> dict[str, int]:
    """Builds as a terminal would, and returns what the engine says of its limits."""
    program = ["trtllm-build"] if resolve_lane() == "trtllm" else [sys.executable, "-m", "course.cli", "build"]
    words = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(engine), *shlex.split(flags)]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CourseError((done.stderr or done.stdout).strip().splitlines()[-1].removeprefix("course: "))
    return json.loads((engine / "config.json").read_text())["build_config"]


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="limits-"))


@functools.cache
def _server(repository: Path) -> TritonServer:
    """A Triton without a model; it ends with this process."""
    return TritonServer(repository, models=[]).start()


def _served(server: TritonServer) -> tuple[dict[str, int], int]:
    """How many tokens each request got, and how many requests ran at the same time."""
    requests = {
        name: inputs(input_ids=[10 + n % 80 for n in range(prompt)], input_lengths=prompt, request_output_len=answer,
                     beam_width=beams, return_perf_metrics=True, exclude_input_in_output=True)
        for name, (prompt, answer, beams) in _JOBS.items()
    }  # fmt: skip
    with InferenceServerClient(server.grpc_url) as client:
        found = gather(client, "tensorrt_llm", requests)
    got = {name: int(results[-1].as_numpy("sequence_length").min()) for name, results in found.items()}
    begun, ended = (
        [results[-1].as_numpy(f"{name}_time_ns").item() for results in found.values()]
        for name in ("first_scheduled", "last_token")
    )
    return got, max(sum(a <= at < b for a, b in zip(begun, ended, strict=True)) for at in begun)
