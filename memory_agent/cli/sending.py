"""Hands lines to a publisher and sums up what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from memory_agent.cli.event_lines import BadLine, EventLines
from relay import (
    BusSettings,
    FlushReport,
    Identity,
    MalformedEventError,
    Progress,
    Publisher,
    RelayError,
    RelayUnavailableError,
)

Refused = Callable[[BadLine], None]

_MOST_LINES_KEPT = 1_000


class Summary(msgspec.Struct, kw_only=True):
    """What became of the lines. Times are seconds since the first was handed over, None where it did not come to that.

    `published` lines were events; each of them is then acknowledged (new, on the relay's disk), a duplicate (there
    already), rejected by the relay, spooled on this disk, or unacknowledged. `rejected` counts lines that are no event
    too; the first thousand of all those are in `bad_lines`. `failure` is why sending stopped early.
    """

    published: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    rejected: int = 0
    spooled: int = 0
    unacknowledged: int = 0
    acked_through: dict[str, int] = {}
    bad_lines: list[BadLine] = []
    acknowledged_s: float | None = None
    recallable_s: float | None = None
    failure: str | None = None

    def refuse(self, bad: BadLine, refused: Refused) -> None:
        """Count a line that is of no use, and tell."""
        refused(bad)
        self.rejected += 1
        if len(self.bad_lines) < _MOST_LINES_KEPT:
            self.bad_lines.append(bad)

    def all_arrived(self) -> bool:
        """Say whether the relay has every event, or has refused it; notes it as a failure if not."""
        missing = self.spooled + self.unacknowledged
        if missing and self.failure is None:
            self.failure = f"{missing} events did not arrive at the relay, so there is nothing to wait for"
        return self.failure is None

    def settle(self, report: FlushReport, refused: Refused, *, spools: bool) -> None:
        """Take over what a publisher says. What it has in memory goes to its spool, if any, when it closes."""
        self.published = report.published
        self.acknowledged, self.duplicates = report.acked, report.duplicates
        self.spooled = report.spooled + (report.pending if spools else 0)
        self.unacknowledged = 0 if spools else report.pending
        self.acked_through = report.acked_through
        for rejection in report.rejections:
            field = f"event {rejection.event_id}, {rejection.field}"
            self.refuse(BadLine(line=0, field=field, reason=rejection.reason), refused)


def send(
    lines: EventLines,
    ingest: str,
    identity: Identity,
    settings: BusSettings,
    spool: Path | None,
    flush_timeout_s: float,
    told: Callable[[Progress], None],
    refused: Refused,
) -> Summary:
    """Publish every line that is an event and wait for the acks, at most `flush_timeout_s`.

    `refused` is called for each line that is of no use; nothing is raised for it.
    Raises `JournalInUseError` when another publisher has the spool.
    """
    summary = Summary()
    publisher = Publisher(
        ingest,
        settings=settings.publisher,
        limits=settings.events,
        spool=spool,
        on_progress=told,
        identity=identity,
    )
    started_s = time.monotonic()
    try:
        _publish_all(publisher, lines, summary, refused)
        report = publisher.flush(0 if summary.failure else flush_timeout_s)
        summary.settle(report, refused, spools=spool is not None)
        summary.acknowledged_s = round(time.monotonic() - started_s, 3)
    except RelayError as error:
        summary.failure = str(error)
    finally:
        with suppress(RelayUnavailableError):  # what has no ack and no spool is counted, and the caller is told
            publisher.close()
    return summary


def _publish_all(publisher: Publisher, lines: EventLines, summary: Summary, refused: Refused) -> None:
    """Publish line by line; stop, and note why, when the publisher takes no more."""
    for number, line in lines:
        if isinstance(line, BadLine):
            summary.refuse(line, refused)
            continue
        try:
            publisher.publish(line)
        except MalformedEventError as error:
            summary.refuse(BadLine(line=number, field=error.field, reason=error.reason), refused)
        except RelayError as error:
            summary.failure = f"stopped at line {number}: {error}"
            return
