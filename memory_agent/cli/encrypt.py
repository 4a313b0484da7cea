"""`encrypt`: a data folder that is not encrypted, turned into one that is."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from memory_agent.cli.each_user import skip_without_key
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, size


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
    from memory_agent.care.encryption import encrypt_folder  # imports the engines

    user_id = target.user_id if target.user_named else None
    with progress_bars() as report:
        encrypted = encrypt_folder(
            target.data_dir, target.settings, datetime.now(UTC), report, user_id, skip_without_key(target)
        )
    if target.as_json:
        print_document({"users": encrypted.users, "journal": not target.user_named})
    for user in () if target.as_json else encrypted.users:
        done = "was encrypted" if user.was_encrypted else f"{size(user.bytes_before)} -> {size(user.bytes_after)}"
        click.echo(f"user {user.user_id}: {user.memories} memories, {done}")
    if encrypted.plain_leftovers:
        note(f"what a restore put aside is not encrypted: remove {', '.join(encrypted.plain_leftovers)}")
