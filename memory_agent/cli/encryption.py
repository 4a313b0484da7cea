"""`encryption status|destroy`: what is encrypted at rest, and a user's key destroyed, with which all of it is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from memory_agent.cli.access import asks_daemon
from memory_agent.cli.confirming import confirm
from memory_agent.cli.journal_files import erase_events, owners_of, ownership
from memory_agent.cli.options import Target, common_options, options_where_user
from memory_agent.cli.render import print_document, print_table
from memory_agent.storage.folders import user_folder
from relay import SYSTEM_USER, EncryptionKeyMissingError, Erasable
from relay.crypto import KeyRing

_OFF = "encryption is off: whoever reads the disk reads everything. Name a folder in encryption.keys_folder"
_UNNAMED = "something here is encrypted, and no folder of keys is set: name it in encryption.keys_folder"
_AWAY = (
    "{} does not hold the keys of this data folder: is the right folder mounted there? Nothing new is kept meanwhile"
)


@click.group(short_help="Encryption at rest: what is encrypted; destroy a key.")
def encryption() -> None:
    """Encryption at rest, each user's data with a key of its own: on with the setting encryption.keys_folder.

    The folder of keys lies outside the data folder and belongs into no backup of it: without the key nothing of its
    user can be read, in the data folder or in any backup. Losing the folder is losing the data.

    \b
    Examples:
      memory-agent encryption status
      memory-agent encryption destroy --user alice
    """


@encryption.command(short_help="Show what is encrypted, and who has a key.")
@common_options
def status(target: Target) -> None:
    """Show whether encryption is on, which stores are encrypted, plain or locked, and which users have keys.

    `locked` is encrypted with a key that is not in the folder of keys. `system` has the key of what belongs to many
    users. Works beside a daemon, and changes nothing. A folder of keys that is away, or another one, comes first.

    \b
    Examples:
      memory-agent encryption status
      memory-agent encryption status --json
    """
    from memory_agent.care.encrypting import store_encryptions  # engines

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
    return f"encryption is on; keys of {count} user{'' if count == 1 else 's'}{system} in {keys.folder}"


@encryption.command(short_help="Destroy a user's key: nothing of the user can be read again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options_where_user("Whose key.")
def destroy(target: Target, yes: bool) -> None:
    """Destroy the key of the user that --user names: nothing of the user can be read again, nor in any backup.

    At once for every process, whether a daemon runs or not. Where none runs, what conductors published as `system`
    about the user's runs is erased too. Says what is left. Copies of the folder of keys are yours to remove.

    \b
    Examples:
      memory-agent encryption destroy --user alice
      memory-agent encryption destroy --user alice --yes --json
    """
    if not target.user_named:
        raise click.UsageError("name whose key: --user")
    if target.user_id == SYSTEM_USER:
        raise click.UsageError("the key of system encrypts what belongs to many users: destroy the users' own keys")
    keys = target.keys
    if keys is None:
        raise click.UsageError(_OFF)
    if not keys.has(target.user_id):
        raise EncryptionKeyMissingError(target.user_id, str(keys.folder))
    if not yes:
        confirm(f"destroy the key of {target.user_id}, so that nobody can read that user's data again?")
    _print(target, _destroy(target, keys))


def _destroy(target: Target, keys: KeyRing) -> dict[str, Any]:
    keys.destroy(target.user_id)
    is_served = asks_daemon(target)
    of_system = 0 if is_served else _erase_of_system(target)
    left = []
    folder = user_folder(target.data_dir, target.user_id)
    if folder.exists():
        left.append(f"{folder}, which nobody can read")
    if is_served:
        left.append("what conductors published as system about the user's runs, which the key of system encrypts")
    return {"user_id": target.user_id, "destroyed": True, "events_of_system": of_system, "left": left}


def _erase_of_system(target: Target) -> int:
    """Erase what only the key of `system` still reads: events of the user's runs, and which runs those were."""
    with owners_of(target) as owners:
        nothing_else = Erasable(user_id=target.user_id)
        erased = erase_events(target, nothing_else, ownership(target, owners), datetime.now(UTC), dry_run=False)
        if owners is not None:
            owners.forget(target.user_id)
    return len(erased.seqs)


def _print(target: Target, document: dict[str, Any]) -> None:
    if target.as_json:
        print_document(msgspec.to_builtins(document))
        return
    click.echo(f"the key of {target.user_id} is destroyed")
    for left in document["left"]:
        click.echo(f"left: {left}")
    if document["left"]:
        click.echo(f"remove it: memory-agent forget --user {target.user_id} --user-all")
