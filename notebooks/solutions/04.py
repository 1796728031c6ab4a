"""Answers of notebook 04, and what people believe instead."""

SETUP = ""

LIVE = {"04.1"}

SOLUTIONS = {
    "04.1": """
answer_1 = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 600000 } }"
""",
    "04.2": """
answer_2 = {"static": max(2, 8) + max(3, 5), "inflight": max(8, 2 + 3 + 5)}
""",
    "04.3": """
blocks = 2048 // 64
whole = lambda count: -(-count // 64)
answer_3 = {"guaranteed_no_evict": blocks // whole(128 + 150), "max_utilization": blocks // whole(128 + 1)}
""",
}


def _queue(policy: str) -> str:
    return f'answer_1 = "dynamic_batching {{ {policy} }}"'


def _timeout(microseconds: int, more: str = "") -> str:
    return f"default_queue_policy {{ default_timeout_microseconds: {microseconds} {more} }}"


def _steps(**changed: float) -> str:
    return f"answer_2 = {({'static': 13, 'inflight': 10} | changed)!r}"


def _requests(**changed: float) -> str:
    return f"answer_3 = {({'guaranteed_no_evict': 6, 'max_utilization': 10} | changed)!r}"


MUTANTS = {
    "04.1": [
        ("Triton batches by itself", 'answer_1 = ""', "an execution of its own"),
        ("batches are enough", _queue(""), "nothing refuses"),
        ("a delay limits the wait", _queue("max_queue_delay_microseconds: 600000"), "refuses nobody"),
        ("the timeout is the limit", _queue(_timeout(1_000_000)), "comes on top"),
        ("a timeout in milliseconds", _queue(_timeout(600)), "in microseconds"),
        ("a late answer is better than none", _queue(_timeout(600_000, "timeout_action: DELAY")), "still later"),
        ("more instances", 'answer_1 = "instance_group [ { count: 4 kind: KIND_CPU } ]"', "room for one instance"),
        ("the policy stands alone", f'answer_1 = "{_timeout(600_000)}"', "no field named"),
    ],
    "04.2": [
        ("static lets others in", _steps(static=10), "lets nobody in"),
        ("static sorts by length", _steps(static=11), "nobody sorts"),
        ("there is no batch", _steps(static=18), "one after another"),
        ("static has no empty slots", _steps(static=9), "2 waits for 8"),
        ("all fit into one batch", _steps(static=8), "then comes a second"),
        ("the shortest ends a batch", _steps(static=7), "not as its shortest"),
        ("in flight is perfectly full", _steps(inflight=9), "runs alone for a while"),
        ("in flight has a slot for everybody", _steps(inflight=8), "only two slots"),
        ("in flight is static", _steps(inflight=13), "that is the static batch"),
        ("a slot is freed by the longest", _steps(inflight=11), "nobody waits for the 8"),
    ],
    "04.3": [
        ("tokens fill blocks without a rest", _requests(guaranteed_no_evict=2048 // 278), "not 4.3"),
        ("only the prompt is reserved", _requests(guaranteed_no_evict=2048 // 128), "not only for the prompt"),
        ("only max_tokens is reserved", _requests(guaranteed_no_evict=32 // 3), "the prompt and all of max_tokens"),
        ("a request is a block", _requests(guaranteed_no_evict=32), "the number of blocks"),
        ("the batch size is the limit", _requests(guaranteed_no_evict=64), "how many the batch may hold"),
        ("blocks of one request", _requests(guaranteed_no_evict=5), "how many blocks a request needs"),
        ("the next token has room", _requests(max_utilization=32 // 2), "full with it"),
        ("both policies reserve all", _requests(max_utilization=6), "the careful policy"),
        ("blocks may be cut", _requests(max_utilization=2048 // 129), "not 2.02"),
        ("the prompt fits one block", _requests(max_utilization=32), "the prompt has 128"),
        ("it reserves without rounding", _requests(max_utilization=2048 // 278), "does not look at max_tokens"),
        ("half an answer is none", _requests(max_utilization=None), "max_utilization is still missing"),
    ],
}
