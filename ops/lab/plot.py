"""Plots the learning curve: recall at 5 for repeated questions, minus recall with learning off, with 95 % intervals.

This is the only module of the lab that imports matplotlib, which is optional (`pip install matplotlib`). No display is
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memory_agent.errors import InvalidInputError
from ops.lab.arms import OFF
from ops.lab.gains import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (8.0, 4.8)
_DOTS_PER_INCH = 120


def check_plot(file: Path) -> None:
    """Check that the plot can be written, before spending minutes on measurements. Raises `InvalidInputError`."""
    if file.suffix.lower() != ".png":
        raise InvalidInputError("--plot", f"{file} must end with .png")
    if not file.absolute().parent.is_dir():
        raise InvalidInputError("--plot", f"folder not found: {file.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidInputError("--plot", "requires `pip install matplotlib`") from error


def draw_curve(points: Sequence[Point], title: str, file: Path) -> None:
    """Plot the learning curves to a PNG file, relative to the arm `OFF` (the line at 0). Raises the same errors as
    `check_plot`.
    """
    check_plot(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    arms = [arm for arm in dict.fromkeys(point.arm for point in points) if arm != OFF]
    for place, arm in enumerate(arms):
        _draw(axes, [point for point in points if point.arm == arm], place - (len(arms) - 1) / 2)
    axes.axhline(0.0, color="black", linewidth=1, label=OFF)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("share of the training questions taught, %")
    axes.set_ylabel("recall at 5, repeated evidence, minus recall with learning off, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})


def _draw(axes: Axes, points: Sequence[Point], aside: float) -> None:
    """Plot one curve, shifted horizontally by `aside` so that intervals do not overlap."""
    taught = [point.taught + aside for point in points]
    means = [100 * point.over_off.mean for point in points]
    axes.plot(taught, means, marker="o", markersize=4, label=points[0].arm)
    colour = axes.lines[-1].get_color()
    for place, point in enumerate(points):
        if point.over_off.low is not None and point.over_off.high is not None:
            axes.vlines(taught[place], 100 * point.over_off.low, 100 * point.over_off.high, colors=colour, alpha=0.6)
