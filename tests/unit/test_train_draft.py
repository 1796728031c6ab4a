"""The tool that distils a draft: its beginning, its gradient against autograd's, its texts, a run in seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_models
import torch

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = (
    "{% for m in messages %}{{ 'w5 ' if m['role'] == 'user' else 'w6 ' }}{{ m['content'] }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w6 {% endif %}"
)


@pytest.fixture(scope="module", autouse=True)
def tools():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of matrices this small, more threads only wait for each other
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random Llama of four layers, its folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_models.write_checkpoint(folder, num_hidden_layers=4, tie_word_embeddings=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, model


def test_a_draft_begins_as_layers_of_its_target_and_shares_the_rest(tiny):
    from draft_training import hidden_of, logits, own
    from train_draft import fresh, truncated

    reference = tiny[1].requires_grad_(False)
    untrained = truncated(reference, [0, 3])
    draft = fresh(untrained)
    ids = torch.randint(300, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = logits(draft, hidden_of(draft, ids))
        layers, reference.model.layers = reference.model.layers, reference.model.layers[::3]
        expected = reference(ids, use_cache=False).logits
        reference.model.layers = layers
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    trained = {name for name, weight in draft.named_parameters() if weight.requires_grad}
    assert len(trained) == len(own(draft)) == 2 * 9 + 1
    assert draft.lm_head.weight is reference.lm_head.weight
    assert draft.model.norm.weight is not untrained.model.norm.weight is not reference.model.norm.weight


def test_the_gradient_of_the_divergence_is_that_of_autograd(monkeypatch):
    import draft_training

    monkeypatch.setattr(draft_training, "CHUNK", 4)  # three parts, the last one shorter
    torch.manual_seed(0)
    head, hidden, states = torch.randn(30, 8), torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 8)
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=head))
    found, (kl, agreement) = draft_training.head_gradient(hidden, states, model, measure=True)
    logs, target = ((x @ head.T).log_softmax(-1) for x in (hidden.flatten(0, 1), states.flatten(0, 1)))
    expected = torch.nn.functional.kl_div(logs, target, reduction="batchmean", log_target=True)
    expected.backward()
    torch.testing.assert_close(found, hidden.grad, rtol=1e-4, atol=1e-6)
    assert kl == pytest.approx(expected.item(), rel=1e-4)
    assert agreement == pytest.approx((logs.argmax(-1) == target.argmax(-1)).float().mean().item())


def test_rounds_are_counted_as_speculation_counts_them():
    from draft_measure import summary

    # Two are kept and the target replaces the third; none is kept; four are kept; the answer ends inside a round.
    hits = [True, True, False, False, True, True, True, True, True, True]
    assert summary([hits]) == {"agreement": 0.8, "accepted_per_round": 1.75, "tokens_per_round": 2.5}
    assert summary([[False] * 3]) == {"agreement": 0.0, "accepted_per_round": 0.0, "tokens_per_round": 1.0}


def test_turns_follow_the_template_and_greedy_rows_are_greedy(tiny):
    from draft_texts import Chat, Rows, write
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chat = Chat.of(AutoTokenizer.from_pretrained(tiny[0]))
    assert chat == Chat([5], [2, 6], [2, 5])
    llama = AutoModelForCausalLM.from_pretrained(tiny[0], dtype=torch.float32).requires_grad_(False)
    llama.model.embed_tokens.weight[2] *= 1.5  # so that turns end now and then
    torch.manual_seed(0)
    rows = Rows([[5, 9]] * 6 + [[7, 8]], [True] * 6 + [False], [True] * 6 + [False], [1.0] * 7, [0] * 7)
    written, states = write(llama, rows, chat, 120)
    with torch.no_grad():
        torch.testing.assert_close(states, llama.model(written.long()).last_hidden_state, rtol=1e-3, atol=1e-3)
    ends = 0
    for row in written[:6].tolist():
        asking, at = True, 2
        while 2 in row[at:-1]:
            at = row.index(2, at) + 1
            assert row[at] == (6 if asking else 5)
            asking, ends = not asking, ends + 1
    assert ends > 6
    greedy, states = write(llama, Rows([[7, 8]], [False], [False], [0.0], [0]), chat, 30)
    assert greedy[0, 2:].tolist() == llama.lm_head(states[0, 1:-1]).argmax(-1).tolist()


@pytest.mark.long
def test_a_short_run_learns_and_says_what_it_measured(tiny, tmp_path, monkeypatch):
    import train_draft
    from safetensors import safe_open

    out = tmp_path / "draft" / "tiny.safetensors"
    options = "--minutes 60 --most 500 --steps 40 --rows 16 --length 24 --batch 192 --answer 4".split()
    monkeypatch.setattr(sys, "argv", ["train_draft.py", "--checkpoint", str(tiny[0]), "--out", str(out), *options])
    train_draft.main()  # in this process: importing PyTorch again would take longer than the run
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["training"]["kl_after"] < facts["training"]["kl_before"]
    assert facts["held_out"]["draft"]["all"].keys() == facts["held_out"]["untrained"]["all"].keys()
    with safe_open(out, "pt") as file:
        assert file.metadata()["layers"] == "0,3"
        names = set(file.keys())
    assert "model.norm.weight" in names and not any("embed" in name or "lm_head" in name for name in names)
    assert sum("layers.1." in name for name in names) == 9 and not any("layers.2." in name for name in names)
