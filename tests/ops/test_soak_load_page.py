"""Test that the page about a burst contains the measured figures."""

from __future__ import annotations

from datetime import date

from ops.soak.load_page import load_page


def test_the_page_holds_the_figures_of_the_burst_and_its_command() -> None:
    figures = {
        "events": 12_345,
        "acknowledged_per_s": 6_789,
        "worked_off_per_s": 98,
        "recalls": 76,
        "recalls_degraded": 5,
        "recall_p50_ms": 4.3,
        "recall_p99_ms": 21.5,
        "largest_resident_mb": {"host": 1_234, "relay": 42},
    }
    page = load_page(figures, date(2026, 2, 3))
    assert "2026-02-03 with `python -m ops.soak burst --events 12345 --page`" in page
    for row in ("| processed per second | 98 |", "| recall p50 / p99, ms | 4.3 / 21.5 |", "| host | 1,234 |"):
        assert row in page
