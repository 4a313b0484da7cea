"""`keys create|list|rotate|revoke`: credentials for the daemon of this data folder, by user, scope and group."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from memory_agent.cli.command import SectionedCommand, as_struct
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.render import print_document, print_table
from relay import (
    ALL_SCOPES,
    LOCAL,
    TOKEN_FILE,
    KeyDocument,
    Scope,
    StoredKey,
    create_key,
    curve_pair,
    ensure_local_key,
    read_key_file,
    read_keys,
    revoke_key,
    rotate_key,
    server_pair,
)
from relay.disk import write_private


def _scopes(_context: click.Context, _parameter: click.Parameter, text: str) -> frozenset[Scope]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - {scope.value for scope in ALL_SCOPES})
    if unknown or not names:
        known = ", ".join(scope.value for scope in Scope)
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is not a scope; there are: {known}")
    return frozenset(map(Scope, names))


@click.group()
def keys() -> None:
    """Access keys for callers other than the owner of the data folder: for one user or all, with scopes.

    The owner has the key `local` for all users and scopes: the file `token` in the data folder. These commands change
    the key file, whether a daemon runs or not; a change takes effect with the next request.

    \b
    Scopes, none of which implies another:
      publish        store events and memories, report runs
      recall         read memories and runs
      share          publish items for other users, unpublish them, rate items
      shared-admin   with share: withdraw an item of any user
      admin          forget, export, and with --all-users manage the daemon

    \b
    Examples:
      memory-agent keys create alice-laptop --user alice --scope publish,recall,share --org acme
      memory-agent keys create planner --all-users --curve --out planner.key
      memory-agent keys list
      memory-agent keys rotate local
      memory-agent keys revoke alice-laptop
    """


class _Rights(NamedTuple):
    """The rights of a key, and the groups whose shared items it finds."""

    scopes: frozenset[Scope]
    orgs: tuple[str, ...]
    tier: str | None


@keys.command(cls=SectionedCommand, short_help="Create a key and print it once.")
@click.argument("name")
@click.option("--all-users", is_flag=True, help="For all users, instead of --user.")
@click.option("--scope", "scopes", default="publish,recall", show_default=True, callback=_scopes, metavar="LIST",
              help="Scopes, comma-separated; see `memory-agent keys --help`.")  # fmt: skip
@click.option("--org", "orgs", multiple=True, metavar="NAME",
              help="An organisation: the key finds what is shared with it. May be repeated.")  # fmt: skip
@click.option("--tier", metavar="NAME", help="The tier: the key finds what is shared with it.")
@click.option("--curve", is_flag=True, help="A CURVE key pair, for curve+tcp:// endpoints, instead of a token.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the key there (0600), for --key-file, instead of printing it.")  # fmt: skip
@options_where_user("Whose memory the key is for.")
@as_struct("rights", _Rights)
def create(target: Target, name: str, all_users: bool, rights: _Rights, curve: bool, out: Path | None) -> None:
    """Create the key NAME for one user or for all. It is shown once; the data folder keeps only its digest.

    A token works on the socket file and on loopback (MEMORY_AGENT_TOKEN, --key-file). Other machines need --curve.
    Names of organisations and tiers have 1 to 64 ASCII letters, digits and ._-; a key that names an organisation or a
    tier creates it.

    \b
    Examples:
      memory-agent keys create alice-laptop --user alice
      memory-agent keys create bob-laptop --user bob --scope publish,recall,share --org acme --org labs --tier pro
      memory-agent keys create conductor --all-users --scope publish --out conductor.key
      memory-agent keys create planner --user alice --scope recall --curve --out planner.key
    """
    if all_users == target.user_named:
        raise click.UsageError("give --user ID or --all-users (not both)")
    if out is not None and out.exists():
        raise click.UsageError(f"{out} exists; choose another file")
    ensure_local_key(target.data_dir)
    pair = curve_pair() if curve else None
    user_id = None if all_users else target.user_id
    orgs = frozenset(rights.orgs)
    document = create_key(target.data_dir, name, user_id, rights.scopes, pair, orgs=orgs, tier=rights.tier)
    if curve:
        document = msgspec.structs.replace(document, server=server_pair(target.data_dir, curve_pair).public)
    _hand_out(target, document, out)


@keys.command(short_help="Replace a key's secret; the old one stops working.")
@click.argument("name")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the key there (0600) instead of printing it; may be the key's old file.")  # fmt: skip
@options_where_user(UNUSED)
def rotate(target: Target, name: str, out: Path | None) -> None:
    """Replace the secret of the key NAME, and print it once. The old secret stops working with the next request.

    The key `local` is the data folder's own key. Its new token is written to the file `token`, from which the daemon
    and clients on this machine read it.

    \b
    Examples:
      memory-agent keys rotate local
      memory-agent keys rotate conductor --out conductor.key
    """
    if out is not None and out.exists() and read_key_file(out).id != name:
        raise click.UsageError(f"{out} is not a file of the key {name}; choose another")
    if out is not None and name == LOCAL:
        raise click.UsageError(f"the key {LOCAL} has its file: {target.data_dir / TOKEN_FILE}")
    document = rotate_key(target.data_dir, name, curve_pair)
    if document.public:
        document = msgspec.structs.replace(document, server=server_pair(target.data_dir, curve_pair).public)
    if name == LOCAL:
        shown = {"id": name, "file": str(target.data_dir / TOKEN_FILE)}
        print_document(shown) if target.as_json else click.echo(f"rotated {name}: its token is in {shown['file']}")
    else:
        _hand_out(target, document, out)


def _hand_out(target: Target, document: KeyDocument, out: Path | None) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=1)
    if out is not None:
        write_private(out, encoded + b"\n")
        shown = {"id": document.id, "user_id": document.user_id, "file": str(out)}
        print_document(shown) if target.as_json else click.echo(f"wrote {out}; use it with --key-file {out}")
    elif document.token and not target.as_json:
        click.echo(document.token)
    else:
        click.echo(encoded.decode())


@keys.command("list", short_help="List keys, also revoked ones.")
@options_where_user(UNUSED)
def list_keys(target: Target) -> None:
    """List the keys of the data folder, including revoked ones. Tokens are not shown, because they are not stored.

    \b
    Examples:
      memory-agent keys list
      memory-agent keys list --json
    """
    found = read_keys(target.data_dir)
    if target.as_json:
        print_document([_shown(key) for key in found])
    elif not found:
        click.echo("there are no keys yet; the first start of a daemon makes the key local")
    else:
        columns = ("id", "user", "scopes", "orgs", "tier", "by", "created", "revoked")
        print_table("keys", columns, map(_row, found))


@keys.command(short_help="Revoke a key at once.")
@click.argument("name")
@options_where_user(UNUSED)
def revoke(target: Target, name: str) -> None:
    """Revoke the key NAME: its next request is refused, even on open connections.

    \b
    Examples:
      memory-agent keys revoke alice-laptop
    """
    key = revoke_key(target.data_dir, name)
    print_document(_shown(key)) if target.as_json else click.echo(f"revoked {key.id}")


def _shown(key: StoredKey) -> dict[str, object]:
    return {
        "id": key.id,
        "user_id": key.user_id,
        "scopes": _scope_names(key),
        "orgs": key.orgs,
        "tier": key.tier,
        "kind": _kind(key),
        "created": key.created,
        "revoked": key.revoked,
    }


def _row(key: StoredKey) -> tuple[object, ...]:
    return (key.id, key.user_id or "all", _scope_names(key), key.orgs, key.tier, _kind(key), key.created, key.revoked)


def _scope_names(key: StoredKey) -> list[str]:
    return sorted(scope.value for scope in key.principal.scopes)


def _kind(key: StoredKey) -> str:
    return "curve" if key.curve_public else "token"
