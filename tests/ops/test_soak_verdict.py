"""Test that a soak's verdict lists exactly the failed checks."""

from __future__ import annotations

from ops.soak.soak import verdict

CENSUS = {"host": {"processes": 1, "open_files": 90}, "relay": {"processes": 1, "open_files": 20}}
NOTHING: dict[str, list[str]] = {"processes": [], "shared_files": [], "sockets": []}


def grown(slope: float, low: float) -> dict[str, float]:
    return {"slope": slope, "low": low, "high": 2 * slope - low, "mean_mb": 100.0}


def test_a_level_series_passes() -> None:
    growth = {"relay": grown(30.0, -5.0), "daemon": grown(1.0, 0.5), "host": grown(-20.0, -30.0)}
    nearly = {**CENSUS, "relay": {"processes": 1, "open_files": 22}}
    assert verdict(growth, CENSUS, nearly, NOTHING) == {"grew": [], "more": [], "left": []}


def test_growth_and_leftovers_are_named() -> None:
    more = {**CENSUS, "host": {"processes": 2, "open_files": 140}, "Ray idle worker": {"processes": 1, "open_files": 5}}
    left = {**NOTHING, "sockets": ["relay.sock"], "processes": ["12 python"]}
    assert verdict({"relay": grown(30.0, 5.0), "daemon": grown(1.0, 0.5)}, CENSUS, more, left) == {
        "grew": ["relay"],
        "more": ["host: 1 -> 2 processes", "host: 90 -> 140 open_files", "Ray idle worker: 0 -> 1 processes"],
        "left": ["12 python", "relay.sock"],
    }
