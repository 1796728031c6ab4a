"""Exercises of notebook 04: a queue that keeps a limit, steps of two ways to batch, requests that fit a KV cache."""

from __future__ import annotations

import functools
import math
import queue
import tempfile
import time
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong
from servinglab.client import inputs
from servinglab.scratch import shorten
from servinglab.server import ServerError, TritonServer


def _judge(answer: dict, known: dict[str, dict[float, str | None]], advice: dict[str, str], praise: str) -> Verdict:
    """The first wrong part with its misconception, or right with ``praise``.

    known: part → value → what is wrong with it, None for the right one; advice: part → what to say to other values.
    """
    parts = {name: answer[name] for name in known}
    if all(map(is_stub, parts.values())):
        return unattempted()
    for name, part in parts.items():
        if is_stub(part):
            continue
        value = float(part)
        near = [said for wanted, said in known[name].items() if math.isclose(value, wanted, rel_tol=1e-3)]
        if not near or near[0]:
            return wrong(f"{name} {part!r}: {near[0] if near else advice[name]}")
    if missing := [name for name, part in parts.items() if is_stub(part)]:
        return wrong(f"the other one is right; {missing[0]} is still missing")
    return right(praise)


# --- 04.1: a queue that keeps a limit, on a Triton whose model takes 200 ms whatever the batch ------------------------

STEP, LIMIT, GAP = 0.2, 1.0, 0.01  # seconds: of an execution, until a caller hangs up, between callers
CALLERS, MORE, ENOUGH = 120, 30, 30  # those that count, those behind them who keep the load up, least answers
_CONFIG = """\
name: "steady"
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_CODE = f"""\
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({STEP})
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]) for text in texts]
"""


@functools.cache
def _server() -> tuple[TritonServer, Path]:
    """A Triton without a model, and the folder of the one that it may load; they end with this process."""
    root = Path(tempfile.mkdtemp(prefix="steady-"))
    (root / "steady" / "1").mkdir(parents=True)
    (root / "steady" / "1" / "model.py").write_text(_CODE)
    (root / "steady" / "config.pbtxt").write_text(_CONFIG)
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


# --- 04.2: 2, 8, 3, 5 tokens in two slots -----------------------------------------------------------------------------

_STEPS = {
    "static": {
        13: None,
        10: "a static batch lets nobody in when the 2 tokens are done; its second batch begins after the 8",
        11: "nobody sorts them: the first batch is 2 and 8, as they came",
        18: "that is one after another; a step serves both slots",
        9: "that would need both slots full all the time; 2 waits for 8",
        8: "the first batch takes 8 steps, then comes a second one",
        7: "a batch lasts as long as its longest answer, not as its shortest",
    },
    "inflight": {
        10: None,
        9: "18 tokens in 9 steps need both slots full to the end; the last request runs alone for a while",
        8: "there are only two slots: the fourth request begins when the third has ended",
        13: "that is the static batch; in flight the third request takes the slot of the first after 2 steps",
        18: "that is one after another; a step serves both slots",
        11: "nobody waits for the 8: the slot of the first request is taken after 2 steps and again after 5",
    },
}


@exercise("04.2", expects="a dict with static and inflight, two numbers of steps")
def steps(answer: dict[str, float]) -> Verdict:
    advice = {
        "static": "two batches, each as long as its longest answer",
        "inflight": "draw two rows: 8 in one of them, and 2, 3, 5 one behind the other in the other",
    }
    praise = "max(2, 8) + max(3, 5) = 13 against 2 + 3 + 5 = 10, in the slot that the 8 leaves free"
    return _judge(answer, _STEPS, advice, praise)


# --- 04.3: 2048 tokens in blocks of 64, requests of 128 + 150 ---------------------------------------------------------

_REQUESTS = {
    "guaranteed_no_evict": {
        6: None,
        7: "blocks are not shared: 278 tokens take 5 whole blocks of 64, not 4.3",
        16: "it reserves for max_tokens as well, not only for the prompt",
        10: "it reserves for the prompt and all of max_tokens, 278 tokens; 10 requests would have 3 blocks each",
        32: "that is the number of blocks; a request needs several",
        64: "that is how many the batch may hold; the cache is smaller",
        5: "that is how many blocks a request needs; how often does it fit into 32?",
    },
    "max_utilization": {
        10: None,
        16: "2 blocks hold the prompt and are full with it: the one more token needs a third",
        6: "that is the careful policy; this one takes blocks for 129 tokens to begin with",
        15: "129 tokens take 3 whole blocks of 64, not 2.02",
        32: "one block holds 64 tokens, and the prompt has 128",
        64: "that is how many the batch may hold; the cache is smaller",
        7: "it does not look at max_tokens: 129 tokens, in whole blocks",
        3: "that is how many blocks a request takes to begin with; how often do they fit into 32?",
    },
}


@exercise("04.3", expects="a dict with guaranteed_no_evict and max_utilization, two numbers of requests")
def requests(answer: dict[str, float]) -> Verdict:
    advice = {
        "guaranteed_no_evict": "there are 2048 / 64 = 32 blocks; round the 278 tokens of a request up to whole blocks",
        "max_utilization": "there are 32 blocks; round 129 tokens up to whole blocks",
    }
    praise = "5 blocks each against 3 each, out of 32: more requests start, and not all of them can stay"
    return _judge(answer, _REQUESTS, advice, praise)
