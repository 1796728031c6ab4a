"""Answers of notebook 16, and what people believe instead."""

# Of the server only its kept blocks (an extra id that it knows brings the answer to the picture that came with it) and
# what it says about a picture of a dog.
SETUP = """
import hashlib, itertools, random, zlib
import numpy as np
kept = {}
two = np.random.default_rng(0).normal(size=(2, 3, 224, 224)).astype(np.float16)
def ask_pixels(pixels, extra_id):
    reused = extra_id in kept
    return kept.setdefault(extra_id, f"picture {pixels.mean(dtype=float):.6f}"), int(reused)
doubts = [("dog", f"a {thing}", f"What colour is the {thing}?") for thing in ("dog", "cat")]
def ask(pairs):
    return [("Yes." if f" {image}?" in text else "No.") if text.startswith("Is") else "Brown." for image, text in pairs]
"""

SOLUTIONS = {
    "16.1": """
def prompt_ids(parts, vocab_size, rows):
    ids = list(parts[0])
    for n, part in enumerate(parts[1:]):
        ids += [*range(vocab_size + n * rows, vocab_size + (n + 1) * rows), *part]
    return ids
""",
    "16.2": """
import hashlib

def extra_id(pixels):
    return int.from_bytes(hashlib.sha256(pixels.tobytes()).digest()[:8], "big") or 1
""",
    "16.3": """
def careful(ask_it, thing, question):
    if ask_it(f"Is there {thing}?").lower().startswith("yes"):
        return ask_it(question)
""",
}


def _ids(start: str, width: str = "rows", end: str = "") -> str:
    return f"""
def prompt_ids(parts, vocab_size, rows):
    ids = list(parts[0])
    for n, part in enumerate(parts[1:]):
        first = {start}
        ids += [*range(first, first + {width}), *part]
    return ids{end}
"""


def _extra(body: str) -> str:
    return f"def extra_id(pixels):\n    return {body}"


_THERE = "ask_it(f'Is there {thing}?')"


def _careful(body: str) -> str:
    return f"def careful(ask_it, thing, question):\n    {body}"


MUTANTS = {
    "16.1": [
        ("each picture starts anew", _ids("vocab_size"), "see the first picture twice"),
        ("the last word is vocab_size", _ids("vocab_size + 1 + n * rows"), "vocab_size itself is no word"),
        ("a picture is one token", _ids("vocab_size + n", "1"), "one id, and so one row"),
        ("the table's rows count from 0", _ids("n * rows"), "0 to 2 are words"),
        ("a picture behind each text", _ids("vocab_size + n * rows", end=" + [i + first + rows for i in range(rows)]"),
         "behind the last"),
        ("pictures first", """
def prompt_ids(parts, vocab_size, rows):
    return [*range(vocab_size, vocab_size + rows * (len(parts) - 1)), *(id for part in parts for id in part)]
""", "in front of all texts"),
        ("an id says which picture", """
def prompt_ids(parts, vocab_size, rows):
    ids = list(parts[0])
    for n, part in enumerate(parts[1:]):
        ids += [vocab_size + n] * rows + part
    return ids
""", "its first row, three times"),
    ],
    "16.2": [
        ("one id for the client", _extra("1"), "the trap is still there"),
        ("a new number each time", _extra("random.getrandbits(62) + 1"), "no KV block was reused"),
        ("a sum tells pictures apart", _extra("1 + int(1000 * abs(float(np.sort(pixels, axis=None)"
         ".astype(np.float64).sum())))"), "mirror image"),
        ("the first row is enough", _extra("zlib.crc32(pixels[0, 0].tobytes()) + 1"), "differs in one pixel only"),
        ("all bytes of the digest", _extra("int.from_bytes(hashlib.sha256(pixels.tobytes()).digest(), 'big')"),
         "from 1 to 2**64 - 1"),
        ("a text is a name", _extra("hashlib.sha256(pixels.tobytes()).hexdigest()"), "from 1 to 2**64 - 1"),
    ],
    "16.3": [
        ("the model knows what it sees", _careful("return ask_it(question)"), "goes along"),
        ("no answer, no error", _careful(f"{_THERE}; return None"), "finds nothing"),
        ("not No is Yes", _careful(f"return None if {_THERE} == 'No.' else ask_it(question)"), "is no Yes"),
        ("Yes is written large", _careful(f"return ask_it(question) if {_THERE} == 'Yes.' else None"), "small letters"),
        ("a thing needs an article", _careful("return ask_it(question) if ask_it(f'Is there a {thing}?') else None"),
         "has its article"),
        ("ask all, then judge", _careful(f"there, said = {_THERE}, ask_it(question)\n"
         "    return said if there.lower().startswith('yes') else None"), "one request"),
        ("the first answer will do", _careful(f"return {_THERE}"), "the answer to the question"),
    ],
}  # fmt: skip
