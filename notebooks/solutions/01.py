"""Answers of notebook 01."""

SETUP = "import tensorrt_rtx_bindings as trt"

SOLUTIONS = {
    "01.1": 'my_layers = [["dense_1", "bias_1", "relu_1"], ["dense_2"]]',
    "01.2": """def for_users(builder, config):
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 1, 64), (4, 16, 64), (32, 128, 64))
    config.add_optimization_profile(profile)
    kinds = [trt.ComputeCapability.SM89, trt.ComputeCapability.SM120]
    config.num_compute_capabilities = len(kinds)
    for index, kind in enumerate(kinds):
        config.set_compute_capability(kind, index)""",
    "01.3": 'new_build = {"tokens", "precision", "library", "gpu"}',
}


def _users(right, wrong):
    assert right in SOLUTIONS["01.2"]
    return SOLUTIONS["01.2"].replace(right, wrong)


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
        ("making a profile adds it", _users("    config.add_optimization_profile(profile)\n", ""), "did not add it"),
        ("sizes take care of themselves",
         "def for_users(builder, config):\n    config.num_compute_capabilities = 0", "there is no profile"),
        ("the input has another name", _users('"x"', '"input"'), 'no shapes for "x"'),
        ("min is what is usual", _users("(1, 1, 64), ", "(4, 16, 64), "), "one token must pass"),
        ("opt is the max", _users("(4, 16, 64)", "(32, 128, 64)"), "optimise for these"),
        ("tokens come first", _users("(32, 128, 64)", "(128, 32, 64)"), "come before T"),
        ("more is safer", _users("(32, 128, 64)", "(64, 256, 64)"), "no more memory"),
        ("every GPU is the safe choice", _users("len(kinds)", "0"), "five kinds"),
        ("a newer GPU runs older plans", _users(", trt.ComputeCapability.SM120]", "]"), "one of the two"),
        ("SM80 is the common ground", _users("SM89", "SM80"), "nothing else counts"),
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
