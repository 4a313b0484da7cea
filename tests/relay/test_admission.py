"""Test that only the key decides which user an event belongs to."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relays import LIMITS, NOW

from relay import (
    Event,
    Journal,
    MalformedEventError,
    Masker,
    MaskingSettings,
    RelaySettings,
    ScopeMissingError,
    UserNotAllowedError,
    encode_event,
)
from relay.access import ALL_SCOPES, Origin, Principal, Scope
from relay.answers import Answers
from relay.intake.admission import Admission
from relay.intake.group_commit import Intake, Submission
from relay.journal import publisher_of, source_name
from relay.wire import Ack, Publish, Receipt, Refusal, RetryQuarantined

ADMISSION = Admission(LIMITS)
ALICE = Principal("key-a", "alice", frozenset({Scope.PUBLISH}))
LOCAL = Principal("local", None, ALL_SCOPES)

users = st.sampled_from(["alice", "bob", "system", "", "Alice", "alice\0", None, 7, ["alice"]])


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode({"event_type": "chat.user_msg", "payload": {"text": "hello"}, **fields})


def publish(*events: bytes, producer: str = "p", epoch: int = 1) -> Publish:
    return Publish(producer_id=producer, epoch=epoch, first_seq=1, base_seq=1, attempt=1, events=list(events))


def receipts(intake: Intake, principal: Principal, *events: bytes) -> list[Receipt]:
    (reply,) = intake.take([Submission(b"peer", publish(*events), principal)], NOW)
    assert isinstance(reply.message, Ack)
    return reply.message.receipts


@pytest.fixture
def intake(journal: Journal) -> Intake:
    return Intake(journal, ADMISSION, Counter())


@given(named=users, nested=users)
def test_a_key_for_one_user_never_makes_an_event_of_another(named: object, nested: object) -> None:
    fields = {} if named is None else {"user_id": named}
    result = ADMISSION.try_admit(encoded(**fields, extra={"user_id": nested}, payload={"user_id": nested}), ALICE, NOW)
    if isinstance(result, Event):
        assert result.user_id == "alice"
    else:
        assert isinstance(result, UserNotAllowedError)
        assert named not in ("alice", None, "")


def test_a_key_for_one_user_fills_the_user_in_and_one_for_all_does_not() -> None:
    assert ADMISSION.admit(encoded(), ALICE, NOW).user_id == "alice"
    with pytest.raises(MalformedEventError, match="user_id: is missing"):
        ADMISSION.admit(encoded(), LOCAL, NOW)


def test_only_a_key_for_all_users_publishes_as_the_system() -> None:
    assert ADMISSION.admit(encoded(user_id="system"), LOCAL, NOW).user_id == "system"
    with pytest.raises(UserNotAllowedError):
        ADMISSION.admit(encoded(user_id="system"), ALICE, NOW)


def test_an_event_that_names_another_user_is_refused_and_not_stored(intake: Intake, journal: Journal) -> None:
    mine, foreign = receipts(intake, ALICE, encoded(), encoded(user_id="bob", event_id="b"))
    assert (mine.seq, foreign.seq, foreign.code, foreign.field) == (1, 0, "user_not_allowed", "user_id")
    assert [entry.user_id for entry in journal.read(0, 10)] == ["alice"]
    assert journal.quarantined(0, 10) == []


def test_the_journal_keeps_which_key_an_event_came_by(intake: Intake, journal: Journal) -> None:
    intake.take(
        [
            Submission(b"a", publish(encoded(), encoded(user_id="bob")), ALICE),
            Submission(b"b", publish(encoded(user_id="bob")), LOCAL),
        ],
        NOW,
    )
    assert [(entry.user_id, entry.origin) for entry in journal.read(0, 10)] == [
        ("alice", Origin("key-a", for_all=False)),
        ("bob", Origin("local", for_all=True)),
    ]


@pytest.mark.parametrize("named", ["system", "a/b", 7, ["alice"]])
def test_an_event_of_the_system_names_a_user_or_is_refused(named: object) -> None:
    result = ADMISSION.try_admit(encoded(user_id="system", on_behalf_of=named), LOCAL, NOW)
    assert isinstance(result, MalformedEventError)
    assert result.field == "on_behalf_of"


def test_the_user_that_a_system_event_names_is_kept() -> None:
    assert ADMISSION.admit(encoded(user_id="system", on_behalf_of="alice"), LOCAL, NOW).extra == {
        "on_behalf_of": "alice"
    }


def test_on_behalf_of_means_nothing_in_events_of_other_users() -> None:
    assert ADMISSION.admit(encoded(on_behalf_of=7), ALICE, NOW).extra == {"on_behalf_of": 7}


def test_the_refusal_is_the_same_whether_the_user_exists_or_not(intake: Intake) -> None:
    receipts(intake, LOCAL, encoded(user_id="bob"))
    known, unknown = receipts(intake, ALICE, encoded(user_id="bob"), encoded(user_id="nobody-at-all"))
    assert known == unknown


def test_a_foreign_user_is_refused_before_other_faults_are_reported(intake: Intake, journal: Journal) -> None:
    """Otherwise, bytes for bob would be quarantined."""
    later = (NOW + timedelta(days=1)).isoformat()
    (receipt,) = receipts(intake, ALICE, encoded(user_id="bob", timestamp=later))
    assert receipt.code == "user_not_allowed"
    assert journal.quarantined(0, 10) == []


def test_quarantined_bytes_of_a_users_key_are_retried_as_that_user(intake: Intake, journal: Journal) -> None:
    (receipt,) = receipts(intake, ALICE, encoded(timestamp=(NOW + timedelta(days=36_500)).isoformat()))
    assert receipt.code == "malformed_event"
    (entry,) = journal.quarantined(0, 10)
    assert publisher_of(entry.source).user_id == "alice"
    patient = Admission(msgspec.structs.replace(LIMITS, max_future_s=1e12))
    answers = Answers(journal, RelaySettings(), patient, Counter())
    assert answers.answer(RetryQuarantined(id=entry.id), LOCAL)
    assert [(event.user_id, event.is_vouched) for event in journal.read(0, 10)] == [("alice", False)]


@given(producer=st.text(max_size=30), user=st.sampled_from(["alice", "a@b:c", "x.y"]), for_all=st.booleans())
def test_a_source_names_the_key_regardless_of_the_producer_id(producer: str, user: str, for_all: bool) -> None:
    principal = Principal("k", None if for_all else user, frozenset({Scope.PUBLISH}))
    for kind, name in (("publisher", producer), ("pub", ""), ("table", producer)):
        assert publisher_of(source_name(kind, name, principal)).user_id == principal.user_id


def test_a_key_without_the_publish_scope_is_refused_by_name(intake: Intake, journal: Journal) -> None:
    reader = Principal("key-r", None, frozenset({Scope.RECALL, Scope.ADMIN}))
    (reply,) = intake.take([Submission(b"peer", publish(encoded(user_id="alice")), reader)], NOW)
    assert isinstance(reply.message, Refusal)
    assert (reply.message.code, reply.message.arguments) == ("scope_missing", ["publish", "key-r"])
    assert list(journal.read(0, 10)) == []


def test_another_key_cannot_stop_a_producer_by_using_its_id(intake: Intake) -> None:
    event = ADMISSION.admit(encoded(user_id="bob", event_id="1"), LOCAL, NOW)
    intake.take([Submission(b"bob", publish(encode_event(event)), LOCAL)], NOW)
    intake.take([Submission(b"alice", publish(encoded(), producer="p", epoch=10**9), ALICE)], NOW)
    (reply,) = intake.take([Submission(b"bob", publish(encode_event(event)), LOCAL)], NOW)
    assert isinstance(reply.message, Ack)
    assert reply.message.receipts[0].duplicate


def test_a_masked_event_is_journaled_under_its_original_id(journal: Journal) -> None:
    plain = Admission(LIMITS, Masker(MaskingSettings(enabled=False))).admit(encoded(), ALICE, NOW)
    masker = Masker(MaskingSettings(patterns={"greeting": "hello"}))
    receipts(Intake(journal, Admission(LIMITS, masker), Counter()), ALICE, encoded())
    ((entry,),) = (journal.read(0, 10),)
    assert msgspec.msgpack.decode(entry.data)["payload"] == {"text": "[masked:greeting]"}
    assert msgspec.msgpack.decode(entry.data)["event_id"] == plain.event_id


@pytest.mark.parametrize(
    ("user_id", "user", "allowed"),
    [
        (None, "bob", True),
        ("alice", "alice", True),
        ("alice", "bob", False),
        ("alice", None, False),
        (None, None, True),
    ],
)
def test_a_principal_is_limited_to_its_scopes_and_its_user(
    user_id: str | None, user: str | None, allowed: bool
) -> None:
    principal = Principal("k", user_id, frozenset({Scope.RECALL}))
    assert principal.may(Scope.RECALL, user) is allowed
    with pytest.raises(ScopeMissingError, match="scope admin"):
        principal.require(Scope.ADMIN, user)
    if not allowed:
        with pytest.raises(UserNotAllowedError) as refused:
            principal.require(Scope.RECALL, user)
        assert (
            str(refused.value)
            == {
                "bob": "user_id: the key k is for another user; omit the user, or use that user's key",
                None: "user_id: the key k is for one user; this request requires a key for all users",
            }[user]
        )
