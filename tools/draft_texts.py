"""Training texts that the target writes itself, for `train_draft.py`: chats that it asks and answers, and plain text.

Every row starts at position 0 and none ever stops: when a turn ends, the words that the chat template puts between two
turns are forced, and the next turn goes on. So a batch needs no padding, no mask and no prompt pass.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from draft_training import logits
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

MIN_P = 0.05  # drop tokens below this share of the likeliest one's probability: a small model's tail is noise
LONGEST_QUESTION = 96
FREE_START = 24  # tokens of a plain text that are drawn at temperature 1, so that greedy texts differ
TEMPERATURES = (0.0, 0.0, 0.6, 0.8, 1.0)  # of answers and plain texts; questions are drawn at 1


def listed(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("|")]


QUESTIONS = listed(
    """
    What is | What are the | How do I | How does | Why do | Why is | Explain | Write a | Write a short story about |
    Write a Python function that | Give me | List three | Name | Can you | Tell me about | Describe | Summarize |
    Translate | Who was | When did | Where is | Compare | Is it | I want to | I have a | Create a | Help me | Rewrite
    the following | Calculate | Solve | Which
    """
)
TEXTS = listed(
    """
    The | In | Once upon a time | A | It is | There are | When | One of the | This | For | She | He | They | We | If you
    | The best way to | My | As | On | After | Many people | According to | Here is | import | def | # Introduction | To
    | At | During the | Most | 1. | The first | Scientists | Water | The capital of | It was a | I | You | Dear |
    Question:
    """
)


@dataclass(frozen=True)
class Chat:
    """What the template writes around the turns, as token ids. after[0] and between[0] end a turn."""

    before: list[int]
    after: list[int]
    between: list[int]

    @classmethod
    def of(cls, tokenizer: Any) -> Chat:
        turns = [("user", "@1@"), ("assistant", "@2@"), ("user", "@3@")]
        turns = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        before, rest = text.split("@1@")
        after, rest = rest.split("@2@")
        chat = cls(*(ids(tokenizer, part) for part in (before, after, rest.split("@3@")[0])))
        if not chat.after or chat.after[:1] != chat.between[:1]:
            raise SystemExit("The chat template does not end every turn with the same token; use smollm2.")
        return chat


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


@dataclass
class Rows:
    """What the rows of a batch begin with. chat: rows whose turns go on; asking: those that begin inside a question."""

    starts: list[list[int]]
    chat: list[bool]
    asking: list[bool]
    temperature: list[float]
    free: list[int]  # tokens after the start that are drawn at temperature 1


def own_texts(tokenizer: Any, chat: Chat, count: int, draw: random.Random) -> Rows:
    """Three chats for one plain text, half of the chats with the first words of the question."""
    questions, texts = ([ids(tokenizer, text) for text in group] for group in (QUESTIONS, TEXTS))
    talks = [draw.random() < 0.75 for _ in range(count)]
    starts = [
        chat.before + (draw.choice(questions) if draw.random() < 0.5 else []) if talk else draw.choice(texts)
        for talk in talks
    ]
    temperatures = [draw.choice(TEMPERATURES) for _ in range(count)]
    return Rows(starts, talks, talks, temperatures, [0 if talk else FREE_START for talk in talks])


@torch.no_grad()
def write(model: LlamaForCausalLM, rows: Rows, chat: Chat, length: int) -> tuple[Tensor, Tensor]:
    """What `model` writes: ids [rows, length] int32, and what its head saw, [rows, length, hidden]."""
    device, count = model.device, len(rows.starts)
    tails = [torch.tensor(tail[1:], device=device) for tail in (chat.after, chat.between)]
    room = max(map(len, tails))
    tails = torch.stack([torch.nn.functional.pad(tail, (0, room - len(tail)), value=-1) for tail in tails])
    forced = torch.full((count, length + room + 1), -1)  # -1: the model chooses
    for row, start in enumerate(rows.starts):
        forced[row, : len(start)] = torch.tensor(start[: forced.shape[1]])
    forced = forced.to(device)
    begun = torch.tensor([len(start) for start in rows.starts], device=device)
    free = begun + torch.tensor(rows.free, device=device)
    talk, asking = (torch.tensor(flags, device=device) for flags in (rows.chat, rows.asking))
    temperature = torch.tensor(rows.temperature, device=device)
    cache = DynamicCache()
    written = torch.empty(count, length, dtype=torch.int32, device=device)
    states = torch.empty(count, length, model.config.hidden_size, dtype=model.dtype, device=device)
    token = forced[:, 0]
    for at in range(length):
        written[:, at] = token
        states[:, at] = model.model(token[:, None], past_key_values=cache, use_cache=True).last_hidden_state[:, 0]
        token = sample(logits(model, states[:, at]), torch.where(asking | (at + 1 < free), 1.0, temperature))
        chosen = forced[:, at + 1] < 0
        token = torch.where(asking & (at - begun > LONGEST_QUESTION), chat.after[0], token)
        token = torch.where(chosen, token, forced[:, at + 1])
        ended = talk & chosen & (token == chat.after[0])
        gap = forced[:, at + 2 : at + 2 + room]
        gap.copy_(torch.where(ended[:, None], tails[(~asking).long()], gap))
        begun = torch.where(ended, at + 1 + room, begun)
        asking = asking ^ ended
    return written, states


def sample(logits: Tensor, temperature: Tensor) -> Tensor:
    """One token a row from logits [rows, vocabulary] float32 (overwritten); at temperature 0 the likeliest."""
    temperature = temperature[:, None]
    least = logits.amax(-1, keepdim=True) + temperature * math.log(MIN_P)
    noise = torch.empty_like(logits).exponential_().log_().mul_(temperature)  # the Gumbel trick: no sum, no sort
    return torch.where(logits >= least, logits.sub_(noise), float("-inf")).argmax(-1)
