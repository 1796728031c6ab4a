"""One question to the model from the command line: find or start a server, stream the answer, leave nothing behind."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from servinglab import chat, scratch
from servinglab.errors import CourseError

ENDINGS = ("tensorrt_llm_bls", "ensemble")


@contextlib.contextmanager
def some_server(precision: str | None, tell: Callable[[str], None]) -> Iterator[Any]:
    """That of SERVINGLAB_SERVER, or of `course serve` when one runs; else one of our own, with weights in `precision`,
    gone at the end."""
    from servinglab.repository import build_default
    from servinglab.server.triton import running
    from servinglab.serving import attached, of_lane

    there = attached()
    for server in [there] if there else running() if precision is None else ():
        tell(f"using the server at {server.grpc_url}")
        yield server
        return
    with scratch.folder() as folder:
        why = f", with weights in {precision}" if precision else " (course serve keeps one running)"
        tell(f"starting a server of its own{why}")
        with of_lane(build_default(folder, precision=precision or "fp32")) as server:
            yield server


def tokenizer_of(client: Any, model: str) -> Path:
    """Tokenizer folder of the deployment that `model` belongs to, from the running server's own config."""
    prefix = next((model.removesuffix(ending) for ending in ENDINGS if model.endswith(ending)), None)
    if prefix is None:
        raise CourseError(f"'{model}' is not the name of a BLS model or an ensemble, so its chat template is unknown; "
                          "choose another --model, or add --raw.")  # fmt: skip
    config = client.get_model_config(f"{prefix}preprocessing", client_timeout=10).config
    if folder := config.parameters["tokenizer_dir"].string_value:
        return Path(folder)
    raise CourseError(f"The server's model '{config.name}' has no tokenizer_dir; choose another --model or add --raw.")


def ask(
    prompt: str, *, write: Callable[[str], None], tell: Callable[[str], None], raw: bool = False,
    model: str = ENDINGS[0], precision: str | None = None, deadline: float = 300.0, **given: Any,
) -> None:  # fmt: skip
    """Send `prompt` and pass each piece of the answer to `write` as it arrives.

    `given`: inputs of the model; None means absent. Ctrl-C cancels the request and ends a server of our own.
    """
    from tritonclient.grpc import InferenceServerClient  # importing gRPC takes half a second
    from tritonclient.utils import InferenceServerException

    from servinglab.client import channel_args, explained, inputs, stream

    if not prompt.strip():
        raise CourseError('The prompt is empty; ask something: course ask "What is a token?"')
    given = {name: value for name, value in given.items() if value is not None}
    if given["max_tokens"] < 1:
        raise CourseError(f"max_tokens is {given['max_tokens']}; ask for 1 or more.")
    if "temperature" in given and not given.keys() & {"top_k", "top_p"}:
        tell("temperature changes nothing without top_k or top_p: the likeliest token is taken each time")
    with some_server(precision, tell) as server:
        url = server.grpc_url
        try:
            with InferenceServerClient(url, channel_args=channel_args(url)) as client:
                if not raw and chat.template(folder := tokenizer_of(client, model)) is None:
                    tell("the model has no chat template; sending the prompt as it is")
                elif not raw:
                    prompt = chat.render(folder, prompt)
                request = inputs(text_input=prompt, exclude_input_in_output=True, **given)
                with contextlib.closing(stream(client, model, request, timeout=deadline)) as results:
                    for result in results:
                        write(result.as_numpy("text_output").flat[0].decode(errors="replace"))
        except OverflowError as error:  # an input that its datatype cannot hold
            raise CourseError(str(error)) from None
        except InferenceServerException as error:
            said, _ = explained(error, url, deadline)
            raise CourseError(said + f" Ready: {', '.join(server.models())}." * ("unknown model" in said)) from None
