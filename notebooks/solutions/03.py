"""Answers of notebook 03."""

SETUP = r'''BROKEN = """\
name: "postprocess"
backend: "python"
max_batch_size: ${triton_max_batch_size}
instance_group { count: 2 kind: KIND_CPU }

parameters { key: "skip_special_tokens" value { string_value: "true" } }
parameters { key: "tokenizer_dir" value { string_value: "/models/tokenizer" } }

input { name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [-1, -1, -1] }
input { name: "SEQUENCE_LENGTH" data_type: TYPE_INT32 dims: [-1] }

output { name: "OUTPUT" data_type: TYPE_BYTES dims: [-1] }
"""

config = """\
name: "shout"
backend: "python"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "loud" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

import re
from servinglab.repository import build_default
from servinglab.scratch import folder

with folder() as root:
    file = build_default(root / "llm") / "tensorrt_llm_bls" / "config.pbtxt"
    texts = {"tensorrt_llm_bls": file.read_text()}'''

_REPAIRS = {
    "name": '.replace("postprocess\\"", "postprocessing\\"")',
    "batch size": '.replace("${triton_max_batch_size}", "8")',
    "instances": '.replace("count: 2", "count: 1")',
    "dims": '.replace("[-1, -1, -1]", "[-1, -1]")',
    "datatype": '.replace("TYPE_BYTES", "TYPE_STRING")',
}


def _without(*left_out: str) -> str:
    lines = ["answer_2 = (BROKEN", *(code for name, code in _REPAIRS.items() if name not in left_out)]
    return "\n    ".join(lines) + ")"


LIVE = {"03.1", "03.2", "03.3"}

SOLUTIONS = {
    "03.1": 'answer_1 = config.replace("[ 1 ]", "[ 2 ]").replace("max_batch_size: 8", "max_batch_size: 4")',
    "03.2": _without(),
    "03.3": """answer_3 = re.sub(
    r'"(tensorrt_llm_bls|preprocessing|tensorrt_llm|postprocessing)"', r'"judge-\\1"', texts["tensorrt_llm_bls"]
)""",
}


def _prefixed(*values: str) -> str:
    """The config in which only these values get the prefix."""
    return "answer_3 = texts['tensorrt_llm_bls']" + "".join(f""".replace('"{v}"', '"judge-{v}"')""" for v in values)


def _pairs(dims: str, rows: int = 4, tensors: int = 2) -> str:
    changed = f'.replace("[ 1 ]", "{dims}", {tensors}).replace("max_batch_size: 8", "max_batch_size: {rows}")'
    return f"answer_1 = config{changed}"


MUTANTS = {
    "03.1": [
        ("dims need no change", "answer_1 = config", "Expected [-1,1], got [1,2]"),
        ("dims hold the rows", _pairs("[ 4, 2 ]"), "Expected [-1,4,2], got [1,2]"),
        ("dims hold any number of rows", _pairs("[ -1, 2 ]", rows=0), "max_batch_size is 0"),
        ("the limit of rows is the client's", _pairs("[ 2 ]", rows=8), "max_batch_size is 8"),
        ("any row will do", _pairs("[ -1 ]"), "lets any length through"),
        ("what comes out is the model's", _pairs("[ 2 ]", tensors=1), "loud has the shape [-1, 1]"),
    ],
    "03.2": [
        ("nothing repaired", "answer_2 = BROKEN", "the number of rows in a batch"),
        ("wire names in a config", _without("datatype"), "BYTES is its name on the wire"),
        ("the folder may have another name", _without("name"), "wants the name of the folder"),
        ("dims hold the batch", _without("dims"), "begin with the batch dimension"),
        ("more instances are better", _without("instances"), "can overtake each other"),
        ("no batch", 'answer_2 = ' + _without("batch size")[11:] + '.replace("${triton_max_batch_size}", "0")',
         "this deployment has 8 rows"),
        ("ids are text too", _without() + '.replace("TYPE_INT32", "TYPE_STRING")', "another datatype breaks"),
    ],
    "03.3": [
        ("a copy will do", _prefixed(), "unexpected directory name"),
        ("the model's own name is enough", _prefixed("tensorrt_llm_bls"),
         "with preprocessing and tensorrt_llm and postprocessing of the first"),
        ("the LLM's name is enough", _prefixed("tensorrt_llm_bls", "tensorrt_llm"),
         "with preprocessing and postprocessing of the first"),
        ("the way back needs no name", _prefixed("tensorrt_llm_bls", "tensorrt_llm", "preprocessing"),
         "with postprocessing of the first"),
        ("the ensemble is called by the BLS",
         _prefixed("tensorrt_llm_bls", "tensorrt_llm", "preprocessing")
         + """.replace('"postprocessing"', '"judge-ensemble"')""",
         "judge-ensemble"),
    ],
}  # fmt: skip
