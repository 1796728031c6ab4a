"""The training itself, for `train_draft.py`: the draft learns the target's whole distribution after every token."""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

SAY, SAVE = 15.0, 60.0  # seconds between lines, between saved copies
CHUNK = 8192  # tokens whose logits are in memory at once


def logits(model: LlamaForCausalLM, hidden: Tensor) -> Tensor:
    """[tokens, vocabulary] float32 of hidden states [tokens, hidden]: bfloat16 logits would be steps of 1/8."""
    head = model.lm_head.weight
    hidden = hidden.to(head.dtype)
    if hidden.is_cuda and head.dtype != torch.float32:
        return torch.mm(hidden, head.T, out_dtype=torch.float32)
    return hidden @ head.T


def hidden_of(draft: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """What the head sees, [rows, tokens, hidden]: on a GPU products in bfloat16, sums and norms in float32."""
    with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
        return draft.model(ids, use_cache=False).last_hidden_state


def own(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """The weights of the layers and the final norm: what a draft trains and stores."""
    return {name: w for name, w in model.named_parameters() if "embed_tokens" not in name and "lm_head" not in name}


def train(
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    texts: list[tuple[Tensor, Tensor]],
    args: argparse.Namespace,
    end: float,
    say: Callable[[str], None],
    save: Callable[[], object],
) -> dict[str, Any]:
    """Minimise KL(target || draft) over all tokens of `texts` until the clock says `end`; what it cost and gave.

    texts: batches of (ids [rows, length], the target's hidden states [rows, length, hidden]).
    args: batch (tokens a step), steps (at most), rate, seed. At least one step is made.
    Raises SystemExit when the training diverges.
    """
    device, weights = target.device, list(own(draft).values())
    sizes = [ids.numel() for ids, _ in texts]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda")
    begun = said = saved = time.monotonic()
    draw, step, seen, before = random.Random(args.seed), 0, 0, None
    while step < args.steps and (step == 0 or time.monotonic() < end):
        now = time.monotonic()
        done = min(1.0, max((now - begun) / max(end - begun, 1e-9), step / args.steps))
        rate = args.rate * min(1.0, done / 0.02) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, states = draw.choices(texts, sizes)[0]
        length = ids.shape[1]
        rows = torch.randint(len(ids), (max(1, args.batch // length),), device=device)
        hidden = hidden_of(draft, ids[rows].long())
        gradient, found = head_gradient(hidden.detach(), states[rows], target, measure=step == 0 or now - said > SAY)
        hidden.backward(gradient)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + rows.numel() * length
        if found:
            kl, agreement = found
            before = before or found
            said = time.monotonic()
            rest = f"KL {kl:.3f}, agreement {agreement:.3f}, rate {rate:.1e}"
            say(f"step {step}: {rest}, {seen / (said - begun):,.0f} tokens a second")
            if not math.isfinite(kl):
                raise SystemExit("The training diverged; take a smaller --rate.")
        if now - saved > SAVE:
            save()
            saved = time.monotonic()
    held, states = texts[-1][0][-4:], texts[-1][1][-4:]
    with torch.no_grad():
        hidden = hidden_of(draft, held.long())
    _, (kl, agreement) = head_gradient(hidden, states, target, measure=True)
    say(f"step {step}: KL {kl:.3f}, agreement {agreement:.3f}; training ends")
    figures = {"kl_before": round(before[0], 4), "kl_after": round(kl, 4), "agreement_after": round(agreement, 4)}
    return {"tokens_written": sum(sizes), "tokens_trained": seen, "steps": step, "training": figures}


@torch.no_grad()
def head_gradient(
    hidden: Tensor, states: Tensor, target: LlamaForCausalLM, *, measure: bool
) -> tuple[Tensor, tuple[float, float] | None]:
    """Gradient of the mean KL(target || draft) by the draft's `hidden` [.., H]; `states` [.., H] are the target's.

    With `measure` also that KL, and the share of tokens at which both have the same top. The gradient by the logits is
    a difference of probabilities, so autograd need not keep logits [tokens, vocabulary] in float32.
    """
    flat, truth = hidden.reshape(-1, hidden.shape[-1]), states.reshape(-1, states.shape[-1])
    gradient, head = torch.empty_like(flat), target.lm_head.weight
    kl = equal = 0.0
    for first in range(0, len(flat), CHUNK):
        rows = slice(first, first + CHUNK)
        wanted, found = (logits(target, part[rows]).softmax(-1) for part in (truth, flat))
        if measure:
            logs = [p.clamp_min(1e-30).log() for p in (wanted, found)]
            kl += (wanted * (logs[0] - logs[1])).sum().item()
            equal += (wanted.argmax(-1) == found.argmax(-1)).sum().item()
            del logs
        gradient[rows] = found.sub_(wanted).to(head.dtype) @ head
    gradient = gradient.div_(len(flat)).view_as(hidden)
    return gradient, (kl / len(flat), equal / len(flat)) if measure else None
