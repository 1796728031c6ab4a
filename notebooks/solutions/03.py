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
"""'''

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


LIVE = {"03.2"}

SOLUTIONS = {
    "03.1": "answer_1 = [1, 1]",
    "03.2": _without(),
    "03.3": """answer_3 = {
    "tensorrt_llm_model_name": "judge-tensorrt_llm",
    "preprocessing_model_name": "judge-preprocessing",
    "postprocessing_model_name": "judge-postprocessing",
}""",
}

_NAMES = '{"tensorrt_llm_model_name": "%stensorrt_llm", "preprocessing_model_name": "%spreprocessing"'

MUTANTS = {
    "03.1": [
        ("dims are the whole shape", "answer_1 = [1]", "dims leave out the batch dimension"),
        ("reshape changes the message", "answer_1 = ()", "that is what a model sees after reshape"),
        ("-1 is sent", "answer_1 = [-1, 1]", "a message carries the size that it has"),
        ("the batch is always full", "answer_1 = [8, 1]", "not how many it has"),
        ("max_batch_size is the last dimension", "answer_1 = [1, 8]", "no size of a row"),
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
        ("the LLM's name is enough", 'answer_3 = {"tensorrt_llm_model_name": "judge-tensorrt_llm"}',
         "tokenise and decode with the first deployment's"),
        ("the way back needs no name", f'answer_3 = {_NAMES % ("judge-", "judge-")}}}',
         "without postprocessing_model_name"),
        ("names are relative to the deployment",
         f'answer_3 = {_NAMES % ("", "")}, "postprocessing_model_name": "postprocessing"}}',
         "Triton knows models by their full names"),
        ("the ensemble is called by the BLS",
         f'answer_3 = {_NAMES % ("judge-", "judge-")}, "postprocessing_model_name": "judge-ensemble"}}',
         "is a front door"),
        ("one prefix is enough", 'answer_3 = {"model_prefix": "judge-"}', "reads no parameter model_prefix"),
    ],
}  # fmt: skip
