"""What `course engine estimate`, `inspect` and `diff` show in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from course.report import _console, _table
from engines.autopsy import Difference, shown
from engines.memory import Estimate, gigabytes


def show_estimate(estimate: Estimate) -> None:
    where = " on each GPU" if estimate.tp_size * estimate.pp_size > 1 else ""
    sequences = f"{estimate.max_batch_size} × {estimate.max_seq_len} tokens"
    stored = f"{estimate.dtype}, linear layers {estimate.weight_only}" if estimate.weight_only else estimate.dtype
    twice = "; the embedding is there twice, once as output matrix" if estimate.tied else ""
    added = f"; {gigabytes(estimate.rotations_bytes)} are a table of rotations" if estimate.rotations_bytes else ""
    rows = [
        ("weights", estimate.weights_bytes, f"{estimate.parameters:,} parameters, {stored}{twice}{added}"),
        ("KV cache", estimate.kv_bytes, f"{sequences}, {estimate.kv_bytes_per_token_per_gpu:,} bytes a token{where}"),
        (
            "left free",
            estimate.left_free_bytes,
            f"the server takes {estimate.kv_cache_free_gpu_mem_fraction:.0%} of what is free for its KV cache, not all",
        ),
        ("activations", estimate.activation_bytes, f"at most, for {estimate.max_num_tokens} tokens in one step"),
        ("logits", estimate.logits_bytes, "at most, runtime and decoder"),
        ("margin", estimate.margin_bytes, "CUDA context, libraries, allocator: a round number"),
        ("total", estimate.total_bytes, ""),
    ]
    table = _table("part", "size", "", title=f"{estimate.model}, memory{where or ' on one GPU'}")
    for name, count, words in rows:
        table.add_row(name, gigabytes(count), Text(words))
    console = _console()
    console.print(table)
    console.print(Text(estimate.sentence()), soft_wrap=True)
    if estimate.note:
        console.print(Text(estimate.note), soft_wrap=True)
    if estimate.kv_pool_tokens is not None:
        pool = (
            f"The server would take {_pool(estimate)} for its KV cache: room for {estimate.kv_pool_tokens:,} tokens, "
            f"{gigabytes(estimate.kv_pool_bytes)}. Requests beyond that wait."
        )
        console.print(Text(pool if estimate.kv_pool_tokens else "Nothing is left for a KV cache."), soft_wrap=True)


def _pool(estimate: Estimate) -> str:
    share = f"{estimate.kv_cache_free_gpu_mem_fraction:.0%} of what is then free"
    most = estimate.max_tokens_in_paged_kv_cache
    return share if most is None else f"{share}, but at most {most:,} tokens,"


def show_inspection(found: dict[str, Any]) -> None:
    table = _table("", "")
    for key, value in found.items():
        if value in (None, 0, {}, []):
            continue
        if isinstance(value, dict):
            text = ", ".join(f"{name} {shown(name, each)}" for name, each in value.items())
        elif key == "files":
            text = "\n".join(map(_file, value))
        elif isinstance(value, (list, tuple)):
            text = ", ".join(map(str, value))
        else:
            text = f"{value:,}" if key == "parameters" else shown(key, value)
        table.add_row(key.removesuffix("_bytes"), Text(text))
    _console().print(table)


def show_differences(differences: Sequence[Difference], a: str, b: str) -> None:
    console = _console()
    if not differences:
        console.print(Text(f"{a} and {b} say the same."))
        return
    table = _table("setting", a, b, "meaning")
    for d in differences:
        values = (Text(shown(d.setting, value)) for value in (d.a, d.b))
        table.add_row(d.setting.removesuffix("_bytes"), *values, Text(d.meaning))
    console.print(table)


def _file(file: dict[str, Any]) -> str:
    words = [file["name"], gigabytes(file["size_bytes"])]
    words += [f"{file['product']} {file.get('version', 'of an unknown version')}"] if "product" in file else []
    return ", ".join(words) + (f": {file['problem']}" if "problem" in file else "")
