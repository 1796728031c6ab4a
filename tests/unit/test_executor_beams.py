"""Beam search of the executor against transformers' `generate(num_beams=…)`, and what else must work with beams.

The tiny model (random weights, 300 words) makes every combination affordable; test_executor_parity.py repeats the
comparison with the real weights.
"""

from __future__ import annotations

import numpy as np
import pytest
from executor_helpers import Collector, expected_tokens, fake_executor, request, wait_until
from tiny_models import VOCABULARY, write_checkpoint, write_engine

from drafters import generate
from reference_backend.executor import Executor, RequestError
from servinglab import decoding

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEW_TOKENS = 8
RATE = {"beam_search_diversity_rate": 1e4}
TIE = 1e-4  # scores nearer than this may come in either order


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(transformers' model, its engine)"""
    root = tmp_path_factory.mktemp("beams")
    model = write_checkpoint(root / "checkpoint", tie_word_embeddings=True)
    return model, write_engine(root / "checkpoint", root / "engine")


@pytest.fixture(scope="module")
def executor(tiny):
    with Executor(tiny[1], max_batch_size=8, max_beam_width=8) as running:
        yield running


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return np.random.default_rng(0).integers(3, VOCABULARY, (10, 6)).tolist()


def hf_beams(model, prompts, end_id, width, penalty, stopping, new_tokens=NEW_TOKENS, **more):
    """[prompt][beam] -> (tokens, without end_id if that is one token, score)."""
    ids = torch.tensor(prompts)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=width, num_return_sequences=width,
        max_new_tokens=new_tokens, length_penalty=penalty, early_stopping=stopping, eos_token_id=end_id, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True, **more,
    )  # fmt: skip
    found = []
    for row, score in zip(out.sequences[:, len(prompts[0]) :].tolist(), out.sequences_scores.tolist(), strict=True):
        if isinstance(end_id, list):  # end tokens that are stop words here, and so stay part of the text
            ended = [at for at, token in enumerate(row) if token in end_id]
            found.append((row[: ended[0] + 1] if ended else row[:new_tokens], score))
        else:
            found.append((row[: row.index(end_id)] if end_id in row else row[:new_tokens], score))
    return [found[at : at + width] for at in range(0, len(found), width)]


def run_beams(executor, prompts, new_tokens=NEW_TOKENS, **options):
    """The last output of each prompt, all in flight together."""
    collector = Collector()
    for at, prompt in enumerate(prompts):
        executor.submit(request(str(at), prompt, new_tokens, collector, **options))
    names = [str(at) for at in range(len(prompts))]
    collector.wait(*names, seconds=240)
    assert not [collector.outputs[name][-1].error for name in names if collector.reason(name) == "error"]
    return [collector.outputs[name][-1] for name in names]


@pytest.fixture(scope="module")
def end_id(executor, prompts) -> int:
    """A token that ends many of the beams, but not all."""
    outputs = run_beams(executor, prompts, beam_width=4)
    tokens = [token for output in outputs for beam in output.beams for token in beam.tokens[1:]]
    return int(np.bincount(tokens).argmax())


@pytest.mark.parametrize(("early_stopping", "theirs"), [(1, True), (0, False), (2, "never")])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_equal_transformers(tiny, executor, prompts, end_id, width, early_stopping, theirs):
    """Ten prompts, eight in flight, length penalties 0, 1 and 2: tokens, scores and order of every beam."""
    ended = set()
    for penalty in (0.0, 1.0, 2.0):
        outputs = run_beams(
            executor, prompts, end_id=end_id, beam_width=width, length_penalty=penalty, early_stopping=early_stopping,
            min_tokens=0,
        )  # fmt: skip
        expected = hf_beams(tiny[0], prompts, end_id, width, penalty, theirs)
        for output, beams in zip(outputs, expected, strict=True):
            assert [beam.score for beam in output.beams] == pytest.approx([score for _, score in beams], abs=TIE)
            assert [beam.tokens for beam in output.beams] == [tokens for tokens, _ in beams]
            for beam in output.beams:
                choices = len(beam.tokens) + (beam.finish_reason == "end_id")
                assert len(beam.log_probs) == choices and sum(beam.log_probs) == pytest.approx(beam.cum_log_prob)
                assert beam.score == pytest.approx(beam.cum_log_prob / choices**penalty)
            ended |= {beam.finish_reason for beam in output.beams}
    assert ended == {"end_id", "length"}, "else the length penalty would compare nothing"


def test_bans_equal_transformers_that_renormalises(tiny, executor, prompts, end_id):
    outputs = run_beams(executor, prompts, end_id=end_id, beam_width=4, min_tokens=3, bad_words=[[5], [7, 9]])
    expected = hf_beams(
        tiny[0], prompts, end_id, 4, 0.0, True, min_new_tokens=3, bad_words_ids=[[5], [7, 9]], renormalize_logits=True
    )
    for output, beams in zip(outputs, expected, strict=True):
        assert [beam.tokens for beam in output.beams] == [tokens for tokens, _ in beams]
        assert [beam.score for beam in output.beams] == pytest.approx([score for _, score in beams], abs=TIE)


@pytest.mark.parametrize("repetition", [1.0, 1.4])
def test_penalties_see_the_tokens_of_each_beam_alone(tiny, executor, prompts, repetition):
    """transformers' own beam search penalises log probabilities, which for a factor is something else than logits. So
    its logits and its processor of logits go into the readable search of `servinglab.decoding`."""
    processor = transformers.RepetitionPenaltyLogitsProcessor(repetition)
    options = {"frequency_penalty": 0.7 * (repetition == 1), "presence_penalty": 0.5}

    def next_log_probs(sequences):
        ids = torch.tensor(sequences)
        with torch.no_grad():
            logits = processor(ids, tiny[0](ids).logits[:, -1].double())
        counts = torch.stack([torch.bincount(row, minlength=VOCABULARY) for row in ids])
        logits = logits - options["frequency_penalty"] * counts - options["presence_penalty"] * (counts > 0)
        return torch.log_softmax(logits, -1).numpy()

    outputs = run_beams(executor, prompts[:3], beam_width=4, repetition_penalty=repetition, **options)
    free = run_beams(executor, prompts[:3], beam_width=4)
    for prompt, output in zip(prompts, outputs, strict=False):
        expected = decoding.beam_search(next_log_probs, prompt, width=4, max_tokens=NEW_TOKENS).hypotheses
        assert [beam.tokens for beam in output.beams] == [hypothesis.tokens for hypothesis in expected]
        assert [beam.score for beam in output.beams] == pytest.approx([h.score for h in expected], abs=TIE)
    assert [output.beams[0].tokens for output in outputs] != [output.beams[0].tokens for output in free]


def test_several_ends_equal_transformers(tiny, executor, prompts):
    """One-token stop words are further end tokens. So many of them fill the 2 x width likeliest continuations."""
    words = list(range(30, VOCABULARY))
    found = set()
    for penalty, stopping, theirs in [(0.0, 1, True), (2.0, 0, False), (2.0, 2, "never")]:
        outputs = run_beams(
            executor, prompts[:8], beam_width=2, min_tokens=0, stop_words=[[word] for word in words],
            length_penalty=penalty, early_stopping=stopping,
        )  # fmt: skip
        for output, beams in zip(
            outputs, hf_beams(tiny[0], prompts[:8], words, 2, penalty, stopping=theirs), strict=True
        ):
            assert [beam.score for beam in output.beams] == pytest.approx([score for _, score in beams], abs=TIE)
            assert [beam.tokens for beam in output.beams] == [tokens for tokens, _ in beams]
            found |= {(beam.finish_reason, len(beam.tokens) > 1) for beam in output.beams}
    assert {("stop_words", False), ("stop_words", True)} <= found


def test_an_embedding_bias_moves_beams(executor, prompts):
    bias = np.zeros(VOCABULARY, np.float32)
    bias[42] = 100
    collector = Collector()
    made = request("a", prompts[0], 3, collector, beam_width=2)
    made.embedding_bias = bias
    executor.submit(made)
    collector.wait("a")
    assert collector.outputs["a"][-1].beams[0].tokens == [42, 42, 42]


def test_a_stop_word_ends_its_own_beam(executor, prompts):
    free = run_beams(executor, prompts[:1], beam_width=4)[0].beams
    word = free[1].tokens[2:4]
    stopped = run_beams(executor, prompts[:1], beam_width=4, stop_words=[word], early_stopping=0)[0].beams
    assert {beam.finish_reason for beam in stopped} == {"stop_words", "length"}
    for beam in stopped:
        assert (beam.tokens[-2:] == word) == (beam.finish_reason == "stop_words")


def test_diversity_spreads_the_parents(executor, prompts):
    """With a huge rate only the children of the last path go on, whatever they cost: all beams begin with its word."""
    plain, diverse = (
        run_beams(executor, prompts, beam_width=4, beam_search_diversity_rate=rate, new_tokens=4) for rate in (0, 1e4)
    )
    (firsts, seconds) = (run_beams(executor, prompts, beam_width=4, new_tokens=n, **RATE) for n in (1, 2))
    for one, two, output in zip(firsts, seconds, diverse, strict=True):
        assert {beam.tokens[0] for beam in output.beams} == {one.beams[-1].tokens[0]}
        assert {tuple(beam.tokens[:2]) for beam in output.beams} == {tuple(two.beams[-1].tokens)}
    for first, second in zip(plain, diverse, strict=True):
        assert second.beams[0].cum_log_prob <= first.beams[0].cum_log_prob + TIE
        assert sum(second.beams[0].log_probs) == pytest.approx(second.beams[0].cum_log_prob), "the rate is in no score"
    assert any(a.beams[0].tokens != b.beams[0].tokens for a, b in zip(plain, diverse, strict=True))


def test_logits_of_a_beam_are_those_of_its_own_path(tiny, executor, prompts, end_id):
    collector = Collector()
    made = request("a", prompts[3], 6, collector, beam_width=4, end_id=end_id, min_tokens=0)
    made.return_generation_logits = made.return_context_logits = True
    executor.submit(made)
    collector.wait("a")
    first, last = collector.outputs["a"][0], collector.outputs["a"][-1]
    with torch.no_grad():
        expected = tiny[0](torch.tensor([prompts[3]])).logits[0].numpy()
    np.testing.assert_allclose(first.context_logits, expected, atol=TIE)
    for beam in last.beams:
        with torch.no_grad():
            all_logits = tiny[0](torch.tensor([prompts[3] + beam.tokens])).logits[0].numpy()
        np.testing.assert_allclose(beam.logits, all_logits[5 : 5 + len(beam.log_probs)], atol=TIE)


def test_a_prompt_that_is_read_in_pieces(tiny, executor, prompts):
    prompt = sum(prompts[:4], [])
    (whole,) = run_beams(executor, [prompt], beam_width=4)
    collector = Collector()
    with Executor(tiny[1], max_beam_width=4, prefill_tokens=7) as pieces:
        made = request("a", prompt, NEW_TOKENS, collector, beam_width=4)
        made.return_context_logits = True
        pieces.submit(made)
        collector.wait("a")
    first, last = collector.outputs["a"][0], collector.outputs["a"][-1]
    assert [beam.tokens for beam in last.beams] == [beam.tokens for beam in whole.beams]
    assert [beam.score for beam in last.beams] == pytest.approx([beam.score for beam in whole.beams], abs=TIE)
    with torch.no_grad():
        expected = tiny[0](torch.tensor([prompt])).logits[0].numpy()
    np.testing.assert_allclose(first.context_logits, expected, atol=TIE)


# --- beside other requests


def test_beams_sampling_and_greedy_run_together_as_alone(executor, prompts):
    kinds = {
        "beams": {"beam_width": 4, "length_penalty": 1.0},
        "wide": {"beam_width": 8},
        "sampled": {"top_k": 40, "seed": 3, "temperature": 1.2},
        "greedy": {},
    }
    alone = {}
    for at, (name, options) in enumerate(kinds.items()):
        alone[name] = generate(executor, prompts[at], 40 - at, **options)
    collector = Collector()
    for round_number in range(3):
        for at, (name, options) in enumerate(kinds.items()):
            executor.submit(request(f"{name}{round_number}", prompts[at], 40 - at, collector, **options))
    names = [f"{name}{round_number}" for name in kinds for round_number in range(3)]
    collector.wait(*names, seconds=120)
    for name in names:
        beams = collector.outputs[name][-1].beams
        assert (beams[0].tokens if beams else collector.tokens(name)) == alone[name[:-1]], name
    assert executor.stats()["kv_blocks_used"] == executor.stats()["active"] == 0


def test_every_output_holds_the_beams_so_far(executor, prompts):
    collector = Collector()
    executor.submit(request("a", prompts[0], 6, collector, beam_width=3))
    collector.wait("a")
    outputs = collector.outputs["a"]
    assert [[len(beam.tokens) for beam in output.beams] for output in outputs] == [[n] * 3 for n in range(1, 7)]
    for output in outputs:
        assert not output.tokens
        assert sorted(output.beams, key=lambda beam: -beam.cum_log_prob) == list(output.beams)


def test_a_cancelled_beam_search_gives_back_every_slot_and_block(tmp_path, monkeypatch):
    executor, model = fake_executor(tmp_path, monkeypatch, max_batch_size=2, max_beam_width=4, tokens_per_block=8)
    collector = Collector()
    with executor:
        model.hold()
        executor.submit(request("beams", [1, 2, 3], 60, collector, beam_width=4))
        executor.submit(request("greedy", [4, 5], 60, collector))
        model.allow(6)
        wait_until(lambda: executor.stats()["kv_blocks_used"] == 8 * 4 + 8)
        wait_until(lambda: len(collector.outputs["greedy"]) >= 2)
        executor.cancel("beams")
        model.release()
        collector.wait("beams", "greedy")
        assert collector.reason("beams") == "cancelled"
        assert executor.stats()["kv_blocks_used"] == executor._scheduler.rows == 0
        assert generate(executor, [4, 5], 60) == collector.tokens("greedy")


def test_cancelled_while_the_prompt_is_read(tmp_path, monkeypatch):
    executor, model = fake_executor(tmp_path, monkeypatch, max_beam_width=4, tokens_per_block=8, prefill_tokens=4)
    collector = Collector()
    with executor:
        model.hold()
        executor.submit(request("beams", [1] * 20, 12, collector, beam_width=4))
        model.allow(2)
        wait_until(lambda: executor.stats()["prompt_tokens"] == 8)
        assert executor.stats()["kv_blocks_used"] == 4 * 4
        executor.cancel("beams")
        model.release()
        collector.wait("beams")
        assert collector.reason("beams") == "cancelled" and len(collector.outputs["beams"]) == 1
        assert executor.stats()["kv_blocks_used"] == executor._scheduler.rows == 0
        assert generate(executor, [4, 5], 9) == expected_tokens([4, 5], 9)


def test_a_failing_step_ends_the_search_and_frees_its_rows(tmp_path, monkeypatch):
    executor, model = fake_executor(tmp_path, monkeypatch, max_beam_width=4)
    collector = Collector()
    with executor:
        model.hold()
        executor.submit(request("beams", [1, 2, 3], 60, collector, beam_width=4))
        executor.submit(request("greedy", [1, 2, 3], 60, collector))
        model.allow(5)
        wait_until(lambda: len(collector.outputs["greedy"]) >= 2)
        model.broken = RuntimeError("no memory")
        model.release()
        collector.wait("beams", "greedy")
        model.broken = None
        for name in ("beams", "greedy"):
            assert collector.outputs[name][-1].error == "The model step failed: RuntimeError: no memory"
        assert executor.stats()["kv_blocks_used"] == executor._scheduler.rows == 0
        assert generate(executor, [4, 5], 9) == expected_tokens([4, 5], 9)


def test_what_cannot_be_served_is_said(tiny, executor):
    with pytest.raises(RequestError, match="beam_width 9 exceeds max_beam_width 8"):
        generate(executor, [1, 2], 3, beam_width=9)
    with pytest.raises(RequestError, match="length_penalty is -1"):
        generate(executor, [1, 2], 3, beam_width=2, length_penalty=-1)
    with Executor(tiny[1], max_beam_width=4, max_tokens_in_paged_kv_cache=256) as small:
        with pytest.raises(RequestError, match="for each of 4 beams, needs 8 KV cache blocks of 64 tokens"):
            generate(small, [1] * 60, 60, beam_width=4)
    collector = Collector()
    made = request("a", [1, 2], 3, collector, beam_width=2)
    made.embedding_bias = np.full(VOCABULARY, -np.inf, np.float32)
    executor.submit(made)
    collector.wait("a")
    assert collector.outputs["a"][-1].error == (
        "No token is left to choose: embedding_bias (with bad_words) forbids the whole vocabulary."
    )


def test_fewer_tokens_than_beams(executor, prompts):
    """A bias that leaves three tokens: the first step has three paths for eight rows, and all of them are right."""
    bias = np.full(VOCABULARY, -np.inf, np.float32)
    bias[[10, 11, 12]] = 0
    collector = Collector()
    made = request("a", prompts[0], 3, collector, beam_width=8)
    made.embedding_bias = bias
    executor.submit(made)
    collector.wait("a")
    beams = collector.outputs["a"][-1].beams
    assert len(collector.outputs["a"][0].beams) == 3 and len({tuple(beam.tokens) for beam in beams}) == 8
    assert {token for beam in beams for token in beam.tokens} == {10, 11, 12}
    assert all(np.isfinite(beam.cum_log_prob) for beam in beams)
