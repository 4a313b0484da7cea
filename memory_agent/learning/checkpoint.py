"""The learner in a file beside the store: a cache, written whole or not at all, believed only when it fits.

It says of which store it is, what had been learnt when it was saved, and with which model. One that is torn, damaged,
of another version or of another moment is set aside and learnt again from the runs, with the same result. In a store
that is encrypted it is encrypted too; one that cannot be deciphered says nothing to anybody, and is not set aside.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from memory_agent.storage.codec import StoreState
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from relay.durable import write_private
from relay.errors import UndecipherableError
from sona import checkpoint
from sona.engine import Learner
from sona.errors import DamagedStateError

LEARNER_FILE = "sona.state"
_DRAFT = "sona.state.new"
_SET_ASIDE = "sona.damaged"
_PURPOSE, _ABOUT = "learner", b"sona.state"


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """What a learner was made of: a store, how often what can be learnt had changed in it, and the model."""

    lineage: str
    version: int
    mark: int
    stamp: str | None


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    moment: Moment
    state: bytes


def moment_of(store: Store) -> Moment:
    """Return what a learner that is made now is made of."""
    return moment_in(store.state)


def moment_in(state: StoreState) -> Moment:
    """Return what a learner that is made of a store in this state is made of."""
    return Moment(state.lineage, state.lessons_version, state.lessons_mark, state.stamp)


def load_learner(store: Store) -> Learner | None:
    """Return the learner that was saved, or None where there is none of this moment."""
    path = store.folder / LEARNER_FILE
    try:
        kept = _read(path, store.key)
        if kept.moment == moment_of(store):
            return checkpoint.from_bytes(kept.state)
        discard_learner(store.folder)  # what it was made of is no more, and may have been forgotten
    except OSError:
        pass
    except UndecipherableError:
        discard_learner(store.folder)
    except (msgspec.DecodeError, ValueError, RecursionError, DamagedStateError):
        with suppress(OSError):
            path.replace(store.folder / _SET_ASIDE)
    return None


def look_at_learner(folder: Path, key: UserKey | None) -> str | None:
    """Return the lineage of the store that the saved learner is of, None where none is saved. Changes nothing.

    Raises `DamagedStateError` for one that would be set aside: it does not match its checksum, is of another version,
    or cannot be read.
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
    """Remove what was saved, the damaged one too: vectors of what was asked and used lie in it."""
    for name in (LEARNER_FILE, _DRAFT, _SET_ASIDE):
        with suppress(OSError):
            (folder / name).unlink()


def save_learner(store: Store, learner: Learner, moment: Moment) -> int:
    """Save a consolidated learner, atomically; return how many bytes it takes. Raises `OSError`, `StoreError`."""
    data = msgspec.msgpack.encode(_Kept(moment, checkpoint.to_bytes(learner)))
    if store.key is not None:
        data = store.key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_private(store.folder / LEARNER_FILE, data)
    return len(data)


def saved_bytes(folder: Path) -> int:
    """Return how many bytes the saved learner takes; 0 without one."""
    with suppress(OSError):
        return (folder / LEARNER_FILE).stat().st_size
    return 0
