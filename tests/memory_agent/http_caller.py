"""HTTP clients: one has the methods of the daemon's clients, and one sends the bytes of a single request."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from memory_agent.client.methods import MemoryMethods
from memory_agent.doors.http.problems import Problem
from memory_agent.errors import ERRORS, MemoryAgentError
from memory_agent.verbs.table import BY_METHOD

JSON = "application/json"


class Answer(NamedTuple):
    """A response."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """The problem's code, or "" for a result."""
        return json.loads(self.body).get("code", "") if self.status >= 400 else ""

    def json(self) -> Any:
        return json.loads(self.body)


class HttpCaller:
    """Sends requests on one connection, which is reopened if the server closes it."""

    def __init__(self, url: str, token: str = "") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._token = token

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send one request with the token; `headers` extend or override the default headers."""
        own = {"Content-Type": JSON} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, own | named)
        answer = self._connection.getresponse()
        return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})

    def post(self, verb: str, fields: object = None, **headers: str) -> Answer:
        """Send the request for a verb."""
        return self.send("POST", f"/v1/{verb}", b"" if fields is None else msgspec.json.encode(fields), **headers)

    def close(self) -> None:
        self._connection.close()


class StreamEvent(NamedTuple):
    """An event of a stream; `name` is "" for a heartbeat and for the first frame."""

    name: str
    id: int
    data: Any


class Listener:
    """Reads one event stream. Iteration blocks until the next frame, and stops when the stream ends."""

    def __init__(self, url: str, token: str, path: str, after: int | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} | ({} if after is None else {"Last-Event-ID": str(after)})
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.problem: dict[str, Any] = {}
        if self.status == 200:
            assert next(self).name == ""  # the first frame contains the id after which the stream continues
        else:
            self.problem = json.loads(self._answer.read())
            self.close()

    def next_event(self) -> StreamEvent:
        """Wait for the next event that has a name, and return it."""
        return next(frame for frame in self if frame.name)

    def close(self) -> None:
        self._connection.close()
        self._answer.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            if line == "\n":
                return StreamEvent(fields.get("event", ""), int(fields["id"]), json.loads(fields.get("data", "null")))
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpMethods(MemoryMethods):
    """A user's memory over HTTP, with the methods of every client."""

    def __init__(self, caller: HttpCaller, user_id: str) -> None:
        super().__init__(self._call)
        self._caller = caller
        self._user_id = user_id

    def _call(self, method: str, /, **arguments: Any) -> Any:
        call = BY_METHOD[method].call(arguments)
        given = {
            one.name: getattr(call.params, one.name) for one in msgspec.structs.fields(call.params) if one.required
        }
        fields = given | {
            name: value
            for name, value in msgspec.structs.asdict(call.params).items()
            if name not in call.params.implied and value is not None
        }
        if not getattr(call.params, "usual_deadline", False):
            fields["deadline_ms"] = call.patience_ms
        answer = self._caller.post(call.verb.name, fields | {"user_id": self._user_id})
        if answer.status == 200:
            return msgspec.json.decode(answer.body, type=call.verb.result)
        problem = msgspec.json.decode(answer.body, type=Problem)
        assert problem.status == answer.status
        raise ERRORS.get(problem.code, MemoryAgentError)(*problem.args)
