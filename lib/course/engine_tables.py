"""What `course engine …` shows in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from course.report import console, say, table

if TYPE_CHECKING:
    from engines.inspection import Difference
    from engines.memory import Estimate
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
    say("\n\n".join(command.text() for command in recipe.commands))
    if explain:
        rows = table("program", "flag", "value", "what it does")
        for row in recipe.explain():
            rows.add_row(row["program"], row["flag"], Text(row["value"]), Text(row["explain"]))
        say("")
        console().print(rows)


def show_estimate(e: Estimate) -> None:
    from engines.memory import gigabytes

    rows = table("part", "size", "", title=f"{e.model}, memory on {'each GPU' if e.tp_size > 1 else 'one GPU'}")
    for name, count, words in e.parts():
        rows.add_row(name, gigabytes(count), Text(words))
    console().print(rows)
    say(e.sentence())


def show_inspection(found: dict[str, Any]) -> None:
    from engines.inspection import shown

    rows = table("", "")
    for key, value in found.items():
        if value in (None, 0, {}, []):
            continue
        if isinstance(value, dict):
            text = ", ".join(f"{name} {shown(name, each)}" for name, each in value.items())
        elif key == "files":
            text = "\n".join(", ".join(shown(name, each) for name, each in file.items()) for file in value)
        else:
            text = f"{value:,}" if key == "parameters" else shown(key, value)
        rows.add_row(key.removesuffix("_bytes"), Text(text))
    console().print(rows)


def show_differences(differences: Sequence[Difference], a: str, b: str) -> None:
    from engines.inspection import shown

    if not differences:
        say(f"{a} and {b} say the same.")
        return
    rows = table("setting", a, b, "meaning")
    for d in differences:
        values = (Text(shown(d.setting, value)) for value in (d.a, d.b))
        rows.add_row(d.setting.removesuffix("_bytes"), *values, Text(d.meaning))
    console().print(rows)
