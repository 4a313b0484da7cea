"""`encrypt`, `encryption status` and `encryption destroy`: encryption at rest."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from memory_agent.cli.access import skip_without_key, uses_daemon
from memory_agent.cli.command import Group
from memory_agent.cli.failure import confirm, note
from memory_agent.cli.options import ONLY, Target, common_options, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import counted, print_document, print_table, printed_json, size
from relay import SYSTEM_USER, EncryptionKeyMissingError, KeyRing

if TYPE_CHECKING:
    from memory_agent.care import DestroyedKey

_OFF = "encryption is off: anyone who can read the disk can read everything; to turn it on, set encryption.keys_folder"
_UNNAMED = "some stores are encrypted, but encryption.keys_folder is not set"
_AWAY = "{} does not contain the keys of this data folder, so nothing can be stored; is the right folder mounted there?"


@click.group(cls=Group)
def encryption() -> None:
    """Encryption at rest, with one key per user. To turn it on, set encryption.keys_folder.

    Keep the keys folder outside the data folder and its backups. Without a user's key, that user's data cannot be read
    in the data folder or in any backup. If you lose the keys folder, you lose the data.

    \b
    Examples:
      memory-agent encryption status
      memory-agent encryption destroy --user alice
    """


@encryption.command(short_help="Show what is encrypted and who has a key.")
@common_options
def status(target: Target) -> None:
    """Show whether encryption is on, which stores are encrypted, plain or locked, and which users have keys.

    A locked store is encrypted with a key that is not in the keys folder. The key of `system` encrypts data about
    several users. Changes nothing, and can be used while a daemon is running. A missing or wrong keys folder is
    reported first.

    \b
    Examples:
      memory-agent encryption status
    """
    from memory_agent.care import store_encryptions

    keys = target.keys
    users = [] if keys is None else keys.users()
    stores = list(store_encryptions(target.data_dir, target.settings, keys))
    if target.as_json:
        document = {
            "on": keys is not None,
            "keys_folder": None if keys is None else str(keys.folder),
            "keys_away": keys is not None and keys.is_away(),
            "users_with_keys": users,
            "stores": stores,
        }
        print_document(document)
        return
    click.echo(_state(keys, users, any(store.state != "plain" for store in stores)))
    if stores:
        print_table("stores", ("store", "state"), ((store.part, store.state) for store in stores))


def _state(keys: KeyRing | None, users: list[str], has_encrypted: bool) -> str:
    if keys is None:
        return _UNNAMED if has_encrypted else _OFF
    if keys.is_away():
        return _AWAY.format(keys.folder)
    count = len(set(users) - {SYSTEM_USER})
    system = " and of system" if SYSTEM_USER in users else ""
    return f"encryption is on; keys of {counted(count, 'user')}{system} in {keys.folder}"


@encryption.command(short_help="Destroy a user's key, making the data unreadable.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options_where_user("Whose key.")
def destroy(target: Target, yes: bool) -> None:
    """Destroy the key of --user, so that the user's data can no longer be read, here or in any backup.

    Takes effect at once in every process. Without a daemon, events that conductors published as `system` about the
    user's runs are erased too. Prints which data remains. You must remove copies of the keys folder yourself.

    \b
    Examples:
      memory-agent encryption destroy --user alice
    """
    if not target.user_named:
        raise click.UsageError("--user is required; it names the user whose key is destroyed")
    if target.user_id == SYSTEM_USER:
        raise click.UsageError(
            "the key of the user `system` encrypts data about several users; destroy those users' keys instead"
        )
    keys = target.keys
    if keys is None:
        raise click.UsageError(_OFF)
    if not keys.has(target.user_id):
        raise EncryptionKeyMissingError(target.user_id, str(keys.folder))
    if not yes:
        confirm(f"destroy the key of {target.user_id}, so that the data can never be read again?")
    from memory_agent.care import destroy_user_key  # imports the engines

    is_served = uses_daemon(target)
    destroyed = destroy_user_key(
        target.data_dir, target.settings, target.user_id, datetime.now(UTC), is_served=is_served
    )
    _print(target, destroyed)


def _print(target: Target, destroyed: DestroyedKey) -> None:
    if printed_json(target.as_json, destroyed):
        return
    click.echo(f"the key of {target.user_id} is destroyed")
    for left in destroyed.left:
        click.echo(f"left: {left}")
    if destroyed.left:
        words = ["memory-agent", "forget", "--user", target.user_id, "--user-all", "--data-dir", str(target.data_dir)]
        click.echo(f"remove it: {shlex.join(words)}")


@click.command()
@options_where_user(ONLY)
def encrypt(target: Target) -> None:
    """Encrypt the data folder, with a separate key for each user in encryption.keys_folder.

    Without --user, encrypts everything: all users, the journal, and the run owners. Stop the daemon first. Needs disk
    space for a copy of the largest part. If it is interrupted, each part is either plain or encrypted, and running the
    command again continues the work. Vectors in pgvector or LanceDB must first be moved to another index, unless
    index.allow_plain is set. If you lose the keys folder, you lose the data: back it up separately from the data.
    Earlier backups, exports and files that a restore moved aside stay unencrypted. The disk may retain blocks of the
    unencrypted files until it overwrites them.

    \b
    Examples:
      memory-agent encrypt --config memory-agent.toml
      memory-agent encrypt --set encryption.keys_folder=/srv/keys --user alice
    """
    from memory_agent.care import encrypt_folder  # imports the engines

    with progress_bars() as report:
        encrypted = encrypt_folder(
            target.data_dir, target.settings, datetime.now(UTC), report, target.only_user, skip_without_key(target)
        )
    if target.as_json:
        print_document({"users": encrypted.users, "journal": not target.user_named})
    for user in () if target.as_json else encrypted.users:
        done = "was encrypted" if user.was_encrypted else f"{size(user.bytes_before)} -> {size(user.bytes_after)}"
        click.echo(f"user {user.user_id}: {counted(user.memories, 'memory', 'memories')}, {done}")
    if encrypted.plain_leftovers:
        note(f"files that a restore moved aside are not encrypted; remove {', '.join(encrypted.plain_leftovers)}")
    if plain := [user.user_id for user in encrypted.users if user.plain_index]:
        note(f"index.allow_plain is set: the vectors of {', '.join(plain)} stay unencrypted")
