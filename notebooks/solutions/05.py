"""Answers of notebook 05, and what people believe instead."""

SETUP = "import queue\nimport numpy as np"

LIVE = {"05.2"}

SOLUTIONS = {
    "05.1": """
tail = bytes.fromhex("32 0d 0a 0b 74 65 78 74 5f 6f 75 74 70 75 74")
answer_1 = {"field": tail[0] >> 3, "wire_type": tail[0] & 7, "length": tail[1], "text": tail[4:].decode()}
""",
    "05.2": """
def read_answer(client, model, request):
    arrived, pieces, done = queue.SimpleQueue(), [], False
    client.start_stream(lambda result, error: arrived.put((result, error)))
    try:
        client.async_stream_infer(model, request, enable_empty_final_response=True)
        while not done:
            result, error = arrived.get()
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                pieces.append(result.as_numpy("text_output")[0].decode())
            done = response.parameters["triton_final_response"].bool_param
    finally:
        client.stop_stream(cancel_requests=not done)
    return "".join(pieces)
""",
    "05.3": """
seconds = np.array([0.30, 0.34, 0.40, 0.43, 0.51])
answer_3 = {"ttft_ms": 1000 * seconds[0], "mean_gap_ms": 1000 * np.diff(seconds).mean()}
""",
}


def _wire(**changed: object) -> str:
    return f"answer_1 = {({'field': 6, 'wire_type': 2, 'length': 13, 'text': 'text_output'} | changed)!r}"


def _times(**changed: float) -> str:
    return f"answer_3 = {({'ttft_ms': 300, 'mean_gap_ms': 52.5} | changed)!r}"


_FLAG = 'response.parameters["triton_final_response"].bool_param'


def _loop(old: str, new: str) -> str:
    """The solution with one mistake."""
    assert old in SOLUTIONS["05.2"]
    return SOLUTIONS["05.2"].replace(old, new)


def _ends(condition: str) -> str:
    return _loop(f"done = {_FLAG}", f"done = {condition}")


MUTANTS = {
    "05.1": [
        ("the tag is the field number", _wire(field=0x32), "is the whole tag"),
        ("the digits 32 are decimal", _wire(field=32), "32 is hexadecimal"),
        ("a tag is cut between its hexadecimal digits", _wire(field=3), "not cut between"),
        ("the inner field is the outer one", _wire(field=1), "the name inside"),
        ("the tag is the wire type", _wire(wire_type=50), "50 & 7"),
        ("the wire type is a varint", _wire(wire_type=0), "a single varint"),
        ("number and type change places", _wire(wire_type=6), "6 is the field number"),
        ("the tag byte is the length", _wire(length=0x32), "read the tag as a length"),
        ("the length is that of the text", _wire(length=11), "the text inside"),
        ("the length counts itself", _wire(length=15), "counts the tag"),
        ("the inner tag is the length", _wire(length=10), "tag of the inner field"),
        ("the value is the text", _wire(text="\n\x0btext_output"), "a tag and a length of its own"),
    ],
    "05.2": [
        ("the parameter is there only at the end", _ends('"triton_final_response" in response.parameters'), "its bool"),
        ("an empty text is the end", _ends('pieces[-1] == ""'), "half a character"),
        ("there are max_tokens responses", _ends("len(pieces) >= 8"), "never ends"),
        ("the last response is empty", _ends("not response.outputs"), "on its last data"),
        ("everybody hears of the end", _loop(", enable_empty_final_response=True", ""), "for empty final responses"),
        ("a response with the flag is empty", _loop("if response.outputs:", f"if not {_FLAG}:"), "may hold text, too"),
        ("the stream closes itself", _loop("client.stop_stream(cancel_requests=not done)", "pass"), "so close it"),
        ("an error is the end", _loop("raise error", "break"), "does not raise that error"),
        ("pieces are an answer", _loop('"".join(pieces)', "pieces"), "it returns list"),
    ],
    "05.3": [
        ("the first gap is the time to first token", _times(ttft_ms=40), "since the request"),
        ("seconds are fine", _times(ttft_ms=0.3), "ttft_ms 0.3: that is in seconds"),
        ("time to first token is time to last", _times(ttft_ms=510), "the last token arrived"),
        ("gaps in seconds", _times(mean_gap_ms=0.0525), "mean_gap_ms 0.0525: that is in seconds"),
        ("a gap is time by tokens", _times(mean_gap_ms=102), "mixes the first wait"),
        ("the first wait is a gap", _times(mean_gap_ms=127.5), "begin at the first token"),
        ("as many gaps as tokens", _times(mean_gap_ms=42), "four gaps"),
        ("the median is the mean", _times(mean_gap_ms=50), "the median"),
    ],
}
