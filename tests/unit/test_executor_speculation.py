"""Speculation over the fake model: the same outputs as without guesses, whatever the guesses, only in fewer steps."""

from __future__ import annotations

import numpy as np
import pytest
from executor_helpers import MAX_SEQ_LEN, VOCAB, Collector, expected_tokens, fake_executor, next_token, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drafters import PromptLookup, generate
from reference_backend.executor import Request, RequestError, SamplingParams

PROMPT = [5, 6]


class Scripted:
    """Guesses the right tokens, `wrong` of ten times another one; keeps what it was asked."""

    def __init__(self, length=4, wrong=0, seed=0):
        self.length, self.wrong, self.random, self.asked = length, wrong, np.random.default_rng(seed), []

    def propose(self, tokens, at_most):
        self.asked.append((list(tokens), at_most))
        seen = list(tokens)
        for _ in range(self.length):
            right = self.random.integers(10) >= self.wrong
            seen.append(next_token(seen) if right else int(self.random.integers(VOCAB)))
        return seen[len(tokens) :]


@pytest.fixture
def start(tmp_path, monkeypatch):
    running = []

    def make(**options):
        running.append(fake_executor(tmp_path, monkeypatch, **options))
        return running[-1]

    yield make
    for executor, model in running:
        model.release()
        executor.shutdown()


def run(executor, prompt=PROMPT, max_tokens=20, name="a", **fields):
    """The outputs of one request."""
    collector = Collector()
    sampling = SamplingParams(**fields.pop("sampling", {}))
    executor.submit(Request(name, np.array(prompt), max_tokens, sampling, on_output=collector, **fields))
    collector.wait(name)
    return collector.outputs[name]


def joined(outputs):
    """Everything a caller gets in the end."""
    logits = [output.generation_logits for output in outputs if output.generation_logits is not None]
    return {
        "tokens": [token for output in outputs for token in output.tokens],
        "log_probs": [value for output in outputs for value in output.log_probs],
        "logits": np.concatenate(logits).tolist() if logits else None,
        "context": [output.context_logits.tolist() for output in outputs if output.context_logits is not None],
        "reason": outputs[-1].finish_reason,
        "error": outputs[-1].error,
    }


def test_right_guesses_bring_several_tokens_in_one_output(start):
    executor, model = start()
    outputs = run(executor, max_tokens=11, drafter=Scripted(length=4))
    expected = expected_tokens(PROMPT, 11)
    assert [output.tokens for output in outputs] == [expected[:5], expected[5:10], expected[10:]]
    assert model.calls == [(0, 1, 2 + 4), (0, 1, 1 + 4), (0, 1, 1)], "the prompt goes with the first guesses"
    assert executor.stats()["generated_tokens"] == 11
    assert executor.stats()["steps"] == 2


def test_wrong_guesses_bring_one_token_a_step(start):
    executor, model = start()
    drafter = Scripted(length=3, wrong=10)
    assert generate(executor, PROMPT, 8, drafter=drafter) == expected_tokens(PROMPT, 8)
    assert all(tokens == PROMPT + expected_tokens(PROMPT, len(tokens) - 2) for tokens, _ in drafter.asked)


def test_a_drafter_is_asked_for_no_more_than_there_is_room_for(start):
    executor, model = start()
    drafter = Scripted(length=50)
    assert generate(executor, PROMPT, 6, drafter=drafter) == expected_tokens(PROMPT, 6)
    assert drafter.asked == [(PROMPT, 5)]  # one token is the target's own
    assert model.calls == [(0, 1, 2 + 5)]
    long = [7] * (MAX_SEQ_LEN - 3)
    assert generate(executor, long, 50, drafter=Scripted(length=50)) == expected_tokens(long, 3)
    drafter = Scripted()
    assert generate(executor, PROMPT, 1, drafter=drafter) == expected_tokens(PROMPT, 1)
    assert drafter.asked == [], "nothing to guess"


EXPECTED = expected_tokens(PROMPT, 20)
CASES = {
    "end_id": {"end_id": EXPECTED[7]},
    "end_id held back": {"end_id": EXPECTED[3], "sampling": {"min_tokens": 9}},
    "stop word": {"stop_words": [[1, 2], EXPECTED[5:8]]},
    "stop word of one": {"stop_words": [EXPECTED[2:3]]},
    "stop word begun in the prompt": {"stop_words": [[6, EXPECTED[0]]]},
    "bad words": {"bad_words": [EXPECTED[3:5], EXPECTED[9:10]]},
    "bias": {"embedding_bias": np.linspace(0, 12, VOCAB)},
    "penalties": {"sampling": {"repetition_penalty": 1.5, "presence_penalty": 6.0, "frequency_penalty": 3.0}},
    "sampling": {"sampling": {"temperature": 6.0, "top_k": 40, "top_p": 0.95, "seed": 11}},
    "sampling and penalties": {"sampling": {"temperature": 5.0, "top_p": 0.9, "seed": 3, "frequency_penalty": 1.0}},
    "everything back": {"return_log_probs": True, "return_context_logits": True, "return_generation_logits": True},
    "nothing left": {"end_id": EXPECTED[0], "bad_words": [[EXPECTED[4], token] for token in range(VOCAB)]},
}


@pytest.mark.parametrize("wrong", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_those_without_guesses(start, case, wrong):
    executor, model = start()
    fields = {"return_log_probs": True, **CASES[case]}
    plain = joined(run(executor, **fields))
    before, greedy = len(model.calls), "temperature" not in fields.get("sampling", {})
    drafted = joined(run(executor, drafter=Scripted(wrong=wrong, seed=7), **fields))
    assert drafted == plain
    if greedy and not wrong and len(plain["tokens"]) > 3:
        assert len(model.calls) - before < before


def test_a_stop_word_inside_an_accepted_run_cuts_there(start):
    executor, _ = start()
    (only,) = run(executor, stop_words=[EXPECTED[1:3]], drafter=Scripted(length=8))
    assert only.tokens == EXPECTED[:3] and only.finish_reason == "stop_words"
    (only,) = run(executor, end_id=EXPECTED[2], drafter=Scripted(length=8))
    assert only.tokens == EXPECTED[: EXPECTED.index(EXPECTED[2])] and only.finish_reason == "end_id"


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_neighbours_with_and_without_guesses_do_not_disturb_each_other(tmp_path_factory, data):
    """Slots are shared, moved and overwritten by rejected guesses; each text must still be its own."""
    drawn = st.integers(0, VOCAB - 1)
    with pytest.MonkeyPatch.context() as patch:
        executor, _ = fake_executor(
            tmp_path_factory.mktemp("fake"), patch, max_batch_size=3, prefill_tokens=data.draw(st.integers(1, 9))
        )
        with executor:
            collector, wanted = Collector(), {}
            for number in range(data.draw(st.integers(2, 7))):
                prompt = data.draw(st.lists(drawn, min_size=1, max_size=12))
                count = data.draw(st.integers(1, 25))
                wrong = data.draw(st.sampled_from([None, 0, 4, 10]))
                given = data.draw(st.sampled_from([0, 2, 30]))
                job = request(str(number), prompt, count, collector)
                job.drafter = None if wrong is None else Scripted(data.draw(st.integers(1, 6)), wrong, number)
                job.draft_tokens = expected_tokens(prompt, given)
                executor.submit(job)
                wanted[str(number)] = expected_tokens(prompt, count)
            collector.wait(*wanted)
            assert {name: collector.tokens(name) for name in wanted} == wanted


def test_rows_without_guesses_stay_one_batch(start):
    """a and c generate together, in one batch that b between them goes through; b verifies alone."""
    executor, model = start(max_batch_size=3)
    model.hold()  # until all are there
    collector = Collector()
    for name, drafter in (("a", None), ("b", Scripted(length=2)), ("c", None)):
        job = request(name, [5, ord(name) - 90], 40, collector)
        job.drafter = drafter
        executor.submit(job)
    model.release()
    collector.wait("a", "b", "c")
    assert (0, 3, 1) in model.calls
    assert model.calls[model.calls.index((0, 3, 1)) + 1] == (1, 1, 3)
    for name in "abc":
        assert collector.tokens(name) == expected_tokens([5, ord(name) - 90], 40)


def test_what_is_kept_for_others_holds_no_rejected_guess(start):
    """A stop word ends the request where the guess was another token, whose memory is not the stop word's."""
    executor, _ = start(tokens_per_block=4)
    for seed in range(8):
        prompt = [5, 6, seed]
        expected = expected_tokens(prompt, 12)
        drafter = Scripted(length=5, wrong=5, seed=seed)
        assert generate(executor, prompt, 20, stop_words=[expected[-2:]], drafter=drafter) == expected
        longer = [*prompt, *expected, 33]
        assert generate(executor, longer, 3) == expected_tokens(longer, 3)
    assert executor.stats()["kv_reused_blocks"]


def test_given_draft_tokens_are_read_with_the_prompt(start):
    executor, model = start()
    outputs = run(executor, max_tokens=5, draft_tokens=[*EXPECTED[:3], EXPECTED[3] + 1])
    assert [output.tokens for output in outputs] == [EXPECTED[:4], EXPECTED[4:5]]
    assert model.calls == [(0, 1, 2 + 4), (0, 1, 1)]
    # In pieces of three: the guesses go with the last piece.
    executor, model = start(prefill_tokens=3)
    prompt = [4] * 7
    outputs = run(executor, prompt, 3, draft_tokens=expected_tokens(prompt, 3), return_context_logits=True)
    assert [output.tokens for output in outputs] == [expected_tokens(prompt, 3)]
    assert [new for _, _, new in model.calls] == [3, 3, 1 + 2]
    assert outputs[0].context_logits.shape == (7, VOCAB)
    assert outputs[0].context_logits[-1].argmax() == outputs[0].tokens[0]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_given_draft_tokens_are_read_whole_when_blocks_come_one_by_one(start, length):
    """Else a round of speculation would end early, as if the answer had."""
    executor, _ = start(tokens_per_block=4, max_tokens_in_paged_kv_cache=40, batch_scheduler_policy="max_utilization")
    expected = expected_tokens([4] * length, 5)
    outputs = run(executor, [4] * length, 5, draft_tokens=expected[:4], end_after_draft=True)
    assert [token for output in outputs for token in output.tokens] == expected
    assert outputs[-1].metrics.total_draft_tokens == 4


def test_counts_of_drafted_and_accepted_tokens(start):
    executor, _ = start()
    metrics = run(executor, max_tokens=9, drafter=Scripted(length=4), draft_tokens=[EXPECTED[0], 96, 96])[-1].metrics
    assert (metrics.total_draft_tokens, metrics.total_accepted_draft_tokens) == (3 + 4 + 1, 1 + 4 + 1)
    assert metrics.acceptance_rate == 6 / 8
    assert run(executor, max_tokens=9)[-1].metrics.acceptance_rate == 0
    metrics = run(executor, end_id=EXPECTED[2], drafter=Scripted(length=4))[-1].metrics
    assert metrics.total_accepted_draft_tokens == 2, "end_id is no token"


def test_guesses_stay_within_the_blocks_that_a_request_holds(start):
    """Under max_utilization they grow with the text: a guess must not write where others may be put."""
    executor, model = start(tokens_per_block=4, batch_scheduler_policy="max_utilization")
    assert generate(executor, PROMPT, 12, drafter=Scripted(length=9)) == EXPECTED[:12]
    assert [new for _, _, new in model.calls] == [2 + 2, 1 + 3, 1 + 3, 1]
    executor, _ = start(tokens_per_block=4, batch_scheduler_policy="max_utilization", max_tokens_in_paged_kv_cache=40)
    collector = Collector()
    for name in "abcd":
        job = request(name, [5, ord(name) - 90], 30, collector)
        job.drafter = Scripted(length=3, wrong=3)
        executor.submit(job)
    collector.wait(*"abcd")
    assert executor.stats()["preempted"]
    for name in "abcd":
        assert collector.tokens(name) == expected_tokens([5, ord(name) - 90], 30)


def test_a_drafter_that_fails_ends_its_own_request_only(start):
    class Broken:
        def propose(self, tokens, at_most):
            if len(tokens) > 5:
                raise ValueError("no idea")
            return []

    class Foreign:
        def propose(self, tokens, at_most):
            return [VOCAB]

    executor, _ = start()
    collector = Collector()
    for name, drafter in (("broken", Broken()), ("foreign", Foreign()), ("fine", None)):
        job = request(name, PROMPT, 20, collector)
        job.drafter = drafter
        executor.submit(job)
    collector.wait("broken", "foreign", "fine")
    assert collector.tokens("broken") == EXPECTED[:4]
    assert collector.outputs["broken"][-1].error == "ValueError: no idea"
    assert "must share the tokenizer" in collector.outputs["foreign"][-1].error
    assert collector.tokens("fine") == EXPECTED
    assert executor.stats()["kv_blocks_used"] == 0


def test_a_step_that_fails_ends_the_requests_in_it(start):
    executor, model = start()
    model.hold()
    collector = Collector()
    job = request("a", PROMPT, 20, collector)
    job.drafter = Scripted(length=2)
    executor.submit(job)
    model.allow(1)
    collector.wait_for_tokens("a", 1)
    model.broken = ValueError("no memory")
    model.release()
    collector.wait("a")
    assert collector.reason("a") == "error" and collector.tokens("a") == EXPECTED[:3]
    model.broken = None
    assert generate(executor, PROMPT, 5) == EXPECTED[:5]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": SamplingParams(beam_width=2), "draft_tokens": [1]}, "for one path"),
        ({"sampling": SamplingParams(beam_width=2), "drafter": PromptLookup()}, "for one path"),
        ({"draft_tokens": ["a"]}, "draft_tokens must be a list"),
        ({"draft_tokens": [[1]]}, "draft_tokens must be a list"),
    ],
)
def test_bad_requests(fields, words):
    with pytest.raises(RequestError, match=words):
        Request("a", np.array(PROMPT), 5, **fields)


def test_draft_tokens_outside_the_vocabulary_are_refused(start):
    executor, _ = start()
    with pytest.raises(RequestError, match=f"draft_tokens holds token id {VOCAB}"):
        run(executor, draft_tokens=[1, VOCAB])
