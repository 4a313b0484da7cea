"""`publish`: send events, as JSON Lines, through the relay, and wait for the acks.

`import-sessions` also sends its events with `send`. Ctrl-C stops both commands between steps (`Interrupts`).
"""

from __future__ import annotations

import codecs
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple, Self, TypeVar

import click
import msgspec

import relay
from memory_agent.cli.access import listens, open_client
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.progress import Report, progress_bars
from memory_agent.cli.render import counted, plain, print_document
from memory_agent.client import MemoryClient
from memory_agent.errors import DeadlineExceededError, UnavailableError
from memory_agent.signals import SignalTable

_ALWAYS = ("published", "acknowledged", "duplicates", "rejected")
_MOST_LINES_KEPT = 1_000
_MOST_LINES_SHOWN = 20
_MOST_TYPES_SHOWN = 10
_SLICE_S = 1.0
_LAST_ACKS_S = 5.0
INTERRUPTED = "interrupted"


_Result = TypeVar("_Result")


class Interrupts:
    """Lets a command stop on Ctrl-C between steps and print what it has done.

    The first Ctrl-C sets `heard` and interrupts a step in `cut_short`; the second raises `KeyboardInterrupt` at once.
    If SIGINT is ignored, as in a shell's background job, it stays ignored.
    """

    def __init__(self) -> None:
        self.heard = False
        self._may_cut = False

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._hear:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def cut_short(self, step: Callable[[], _Result]) -> _Result | None:
        """Return the result of `step`, or None if Ctrl-C came before or during it.

        >>> with Interrupts() as interrupts:
        ...     interrupts.cut_short(lambda: "the next line")
        'the next line'
        """
        try:
            self._may_cut = True
            return None if self.heard else step()
        except KeyboardInterrupt:
            return None
        finally:
            self._may_cut = False

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self.heard = self.heard, True
        if self._may_cut or is_second:
            raise KeyboardInterrupt


@click.command()
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--wait", is_flag=True, help="Wait until every event is recallable or in quarantine.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=300, show_default=True,
              metavar="S", help="Give up if acks, or memories with --wait, are missing after S seconds.")  # fmt: skip
@click.option("--spool", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Store events here while the relay is down; the next publish with DIR sends them.")  # fmt: skip
@click.option("--relay", "ingest", metavar="URL", help="The relay's endpoint. Default: the data folder's relay.")
@daemon_options
def publish(
    target: Target, file: IO[bytes], wait: bool, timeout_s: float, spool: Path | None, ingest: str | None
) -> None:
    """Send events, one JSON object per line, from FILE or standard input, and wait until the relay has stored them.

    Invalid lines are counted, and the first twenty are reported; all other lines are sent. If there are invalid lines,
    the exit code is 1. Duplicates (same event_id) are recognised. With --user, events without a user belong to that
    user. With --wait, events that are dropped because no row of the signal table matches their type are counted by
    type. After Ctrl-C, the command sends no more events, waits up to 5 s for acks, and prints what was acknowledged. A
    second Ctrl-C ends it immediately.

    \b
    Examples:
      memory-agent publish events.jsonl --wait
      my-agent --emit-events | memory-agent publish --user alice
      memory-agent publish events.jsonl --spool ~/.cache/my-agent/spool
      memory-agent publish events.jsonl --relay curve+tcp://memory.example:7422 --key-file alice.key
      echo '{"event_type": "chat.user_msg", "payload": {"text": "Use uv here."}}' | memory-agent publish --user alice
    """
    if file.isatty():
        note("reading events from the keyboard; end with Ctrl-D")
    endpoint = relay_ingest(target, ingest)
    reachable = listens(endpoint)
    if not reachable and (spool is None or wait):
        raise UnavailableError(unreachable(target, endpoint, is_named=ingest is not None, may_spool=not wait))
    with progress_bars() as report, Interrupts() as interrupts, ExitStack() as stack:
        client = stack.enter_context(open_client(target)) if wait else None
        lines = event_lines(file, target.only_user)
        bar = _SendingBar(report, count_lines(file))
        sending = Sending(endpoint, timeout_s if reachable else 0, bar, spool)
        started_s = time.monotonic()
        summary = send(target, lines, sending, interrupts)
        if client is not None and not interrupts.heard and summary.all_arrived():
            through, events = summary.acked_through, summary.published
            interrupts.cut_short(lambda: wait_until_recallable(client, through, events, timeout_s, report))
            if not interrupts.heard:
                summary.recallable_s = round(time.monotonic() - started_s, 3)
                summary.not_kept = not_kept(bar.types, SignalTable.load(target.settings.ingest.signals))
    if interrupts.heard:
        summary.failure = summary.failure or INTERRUPTED
    print_document(summary) if target.as_json else print_summary(summary)
    if interrupts.heard:
        raise click.Abort
    if summary.rejected or summary.unacknowledged or summary.failure:
        raise SystemExit(ExitCode.FAILED)


def unreachable(target: Target, endpoint: str, *, is_named: bool, may_spool: bool) -> str:
    """Return the error message, with advice, for an endpoint where no relay listens."""
    spool = " (or use --spool DIR to store the events until a relay listens)" if may_spool else ""
    if is_named:
        return f"no relay listens at {endpoint}; to have a daemon listen there, set relay.broker.listen{spool}"
    if target.endpoint is not None:
        return (
            f"no relay listens at {endpoint}; --endpoint sets only the daemon's endpoint: specify the relay's endpoint "
            f"with --relay URL (the daemon's setting relay.broker.listen){spool}"
        )
    return f"no relay listens at {endpoint}; start one with: memory-agent serve --data-dir {target.data_dir}{spool}"


class Observer:
    """Reports progress while events are sent. The base class only prints bad lines, as notes."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Count an event that the publisher accepted."""

    def on_progress(self, progress: relay.Progress) -> None:
        """Show acks; called in the publisher's thread."""

    def on_bad_line(self, bad: BadLine) -> None:
        note(str(bad))


class _SendingBar(Observer):
    """Shows a progress bar, and the first bad lines as errors; counts the events by type."""

    def __init__(self, report: Report, lines: int) -> None:
        self._report = report
        self._lines = lines
        self._settled = self._bad = 0
        self.types = Counter[str]()

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.types[event["event_type"]] += 1

    def on_progress(self, progress: relay.Progress) -> None:
        self._settled = progress.acked + progress.duplicates
        self._show()

    def on_bad_line(self, bad: BadLine) -> None:
        if self._bad < _MOST_LINES_SHOWN:
            click.echo(f"error: {bad}", err=True)
        elif self._bad == _MOST_LINES_SHOWN:
            note(f"further bad lines are only counted; --json lists the first {_MOST_LINES_KEPT:,}")
        self._bad += 1
        self._show()

    def _show(self) -> None:
        self._report("publish", self._settled + self._bad, self._lines)


def print_summary(summary: Summary) -> None:
    counts = {
        "published": summary.published,
        "acknowledged": summary.acknowledged,
        "duplicates": summary.duplicates,
        "rejected": summary.rejected,
        "spooled (not at the relay yet)": summary.spooled,
        "without an ack": summary.unacknowledged,
    }
    click.echo(", ".join(f"{name} {count}" for name, count in counts.items() if count or name in _ALWAYS))
    if summary.recallable_s is not None and summary.acknowledged + summary.duplicates == 0:
        click.echo("nothing arrived, so there was nothing to wait for")
    elif summary.recallable_s is not None:
        click.echo(
            f"all handled after {summary.recallable_s:g} s: recallable, in quarantine, or dropped as noise "
            "(see memory-agent stats)"
        )
    if summary.not_kept:
        types = sorted(summary.not_kept.items(), key=lambda pair: (-pair[1], pair[0]))
        more = len(types) - _MOST_TYPES_SHOWN
        names = ", ".join(f"{name} {count}" for name, count in types[:_MOST_TYPES_SHOWN])
        click.echo(
            plain(f"dropped, because no row of the signal table matches their type: {names}")
            + (f", and {more} more types" if more > 0 else "")
            + "; to keep them, add a row (setting ingest.signals)"
        )
    if summary.failure is not None:
        click.echo(f"error: {summary.failure}", err=True)


def not_kept(types: Mapping[str, int], table: SignalTable) -> dict[str, int]:
    return {event_type: count for event_type, count in types.items() if table.match(event_type) is None}


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is not an event, or that the relay rejected. `line` is its number, or 0 if unknown."""

    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field}: {self.reason}"


def event_lines(stream: IO[bytes], user_id: str | None) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """Yield the number and content of each nonblank line. `user_id`, unless None, is added to events without a user."""
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            event = _read_event(number, line)
            if user_id is not None and isinstance(event, dict) and not event.get("user_id"):
                event["user_id"] = user_id
            yield number, event


def _read_event(number: int, line: bytes) -> dict[str, Any] | BadLine:
    try:
        event = msgspec.json.decode(line)
    except UnicodeDecodeError as error:
        return BadLine(line=number, field="event", reason=f"is not UTF-8 at byte {error.start} of a string")
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error).partition(" - at `")[0].removeprefix("JSON is malformed: ")
        return BadLine(line=number, field="event", reason=f"is not JSON: {reason}")
    return event if isinstance(event, dict) else BadLine(line=number, field="event", reason="is not a JSON object")


def count_lines(stream: IO[bytes]) -> int:
    """Count the nonblank lines of a stream and rewind it; return 0 if it is not seekable."""
    if not stream.seekable():
        return 0
    lines = sum(1 for line in stream if line.strip())
    stream.seek(0)
    return lines


class Summary(msgspec.Struct, kw_only=True):
    """The outcome for all lines. Times are in seconds since the first line was sent.

    `published` counts the lines that were events. Each was acknowledged, recognised as a duplicate, rejected by the
    relay, spooled on this disk, or left unacknowledged. `rejected` also counts lines that are not events. `failure` is
    the reason why sending stopped early. `not_kept` counts, by type, the events whose type no row of the signal table
    matches.
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
    not_kept: dict[str, int] = {}

    def reject(self, bad: BadLine, observer: Observer) -> None:
        observer.on_bad_line(bad)
        self.rejected += 1
        if len(self.bad_lines) < _MOST_LINES_KEPT:
            self.bad_lines.append(bad)

    def all_arrived(self) -> bool:
        """Return whether the relay has stored or rejected every event; set `failure` if not."""
        missing = self.spooled + self.unacknowledged
        if missing and self.failure is None:
            self.failure = f"{counted(missing, 'event')} did not reach the relay, so there is nothing to wait for"
        return self.failure is None

    def settle(self, report: relay.FlushReport, observer: Observer, *, spools: bool) -> None:
        """Add a publisher's report. When the publisher closes, pending events go to its spool, if any."""
        self.published = report.published
        self.acknowledged, self.duplicates = report.acked, report.duplicates
        self.spooled = report.spooled + (report.pending if spools else 0)
        self.unacknowledged = 0 if spools else report.pending
        self.acked_through = report.acked_through
        for rejection in report.rejections:
            field = f"event {rejection.event_id}, {rejection.field}"
            self.reject(BadLine(line=0, field=field, reason=rejection.reason), observer)


class Sending(NamedTuple):
    """How to send: the relay's endpoint, the time to wait for acks, the observer, and a spool for unsent events."""

    endpoint: str
    patience_s: float
    observer: Observer
    spool: Path | None = None


def send(
    target: Target, lines: Iterable[tuple[int, dict[str, Any] | BadLine]], sending: Sending, interrupts: Interrupts
) -> Summary:
    """Publish every line that is an event, and wait for the acks.

    Bad lines raise no error; the observer reports them. Raises `JournalInUseError` if another publisher uses the spool.
    """
    summary, spool = Summary(), sending.spool
    publisher = relay.Publisher(
        sending.endpoint,
        settings=target.settings.relay.publisher,
        limits=target.settings.relay.events,
        spool=spool,
        on_progress=sending.observer.on_progress,
        identity=target.identity,
    )
    started_s = time.monotonic()
    try:
        _publish_all(publisher, lines, summary, sending.observer, interrupts)
        wait_s = 0 if summary.failure else sending.patience_s
        report = interrupts.cut_short(lambda: publisher.flush(wait_s))
        if report is None:
            note("interrupted; waiting for acks of the events already sent (Ctrl-C again stops immediately)")
            report = publisher.flush(min(wait_s, _LAST_ACKS_S))
        summary.settle(report, sending.observer, spools=spool is not None)
        summary.acknowledged_s = round(time.monotonic() - started_s, 3)
    except relay.RelayError as error:
        summary.failure = str(error)
    finally:
        with suppress(relay.RelayUnavailableError):  # the summary counts events neither acked nor spooled
            publisher.close(0)
    return summary


def _publish_all(
    publisher: relay.Publisher,
    lines: Iterable[tuple[int, dict[str, Any] | BadLine]],
    summary: Summary,
    observer: Observer,
    interrupts: Interrupts,
) -> None:
    """Publish line by line. When the publisher accepts no more events, stop and record the reason in the summary."""
    rest = iter(lines)
    while (read := interrupts.cut_short(lambda: next(rest, None))) is not None:
        number, line = read
        if isinstance(line, BadLine):
            summary.reject(line, observer)
            continue
        try:
            interrupts.cut_short(partial(publisher.publish, line))
            observer.on_event(line)
        except relay.MalformedEventError as error:
            names_no_user = error.field == "user_id" and not line.get("user_id")
            hint = "; --user NAME sets the user for events that name none" if names_no_user else ""
            summary.reject(BadLine(line=number, field=error.field, reason=f"{error.reason}{hint}"), observer)
        except relay.RelayError as error:
            summary.failure = f"stopped at line {number}: {error}"
            return


def wait_until_recallable(
    client: MemoryClient, through: Mapping[str, int], events: int, timeout_s: float, report: Report
) -> None:
    """Wait until each user's events, up to the sequence number in `through`, are recallable or in quarantine.

    Raises `DeadlineExceededError`, and `UnavailableError` if the daemon stops.
    """
    deadline_s = time.monotonic() + timeout_s
    report("recallable", 0, events)
    while True:
        remaining_s = deadline_s - time.monotonic()
        try:
            client.wait(through, max(0.01, min(_SLICE_S, remaining_s)))
        except DeadlineExceededError:
            if remaining_s <= _SLICE_S:
                raise DeadlineExceededError(f"not all events are recallable after {timeout_s:g} s") from None
            report("recallable", max(0, events - client.status().dispatched.get("lag", 0)), events)
        else:
            report("recallable", events, events)
            return


def relay_ingest(target: Target, named: str | None) -> str:
    """Return the relay's endpoint for events: `named`, or else the setting, or else the endpoint of the data folder."""
    return named or target.settings.relay.broker.ingest or relay.relay_endpoints(target.data_dir).ingest
