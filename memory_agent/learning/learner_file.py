"""The learner in a file beside the store: a cache, replaced atomically and used only when it matches the store.

The file names its store, the state of its lessons at the time of saving, and the model. A torn, damaged or outdated
one is set aside and relearned from the runs, with the same result. In an encrypted store it is encrypted too; one
that does not decrypt is deleted instead of set aside.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from memory_agent.storage.codec import StoreState
from memory_agent.storage.environment import UserKey
from memory_agent.storage.store import Store
from relay import UndecipherableError
from relay.disk import write_private
from sona import checkpoint
from sona.errors import DamagedStateError
from sona.learner import Learner

LEARNER_FILE = "sona.state"
_DRAFT = "sona.state.new"
_SET_ASIDE = "sona.damaged"
_PURPOSE, _ABOUT = "learner", b"sona.state"


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """What a learner was trained on: the store's lineage, the version of its lessons, and the model."""

    lineage: str
    version: int
    mark: int
    stamp: str | None


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    moment: Moment
    state: bytes


def moment_of(store: Store) -> Moment:
    """Return the moment of the store as it is now."""
    return moment_in(store.state)


def moment_in(state: StoreState) -> Moment:
    """Return the moment of a store in this state."""
    return Moment(state.lineage, state.lessons_version, state.lessons_mark, state.stamp)


def load_learner(store: Store) -> Learner | None:
    """Return the saved learner, or None unless it matches the store as it is now."""
    path = store.folder / LEARNER_FILE
    try:
        kept = _read(path, store.key)
        if kept.moment == moment_of(store) and not checkpoint.is_former(kept.state):
            return checkpoint.from_bytes(kept.state)
        discard_learner(store.folder)  # outdated or of a former version, and it may hold forgotten memories
    except OSError:
        pass
    except UndecipherableError:
        discard_learner(store.folder)
    except (msgspec.DecodeError, ValueError, RecursionError, DamagedStateError):
        with suppress(OSError):
            path.replace(store.folder / _SET_ASIDE)
    return None


def look_at_learner(folder: Path, key: UserKey | None) -> str | None:
    """Return the store lineage of the saved learner, or None without one. Read-only.

    Raises `DamagedStateError` when its checksum or version does not match, or it cannot be read.
    """
    try:
        kept = _read(folder / LEARNER_FILE, key)
        checkpoint.whole_body(kept.state)
    except FileNotFoundError:
        return None
    except (OSError, UndecipherableError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedStateError(f"{LEARNER_FILE} cannot be read") from error
    return kept.moment.lineage


def _read(path: Path, key: UserKey | None) -> _Kept:
    data = path.read_bytes()
    if key is not None:
        data = key.cipher(_PURPOSE).open(data, _ABOUT)
    return msgspec.msgpack.decode(data, type=_Kept)


def discard_learner(folder: Path) -> None:
    """Delete the saved learner and the copy set aside; both hold vectors of queries and memories."""
    for name in (LEARNER_FILE, _DRAFT, _SET_ASIDE):
        with suppress(OSError):
            (folder / name).unlink()


def save_learner(store: Store, learner: Learner, moment: Moment) -> int:
    """Save a consolidated learner atomically; return its size in bytes. Raises `OSError`, `StoreError`."""
    data = msgspec.msgpack.encode(_Kept(moment, checkpoint.to_bytes(learner)))
    if store.key is not None:
        data = store.key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_private(store.folder / LEARNER_FILE, data)
    return len(data)


def saved_bytes(folder: Path) -> int:
    """Return the size of the saved learner in bytes, 0 without one."""
    with suppress(OSError):
        return (folder / LEARNER_FILE).stat().st_size
    return 0
