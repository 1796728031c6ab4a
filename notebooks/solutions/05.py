"""Answers of notebook 05, and what people believe instead."""

SETUP = """
import queue
from servinglab.client import stream

def text_of(result):
    return result.as_numpy("text_output")[0].decode()
"""

LIVE = {"05.1", "05.2", "05.3"}

SOLUTIONS = {
    "05.1": """
name = b"text_output"
inner = bytes([1 << 3 | 2, len(name)]) + name
answer_1 = bytes([6 << 3 | 2, len(inner)]) + inner
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
def first_text(client, model, request, n):
    answer = stream(client, model, request)
    pieces = [text_of(next(answer)) for _ in range(n)]
    answer.close()
    return "".join(pieces)
""",
}


def _wire(start: str) -> str:
    return f"answer_1 = bytes.fromhex({start!r}) + b'text_output'"


_FLAG = 'response.parameters["triton_final_response"].bool_param'


def _loop(old: str, new: str, number: str = "05.2") -> str:
    """The solution with one mistake."""
    assert old in SOLUTIONS[number]
    return SOLUTIONS[number].replace(old, new)


def _ends(condition: str) -> str:
    return _loop(f"done = {_FLAG}", f"done = {condition}")


MUTANTS = {
    "05.1": [
        ("the tag is the field number", _wire("06 0d 0a 0b"), "not the number alone"),
        ("a message is a varint", _wire("30 0d 0a 0b"), "a single varint"),
        ("a tag is two hexadecimal digits", _wire("62 0d 0a 0b"), "text_output and size"),
        ("the name's field is enough", _wire("0a 0b"), "stands inside field 6"),
        ("the length is that of the text", _wire("32 0b 0a 0b"), "also counts the tag"),
        ("a length counts itself", _wire("32 0e 0a 0b"), "does not count itself"),
        ("a length counts its tag, too", _wire("32 0f 0a 0b"), "neither its tag nor itself"),
        ("the value is the text", _wire("32 0b"), "a message of its own"),
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
        ("read all, and cut", _loop("[text_of(next(answer)) for _ in range(n)]", "[text_of(r) for r in answer][:n]",
         "05.3"), "a plain stop waits for the end"),
        ("to stop reading is enough", """
def first_text(client, model, request, n):
    arrived = queue.SimpleQueue()
    client.start_stream(lambda result, error: arrived.put(result))
    client.async_stream_infer(model, request)
    return "".join(text_of(arrived.get()) for _ in range(n))
""", "the first stream is still open"),
        ("pieces are a text", _loop('"".join(pieces)', "pieces", "05.3"), "returns [' 1', ' 2', ' 3']"),
        ("n is the last one", _loop("range(n)", "range(n + 1)", "05.3"), "returns ' 1 2 3 4'"),
    ],
}  # fmt: skip
