"""The methods of the asynchronous client, derived from the methods of the blocking clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import cleandoc
from typing import Any, Concatenate, ParamSpec, TypeVar

from memory_agent.client.methods import ErasureMethods, MemoryMethods
from memory_agent.provider import (
    CareProvider,
    ErasureProvider,
    MemoryProvider,
    RunsProvider,
    SharedProvider,
    SonaProvider,
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Ask = Callable[..., Awaitable[Any]]
"""Calls a verb by the name of its method, with keyword arguments."""

_EXAMPLE = "\n\n>>> "


def awaited(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """Return the asynchronous form of `method`, for a client whose `_ask` returns an awaitable.

    Its documentation omits the example, which uses a blocking client.
    """

    @wraps(method)
    async def call(self: Any, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        answer: Any = method(self, *args, **named)
        result: Result = await answer
        return result

    call.__doc__ = cleandoc(method.__doc__ or "").partition(_EXAMPLE)[0]
    return call


class _Methods:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask


class AsyncRunsMethods(_Methods):
    """The runs of one user. Every method raises `InvalidInputError` (with the argument's name) and `StoreError`."""

    begin = awaited(RunsProvider.begin)
    step = awaited(RunsProvider.step)
    end = awaited(RunsProvider.end)
    get = awaited(RunsProvider.get)
    similar = awaited(RunsProvider.similar)
    list = awaited(RunsProvider.list)


class AsyncSonaMethods(_Methods):
    """The learner of one user."""

    status = awaited(SonaProvider.status)
    reset = awaited(SonaProvider.reset)
    export = awaited(SonaProvider.export)
    load = awaited(SonaProvider.load)


class AsyncSharedMethods(_Methods):
    """The shared items of this user and of others."""

    preview = awaited(SharedProvider.preview)
    confirm = awaited(SharedProvider.confirm)
    offer = awaited(SharedProvider.offer)
    offered = awaited(SharedProvider.offered)
    unpublish = awaited(SharedProvider.unpublish)
    rate = awaited(SharedProvider.rate)
    published = awaited(SharedProvider.published)
    search = awaited(SharedProvider.search)
    item = awaited(SharedProvider.item)
    attachment = awaited(SharedProvider.attachment)
    name = awaited(SharedProvider.name)
    set_name = awaited(SharedProvider.set_name)


class AsyncCareMethods(_Methods):
    """Maintenance of one user's files while they are in use."""

    rebuild = awaited(CareProvider.rebuild)
    compact = awaited(CareProvider.compact)


class AsyncErasureMethods(_Methods):
    """Erases memories completely from one user's files. Only a daemon can erase the whole user."""

    erase = awaited(ErasureProvider.erase)
    erase_expired = awaited(ErasureProvider.erase_expired)
    erase_user = awaited(ErasureMethods.erase_user)


class AsyncMemoryMethods(_Methods):
    """The methods of `Memory`, and those that only a daemon provides."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask)
        self.runs = AsyncRunsMethods(ask)
        self.sona = AsyncSonaMethods(ask)
        self.shared = AsyncSharedMethods(ask)
        self.care = AsyncCareMethods(ask)
        self.erasure = AsyncErasureMethods(ask)

    recall = awaited(MemoryProvider.recall)
    remember = awaited(MemoryProvider.remember)
    get = awaited(MemoryProvider.get)
    forget = awaited(MemoryProvider.forget)
    forget_session = awaited(MemoryProvider.forget_session)
    feedback = awaited(MemoryProvider.feedback)
    stats = awaited(MemoryProvider.stats)
    sessions = awaited(MemoryProvider.sessions)
    map = awaited(MemoryProvider.map)
    status = awaited(MemoryMethods.status)
    metrics = awaited(MemoryMethods.metrics)
    address = awaited(MemoryMethods.address)
    wait = awaited(MemoryMethods.wait)
    owner = awaited(MemoryMethods.owner)
    quarantined = awaited(MemoryMethods.quarantined)
    retry_quarantined = awaited(MemoryMethods.retry_quarantined)
    drop_quarantined = awaited(MemoryMethods.drop_quarantined)
    list = awaited(MemoryProvider.list)
