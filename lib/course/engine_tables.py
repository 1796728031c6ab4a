"""What `course engine …` shows in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from course.report import console, say, table
from engines.inspection import Difference, shown
from engines.memory import Estimate, gigabytes
from engines.recipes import Recipe
from engines.versions import Container


def show_versions(containers: Sequence[Container], best: Container | None, driver: str | None) -> None:
    rows = table("container", "TensorRT-LLM", "TensorRT", "CUDA", "driver from", "Python", "size", "tensor names")
    for c in containers:
        tag = Text(c.tag, style="bold green" if c == best else "")
        rows.add_row(tag, c.trtllm, c.tensorrt, c.cuda, c.driver, c.python, f"{c.size_gb:.1f} GB", c.generation)
    console().print(rows)
    if driver is not None:
        found = f"the newest container is {best.tag}: {best.image}" if best else "no container of this table runs"
        say(f"With driver {driver} {found}.")


def show_recipe(recipe: Recipe, explain: bool) -> None:
    for note in recipe.notes:
        say(f"# {note}")
    say(recipe.text())
    if explain:
        rows = table("program", "flag", "value", "what it does")
        for row in recipe.explain():
            rows.add_row(row["program"], row["flag"], Text(row["value"]), Text(row["explain"]))
        say("")
        console().print(rows)


def show_estimate(estimate: Estimate) -> None:
    where = " on each GPU" if estimate.tp_size > 1 else ""
    sequences = f"{estimate.max_batch_size} × {estimate.max_seq_len} tokens"
    stored = f"{estimate.dtype}, linear layers {estimate.weight_only}" if estimate.weight_only else estimate.dtype
    twice = "; the embedding is there twice, once as output matrix" if estimate.tied else ""
    added = f"; {gigabytes(estimate.rotations_bytes)} are a table of rotations" if estimate.rotations_bytes else ""
    share = f"{estimate.kv_cache_free_gpu_mem_fraction:.0%}"
    parts = [
        ("weights", estimate.weights_bytes, f"{estimate.parameters:,} parameters, {stored}{twice}{added}"),
        ("KV cache", estimate.kv_bytes, f"{sequences}, {estimate.kv_bytes_per_token_per_gpu:,} bytes a token{where}"),
        ("left free", estimate.left_free_bytes, f"the server takes {share} of what is free for its KV cache, not all"),
        ("activations", estimate.activation_bytes, f"at most, for {estimate.max_num_tokens} tokens in one step"),
        ("logits", estimate.logits_bytes, "at most, runtime and decoder"),
        ("margin", estimate.margin_bytes, "CUDA context, libraries, allocator: a round number"),
        ("total", estimate.total_bytes, ""),
    ]
    rows = table("part", "size", "", title=f"{estimate.model}, memory{where or ' on one GPU'}")
    for name, count, words in parts:
        rows.add_row(name, gigabytes(count), Text(words))
    console().print(rows)
    say(estimate.sentence())
    if estimate.note:
        say(estimate.note)
    if estimate.kv_pool_tokens == 0:
        say("Nothing is left for a KV cache.")
    elif estimate.kv_pool_tokens is not None:
        room = f"room for {estimate.kv_pool_tokens:,} tokens, {gigabytes(estimate.kv_pool_bytes)}"
        say(f"The server would take {share} of what is then free for its KV cache: {room}. Requests beyond that wait.")


def show_inspection(found: dict[str, Any]) -> None:
    rows = table("", "")
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
        rows.add_row(key.removesuffix("_bytes"), Text(text))
    console().print(rows)


def show_differences(differences: Sequence[Difference], a: str, b: str) -> None:
    if not differences:
        say(f"{a} and {b} say the same.")
        return
    rows = table("setting", a, b, "meaning")
    for d in differences:
        values = (Text(shown(d.setting, value)) for value in (d.a, d.b))
        rows.add_row(d.setting.removesuffix("_bytes"), *values, Text(d.meaning))
    console().print(rows)


def _file(file: dict[str, Any]) -> str:
    words = [file["name"], gigabytes(file["size_bytes"])]
    words += [f"{file['product']} {file.get('version', '')}".rstrip()] if "product" in file else []
    return ", ".join(words) + (f": {file['problem']}" if "problem" in file else "")
