"""Stores figures: one blob per item, and one for each user of an item.

The contributions of a user who votes alone are stored as the user's `Part`. The contributions of other users are stored
as `Recorded`, and upkeep merges them into the `Part` of their `Voter`. An item's place is the digest in the names of
the item's blobs. The first open splits the blobs of earlier versions, each of which contains all figures of an item.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from memory_agent.knowledge.figures import (
    KEY_BYTES,
    Contribution,
    Figures,
    Part,
    Rules,
    Standing,
    merged,
)
from memory_agent.knowledge.pseudonyms import (
    DUE,
    FIGURES,
    PARTS,
    PLACE_CHARS,
    RECORDED,
    part_of,
    place_of,
    secret_in,
)
from memory_agent.records.shared_requests import ReportedItem
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from relay import described

VOTER = b"voter-"
"""Prefix of the name of a voter who is not a user."""
_MANY = 50

Standings = dict[str, Standing]
"""The standing of each version, by version name."""

_standings = msgspec.msgpack.Decoder(described(Standings))
_ids = msgspec.msgpack.Decoder(list[str])
_user_parts = msgspec.msgpack.Decoder(described(tuple[bytes, dict[str, Part]]))


class Voter(NamedTuple):
    """The voter for a user: either the user, or one voter for all users of a person or organisation. `counts`: whether
    the voter's oldest key is old enough.
    """

    name: bytes
    counts: bool


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """A user's contributions to the versions of an item, and the voter into whose part they are merged."""

    user: bytes
    item_id: str
    voter: Voter
    versions: dict[str, Contribution]


_recorded = msgspec.msgpack.Decoder(described(Recorded))


class StoredParts:
    """The stored parts of one version's users. Satisfies `Parts`."""

    def __init__(self, batch: Batch, place: str, version: str) -> None:
        self._batch = batch
        self._place = place
        self._version = version

    def get(self, user: bytes, /) -> Part | None:
        return _parts_of_user(self._batch, self._place, user).get(self._version)

    def __setitem__(self, user: bytes, part: Part, /) -> None:
        self._set(user, _parts_of_user(self._batch, self._place, user) | {self._version: part})

    def pop(self, user: bytes, default: None, /) -> Part | None:
        parts = _parts_of_user(self._batch, self._place, user)
        part = parts.pop(self._version, default)
        self._set(user, parts)
        return part

    def _set(self, user: bytes, parts: dict[str, Part]) -> None:
        value = msgspec.msgpack.encode((user, parts)) if parts else None
        self._batch.set_blob(part_of(secret_in(self._batch), self._place, user), value)


def standings_at(snapshot: Snapshot, place: str) -> Standings:
    blob = snapshot.blob(FIGURES + place)
    return _standings.decode(blob) if blob else {}


def write_standings(batch: Batch, place: str, standings: Standings) -> None:
    batch.set_blob(FIGURES + place, msgspec.msgpack.encode(standings))


def due_in(snapshot: Snapshot) -> list[str]:
    blob = snapshot.blob(DUE)
    return _ids.decode(blob) if blob else []


def write_due(batch: Batch, item_ids: Collection[str]) -> None:
    batch.set_blob(DUE, msgspec.msgpack.encode(sorted(item_ids)) if item_ids else None)


def begin_figures(batch: Batch, place: str, version: str, author: str) -> None:
    standings = standings_at(batch, place)
    if version not in standings:
        standings[version] = Standing.create(secrets.token_bytes(KEY_BYTES), author.encode())
        write_standings(batch, place, standings)


def drop_figures(batch: Batch, place: str) -> None:
    for name in (FIGURES + place, *names_at(batch, place)):
        batch.set_blob(name, None)


def places_with(snapshot: Snapshot, users: Collection[bytes]) -> dict[str, list[bytes]]:
    """Return the place of each item to which any of the users contributes, with the contributing users.

    For privacy, there is no index of a user's items, so this function looks up every item.
    """
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    if len(users) > _MANY:
        for _, place, user in parts_in(snapshot):
            if user in users:
                found[place].append(user)
        return found
    key = secret_in(snapshot)
    for place in [name.removeprefix(FIGURES) for name in snapshot.blobs(FIGURES)]:
        for user in users:
            if any(snapshot.blob(part_of(key, place, user, kind)) for kind in (PARTS, RECORDED)):
                found[place].append(user)
    return found


def ratings_by(snapshot: Snapshot, users: Sequence[bytes]) -> int:
    found = [(place, user) for place, some in places_with(snapshot, users).items() for user in some]
    sums = [part.sums for place, user in found for part in _parts_of_user(snapshot, place, user).values()]
    for place, user in found:
        known = _recorded_by(snapshot, place, user)
        sums += [] if known is None else known.versions.values()
    return sum(one.rating is not None for one in sums)


def erase_user(batch: Batch, place: str, user: bytes) -> None:
    """Remove a user from the figures of an item. Figures that count the user's voter are withdrawn until the next
    upkeep.
    """
    known = _recorded_by(batch, place, user)
    erase_vote(batch, place, user)
    if known is not None:
        if known.voter.counts:
            erase_vote(batch, place, known.voter.name)
        batch.set_blob(part_of(secret_in(batch), place, user, RECORDED), None)
        write_due(batch, {*due_in(batch), known.item_id})


def erase_vote(batch: Batch, place: str, voter: bytes) -> None:
    standings = standings_at(batch, place)
    erased = [Figures(one, StoredParts(batch, place, name)).erase(voter) for name, one in standings.items()]
    if any(erased):
        write_standings(batch, place, standings)


def parts_in(snapshot: Snapshot) -> Iterator[tuple[str, str, bytes]]:
    """For each contribution, yield the blob name, the item's place, and the user or voter."""
    for name in snapshot.blobs(PARTS):
        user, _ = _user_parts.decode(snapshot.blob(name) or b"")
        yield name, name.removeprefix(PARTS)[:PLACE_CHARS], user
    for name in snapshot.blobs(RECORDED):
        known = _recorded.decode(snapshot.blob(name) or b"")
        yield name, name.removeprefix(RECORDED)[:PLACE_CHARS], known.user


def users_in(snapshot: Snapshot) -> set[bytes]:
    return {user for _, _, user in parts_in(snapshot) if not user.startswith(VOTER)}


def versions_at(snapshot: Snapshot, place: str) -> dict[str, bool]:
    """Return, for each version of an item, whether its sums match the parts of its users."""
    parts: defaultdict[str, dict[bytes, Part]] = defaultdict(dict)
    for name in snapshot.blobs(PARTS + place):
        user, of_user = _user_parts.decode(snapshot.blob(name) or b"")
        for version, part in of_user.items():
            parts[version][user] = part
    return {name: one == one.counted(parts[name]) for name, one in standings_at(snapshot, place).items()}


class ItemFigures:
    """The figures of one item within a batch. `voter_of` returns the voter of a user who does not vote alone."""

    def __init__(self, batch: Batch, item_id: str, voter_of: Callable[[bytes], Voter | None]) -> None:
        self._batch = batch
        self._item_id = item_id
        self._voter_of = voter_of
        self._place = place_of(batch, "", item_id)
        self.standings = standings_at(batch, self._place)

    def report(self, user: bytes, number: int, item: ReportedItem) -> bool:
        """Count an item of a checked report once, as `Figures.report` does. Return False for an unknown version."""
        if item.version not in self.standings:
            return False
        if (known := self._recorded(user)) is None:
            return self._write_if(self._figures(item.version).report(user, number, item))
        return self._record(known, item.version, lambda sums: sums.with_item(number, item))

    def rate(self, user: bytes, version: str, rating: float | None) -> bool:
        """Replace or remove a rating of a known version, as `Figures.rate` does."""
        if (known := self._recorded(user)) is None:
            return self._write_if(self._figures(version).rate(user, rating))
        return self._record(known, version, lambda sums: sums.with_rating(rating))

    def assign(self, users: Collection[bytes]) -> None:
        """Assign the contributions of `users` to their current voters, and withdraw the figures that include a former
        voter.
        """
        for user in users:
            known = self._recorded(user)
            voter = self._voter_of(user) or Voter(user, counts=True)
            if known is not None and voter != known.voter:
                if known.voter.counts:
                    erase_vote(self._batch, self._place, known.voter.name)
                self._write(msgspec.structs.replace(known, voter=voter))
        self.standings = standings_at(self._batch, self._place)

    def release(self, rules: Rules, excluded: Collection[bytes]) -> bool:
        """Merge recorded contributions, and release the figures that are due. Return whether any figure changed.

        The author's voter and the voters of `excluded` users are not counted.
        """
        self._merge(excluded)
        released = [self._figures(version).release(rules) for version in self.standings]
        write_standings(self._batch, self._place, self.standings)
        return any(released)

    def _merge(self, excluded: Collection[bytes]) -> None:
        records = [
            _recorded.decode(self._batch.blob(name) or b"") for name in self._batch.blobs(RECORDED + self._place)
        ]
        by_voter: defaultdict[bytes, list[dict[str, Contribution]]] = defaultdict(list)
        for one in records:
            if one.voter.counts:
                by_voter[one.voter.name].append(one.versions)
        for version, standing in self.standings.items():
            figures = self._figures(version)
            barred = {self._name_of(user) for user in (standing.author, *excluded)}
            for voter, versions in by_voter.items():
                if voter in barred:
                    figures.erase(voter)
                else:
                    figures.replace(voter, merged([sums[version] for sums in versions if version in sums]))
        for one in records:
            if Contribution() in one.versions.values():
                self._write(one)

    def _name_of(self, user: bytes) -> bytes:
        voter = self._voter_of(user)
        return user if voter is None else voter.name

    def _figures(self, version: str) -> Figures:
        return Figures(self.standings[version], StoredParts(self._batch, self._place, version))

    def _recorded(self, user: bytes) -> Recorded | None:
        """Return the record of a user, or None if the user votes alone. Converts the vote of a user who previously
        voted alone.
        """
        known = _recorded_by(self._batch, self._place, user)
        if known is None and (voter := self._voter_of(user)) is not None:
            parts = _parts_of_user(self._batch, self._place, user)
            known = Recorded(user, self._item_id, voter, {version: part.sums for version, part in parts.items()})
            if parts:
                self._write(known)
                erase_vote(self._batch, self._place, user)
                self.standings = standings_at(self._batch, self._place)
        return known

    def _record(self, known: Recorded, version: str, change: Callable[[Contribution], Contribution]) -> bool:
        before = known.versions.get(version, Contribution())
        sums = change(before)
        if known.user == self.standings[version].author or sums == before:
            return False
        self._write(msgspec.structs.replace(known, versions=known.versions | {version: sums}), keep_empty=True)
        return True

    def _write_if(self, is_changed: bool) -> bool:
        if is_changed:
            write_standings(self._batch, self._place, self.standings)
        return is_changed

    def _write(self, known: Recorded, *, keep_empty: bool = False) -> None:
        """Store the record of a user. Empty contributions are kept until they have been merged."""
        versions = {version: sums for version, sums in known.versions.items() if keep_empty or sums != Contribution()}
        value = msgspec.msgpack.encode(msgspec.structs.replace(known, versions=versions)) if versions else None
        self._batch.set_blob(part_of(secret_in(self._batch), self._place, known.user, RECORDED), value)


def _parts_of_user(snapshot: Snapshot, place: str, user: bytes) -> dict[str, Part]:
    blob = snapshot.blob(part_of(secret_in(snapshot), place, user))
    if blob is None:
        return {}
    _, parts = _user_parts.decode(blob)
    return parts


def _recorded_by(snapshot: Snapshot, place: str, user: bytes) -> Recorded | None:
    blob = snapshot.blob(part_of(secret_in(snapshot), place, user, RECORDED))
    return None if blob is None else _recorded.decode(blob)


def names_at(snapshot: Snapshot, place: str) -> list[str]:
    return [name for kind in (PARTS, RECORDED) for name in snapshot.blobs(kind + place)]
