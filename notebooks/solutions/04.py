"""Answers of notebook 04, and what people believe instead."""

SETUP = "from servinglab import assets; engine = assets.engine('smollm2', 'int4')"

LIVE = {"04.1", "04.2", "04.3"}

SOLUTIONS = {
    "04.1": """
answer_1 = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 600000 } }"
""",
    "04.2": """
answer_2 = [12, 2, 12, 2]
""",
    "04.3": """
answer_3 = {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 4 * 64}
""",
}


def _queue(policy: str) -> str:
    return f'answer_1 = "dynamic_batching {{ {policy} }}"'


def _timeout(microseconds: int, more: str = "") -> str:
    return f"default_queue_policy {{ default_timeout_microseconds: {microseconds} {more} }}"


def _cache(policy: str, tokens: int) -> str:
    return f'answer_3 = {{"batch_scheduler_policy": "{policy}", "max_tokens_in_paged_kv_cache": {tokens}}}'


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
        ("long answers are bad for a batch", "answer_2 = [12, 12, 12, 12]", "leave no slot empty"),
        ("a batch takes what is alike", "answer_2 = [12, 12, 2, 2]", "nobody sorts them"),
        ("one long answer delays all", "answer_2 = [12, 2, 2, 2]", "only short answers"),
        ("any difference will do", "answer_2 = [12, 7, 12, 7]", "not short enough"),
    ],
    "04.3": [
        ("a policy changes nothing", _cache("guaranteed_no_evict", 256), "before it starts"),
        ("all that may come must fit", _cache("guaranteed_no_evict", 512), "words that never come"),
        ("a bold policy needs as much", _cache("max_utilization", 512), "never used"),
        ("tokens fill blocks without a rest", _cache("max_utilization", 4 * 41), "belongs to one request"),
        ("the cache holds prompts", _cache("max_utilization", 4 * 16), "needs 2 KV cache blocks"),
    ],
}
