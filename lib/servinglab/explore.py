"""One figure for every setting, and sliders on top where somebody is there to move them.

What a slider can show is on the page without one, so a printed, executed or plain HTML notebook loses nothing.
"""

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from tritonclient.utils import InferenceServerException

from servinglab.errors import CourseError
from servinglab.figures.style import WIDTH, kernel, show

_MOST_PANELS = 9


def explore(
    draw: Callable[..., Any], *, title: str | Callable[[list[Any]], str], summary: str,
    live: Mapping[str, Sequence[Any]] | None = None, **grid: Sequence[Any],
) -> None:  # fmt: skip
    """Draw ``draw(axes, **values)`` for every combination of values in ``grid``, at most nine; add sliders when live.

    One varying name gives up to three panels a row, two give rows (the first) and columns (the second). ``title`` and
    ``summary`` are those of ``style.show``; a function makes the title of what ``draw`` returned for each panel.
    ``live``: other values for the slider of a name. ``draw`` may ask a server: a slider calls it when it is let go, and
    an error is one sentence in the place of the figure. Raises CourseError.
    """
    if not grid or not all(map(len, grid.values())):
        raise CourseError("explore needs at least one name with values, such as temperature=[0.5, 1.0, 2.0]")
    for name, values in (live or {}).items():
        if name not in grid or not len(values):
            raise CourseError(f"explore has no slider {name!r} with values for live; it has {', '.join(grid)}")
    if (panels := math.prod(map(len, grid.values()))) > _MOST_PANELS:
        raise CourseError(f"explore would draw {panels} panels; give values for at most {_MOST_PANELS}")
    _panels(draw, grid, title, summary)
    if is_live():
        _sliders(draw, grid, {**grid, **(live or {})})


def is_live() -> bool:
    """Whether a person with a widget-showing front end runs this cell.

    False unless there is a sign of one: widgets under papermill, nbclient, nbval and nbconvert hang or leave state.
    """
    running = kernel()
    request = running and running.get_parent("shell")  # the message that made this cell run
    if os.environ.get("SERVINGLAB_STATIC") or request is None:  # the first: whatever in this course runs notebooks
        return False
    # JupyterLab, Notebook 7 and VS Code name the cell in each request; libraries that run notebooks do not. Both must
    # hold, because a kernel that a notebook starts (papermill inside JupyterLab) inherits the environment.
    session = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
    return session and "cellId" in request.get("metadata", {})


def _panels(draw: Callable[..., Any], grid: dict[str, Sequence[Any]], title: Any, summary: str) -> None:
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    varying = [name for name, values in grid.items() if len(values) > 1]
    columns = min(4, len(grid[varying[-1]])) if len(varying) > 1 else min(3, len(combinations))
    rows = -(-len(combinations) // columns)
    size = (WIDTH, 0.8 + 1.9 * rows)
    fig, panels = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    returned = []
    for axes, values in itertools.zip_longest(panels.flat, combinations):
        if values is None:
            axes.axis("off")
            continue
        returned.append(draw(axes, **values))
        axes.set_title(", ".join(f"{name} {values[name]}" for name in varying or grid), fontsize=9)
        axes.label_outer()
    show(fig, title(returned) if callable(title) else title, summary)


def _sliders(draw: Callable[..., Any], grid: dict[str, Sequence[Any]], live: dict[str, Sequence[Any]]) -> None:
    import ipywidgets
    from IPython.display import display

    def redraw(**values: Any) -> None:
        fig, axes = plt.subplots(figsize=(WIDTH, 2.8), layout="constrained")
        try:
            draw(axes, **values)
            display(fig)
        except (CourseError, InferenceServerException) as error:
            print(error)
        plt.close(fig)

    controls = {}
    for name, values in live.items():
        start = grid[name][0] if grid[name][0] in values else values[0]
        look = {"description": name, "continuous_update": False}
        controls[name] = ipywidgets.SelectionSlider(options=list(values), value=start, **look)
    display(ipywidgets.VBox(list(controls.values())), ipywidgets.interactive_output(redraw, controls))
