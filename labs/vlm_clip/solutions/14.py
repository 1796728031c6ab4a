"""Answers of notebook 14, and what people believe instead."""

SETUP = "import numpy as np"

SOLUTIONS = {
    "14.2": """
def fuse(image, text):
    total = sum(vector / np.linalg.norm(vector) for vector in (image, text) if vector is not None)
    return total / np.linalg.norm(total)
""",
    "14.3": """
my_config = '''
name: "small"
max_batch_size: 4
input { name: "pixel_values" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
output { name: "image_embedding" data_type: TYPE_FP32 dims: [ 384 ] }
dynamic_batching { max_queue_delay_microseconds: 2000 }
'''
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


def _config(right: str = "", wrong: str = "") -> str:
    assert right in SOLUTIONS["14.3"]
    return SOLUTIONS["14.3"].replace(right, wrong) if right else SOLUTIONS["14.3"]


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
        ("a colon opens a block", _config("input {", "input: small {"), "could not read it"),
        ("the name is the old one", _config('"small"', '"vision_encoder"'), "of its folder"),
        ("the batch is in dims", _config("max_batch_size: 4\n"), "left out"),
        ("our limit will do", _config("max_batch_size: 4", "max_batch_size: 16"), "not what was asked"),
        ("any name will do", _config("pixel_values", "image"), "called pixel_values"),
        ("dims show the batch as in ONNX", _config("[ 3, 224", "[ -1, 3, 224"), "one dimension more"),
        ("dims show a batch of 1", _config("[ 3, 224", "[ 1, 3, 224"), "the 1 is the batch"),
        ("dims show the largest batch", _config("[ 3, 224", "[ 4, 3, 224"), "4 is the batch"),
        ("colours come last in a tensor", _config("3, 224, 224", "224, 224, 3"), "one row of this graph"),
        ("vectors have a batch, too", _config("[ 384 ]", "[ -1, 384 ]"), "output has dims"),
        ("a number is a number", _config("TYPE_FP32 dims: [ 384", "TYPE_FP16 dims: [ 384"), "float32 is TYPE_FP32"),
        ("batching is on by itself", _config("dynamic_batching { max_queue_delay_microseconds: 2000 }"), "runs alone"),
        ("company waits by itself", _config("max_queue_delay_microseconds: 2000"), "nobody waits"),
        ("the unit is milliseconds", _config("2000", "2"), "0.002 ms"),
        ("the unit is nanoseconds", _config("2000", "2000000"), "2 seconds"),
        ("half is near enough", _config("2000", "1000"), "are 1 ms"),
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
