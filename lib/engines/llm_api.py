"""Move a request from one road to another: the engine lane, the LLM API, trtllm-serve, Triton's llmapi (notebook 12).

A request is a dict of plain values under the names of its road (llm_names.ROADS). Its meaning stays: names change,
values that the other road would fill in differently are written out, and what has no counterpart is reported.

Sources: those of llm_names and llm_values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engines import EngineError, llm_names, llm_values
from engines.llm_names import ENGINES, ROADS, Row
from engines.llm_write import Note, Writer
from servinglab.errors import did_you_mean
from servinglab.repository import contract

__all__ = ["Note", "decides", "translate"]


def translate(
    request: Mapping[str, Any], source: str, target: str, *, template: Callable[[list], str] | None = None
) -> tuple[dict[str, Any], list[Note]]:
    """The request in the names of road `target`, and one Note of one sentence for each thing worth knowing.

    `template` turns chat messages into a prompt (`servinglab.chat.render` with a tokenizer); only `chat` as the source
    needs it. A value of None counts as left out. The address of the model (OpenAI's `model`) is no part of it.

    Raises EngineError: unknown road or name, value of a wrong kind, a required name missing, or a target that cannot
    take the request at all.
    """
    llm_names.names_of(target)
    said, notes = _read(request, source)
    if source == target:
        return {name: value for name, value in request.items() if value is not None}, []
    if target == "chat":
        raise EngineError(
            "A prompt does not become chat messages: the server would put the chat template around it a second time; "
            "use 'completions', or write the messages yourself."
        )
    ideas = _ideas(said, source, template)
    writer = Writer(source, target, said, ideas, notes)
    for row in llm_names.rows():
        writer.write(row)
    return writer.request, notes


def decides(request: Mapping[str, Any], road: str) -> str:
    """How a request chooses the next token: "greedy", "sampling" or "beam search". The prompt may be missing.

    Raises EngineError as `translate` does.
    """
    said, _ = _read(request, road, complete=False)
    if llm_values.beams(llm_values.filled(said, road), road) > 1:
        return "beam search"
    return "greedy" if llm_values.choice(said, road) is None else "sampling"


def _read(request: Mapping[str, Any], road: str, complete: bool = True) -> tuple[dict[str, Any], list[Note]]:
    """{idea: value} of what the request says, each value checked; names without a row become notes."""
    names = llm_names.names_of(road)
    if not isinstance(request, Mapping):
        raise EngineError(f"A request is a dict of names and values, not {request!r}.")
    others = llm_names.OTHERS.get(road) or _engine_others(road, names)
    said, notes = {}, []
    for name, value in request.items():
        if road == "chat" and name == "max_tokens":  # the older name, still taken
            name = "max_completion_tokens"
        if name not in names and name not in others:
            raise EngineError(f"There is no {name!r} on {ROADS[road]}.{_advice(name, road, [*names, *others])}")
        if value is None or name in ("model", "top_logprobs"):
            continue
        if name not in names:
            notes.append(Note("lost", name, f"{name}: the table has no counterpart for it on another road."))
            continue
        idea = names[name].idea
        said[idea] = llm_values.checked(idea, name, value)
    if said.get("log probs") is True and request.get("top_logprobs"):
        said["log probs"] = llm_values.checked("log probs", "top_logprobs", request["top_logprobs"])
    for name, row in names.items():
        if complete and row.on(road).required and row.idea not in said:
            raise EngineError(f"A request for {ROADS[road]} needs {name!r}, and this one has none.")
    return said, notes


def _engine_others(road: str, names: Mapping[str, Row]) -> list[str]:
    generation = "old" if road == "engine_old" else "1.1"
    both = [t.name for model in ("ensemble", "tensorrt_llm_bls") for t in contract.inputs(model, generation)]
    return [name for name in both if name not in names]


def _advice(name: str, road: str, known: list[str]) -> str:
    """What the same idea is called here, if another road has this name; else the nearest name."""
    for row in llm_names.rows():
        here = row.on(road).name
        if here and name in {row.on(other).name for other in (*ROADS, "tensorrt_llm")}:
            return f" It is called {here!r} there."
    return did_you_mean(str(name), known)


def _ideas(said: Mapping[str, Any], source: str, template: Callable[[list], str] | None) -> dict[str, Any]:
    """The request without a road: every idea with the value that counts, in one form."""
    ideas = llm_values.filled(said, source)
    if source == "chat":
        if template is None:
            raise EngineError(
                "Chat messages become a prompt through the model's chat template: pass template=… "
                "(servinglab.chat.render with the tokenizer's folder)."
            )
        ideas["prompt"] = template(ideas["prompt"])
    width = llm_values.beams(ideas, source)
    if source in ENGINES and width > 1 and "n" not in said:
        ideas["n"] = width  # an engine returns all its beams
    if width > 1 or (ideas["best of"] or 1) <= ideas["n"]:
        ideas["best of"] = None
    ideas["beams"] = width
    ideas["choice"] = None if width > 1 else llm_values.choice(said, source)
    ideas["log probs"] = llm_values.log_probs(ideas["log probs"], source)
    ideas["min tokens"] = max(ideas["min tokens"], 1)  # 0 and 1 both say: no minimum
    ideas["early stopping"] = int(ideas["early stopping"])
    # "exclude" is turned round; and no road but OpenAI's repeats the prompt in a stream.
    openai = source == "completions"
    ideas["repeat the prompt"] = ideas["repeat the prompt"] if openai else not ideas["repeat the prompt"]
    ideas["repeat the prompt"] &= openai or not ideas["stream"]
    ideas["guide"] = llm_values.read_guide(ideas["guide"], ideas["guide type"], source)
    return ideas
