"""Users that send every kind of request. Each user has its own key and private data.

`OPERATIONS` contains every verb of the daemon and every request of the relay; `test_user_isolation` fails if any is
missing.
"""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from http_caller import HttpCaller

from memory_agent.verbs.protocol import Request, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import Erasable, Identity, Publisher, RelayError, Subscriber, wire
from relay.net import RequestSocket

NOW = "2026-11-21T09:00:00Z"
USERS = ("alice", "bob", "carol")
SHARED = "the deploy hangs until somebody restarts the proxy"  # in every user's memories and queries
_numbers = itertools.count(1)


@dataclass(repr=False)
class User:
    """A user with its own key and the data that only this user may see: ids, and the words of the user's texts.

    `conductor` publishes for every user, with a key for all users.
    """

    name: str
    identity: Identity
    publisher: Publisher
    conductor: Publisher
    socket: RequestSocket
    relay: Subscriber
    private: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    """Other users' ids that this user has sent, and may receive back, for example as the id of this user's own run."""
    runs: int = 0
    learnt: bytes = b""
    """The exported state of the user's learner."""

    def ask(self, method: str, params: dict[str, Any], named: str | None = None) -> bytes:
        """Send a request as bytes, bypassing the client's checks; return the reply's bytes."""
        request = Request(
            method=method,
            user_id=named or "",
            params=msgspec.Raw(msgspec.msgpack.encode(params)),
            token=self.identity.token,
            version=3,
            deadline_ms=10_000.0,
        )
        return self.socket.request(encode_fields(request), 30.0)[0]

    def close(self) -> None:
        self.publisher.close()
        self.relay.close()
        self.socket.close()

    def ask_relay(self, request: wire.Request) -> bytes:
        """Send a request to the relay; return its result, or its error, as bytes."""
        try:
            return msgspec.msgpack.encode({"result": self.relay._request(request, Any)})
        except RelayError as error:
            return msgspec.msgpack.encode({"fault": {"code": error.code, "message": str(error)}})

    def word(self) -> str:
        """Return a new word that only this user has."""
        word = f"q{self.name}x{next(_numbers)}z"
        self.private.add(word)
        return word

    def keep(self, id_: object) -> None:
        if isinstance(id_, str) and id_ not in self.said:
            self.private.add(id_)
            self.ids.append(id_)

    def await_events(self, publisher: Publisher, *others: str) -> bytes:
        """Wait until the published events are ingested; return the publisher's report."""
        report = publisher.flush()
        assert not report.pending
        for seq in report.acked_through.values():
            self.ask("wait", {"through": dict.fromkeys((self.name, *others), seq)})
        return repr([report.acked_through, [one.code for one in report.rejections]]).encode()


@dataclass(repr=False)
class HttpUser(User):
    """A user that sends requests over HTTP."""

    http: HttpCaller = field(kw_only=True)

    def ask(self, method: str, params: dict[str, Any], named: str | None = None) -> bytes:
        answer = self.http.post(method, params | ({} if named is None else {"user_id": named}))
        found = answer.json()
        if answer.status != 200:
            fault = {"code": found["code"], "args": found["args"], "message": found["detail"]}
            return msgspec.msgpack.encode({"fault": fault})
        is_bytes = BY_NAME[method].result is bytes  # base64 would hide the words in the result
        return msgspec.msgpack.encode({"result": b64decode(found) if is_bytes else found})

    def close(self) -> None:
        super().close()
        self.http.close()


class Asked(NamedTuple):
    """The arguments of an operation: a user id, another id, and that id's owner."""

    named: str | None
    id: str
    other: User


class Operation(NamedTuple):
    """A user's action, with the daemon's `verb` or the relay's `op`. An action with several requests has neither."""

    name: str
    do: Callable[[User, Asked], bytes]
    verb: str = ""
    op: str = ""


def remember(user: User, asked: Asked) -> bytes:
    text = f"{SHARED} {user.word()}"
    return user.ask("remember", {"text": text, "session_id": f"s-{user.name}", "tags": [user.word()]}, asked.named)


def publish(user: User, asked: Asked) -> bytes:
    """Publish events of the user's own run, and guess the id of another user's next run."""
    for run_id in (f"run-{user.name}-{user.word()}", next_run(asked.other)):
        payload = {"text": f"{SHARED} {user.word()}", "run_id": run_id, "objective": f"{SHARED} {user.word()}"}
        event = {"event_type": "chat.user_msg", "session_id": "shared-session", "payload": payload}
        user.publisher.publish({**event, "user_id": asked.named} if asked.named else event)
    return user.await_events(user.publisher)


def next_run(user: User) -> str:
    return f"run-{user.runs}-of-{user.name}"


def conduct(user: User, _: Asked) -> bytes:
    """Let the conductor publish for the user, also as `system`, in a run with a guessable id."""
    run_id = next_run(user)
    user.runs += 1
    for user_id, fields in (
        ("system", {}),
        (user.name, {}),
        ("system", {}),
        ("system", {"on_behalf_of": user.name}),
    ):
        payload = {"run_id": run_id, "text": f"{SHARED} {user.word()}", "message": f"{SHARED} {user.word()}"}
        event_type = "worker.report.received" if user_id == "system" else "chat.user_msg"
        user.conductor.publish({"event_type": event_type, "user_id": user_id, "payload": payload, **fields})
    return user.await_events(user.conductor)


def of_daemon(verb: str, params: Callable[[User, str], dict[str, Any]]) -> Operation:
    return Operation(verb, lambda user, asked: user.ask(verb, params(user, asked.id), asked.named), verb=verb)


def of_relay(request: type[wire.Request], fields: Callable[[User, Asked], dict[str, Any]]) -> Operation:
    op = str(request.__struct_config__.tag)
    return Operation(f"relay {op}", lambda user, asked: user.ask_relay(request(**fields(user, asked))), op=op)


def own_bytes(user: User) -> bytes:
    return msgspec.json.encode({"event_type": "a.b", "payload": {"text": user.word()}})


def export_learnt(user: User, asked: Asked) -> bytes:
    answer = user.ask("sona_export", {}, asked.named)
    user.learnt = msgspec.msgpack.decode(answer).get("result") or user.learnt
    return answer


def share(user: User, asked: Asked) -> bytes:
    """Publish an item that all users may read."""
    preview = msgspec.msgpack.decode(user.ask("publish_preview", {"title": "Deploys", "summary": SHARED}))["result"]
    return user.ask("publish_confirm", {"preview": preview, "attachment": None}, asked.named)


def offer(user: User, asked: Asked) -> bytes:
    """Offer words that no other user has."""
    drafted = user.ask("publish_preview", {"title": "Deploys", "summary": user.word(), "offer": True})
    return user.ask("offer", {"preview": msgspec.msgpack.decode(drafted)["result"]}, asked.named)


def shared_by(user: User) -> str:
    """Return the id of an item that a user shares."""
    return str(msgspec.msgpack.decode(share(user, Asked(None, "", user)))["result"]["id"])


def fetch_of_other(user: User, asked: Asked) -> bytes:
    """Publish a file as another user, and fetch it."""
    data = {"attachment": b"rules"} if not isinstance(asked.other, HttpUser) else {"attachment": "cnVsZXM="}
    drafted = asked.other.ask("publish_preview", {"title": "Rules", "summary": SHARED, **data})
    item = asked.other.ask("publish_confirm", {"preview": msgspec.msgpack.decode(drafted)["result"], **data})
    return user.ask("shared_attachment", {"item_id": msgspec.msgpack.decode(item)["result"]["id"]}, asked.named)


def show_of_other(user: User, asked: Asked) -> bytes:
    """Request an item that another user shares."""
    return user.ask("shared_item", {"item_id": shared_by(asked.other)}, asked.named)


def rate_of_other(user: User, asked: Asked) -> bytes:
    """Rate another user's item, or the user's own item if `asked` names it."""
    answer = user.ask("rate", {"item_id": shared_by(asked.other), "rating": 0.5}, asked.named)
    is_own = asked.other is user and asked.named in (None, user.name)
    return b"\x80" if is_own else answer


NOTHING: dict[str, Any] = {}
OPERATIONS = (
    Operation("remember", remember, verb="remember"),
    Operation("publish", publish, op="publish"),
    Operation("conduct", conduct),
    of_daemon("recall", lambda _, id_: {"query": SHARED, "top_k": 50}),
    of_daemon("recall", lambda _, id_: {"query": SHARED, "filter": {"session_id": "shared-session"}, "top_k": 50}),
    of_daemon("recall", lambda _, id_: {"query": SHARED, "by_run": id_, "context_tokens": 500, "top_k": 50}),
    of_daemon("remember", lambda user, id_: {"text": f"{SHARED} {user.word()}", "id": id_, "run_id": id_}),
    of_daemon("list", lambda *_: {"limit": 100}),
    of_daemon("list", lambda user, id_: {"filter": {"run_id": id_}, "order": "updated"}),
    of_daemon("sessions", lambda *_: NOTHING),
    of_daemon("map", lambda *_: {"limit": 100}),
    of_daemon("get", lambda _, id_: {"ids": [id_]}),
    of_daemon("forget", lambda _, id_: {"ids": [id_]}),
    of_daemon("forget_session", lambda *_: {"session_id": "shared-session"}),
    of_daemon("erase", lambda _, id_: {"selection": {"ids": [id_]}, "dry_run": True}),
    of_daemon("erase", lambda _, id_: {"selection": {"ids": [id_]}}),
    of_daemon("erase", lambda *_: {"selection": {"session_id": "shared-session"}}),
    of_daemon("erase_begin", lambda _, id_: {"selection": {"ids": [id_]}}),
    of_daemon("erase_finish", lambda _, id_: {"started_at": NOW, "record_ids": [id_]}),
    of_daemon("age", lambda *_: NOTHING),
    of_daemon("react", lambda *_: {"event": b"", "trigger": "message"}),
    of_daemon("feedback", lambda user, id_: {"recall_id": id_, "used": [id_], "quality": 1.0, "event_id": user.word()}),
    of_daemon("stats", lambda *_: NOTHING),
    of_daemon(
        "run_begin",
        lambda user, id_: {"objective": f"{SHARED} {user.word()}", "event_id": user.word(), "recall_ids": [id_]},
    ),
    of_daemon(
        "run_begin",
        lambda user, id_: {"objective": f"{SHARED} {user.word()}", "event_id": user.word(), "run_id": id_},
    ),
    of_daemon(
        "run_step", lambda user, id_: {"run_id": id_, "text": user.word(), "event_id": user.word(), "memory_ids": [id_]}
    ),
    of_daemon(
        "run_end",
        lambda user, id_: {
            "run_id": id_,
            "summary": user.word(),
            "event_id": user.word(),
            "memory_ids": [id_],
            "outcome": "completed",
        },
    ),
    of_daemon("run_get", lambda _, id_: {"run_id": id_}),
    of_daemon("run_list", lambda *_: NOTHING),
    of_daemon("run_similar", lambda *_: {"query": SHARED, "top_k": 50, "min_relevance": 0.0}),
    of_daemon("recall", lambda _, id_: {"query": SHARED, "by_run": id_, "context_tokens": 500, "runs": 50}),
    of_daemon("sona_status", lambda *_: NOTHING),
    Operation("sona_export", export_learnt, verb="sona_export"),
    of_daemon("sona_import", lambda user, _: {"data": user.learnt}),
    of_daemon("sona_reset", lambda *_: NOTHING),
    of_daemon("recall", lambda *_: {"query": SHARED, "tiers": ["local", "global"], "context_tokens": 500, "top_k": 50}),
    of_daemon("publish_preview", lambda user, _: {"title": user.word(), "summary": f"{SHARED} {user.word()}"}),
    of_daemon("publish_preview", lambda _, id_: {"memory_id": id_}),
    Operation("publish_confirm", share, verb="publish_confirm"),
    Operation("offer", offer, verb="offer"),
    of_daemon("offered", lambda *_: NOTHING),
    of_daemon("unpublish", lambda user, _: {"item_id": shared_by(user)}),
    Operation("rate", rate_of_other, verb="rate"),
    Operation("shared_attachment", fetch_of_other, verb="shared_attachment"),
    Operation("shared_item", show_of_other, verb="shared_item"),
    of_daemon("published", lambda *_: NOTHING),
    of_daemon("search_shared", lambda *_: {"query": SHARED, "top_k": 50}),
    of_daemon("own_name", lambda *_: NOTHING),
    of_daemon("shared_name", lambda user, _: {"name": f"The platform team, {user.name}"}),
    of_daemon("ask_shared", lambda *_: {"caller": {"user_id": "bob"}, "ask": {"type": "ListOwn"}}),
    of_daemon("rebuild", lambda *_: NOTHING),
    of_daemon("compact", lambda *_: NOTHING),
    of_daemon("quarantine_list", lambda *_: {"after": 0, "limit": 100}),
    of_daemon("quarantine_retry", lambda *_: {"ids": []}),
    of_daemon("quarantine_drop", lambda *_: {"ids": []}),
    of_daemon("address", lambda *_: NOTHING),
    of_daemon("join", lambda *_: {"name": "w", "address": "10.0.0.1", "cores": 1, "version": "1"}),
    of_daemon("leave", lambda *_: {"name": "w"}),
    of_daemon("owner", lambda user, _: {"session_id": f"s-{user.name}"}),
    of_daemon("status", lambda *_: NOTHING),
    of_daemon("metrics", lambda *_: NOTHING),
    of_daemon("wait", lambda *_: {"through": {"alice": 1, "bob": 1}}),
    of_daemon("no_such_verb", lambda *_: NOTHING),
    of_relay(
        wire.Fetch, lambda user, asked: {"after_seq": 0, "limit": 500, "max_bytes": 1 << 20, "user_id": asked.named}
    ),
    of_relay(wire.Cursor, lambda *_: {"consumer": "memory"}),
    of_relay(wire.Commit, lambda *_: {"consumer": "memory", "seq": 1}),
    of_relay(wire.Consumers, lambda *_: NOTHING),
    of_relay(wire.RemoveConsumer, lambda *_: {"consumer": "memory"}),
    of_relay(wire.Quarantine, lambda user, _: {"data": own_bytes(user), "code": "c", "reason": "r", "source": "s"}),
    of_relay(wire.Quarantined, lambda *_: {"after": 0, "limit": 100}),
    of_relay(wire.QuarantinedEntry, lambda *_: {"id": 1}),
    of_relay(wire.DropQuarantined, lambda *_: {"id": 1}),
    of_relay(wire.RetryQuarantined, lambda *_: {"id": 1}),
    of_relay(wire.Erase, lambda user, asked: {"wanted": Erasable(user_id=asked.other.name, everything=True)}),
    of_relay(wire.Stats, lambda *_: NOTHING),
    of_relay(wire.Ping, lambda *_: NOTHING),
)


MOST_TELLING = ("publish", "conduct", "recall")
"""Operations that are most likely to reveal a leak occur more often."""


def found_ids(answer: bytes) -> list[object]:
    """Return all ids in a result."""
    result = msgspec.msgpack.decode(answer).get("result")
    if isinstance(result, dict) and "author_id" in result:
        return []  # a shared item, which all users may see
    if isinstance(result, dict):
        memories, listed = result.get("memories"), result.get("records", [])
        nested = [memory["record"]["id"] for memory in memories] if isinstance(memories, list) else []
        nested += [record["id"] for record in listed]
        nested += result.get("ids", [])
        return [result.get("id"), result.get("recall_id"), *nested]
    return []
