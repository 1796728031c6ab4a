"""Answers of notebook 14, and what people believe instead."""

SETUP = "import numpy as np"

SOLUTIONS = {
    "14.2": """
def fuse(image, text):
    total = sum(vector / np.linalg.norm(vector) for vector in (image, text) if vector is not None)
    return total / np.linalg.norm(total)
""",
    "14.3": """
answer_3 = {"dims": [3, 224, 224], "shape": [2, 3, 224, 224]}
""",
    "14.1": """
answer_1 = {"input_map": {"images": "pixel_values"}, "output_map": {"features": "image_embedding"}}
""",
}


def _fuse(result: str) -> str:
    return f"""
def fuse(image, text):
    unit = lambda vector: vector / np.linalg.norm(vector)
    return {result}
"""


_ALONE = "unit(text) if image is None else unit(image) if text is None else unit(unit(image) + unit(text))"


def _batch(**changed: list[int]) -> str:
    return f"answer_3 = { ({'dims': [3, 224, 224], 'shape': [2, 3, 224, 224]} | changed)!r}"


def _maps(inputs: tuple[str, str] = ("images", "pixel_values"), outputs=("features", "image_embedding")) -> str:
    return f"answer_1 = {{'input_map': {dict([inputs])!r}, 'output_map': {dict([outputs])!r}}}"


_IN_PLACE = """
def fuse(image, text):
    given = [vector for vector in (image, text) if vector is not None]
    for vector in given:
        vector /= np.linalg.norm(vector)
    total = sum(given)
    return total / np.linalg.norm(total)
"""

MUTANTS = {
    "14.2": [
        ("normalise after adding only", _fuse("unit(image + text)"), "before you add"),
        ("add and be done", _fuse("image + text"), "kept the sum"),
        ("a mean of raw vectors is fair", _fuse("(image + text) / 2"), "plain mean"),
        ("a mean keeps its length", _fuse("(unit(image) + unit(text)) / 2"), "shorter than 1"),
        ("a sum keeps its length", _fuse("unit(image) + unit(text)"), "longer than 1"),
        ("both, one behind the other", _fuse("np.concatenate([unit(image), unit(text)])"), "6 numbers"),
        ("both means a product", _fuse("unit(image) * unit(text)"), "multiplied"),
        ("the larger number is what counts", _fuse("unit(np.maximum(unit(image), unit(text)))"), "negative ones count"),
        ("both are always given", _fuse("unit(unit(image) + unit(text))"), "text may be None"),
        ("alone needs no length", _fuse(_ALONE.replace("unit(image) if", "image if")), "with text None"),
        ("alone needs no length, text", _fuse(_ALONE.replace("unit(text) if", "text if")), "with image None"),
        ("the caller's vectors are mine", _IN_PLACE, "changed the caller's"),
    ],
    "14.3": [
        ("dims show the batch as in ONNX", _batch(dims=[-1, 3, 224, 224]), "five dimensions"),
        ("dims show a batch of 1", _batch(dims=[1, 3, 224, 224]), "the 1 is the batch"),
        ("dims show the largest batch", _batch(dims=[16, 3, 224, 224]), "written above"),
        ("dims show this request", _batch(dims=[2, 3, 224, 224]), "whatever a request sends"),
        ("dims are any size", _batch(dims=[3, -1, -1]), "leave out the batch"),
        ("colours come last in a tensor", _batch(dims=[224, 224, 3]), "how PIL stores"),
        ("one picture needs no batch", _batch(shape=[3, 224, 224]), "3 for the number of rows"),
        ("a request is one picture", _batch(shape=[1, 3, 224, 224]), "two of them are two rows"),
        ("batch comes twice", _batch(shape=[2, 1, 3, 224, 224]), "no 1 between"),
        ("a batch of batches", _batch(shape=[1, 2, 3, 224, 224]), "one batch dimension"),
        ("rows are more colours", _batch(shape=[6, 224, 224]), "six colours"),
        ("-1 goes on the wire", _batch(shape=[-1, 3, 224, 224]), "stands in metadata"),
    ],
    "14.1": [
        ("maps read from the ensemble", _maps(("pixel_values", "images"), ("image_embedding", "features")), "both are"),
        ("input maps read from the ensemble", _maps(inputs=("pixel_values", "images")), "input_map: it is the wrong"),
        ("output maps go out of the model", _maps(outputs=("image_embedding", "features")), "output_map: it is the"),
        ("the ensemble knows the model's input", _maps(inputs=("images", "images")), "no tensor of the ensemble"),
        ("the model knows the ensemble's tensor", _maps(inputs=("pixel_values", "pixel_values")), "calls its "),
        ("it reads what the client sent", _maps(inputs=("images", "image")), "file's bytes"),
        ("the name passes by itself", _maps(outputs=("features", "features")), "fusion waits"),
        ("the model was renamed", _maps(outputs=("image_embedding", "image_embedding")), "declares no image_embedding"),
        ("it makes the ensemble's output", _maps(outputs=("features", "embedding")), "what fusion makes"),
        ("any name will do", _maps(outputs=("features", "vectors")), "names something else"),
    ],
}
