"""Test the journal against a dict: appends with repeats, reads, commits, retention and reopening, in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from relays import event, later

from relay import Appended, Journal, JournalSettings, read_event
from relay.crypto import KeyRing

USERS = ("a", "b", "ab")
CONSUMERS = ("slow", "fast")
AGE_S = 1_000
HORIZON_S = 3_000

events = st.tuples(st.integers(0, 30), st.sampled_from(USERS))


class JournalMachine(RuleBasedStateMachine):
    """`kept` holds the events that must be readable, `known` the ids that must be recognised, with numbers and
    times.
    """

    is_encrypted = False

    @initialize(ignores_consumers=st.booleans())
    def open(self, ignores_consumers: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="journal-model-"))
        self.settings = JournalSettings(
            retention_age_s=AGE_S,
            repeat_horizon_s=HORIZON_S,
            retention_ignores_consumers=ignores_consumers,
            disk_reserve_bytes=0,
        )
        self.keys = KeyRing(self.folder / "keys") if self.is_encrypted else None
        self.journal = Journal.open(self.folder / "journal", self.settings, keys=self.keys)
        self.clock_s = 0
        self.last_seq = 0
        self.kept: dict[int, tuple[int, str, int]] = {}
        self.known: dict[tuple[int, str], tuple[int, int]] = {}
        self.cursors: dict[str, int] = {}

    @rule(batch=st.lists(events, max_size=6))
    def append(self, batch: list[tuple[int, str]]) -> None:
        expected = []
        for number, user in batch:
            if (number, user) in self.known:
                expected.append(Appended(self.known[number, user][0], True))
                continue
            self.last_seq += 1
            self.known[number, user] = (self.last_seq, self.clock_s)
            self.kept[self.last_seq] = (number, user, self.clock_s)
            expected.append(Appended(self.last_seq, False))
        got = self.journal.append([event(number, user) for number, user in batch], later(self.clock_s))
        assert got == expected

    @rule(after=st.integers(0, 40), limit=st.integers(1, 8), user=st.sampled_from((None, *USERS)))
    def read(self, after: int, limit: int, user: str | None) -> None:
        wanted = [seq for seq in sorted(self.kept) if seq > after and user in (None, self.kept[seq][1])]
        found = self.journal.read(after, limit, user_id=user)
        assert [entry.seq for entry in found] == wanted[:limit]
        assert [read_event(entry.data) for entry in found] == [event(*self.kept[entry.seq][:2]) for entry in found]

    @rule(name=st.sampled_from(CONSUMERS), seq=st.integers(0, 40))
    def commit(self, name: str, seq: int) -> None:
        seq = min(seq, self.last_seq)
        self.cursors[name] = max(seq, self.cursors.get(name, 0))
        assert self.journal.commit(name, seq) == self.cursors[name]

    @rule(seconds=st.integers(1, 1_500))
    def wait(self, seconds: int) -> None:
        self.clock_s += seconds

    @rule()
    def retain(self) -> None:
        old = {seq for seq, (_, _, received_s) in self.kept.items() if received_s < self.clock_s - AGE_S}
        slowest = min(self.cursors.values(), default=self.last_seq)
        gone = old if self.settings.retention_ignores_consumers else {seq for seq in old if seq <= slowest}
        report = self.journal.retain(later(self.clock_s))
        assert report.deleted == len(gone)
        assert (report.held_by is not None) == (gone != old)
        for seq in gone:
            del self.kept[seq]
        for key, (seq, received_s) in list(self.known.items()):
            if seq not in self.kept and received_s <= self.clock_s - HORIZON_S:
                del self.known[key]

    @rule(through=st.integers(1, 40))
    @precondition(lambda self: not self.settings.retention_ignores_consumers)
    def discard(self, through: int) -> None:
        through = min(through, self.last_seq)
        self.journal.discard(through, "slow", later(self.clock_s))
        self.cursors["slow"] = through
        for seq in [seq for seq in self.kept if seq <= through]:
            number, user, received_s = self.kept.pop(seq)
            if received_s <= self.clock_s - HORIZON_S:
                del self.known[number, user]

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal.open(self.folder / "journal", self.settings, keys=self.keys)

    @invariant()
    def agrees_on_its_ends(self) -> None:
        if not hasattr(self, "journal"):
            return
        assert self.journal.last_seq == self.last_seq
        assert self.journal.first_seq == min(self.kept, default=self.last_seq + 1)
        assert self.journal.stats().entries == len(self.kept)
        assert {one.name: one.seq for one in self.journal.consumers()} == self.cursors

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.folder)


JournalMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True, print_blob=False
)
TestTheJournalBehavesLikeADict = JournalMachine.TestCase


class EncryptedJournalMachine(JournalMachine):
    """`JournalMachine` for an encrypted journal."""

    is_encrypted = True


EncryptedJournalMachine.TestCase.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, derandomize=True, print_blob=False
)
TestAnEncryptedJournalBehavesLikeADict = EncryptedJournalMachine.TestCase
