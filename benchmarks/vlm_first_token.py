"""Time to the first token of a question with a picture and of one without, through the BLS model of a VLM.

    python benchmarks/vlm_first_token.py [--rounds 15] [--json]

Each round asks in random order: a question with a new picture, the same once more (its KV blocks are kept), and the
question alone. The model is that of data/vlm. Medians over the rounds, in milliseconds; spreads are the smallest and
the largest.

Keys of --json
    picture_ms         first token, a picture that nobody has sent before
    again_ms           the same picture and question again
    text_ms            the question alone
    picture_adds_ms    the difference of the first and the third, of each round
    tokens             ids of the prompt with the picture, and without
    load               mean number of processes that wanted a core in the minute before; on an idle machine below 1
    …_spread           [lowest, highest] over the rounds
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "labs" / "vlm_clip"))

QUESTION = "What do you see here? Answer in a short sentence."


def picture(number: int) -> bytes:
    """A PNG of 224 x 224 that no other number has, as a data URI."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (224, 224, 3), np.uint8)).save(out, "PNG")
    return b"data:image/png;base64," + base64.b64encode(out.getvalue())


def measure(client, rounds: int) -> dict:
    from servinglab import assets, chat
    from servinglab.client import inputs, stream

    folder, tokens = assets.tokenizer("smollm2"), {}

    def first(kind: str, url: bytes | None) -> float:
        prompt = chat.render(folder, ("<image>\n" if url else "") + QUESTION)
        given = {"max_tokens": 2, "min_tokens": 2, "stream": True, "return_num_input_tokens": True}
        given |= {"image_url_input": np.array([[url]], object)} if url else {}
        asked = inputs(text_input=prompt, **given)
        results = list(stream(client, "tensorrt_llm_bls", asked))
        tokens[kind] = int(results[0].as_numpy("num_input_tokens").flat[0])
        return 1e3 * results[0].seconds

    times = {"picture": [], "again": [], "text": []}
    for number in range(-2, rounds):  # two to warm up
        url = picture(number + 2)
        kinds = ["picture", "text"]
        random.Random(number).shuffle(kinds)
        found = {kind: first(kind, url if kind == "picture" else None) for kind in kinds}
        found["again"] = first("picture", url)
        for kind in times if number >= 0 else ():
            times[kind].append(found[kind])
    times["picture_adds"] = [a - b for a, b in zip(times["picture"], times["text"], strict=True)]
    made = {f"{kind}_ms": round(statistics.median(values), 1) for kind, values in times.items()}
    made |= {f"{kind}_ms_spread": [round(f(values), 1) for f in (min, max)] for kind, values in times.items()}
    return made | {"tokens": [tokens["picture"], tokens["text"]]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()

    from tritonclient.grpc import InferenceServerClient

    from cliplab import vlm_files
    from servinglab.notebook import device, versions
    from servinglab.server import TritonServer

    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as folder:
        with TritonServer(vlm_files.deploy(folder)) as server, InferenceServerClient(server.grpc_url) as client:
            found = measure(client, chosen.rounds)
    found |= {"load": load, "device": device(), "versions": versions()}
    print(json.dumps(found, indent=1) if chosen.json else "\n".join(f"{k:20} {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
