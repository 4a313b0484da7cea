"""Requests and replies: round trips, preserved error types, and arbitrary bytes."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent import errors
from memory_agent.verbs.params import RecallParams
from memory_agent.verbs.protocol import (
    Request,
    decode,
    decode_reply,
    decode_request,
    encode,
    encode_fault,
    encode_result,
)

EXAMPLES: dict[str, errors.MemoryAgentError] = {
    "invalid_input": errors.InvalidInputError("query", "is empty"),
    "user_not_allowed": errors.UserNotAllowedError("user_id", "is another"),
    "unhandled_event": errors.UnhandledEventError("e-1", "no text"),
    "client_settings": errors.ClientSettingsError("settings.json", "is not valid JSON"),
    "settings": errors.SettingsError("recall.vector_weight", "above 1"),
    "run_begun": errors.RunBegunError("run-7", "2026-02-16T10:20:00Z"),
    "run_ended": errors.RunEndedError("run-7", "2026-02-16T10:20:00Z"),
    "quota_exceeded": errors.QuotaExceededError("alice", 10_000, "standard"),
    "store_full": errors.StoreFullError("users/a", 1024),
    "store_owned_elsewhere": errors.StoreOwnedElsewhereError("users/a", "process 7"),
    "fenced": errors.FencedError("users/a", 1, 2),
    "model_checksum": errors.ModelChecksumError("model", "aa", "bb"),
    "node_mismatch": errors.NodeMismatchError("protocol", "1", "2", "upgrade this machine"),
    "node_name_taken": errors.NodeNameTakenError("w1", "10.0.0.2"),
    "index_unavailable": errors.IndexUnavailableError("pgvector", "connection refused"),
    "index_unusable": errors.IndexUnusableError("pgvector", "read-only", "permit writing"),
    "provider": errors.ProviderError("openai", "HTTP 401"),
    "provider_input": errors.ProviderInputError("openai", "HTTP 413"),
    "provider_unavailable": errors.ProviderUnavailableError("openai", "HTTP 429"),
    "encryption_key_missing": errors.EncryptionKeyMissingError("alice", "keys"),
}


@pytest.mark.parametrize("code", sorted(errors.ERRORS))
def test_an_error_is_raised_as_the_same_type(code: str) -> None:
    error = EXAMPLES.get(code) or errors.ERRORS[code]("what happened")
    with pytest.raises(type(error)) as caught:
        decode_reply(encode_fault(error), int)
    assert type(caught.value) is type(error)
    assert (caught.value.args, str(caught.value)) == (error.args, str(error))


def test_every_error_has_its_own_code() -> None:
    def family(root: type[errors.MemoryAgentError]) -> list[type[errors.MemoryAgentError]]:
        return [root, *(error for child in root.__subclasses__() for error in family(child))]

    codes = [error.code for error in family(errors.MemoryAgentError)]
    assert len(codes) == len(set(codes))


def test_a_code_of_a_newer_daemon_keeps_its_message() -> None:
    reply = msgspec.msgpack.encode({"fault": {"code": "from_the_future", "args": [1], "message": "what it says"}})
    with pytest.raises(errors.MemoryAgentError, match="what it says"):
        decode_reply(reply, int)


@given(st.text(), st.integers(1, 1000))
def test_a_request_round_trips(query: str, top_k: int) -> None:
    params = RecallParams(query=query.encode("utf-8", "replace").decode(), top_k=top_k)
    request = decode_request(encode(Request(method="recall", params=msgspec.Raw(encode(params)))))
    assert decode(request.params, RecallParams) == params
    assert decode_reply(encode_result(params), RecallParams) == params


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_our_errors(data: bytes) -> None:
    for read in (decode_request, lambda data: decode(data, RecallParams), lambda data: decode_reply(data, int)):
        with contextlib.suppress(errors.MemoryAgentError):
            read(data)


def test_a_wrong_parameter_is_named() -> None:
    with pytest.raises(errors.InvalidInputError) as caught:
        decode(msgspec.msgpack.encode({"query": "x", "filter": {"kinds": ["story"]}}), RecallParams)
    assert caught.value.field == "filter.kinds[0]"


def test_another_protocol_version_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="version 9"):
        decode_request(encode(Request(method="recall", version=9)))


def test_both_versions_of_the_protocol_are_understood() -> None:
    assert [decode_request(encode(Request(method="recall", version=version))).version for version in (1, 2)] == [1, 2]
    assert decode_request(msgspec.msgpack.encode({"method": "recall"})).version == 1


def travelled(moment: datetime) -> datetime | None:
    params = RecallParams.of(query="x", reference_time=moment)
    return decode(encode(params), RecallParams).local_reference_time


@pytest.mark.parametrize(
    "zone",
    [UTC, timezone(timedelta(hours=9)), timezone(timedelta(seconds=-12_345)), ZoneInfo("America/New_York")],
    ids=str,
)
@pytest.mark.parametrize("fold", [0, 1])
def test_a_reference_time_keeps_its_zone(zone: tzinfo, fold: int) -> None:
    moment = datetime(2023, 11, 5, 1, 30, tzinfo=zone, fold=fold)  # occurs twice in New York
    arrived = travelled(moment)
    assert arrived is not None
    assert (arrived.replace(tzinfo=None), arrived.fold) == (moment.replace(tzinfo=None), arrived.fold)
    assert arrived.utcoffset() == moment.utcoffset()
    if isinstance(zone, ZoneInfo):
        assert arrived.tzinfo is zone


def test_a_reference_time_of_an_older_client_is_utc() -> None:
    moment = datetime(2026, 2, 10, 3, tzinfo=timezone(timedelta(hours=9)))
    arrived = decode(encode(RecallParams(query="x", reference_time=moment)), RecallParams).local_reference_time
    assert arrived == moment
    assert arrived is not None
    assert arrived.utcoffset() == timedelta(0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../../etc/passwd", "", "\0", "Asia/Tokyo"])
def test_a_zone_with_a_different_local_offset_is_ignored(zone: str) -> None:
    moment = datetime(2026, 2, 10, tzinfo=UTC)
    params = RecallParams(query="x", reference_time=moment, reference_offset_s=-3600.0, reference_zone=zone)
    arrived = params.local_reference_time
    assert arrived == moment
    assert arrived is not None
    assert arrived.utcoffset() == timedelta(hours=-1)


@pytest.mark.parametrize("offset_s", [86_400.0, -1e300, float("nan"), float("inf")])
def test_an_impossible_offset_is_refused(offset_s: float) -> None:
    params = RecallParams(query="x", reference_time=datetime(2026, 2, 10, tzinfo=UTC), reference_offset_s=offset_s)
    with pytest.raises(errors.InvalidInputError, match="reference_time"):
        _ = params.local_reference_time
