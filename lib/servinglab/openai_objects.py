"""OpenAI's objects as `openai_frontend` serves them; README.md lists what is served and what is refused.

What differs from OpenAI: without temperature and top_p it is greedy; without a length a chat's answer has 64 tokens; n
answers have one seed after the other; a token's text is what arrived with it, so of half a character it is empty.
"""

import secrets
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, field_validator, model_validator

MOST_ANSWERS = 128
COUNT = "return_num_input_tokens"  # asked for where the text does not tell
Token = tuple[str, float, int]  # its text, its log probability, and where in the answer's text it begins
Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]  # as large as a tensor of it holds


class _Strict(BaseModel, extra="forbid", strict=True):
    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class Part(_Strict):
    type: Literal["text"]
    text: str


class Address(_Strict):
    url: str = Field(max_length=2**24)
    detail: Literal["auto", "low", "high"] = "auto"  # the models know one size


class Picture(_Strict):
    type: Literal["image_url"]
    image_url: Address
    text: ClassVar = "<image>"  # where it stands in the prompt


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[Part | Picture, Field(discriminator="type")]]


class StreamOptions(_Strict):
    include_usage: bool = False


class Request(_Strict):
    """What the bodies of the two paths have in common, and `min_tokens`, which Triton has; `user` changes nothing."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: int | None = Field(None, ge=-(2**31), lt=2**31)
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[float, Field(ge=-100, le=100)]] = {}
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stop: list[Word] = Field([], max_length=4)
    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    user: str | None = None

    @field_validator("stop", "prompt", mode="before", check_fields=False)
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """One text, or the token ids of one, is a list of one."""
        ids = isinstance(value, list) and value and all(type(each) is int for each in value)
        return [value] if ids or isinstance(value, str) else value

    def inputs(self, biased: list[str]) -> list[dict[str, Any]]:
        """Inputs of the BLS model for each of the n answers, but for the prompt. `biased`: logit_bias's tokens."""
        sampled, seed = self.model_dump(include={"temperature", "top_p"}, exclude_none=True), self.seed
        given = self.model_dump(include={"min_tokens", "presence_penalty", "frequency_penalty"})
        given |= {"max_tokens": self.length, "exclude_input_in_output": True, "stream": True}
        given |= {"stop_words": self.stop or None, "return_log_probs": self.tells or None}
        given |= {"embedding_bias_words": biased or None, "embedding_bias_weights": [*self.logit_bias.values()] or None}
        if sampled and 0 not in sampled.values():  # Triton's greedy is no top_k and no top_p
            given, seed = {"top_p": 1.0, **given, **sampled}, secrets.randbits(62) if seed is None else seed
        return [given | {"seed": None if seed is None else seed + number} for number in range(self.n)]


class Chat(Request):
    """The body of /v1/chat/completions, and the objects of its answer."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] = 0

    echo: ClassVar = False
    KIND: ClassVar = ("chatcmpl", "chat.completion", "chat.completion.chunk")
    length = property(lambda self: self.max_completion_tokens or self.max_tokens or 64)
    tells = property(lambda self: self.logprobs)

    def chat(self) -> list[dict[str, str]]:
        """The messages as chat templates know them."""
        roles = [m.role.replace("developer", "system") for m in self.messages]
        texts = [m.content if isinstance(m.content, str) else "".join(p.text for p in m.content) for m in self.messages]
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]

    def inputs(self, biased: list[str]) -> list[dict[str, Any]]:
        parts = [part for message in self.messages if isinstance(message.content, list) for part in message.content]
        urls = [part.image_url.url for part in parts if isinstance(part, Picture)]
        # How many tokens a picture takes, only the model knows.
        row = np.array([[url.encode() for url in urls]], object)
        pictures = {"image_url_input": row, COUNT: True} if urls else {}
        return [given | pictures for given in super().inputs(biased)]

    def choice(self, text: str | None, tokens: list[Token], first: bool) -> dict[str, Any]:
        """A piece of an answer, the first or all of one; `text` None: nothing but why it ended."""
        said = ({"role": "assistant"} if first else {}) | ({} if text is None else {"content": text})
        found = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p, _ in tokens]
        return {"delta" if self.stream else "message": said, "logprobs": {"content": found} if self.tells else None}


class Completion(Request):
    """The body of /v1/completions, and the objects of its answer."""

    prompt: list[str | list[int]] = Field(min_length=1)
    logprobs: Literal[0] | None = None
    echo: bool = False
    best_of: Literal[1] = 1

    KIND: ClassVar = ("cmpl", "text_completion", "text_completion")
    length = property(lambda self: self.max_tokens or 16)
    tells = property(lambda self: self.logprobs is not None)

    def choice(self, text: str | None, tokens: list[Token], first: bool) -> dict[str, Any]:
        columns = ([token[place] for token in tokens] for place in range(3))
        told = dict(zip(("tokens", "token_logprobs", "text_offset"), columns, strict=True))
        return {"text": text or "", "logprobs": told if self.tells else None}


class Answer:
    """One answer as it arrives. What may be shown of it ends before a stop word; Triton's text ends with the word."""

    def __init__(self, asked: Chat | Completion, prompt: str = "") -> None:
        self._stop, self._most, self._before = asked.stop, asked.length, prompt if asked.echo else ""
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._shown = self._told = 0

    def take(self, text: str, log_probs: list[float]) -> None:
        """One response: its text, and the log probabilities of all tokens so far."""
        start = sum(map(len, self._texts))
        for number, log_prob in enumerate(log_probs[len(self._tokens) :]):
            self._tokens.append(("" if number else text, log_prob, start + len(text) * (number > 0)))
        self._texts.append(text)

    def more(self, ended: bool = False) -> tuple[str, list[Token]]:
        """What may be shown and was not yet: text, and the tokens that it is the end of."""
        text = "".join(self._texts)
        cut = min((at for word in self._stop if (at := text.find(word)) >= 0), default=None)
        if cut is None:  # the end may be the beginning of a stop word
            begun = (size for word in self._stop for size in range(1, len(word)) if text.endswith(word[:size]))
            cut = len(text) - (0 if ended else max(begun, default=0))
        tokens = [token for token in self._tokens[self._told :] if token[2] + len(token[0]) <= cut]
        shown, self._before = self._before + text[self._shown : cut], ""
        self._shown, self._told = cut, self._told + len(tokens)
        return shown, tokens

    def end(self, count: Any) -> tuple[int, str]:
        """How many tokens it has, and why it ended. No model of the contract says either.

        A text has more than one way into tokens, so the number is held between two bounds: each response with text
        stands for a token or more, and there are never more than were asked for. As many mean that the length ended it.
        """
        tokens = min(self._most, max(sum(map(bool, self._texts)), count(text := "".join(self._texts))))
        return tokens, "length" if tokens == self._most and not any(word in text for word in self._stop) else "stop"
