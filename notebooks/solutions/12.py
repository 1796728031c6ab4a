"""Answers of notebook 12, and what people believe instead."""

SOLUTIONS = {
    "12.1": 'answer_1 = {"nothing": ["completions"], "temperature": ["llm_api", "completions"]}',
    "12.2": """answer_2 = {
    "text_input": "Name a fruit.",
    "max_tokens": 8,
    "num_return_sequences": 3,
    "temperature": 0.8,
    "top_p": 1.0,
    "exclude_input_in_output": True,
}""",
    "12.3": 'answer_3 = {"grpc": "error", "http": 32}',
}


def _samples(nothing: object, temperature: object) -> str:
    return f"answer_1 = {({'nothing': nothing, 'temperature': temperature})!r}"


_RIGHT = {
    "text_input": "Name a fruit.", "max_tokens": 8, "num_return_sequences": 3, "temperature": 0.8, "top_p": 1.0,
    "exclude_input_in_output": True,
}  # fmt: skip


def _request(*left_out: str, **changed: object) -> str:
    return f"answer_2 = {({k: v for k, v in (_RIGHT | changed).items() if k not in left_out})!r}"


def _client(grpc: object, http: object) -> str:
    return f"answer_3 = {({'grpc': grpc, 'http': http})!r}"


MUTANTS = {
    "12.1": [
        ("a bare request is greedy everywhere", _samples([], ["llm_api", "completions"]), "fills in temperature 1"),
        ("a bare request samples everywhere", _samples(["engine", "llm_api", "completions"], ["completions"]),
         "both take the likeliest token"),
        ("temperature alone samples on an engine", _samples(["completions"], ["engine", "llm_api", "completions"]),
         "temperature alone changes nothing"),
        ("the LLM API follows the engine's rule", _samples(["completions"], ["completions"]), "is enough"),
        ("a temperature makes trtllm-serve greedy", _samples(["completions"], ["llm_api"]), "does not turn off"),
        ("one API needs no list", _samples("completions", ["llm_api", "completions"]), "a list for each"),
        ("another API", _samples(["completions"], ["ensemble"]), "is not one of"),
    ],
    "12.2": [
        ("n is a number of beams", _request("num_return_sequences", beam_width=3), "independent samples"),
        ("n keeps its name", _request("num_return_sequences", n=3), "num_return_sequences"),
        ("temperature alone samples", _request("top_p"), "this request is greedy"),
        ("any top_k will do", _request("top_p", top_k=50), "leaves out no token"),
        ("temperature is lost", _request("temperature"), "keeps its name and its value"),
        ("an engine never repeats the prompt", _request("exclude_input_in_output"), "does not repeat the prompt"),
        ("prompt keeps its name", _request("text_input", prompt="Name a fruit."), "no 'prompt'"),
        ("other values", _request(max_tokens=9), "both keep their values"),
        ("more is better", _request(seed=3), "does not ask for"),
        ("nothing", "answer_2 = {}", "begin with text_input"),
    ],
    "12.3": [
        ("max_tokens sent to llmapi is its limit", _client("error", 100), "nobody reads"),
        ("HTTP refuses what it does not know", _client("error", "error"), "no error tells you"),
        ("OpenAI's default", _client("error", 16), "SamplingParams fills the value in"),
        ("no limit at all", _client("error", 8192), "gets the default of SamplingParams"),
        ("a number as a text", _client("error", "32"), "is neither"),
        ("capitals", _client("Error", 32), "in small letters"),
        ("gRPC takes any input", _client(32, 32), "is refused"),
    ],
}  # fmt: skip
