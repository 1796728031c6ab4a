"""Answers of notebook 12, and what people believe instead."""

SETUP = """import exercises, notebook_files
from engines import llm_api
server, client = exercises._server()
if not (folder := server.repository / "llmapi").exists():
    (folder / "1").mkdir(parents=True)
    text = (notebook_files.ROOT / "notebooks/text/12_llm_api.py").read_text()
    (folder / "1/model.py").write_text(text.split("listener = '''")[1].split("'''")[0])
    (folder / "config.pbtxt").write_text(llm_api.DATA["llmapi_config"])
    server.load("llmapi")
"""

LIVE = {"12.1", "12.2", "12.3"}

SOLUTIONS = {
    "12.1": (
        'answer_1 = {"everywhere": {"temperature": 0.8, "top_p": 1.0}, "nowhere": {"temperature": 0.8, "top_k": 1}}'
    ),
    "12.2": """answer_2 = {
    "text_input": "Name a fruit.",
    "max_tokens": 8,
    "num_return_sequences": 3,
    "temperature": 0.8,
    "top_p": 1.0,
    "exclude_input_in_output": True,
}""",
    "12.3": """old_names = '''
name: "old_names"
platform: "ensemble"
max_batch_size: 1
input { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "llmapi"
  model_version: -1
  input_map { key: "text_input" value: "text_input" }
  input_map { key: "sampling_param_max_tokens" value: "max_tokens" }
  input_map { key: "sampling_param_stop" value: "stop_words" }
  output_map { key: "text_output" value: "text_output" }
} }
'''""",
}


def _two(everywhere: object = "top_p", nowhere: object = "top_k", temperature: float = 0.8) -> str:
    asked = {"top_p": {"top_p": 1.0}, "top_k": {"top_k": 1}}
    both = {"everywhere": asked.get(str(everywhere), everywhere), "nowhere": asked.get(str(nowhere), nowhere)}
    return f"answer_1 = {({name: {'temperature': temperature, **more} for name, more in both.items()})!r}"


_RIGHT = {
    "text_input": "Name a fruit.", "max_tokens": 8, "num_return_sequences": 3, "temperature": 0.8, "top_p": 1.0,
    "exclude_input_in_output": True,
}  # fmt: skip


def _request(*left_out: str, **changed: object) -> str:
    return f"answer_2 = {({k: v for k, v in (_RIGHT | changed).items() if k not in left_out})!r}"


def _config(right: str, wrong: str = "") -> str:
    assert right in SOLUTIONS["12.3"]
    return SOLUTIONS["12.3"].replace(right, wrong)


MUTANTS = {
    "12.1": [
        ("a temperature samples everywhere", _two({}), "samples only for top_k or top_p"),
        ("one token is enough to sample", _two({"top_p": 0.0}, "top_p"), "if they leave more than one"),
        ("top_p 0 is off everywhere", _two({"top_k": 5, "top_p": 0.0}), "leaves a single token; for an engine"),
        ("top_p 1 changes nothing", _two(nowhere="top_p"), "even a top_p that"),
        ("without top_k and top_p all are greedy", _two(nowhere={}), "a temperature above 0 is enough"),
        ("temperature 0 is the way to be greedy", _two(temperature=0.0), "keeps temperature 0.8"),
        ("the number of answers decides", _two({"n": 2}), "a dict of temperature, top_k and top_p"),
    ],
    "12.2": [
        ("n is a number of beams", _request("num_return_sequences", beam_width=3), "independent samples"),
        ("n keeps its name", _request("num_return_sequences", n=3), "num_return_sequences"),
        ("temperature alone samples", _request("top_p"), "3 answers hold 1 different text; this"),
        ("any top_k will do", _request("top_p", top_k=50), "leaves out no token"),
        ("temperature is lost", _request("temperature"), "keeps its name and its value"),
        ("an engine never repeats the prompt", _request("exclude_input_in_output"), "Name a fruit."),
        ("prompt keeps its name", _request("text_input", prompt="Name a fruit."), "no 'prompt'"),
        ("other values", _request(max_tokens=9), "both keep their values"),
        ("more is better", _request(seed=3), "does not ask for"),
        ("nothing", "answer_2 = {}", "begin with text_input"),
    ],
    "12.3": [
        ("the key is the ensemble's name", _config('key: "sampling_param_max_tokens" value: "max_tokens"',
         'key: "max_tokens" value: "sampling_param_max_tokens"'), "the value the old one"),
        ("a name needs no translation", _config('key: "sampling_param_max_tokens"', 'key: "max_tokens"'),
         "a name that llmapi declares"),
        ("it loads, so it works", _config("sampling_param_max_tokens", "sampling_param_top_k"), "llmapi heard"),
        ("no dimension for a batch", _config("max_batch_size: 1\n"), "takes it off"),
        ("as many rows as the old server", _config("max_batch_size: 1", "max_batch_size: 8"), "promise 1 row"),
        ("the batch is in dims", _config("dims: [ 1 ]", "dims: [ 1, 1 ]"), "as in notebook 03"),
        ("all inputs come always", _config(" optional: true"), "only sometimes"),
        ("stop words are rare",
         _config('input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }\n').replace(
         '  input_map { key: "sampling_param_stop" value: "stop_words" }\n', ""), "sends stop_words, too"),
        ("a number is an INT64", _config("TYPE_INT32", "TYPE_INT64"), "llmapi's types"),
        ("a Python model again", _config('platform: "ensemble"', 'backend: "python"'), "no program"),
        ("it may be called ensemble", _config('name: "old_names"', 'name: "ensemble"'), "that of the folder"),
        ("version 0", _config("  model_version: -1\n"), "the newest version"),
        ("outputs come by themselves", _config('  output_map { key: "text_output" value: "text_output" }\n'),
         "in an output_map"),
        ("a dict", "old_names = {}", "the whole text"),
    ],
}  # fmt: skip
