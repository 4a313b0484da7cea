"""Creates, rotates and revokes the keys of a data folder, which are stored in that folder.

DATA/keys.json stores the SHA-256 of each token. Tokens have 256 random bits, so salting would add nothing. DATA/token
contains the token of the key `local`, and DATA/curve.json the daemon's CURVE key pair. All three files have mode 0600.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec

from relay.access.identity import TOKEN_FILE, CurvePair, KeyDocument
from relay.access.principal import ALL_SCOPES, Principal, Scope
from relay.decoding import described
from relay.disk import add_checksum, verify_checksum, write_private
from relay.errors import KeyFileError
from relay.validation import SYSTEM_USER, validate_event_user, validate_group_name

LOCAL = "local"
_TOKEN_BYTES = 32


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A key for one user, or for all users (None), with a token or a public CURVE key.

    Rotation keeps `created`. `person` is the holder of the user's keys. Each person has a single vote on a shared item,
    even with several users. The key `local` has every scope, including scopes added since its `scopes` were stored.
    """

    id: str
    created: datetime
    scopes: tuple[Scope, ...]
    user_id: str | None = None
    token_sha256: str = ""
    curve_public: str = ""
    revoked: datetime | None = None
    orgs: tuple[str, ...] = ()
    tier: str | None = None
    person: str | None = None

    @property
    def principal(self) -> Principal:
        scopes = ALL_SCOPES if self.id == LOCAL else frozenset(self.scopes)
        tier = () if self.tier is None else (f"tier:{self.tier}",)
        return Principal(self.id, self.user_id, scopes, frozenset((*(f"org:{name}" for name in self.orgs), *tier)))


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    keys: tuple[StoredKey, ...] = ()


def keys_path(data_dir: Path) -> Path:
    return data_dir / "keys.json"


def keys_version(data_dir: Path) -> tuple[int, ...]:
    """Return a value that changes when a data folder's key file is replaced, or () if there is no file."""
    try:
        found = os.stat(keys_path(data_dir))
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def digest_of(token: bytes) -> str:
    return sha256(token).hexdigest()


def read_keys(data_dir: Path) -> tuple[StoredKey, ...]:
    """Return all keys, including revoked ones; empty before the first start. Raises `KeyFileError`."""
    path = keys_path(data_dir)
    try:
        return msgspec.json.decode(verify_checksum(path.read_bytes()), type=described(_Document)).keys
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeyFileError(str(path), f"is damaged: {error}") from error


def ensure_local_key(data_dir: Path) -> str:
    """Return the token of the key `local`. Creates the key if it is missing, and replaces it if its token file is
    missing. Raises `KeyFileError`.
    """
    with _locked(data_dir):
        token = _local_token(data_dir)
        keys = read_keys(data_dir)
        digest = digest_of(token.encode())
        if [key.token_sha256 for key in keys if key.id == LOCAL] != [digest]:
            local = StoredKey(id=LOCAL, created=_now(), scopes=tuple(sorted(ALL_SCOPES)), token_sha256=digest)
            _write_keys(data_dir, (local, *(key for key in keys if key.id != LOCAL)))
        return token


def create_key(
    data_dir: Path,
    key_id: str,
    user_id: str | None,
    scopes: frozenset[Scope],
    pair: CurvePair | None = None,
    *,
    orgs: frozenset[str] = frozenset(),
    tier: str | None = None,
    person: str | None = None,
) -> KeyDocument:
    """Add a key, and return it with its secret (the CURVE key pair `pair`, or a new token), which is not stored.

    `orgs` and `tier` are the groups of its holder. All keys of the user are assigned to `person`. By default, the new
    key is assigned to the same person as the user's other keys. Raises `KeyFileError` if the name is in use or the user
    cannot have a key, and `MalformedEventError` for an invalid name of a user, organisation, tier or person.

    >>> key = create_key(Path("data"), "laptop", "alice", frozenset({Scope.RECALL}), orgs=frozenset({"acme"}))
    >>> read_keys(Path("data"))[0].principal.groups
    frozenset({'org:acme'})
    """
    validate_key_id(key_id)
    for org in sorted(orgs):
        validate_group_name("org", org)
    if tier is not None:
        validate_group_name("tier", tier)
    if person is not None:
        validate_group_name("person", person)
        if user_id is None:
            raise KeyFileError(key_id, "is for all users, so it belongs to no person")
    if user_id is not None and validate_event_user(user_id) == SYSTEM_USER:
        raise KeyFileError(
            SYSTEM_USER, "is not a user: its events belong to other users and require a key for all users"
        )
    stored, shown = _new_secret(pair)
    added = StoredKey(
        id=key_id, created=_now(), scopes=tuple(sorted(scopes)), user_id=user_id, orgs=tuple(sorted(orgs)), tier=tier
    )
    with _locked(data_dir):
        keys = read_keys(data_dir)
        if any(key.id == key_id for key in keys) or key_id == LOCAL:
            raise KeyFileError(key_id, "a key with this name exists or was revoked; names cannot be reused")
        added = msgspec.structs.replace(added, person=person or person_of(keys, user_id), **stored)
        if person is not None:
            keys = tuple(msgspec.structs.replace(key, person=person) if key.user_id == user_id else key for key in keys)
        _write_keys(data_dir, (*keys, added))
    return KeyDocument(id=key_id, user_id=user_id, **shown)


def person_of(keys: Iterable[StoredKey], user_id: str | None) -> str | None:
    """Return the person who holds a user's keys, including revoked keys, or None."""
    named = (key.person for key in keys if key.user_id == user_id is not None)
    return next((person for person in named if person is not None), None)


def set_person(data_dir: Path, key_ids: Collection[str], person: str | None) -> list[StoredKey]:
    """Assign all keys of the users who hold the named keys to `person` (None: to nobody); return these keys.

    Raises `KeyFileError` if a key is unknown or is for all users, and `MalformedEventError` for an invalid name.

    >>> for name in ("ann-1", "ann-2"):
    ...     key = create_key(Path("data"), name, name, frozenset({Scope.RECALL}))
    >>> [key.person for key in set_person(Path("data"), ["ann-1", "ann-2"], "ann")]
    ['ann', 'ann']
    """
    if person is not None:
        validate_group_name("person", person)
    with _locked(data_dir):
        keys = read_keys(data_dir)
        named = [_find(keys, key_id) for key_id in key_ids]
        for key in named:
            if key.user_id is None:
                raise KeyFileError(key.id, "is for all users, so it belongs to no person")
        users = {key.user_id for key in named}
        changed = [msgspec.structs.replace(key, person=person) if key.user_id in users else key for key in keys]
        _write_keys(data_dir, tuple(changed))
        return [key for key in changed if key.user_id in users]


def revoke_key(data_dir: Path, key_id: str) -> StoredKey:
    """Revoke a key permanently, including on open connections. Raises `KeyFileError`."""
    if key_id == LOCAL:
        raise KeyFileError(LOCAL, "cannot be revoked: replace its token with `memory-agent keys rotate local`")
    with _locked(data_dir):
        keys = read_keys(data_dir)
        found = _find(keys, key_id)
        if found.revoked is None:
            revoked = msgspec.structs.replace(found, revoked=_now())
            _write_keys(data_dir, tuple(revoked if key is found else key for key in keys))
            found = revoked
        return found


def rotate_key(data_dir: Path, key_id: str, make: Callable[[], CurvePair]) -> KeyDocument:
    """Replace a key's secret with a new token or a CURVE key pair from `make`; return the key with its new secret.

    The next request with the old secret is rejected. The token of the key `local` is written to DATA/token. Raises
    `KeyFileError`.
    """
    with _locked(data_dir):
        keys = read_keys(data_dir)
        found = _find(keys, key_id)
        if found.revoked is not None:
            raise KeyFileError(key_id, "was revoked permanently: create a new key")
        stored, shown = _new_secret(make() if found.curve_public else None)
        rotated = msgspec.structs.replace(found, **stored)
        if key_id == LOCAL:
            _write_keys(data_dir, (rotated, *keys))  # clients may read either token, so both are valid
            write_private(data_dir / TOKEN_FILE, shown["token"].encode())
        _write_keys(data_dir, tuple(rotated if key.id == key_id else key for key in keys))
    return KeyDocument(id=key_id, user_id=found.user_id, **shown)


def _new_secret(pair: CurvePair | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields to store and the fields to show, for the CURVE key pair if given, else for a new token."""
    if pair is not None:
        return {"curve_public": pair.public}, {"public": pair.public, "secret": pair.secret}
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    return {"token_sha256": digest_of(token.encode())}, {"token": token}


def server_pair(data_dir: Path, make: Callable[[], CurvePair]) -> CurvePair:
    """Return the daemon's CURVE key pair, created by `make` when it is first needed. Raises `KeyFileError`."""
    path = data_dir / "curve.json"
    with _locked(data_dir):
        try:
            return CurvePair(*msgspec.json.decode(verify_checksum(path.read_bytes()), type=tuple[str, str]))
        except FileNotFoundError:
            made = make()
            write_private(path, add_checksum(msgspec.json.encode(tuple(made))))
            return made
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            raise KeyFileError(str(path), f"cannot be used: {error}") from error


def validate_key_id(key_id: str) -> str:
    """Return `key_id` if it is a valid name for a key. Raises `KeyFileError`."""
    if not key_id or len(key_id) > 64 or not all(letter.isalnum() or letter in "._-" for letter in key_id):
        raise KeyFileError(key_id[:64], "a key's name must be 1 to 64 letters, digits or ._-")
    return key_id


def _find(keys: tuple[StoredKey, ...], key_id: str) -> StoredKey:
    found = next((key for key in keys if key.id == key_id), None)
    if found is None:
        raise KeyFileError(key_id, "no such key; to list the keys: memory-agent keys list")
    return found


def _local_token(data_dir: Path) -> str:
    path = data_dir / TOKEN_FILE
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        token = ""
    except UnicodeDecodeError as error:
        raise KeyFileError(str(path), "is damaged: remove it to create a new one") from error
    if not token:  # an empty token would admit clients without a token
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        write_private(path, token.encode())
    return token


def _write_keys(data_dir: Path, keys: tuple[StoredKey, ...]) -> None:
    encoded = msgspec.json.encode(_Document(keys=keys))
    write_private(keys_path(data_dir), add_checksum(msgspec.json.format(encoded, indent=1)))


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Lock the keys of this folder against other writers. Raises `KeyFileError`."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(data_dir / "keys.lock", os.O_RDWR | os.O_CREAT, 0o600), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise KeyFileError(str(data_dir), error.strerror or str(error)) from error


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
