"""Exercises of notebook 04: a queue that keeps a limit, a load for two ways to batch, a KV cache for four callers."""

from __future__ import annotations

import functools
import queue
import tempfile
import time
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from reference_backend import executor
from servinglab import assets
from servinglab.checks import (
    SLEEPER,
    SLEEPER_CONFIG,
    Verdict,
    exercise,
    is_stub,
    repository_of,
    right,
    unattempted,
    wrong,
)
from servinglab.client import gather, inputs
from servinglab.errors import CourseError
from servinglab.repository import build_default
from servinglab.scratch import shorten
from servinglab.server import ServerError, TritonServer

# --- 04.1: a queue that keeps a limit, on a Triton whose model takes 200 ms whatever the batch ------------------------

STEP, LIMIT, GAP = 0.2, 1.0, 0.01  # seconds: of an execution, until a caller hangs up, between callers
CALLERS, MORE, ENOUGH = 120, 30, 30  # those that count, those behind them who keep the load up, least answers
_CONFIG = SLEEPER_CONFIG % ("steady", 8)


@functools.cache
def _server() -> tuple[TritonServer, Path]:
    """A Triton without a model, and the folder of the one that it may load; they end with this process."""
    root = repository_of("steady", SLEEPER % STEP, _CONFIG)
    return TritonServer(root, models=[]).start(), root / "steady"


def _answered(server: TritonServer) -> list[float]:
    """Seconds until each of the callers that were answered was; the others were refused."""
    tensors, done = inputs(text="fox"), queue.SimpleQueue()
    with InferenceServerClient(server.grpc_url) as client:
        began = time.perf_counter()
        for number in range(CALLERS + MORE):
            time.sleep(max(0.0, began + number * GAP - time.perf_counter()))
            told = functools.partial(_note, done, number, time.perf_counter())
            client.async_infer("steady", tensors, told)
        found = [done.get(timeout=60) for _ in range(CALLERS + MORE)]
    return [seconds for number, seconds, answered in found if answered and number < CALLERS]


def _note(done: queue.SimpleQueue, number: int, sent: float, result: object, error: object) -> None:
    done.put((number, time.perf_counter() - sent, error is None))


@exercise("04.1", expects="the text of a dynamic_batching block")
def limit(answer: str) -> Verdict:
    if not isinstance(answer, str):
        return wrong("expected the lines of the config as a text")
    server, folder = _server()
    (folder / "config.pbtxt").write_text(_CONFIG + answer)
    try:
        server.load("steady")
    except ServerError as error:
        return wrong(shorten(str(error)).partition("\n")[0])
    config = text_format.Parse(_CONFIG + answer, pb.ModelConfig())
    if len(config.instance_group) > 1 or config.max_batch_size != 8:
        return wrong("the machine has room for one instance and batches of 8: change only how requests wait")
    if not config.HasField("dynamic_batching"):
        return wrong("without dynamic_batching each request is an execution of its own: 5 a second, for 100 callers")
    seconds = _answered(server)
    late = sum(each > LIMIT for each in seconds)
    told = f"{len(seconds)} of {CALLERS} answered, the slowest after {max(seconds, default=0):.2f} s, {late} too late"
    if late:
        return wrong(f"{told}: {_why_late(config.dynamic_batching)}")
    if len(seconds) < ENOUGH:
        return wrong(f"{told}: the timeout refuses callers who could have been served; it counts in microseconds")
    return right(f"{told}; the others were refused, and can go elsewhere")


def _why_late(batching: pb.ModelDynamicBatching) -> str:
    policy = batching.default_queue_policy
    if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
        return "DELAY puts a request that has waited too long behind the others, and answers it still later"
    if policy.default_timeout_microseconds:
        return "the timeout ends the wait in the queue; the execution, 200 ms, comes on top"
    if batching.max_queue_delay_microseconds:
        return "a queue delay lets requests wait for others, and refuses nobody"
    if policy.max_queue_size:
        return "a queue of that length still holds requests that wait too long; give the wait itself a limit"
    return "nothing refuses a request that has waited too long, so the queue grows as long as the load lasts"


# --- 04.2: a load that a static batch handles badly, on two executors ------------------------------------------------

ENOUGH_TIMES = 1.6
_STRATEGIES = {"static": "V1", "in flight": "inflight_fused_batching"}


def _steps(engine: Path, strategy: str, lengths: list[int]) -> int:
    """Steps that an executor with two slots takes for answers of these lengths, asked for in this order."""
    ended = queue.SimpleQueue()
    with executor.Executor(engine, max_batch_size=2, batching_strategy=strategy) as running:
        prompt = np.arange(100, 148)  # long enough for all to arrive before the first is read
        more = {"sampling": executor.SamplingParams(), "on_output": ended.put}
        for request in [executor.Request(f"{n}", prompt, length, **more) for n, length in enumerate(lengths)]:
            running.submit(request)
        left = len(lengths)
        while left:
            left -= bool(ended.get(timeout=60).finish_reason)
        return running.stats()["steps"]


@exercise("04.2", expects="a list of four lengths")
def load(answer: tuple[list[int], Path]) -> Verdict:
    lengths, engine = answer
    if is_stub(lengths):
        return unattempted()
    lengths = [int(length) for length in lengths]
    if len(lengths) != 4 or not all(2 <= length <= 12 for length in lengths):
        return wrong(f"{lengths}: expected four lengths from 2 to 12")
    static, inflight = (_steps(Path(engine), strategy, lengths) for strategy in _STRATEGIES.values())
    told = f"static {static} steps, in flight {inflight}: {static / inflight:.2f} times"
    if static < ENOUGH_TIMES * inflight:
        return wrong(f"{told}; {_why_even(lengths)}")
    return right(f"{told}; both batches had a slot that stood empty, and a long answer that could have used it")


def _why_even(lengths: list[int]) -> str:
    (a, b), (c, d) = pairs = lengths[:2], lengths[2:]
    if a == b == c == d:
        return "answers of one length leave no slot empty"
    if abs(a - b) < 3 and abs(c - d) < 3:
        return "requests of one batch are about equally long; they share a batch as they come, and nobody sorts them"
    if min(map(max, pairs)) < 8:
        return "one batch has only short answers: what could the empty slot have been used for?"
    return "the short answers are not short enough to leave their slot empty for long"


# --- 04.3: the smallest cache for four callers, on a Triton -----------------------------------------------------------

_CHAT = "<|im_start|>user\nSay one sentence about the {}.<|im_end|>\n<|im_start|>assistant\n"
_ABOUT, _ROOM, _BLOCK = ("sea", "sun", "snow", "rain"), 60, 64  # tokens of an answer at most, and of a block


@functools.cache
def _deployment(engine: Path) -> tuple[TritonServer, Path]:
    """A Triton without a model, and the folder above its repository; they end with this process."""
    root = Path(tempfile.mkdtemp(prefix="cache-"))
    return TritonServer(build_default(root, engine_dir=engine), models=[]).start(), root


def _together(server: TritonServer) -> int:
    """How many of the callers ran at the same time."""
    tokenizer = Tokenizer.from_file(f"{assets.tokenizer('smollm2')}/tokenizer.json")
    asked = {"request_output_len": _ROOM, "end_id": tokenizer.token_to_id("<|im_end|>"), "return_perf_metrics": True}
    prompts = {about: tokenizer.encode(_CHAT.format(about)).ids for about in _ABOUT}
    requests = {name: inputs(input_ids=ids, input_lengths=len(ids), **asked) for name, ids in prompts.items()}
    with InferenceServerClient(server.grpc_url) as client:
        found = [results[-1] for results in gather(client, "tensorrt_llm", requests).values()]
    begun, ended = ([r.as_numpy(f"{name}_time_ns").item() for r in found] for name in ("first_scheduled", "last_token"))
    return max(sum(a <= at < b for a, b in zip(begun, ended, strict=True)) for at in begun)


@exercise("04.3", expects="a dict with batch_scheduler_policy and max_tokens_in_paged_kv_cache")
def cache(answer: tuple[dict[str, str | int], Path]) -> Verdict:
    given, engine = answer
    if is_stub(given):
        return unattempted()
    if set(given) != {"batch_scheduler_policy", "max_tokens_in_paged_kv_cache"}:
        return wrong("expected batch_scheduler_policy and max_tokens_in_paged_kv_cache, nothing else")
    server, root = _deployment(Path(engine))
    try:
        build_default(root, engine_dir=engine, **given)
        server.load("tensorrt_llm")
        running, blocks = _together(server), given["max_tokens_in_paged_kv_cache"] // _BLOCK
    except (CourseError, InferenceServerException) as error:
        said = shorten(error.message() if isinstance(error, InferenceServerException) else str(error))
        return wrong(said.partition("\n")[0])
    told = f"{running} of 4 ran together in {blocks} blocks"
    careful = given["batch_scheduler_policy"] != "max_utilization"
    if running < 4 and careful:
        return wrong(f"{told}: this policy reserves whole blocks for prompt and max_tokens before it starts a request")
    if running < 4:
        return wrong(f"{told}: a block belongs to one request, however little is in it; the cache has whole ones only")
    if blocks > 4 and careful:
        return wrong(f"{told}: half of them are kept for words that never come; does every policy reserve them?")
    if blocks > 4:
        return wrong(f"{told}: prompt and answer fit into one block each, so some are never used")
    return right(f"{told}; one longer answer would have to wait or be preempted")
