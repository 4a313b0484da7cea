"""The blocks that memory publishes for one user, as clients follow them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from memory_agent.client.following import AsyncFollowing, Feed, Following
from memory_agent.triggers.block import Block, Wanted


class Blocks(Following[Block]):
    """The blocks from now on."""

    def __init__(self, feed: Feed, user_id: str, wanted: Wanted, owner: Callable[[], str | None]) -> None:
        """Follow from the journal's end. Raises `UnavailableError`, `InvalidInputError`."""
        wanted.check(user_id)
        super().__init__(feed, user_id, wanted.block_in, owner)


class AsyncBlocks(AsyncFollowing[Block]):
    """`Blocks` inside an event loop."""

    def __init__(self, feed: Feed, user_id: str, wanted: Wanted, owner: Callable[[], Awaitable[str | None]]) -> None:
        """As `Blocks`, which follows from `begin` on."""
        wanted.check(user_id)
        super().__init__(feed, user_id, wanted.block_in, owner)
