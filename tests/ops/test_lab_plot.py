"""Test the plot of the learning curve: a PNG of the expected size, and early rejection of bad paths."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from memory_agent.errors import InvalidInputError
from ops.lab.gains import Difference, Point
from ops.lab.plot import check_plot, draw_curve

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def points(low: float | None) -> list[Point]:
    return [
        Point(arm=arm, taught=taught, mean=0.5, over_off=Difference(mean=taught / 2000, low=low, high=0.1))
        for arm in ("learning off", "cite", "oracle")
        for taught in (0, 50, 100)
    ]


@pytest.mark.parametrize("low", [-0.1, None])
def test_a_curve_is_drawn_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, low: float | None) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    draw_curve(points(low), "two arms", tmp_path / "curve.png")
    content = (tmp_path / "curve.png").read_bytes()
    assert content[:8] == SIGNATURE
    assert struct.unpack(">II", content[16:24]) == (960, 576)


def test_the_same_points_give_the_same_picture(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        draw_curve(points(-0.1), "two arms", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInputError, match=r"pip install matplotlib"):
        check_plot(tmp_path / "curve.png")


@pytest.mark.parametrize(
    ("name", "reason"), [("curve.svg", "must end with .png"), ("absent/curve.png", "folder not found: ")]
)
def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        check_plot(tmp_path / name)
