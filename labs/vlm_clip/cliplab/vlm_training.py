"""Training of the small vision-language model: the projector first, then the language model's low-rank updates too.

The trunk is frozen, so it looks at every picture once and what it saw stays on the GPU. A row is one conversation about
one picture, up to three questions, and only the answers count in the loss. One row in eight is a chat without a picture
that the language model wrote itself before training: what it could do, it is asked to go on doing.
"""

from __future__ import annotations

import functools
import math
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

from cliplab.vlm import END, HIDDEN, Grid, Projector, attach, embed, pixel_values, prompt
from cliplab.vlm_data import CORES, KINDS, WHAT, Question, article, draw_scene, questions, sentence
from cliplab.vlm_pictures import Thing

TURNS = 3  # questions of one conversation, at most
TEXT_SHARE = 8  # one row in so many has no picture
NEXT = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
IGNORED = -100
WIDTHS = 16  # tokens: a batch is as wide as a multiple of them
USUAL = 4096  # pictures whose mean a blind answer is given
RISING = 64  # features that a step of a lesson may raise
SURE = 0.8  # probability of a class from which its lesson shows it
KIND_SHARES = (0.5, 0.3, 0.2)  # of KINDS


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


def drawn(scenes: Dataset, batch: int) -> DataLoader:
    """The scenes with their questions in lists of `batch`, composed in as many processes as there are cores."""
    return DataLoader(scenes, batch, num_workers=CORES, collate_fn=list)


@torch.inference_mode()
def look(grid: Grid, scenes: Dataset, *, batch: int = 256) -> Shown:
    """Compose the scenes, and let the trunk look at each once."""
    device = next(grid.parameters()).device
    seen, asked = [], []
    for some in drawn(scenes, batch):
        seen.append(grid(pixel_values([image for image, _ in some], device)).half())
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
    classes = torch.tensor([number for number, name in enumerate(names) if name]).repeat(each)
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
        name, other = names[wanted], names[int(classes[rng.integers(len(classes))])]
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
        before = tokens(NEXT.format(question.text)) if ids else _prompt(tokenizer, question.text)
        answer = tokens(question.answer + END)
        ids += [*before, *answer]
        labels += [IGNORED] * len(before) + list(answer)
    return ids, labels


@functools.lru_cache(200_000)
def _prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(prompt(tokenizer, text))


@functools.lru_cache(2)
def _tokens(tokenizer: Any) -> Callable[[str], tuple[int, ...]]:
    return functools.lru_cache(200_000)(lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))


def padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """ids and labels [rows, tokens]: shorter rows end in zeros that count nowhere. Few widths: a GPU's memory is taken
    once for each."""
    width = -(-max(len(ids) for ids, _ in rows) // WIDTHS) * WIDTHS
    ids, labels = (torch.tensor([row[n] + [filler] * (width - len(row[n])) for row in rows])
                   for n, filler in ((0, 0), (1, IGNORED)))  # fmt: skip
    return ids, labels


def answer_loss(model: nn.Module, ids: Tensor, labels: Tensor, visual: Tensor | None) -> Tensor:
    """Mean cross-entropy of the answers' tokens. Padding stands behind a row, where no token of it can look.

    labels stay on the CPU: it finds the answers' places, and the GPU need not be waited for.
    """
    where = (labels != IGNORED).flatten().nonzero()[:, 0]
    right = labels.flatten()[where].to(model.device, non_blocking=True)
    where = (where - 1).to(model.device, non_blocking=True)  # a token is said by the place before it
    given = embed(model.get_input_embeddings(), ids.to(model.device), visual)
    hidden = model.model(inputs_embeds=given, use_cache=False).last_hidden_state
    return F.cross_entropy(model.lm_head(hidden.flatten(0, 1)[where]).float(), right)


@torch.inference_mode()
def own_chats(
    model: nn.Module, tokenizer: Any, prompts: Sequence[str], longest: int = 48
) -> list[tuple[list[int], list[int]]]:
    """Rows of chats without a picture: each prompt in the model's usual template, and its own likeliest answer."""
    end, rows = tokenizer.convert_tokens_to_ids(END), []
    for first in range(0, len(prompts), 2048):
        some = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                              tokenize=False) for text in prompts[first : first + 2048]]  # fmt: skip
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


class Batches(Dataset):
    """Batch number i of a stage: ids, labels, and the rows of the pictures shown; the same for a seed, whichever
    process makes it. Rows with a picture come first."""

    def __init__(
        self, asked: Sequence[Any], chats: Sequence[Any], tokenizer: Any, size: int, steps: int, seed: int
    ) -> None:
        self.asked, self.chats, self.tokenizer, self.size = asked, chats, tokenizer, size
        self.steps, self.seed = steps, seed

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, 3, number])
        texts = self.size // TEXT_SHARE if self.chats else 0
        chosen = rng.integers(len(self.asked), size=self.size - texts)
        rows = []
        for row in chosen:
            asked = self.asked[row]
            rows.append(conversation(self.tokenizer, [asked[n] for n in rng.permutation(len(asked))[:TURNS]]))
        rows += [self.chats[n] for n in rng.integers(len(self.chats), size=texts)] if texts else []
        ids, labels = padded(rows)
        return ids.numpy(), labels.numpy(), chosen  # arrays go through a pipe, tensors through a small shared memory


def batches(shown: Shown, chats: Sequence[Any], tokenizer: Any, size: int, steps: int, seed: int) -> Iterator[Any]:
    """ids and labels as they come from other processes, and what the trunk saw, of the GPU's memory."""
    device = shown.seen.device
    cuda = device.type == "cuda"
    made = DataLoader(Batches(shown.asked, chats, tokenizer, size, steps, seed), None, num_workers=CORES,
                      collate_fn=_same, prefetch_factor=4)  # fmt: skip
    for arrays in made:
        ids, labels, rows = map(torch.from_numpy, arrays)
        ids, rows = (part.pin_memory().to(device, non_blocking=True) if cuda else part for part in (ids, rows))
        yield ids, labels, shown.seen[rows]


def _same(batch: Any) -> Any:
    return batch


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
    seconds: float = math.inf,
) -> list[dict[str, float]]:
    """Train the projector, and with `factors` these too, in place. The curve: step, loss, seconds, and what `watch`
    says. The rate rises over the first tenth and falls along a cosine, of the steps or of `seconds`, whichever ends
    first."""
    trained = [*projector.parameters(), *(factors or {}).values()]
    for weight in trained:
        weight.requires_grad_(True)
    device, curve, sums, step = str(next(projector.parameters()).device), [], [], 0
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01, betas=(0.9, 0.98),
                                  fused=device.startswith("cuda"))  # fmt: skip
    began = time.monotonic()

    def note() -> None:
        spent = {"seconds": round(time.monotonic() - began, 1)}
        curve.append({"step": step, "loss": round(float(torch.stack(sums).mean()), 4), **watch(), **spent})
        sums.clear()
        print(curve[-1], flush=True)

    for ids, labels, seen in given:
        done = max(step / steps, (time.monotonic() - began) / seconds)
        if done >= 1:
            break
        step += 1
        optimizer.param_groups[0]["lr"] = rate * min((done + 1 / steps) * 10, 0.5 + 0.5 * math.cos(math.pi * done))
        with precise(device):
            loss = answer_loss(model, ids, labels, projector(seen.float()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        sums.append(loss.detach())
        if step % every == 0:
            note()
    if sums:
        note()
    for weight in trained:
        weight.requires_grad_(False)
    return curve


@torch.no_grad()
def new_projector(
    model: nn.Module, tokenizer: Any, classifier: nn.Linear, names: Sequence[str], hidden: int = HIDDEN
) -> Projector:
    """A projector whose tokens are at first about as long as the embeddings of words, and tell the classes' names.

    names: of the classifier's classes; none: it tells nothing of them.
    """
    projector, table = Projector(hidden), model.get_input_embeddings().weight.detach().float().cpu()
    projector.leave.weight *= float(table.std()) / 0.2  # of its output, with the weights that PyTorch draws
    for layer in (projector.here, projector.anywhere):
        nn.init.eye_(layer.weight)
    projector.classify.copy_(classifier.weight)
    projector.bias.copy_(classifier.bias)
    for row, name in enumerate(names):
        projector.words[row] = table[list(_tokens(tokenizer)(f" {name}"))].mean(dim=0)
    return projector.to(model.device)


def train(
    model: nn.Module, tokenizer: Any, shown: Shown, chats: Sequence[Any], held: tuple[Tensor, ...], *,
    classifier: nn.Linear, names: Sequence[str], steps: tuple[int, int], batch: int, rates: tuple[float, float],
    rank: int, seed: int, seconds: float = math.inf,
) -> tuple[Projector, dict[str, Tensor], dict[str, Any]]:  # fmt: skip
    """Both stages; the projector, the factors, and the curves.

    held: ids, labels and grids of the held-out loss. classifier, names: as new_projector takes them. seconds: as long
    as it may take, by fewer steps of the second stage; the curve tells how many they were.
    """
    torch.manual_seed(seed)
    device, began = str(shown.seen.device), time.monotonic()
    projector = new_projector(model, tokenizer, classifier, names)

    @torch.inference_mode()
    def watch() -> dict[str, float]:
        with precise(device):
            return {"held_out": round(float(answer_loss(model, held[0], held[1], projector(held[2].float()))), 4)}

    given = batches(shown, [], tokenizer, batch, steps[0], seed)
    curves = {"projector": stage(model, projector, given, steps=steps[0], rate=rates[0], watch=watch)}
    factors = attach(model, rank)
    given = batches(shown, chats, tokenizer, batch, steps[1], seed + 1)
    left = max(1.0, seconds - (time.monotonic() - began))
    curves["both"] = stage(model, projector, given, steps=steps[1], rate=rates[1], factors=factors, watch=watch,
                           seconds=left)  # fmt: skip
    with torch.no_grad():
        some = torch.randperm(len(shown.seen), generator=torch.Generator().manual_seed(seed))[:USUAL]
        tokens = [projector(part.float()).sum(dim=0) for part in shown.seen[some.to(device)].split(256)]
        projector.usual.copy_(torch.stack(tokens).sum(dim=0) / len(some))
    names = {name: weight.detach() for name, weight in factors.items()}
    return projector.eval(), names, curves
