"""Test that the lab's page contains exactly a report's figures."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from memory_agent.settings import Settings
from ops.bench.sona import page
from ops.lab.arms import CITE, OFF
from ops.lab.course import FeedbackCounts, Figures
from ops.lab.instant import Compared, InstantReport
from ops.lab.instant import summarise as sum_instant
from ops.lab.protocol import Evidence, Protocol
from ops.lab.report import LearningReport, summarise
from ops.lab.trials import STAGES, Answered, Report

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def made(arm: str, gain: float) -> Report:
    answered = tuple(
        Answered(
            arm=arm,
            split="random",
            seed=0,
            user=user,
            taught=stage,
            question=f"{user}:0",
            is_repeated=True,
            figures=Figures(0.25, 0.5 + gain * stage / 100, 0.75, 0.4),
        )
        for user in ("a", "b", "c")
        for stage in STAGES
    )
    heard = FeedbackCounts(feedbacks=7, named=9, credited=8, not_credited={"why": 1})
    return Report(arm=arm, split="random", answered=answered, heard=heard, gate="shadow", served={"learned": 7})


def report() -> LearningReport:
    protocol = Protocol(
        settings=Settings(), conversations=None, runs=None, seeds=1, signals=("cite",), shown=10, processes=1
    )
    evidence = Evidence(model="m", took_s=61.0, reports=(made(OFF, 0.0), made(CITE, 0.034)))
    return msgspec.json.decode(msgspec.json.encode(summarise(protocol, evidence)), type=LearningReport)


def instant_report() -> InstantReport:
    compared = [
        Compared(
            state="cold",
            signal="cite",
            parts="bank alone",
            unit=user,
            is_repeated=True,
            with_layer=Figures(0.5, 0.75, 1.0, 0.5),
            without=Figures(0.5, 0.5, 1.0, 0.5),
        )
        for user in ("a", "b", "c")
    ]
    return InstantReport(conversations=3, seeds=2, took_s=7.0, gains=tuple(sum_instant(compared)))


def test_a_page_has_the_figures_of_its_report_and_their_limits() -> None:
    text = page(report(), instant_report(), {"cores": "2"}, NOW)
    assert "| cite | repeated | 3 | 25.0 | 53.4 | 75.0 | 0.400 | +3.4 (+3.4 to +3.4) | - | - |" in text
    assert "| cite | +0.0 (+0.0 to +0.0) |" in text
    assert "- took: 61 s" in text
    assert "| cold | cite | bank alone | repeated | 3 | 3 | +0.0 (+0.0 to +0.0) | +25.0 (+25.0 to +25.0) |" in text
    assert text.index("## Targets") < text.index("## What this shows") < text.index("## What this does not show")
    assert "![learning curve](sona.png)" in text


def test_tables_without_a_measurement_are_left_out() -> None:
    text = page(report(), instant_report(), {}, NOW)
    assert "airline: past runs" not in text.lower()
    assert "the gate, in charge" not in text.lower()
