"""Answers of notebook 02."""

_ROWS = "def qkv_rows(heads, kv_heads, head_size, tp_size):\n    return "
_OLD = "trtllm-build --checkpoint_dir float16 --output_dir mine --max_batch_size 8 --max_input_len 1000"
_FIT = "def sequences(free_bytes, layers, heads, kv_heads, head_size, tokens, number_bytes):\n    return free_bytes // "
_EACH = "(2 * layers * kv_heads * head_size * tokens * number_bytes)"

SOLUTIONS = {
    "02.1": _ROWS + "(heads // tp_size + 2 * max(1, kv_heads // tp_size)) * head_size",
    "02.2": f'command = "{_OLD} "\ncommand += "--max_seq_len 1200 --kv_cache_type paged"',
    "02.3": _FIT + _EACH,
}


def _command(end):
    return f'command = "{_OLD} {end}"'


MUTANTS = {
    "02.1": [
        ("every head has its own k and v", _ROWS + "3 * heads // tp_size * head_size", "grouped-query"),
        ("k and v are one tensor", _ROWS + "(heads + kv_heads) // tp_size * head_size", "count twice"),
        ("tensor parallelism copies", _ROWS + "(heads + 2 * kv_heads) * head_size", "whole model"),
        ("only queries are cut", _ROWS + "(heads // tp_size + 2 * kv_heads) * head_size", "not only the queries"),
        ("heads can be cut", _ROWS + "(heads + 2 * kv_heads) / tp_size * head_size", "a head stays whole"),
        ("rows are a fraction", _ROWS + "(heads / tp_size + 2 * max(1, kv_heads / tp_size)) * head_size",
         "but a float"),
        ("some ranks have no KV head", _ROWS + "(heads // tp_size + 2 * (kv_heads // tp_size)) * head_size",
         "at least one"),
    ],
    "02.2": [
        ("the old line still works", _command("--max_output_len 200 --paged_kv_cache enable"), "lost --max_output_len"),
        ("max_seq_len is the answer", _command("--max_seq_len 200 --kv_cache_type paged"), "no room for a prompt"),
        ("max_seq_len is the prompt", _command("--max_seq_len 1000 --kv_cache_type paged"), "no token is left"),
        ("max_num_tokens bounds a sequence", _command("--max_num_tokens 1200 --kv_cache_type paged"),
         "all requests together"),
        ("the answer needs no bound", _command("--kv_cache_type paged"), "nothing bounds the answer"),
        ("a warning is no matter", _command("--max_seq_len 1200 --paged_kv_cache enable"), "with a warning"),
        ("paged is forgotten", _command("--max_seq_len 1200"), "another flag says so"),
        ("any kind of cache", _command("--max_seq_len 1200 --kv_cache_type continuous"), "not for continuous"),
        ("more is better", _command("--max_seq_len 1200 --kv_cache_type paged --max_beam_width 4"), "does not say"),
        ("a switch more", _command("--gather_context_logits --max_seq_len 1200 --kv_cache_type paged"), "does not say"),
        ("an empty text", 'command = ""', "begin with"),
        ("a list of words", 'command = ["trtllm-build", "--checkpoint_dir"]', "one text, please"),
    ],
    "02.3": [
        ("only keys are kept", _FIT + "(layers * kv_heads * head_size * tokens * number_bytes)", "a key and a value"),
        ("query heads are kept", _FIT + "(2 * layers * heads * head_size * tokens * number_bytes)", "forgotten"),
        ("one cache for all layers", _FIT + "(2 * kv_heads * head_size * tokens * number_bytes)", "every layer"),
        ("tokens for sequences", _FIT + "(2 * layers * kv_heads * head_size * number_bytes)", "many tokens fit"),
        ("a number is a byte", _FIT + "(4 * layers * kv_heads * head_size * tokens)", "number_bytes"),
        ("a part is a sequence", _FIT.replace("//", "/") + _EACH, "no sequence"),
        ("a float", _FIT.replace("return ", "return float(") + _EACH + ")", "but a float"),
        ("rounded up", _FIT + _EACH + " + 1", "not fit whole"),
    ],
}  # fmt: skip
