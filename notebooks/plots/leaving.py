"""Figure of notebook 05: how busy a server is before and after a client leaves."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.style import LANES, WIDTH, name_rows, tint


def cores(busy: Mapping[str, tuple[float, float]], *, lane: str) -> Figure:
    """A way of asking → busy cores of the server's processes with the client there, and after it left."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.3))
    before, after = zip(*busy.values(), strict=True)
    rows = np.arange(len(busy))
    axes.barh(rows - 0.2, before, 0.36, color=tint(LANES[lane], 0.3), label="before it left")
    axes.barh(rows + 0.2, after, 0.36, color=LANES[lane], label="after")
    name_rows(axes, list(busy))
    axes.set_xlabel("busy cores of the server")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig
