"""The tool that distils a draft: its Llama against transformers', its gradient against autograd's, a run in seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random Llama of four layers, its folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_models.write_checkpoint(folder, num_hidden_layers=4, tie_word_embeddings=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, model


def test_its_llama_is_that_of_transformers(tiny):
    from draft_llama import Llama

    folder, reference = tiny
    llama = Llama.load(folder, torch.device("cpu"), torch.float32)
    ids = torch.randint(300, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(ids).logits
        cache, rope = llama.cache(3, 20), llama.rope(20)
        steps = torch.cat([llama.hidden(ids[:, at : at + 1], rope, cache, at) for at in range(20)], 1)
        for hidden in (llama.hidden(ids, rope), steps):
            torch.testing.assert_close(hidden @ llama.head.T, expected, rtol=1e-4, atol=1e-4)
        reference.model.layers = reference.model.layers[::3]  # the first and the last
        found = llama.truncated([0, 3]).hidden(ids, rope) @ llama.head.T
        torch.testing.assert_close(found, reference(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_the_divergence_is_that_of_autograd(monkeypatch):
    import draft_training
    from draft_llama import Llama

    monkeypatch.setattr(draft_training, "CHUNK", 4)  # three parts, the last one shorter
    torch.manual_seed(0)
    head, hidden, states = torch.randn(30, 8), torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 8)
    model = Llama({}, {"lm_head.weight": head})
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
    from draft_llama import Llama
    from draft_texts import Chat, Rows, write
    from transformers import AutoTokenizer

    chat = Chat.of(AutoTokenizer.from_pretrained(tiny[0]))
    assert chat == Chat([5], [2, 6], [2, 5])
    llama = Llama.load(tiny[0], torch.device("cpu"), torch.float32)
    llama.weights["model.embed_tokens.weight"][2] *= 1.5  # so that turns end now and then
    torch.manual_seed(0)
    rows = Rows([[5, 9]] * 6 + [[7, 8]], [True] * 6 + [False], [True] * 6 + [False], [1.0] * 7, [0] * 7)
    written, states = write(llama, llama.rope(120), rows, chat, 120)
    with torch.no_grad():
        torch.testing.assert_close(states, llama.hidden(written, llama.rope(120)), rtol=1e-3, atol=1e-3)
    ends = 0
    for row in written[:6].tolist():
        asking, at = True, 2
        while 2 in row[at:-1]:
            at = row.index(2, at) + 1
            assert row[at] == (6 if asking else 5)
            asking, ends = not asking, ends + 1
    assert ends > 6
    greedy, states = write(llama, llama.rope(30), Rows([[7, 8]], [False], [False], [0.0], [0]), chat, 30)
    assert greedy[0, 2:].tolist() == (states[0, 1:-1] @ llama.head.T).argmax(-1).tolist()


@pytest.mark.long
def test_a_short_run_learns_and_says_what_it_measured(tiny, tmp_path):
    from safetensors import safe_open

    out = tmp_path / "draft" / "tiny.safetensors"
    options = "--minutes 5 --most 2000 --steps 60 --rows 16 --length 32 --batch 256 --answer 12".split()
    command = [sys.executable, ROOT / "tools/train_draft.py", "--checkpoint", tiny[0], "--out", out, *options]
    subprocess.run(command, check=True, timeout=240)
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["training"]["kl_after"] < facts["training"]["kl_before"]
    assert facts["held_out"]["draft"]["all"].keys() == facts["held_out"]["untrained"]["all"].keys()
    with safe_open(out, "pt") as file:
        assert file.metadata()["layers"] == "0,3"
        names = set(file.keys())
    assert "model.norm.weight" in names and not any("embed" in name or "lm_head" in name for name in names)
    assert sum("layers.1." in name for name in names) == 9 and not any("layers.2." in name for name in names)
