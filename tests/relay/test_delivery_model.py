"""Test a publisher's window and a relay's intake over a channel that loses and delays messages and outlives restarts.

Each event is in the journal at most once, and a producer's events are in order without gaps. Once the channel works
again, every event arrives and is acknowledged.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from relays import LIMITS, NOW, event

from relay import Journal, JournalSettings, encode_event, read_event
from relay.access import publisher_for_all
from relay.intake.admission import Admission
from relay.intake.group_commit import Intake, Submission
from relay.publishing.delivery import Outgoing, Window
from relay.wire import Ack, Publish, Refusal

CAPACITY = 12  # events, sent in parts of 3
MESSAGE_BYTES = 250  # about two events

places = st.integers(0, 5)


class DeliveryMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="delivery-model-"))
        self.journal = Journal.open(self.folder, JournalSettings(disk_reserve_bytes=0))
        self.intake = Intake(self.journal, Admission(LIMITS), Counter())
        self.window = Window(CAPACITY)
        self.under_way: list[Publish] = []
        self.answers: list[Ack | Refusal] = []
        self.published = 0
        self.acked: list[tuple[str, int]] = []

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        for _ in range(min(count, self.window.room)):
            one = event(self.published, user_id=f"user-{self.published % 2}")
            self.published += 1
            self.window.add(Outgoing(one.event_id, one.user_id, encode_event(one)))

    @rule()
    def send(self) -> None:
        while self.window.is_due:
            first_seq, events = self.window.unsent(MESSAGE_BYTES)
            self.window.mark_sent(len(events))
            self.under_way.append(
                Publish(
                    producer_id="p",
                    epoch=1,
                    first_seq=first_seq,
                    base_seq=self.window.base_seq,
                    attempt=self.window.attempt,
                    events=events,
                )
            )

    @invariant()
    def something_is_due_whenever_nothing_is_on_its_way(self) -> None:
        if (
            hasattr(self, "window")
            and len(self.window)
            and self.window.unsent(MESSAGE_BYTES)[0] == self.window.base_seq
        ):
            assert self.window.is_due

    @rule(count=st.integers(1, 4))
    def relay_takes(self, count: int) -> None:
        batch, self.under_way = self.under_way[:count], self.under_way[count:]
        if batch:
            replies = self.intake.take([Submission(b"peer", publish, publisher_for_all("k")) for publish in batch], NOW)
            self.answers += [reply.message for reply in replies]

    @rule()
    def publisher_hears(self) -> None:
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Ack):
                done = self.window.receive(answer)
                self.acked += [(outgoing.event_id, receipt.seq) for outgoing, receipt in done]
            elif answer.attempt == self.window.attempt:
                self.window.rewind()

    @rule(place=places)
    def a_message_is_lost(self, place: int) -> None:
        if place < len(self.under_way):
            del self.under_way[place]

    @rule(place=places)
    def an_answer_is_lost(self, place: int) -> None:
        if place < len(self.answers):
            del self.answers[place]

    @rule(survivors=st.integers(0, 3))
    def the_relay_is_killed(self, survivors: int) -> None:
        """The relay loses its memory and queue; the last `survivors` messages sent still reach the next relay."""
        self.journal.close()
        self.journal = Journal.open(self.folder, JournalSettings(disk_reserve_bytes=0))
        self.intake = Intake(self.journal, Admission(LIMITS), Counter())
        self.under_way = self.under_way[len(self.under_way) - survivors :] if survivors else []
        self.answers = []

    @rule()
    def the_publisher_loses_patience(self) -> None:
        """The peer reconnects, and messages queued in either direction are lost."""
        self.under_way, self.answers = [], []
        self.window.rewind()

    @invariant()
    def the_journal_is_the_beginning_of_what_was_published(self) -> None:
        if hasattr(self, "journal"):
            numbers = [read_event(entry.data).payload["number"] for entry in self.journal.read(0, 10_000)]
            assert numbers == list(range(len(numbers)))

    @invariant()
    def what_was_acknowledged_is_in_the_journal_under_its_number(self) -> None:
        if hasattr(self, "journal"):
            assert [number for _, number in self.acked] == list(range(1, len(self.acked) + 1))
            assert len(self.acked) <= self.journal.last_seq

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        self.the_publisher_loses_patience()
        while len(self.window):
            before = len(self.window)
            self.send()
            self.relay_takes(len(self.under_way))
            while self.answers:
                self.publisher_hears()
            assert len(self.window) < before, "a working channel must make progress"
        assert self.journal.last_seq == len(self.acked) == self.published
        self.journal.close()
        shutil.rmtree(self.folder)


DeliveryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, print_blob=False
)
TestEveryEventArrivesOnceAndInOrder = DeliveryMachine.TestCase
