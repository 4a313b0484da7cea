"""`keys create|list|assign|rotate|revoke`: credentials for this data folder's daemon, by user, scope and group."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

import relay
from memory_agent.cli.command import Group, SectionedCommand, as_struct
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.render import print_document, print_table, printed_json
from relay.disk import write_private

_OF_ALL_USERS = frozenset({relay.Scope.JOIN, relay.Scope.METRICS})
"""Scopes that have no effect on a key for one user."""


def _scopes(_context: click.Context, _parameter: click.Parameter, text: str) -> frozenset[relay.Scope]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - {scope.value for scope in relay.ALL_SCOPES})
    if unknown or not names:
        known = ", ".join(scope.value for scope in relay.Scope)
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is not a scope; scopes are: {known}")
    return frozenset(map(relay.Scope, names))


@click.group(cls=Group)
def keys() -> None:
    """Access keys for callers other than the data folder's owner. Each key has scopes, and is for one user or for all
    users.

    The owner's key, `local`, is valid for all users and has all scopes; its token is stored in the file `token` in the
    data folder. These commands change the key file whether or not a daemon is running; changes take effect with the
    next request.

    \b
    Scopes; no scope implies another:
      publish        store events and memories, report runs
      recall         read memories and runs
      share          publish items for other users, unpublish them, rate items
      shared-admin   with share: withdraw an item of any user
      join           with --all-users: join the cluster, hosting users
      metrics        with --all-users: read the daemon's figures, for Prometheus
      admin          forget, export, and with --all-users manage the daemon

    \b
    Examples:
      memory-agent keys create alice-laptop --user alice --scope publish,recall,share --org acme
      memory-agent keys create planner --all-users --curve --out planner.key
      memory-agent keys create prometheus --all-users --scope metrics
      memory-agent keys assign alice-laptop alice-ci --person alice
      memory-agent keys list
      memory-agent keys rotate local
      memory-agent keys revoke alice-laptop
    """


class _Rights(NamedTuple):
    """A key's scopes, the groups whose shared items it can find, and its holder."""

    scopes: frozenset[relay.Scope]
    orgs: tuple[str, ...]
    tier: str | None
    person: str | None


@keys.command(cls=SectionedCommand, short_help="Create a key and print it once.")
@click.argument("name")
@click.option("--all-users", is_flag=True, help="Create a key for all users, instead of one for --user.")
@click.option("--scope", "scopes", default="publish,recall", show_default=True, callback=_scopes, metavar="LIST",
              help="Scopes, comma-separated; see `memory-agent keys --help`.")  # fmt: skip
@click.option("--org", "orgs", multiple=True, metavar="NAME",
              help="An organisation whose shared items the key can find. May be repeated.")  # fmt: skip
@click.option("--tier", metavar="NAME", help="The tier whose shared items the key can find.")
@click.option("--person", metavar="NAME",
              help="The person who holds the key; the person's users have one vote on shared items.")  # fmt: skip
@click.option("--curve", is_flag=True, help="Create a CURVE key pair, for curve+tcp:// endpoints, instead of a token.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the key to this file (0600), for --key-file, instead of printing it.")  # fmt: skip
@options_where_user("The user whose memory the key opens.")
@as_struct("rights", _Rights)
def create(target: Target, name: str, all_users: bool, rights: _Rights, curve: bool, out: Path | None) -> None:
    """Create the key NAME for one user or for all users. It is shown only once; the data folder stores only its digest.

    A token works over the socket file and loopback (MEMORY_AGENT_TOKEN, --key-file). Connections from other machines
    require --curve. Names of organisations, tiers and persons consist of 1 to 64 ASCII letters, digits and the
    characters ._-; an organisation, tier or person exists as soon as a key refers to it. If a user's keys belong to a
    person, a new key of that user also belongs to that person.

    \b
    Examples:
      memory-agent keys create alice-laptop --user alice
      memory-agent keys create bob-laptop --user bob --scope publish,recall,share --org acme --org labs --tier pro
      memory-agent keys create bob-ci --user bob-ci --person bob
      memory-agent keys create conductor --all-users --scope publish --out conductor.key
      memory-agent keys create planner --user alice --scope recall --curve --out planner.key
    """
    if all_users == target.user_named:
        raise click.UsageError("specify either --user ID or --all-users")
    useless = sorted(_OF_ALL_USERS & rights.scopes)
    if useless and not all_users:
        raise click.UsageError(f"the scope {useless[0].value} requires --all-users")
    if out is not None and out.exists():
        raise click.UsageError(f"{out} already exists; choose a different file")
    _check_person(target, rights.person, all_users)
    relay.ensure_local_key(target.data_dir)
    pair = relay.curve_pair() if curve else None
    user_id = None if all_users else target.user_id
    orgs = frozenset(rights.orgs)
    document = relay.create_key(
        target.data_dir, name, user_id, rights.scopes, pair, orgs=orgs, tier=rights.tier, person=rights.person
    )
    if curve:
        document = msgspec.structs.replace(document, server=relay.server_pair(target.data_dir, relay.curve_pair).public)
    _hand_out(target, document, out)


def _check_person(target: Target, person: str | None, all_users: bool) -> None:
    if person is None:
        return
    if all_users:
        raise click.UsageError("--person requires --user: a key for all users belongs to no person")
    relay.validate_group_name("person", person)
    known = relay.person_of(relay.read_keys(target.data_dir), target.user_id)
    if known not in (None, person):
        raise click.UsageError(
            f"the keys of {target.user_id} belong to the person {known}; to change that: memory-agent keys assign"
        )


@keys.command(short_help="Record which person holds the given keys.")
@click.argument("names", nargs=-1, required=True)
@click.option("--person", metavar="NAME", help="The person who holds the keys.")
@click.option("--no-person", is_flag=True, help="Remove the person; each user votes separately again.")
@options_where_user(UNUSED)
def assign(target: Target, names: tuple[str, ...], person: str | None, no_person: bool) -> None:
    """Record which person holds the keys NAMES and all other keys of the same users. To rename a person, assign the
    keys to the new name.

    In the figures of shared items, all users of a person share one vote. This also applies to earlier votes. The
    figures change at the next upkeep, and are withheld if too few other users remain. The keys' permissions do not
    change.

    \b
    Examples:
      memory-agent keys assign bob-laptop bob-ci --person bob
      memory-agent keys assign bob-ci --no-person
    """
    if no_person == (person is not None):
        raise click.UsageError("specify either --person NAME or --no-person")
    changed = relay.set_person(target.data_dir, names, person)
    if not printed_json(target.as_json, [_shown(key) for key in changed]):
        click.echo(f"{', '.join(key.id for key in changed)}: {'no person' if person is None else f'person {person}'}")


@keys.command(short_help="Replace a key's secret; the old one stops working.")
@click.argument("name")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the key to this file (0600), such as the old key file, instead of printing it.")  # fmt: skip
@options_where_user(UNUSED)
def rotate(target: Target, name: str, out: Path | None) -> None:
    """Replace the secret of the key NAME, and print it once. The old secret stops working with the next request.

    The key's age and the person who holds it do not change.

    The key `local` is the data folder's own key. Its new token is written to the file `token`, from which the daemon
    and clients on this machine read it.

    \b
    Examples:
      memory-agent keys rotate local
      memory-agent keys rotate conductor --out conductor.key
    """
    if out is not None and out.exists() and relay.read_key_file(out).id != name:
        raise click.UsageError(f"{out} does not contain the key {name}; choose a different file")
    if out is not None and name == relay.LOCAL:
        raise click.UsageError(
            f"--out cannot be used with the key {relay.LOCAL}, which is stored in {target.data_dir / relay.TOKEN_FILE}"
        )
    document = relay.rotate_key(target.data_dir, name, relay.curve_pair)
    if document.public:
        document = msgspec.structs.replace(document, server=relay.server_pair(target.data_dir, relay.curve_pair).public)
    if name == relay.LOCAL:
        shown = {"id": name, "file": str(target.data_dir / relay.TOKEN_FILE)}
        print_document(shown) if target.as_json else click.echo(f"rotated {name}: its token is in {shown['file']}")
    else:
        _hand_out(target, document, out)


def _hand_out(target: Target, document: relay.KeyDocument, out: Path | None) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=1)
    if out is not None:
        write_private(out, encoded + b"\n")
        shown = {"id": document.id, "user_id": document.user_id, "file": str(out)}
        print_document(shown) if target.as_json else click.echo(f"wrote {out}; use it with --key-file {out}")
    elif document.token and not target.as_json:
        click.echo(document.token)
    else:
        click.echo(encoded.decode())


@keys.command("list", short_help="List keys, including revoked ones.")
@options_where_user(UNUSED)
def list_keys(target: Target) -> None:
    """List the data folder's keys, including revoked ones. Tokens are not shown, because they are not stored.

    A key's age is counted from its creation, even if the key was rotated later. A person's votes on shared items are
    counted only if the person's oldest key is at least `shared.votes_after_days` days old.

    \b
    Examples:
      memory-agent keys list
    """
    found = relay.read_keys(target.data_dir)
    if target.as_json:
        print_document([_shown(key) for key in found])
    elif not found:
        click.echo("no keys yet; the key local is created when a daemon first starts")
    else:
        columns = ("id", "user", "scopes", "orgs", "tier", "person", "by", "created", "days", "revoked")
        print_table("keys", columns, map(_row, found))


@keys.command(short_help="Revoke a key at once.")
@click.argument("name")
@options_where_user(UNUSED)
def revoke(target: Target, name: str) -> None:
    """Revoke the key NAME: its next request is rejected, even on an open connection.

    \b
    Examples:
      memory-agent keys revoke alice-laptop
    """
    key = relay.revoke_key(target.data_dir, name)
    print_document(_shown(key)) if target.as_json else click.echo(f"revoked {key.id}")


def _shown(key: relay.StoredKey) -> dict[str, object]:
    return {
        "id": key.id,
        "user_id": key.user_id,
        "person": key.person,
        "scopes": _scope_names(key),
        "orgs": key.orgs,
        "tier": key.tier,
        "kind": _kind(key),
        "created": key.created,
        "age_days": _age_days(key),
        "revoked": key.revoked,
    }


def _row(key: relay.StoredKey) -> tuple[object, ...]:
    holder = (key.orgs, key.tier, key.person, _kind(key))
    return (key.id, key.user_id or "all", _scope_names(key), *holder, key.created, _age_days(key), key.revoked)


def _age_days(key: relay.StoredKey) -> int:
    return max((datetime.now(UTC) - key.created).days, 0)


def _scope_names(key: relay.StoredKey) -> list[str]:
    return sorted(scope.value for scope in key.principal.scopes)


def _kind(key: relay.StoredKey) -> str:
    return "curve" if key.curve_public else "token"
