"""`encrypt`: a data folder that is not encrypted, turned into one that is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory_agent.cli.each_user import passing_without_key
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, size
from memory_agent.errors import SettingsError
from memory_agent.layout import Layout
from memory_agent.storage.folders import ASIDE, known_users, user_folder
from memory_agent.storage.user_key import UserKey
from relay import SYSTEM_USER, journal_folder
from relay.crypto import KeyRing

if TYPE_CHECKING:
    from memory_agent.care.encrypting import EncryptedUser


@click.command(short_help="Encrypt a data folder that is not encrypted.")
@options_where_user(ONLY)
def encrypt(target: Target) -> None:
    """Encrypt what is in the data folder, each user's data with a key of its own, in encryption.keys_folder.

    Without --user, everything: all users, the journal, and whose runs they are. The daemon must be stopped. Needs room
    for a copy of the largest part; killed at any moment, each part is whole, plain or encrypted, and the verb said
    again goes on. Whoever loses the folder of keys loses the data: back it up, apart from the data.

    Backups made before, exports and what a restore put aside stay as they are. A disk may hold former blocks of plain
    files until it writes on them.

    \b
    Examples:
      memory-agent encrypt --config memory-agent.toml
      memory-agent encrypt --set encryption.keys_folder=/srv/keys --user alice
    """
    keys = target.keys
    if keys is None:
        raise SettingsError("encryption.keys_folder", "is empty: name the folder in which the keys are to be made")
    target.layout.create()
    with target.layout.hold():
        users = _encrypt_users(target, keys)
        if not target.user_named:
            _encrypt_shared(target, keys)
    if target.as_json:
        print_document({"users": users, "journal": not target.user_named})
    for user in [] if target.as_json else users:
        done = "was encrypted" if user.was_encrypted else f"{size(user.bytes_before)} -> {size(user.bytes_after)}"
        click.echo(f"user {user.user_id}: {user.memories} memories, {done}")
    kept = [folder.name for folder in sorted(target.data_dir.glob(f"{ASIDE}*/"))]
    if kept:
        note(f"what a restore put aside is not encrypted: remove {', '.join(kept)}")


def _encrypt_users(target: Target, keys: KeyRing) -> list[EncryptedUser]:
    from memory_agent.care.encrypting import encrypt_user, remove_plain_caches  # engines
    from memory_agent.storage.environment import has_records

    named = [target.user_id] if target.user_named else list(known_users(target.data_dir))
    folders = {user_id: user_folder(target.data_dir, user_id) for user_id in named}
    done: list[EncryptedUser] = []
    with progress_bars() as report:
        for user_id, folder in folders.items():
            if not has_records(folder):
                remove_plain_caches(folder)
                continue
            with passing_without_key(target):
                done.append(encrypt_user(folder, target.settings.store, UserKey(keys, user_id), report))
    return done


def encrypt_staged(target: Target, stage: Path) -> None:
    """Encrypt what is plain of what a restore has staged, and let the data folder's ring be that of what is not."""
    from memory_agent.care.encrypting import (
        encrypt_user,  # engines
        store_encryptions,
    )
    from memory_agent.daemon.owners import encrypt_owners
    from relay import encrypt_journal

    keys = target.keys
    if keys is None:
        return
    states = {store.part: store.state for store in store_encryptions(stage, target.settings, keys)}
    plain = {part for part, state in states.items() if state == "plain"}
    if "encrypted" in states.values():
        keys.claim()
    with progress_bars() as report:
        for user_id in known_users(stage):
            if f"user {user_id}" in plain:
                encrypt_user(user_folder(stage, user_id), target.settings.store, UserKey(keys, user_id), report)
    if "owners" in plain:
        encrypt_owners(Layout(stage).owners, UserKey(keys, SYSTEM_USER))
    if "journal" in plain:
        encrypt_journal(journal_folder(stage), target.settings.relay.journal, keys, datetime.now(UTC))


def _encrypt_shared(target: Target, keys: KeyRing) -> None:
    """Encrypt what is not one user's alone, and remove what is nobody's any more."""
    from memory_agent.care.encrypting import remove_leftovers  # engines
    from memory_agent.daemon.owners import encrypt_owners
    from relay import encrypt_journal

    remove_leftovers(target.data_dir)
    encrypt_owners(target.layout.owners, UserKey(keys, SYSTEM_USER))
    journal = journal_folder(target.data_dir)
    if journal.exists():
        encrypt_journal(journal, target.settings.relay.journal, keys, datetime.now(UTC))
