"""One question to the model from the command line: find or start a server, stream the answer, leave nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servinglab import scratch
from servinglab.errors import CourseError

if TYPE_CHECKING:
    from servinglab.old_client import TritonClient

DEFAULT_MODEL = "tensorrt_llm_bls"


@contextlib.contextmanager
def some_server(precision: str | None, tell: Callable[[str], None]) -> Iterator[Any]:
    """A server of `course serve` when one runs, else one of our own in a temporary folder, gone at the end.

    An explicit `precision` always starts our own: a running server has whatever it was built with.
    """
    from servinglab.server.triton import TritonServer, running

    if precision is None:
        for server in running():
            tell(f"using the server at {server.grpc_url}")
            yield server
            return
    from servinglab.repository import build_default

    with scratch.folder() as folder:
        why = "" if precision is None or not running() else ", for --precision asks for a model of its own"
        tell(f"starting a server{why} (course serve keeps one running)")
        repository = build_default(folder, precision=precision or "fp32")
        with TritonServer(repository) as server:
            yield server


def tokenizer_of(client: TritonClient, model: str) -> Path:
    """Tokenizer folder of the deployment that `model` belongs to, from the running server's own config."""
    for ending in (DEFAULT_MODEL, "ensemble"):
        if model.endswith(ending):
            prefix = model.removesuffix(ending)
            break
    else:
        raise CourseError(
            f"'{model}' is not the name of a BLS model or an ensemble, so its chat template is unknown; choose another "
            "--model, or add --raw."
        )
    name = f"{prefix}preprocessing"
    folder = client.spec(name).parameters.get("tokenizer_dir")
    if not folder:
        raise CourseError(f"The server's model '{name}' has no tokenizer_dir; choose another --model or add --raw.")
    return Path(folder)


def ask(
    prompt: str, *, write: Callable[[str], None], tell: Callable[[str], None] = lambda text: None, raw: bool = False,
    model: str = DEFAULT_MODEL, precision: str | None = None, deadline: float = 300.0, **inputs: Any,
) -> None:  # fmt: skip
    """Send `prompt` and pass each piece of the answer to `write` as it arrives.

    `inputs`: request inputs of the model (stream, temperature, top_k, top_p, seed, max_tokens); None means absent.
    Whatever interrupts the loop (Ctrl-C, a closed terminal) cancels the request and ends a server of our own.
    """
    from servinglab import chat
    from servinglab.old_client import TritonClient

    if not prompt.strip():
        raise CourseError('The prompt is empty; ask something: course ask "What is a token?"')
    inputs = {name: value for name, value in inputs.items() if value is not None}
    if inputs.get("max_tokens", 1) < 1:
        raise CourseError(f"max_tokens is {inputs['max_tokens']}; ask for 1 or more.")
    if "temperature" in inputs and not inputs.keys() & {"top_k", "top_p"}:
        tell("temperature changes nothing without top_k or top_p: the likeliest token is taken each time")
    with some_server(precision, tell) as server:
        with TritonClient(server.grpc_url) as client:
            text = prompt
            if not raw:
                folder = tokenizer_of(client, model)
                if chat.template(folder) is None:
                    tell("the model has no chat template; sending the prompt as it is")
                else:
                    text = chat.render(folder, prompt)
            with client.stream(text, model=model, deadline=deadline, exclude_input_in_output=True, **inputs) as stream:
                for chunk in stream:
                    write(chunk.text)
