#!/usr/bin/env python
"""Distil a draft for speculative decoding: two layers that share the embedding, head and tokenizer of their target.

    python tools/train_draft.py --checkpoint TARGET --out data/draft/smollm2-draft.safetensors --minutes 7

Needs a GPU to be of use (one H100: 7 minutes), torch, transformers and safetensors, but no network and no data set.
The target writes the texts (draft_texts.py) and keeps what its head saw at every token, so it need not read them again;
then the draft learns the target's whole distribution after every token. --out holds the layers and the final norm,
float16; --json what draft_measure.py found, for the trained draft and for the same layers before training.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import platform
import random
import time
from pathlib import Path

START = time.monotonic()  # before the imports that take seconds: --minutes counts them

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # a cache grows with every token

import torch  # noqa: E402
import transformers  # noqa: E402
from draft_measure import measure  # noqa: E402
from draft_texts import Chat, own_texts, write  # noqa: E402
from draft_training import own, train  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

LAST = 20.0  # seconds kept for the last measurement


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        # cuDNN's attention would make a new plan for each length of the cache.
        torch.backends.cuda.enable_cudnn_sdp(False)
    low = torch.bfloat16 if device.type == "cuda" else torch.float32
    budget = args.minutes * 60
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.checkpoint, local_files_only=True)
    chat = Chat.of(tokenizer)
    exact = transformers.AutoModelForCausalLM.from_pretrained(
        args.checkpoint, dtype=torch.float32, local_files_only=True
    )
    if not isinstance(exact, LlamaForCausalLM):
        raise SystemExit(f"{args.checkpoint} is no Llama; give the checkpoint of smollm2.")
    exact = exact.to(device).eval().requires_grad_(False)
    last = exact.config.num_hidden_layers - 1
    args.layers = [int(n) for n in args.layers.split(",")] if args.layers else [0, last]
    if not all(0 <= n <= last for n in args.layers):
        raise SystemExit(f"--layers {args.layers}: the target has the layers 0 to {last}.")
    target, untrained = copy.deepcopy(exact).to(low), truncated(exact, args.layers)
    draft = fresh(untrained)
    say(f"{sum(w.numel() for w in own(draft).values()) / 1e6:.1f} M weights to train on {where(device)}")

    # A rehearsal on a few tokens: what cannot work on this machine shows now, not after minutes.
    short = argparse.Namespace(**{**vars(args), "rows": 8, "length": 32, "batch": 128})
    train(fresh(untrained), target, write_texts(target, tokenizer, chat, short, 0.0), short, 0.0, say, lambda: None)
    measure(exact, {"untrained": untrained}, tokenizer, chat, answer=4)

    say("writing texts")
    texts = write_texts(target, tokenizer, chat, args, START + (budget - LAST) * args.writing)
    if args.show:
        for row in texts[0][0][:4]:
            say(repr(tokenizer.decode(row[:200].tolist())))
    facts = train(draft, target, texts, args, START + budget - LAST, say, lambda: save(draft, args))
    stored = save(draft, args)
    del texts
    trained = fresh(untrained)
    trained.load_state_dict({name: w.float() for name, w in stored.items()}, strict=False)
    facts |= {"held_out": measure(exact, {"draft": trained, "untrained": untrained}, tokenizer, chat, args.answer)}
    facts |= {"layers": args.layers, "seed": args.seed, "bytes": args.out.stat().st_size, "device": where(device)}
    facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
    facts |= {"date": datetime.date.today().isoformat(), "seconds": round(time.monotonic() - START, 1)}
    args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    say(json.dumps(facts))


def truncated(model: LlamaForCausalLM, layers: list[int]) -> LlamaForCausalLM:
    """Those layers and the final norm alone, as copies; embedding and head are shared with `model`."""
    shared = {id(part): part for part in (model.model.embed_tokens.weight, model.lm_head.weight)}
    shared[id(model.model.layers)] = torch.nn.ModuleList(copy.deepcopy(model.model.layers[n]) for n in layers)
    short = copy.deepcopy(model, shared)
    short.config.num_hidden_layers = len(layers)
    return short


def fresh(untrained: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy whose own weights can be trained."""
    draft = truncated(untrained, range(untrained.config.num_hidden_layers))
    for weight in own(draft).values():
        weight.requires_grad_()
    return draft


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="file for the trained layers")
    parser.add_argument("--json", type=Path, help="file for what was measured (default: --out with .json)")
    parser.add_argument("--minutes", type=float, default=7.0, help="for everything, imports and measurement included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", help="the target's layers to begin with (default: the first and the last)")
    parser.add_argument("--writing", type=float, default=0.4, help="share of the time for writing texts")
    parser.add_argument("--rows", type=int, default=2048, help="texts written at once, of --length tokens")
    parser.add_argument("--length", type=int, default=512, help="tokens of a text; every third batch has twice as many")
    parser.add_argument("--most", type=float, default=32e6, help="tokens written at most (1.2 KB of GPU memory each)")
    parser.add_argument("--batch", type=int, default=32768, help="tokens a training step")
    parser.add_argument("--steps", type=int, default=10**9, help="training steps at most")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="learning rate after the warm-up")
    parser.add_argument("--answer", type=int, default=96, help="tokens of a held-out answer")
    parser.add_argument("--show", action="store_true", help="print the beginning of four texts")
    args = parser.parse_args()
    args.json = args.json or args.out.with_suffix(".json")
    for file in (args.out, args.json):
        file.parent.mkdir(parents=True, exist_ok=True)
    return args


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


def where(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"


def write_texts(target: LlamaForCausalLM, tokenizer, chat: Chat, args, end: float) -> list[tuple[Tensor, Tensor]]:
    """Batches of (ids [rows, length], hidden states [rows, length, hidden]) until the time or --most is reached."""
    draw, texts, written, spent = random.Random(args.seed), [], 0, 0.0
    while not texts or (written < args.most and time.monotonic() + spent < end):
        begun = time.monotonic()
        twice = 2 if len(texts) % 3 == 2 else 1
        rows = own_texts(tokenizer, chat, max(1, args.rows // twice), draw)
        texts.append(write(target, rows, chat, args.length * twice))
        written += texts[-1][0].numel()
        texts[-1][0][0, -1].item()  # wait for the GPU, so that the clock tells the truth
        spent = time.monotonic() - begun
        say(f"{written / 1e6:.2f} M tokens written, {texts[-1][0].numel() / spent:,.0f} a second")
    return texts


def save(draft: LlamaForCausalLM, args) -> dict[str, Tensor]:
    """Write the layers in float16, all or nothing; what was written."""
    stored = {name: w.detach().half().contiguous() for name, w in own(draft).items()}
    about = {"format": "pt", "layers": ",".join(map(str, args.layers)), "seed": str(args.seed)}
    part = args.out.with_name(f".{args.out.name}.part")
    save_file({name: w.cpu() for name, w in stored.items()}, part, metadata=about)
    os.replace(part, args.out)
    return stored


if __name__ == "__main__":
    main()
