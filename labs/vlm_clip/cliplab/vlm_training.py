"""Training of the small vision-language model: the projector first, then the language model's low-rank updates too.

The trunk is frozen, so it looks at every picture once and what it saw stays on the GPU. A row is one conversation about
one picture, up to three questions, and only the answers count in the loss. One row in eight is a chat without a picture
that the language model wrote itself before training: what it could do, it is asked to go on doing.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from cliplab.prepare import MEAN, SCALE
from cliplab.vlm import END, HIDDEN, Grid, Projector, attach, embed, prompt
from cliplab.vlm_data import KINDS, WHAT, Question, article, draw_scene, questions, sentence
from cliplab.vlm_pictures import Thing

TURNS = 3  # questions of one conversation, at most
TEXT_SHARE = 8  # one row in so many has no picture
NEXT = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
IGNORED = -100
SLOWER = 1.6  # a step of the second stage, in steps of the first
RISING = 64  # features that a step of a lesson may raise
SURE = 0.8  # probability of a class from which its lesson shows it
KIND_SHARES = (0.4, 0.35, 0.25)  # of KINDS


class Scenes(Dataset):
    """Scene number i and its questions: the same for a seed, whichever process composes it."""

    def __init__(self, drawings: Sequence[Thing], names: Sequence[str], count: int, seed: int) -> None:
        self.drawings, self.names, self.count, self.seed = drawings, names, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, list[Question]]:
        rng = np.random.default_rng([self.seed, number])
        scene = draw_scene(KINDS[rng.choice(len(KINDS), p=KIND_SHARES)], self.drawings, rng)
        return np.asarray(scene.image), questions(scene, self.names, rng)


@dataclass
class Shown:
    """What the trunk saw, float16 [pictures, 49, 1728], and the questions about each picture."""

    seen: Tensor
    asked: list[list[Question]]

    def __add__(self, other: Shown) -> Shown:
        return Shown(torch.cat([self.seen, other.seen]), self.asked + other.asked)


def precise(device: str) -> AbstractContextManager[Any]:
    """bfloat16 where a GPU computes; a CPU's float32 as it is."""
    return torch.autocast("cuda", torch.bfloat16) if device.startswith("cuda") else nullcontext()


@torch.inference_mode()
def look(grid: Grid, scenes: Dataset, *, batch: int = 256) -> Shown:
    """Compose the scenes, in as many processes as there are cores, and let the trunk look at each once."""
    device = next(grid.parameters()).device
    loader = DataLoader(scenes, batch, num_workers=min(os.cpu_count() or 1, 15), collate_fn=list)
    seen, asked = [], []
    for some in loader:
        pixels = torch.from_numpy(np.stack([image for image, _ in some])).to(device)
        seen.append(grid((pixels.permute(0, 3, 1, 2).float() - MEAN) / SCALE).half())
        asked += [found for _, found in some]
    return Shown(torch.cat(seen), asked)


@torch.inference_mode()
def lessons(shown: Shown, classifier: nn.Linear, names: Sequence[str], each: int, seed: int) -> Shown:
    """What the trunk's own classifier knows, as questions: `each` grids for each of its classes.

    The drawings hold few of ImageNet's 1,000 classes. So what the trunk saw in a drawing is moved up the gradient of a
    class's log-probability, in the cells where it saw something, until the classifier is SURE of the class.
    """
    draw = torch.Generator().manual_seed(seed)
    ones = torch.tensor([n for n, asked in enumerate(shown.asked) if any(q.kind == "what" for q in asked)])
    classes = torch.arange(len(names)).repeat(each)
    bases = ones[torch.randint(len(ones), (len(classes),), generator=draw)]
    rng, device, width = np.random.default_rng([seed, 2]), shown.seen.device, classifier.in_features
    weight, bias = classifier.weight.float(), classifier.bias.float()
    parts, asked = [], []
    for first in range(0, len(classes), 500):
        wanted = classes[first : first + 500].to(device)
        seen = shown.seen[bases[first : first + 500].to(device)].float()
        x = seen[..., :width]
        energy = x.mean(dim=-1, keepdim=True)
        share = energy / energy.mean(dim=1, keepdim=True)  # of the cells: white ground stays as it is
        for _ in range(40):
            chance = F.softmax(F.linear(x.mean(dim=1), weight, bias), dim=-1)
            unsure = chance.gather(1, wanted[:, None]) < SURE
            slope = weight[wanted] - chance @ weight
            # Few features are above 0 in what the trunk sees, so few may rise.
            least = slope.topk(RISING, dim=-1).values[:, -1:]
            slope = F.normalize(torch.where(slope < least, slope.clamp(max=0), slope), dim=-1) * unsure
            x = (x + 2.0 * share * slope[:, None]).clamp(0, 6)
        parts.append(torch.cat([x, seen[..., width:]], dim=-1).half())
    for wanted in classes.tolist():
        name, other = names[wanted], names[rng.integers(len(names))]
        there = name if rng.random() < 0.5 or other == name else other
        asked.append([
            Question("what", WHAT[rng.integers(len(WHAT))], sentence(article(name))),
            Question("there", f"Is there {article(there)}?", "Yes." if there == name else "No."),
        ])  # fmt: skip
    return Shown(torch.cat(parts), asked)


def conversation(tokenizer: Any, asked: Sequence[Question]) -> tuple[list[int], list[int]]:
    """Token ids of questions and answers about one picture, and the labels: IGNORED but for the answers."""
    tokens = _tokens(tokenizer)
    ids: list[int] = []
    labels: list[int] = []
    for question in asked:
        before = list(tokens(NEXT.format(question.text))) if ids else prompt(tokenizer, question.text)
        answer = tokens(question.answer + END)
        ids += [*before, *answer]
        labels += [IGNORED] * len(before) + list(answer)
    return ids, labels


@functools.lru_cache(2)
def _tokens(tokenizer: Any) -> Callable[[str], tuple[int, ...]]:
    return functools.lru_cache(200_000)(lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))


def padded(rows: Sequence[tuple[list[int], list[int]]], device: str) -> tuple[Tensor, Tensor]:
    """ids and labels [rows, tokens]: shorter rows end in zeros that count nowhere."""
    width = max(len(ids) for ids, _ in rows)
    found = [torch.tensor([row[n] + [filler] * (width - len(row[n])) for row in rows])
             for n, filler in ((0, 0), (1, IGNORED))]  # fmt: skip
    return found[0].to(device, non_blocking=True), found[1].to(device, non_blocking=True)


def answer_loss(model: nn.Module, ids: Tensor, labels: Tensor, visual: Tensor | None) -> Tensor:
    """Mean cross-entropy of the answers' tokens. Padding stands behind a row, where no token of it can look."""
    hidden = model.model(inputs_embeds=embed(model.get_input_embeddings(), ids, visual)).last_hidden_state
    counts = labels[:, 1:] != IGNORED
    return F.cross_entropy(model.lm_head(hidden[:, :-1][counts]).float(), labels[:, 1:][counts])


@torch.inference_mode()
def own_chats(
    model: nn.Module, tokenizer: Any, prompts: Sequence[str], longest: int = 48
) -> list[tuple[list[int], list[int]]]:
    """Rows of chats without a picture: each prompt in the model's usual template, and its own likeliest answer."""
    end, rows = tokenizer.convert_tokens_to_ids(END), []
    for first in range(0, len(prompts), 512):
        some = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                              tokenize=False) for text in prompts[first : first + 512]]  # fmt: skip
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in some]
        width = max(map(len, ids))
        given = torch.tensor([[end] * (width - len(row)) + row for row in ids], device=model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=model.device)
        said = model.generate(given, attention_mask=mask, max_new_tokens=longest, do_sample=False, eos_token_id=end,
                              pad_token_id=end)[:, width:].tolist()  # fmt: skip
        for row, answer in zip(ids, said, strict=True):
            if end in answer:
                answer = answer[: answer.index(end) + 1]
            rows.append((row + answer, [IGNORED] * len(row) + answer))
    return rows


def batches(shown: Shown, chats: Sequence[Any], tokenizer: Any, size: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """ids, labels and what the trunk saw, without end. Rows with a picture come first."""
    rng, device = np.random.default_rng([seed, 3]), str(shown.seen.device)
    texts = size // TEXT_SHARE if chats else 0
    order: list[int] = []
    while True:
        if len(order) < size:
            order += rng.permutation(len(shown.asked)).tolist()
        chosen, order = order[: size - texts], order[size - texts :]
        rows = []
        for number in chosen:
            asked = shown.asked[number]
            rows.append(conversation(tokenizer, [asked[n] for n in rng.permutation(len(asked))[:TURNS]]))
        rows += [chats[n] for n in rng.integers(len(chats), size=texts)] if texts else []
        yield *padded(rows, device), shown.seen[torch.tensor(chosen, device=device)]


def stage(
    model: nn.Module,
    projector: Projector,
    given: Iterator[tuple[Tensor, ...]],
    *,
    steps: int,
    rate: float,
    factors: dict[str, nn.Parameter] | None = None,
    watch: Callable[[], dict[str, float]] = dict,
    every: int = 200,
) -> list[dict[str, float]]:
    """Train the projector, and with `factors` these too, in place. The curve: step, loss, and what `watch` says."""
    trained = [*projector.parameters(), *(factors or {}).values()]
    for weight in trained:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))

    def share(step: int) -> float:  # of the rate: up over the first tenth, then down a cosine
        warm = max(1, steps // 10)
        return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm + 1))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    device, curve, sums = str(next(projector.parameters()).device), [], []
    for step in range(1, steps + 1):
        ids, labels, seen = next(given)
        with precise(device):
            loss = answer_loss(model, ids, labels, projector(seen.float()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        sums.append(loss.detach())
        if step % every == 0 or step == steps:
            curve.append({"step": step, "loss": round(float(torch.stack(sums).mean()), 4), **watch()})
            sums.clear()
            print(curve[-1], flush=True)
    for weight in trained:
        weight.requires_grad_(False)
    return curve


def new_projector(model: nn.Module, hidden: int = HIDDEN) -> Projector:
    """A projector whose tokens are at first about as long as the embeddings of words."""
    projector = Projector(hidden)
    size = model.get_input_embeddings().weight.float().std()
    with torch.no_grad():
        projector.leave.weight *= size / 0.2  # of its output, with the weights that PyTorch draws
    return projector


def train(
    model: nn.Module, tokenizer: Any, shown: Shown, chats: Sequence[Any], held: tuple[Tensor, ...], *,
    steps: tuple[int, int], batch: int, rates: tuple[float, float], rank: int, seed: int, seconds: float = math.inf,
) -> tuple[Projector, dict[str, Tensor], dict[str, Any]]:  # fmt: skip
    """Both stages; the projector, the factors, and the curves.

    held: ids, labels and grids of the held-out loss. seconds: about as long as it may take, by fewer steps of the
    second stage; the curve tells how many they were.
    """
    torch.manual_seed(seed)
    device = str(shown.seen.device)
    projector = new_projector(model).to(device)

    @torch.inference_mode()
    def watch() -> dict[str, float]:
        with precise(device):
            return {"held_out": round(float(answer_loss(model, held[0], held[1], projector(held[2].float()))), 4)}

    given = batches(shown, [], tokenizer, batch, seed)
    began = time.monotonic()
    curves = {"projector": stage(model, projector, given, steps=steps[0], rate=rates[0], watch=watch)}
    spent = time.monotonic() - began
    last = int(min(steps[1], max(1, (seconds - spent) / (SLOWER * spent / steps[0]))))
    factors = attach(model, rank)
    given = batches(shown, chats, tokenizer, batch, seed + 1)
    curves["both"] = stage(model, projector, given, steps=last, rate=rates[1], factors=factors, watch=watch)
    names = {name: weight.detach() for name, weight in factors.items()}
    return projector.eval(), names, curves
