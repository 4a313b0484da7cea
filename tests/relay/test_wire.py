"""Test the wire format: variants that older and newer peers must accept, and errors for arbitrary bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import ERRORS, Batch, JournalEntry, MalformedEventError, ProtocolError, RelayError, wire

GOLDEN = [
    (
        wire.Publish(producer_id="p", epoch=7, first_seq=3, base_seq=2, attempt=1, events=[b"\x80"]),
        "87a26f70a77075626c697368ab70726f64756365725f6964a170a565706f636807a966697273745f73657103a8626173655f73657102"
        "a7617474656d707401a66576656e747391c40180",
    ),
    (
        wire.Ack(epoch=7, first_seq=3, receipts=[wire.Receipt(41), wire.Receipt(0, False, "c", "f", "r")]),
        "84a26f70a361636ba565706f636807a966697273745f73657103a87265636569707473929529c2a0a0a09500c2a163a166a172",
    ),
    (
        wire.Fetch(after_seq=5, limit=10, max_bytes=100, user_id="alice"),
        "85a26f70a56665746368a961667465725f73657105a56c696d69740aa96d61785f627974657364a7757365725f6964a5616c696365",
    ),
    (wire.Commit(consumer="m", seq=9), "83a26f70a6636f6d6d6974a8636f6e73756d6572a16da373657109"),
    (wire.Ping(), "81a26f70a470696e67"),
]


@pytest.mark.parametrize(("message", "written"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_a_message_never_change(message: wire.Request, written: str) -> None:
    assert wire.encode(message).hex() == written


@pytest.mark.parametrize("message", [message for message, _ in GOLDEN if not isinstance(message, wire.Ack)])
def test_a_request_survives_the_wire(message: wire.Request) -> None:
    assert wire.decode_request(wire.encode(message)) == message


def test_fields_of_a_newer_peer_are_ignored() -> None:
    newer = {"op": "fetch", "after_seq": 1, "limit": 2, "max_bytes": 3, "color": "blue"}
    assert wire.decode_request(msgspec.msgpack.encode(newer)) == wire.Fetch(after_seq=1, limit=2, max_bytes=3)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_nothing_but_the_protocol_error(body: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_receipt, lambda body: wire.decode_reply(body, int)):
        with pytest.raises(ProtocolError):
            decode(body)


@pytest.mark.parametrize("body", [{"op": "nonsense"}, {"op": "commit", "consumer": 5, "seq": 1}, {"op": "commit"}, []])
def test_a_request_of_the_wrong_form_is_refused(body: object) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_request(msgspec.msgpack.encode(body))


def test_an_answer_is_decoded_as_its_type() -> None:
    batch = Batch(entries=[JournalEntry(1, "alice", "a.b", b"\x80")], last_seq=3)
    assert wire.decode_reply(wire.encode_answer(batch), Batch) == batch
    with pytest.raises(ProtocolError):
        wire.decode_reply(wire.encode_answer("text"), int)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_error_is_rebuilt_as_its_class(code: str) -> None:
    kind = ERRORS[code]
    for arguments in (("field", "reason"), ("reason",), (5, "reason")):
        try:
            error = kind(*arguments)
        except TypeError:
            continue
        with pytest.raises(kind) as raised:
            wire.decode_reply(wire.encode_failure(error), int)
        assert (raised.value.code, raised.value.args, str(raised.value)) == (code, error.args, str(error))


def test_an_error_of_a_newer_peer_is_still_an_error() -> None:
    body = wire.encode(wire.Failure(code="unheard_of", arguments=["why"]))
    with pytest.raises(RelayError, match="why"):
        wire.decode_reply(body, int)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b'{"a": 1}'], b'{"a": 1}'),
        ([b"\x81\xa1a\x01"], b"\x81\xa1a\x01"),
        ([b"chat.user_msg", b'{"a": 1}'], b'{"a": 1}'),
        ([b"chat.user_msg", b"source", b"\x80"], b"\x80"),
        ([b'chat.user_msg {"a": 1}'], b'{"a": 1}'),
        ([b"chat.user_msg \x81\xa1a\x01"], b"\x81\xa1a\x01"),
        ([b"garbage"], b"garbage"),
    ],
)
def test_a_plain_emitter_may_send_its_event_in_three_forms(frames: list[bytes], expected: bytes) -> None:
    assert wire.event_in_frames(frames) == expected


@pytest.mark.parametrize("frames", [[], [b""], [b"  "]])
def test_an_empty_message_is_not_an_event(frames: list[bytes]) -> None:
    with pytest.raises(MalformedEventError, match="empty"):
        wire.event_in_frames(frames)
