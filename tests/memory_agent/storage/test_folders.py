from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.errors import InvalidInputError
from memory_agent.storage.folders import known_users, user_folder

DATA = Path("data")
user_ids = st.from_regex(r"[A-Za-z0-9_@+:-][A-Za-z0-9._@+:-]{0,127}", fullmatch=True)


@given(first=user_ids, second=user_ids)
def test_two_users_never_share_a_folder_even_where_case_does_not_count(first: str, second: str) -> None:
    same = user_folder(DATA, first).name.casefold() == user_folder(DATA, second).name.casefold()
    assert same == (first == second)


@given(user_id=user_ids)
def test_a_folder_name_is_safe_on_every_file_system(user_id: str) -> None:
    name = user_folder(DATA, user_id).name
    assert user_folder(DATA, user_id).parent == DATA / "users"
    assert len(name) <= 255
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.%")
    assert not name.startswith(".")


def test_ids_that_differ_only_in_case_have_two_folders() -> None:
    assert user_folder(DATA, "Alice") == DATA / "users" / "%41lice"
    assert user_folder(DATA, "alice") == DATA / "users" / "alice"


@pytest.mark.parametrize("user_id", ["", ".", "..", "../x", "a/b", "a\x00b", ".hidden", "x" * 129, "ä", "a b"])
def test_an_unsafe_user_id_is_refused_by_name(user_id: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        user_folder(DATA, user_id)
    assert caught.value.field == "user_id"


def test_the_users_with_a_folder_can_be_listed(tmp_path: Path) -> None:
    users = {"alice", "Alice", "a:b@c", "x.y+z", "@" * 128, "Z" * 128}
    for user_id in users:
        user_folder(tmp_path, user_id).mkdir(parents=True)
    (tmp_path / "users" / "not%ours").mkdir()
    (tmp_path / "users" / "%bnot-ours").mkdir()
    (tmp_path / "users" / "a-file").touch()
    assert set(known_users(tmp_path)) == users
