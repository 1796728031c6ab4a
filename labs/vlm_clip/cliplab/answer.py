"""One sentence about what was found, streamed by the language model from the record alone (notebook 15).

The model sees the fields of one record: not what was searched for, not the picture, not the other hits.
What it says can then be checked against the record word by word. When nothing is near enough, it is not asked at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as grpcclient

from cliplab.search import Found, Hit
from servinglab import assets, chat
from servinglab.client import gather, inputs, stream
from servinglab.errors import CourseError

MODEL = "tensorrt_llm_bls"

NOTHING = "I found nothing like that in the catalogue."
MAX_TOKENS = 64
MOST_CHARACTERS = 200  # of a caption: whatever a record holds, the prompt stays short

SYSTEM = "You are a shop assistant."
EXAMPLE = (
    "name: A red kite; category: toys; price: 4.50 euros",
    "I found a red kite for 4.50 euros in the category toys.",
)
# Words of the example's sentence and the small words of English: a sentence may use them whatever the record says.
_FRAME = frozenset(
    "i we you it is are was were be been has have found find here there this that these those a an the of in on at for "
    "from with by to and or its your our one which priced price prices cost costs costing category record name named "
    "called euro euros".split()
)


def facts(hit: Hit) -> str:
    """A record as the model reads it: one line, shortened, without the marks that begin and end a turn of a chat."""
    fields = {"name": hit.caption.rstrip(". "), "category": hit.category, "price": hit.price}
    return "; ".join(f"{name}: {_plain(value)}" for name, value in fields.items())


def messages(hit: Hit, question: str = "", shown: str = "") -> list[dict[str, str]]:
    """The chat that asks for a sentence about `hit`: rules, one example of a record and its sentence, the record.

    question: what to say about the record; `shown` is then the example's answer.
    """
    rules, ask = (SYSTEM, f". Question: {question}") if question else (f"{SYSTEM} Use only the record.", "")
    example, sentence = EXAMPLE
    turns = [rules, f"Record: {example}{ask}", shown or sentence, f"Record: {facts(hit)}{ask}"]
    return [
        {"role": role, "content": content}
        for role, content in zip(("system", "user", "assistant", "user"), turns, strict=True)
    ]


def template(hit: Hit) -> str:
    """The same sentence without a model."""
    name = _plain(hit.caption.rstrip(". "))
    name = name[:1].lower() + name[1:] if re.match(r"(A|An|The|Some|Two|Three) ", name) else name
    return f"I found {name} for {hit.price} in the category {_plain(hit.category)}."


@dataclass(frozen=True)
class Fidelity:
    """A sentence against its record. `added`: words that are neither in the record nor small words; `left_out`: words
    of the caption that are not in the sentence; `priced`: whether the price is in it as the record has it."""

    added: tuple[str, ...]
    left_out: tuple[str, ...]
    priced: bool

    @property
    def exact(self) -> bool:
        return self.priced and not self.added and not self.left_out


def compare(sentence: str, hit: Hit) -> Fidelity:
    """Which words of a sentence the record does not have, and which of the caption the sentence does not have.

    Words are compared as they are written, without case and plural s; a paraphrase counts as added.
    """
    known = set(_words(facts(hit)))
    said = _words(sentence)
    added = tuple(dict.fromkeys(word for word in said if word not in known and word not in _FRAME))
    wanted = dict.fromkeys(word for word in _words(hit.caption) if word not in _FRAME)
    left_out = tuple(word for word in wanted if word not in said)
    return Fidelity(added, left_out, f"{hit.price_cents / 100:.2f}" in sentence)


class Answerer:
    """Sentences from `tensorrt_llm_bls` of the server at `address` ("host:port", gRPC); threads may share it.

    Args:
        enough: for each kind of query ("text", "image", "both") the score from which a hit counts as found.
        tokenizer: folder of the model's tokenizer, whose chat template is used; SmolLM2's when left out.
    """

    def __init__(self, address: str, enough: dict[str, float], tokenizer: Path | None = None) -> None:
        if unknown := set(enough) ^ {"text", "image", "both"}:
            raise CourseError(f"enough needs a score for text, image and both; look at {', '.join(sorted(unknown))}.")
        self.address, self.enough = address, enough
        self.tokenizer = tokenizer or assets.tokenizer("smollm2")

    def near(self, found: Found) -> tuple[Hit, ...]:
        """The hits that count: those with at least the score `enough` has for this kind of query."""
        return tuple(hit for hit in found.hits if hit.score >= self.enough[found.kind])

    def stream(self, found: Found, *, timeout: float = 60.0) -> Iterator[str]:
        """Pieces of the answer as they arrive: about the best hit, or that nothing was found, without the model.

        Raises InferenceServerException when the model fails. Leaving the iterator early stops the model's work.
        """
        if not (near := self.near(found)):
            yield NOTHING
            return
        asked = self._inputs(messages(near[0]), stream=True)
        with (
            grpcclient.InferenceServerClient(self.address) as client,  # one stream at a time each
            closing(stream(client, MODEL, asked, timeout=timeout)) as results,
        ):
            yield from filter(None, (_text(result).rstrip("\n") for result in results))

    def about(self, hits: Sequence[Hit], question: str = "", shown: str = "", timeout: float = 300.0) -> list[str]:
        """The model's sentence about each record, all asked at once; the other two as `messages` takes them."""
        asked = {n: self._inputs(messages(hit, question, shown), stream=False) for n, hit in enumerate(hits)}
        with grpcclient.InferenceServerClient(self.address) as client:
            results = gather(client, MODEL, asked, timeout=timeout)
        return ["".join(map(_text, results[number])).strip() for number in asked]

    def _inputs(self, turns: list[dict[str, str]], *, stream: bool) -> list[grpcclient.InferInput]:
        prompt = chat.render(self.tokenizer, turns)
        wanted = {"max_tokens": MAX_TOKENS, "exclude_input_in_output": True, "stop_words": ["\n"], "stream": stream}
        return inputs(text_input=prompt, **wanted)


def _text(result: grpcclient.InferResult) -> str:
    return result.as_numpy("text_output").reshape(-1)[0].decode()


def _plain(value: str) -> str:
    text = re.sub(r"<\|[^|]*\|?>?", " ", str(value))
    text = " ".join(text.replace(";", ",").split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rsplit(" ", 1)[0] + " …"


def _words(text: str) -> list[str]:
    """Lower-case words and numbers; "cats", "cat's" and "cat" are one word, "24.39" is one number."""
    found = re.findall(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:['’-][^\W\d_]+)*", re.sub(r"['’]s\b", "", text.lower()))
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]
