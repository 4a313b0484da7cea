"""Follow the blocks that the daemon publishes for one user, and changes to shared items.

The relay's live feed announces new entries, which are then read from the journal. A subscriber that pauses therefore
misses only entries that were deleted in the meantime. Only entries published with the data folder's own key are
accepted, since other entries could be forged.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, NamedTuple, Self, TypeVar

from memory_agent.client.address import Address
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.triggers.block import Block
from relay import (
    SYSTEM_USER,
    AsyncSubscriber,
    Batch,
    Endpoints,
    Identity,
    JournalEntry,
    RelayUnavailableError,
    Subscriber,
    relay_endpoints,
)

_AT_ONCE = 200
_WAIT_S = 5.0
_UNKNOWN_OWNER_S = 0.2
_PAUSE_S = 0.2


T = TypeVar("T")
Take = Callable[[JournalEntry], T | None]


class Feed(NamedTuple):
    """A relay's endpoints, and the credentials to present (None: the data folder's token)."""

    endpoints: Endpoints
    identity: Identity | None

    @classmethod
    def of(cls, address: Address, relay: Endpoints | None) -> Self:
        """Return the feed of the relay at `relay` (default: the relay of the data folder in `address`).

        Raises `InvalidInputError` if `address` is not the data folder's endpoint and `relay` is None.
        """
        if relay is None and address.endpoint != address.layout.gateway:
            raise InvalidInputError(
                "relay", "is required, because the daemon does not listen at the data folder's endpoint"
            )
        shown = address.identity
        if address.named_token is not None:
            shown = shown._replace(token=address.named_token)
        return cls(relay or relay_endpoints(address.layout.data_dir), shown if shown != Identity() else None)


async def _nobody() -> None:
    return None


class Following(Generic[T]):
    """One user's decoded entries as they arrive. Use in one thread.

    Iteration never ends, and continues after the daemon or the relay restarts. It raises `UnauthorizedError`,
    `ScopeMissingError` or `UserNotAllowedError` if the key is refused.
    """

    def __init__(
        self,
        feed: Feed,
        user_id: str,
        take: Take[T],
        owner: Callable[[], str | None] = lambda: None,
        after: int | None = None,
    ) -> None:
        """Follow the entries after the journal number `after`, or after the journal's current end.

        For the user `system`, `owner` returns the user whose entries are followed, or None while that user is unknown.
        Raises `UnavailableError`.
        """
        self._reading = _Reading(user_id, take)
        self._owner = owner
        self._subscriber = Subscriber(*feed.endpoints, identity=feed.identity)
        try:
            self._reading.begin(self._subscriber.fetch(0, 0, user_id=user_id), after)
        except RelayUnavailableError as error:
            self.close()
            raise UnavailableError(f"relay: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def seq(self) -> int:
        """The journal number of the last returned entry; initially, the number after which following started."""
        return self._reading.returned_seq

    def wait(self, timeout_s: float) -> T | None:
        """Return the next entry, or None after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while not self._reading.ready:
            try:
                is_over = self._look(end_s)
            except (RelayUnavailableError, UnavailableError):
                is_over = _rest_s(end_s, _PAUSE_S) <= 0
                time.sleep(max(0.0, _rest_s(end_s, _PAUSE_S)))
            if is_over and not self._reading.ready:
                return None
        return self._reading.take_next()

    def close(self) -> None:
        self._subscriber.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        found = None
        while found is None:
            found = self.wait(_WAIT_S)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, end_s: float) -> bool:
        reading = self._reading
        if reading.user_id is None:
            reading.user_id = self._owner()
        if reading.user_id is None:
            time.sleep(max(0.0, _rest_s(end_s, _UNKNOWN_OWNER_S)))
        elif not reading.advance(self._subscriber.fetch(reading.seq, _AT_ONCE, user_id=reading.user_id)):
            self._subscriber.wait(max(0.0, _rest_s(end_s, _WAIT_S)))
        return _rest_s(end_s, 1.0) <= 0


class AsyncFollowing(Generic[T]):
    """`Following` for asyncio. Use in one task."""

    def __init__(
        self,
        feed: Feed,
        user_id: str,
        take: Take[T],
        owner: Callable[[], Awaitable[str | None]] = _nobody,
        after: int | None = None,
    ) -> None:
        self._reading = _Reading(user_id, take)
        self._owner = owner
        self._after = after
        self._subscriber = AsyncSubscriber(*feed.endpoints, identity=feed.identity)

    async def begin(self) -> Self:
        """Start following now instead of at the first `wait`. Raises `UnavailableError`."""
        try:
            last = await self._subscriber.fetch(0, 0, user_id=self._reading.key_user_id)
            self._reading.begin(last, self._after)
        except RelayUnavailableError as error:
            raise UnavailableError(f"relay: {error}") from error
        return self

    @property
    def seq(self) -> int:
        return self._reading.returned_seq

    async def wait(self, timeout_s: float) -> T | None:
        if not self._reading.has_begun:
            await self.begin()
        end_s = time.monotonic() + timeout_s
        while not self._reading.ready:
            try:
                is_over = await self._look(end_s)
            except (RelayUnavailableError, UnavailableError):
                is_over = _rest_s(end_s, _PAUSE_S) <= 0
                await asyncio.sleep(max(0.0, _rest_s(end_s, _PAUSE_S)))
            if is_over and not self._reading.ready:
                return None
        return self._reading.take_next()

    async def close(self) -> None:
        await self._subscriber.close()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        found = None
        while found is None:
            found = await self.wait(_WAIT_S)
        return found

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _look(self, end_s: float) -> bool:
        reading = self._reading
        if reading.user_id is None:
            reading.user_id = await self._owner()
        if reading.user_id is None:
            await asyncio.sleep(max(0.0, _rest_s(end_s, _UNKNOWN_OWNER_S)))
        elif not reading.advance(await self._subscriber.fetch(reading.seq, _AT_ONCE, user_id=reading.user_id)):
            await self._subscriber.wait(max(0.0, _rest_s(end_s, _WAIT_S)))
        return _rest_s(end_s, 1.0) <= 0


class Blocks(Following[Block]):
    """The blocks that the daemon publishes for one user from now on."""


class AsyncBlocks(AsyncFollowing[Block]):
    """`Blocks` for asyncio."""


class _Reading(Generic[T]):
    """The position in the journal, and the decoded entries that have not been returned yet."""

    def __init__(self, user_id: str, take: Take[T]) -> None:
        self.key_user_id = user_id
        self.user_id = None if user_id == SYSTEM_USER else user_id
        self.seq = self.returned_seq = 0
        self.has_begun = False
        self.ready: deque[tuple[int, T]] = deque()
        self._take = take

    def begin(self, batch: Batch, after: int | None) -> None:
        """Start after the journal number `after`, or after the journal's last entry."""
        self.seq = batch.last_seq if after is None else min(after, batch.last_seq)
        self.returned_seq, self.has_begun = self.seq, True

    def advance(self, batch: Batch) -> bool:
        """Decode the entries of a batch; return whether more entries may be available now."""
        self.ready.extend((entry.seq, found) for entry in batch.entries if (found := self._take(entry)) is not None)
        # In an empty batch, the entries up to `last_seq` belong to other users. A restored journal may end before the
        # last entry that was read.
        self.seq = batch.entries[-1].seq if batch.entries else batch.last_seq
        return bool(batch.entries) or batch.has_more

    def take_next(self) -> T:
        self.returned_seq, found = self.ready.popleft()
        return found


def _rest_s(end_s: float, most_s: float) -> float:
    return min(end_s - time.monotonic(), most_s)
