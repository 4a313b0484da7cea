"""Test that concurrent removals of users do not interfere with each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memory_agent.erasure.user_removal import remove_user
from memory_agent.storage.folders import ASIDE, known_users, user_folder

USERS = [f"user-{number}" for number in range(64)]


def test_users_can_be_removed_at_the_same_time(tmp_path: Path) -> None:
    for user_id in USERS:
        for number in range(8):
            folder = user_folder(tmp_path, user_id) / f"part-{number}"
            folder.mkdir(parents=True)
            (folder / "file").touch()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda user_id: remove_user(tmp_path, user_id), USERS))
    assert list(known_users(tmp_path)) == []
    assert list((tmp_path / "users").iterdir()) == []


def test_users_in_older_folders_can_be_removed_at_the_same_time(tmp_path: Path) -> None:
    """Erasing the last user in a folder that a restore set aside also removes the folder itself."""
    asides = [tmp_path / f"{ASIDE}{number}" for number in range(len(USERS) // 2)]
    for number, user_id in enumerate(USERS):
        user_folder(asides[number // 2], user_id).mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda user_id: remove_user(tmp_path, user_id), USERS))
    assert not any(aside.exists() for aside in asides)
