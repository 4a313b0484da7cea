"""Determines, from the data folder's keys, whose votes count in the figures of shared items.

A person may have keys for several users, but has only one vote. A vote counts once the voter's oldest key is old
enough. The vote of a user without a key counts immediately. The store identifies the voters by their pseudonyms.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from memory_agent.knowledge.pseudonyms import VOTERS, Authors, mark_removal, secret_in
from memory_agent.knowledge.stored_figures import VOTER, Voter
from memory_agent.settings import SharedSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import data_dir_of
from relay import KeyFileError, StoredKey, described, keys_version, read_keys
from relay.log import log

ANYBODY = b""
"""The entry that applies to all users who are not listed."""
_NAME_BYTES = 16
_voters = msgspec.msgpack.Decoder(described(dict[bytes, Voter]))


class Group(NamedTuple):
    """The users who vote together; `name` is empty for a user who votes alone. `since`: the creation time of the
    group's oldest key.
    """

    name: str
    since: datetime | None


def groups_of(keys: Iterable[StoredKey], settings: SharedSettings) -> dict[str, Group]:
    """Return the group of each user with a key. The entry "" is the group of all other users.

    Revoked keys count. If votes are counted by organisation, a user's group is the user's first organisation in
    alphabetical order. All users without an organisation form one group.

    >>> made = datetime.fromisoformat("2026-01-05T00:00:00Z")
    >>> keys = [StoredKey(id=user, created=made, scopes=(), user_id=user, person="ann") for user in ("a", "b")]
    >>> {user: group.name for user, group in groups_of(keys, SharedSettings()).items()}
    {'a': 'person:ann', 'b': 'person:ann'}
    """
    by_org = settings.one_vote_per == "organisation"
    names: dict[str, str] = {"": "org:"} if by_org else {}
    oldest: dict[str, datetime] = {}
    of_users = sorted((key for key in keys if key.user_id is not None), key=lambda key: (key.created, key.id))
    orgs: defaultdict[str, set[str]] = defaultdict(set)
    for key in of_users:
        assert key.user_id is not None
        orgs[key.user_id].update(key.orgs)
        if by_org:
            names[key.user_id] = f"org:{min(orgs[key.user_id], default='')}"
        elif key.person is not None or key.user_id not in names:
            names[key.user_id] = "" if key.person is None else f"person:{key.person}"
    for key in of_users:
        oldest.setdefault(names[key.user_id or ""] or f"user:{key.user_id}", key.created)
    return {user: Group(name, oldest.get(name or f"user:{user}")) for user, name in names.items()}


class _ReadAs(NamedTuple):
    """The version of the key file from which voters were read, and the time at which the next vote begins to count."""

    version: tuple[int, ...]
    until: datetime | None


class Voters:
    """The voters of a store's users. Omits each user who votes alone and whose vote counts. Reads are thread-safe."""

    def __init__(self, archive: Archive, authors: Authors, settings: SharedSettings) -> None:
        self._archive = archive
        self._authors = authors
        self._settings = settings
        blob = archive.store.blob(VOTERS)
        self._stored = self._by_user = _voters.decode(blob) if blob else {}
        self.changing = threading.Lock()
        """Held from `read` to `store`, which prevents an erased user from being stored again."""
        self._stored_as: _ReadAs | None = None
        self._read_as = _ReadAs((), None)

    def of(self, user: bytes) -> Voter | None:
        """Return the voter of a user, or None if the user votes alone and the vote counts."""
        return self._by_user.get(user) or self._by_user.get(ANYBODY)

    def read(self, now: datetime) -> dict[bytes, Voter] | None:
        """Return the voters according to the current keys, to be passed to `adopt`. Return None if nothing has changed
        or the key file is unreadable.
        """
        data_dir = data_dir_of(self._archive.store.folder)
        version = () if data_dir is None else keys_version(data_dir)
        known = self._stored_as
        if known is not None and known.version == version and (known.until is None or now < known.until):
            return None
        try:
            groups = groups_of(() if data_dir is None else read_keys(data_dir), self._settings)
        except KeyFileError as error:
            log.warning("voters.not_read", code=error.code)
            return None
        age = timedelta(days=self._settings.votes_after_days)
        found, until = {}, None
        for user_id, (name, since) in groups.items():
            counts = since is None or since + age <= now
            if since is not None and not counts:
                until = min(until or since + age, since + age)
            if name or not counts:
                user = self._authors.pseudonym(user_id).encode() if user_id else ANYBODY
                found[user] = Voter(self._name(name) if name else user, counts)
        self._read_as = _ReadAs(version, until)
        return found

    def adopt(self, found: dict[bytes, Voter]) -> set[bytes]:
        """Use the voters that `read` returned; return the users whose voter differs from the stored voter."""
        self._by_user = found
        return {user for user in self._stored.keys() | found.keys() if self._stored.get(user) != found.get(user)}

    def store(self) -> None:
        self._write()
        self._stored_as = self._read_as

    def forget(self, users: Collection[bytes]) -> None:
        """Remove erased users. The next `read` returns the voters under the users' new pseudonyms."""
        with self.changing:
            self._stored_as = None
            self._by_user = {user: voter for user, voter in self._by_user.items() if user not in users}
            self._write()

    def _write(self) -> None:
        if self._by_user != self._stored:
            with self._archive.batch() as batch:
                batch.set_blob(VOTERS, msgspec.msgpack.encode(self._by_user) if self._by_user else None)
                if self._stored.keys() - self._by_user.keys():
                    mark_removal(batch)
            self._stored = self._by_user

    def _name(self, group: str) -> bytes:
        """Return the name of a voter, which reveals nothing without the store's secret."""
        with self._archive.store.snapshot() as snapshot:
            digest = blake2b(group.encode(), key=secret_in(snapshot), digest_size=_NAME_BYTES, person=b"voter")
        return VOTER + digest.hexdigest().encode()
