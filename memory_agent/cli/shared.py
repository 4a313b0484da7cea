"""`shared …`: manage a user's items, and find other users' items. The publishing commands are in `preview`."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from memory_agent.cli.access import open_client, open_memory
from memory_agent.cli.blocks import Followed, following_options
from memory_agent.cli.command import Group, SectionedCommand
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import STANDARD_STREAM, Target, check_output, daemon_options, read_text
from memory_agent.cli.preview import confirm, offer, preview
from memory_agent.cli.render import (
    counted,
    emit,
    file_facts,
    one_line,
    print_document,
    print_memory,
    print_table,
    printed_json,
    size,
    without_vector,
)
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.recall.context import worth
from memory_agent.records.shared import FoundItem, GlobalRecord, SharedChange
from memory_agent.verbs.shared_params import RateParams, SearchSharedParams
from relay.disk import write_private

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient

_LOOK_S = 0.2
_file = click.Path(dir_okay=False, path_type=Path)
_item = click.argument("item_id", metavar="ID")


@click.group(cls=Group)
def shared() -> None:
    """Shared items: publish and manage your own, and find and rate those of other users.

    Only `confirm` and `offer` send anything to others, and they send exactly what the preview showed. Others see a
    pseudonym, or the name set with `name`. (`memory-agent publish` sends events to your own memory.)

    \b
    Examples:
      memory-agent shared preview runbook.md --tag deploy --out preview.json
      memory-agent shared confirm preview.json
      memory-agent shared search "the deploy to staging hangs"
      memory-agent recall "the deploy to staging hangs" --tier local --tier global
      memory-agent shared unpublish 01KHJY9080NWG22H9Q8BBD7B80
    """


for _command in (preview, confirm, offer):
    shared.add_command(_command)


@shared.command(short_help="List the patterns that you offer.")
@daemon_options
def offered(target: Target) -> None:
    """List the offers of --user, newest first, each with the published item that includes it.

    \b
    Examples:
      memory-agent shared offered
    """
    with open_memory(target, "offered") as memory:
        found = memory.shared.offered()
    if printed_json(target.as_json, found):
        return
    rows = (
        (one.offered_at, one.content.access_policy, one.proposed_as or "", one.content.item_id, one.content.title)
        for one in found
    )
    print_table(counted(len(found), "offer"), ("offered", "for", "shown as", "id", "title"), rows, whole="id")


@shared.command(short_help="Withdraw an item or an offer, immediately.")
@_item
@daemon_options
def unpublish(target: Target, item_id: str) -> None:
    """Withdraw the item or offer ID with its figures; from then on, no result contains it.

    The item's bytes are removed from the files at the daemon's next upkeep, or immediately if no daemon is running.
    Only the item's author, or the holder of a key with the scope shared-admin, may withdraw the item. The exit code is
    1 if the user has no such item.

    \b
    Examples:
      memory-agent shared unpublish 01KHJY9080NWG22H9Q8BBD7B80
    """
    with open_memory(target, "unpublish") as memory:
        receipt = memory.shared.unpublish(item_id)
    if target.as_json:
        print_document(receipt)
    elif receipt.found:
        click.echo(f"withdrew {receipt.item_id}, version {', '.join(receipt.versions)}")
    else:
        note(f"nothing was withdrawn: this user has no item {one_line(item_id)}")
    if not receipt.found:
        raise SystemExit(ExitCode.FAILED)


@shared.command(short_help="Rate another user's item, or withdraw a rating.")
@_item
@click.argument("rating", required=False, type=click.FloatRange(0, 1))
@field_options(RateParams)
@click.option("--take-back", is_flag=True, help="Withdraw your rating.")
@daemon_options
def rate(target: Target, item_id: str, rating: float | None, version: str | None, take_back: bool) -> None:
    """Rate the item ID from 0 to 1. Replaces your earlier rating.

    Prints the figures that everybody sees; they change once enough different users have rated the item.

    \b
    Examples:
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 0.8
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 1 --version 1.2 --json
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 --take-back
    """
    if take_back == (rating is not None):
        raise click.UsageError("specify either a RATING from 0 to 1 or --take-back")
    with open_memory(target, "rate") as memory:
        figures = memory.shared.rate(item_id, rating, version)
    if not printed_json(target.as_json, figures):
        did = "withdrew the rating" if take_back else f"rated {rating:g}"
        click.echo(f"{did}; everybody sees: {', '.join(worth(figures))}")
        if not figures.raters:
            note("ratings of this version are shown once five users have rated it and upkeep has run")


@shared.command(short_help="List your published items, with their figures.")
@daemon_options
def published(target: Target) -> None:
    """List the items of --user, newest first, with the figures that everybody sees. --json includes their texts.

    \b
    Examples:
      memory-agent shared published
    """
    with open_memory(target, "published") as memory:
        items = memory.shared.published()
    if printed_json(target.as_json, [without_vector(item) for item in items]):
        return
    columns = ("published", "type", "version", "for", "figures", "file", "id", "title")
    total = f"{counted(len(items), 'item')}, {size(sum(item.size_bytes for item in items))}"
    print_table(total, columns, map(_row, items), whole="id")


@shared.command(short_help="Find what others published.")
@click.argument("text", metavar="QUERY")
@field_options(SearchSharedParams, top_k="-k --top-k", content_types="--type")
@daemon_options
def search(target: Target, text: str, **fields: Any) -> None:
    """Find shared items that resemble QUERY and that the user may see, best first. QUERY may be - for standard input.

    These items were written by other users. QUERY is not stored. `memory-agent recall --tier local --tier global`
    searches them together with your own memories.

    \b
    Examples:
      memory-agent shared search "the deploy to staging hangs"
      memory-agent shared search "review SQL" --type agent --type app --tag sql -k 3
      memory-agent shared search - --json < question.txt
    """
    with open_memory(target, "search_shared") as memory:
        found = memory.shared.search(read_text(text), **fields)
    documents = [{**msgspec.to_builtins(one), "item": without_vector(one.item)} for one in found]
    if not printed_json(target.as_json, documents):
        _print_items(found)
        emit(Text(counted(len(found), "item"), style="dim"))


@shared.command(short_help="Show an item by its id.")
@_item
@daemon_options
def show(target: Target, item_id: str) -> None:
    """Show the item ID, if the user published it or may see it. The text may have been written by another user.

    \b
    Examples:
      memory-agent shared show 01KHJY9080NWG22H9Q8BBD7B80
    """
    with open_memory(target, "shared_item") as memory:
        item = memory.shared.item(item_id)
    if not printed_json(target.as_json, without_vector(item)):
        _print_items([FoundItem(item=item, score=None, sona_score=0.0)], is_ranked=False)


@shared.command(cls=SectionedCommand, short_help="Follow what is published, unpublished and rated.")
@click.option("--after", type=click.IntRange(min=0), metavar="NUMBER",
              help="Continue after this journal number (`seq` in --json). Default: from now on.")  # fmt: skip
@following_options
@daemon_options
def follow(target: Target, after: int | None, followed: Followed) -> None:
    """Print changes to the shared items that the key may see: publications, withdrawals and new ratings.

    The events contain no titles. A title is looked up while the item is visible, so that a later removal can be printed
    with the title. If an item was not visible when the command started, its removal is printed with a fingerprint
    (`item`) instead of a title. --json prints each change as a JSON object on one line.

    \b
    Examples:
      memory-agent shared follow
      memory-agent shared follow --after 0 --count 10 --json
    """
    relay = followed.relay(target)
    with open_client(target) as client, client.shared_changes(after, relay=relay) as following:
        titles = _Titles(client)
        with client.shared_changes(0, relay=relay) as earlier:
            while earlier.seq < following.seq and (change := earlier.wait(_LOOK_S)) is not None:
                titles.of(change)
        if not target.as_json:
            note("following changes to shared items; stop with Ctrl-C")
        for change in followed.each(following):
            title = titles.of(change)
            if target.as_json:
                titled = {} if title is None else {"title": title}
                click.echo(msgspec.json.encode({"seq": following.seq, **msgspec.to_builtins(change), **titled}))
                continue
            named = (title, change.item_id or change.item, change.version, change.content_type, change.access_policy)
            click.echo(one_line(" · ".join(filter(None, (change.kind, *named)))))


class _Titles:
    """Titles of the items that a follower could see, keyed by the items' fingerprints. They identify removed items."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._titles: dict[str, str] = {}

    def of(self, change: SharedChange) -> str | None:
        if change.item_id is None:
            return self._titles.pop(change.item, None)
        if change.kind == "published" or change.item not in self._titles:
            with suppress(InvalidInputError, UnavailableError):  # it has been removed since
                self._titles[change.item] = self._client.shared.item(change.item_id).title
        return self._titles.get(change.item)


@shared.command(short_help="Fetch an item's attachment.")
@_item
@click.option(
    "--out",
    required=True,
    type=_file,
    metavar="FILE",
    help="Write the attachment to this file (0600), or to standard output with -.",
)
@click.option("--replace", is_flag=True, help="Replace an existing file.")
@daemon_options
def attachment(target: Target, item_id: str, out: Path, replace: bool) -> None:
    """Write the attachment of the item ID to a file. It comes from another user: check it before you use it.

    \b
    Examples:
      memory-agent shared attachment 01KHJY9080NWG22H9Q8BBD7B80 --out agent.tar.gz
      memory-agent shared attachment 01KHJY9080NWG22H9Q8BBD7B80 --out - | tar -tz
    """
    check_output(target, out)
    if out != STANDARD_STREAM and out.exists() and not (replace and out.is_file()):
        raise InvalidInputError("out", f"{out} already exists; choose a different file or use --replace")
    with open_memory(target, "shared_attachment") as memory:
        found = memory.shared.attachment(item_id)
    if out == STANDARD_STREAM:
        sys.stdout.buffer.write(found.data)
        return
    write_private(out, found.data)
    if not printed_json(target.as_json, {"file": str(out), "attachment": found.attachment}):
        click.echo(f"wrote {out}: {file_facts(found.attachment)}")


@shared.command(short_help="Show or set the name that others see.")
@click.argument("name", required=False)
@click.option("--none", "is_none", is_flag=True, help="Remove the name; others see a pseudonym again.")
@daemon_options
def name(target: Target, name: str | None, is_none: bool) -> None:
    """Show the author name that others see on the items of --user. NAME sets the name, including on published items.

    Part of the user's pseudonym is appended, as in "Ann #3f2a9c", so that no two users have the same name.

    \b
    Examples:
      memory-agent shared name
      memory-agent shared name "Ann of the platform team"
      memory-agent shared name --none
    """
    if is_none and name is not None:
        raise click.UsageError("NAME and --none cannot be combined")
    is_read = name is None and not is_none
    with open_memory(target, "own_name" if is_read else "shared_name") as memory:
        seen = memory.shared.name() if is_read else memory.shared.set_name(name)
    if target.as_json:
        print_document({"name": seen})
    elif seen is None:
        click.echo("nobody has shared anything here yet; others will see a pseudonym unless you set a name")
    else:
        click.echo(f"others see: {one_line(seen)}")


def _print_items(found: list[FoundItem], *, is_ranked: bool = True) -> None:
    from memory_agent.recall.shared import as_memories

    now = datetime.now(UTC)
    for place, memory in enumerate(as_memories(found, with_embedding=False), 1):
        print_memory(place if is_ranked else None, memory, now, is_whole=not is_ranked)


def _row(item: GlobalRecord) -> tuple[object, ...]:
    figures = ", ".join(worth(item.quality_metrics))
    file = "" if item.attachment is None else f"{one_line(item.attachment.name)}, {size(item.attachment.size_bytes)}"
    return (item.published_at, item.content_type, item.version, item.access_policy, figures, file, item.id, item.title)
