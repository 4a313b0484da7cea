"""Test the scopes, users and revocation of keys."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from relay import (
    ALL_SCOPES,
    Credentials,
    KeyFileError,
    MalformedEventError,
    Scope,
    UnauthorizedError,
    create_key,
    curve_pair,
    ensure_local_key,
    read_keys,
    revoke_key,
    rotate_key,
    server_pair,
    set_person,
)
from relay.access import key_file
from relay.access.key_file import digest_of
from relay.disk import add_checksum, verify_checksum, write_private

READER = frozenset({Scope.RECALL})
LOCAL_TOKEN, ADMIN_TOKEN = "local" * 9, "admin" * 9


class KeyOf010(msgspec.Struct, forbid_unknown_fields=True):
    """A key as parsed by version 0.1.0."""

    id: str
    created: str
    scopes: tuple[Literal["publish", "recall", "admin"], ...]
    user_id: str | None = None
    token_sha256: str = ""
    curve_public: str = ""
    revoked: str | None = None


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The keys folder as version 0.1.0 wrote it: `local`, and alice's key with every scope of that version."""
    created = {"created": "2026-11-22T17:32:45Z", "scopes": ["admin", "publish", "recall"]}
    keys = [
        {"id": "local", **created, "token_sha256": digest_of(LOCAL_TOKEN.encode())},
        {"id": "laptop", **created, "user_id": "alice", "token_sha256": digest_of(ADMIN_TOKEN.encode())},
    ]
    (tmp_path / "token").write_text(LOCAL_TOKEN)
    (tmp_path / "keys.json").write_bytes(add_checksum(msgspec.json.encode({"version": 1, "keys": keys})))
    return tmp_path


def as_010_reads(folder: Path) -> list[KeyOf010]:
    document = verify_checksum((folder / "keys.json").read_bytes())
    return msgspec.convert(msgspec.json.decode(document)["keys"], list[KeyOf010])


def test_the_first_start_makes_one_key_for_everything_and_later_ones_keep_it(tmp_path: Path) -> None:
    token = ensure_local_key(tmp_path)
    assert ensure_local_key(tmp_path) == token
    principal = Credentials(tmp_path).of_token(token.encode())
    assert (principal.key_id, principal.user_id, principal.scopes) == ("local", None, ALL_SCOPES)


def test_files_of_keys_are_private_and_hold_no_token(tmp_path: Path) -> None:
    local = ensure_local_key(tmp_path)
    made = create_key(tmp_path, "reader", "alice", READER)
    server_pair(tmp_path, curve_pair)
    names = ("token", "keys.json", "keys.lock", "curve.json")
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names} == {0o600}
    kept = (tmp_path / "keys.json").read_text()
    assert local not in kept
    assert made.token not in kept
    assert len(made.token) >= 43  # 256 bits


@pytest.mark.parametrize("wrong", [b"", b"wrong", b"\0", b"\xff" * 40])
def test_an_unknown_token_has_no_principal(tmp_path: Path, wrong: bytes) -> None:
    ensure_local_key(tmp_path)
    create_key(tmp_path, "curve", "alice", READER, curve_pair())  # a key without a token does not match the empty token
    with pytest.raises(UnauthorizedError):
        Credentials(tmp_path).of_token(wrong)


def test_a_hash_from_the_key_file_is_not_accepted_as_a_token(tmp_path: Path) -> None:
    ensure_local_key(tmp_path)
    (key,) = read_keys(tmp_path)
    with pytest.raises(UnauthorizedError):
        Credentials(tmp_path).of_token(key.token_sha256.encode())


def test_created_and_revoked_keys_take_effect_at_once(tmp_path: Path) -> None:
    ensure_local_key(tmp_path)
    credentials = Credentials(tmp_path)
    pair = curve_pair()
    token = create_key(tmp_path, "a", "alice", READER).token.encode()
    create_key(tmp_path, "b", None, READER, pair)
    assert credentials.of_token(token).user_id == "alice"
    assert credentials.of_curve(pair.public).user_id is None
    for name in ("a", "b", "a"):
        revoke_key(tmp_path, name)
    with pytest.raises(UnauthorizedError):
        credentials.of_token(token)
    with pytest.raises(UnauthorizedError):
        credentials.of_curve(pair.public)
    assert not credentials.knows_curve(pair.public)
    assert all(key.revoked for key in read_keys(tmp_path) if key.id != "local")


def test_a_name_is_never_used_again(tmp_path: Path) -> None:
    """A name in the records always refers to the same key."""
    create_key(tmp_path, "a", "alice", READER)
    revoke_key(tmp_path, "a")
    for name in ("a", "local", "", "a b", "../up", "x" * 65):
        with pytest.raises(KeyFileError):
            create_key(tmp_path, name, "alice", READER)


def test_no_key_is_created_for_the_system_user(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="system"):
        create_key(tmp_path, "conductor", "system", READER)


def test_the_folders_own_key_is_not_revoked_but_replaced(tmp_path: Path) -> None:
    old = ensure_local_key(tmp_path)
    with pytest.raises(KeyFileError, match="keys rotate local"):
        revoke_key(tmp_path, "local")
    (tmp_path / "token").unlink()
    new = ensure_local_key(tmp_path)
    credentials = Credentials(tmp_path)
    assert credentials.of_token(new.encode()).key_id == "local"
    with pytest.raises(UnauthorizedError):
        credentials.of_token(old.encode())


def test_an_empty_token_file_after_a_crash_grants_no_access(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    assert len(ensure_local_key(tmp_path)) >= 43


@pytest.mark.parametrize("damage", ["", "{", '{"version":1,"keys":[{"id":1}]}', '{"keys":[],"more":1}'])
def test_a_damaged_key_file_grants_no_access_and_is_named(tmp_path: Path, damage: str) -> None:
    token = ensure_local_key(tmp_path).encode()
    credentials = Credentials(tmp_path)
    assert credentials.of_token(token)
    whole = (tmp_path / "keys.json").read_bytes()
    (tmp_path / "keys.json").write_text(damage)
    with pytest.raises(UnauthorizedError):
        credentials.of_token(token)
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        create_key(tmp_path, "a", "alice", READER)
    (tmp_path / "keys.json").write_bytes(whole)
    assert credentials.of_token(token).key_id == "local"


def test_no_flipped_bit_makes_a_key_another_users_or_the_daemon_another_one(tmp_path: Path) -> None:
    create_key(tmp_path, "planner", "alice", READER)
    server_pair(tmp_path, curve_pair)
    keys, pair = read_keys(tmp_path), server_pair(tmp_path, curve_pair)
    for name in ("keys.json", "curve.json"):
        whole = (tmp_path / name).read_bytes()
        for place in range(len(whole)):
            (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with suppress(KeyFileError):
                assert (read_keys(tmp_path), server_pair(tmp_path, curve_pair)) == (keys, pair), place
        (tmp_path / name).write_bytes(whole)


def test_key_files_from_before_checksums_are_read(tmp_path: Path) -> None:
    create_key(tmp_path, "planner", "alice", READER)
    server_pair(tmp_path, curve_pair)
    kept = read_keys(tmp_path), server_pair(tmp_path, curve_pair)
    for name in ("keys.json", "curve.json"):
        (tmp_path / name).write_bytes(verify_checksum((tmp_path / name).read_bytes()))
    assert (read_keys(tmp_path), server_pair(tmp_path, curve_pair)) == kept


def test_a_missing_key_file_grants_no_access(tmp_path: Path) -> None:
    token = ensure_local_key(tmp_path).encode()
    credentials = Credentials(tmp_path)
    (tmp_path / "keys.json").unlink()
    with pytest.raises(UnauthorizedError):
        credentials.of_token(token)


def test_keys_created_concurrently_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: create_key(tmp_path, f"key-{n}", f"user-{n}", READER), range(12)))
    credentials = Credentials(tmp_path)
    assert [credentials.of_token(key.token.encode()).user_id for key in made] == [f"user-{n}" for n in range(12)]
    assert msgspec.json.decode(verify_checksum((tmp_path / "keys.json").read_bytes()))["version"] == 1


def test_a_rotated_key_keeps_its_permissions_and_accepts_only_the_new_token(tmp_path: Path) -> None:
    ensure_local_key(tmp_path)
    former = create_key(tmp_path, "reader", "alice", READER)
    credentials = Credentials(tmp_path)
    assert credentials.of_token(former.token.encode()).user_id == "alice"
    set_person(tmp_path, ["reader"], "ann")
    before = read_keys(tmp_path)[1]
    latter = rotate_key(tmp_path, "reader", curve_pair)
    assert credentials.of_token(latter.token.encode()) == ("reader", "alice", READER, frozenset())
    after = read_keys(tmp_path)[1]
    assert after.token_sha256 != before.token_sha256
    assert msgspec.structs.replace(after, token_sha256=before.token_sha256) == before
    with pytest.raises(UnauthorizedError):
        credentials.of_token(former.token.encode())
    assert [key.id for key in read_keys(tmp_path)] == ["local", "reader"]


def test_a_rotated_curve_key_is_still_a_curve_key(tmp_path: Path) -> None:
    former = create_key(tmp_path, "far", "alice", READER, curve_pair())
    latter = rotate_key(tmp_path, "far", curve_pair)
    credentials = Credentials(tmp_path)
    assert credentials.of_curve(latter.public).key_id == "far"
    assert not credentials.knows_curve(former.public)
    assert latter.token == ""


def test_the_folders_own_token_is_replaced_in_its_file(tmp_path: Path) -> None:
    former = ensure_local_key(tmp_path)
    latter = rotate_key(tmp_path, "local", curve_pair).token
    assert (tmp_path / "token").read_text() == latter == ensure_local_key(tmp_path) != former
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    credentials = Credentials(tmp_path)
    assert credentials.of_token(latter.encode()).scopes == ALL_SCOPES
    assert credentials.of_token(latter.encode()).groups == frozenset()
    with pytest.raises(UnauthorizedError):
        credentials.of_token(former.encode())


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_rotation_interrupted_by_a_crash_leaves_a_valid_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """Each write is atomic, and before each write the folder's file contains a valid token."""
    ensure_local_key(tmp_path)
    writes = iter(range(3))

    def dying(path: Path, content: bytes) -> None:
        if next(writes) == dies_at:
            raise RuntimeError("power cut")
        write_private(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("relay.access.key_file.write_private", dying)
        with pytest.raises(RuntimeError):
            rotate_key(tmp_path, "local", curve_pair)
    shown = (tmp_path / "token").read_bytes()
    assert Credentials(tmp_path).of_token(shown).key_id == "local"
    assert ensure_local_key(tmp_path).encode() == shown
    assert [key.id for key in read_keys(tmp_path)] == ["local"]  # the next start keeps only this key


def test_keys_that_cannot_be_rotated_are_refused_with_the_reason(tmp_path: Path) -> None:
    ensure_local_key(tmp_path)
    create_key(tmp_path, "gone", "alice", READER)
    revoke_key(tmp_path, "gone")
    for name, reason in (("gone", "revoked"), ("never", "no such key")):
        with pytest.raises(KeyFileError, match=reason):
            rotate_key(tmp_path, name, curve_pair)


@pytest.mark.parametrize("user_id", ["alice", None])
@pytest.mark.parametrize("by_curve", [False, True])
def test_a_key_has_the_groups_it_was_created_with_for_good(tmp_path: Path, user_id: str | None, by_curve: bool) -> None:
    pair = curve_pair() if by_curve else None
    orgs, groups = frozenset({"labs", "acme"}), {"org:acme", "org:labs", "tier:pro"}
    made = create_key(tmp_path, "k", user_id, READER, pair, orgs=orgs, tier="pro")
    rotated = rotate_key(tmp_path, "k", curve_pair)
    create_key(tmp_path, "other", user_id, READER)
    credentials = Credentials(tmp_path)
    found = credentials.of_curve(rotated.public) if by_curve else credentials.of_token(rotated.token.encode())
    assert rotated != made
    assert found == ("k", user_id, READER, groups)
    revoke_key(tmp_path, "k")
    assert [(key.orgs, key.tier) for key in read_keys(tmp_path)] == [(("acme", "labs"), "pro"), ((), None)]
    assert read_keys(tmp_path)[1].principal.groups == frozenset()


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "../up", "é", "acme\n", "x" * 65])
def test_the_names_of_organisations_and_tiers_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(MalformedEventError, match=r"org: must be 1 to 64 ASCII letters"):
        create_key(tmp_path, "a", "alice", READER, orgs=frozenset({"acme", name}))
    with pytest.raises(MalformedEventError, match=r"tier: must be 1 to 64 ASCII letters"):
        create_key(tmp_path, "a", "alice", READER, tier=name)
    assert read_keys(tmp_path) == ()
    create_key(tmp_path, "a", "alice", READER, orgs=frozenset({"x" * 64}), tier="A.b_c-9")


def test_a_key_created_with_a_person_is_written_once_with_all_keys_of_its_user(tmp_path: Path) -> None:
    for name, user_id in (("laptop", "ann"), ("of-bob", "bob"), ("all", None)):
        create_key(tmp_path, name, user_id, READER)
    with pytest.raises(MalformedEventError):
        create_key(tmp_path, "ci", "ann", READER, person="a b")
    with pytest.raises(KeyFileError, match="belongs to no person"):
        create_key(tmp_path, "ci", None, READER, person="ann-k")
    writes: list[list[str | None]] = []
    put = key_file._write_keys  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            key_file, "_write_keys", lambda folder, keys: (writes.append([k.person for k in keys]), put(folder, keys))
        )
        create_key(tmp_path, "ci", "ann", READER, person="ann-k")
    assert writes == [["ann-k", None, None, "ann-k"]]
    assert {key.id: key.person for key in read_keys(tmp_path)} == {
        "laptop": "ann-k", "of-bob": None, "all": None, "ci": "ann-k",
    }  # fmt: skip


def test_only_the_folders_own_key_has_the_scopes_that_were_added_since_it_was_created(former: Path) -> None:
    assert ensure_local_key(former) == LOCAL_TOKEN
    credentials = Credentials(former)
    assert credentials.of_token(LOCAL_TOKEN.encode()) == ("local", None, ALL_SCOPES, frozenset())
    had = {Scope.ADMIN, Scope.PUBLISH, Scope.RECALL}
    assert credentials.of_token(ADMIN_TOKEN.encode()) == ("laptop", "alice", had, frozenset())
    rotated = rotate_key(former, "laptop", curve_pair)
    assert credentials.of_token(rotated.token.encode()).scopes == had


def test_a_running_daemon_of_a_former_version_reads_the_keys_that_use_nothing_new(former: Path) -> None:
    """A single unknown scope or field would make an older daemon reject every key."""
    ensure_local_key(former)
    create_key(former, "reader", "alice", READER)
    rotate_key(former, "local", curve_pair)
    assert [key.id for key in as_010_reads(former)] == ["local", "laptop", "reader"]
    create_key(former, "acme", "alice", READER, orgs=frozenset({"acme"}))
    with pytest.raises(msgspec.ValidationError, match="orgs"):
        as_010_reads(former)


def test_presenting_a_revoked_key_names_it_in_the_error(tmp_path: Path) -> None:
    made = create_key(tmp_path, "gone", "alice", READER)
    far = create_key(tmp_path, "far", "alice", READER, curve_pair())
    for name in ("gone", "far"):
        revoke_key(tmp_path, name)
    credentials = Credentials(tmp_path)
    with pytest.raises(UnauthorizedError, match="the key gone was revoked"):
        credentials.of_token(made.token.encode())
    with pytest.raises(UnauthorizedError, match="the key far was revoked"):
        credentials.of_curve(far.public)
    assert msgspec.json.decode(verify_checksum((tmp_path / "keys.json").read_bytes()))["version"] == 1
