"""Stores figures: one blob per item, and one per user of an item.

The place of an item is the digest in the names of its blobs. Earlier versions stored all of an item's figures in one
blob, which the first open splits.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from memory_agent.knowledge.figures import KEY_BYTES, Contribution, Figures, Part, Quality, Rating, Series, Standing
from memory_agent.knowledge.pseudonyms import FIGURES, PARTS, PLACE_CHARS, part_of, secret_in
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

FORMER = "shared:figures:"

Standings = dict[str, Standing]
"""The standing of each version, by version name."""

_standings = msgspec.msgpack.Decoder(Standings)
_user_parts = msgspec.msgpack.Decoder(tuple[bytes, dict[str, Part]])


class _FormerSeries(msgspec.Struct, array_like=True):
    """A series in the old format. `waiting` maps each new or changed user to whether the release counts the user."""

    released: msgspec.Raw
    waiting: dict[bytes, bool]


class _FormerFigures(msgspec.Struct, array_like=True):
    """The figures of an item version, in the format of earlier releases."""

    key: bytes
    author: bytes
    contributions: dict[bytes, Contribution]
    usage: _FormerSeries
    quality: _FormerSeries
    rating: _FormerSeries


_former = msgspec.msgpack.Decoder(dict[str, _FormerFigures])


class StoredParts:
    """The stored parts of one version's users. Satisfies `Parts`."""

    def __init__(self, batch: Batch, place: str, version: str) -> None:
        self._batch = batch
        self._place = place
        self._version = version

    def get(self, user: bytes, /) -> Part | None:
        """Return a user's part."""
        return _parts_of_user(self._batch, self._place, user).get(self._version)

    def __setitem__(self, user: bytes, part: Part, /) -> None:
        """Store a user's part."""
        self._set(user, _parts_of_user(self._batch, self._place, user) | {self._version: part})

    def pop(self, user: bytes, default: None, /) -> Part | None:
        """Remove a user's part, and return it."""
        parts = _parts_of_user(self._batch, self._place, user)
        part = parts.pop(self._version, default)
        self._set(user, parts)
        return part

    def _set(self, user: bytes, parts: dict[str, Part]) -> None:
        value = msgspec.msgpack.encode((user, parts)) if parts else None
        self._batch.set_blob(part_of(secret_in(self._batch), self._place, user), value)


def standings_at(snapshot: Snapshot, place: str) -> Standings:
    """Return the standing of each published version of an item."""
    blob = snapshot.blob(FIGURES + place)
    return _standings.decode(blob) if blob else {}


def write_standings(batch: Batch, place: str, standings: Standings) -> None:
    """Store the standing of each version of an item."""
    batch.set_blob(FIGURES + place, msgspec.msgpack.encode(standings))


def begin_figures(batch: Batch, place: str, version: str, author: str) -> None:
    """Create empty figures for a version, unless it already has figures."""
    standings = standings_at(batch, place)
    if version not in standings:
        standings[version] = Standing.create(secrets.token_bytes(KEY_BYTES), author.encode())
        write_standings(batch, place, standings)


def drop_figures(batch: Batch, place: str) -> None:
    """Delete all figures of an item."""
    for name in (FIGURES + place, FORMER + place, *batch.blobs(PARTS + place)):
        batch.set_blob(name, None)


def places_with(snapshot: Snapshot, users: Sequence[bytes]) -> list[str]:
    """Return the places of the items to which any of the users contributes.

    Looks up every item, because for privacy there must be no index of a user's items.
    """
    key = secret_in(snapshot)
    places = [name.removeprefix(FIGURES) for name in snapshot.blobs(FIGURES)]
    return [at for at in places if any(snapshot.blob(part_of(key, at, user)) is not None for user in users)]


def ratings_by(snapshot: Snapshot, users: Sequence[bytes]) -> int:
    """Return the number of ratings by the users, one for each version."""
    parts = (_parts_of_user(snapshot, place, user) for place in places_with(snapshot, users) for user in users)
    return sum(part.sums.rating is not None for versions in parts for part in versions.values())


def erase_user(batch: Batch, place: str, user: bytes) -> None:
    """Remove a user from the figures of an item."""
    standings = standings_at(batch, place)
    erased = [Figures(one, StoredParts(batch, place, name)).erase(user) for name, one in standings.items()]
    if any(erased):
        write_standings(batch, place, standings)


def parts_in(snapshot: Snapshot) -> Iterator[tuple[str, str, bytes]]:
    """Yield the blob name, the place of the item and the user of each part."""
    for name in snapshot.blobs(PARTS):
        user, _ = _user_parts.decode(snapshot.blob(name) or b"")
        yield name, name.removeprefix(PARTS)[:PLACE_CHARS], user


def versions_at(snapshot: Snapshot, place: str) -> dict[str, bool]:
    """Return, for each version of an item, whether its sums match the parts of its users."""
    former = snapshot.blob(FORMER + place)
    if former is not None:
        return dict.fromkeys(_former.decode(former), True)
    parts: defaultdict[str, dict[bytes, Part]] = defaultdict(dict)
    for name in snapshot.blobs(PARTS + place):
        user, of_user = _user_parts.decode(snapshot.blob(name) or b"")
        for version, part in of_user.items():
            parts[version][user] = part
    return {name: one == one.counted(parts[name]) for name, one in standings_at(snapshot, place).items()}


def convert_former_figures(batch: Batch) -> None:
    """Convert figures that earlier versions stored in one blob per item."""
    for name in batch.blobs(FORMER):
        place = name.removeprefix(FORMER)
        standings: Standings = {}
        for version, former in _former.decode(batch.blob(name) or b"").items():
            parts = _parts_of(former)
            stored = StoredParts(batch, place, version)
            for user, part in parts.items():
                stored[user] = part
            standings[version] = _released_in(former).counted(parts)
        write_standings(batch, place, standings)
        batch.set_blob(name, None)


def _released_in(former: _FormerFigures) -> Standing:
    decode = msgspec.msgpack.decode
    usage = Series[int](decode(former.usage.released, type=int | None))
    quality = Series[Quality](decode(former.quality.released, type=Quality | None))
    rating = Series[Rating](decode(former.rating.released, type=Rating | None))
    return Standing(former.key, former.author, usage, quality, rating)


def _parts_of(former: _FormerFigures) -> dict[bytes, Part]:
    usage, quality, rating = former.usage.waiting, former.quality.waiting, former.rating.waiting
    return {
        user: Part(
            former.contributions.get(user, Contribution()),
            (_mark(usage.get(user)), _mark(quality.get(user)), _mark(rating.get(user))),
        )
        for user in {*former.contributions, *rating}
    }


def _mark(counted: bool | None) -> int | None:
    """Return a user's mark for release 0, which depends on whether that release counts the user."""
    return None if counted is None else int(counted)


def _parts_of_user(snapshot: Snapshot, place: str, user: bytes) -> dict[str, Part]:
    blob = snapshot.blob(part_of(secret_in(snapshot), place, user))
    if blob is None:
        return {}
    _, parts = _user_parts.decode(blob)
    return parts
