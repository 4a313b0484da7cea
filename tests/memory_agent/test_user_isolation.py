"""Users are isolated: no sequence of requests returns another user's data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from http_caller import HttpCaller
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from served_gateway import Served, gateway_in_new_folder
from user_operations import (
    MOST_TELLING,
    NOW,
    OPERATIONS,
    SHARED,
    USERS,
    Asked,
    HttpUser,
    Operation,
    User,
    found_ids,
    publish,
    remember,
)

from memory_agent import MemoryClient
from memory_agent.doors.reception import permitted, scope_of
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import read_intent
from memory_agent.errors import (
    DeadlineExceededError,
    ScopeMissingError,
    UnauthorizedError,
    UnavailableError,
    UserNotAllowedError,
)
from memory_agent.storage.folders import user_folder
from memory_agent.triggers.block import RECALLED
from memory_agent.verbs.protocol import Request, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import (
    ALL_SCOPES,
    SHARED_USER,
    SYSTEM_USER,
    BrokerSettings,
    Identity,
    Principal,
    Publisher,
    RelaySettings,
    Scope,
    Subscriber,
    create_key,
    curve_pair,
    identity_of,
    local_identity,
    revoke_key,
    server_pair,
    wire,
)
from relay.disk import write_private
from relay.net import RequestSocket

INNER_METHODS = {name for name, verb in BY_NAME.items() if verb.scope is None}
METHODS = BY_NAME.keys() - INNER_METHODS
USER_METHODS = {name for name in METHODS if BY_NAME[name].answered_by == "memory"}
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # the state persists, so a rerun would be a different test
SOON = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))  # an erasure waits for the upkeep


@pytest.fixture(scope="module", params=["zmq", "http"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(door: str, embedder: Embedder) -> Iterator[Served]:
    """One folder per door; otherwise, ids that users sent through one door would count as leaks through the other."""
    with gateway_in_new_folder(embedder, SOON) as served:
        yield served


@pytest.fixture(scope="module")
def users(served: Served, door: str) -> Iterator[dict[str, User]]:
    conductor = Publisher(served.relay.ingest, identity=local_identity(served.relay.ingest))
    made: dict[str, User] = {}
    for name in USERS:
        identity = identity_of(create_key(served.data_dir, f"of-{name}", name, ALL_SCOPES))
        publisher = Publisher(served.relay.ingest, identity=identity)
        relay = Subscriber(*served.relay, identity=identity)
        parts = (name, identity, publisher, conductor, RequestSocket(served.gateway), relay)
        is_zmq = door == "zmq"
        made[name] = User(*parts) if is_zmq else HttpUser(*parts, http=HttpCaller(served.http, identity.token))
        remember(made[name], Asked(None, "", made[name]))  # something that could leak
    yield made
    conductor.close()
    for user in made.values():
        user.close()


PUBLISH, CONDUCT, RECALL = ([operation.name for operation in OPERATIONS].index(name) for name in MOST_TELLING)
steps = st.tuples(
    st.sampled_from(USERS),
    st.one_of(st.integers(0, len(OPERATIONS) - 1), st.sampled_from((PUBLISH, CONDUCT, RECALL))),
    st.sampled_from((None, *USERS, "system", "nobody-at-all")),
    st.sampled_from(USERS),
    st.integers(0, 1 << 16),
)


def leaked(users: dict[str, User], user: User, answer: bytes) -> list[str]:
    """Return the other users' private words and ids that occur in an answer to `user`."""
    others = (other for other in users.values() if other is not user)
    return [word for other in others for word in other.private - user.said if word.encode() in answer]


@settings(
    max_examples=15, deadline=None, phases=NO_SHRINKING, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(story=st.lists(steps, min_size=5, max_size=25))
@example(
    story=[("bob", PUBLISH, None, "alice", 0), ("alice", CONDUCT, None, "bob", 0), ("bob", RECALL, None, "bob", 0)]
)
def test_no_answer_ever_holds_another_users_text_or_id(users: dict[str, User], story: list[tuple[Any, ...]]) -> None:
    for name, number, named, whose, place in story:
        operation = OPERATIONS[number]
        user, other = users[name], users[whose]
        id_ = other.ids[place % len(other.ids)] if other.ids else "unknown"  # the user's own id, or a learned id
        if other is not user:
            user.said.add(id_)
        answer = operation.do(user, Asked(named, id_, other))
        if operation.verb:
            for found in found_ids(answer):
                user.keep(found)
            if named not in (None, user.name):
                assert msgspec.msgpack.decode(answer)["fault"]["code"] in ("user_not_allowed", "unknown_method"), named
        assert not leaked(users, user, answer), operation.name


def test_every_verb_and_every_relay_request_is_among_the_operations() -> None:
    """Every verb needs an operation; otherwise, user isolation is not tested for that verb."""
    asked = {operation.verb for operation in OPERATIONS}
    assert asked - {"", "no_such_verb"} == METHODS | INNER_METHODS
    requests = {str(request.__struct_config__.tag) for request in get_args(wire.Request)}
    assert requests == {operation.op for operation in OPERATIONS} - {""}


@pytest.mark.parametrize("operation", OPERATIONS, ids=[f"{n}-{one.name}" for n, one in enumerate(OPERATIONS)])
def test_each_operation_is_accepted(users: dict[str, User], operation: Operation) -> None:
    """Invalid parameters would be rejected before anything could leak. Valid ones leak nothing."""
    alice, bob = users["alice"], users["bob"]
    own = msgspec.msgpack.decode(remember(alice, Asked(None, "", alice)))["result"]["id"]
    answer = operation.do(alice, Asked(None, own, bob))
    assert not leaked(users, alice, answer)
    if operation.verb or operation.op not in ("", "publish"):
        fault = msgspec.msgpack.decode(answer).get("fault") or {"code": "", "message": ""}
        assert fault["code"] not in ("protocol", "internal", "malformed_event"), fault
        assert fault["code"] != "invalid_input" or "unknown recall" in fault["message"], fault  # a wrong kind of id


def test_the_isolation_check_can_fail(users: dict[str, User]) -> None:
    """All users send the same query, and each finds its own memory, so a leak would be detected."""
    for user in users.values():
        remember(user, Asked(None, "", user))
        answer = user.ask("recall", {"query": SHARED, "top_k": 50})
        assert any(word.encode() in answer for word in user.private)


@pytest.mark.parametrize("method", ["get", "forget", "feedback", "run_get"])
def test_another_users_id_is_answered_like_an_unknown_id(users: dict[str, User], method: str) -> None:
    alice, bob = users["alice"], users["bob"]
    record = msgspec.msgpack.decode(alice.ask("remember", {"text": SHARED + alice.word()}))["result"]["id"]
    run = msgspec.msgpack.decode(alice.ask("run_begin", {"objective": SHARED, "event_id": alice.word()}))["result"][
        "id"
    ]
    recall = msgspec.msgpack.decode(alice.ask("recall", {"query": SHARED}))["result"]["recall_id"]
    for known in (record, run, recall):
        unknown = known[:-4] + "0000"
        answers = []
        for id_ in (known, unknown):
            own: dict[str, object] = {"run_id": id_}
            if method in ("get", "forget"):
                own = {"ids": [id_]}
            elif method == "feedback":
                own = {"recall_id": id_, "quality": 1.0, "event_id": bob.word()}
            answers.append(bob.ask(method, own).replace(id_.encode(), b"ID"))
        assert answers[0] == answers[1]
    assert len(msgspec.msgpack.decode(alice.ask("get", {"ids": [record]}))["result"]) == 1


def test_the_answer_is_the_same_whether_a_named_user_exists_or_not(users: dict[str, User]) -> None:
    alice = users["alice"]
    for method in sorted(USER_METHODS):
        assert alice.ask(method, {}, "bob") == alice.ask(method, {}, "nobody-at-all")


def test_events_are_journaled_under_the_user_of_the_key(served: Served, users: dict[str, User]) -> None:
    for user in users.values():
        publish(user, Asked(None, "", user))
        publish(user, Asked("alice", "", user))
    with Subscriber(*served.relay) as everything:
        after, count = 0, 0
        while batch := everything.fetch(after, 500).entries:
            for entry in batch:
                after, count = entry.seq, count + 1
                payload = msgspec.msgpack.decode(entry.data)["payload"]
                if entry.event_type == RECALLED:
                    assert not any(f"q{user_id}x" in payload["block"] for user_id in USERS if user_id != entry.user_id)
                elif entry.user_id == SHARED_USER:
                    assert not any(f"q{user_id}x" in str(payload) for user_id in USERS)
                else:
                    assert f"q{entry.user_id}x" in payload["text"] or entry.user_id == SYSTEM_USER
    assert count >= len(USERS)


def test_an_unknown_token_is_refused_for_every_verb(served: Served, users: dict[str, User]) -> None:
    for token in ("", "wrong", users["alice"].identity.token[:-1]):
        alice = users["alice"]
        shown, socket = Identity(token=token), RequestSocket(served.gateway)
        stranger = User("alice", shown, alice.publisher, alice.conductor, socket, alice.relay)
        for method in (*sorted(METHODS), "no_such_verb"):
            answer = msgspec.msgpack.decode(stranger.ask(method, {}, "alice"))
            assert (answer["fault"]["code"], answer.get("result")) == ("unauthorized", None), method
        stranger.socket.close()


def test_a_revoked_key_is_refused_at_its_next_request(served: Served) -> None:
    made = create_key(served.data_dir, "passing", "alice", ALL_SCOPES)
    with MemoryClient("alice", endpoint=served.gateway, token=made.token) as client:
        client.remember("worth a note before the key goes")
        revoke_key(served.data_dir, "passing")
        with pytest.raises(UnauthorizedError):
            client.recall("note")


def test_with_a_key_file_over_curve_the_user_need_not_be_named(served: Served, tmp_path: Path) -> None:
    made = create_key(served.data_dir, "dora-key", "dora", ALL_SCOPES, curve_pair())
    document = msgspec.structs.replace(made, server=server_pair(served.data_dir, curve_pair).public)
    write_private(tmp_path / "dora.key", msgspec.json.encode(document))
    with MemoryClient(endpoint=served.guarded, key_file=tmp_path / "dora.key") as dora:
        record = dora.remember("the proxy of dora restarts at night")
        assert [memory.record.id for memory in dora.recall("proxy of dora").memories] == [record.id]
    with MemoryClient("alice", endpoint=served.guarded, key_file=tmp_path / "dora.key") as dora_as_alice:
        with pytest.raises(UserNotAllowedError):
            dora_as_alice.recall("proxy")
        revoke_key(served.data_dir, "dora-key")
        with pytest.raises(UnauthorizedError):
            dora_as_alice.recall("proxy")


def test_an_unknown_curve_key_gets_no_answer(served: Served, tmp_path: Path) -> None:
    pair, server = curve_pair(), server_pair(served.data_dir, curve_pair).public
    stranger = {"id": "x", "public": pair.public, "secret": pair.secret, "server": server}
    write_private(tmp_path / "stranger.key", msgspec.json.encode(stranger))
    token = (served.data_dir / "token").read_text()
    with (
        MemoryClient("alice", endpoint=served.guarded, token=token, key_file=tmp_path / "stranger.key") as client,
        pytest.raises((DeadlineExceededError, UnavailableError)),  # a refused peer may be unable to send
    ):
        client.recall("proxy", deadline_ms=300)


def test_only_its_owner_erases_a_session_of_system(served: Served) -> None:
    publisher = Publisher(served.relay.ingest, identity=local_identity(served.relay.ingest))
    told: list[tuple[str, dict[str, Any]]] = [
        ("erin", {"session_id": "s-erin", "payload": {"run_id": "run-erin"}}),
        ("fred", {"session_id": "s-fred", "payload": {"run_id": "run-fred"}}),
        ("erin", {"session_id": "s-both", "payload": {}}),
        ("fred", {"session_id": "s-both", "payload": {}}),
        ("system", {"session_id": "s-erin", "payload": {"run_id": "run-erin"}}),
        ("system", {"session_id": "s-erin", "payload": {"run_id": "run-nobody-knows"}}),
        ("system", {"session_id": "s-erin", "payload": {"run_id": "run-fred"}}),  # the run belongs to fred
        ("system", {"session_id": "s-both", "payload": {}}),
    ]
    for user_id, fields in told:
        publisher.publish({"event_type": "run.noted", "user_id": user_id, **fields})
    publisher.flush()
    publisher.close()
    with Subscriber(*served.relay, "memory") as journal:
        end = journal.fetch(0, 1).last_seq
    found: dict[str, list[int]] = {}
    for name in ("erin", "fred", "gina"):
        key = create_key(served.data_dir, f"eraser-{name}", name, ALL_SCOPES)
        with MemoryClient(name, endpoint=served.gateway, token=key.token) as client:
            client.wait({name: end}, 20.0)
            sessions = ("s-erin", "s-fred", "s-both")
            found[name] = [client.erasure.erase(session_id=one, dry_run=True).events for one in sessions]
    assert found == {"erin": [3, 0, 1], "fred": [1, 1, 1], "gina": [0, 0, 0]}


@pytest.mark.parametrize("of_all", [False, True])
def test_only_the_daemon_may_send_the_steps_of_an_erasure(served: Served, of_all: bool) -> None:
    key = create_key(served.data_dir, f"steps-{of_all}", None if of_all else "dora", ALL_SCOPES)
    with MemoryClient("dora", endpoint=served.gateway, token=key.token) as client:
        kept = client.remember("the proxy of dora restarts at noon")
        socket = RequestSocket(served.gateway)
        for method in sorted(INNER_METHODS):
            params = {"erase_begin": {"selection": {"ids": [kept.id]}}}.get(
                method, {"started_at": NOW, "record_ids": [kept.id]}
            )
            request = Request(
                method=method,
                user_id="dora",
                params=msgspec.Raw(msgspec.msgpack.encode(params)),
                token=key.token,
                version=2,
                deadline_ms=10_000.0,
            )
            fault = msgspec.msgpack.decode(socket.request(encode_fields(request), 30.0)[0])["fault"]
            assert fault["code"] == ("unknown_method" if of_all else "user_not_allowed"), method
        socket.close()
        assert [record.id for record in client.get([kept.id])] == [kept.id]
        assert read_intent(user_folder(served.data_dir, "dora")) is None


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_allows_exactly_its_scopes(scope: Scope) -> None:
    """The table contains the scope that each verb needs; a verb missing from the table needs `admin`."""
    own, everybody = (Principal("k", user, frozenset({scope})) for user in ("alice", None))
    for method in (*METHODS, "a_verb_of_tomorrow"):
        asked = Request(method=method, user_id="alice", params=msgspec.Raw(encode_fields({"through": {"alice": 1}})))
        for principal in (own, everybody):
            is_daemons = method not in USER_METHODS | {"erase", "wait"}
            if scope_of(method) != scope:
                with pytest.raises(ScopeMissingError):
                    permitted(asked, principal)
            elif is_daemons and principal is own:
                with pytest.raises(UserNotAllowedError):
                    permitted(asked, principal)
            else:
                assert permitted(asked, principal).user_id == "alice"


def test_reads_need_recall_and_writes_need_publish() -> None:
    needed = {scope: {method for method in USER_METHODS if scope_of(method) == scope} for scope in Scope}
    assert needed[Scope.RECALL] == {
        "recall",
        "get",
        "list",
        "sessions",
        "map",
        "stats",
        "run_get",
        "run_list",
        "run_similar",
        "sona_status",
        "published",
        "offered",
        "search_shared",
        "shared_item",
        "shared_attachment",
        "own_name",
    }
    assert needed[Scope.SHARE] == {"publish_preview", "publish_confirm", "offer", "unpublish", "rate", "shared_name"}
    assert needed[Scope.PUBLISH] == {"remember", "feedback", "run_begin", "run_step", "run_end"}
    assert {"forget", "forget_session", "sona_export"} <= needed[Scope.ADMIN]
