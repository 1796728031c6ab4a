"""A prompt and every setting of a request, sent to a running server: the text as it streams, each token coloured by its
log probability, and the distribution of the next token. Controls for a person, a picture for a page."""

import asyncio
import contextlib
import html
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient, InferResult
from tritonclient.utils import InferenceServerException

from servinglab import client, decoding
from servinglab.errors import CourseError
from servinglab.explore import is_live
from servinglab.figures import playground as figures
from servinglab.figures.style import show

# What a control begins with, its lowest and highest value, its step. The server has limits of its own.
SETTINGS = {
    "temperature": (1.0, 0.0, 3.0, 0.1), "top_k": (0, 0, 100, 1), "top_p": (1.0, 0.0, 1.0, 0.05),
    "repetition_penalty": (1.0, 0.0, 2.0, 0.1), "seed": (0, 0, 100, 1), "beam_width": (1, 1, 8, 1),
    "max_tokens": (40, 1, 256, 1),
}  # fmt: skip
_NAMES = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "max_tokens": "request_output_len"}  # of `tensorrt_llm`


def playground(url: str, prompt: str, **settings: Any) -> None:
    """Controls for requests to the server at `url` (gRPC, "127.0.0.1:8001"); where nobody can move them, a picture of
    one answer, of one beam. `settings`: what to begin with, by the names of SETTINGS.

    The prompt goes as it is to `preprocessing`, and its ids to `tensorrt_llm`. Raises CourseError for a setting that is
    none and for a tokenizer that is not here; for a page also what the server says.
    """
    if unknown := sorted(settings.keys() - SETTINGS):
        raise CourseError(f"playground has no setting {unknown[0]!r}; it has {', '.join(SETTINGS)}")
    settings = {name: settings.get(name, first) for name, (first, *_) in SETTINGS.items()}
    with InferenceServerClient(url, channel_args=client.channel_args(url)) as server:
        folder = server.get_model_config("preprocessing").config.parameters["tokenizer_dir"].string_value
        if not (file := Path(folder, "tokenizer.json")).is_file():
            raise CourseError(f"The server's tokenizer is not here: {file}. Run this where it is, or copy it.")
        answer, first = Answer(Tokenizer.from_file(str(file)), settings | {"beam_width": 1}), None
        if is_live():
            return _Controls(url, answer.tokenizer, prompt, settings).begin()
        for result in client.stream(server, "tensorrt_llm", answer.request(server, prompt)):
            answer.add(result)
            first = first or answer.next_token()
    likely, text = sum(np.exp(answer.log_probs) >= 0.5), "".join(answer.pieces)
    fig = figures.picture(prompt, answer.pieces, answer.log_probs, *first)
    show(fig, f"{likely} of {len(answer.ids)} tokens had a probability of 50 % or more", f"The answer: {text!r}")


class Answer:
    """One answer as it arrives: the `pieces` of its text, and each token's log probability before all settings."""

    def __init__(self, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
        self.tokenizer, self.settings, self.one = tokenizer, settings, settings["beam_width"] == 1
        self.prompt_ids, self.ids, self.pieces, self.log_probs = [], [], [], []
        self.logits = np.zeros(0)  # [vocabulary], from which the last token was drawn

    def request(self, server: InferenceServerClient, prompt: str) -> client.Inputs:
        """The tensors for `tensorrt_llm`, with ids from `preprocessing`. Only one beam streams."""
        settings = {_NAMES.get(name, name): value for name, value in self.settings.items()}
        wanted = client.inputs(QUERY=prompt, REQUEST_OUTPUT_LEN=settings["request_output_len"])
        made = server.infer("preprocessing", wanted)
        self.prompt_ids, end = made.as_numpy("INPUT_ID")[0].tolist(), made.as_numpy("OUT_END_ID").item()
        if not self.prompt_ids:
            raise CourseError("The prompt is empty: write at least one word for the model to go on from.")
        return client.inputs(
            input_ids=self.prompt_ids, input_lengths=len(self.prompt_ids), end_id=end, exclude_input_in_output=True,
            streaming=self.one, return_log_probs=True, return_generation_logits=self.one, **settings,
        )  # fmt: skip

    def add(self, result: InferResult) -> None:
        """Take in a response: its new tokens, one or several, and the logits of each."""
        ids, rows = result.as_numpy("output_ids")[0, 0], result.as_numpy("generation_logits")[0, 0]
        for token, row in zip(ids.tolist(), rows.astype(float), strict=False):  # an end token has logits and no id
            self.ids.append(token)
            self.logits = row
            self.log_probs.append(row[token] - np.logaddexp.reduce(row))
            whole = self.tokenizer.decode(self.ids, skip_special_tokens=False).removesuffix("\ufffd")  # half a letter
            self.pieces.append(whole[len("".join(self.pieces)) :])

    def next_token(self) -> tuple[dict[int, str], np.ndarray, np.ndarray]:
        """Names of the likeliest tokens by id, and two distributions [vocabulary] of the last token: the model's, and
        the one that it was drawn from, after penalty, temperature, top-k and top-p."""
        before, seen = decoding.softmax(self.logits), self.prompt_ids + self.ids[:-1]
        z = decoding.repetition_penalty(self.logits, seen, self.settings["repetition_penalty"])
        t, k, p = (self.settings[name] for name in ("temperature", "top_k", "top_p"))
        after = decoding.distribution(z, t or 1.0, k if t and (k or p) else 1, p)
        return {int(i): repr(self.tokenizer.decode([i], False)) for i in np.argsort(-before)[:8]}, before, after


class _Controls:
    """The widgets, and one request at a time, with a client of its own. Another request cancels it."""

    def __init__(self, url: str, tokenizer: Tokenizer, prompt: str, settings: dict[str, Any]) -> None:
        import ipywidgets as w
        from IPython.display import display

        self.url, self.tokenizer, self.task = url, tokenizer, None
        look = {"continuous_update": False, "style": {"description_width": "10em"}}
        self.prompt = w.Textarea(prompt, description="prompt", layout={"width": "95%"}, **look)
        self.settings, self.stop = {}, w.Button(description="Stop")
        for name, (first, low, high, step) in SETTINGS.items():
            slider = w.FloatSlider if isinstance(first, float) else w.IntSlider
            limits = {"min": low, "max": max(high, settings[name]), "step": step}
            self.settings[name] = slider(settings[name], **limits, description=name, layout={"width": "26em"}, **look)
        run = w.Button(description="Run", button_style="primary")
        run.on_click(lambda _: self.begin(self.settings["max_tokens"].value))
        self.stop.on_click(lambda _: self.task.cancel())
        for control in (self.prompt, *self.settings.values()):  # an answer that is coming goes on as it was asked for
            control.observe(lambda _: self.begin() if self.stop.disabled else None, "value")
        self.said, self.shown = w.HTML(), w.HTML(layout={"width": "95%"})
        row = w.Box([*self.settings.values(), run, self.stop], layout={"flex_flow": "row wrap"})
        display(w.VBox([self.prompt, row, self.said, self.shown]))

    def begin(self, tokens: int = 1) -> None:
        """Send a request; one token is enough to see what the settings do to the distribution after the prompt."""
        if self.task:
            self.task.cancel()
        self.stop.disabled = tokens == 1
        self.said.value = "" if self.stop.disabled else "What you move now counts from the next answer on."
        self.task = asyncio.ensure_future(self.guarded(tokens))

    async def guarded(self, tokens: int) -> None:
        """What goes wrong becomes a sentence: the exception of a callback is shown nowhere."""
        sentence = ""
        try:
            await self.ask(tokens)
        except asyncio.CancelledError:
            sentence = "Stopped: the request was cancelled."
        except InferenceServerException as error:
            sentence = client.explained(error, self.url, 60)[0]
        except Exception as error:
            sentence = str(error)
        if self.task is asyncio.current_task():  # else a newer request speaks
            self.said.value, self.stop.disabled = f"<b>{html.escape(sentence)}</b>" * bool(sentence), True

    async def ask(self, tokens: int) -> None:
        settings = {name: control.value for name, control in self.settings.items()}
        answer, due = Answer(self.tokenizer, settings | {"max_tokens": tokens}), 0.0
        async with contextlib.AsyncExitStack() as stack:
            server = stack.enter_context(InferenceServerClient(self.url, channel_args=client.channel_args(self.url)))
            request = answer.request(server, self.prompt.value)
            stream = contextlib.aclosing(client.astream(server, "tensorrt_llm", request))
            async for result in await stack.enter_async_context(stream):
                if not answer.one:
                    texts = map(self.tokenizer.decode, result.as_numpy("output_ids")[0].tolist())
                    self.shown.value = figures.beams(list(texts), result.as_numpy("cum_log_probs")[0])
                    continue
                answer.add(result)
                if result.seconds > due:  # 20 drawings a second are enough
                    self.shown.value = figures.page(answer.pieces, answer.log_probs, *answer.next_token())
                    due = result.seconds + 0.05
                await asyncio.sleep(0.001)  # a fast server would leave no turn for Stop
        if answer.ids:
            self.shown.value = figures.page(answer.pieces, answer.log_probs, *answer.next_token())
