"""A client for planners that are Ray tasks, actors or drivers: it sends requests directly to the user's actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from memory_agent.client.blocking import MemoryClient
from memory_agent.client.methods import MemoryMethods
from memory_agent.daemon.ray_supervisor import ask_host, join, ray_token
from memory_agent.errors import HostDiedError, NothingSharedError, UnavailableError
from memory_agent.layout import Layout, default_data_dir
from memory_agent.verbs.protocol import HostAddress, decode_reply, encode_fields
from memory_agent.verbs.table import BY_METHOD, Call


def join_ray(data_dir: Path | str | None = None, **options: Any) -> None:
    """Join the Ray cluster of the daemon that serves `data_dir` on this machine. `options` are those of `ray.init`.

    `ray.init` itself would replace a loopback address with the machine's external address. Raises `UnavailableError` if
    the daemon does not use Ray, or if Ray was imported before this package and without token mode
    (`RAY_AUTH_MODE=token`).
    """
    layout = Layout(default_data_dir() if data_dir is None else Path(data_dir))
    with MemoryClient(data_dir=data_dir, token=layout.token()) as client:  # only the folder's owner may join
        address = client.status().endpoints.get("ray")
    if address is None:
        raise UnavailableError("this daemon runs without Ray (serve --light): use MemoryClient, or restart it with Ray")
    join(str(address), ray_token(layout.run), layout.cluster, **options)


class ActorMemoryProvider(MemoryMethods):
    """One user's memory, accessed through the Ray actor that hosts it. The daemon's own verbs are sent to the daemon.

    Methods raise the same errors as `MemoryClient`, and `HostDiedError` if the host died. A repeatable request is
    retried once.
    """

    def __init__(
        self,
        user_id: str | None = None,
        *,
        data_dir: Path | str | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        key_file: Path | str | None = None,
    ) -> None:
        """Same arguments as `MemoryClient`. The caller must have joined the daemon's Ray cluster (`join_ray`)."""
        super().__init__(self._ask_actor)
        self._client = MemoryClient(user_id, data_dir=data_dir, endpoint=endpoint, token=token, key_file=key_file)
        self._address: HostAddress | None = None
        self.user_id = self._client.user_id

    def close(self) -> None:
        """Close the connection to the daemon."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_actor(self, method: str, /, **arguments: Any) -> Any:
        call = BY_METHOD[method].call(arguments)
        if call.verb.answered_by != "memory":
            return self._client.send(call)
        try:
            reply = self._reply(call)
        except HostDiedError:
            self._address = None
            if not call.verb.is_repeatable:
                raise
            reply = self._reply(call)
        try:
            return decode_reply(reply, call.verb.result)
        except NothingSharedError:  # only the daemon creates the store of shared items
            return self._client.send(call)
        except HostDiedError:  # the user was moved off this host, so nothing was done
            self._address = None
            return decode_reply(self._reply(call), call.verb.result)

    def _reply(self, call: Call) -> bytes:
        if self._address is None:
            self._address = self._client.address()
        return ask_host(self._address, self.user_id, call.verb.name, encode_fields(call.params), call.patience_ms)
