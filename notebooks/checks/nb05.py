"""Exercises of notebook 05: bytes of a message, the end of a stream, the times of its tokens."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from tritonclient.grpc import service_pb2

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong

# --- 05.1: 32 0d | 0a 0b "text_output" --------------------------------------------------------------------------------

_FIELD = {
    6: None,
    50: "0x32 is the whole tag: the field number is what is left without its lower three bits, 50 >> 3",
    32: "32 is hexadecimal, and the whole tag: write it in bits, then leave out the lower three",
    3: "a tag is not cut between its two hexadecimal digits: three bits are the wire type, the other five the number",
    1: "field 1 is the name inside; the outer field begins with the tag 0x32",
}
_WIRE_TYPE = {
    2: None,
    50: "that is the whole tag; the wire type is its lower three bits, 50 & 7",
    0: "type 0 is a single varint; the lower three bits of 0x32 are 010",
    6: "6 is the field number; the wire type is the lower three bits of the tag",
}
_LENGTH = {
    13: None,
    50: "you read the tag as a length: the length is the byte behind it",
    32: "you read the tag as a length: the length is the byte behind it",
    11: "that is how long the text inside is; the outer length also covers the inner tag and the inner length",
    15: "that counts the tag and the length byte too; a length covers only what comes after it",
    10: "0x0a is the tag of the inner field; the outer length is the byte behind 0x32",
}


@exercise("05.1", expects="a dict with field, wire_type, length and text")
def wire_field(answer: dict[str, object]) -> Verdict:
    parts = {name: answer[name] for name in ("field", "wire_type", "length", "text")}
    if any(is_stub(part) for part in parts.values()):
        return unattempted()
    for name, known in (("field", _FIELD), ("wire_type", _WIRE_TYPE), ("length", _LENGTH)):
        if said := known.get(parts[name], "a tag is five bits of number and three of wire type; a length follows"):
            return wrong(f"{name} {parts[name]!r}: {said}")
    text = parts["text"]
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if text == "\n\x0btext_output":
        return wrong("the value begins with a tag and a length of its own, 0a 0b; the text comes after them")
    if text != "text_output":
        return wrong(f"text {parts['text']!r}: decode the eleven bytes behind 0a 0b as ASCII")
    return right("field 6 is outputs, and the message in it names one: text_output")


# --- 05.2: which response is the last ---------------------------------------------------------------------------------


def _response(text: str | None, final: bool = False) -> service_pb2.ModelInferResponse:
    """A response as Triton sends it; None makes an empty one."""
    response = service_pb2.ModelInferResponse(model_name="tensorrt_llm_bls", model_version="1", id="fox")
    response.parameters["triton_final_response"].bool_param = final
    if text is not None:
        response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        response.raw_output_contents.append(struct.pack("<I", len(text.encode())) + text.encode())
    return response


def _bls() -> list[service_pb2.ModelInferResponse]:
    """Four tokens, the second half a character; then the flag alone."""
    return [*map(_response, ["A", "", " fox", " ran"]), _response(None, final=True)]


def _ensemble() -> list[service_pb2.ModelInferResponse]:
    """The model ended by itself after three of eight tokens; the flag is on the last."""
    return [_response("A"), _response(" fox"), _response(".", final=True)]


@exercise("05.2", expects="a function is_last(response, received, asked) that returns True or False")
def last_response(is_last: Callable[[service_pb2.ModelInferResponse, int, int], bool]) -> Verdict:
    bls, ensemble = _stop(is_last, _bls(), 4), _stop(is_last, _ensemble(), 8)
    if (bls, ensemble) == (5, 3):
        return right("the flag alone decides, wherever it sits")
    if (bls, ensemble) == (None, None):
        return wrong(
            "your loop never ends; Triton sends no [DONE] as OpenAI's protocol does: the end is a response parameter"
        )
    if bls == 1:
        return wrong("it stops at the first response; each one has the parameter, look at its bool_param")
    if bls == 2:
        return wrong("an empty text is not the end: it may be half a character, and the rest is lost")
    if bls == 4:
        return wrong(
            "counting to max_tokens leaves before the final response, and waits for ever when the model ends early"
        )
    if bls == 5:
        return wrong("an empty response is only how the BLS model ends; the ensemble puts the flag on its last data")
    return wrong(f"of 5 responses it takes {bls} as the last, of 3 responses {ensemble}; ask for the final flag")


def _stop(is_last: Callable, responses: list, asked: int) -> int | None:
    """How many responses the loop takes before it stops; None when nothing stops it."""
    return next((n for n, response in enumerate(responses, 1) if is_last(response, n, asked)), None)


# --- 05.3: the times of a stream --------------------------------------------------------------------------------------

_TTFT = {
    300: None,
    40: "that is the gap between the first two tokens; the first token is waited for since the request",
    0.3: "that is in seconds",
    510: "that is when the last token arrived",
}
_GAP = {
    52.5: None,
    0.0525: "that is in seconds",
    102: "the whole time divided by all tokens mixes the first wait into the gaps",
    127.5: "the first wait is not a gap: begin at the first token",
    42: "five tokens have four gaps between them",
    50: "that is the median; the mean is asked for",
}


@exercise("05.3", expects="a dict with ttft_ms and mean_gap_ms")
def token_times(answer: dict[str, float]) -> Verdict:
    parts = {name: answer[name] for name in ("ttft_ms", "mean_gap_ms")}
    if any(is_stub(part) for part in parts.values()):
        return unattempted()
    for name, known in (("ttft_ms", _TTFT), ("mean_gap_ms", _GAP)):
        near = [said for value, said in known.items() if math.isclose(float(parts[name]), value, rel_tol=1e-3)]
        if not near or near[0]:
            said = near[0] if near else "gaps are differences of neighbouring times; the first token has none"
            return wrong(f"{name} {parts[name]!r}: {said}")
    return right("300 ms, then 52.5 ms a token: 19 tokens per second, however long the first one took")
