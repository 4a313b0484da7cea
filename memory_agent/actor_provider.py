"""A user's memory from inside Ray, with no gateway in between: for planners that are Ray tasks, actors or drivers.

It lives above both the client, which wakes the user and tells where it is, and the actors, which it then asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from memory_agent.api import RecallOptions
from memory_agent.calls import Call, recall_call
from memory_agent.client import MemoryClient
from memory_agent.client_runs import ClientRuns, feedback_call
from memory_agent.daemon.actors import ask_host, join, ray_token
from memory_agent.errors import HostDiedError
from memory_agent.layout import Layout, default_data_dir
from memory_agent.protocol import DEFAULT_USER, HostAddress, decode_reply, encode_fields
from memory_agent.records import MemoryFilter, Mode, RecallResult
from memory_agent.trajectory import FeedbackReport

T = TypeVar("T")


def join_ray(data_dir: Path | str | None = None, **options: Any) -> None:
    """Join the Ray of the daemon that serves `data_dir` on this machine, as `ray.init` does, which takes `options`.

    `ray.init` itself does not reach it: it looks for loopback addresses on the outer one. Raises `UnavailableError`,
    also where Ray was imported before this package without its token mode (`RAY_AUTH_MODE=token`).
    """
    layout = Layout(default_data_dir() if data_dir is None else Path(data_dir))
    with MemoryClient(data_dir=data_dir, token=layout.token()) as client:  # whoever may join is the folder's owner
        address = client.status().endpoints["ray"]
    join(str(address), ray_token(layout.run), **options)


class ActorMemoryProvider:
    """Answers recalls for one user by asking the Ray actor that hosts it, and tells it of the planner's runs."""

    def __init__(
        self,
        user_id: str = DEFAULT_USER,
        *,
        data_dir: Path | str | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        key_file: Path | str | None = None,
    ) -> None:
        """The arguments are those of `MemoryClient`; the caller has joined the daemon's Ray (`join_ray`)."""
        self._user_id = user_id
        self._client = MemoryClient(user_id, data_dir=data_dir, endpoint=endpoint, token=token, key_file=key_file)
        self._address: HostAddress | None = None
        self.runs = ClientRuns(self._send)

    def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """As `MemoryProvider.recall`; raises also `HostDiedError` when the user is not found twice in a row."""
        return self._send(recall_call(query, top_k, filter, mode, deadline_ms, options))

    def feedback(
        self,
        recall_id: str,
        used: Sequence[str] = (),
        quality: float | None = None,
        comment: str | None = None,
        *,
        event_id: str | None = None,
    ) -> FeedbackReport:
        """As `MemoryClient.feedback`; raises also `HostDiedError`."""
        return self._send(feedback_call(recall_id, used, quality, comment, event_id))

    def close(self) -> None:
        """Close the connection to the daemon."""
        self._client.close()

    def _find(self) -> HostAddress:
        if self._address is None:
            self._address = self._client.address()
        return self._address

    def _send(self, call: Call[T]) -> T:
        """Ask, and once more where the user may have moved: a write carries an id by which the repeat is known."""
        try:
            return self._ask(call)
        except HostDiedError:
            self._address = None
            return self._ask(call)

    def _ask(self, call: Call[T]) -> T:
        params = encode_fields(call.params)
        return decode_reply(ask_host(self._find(), self._user_id, call.method, params, call.deadline_ms), call.result)
