"""Answers of notebook 01."""

SOLUTIONS = {
    "01.1": 'my_layers = [["dense_1", "bias_1", "relu_1"], ["dense_2"]]',
    "01.2": """def runs_here(plan_version, plan_targets, runtime_version, gpu):
    return plan_version == runtime_version and gpu in plan_targets""",
    "01.3": 'new_build = {"tokens", "precision", "library", "gpu"}',
}

_DEF = "def runs_here(plan_version, plan_targets, runtime_version, gpu):\n    "
_NUMBER = 'number = lambda version: tuple(map(int, version.split(".")))\n    '
_CARD = "gpu in plan_targets"

MUTANTS = {
    "01.1": [
        ("every node is a kernel",
         'my_layers = [["dense_1"], ["bias_1"], ["relu_1"], ["dense_2"]]',
         "without any fusion"),
        ("an engine is one kernel", 'my_layers = [["dense_1", "bias_1", "relu_1", "dense_2"]]', "begins a new layer"),
        ("products stand alone",
         'my_layers = [["dense_1"], ["bias_1", "relu_1"], ["dense_2"]]',
         "still on the chip"),
        ("only what has weights joins a product",
         'my_layers = [["dense_1", "bias_1"], ["relu_1"], ["dense_2"]]',
         "so it joins"),
        ("a misspelled node", 'my_layers = [["dense1", "bias_1", "relu_1"], ["dense_2"]]', "no node 'dense1'"),
        ("a ReLU belongs to the next layer",
         'my_layers = [["dense_1", "bias_1"], ["relu_1", "dense_2"]]',
         "not the one behind"),
        ("work joins what reads it",
         'my_layers = [["dense_1"], ["bias_1", "relu_1", "dense_2"]]',
         "that makes them"),
        ("one node needs no list", 'my_layers = [["dense_1", "bias_1", "relu_1"], "dense_2"]', "a list of lists"),
    ],
    "01.2": [
        ("a newer runtime reads older plans",
         _DEF + _NUMBER + f"return number(plan_version) <= number(runtime_version) and {_CARD}",
         "a newer runtime does not read"),
        ("plans are forward compatible",
         _DEF + _NUMBER + f"return number(plan_version) >= number(runtime_version) and {_CARD}",
         "an older runtime does not read"),
        ("only the minor version counts",
         _DEF + f'return plan_version[:3] == runtime_version[:3] and {_CARD}',
         "all of the version"),
        ("a newer GPU runs older plans",
         _DEF + "return plan_version == runtime_version and int(gpu[2:]) >= max(int(t[2:]) for t in plan_targets)",
         "a newer GPU is no exception"),
        ("targets are a range",
         _DEF + "numbers = [int(t[2:]) for t in plan_targets]\n    "
         "return plan_version == runtime_version and min(numbers) <= int(gpu[2:]) <= max(numbers)",
         "between two targets"),
        ("the GPU does not matter", _DEF + "return plan_version == runtime_version", "the GPU is not"),
        ("the version does not matter", _DEF + f"return {_CARD}", "the version is not"),
        ("an engine runs anywhere", _DEF + "return bool(plan_version)", "accepts every plan"),
    ],
    "01.3": [
        ("weights are compiled in",
         'new_build = {"weights", "tokens", "precision", "library", "gpu"}',
         "weights lie beside"),
        ("each batch size has its engine",
         'new_build = {"batch", "tokens", "precision", "library", "gpu"}',
         "inside the profile"),
        ("the engine reads text",
         'new_build = {"tokenizer", "tokens", "precision", "library", "gpu"}',
         "only token ids"),
        ("a profile's most is a hint", 'new_build = {"precision", "library", "gpu"}', "memory was planned"),
        ("precision is a switch at run time", 'new_build = {"tokens", "library", "gpu"}', "types decide"),
        ("a newer library reads everything", 'new_build = {"tokens", "precision", "gpu"}', "version that built it"),
        ("a newer GPU runs everything", 'new_build = {"tokens", "precision", "library"}', "though the GPU is newer"),
    ],
}  # fmt: skip
