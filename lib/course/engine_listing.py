"""What `course engine versions` and `recipe` show in a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from course.report import _console, _table
from engines.compass import Container
from engines.recipes import Recipe


def container_row(container: Container) -> dict[str, Any]:
    """JSON-ready, with what follows from the version."""
    return asdict(container) | {"image": container.image, "generation": container.generation}


def show_versions(containers: list[Container], best: Container | None, driver: str | None) -> None:
    table = _table("container", "TensorRT-LLM", "TensorRT", "CUDA", "driver from", "Python", "size", "tensor names")
    for c in containers:
        table.add_row(
            Text(c.tag, style="bold green" if c == best else ""), c.trtllm, c.tensorrt, c.cuda, c.driver, c.python,
            f"{c.size_gb:.1f} GB", c.generation,
        )  # fmt: skip
    console = _console()
    console.print(table)
    if driver is not None:
        found = f"the newest container is {best.tag}: {best.image}" if best else "no container of this table runs"
        console.print(Text(f"With driver {driver} {found}."), soft_wrap=True)


def show_recipe(recipe: Recipe, explain: bool) -> None:
    console = _console()
    for note in recipe.notes:
        console.print(Text(f"# {note}"), soft_wrap=True)
    console.print(Text(recipe.text()), soft_wrap=True)
    if explain:
        table = _table("program", "flag", "value", "what it does")
        for row in recipe.explain():
            table.add_row(row["program"], row["flag"], Text(row["value"]), Text(row["explain"]))
        console.print("")
        console.print(table)
