"""How good is a draft? Compare it with the target's own greedy answers to a fixed list of prompts."""

from __future__ import annotations

from typing import Any

import torch
from draft_texts import Chat, Rows, ids, listed, write
from transformers import LlamaForCausalLM

ANSWER = 96  # tokens
QUESTIONS = listed(
    """
    What is the capital of Italy? | Explain in two sentences how a rainbow forms. | Give three tips for sleeping better.
    | Write a short poem about the sea. | How do vaccines work? | What is the difference between a virus and a
    bacterium? | Write a Python function that reverses a list. | Suggest a name for a small bakery and say why. | Why is
    the sky blue? | Describe a typical morning of a farmer. | How many days are in a leap year? | Tell me a short story
    about a clever crow. | What does an inference server do? | List five fruits that are red. | How do I make a simple
    tomato soup? | Explain recursion to a ten-year-old. | Write an email that asks for a day off. | What are the
    benefits of walking every day? | Who wrote Romeo and Juliet? | Is it better to rent or to buy a house? | Summarize
    the story of Cinderella. | What should I pack for a week in Norway? | Compare tea and coffee. | How does a bicycle
    stay upright?
    """
)
TEXTS = listed(
    """
    The history of the printing press begins | Once upon a time, in a village by a lake, | The three most important
    rules of cooking are | def fibonacci(n): | Dear Sir or Madam, I am writing to | Photosynthesis is the process by
    which | The train left the station at | In 1969, the first | To install the package, run | The main advantage of
    solar energy is | She opened the letter and read | A good teacher is someone who | The weather in spring | Gravity
    is | Our company offers | The museum opens at
    """
)


def measure(
    target: LlamaForCausalLM, drafts: dict[str, LlamaForCausalLM], tokenizer: Any, chat: Chat, answer: int = ANSWER
) -> dict:
    """For each draft and kind of text: agreement, accepted tokens a round at four drafted, tokens a round."""
    starts, kinds = held_out(tokenizer, chat)
    longest = max(map(len, starts))
    no, count = [False] * len(starts), len(starts)
    written, _ = write(target, Rows(starts, no, no, [0.0] * count, [0] * count), chat, longest + answer)
    found: dict[str, Any] = {"prompts": count, "tokens": 0}
    for name, draft in drafts.items():
        with torch.no_grad():
            guesses = torch.cat([draft(row[None], use_cache=False).logits.argmax(-1) for row in written.long()])
        hits: dict[str, list[list[bool]]] = {"chat": [], "text": []}
        for row, (start, kind) in enumerate(zip(starts, kinds, strict=True)):
            truth = written[row, len(start) : len(start) + answer].tolist()
            if chat.after[0] in truth:
                truth = truth[: truth.index(chat.after[0]) + 1]
            guess = guesses[row, len(start) - 1 :].tolist()
            hits[kind].append([a == b for a, b in zip(truth, guess, strict=False)])
        found["tokens"] = sum(len(row) for group in hits.values() for row in group)
        found[name] = {kind: summary(group) for kind, group in hits.items()}
        found[name]["all"] = summary([row for group in hits.values() for row in group])
    return found


def held_out(tokenizer: Any, chat: Chat) -> tuple[list[list[int]], list[str]]:
    questions = [chat.before + ids(tokenizer, text) + chat.after for text in QUESTIONS]
    texts = [ids(tokenizer, text) for text in TEXTS]
    return [*questions, *texts], ["chat"] * len(questions) + ["text"] * len(texts)


def summary(rows: list[list[bool]], drafted: int = 4) -> dict[str, float]:
    """rows: whether the draft's next token is the target's, for each token of an answer.

    A round drafts `drafted` tokens, keeps those before the first miss, and the target adds one. A draft that is right
    so far has seen the true text, so the hits alone tell what every round would have kept.
    """
    rounds = kept = tokens = 0
    for hits in rows:
        at = 0
        while at < len(hits):
            window = hits[at : at + drafted]
            right = window.index(False) if False in window else len(window)
            rounds, kept, at = rounds + 1, kept + right, at + right + 1
        tokens += len(hits)
    agreement = sum(map(sum, rows)) / tokens
    return {
        "agreement": round(agreement, 4),
        "accepted_per_round": round(kept / rounds, 3),
        "tokens_per_round": round(tokens / rounds, 3),
    }
