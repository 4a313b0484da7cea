"""`shared …`: publish something for other users, see to what one has published, and find what others did.

What would leave is shown before, word for word; only `confirm` sends it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.text import Text

from memory_agent.cli.access import open_client, open_for_reading
from memory_agent.cli.failure import confirm as ask_person
from memory_agent.cli.failure import note
from memory_agent.cli.following import each, following_options, named_relay
from memory_agent.cli.options import Target, daemon_options, given, read_text
from memory_agent.cli.progress import waiting
from memory_agent.cli.render import (
    counted,
    emit,
    one_line,
    plain,
    print_document,
    print_memory,
    print_table,
    shown,
    size,
)
from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import worth
from memory_agent.shared_content import MOST_ATTACHED_BYTES, texts_of
from memory_agent.shared_records import (
    CONTENT_TYPES,
    Attachment,
    ContentType,
    FoundItem,
    GlobalRecord,
    PublishPreview,
)
from relay.disk import write_private

_STANDARD_STREAM = Path("-")
_MARGIN, _MARKED = "   ", " ! "
_MASKED = "[masked:"
_DOES = {False: "publish", True: "offer"}
_file = click.Path(dir_okay=False, path_type=Path)
_item = click.argument("item_id", metavar="ID")
_tags = click.option("--tag", "tags", multiple=True, help="A tag to find it by. May be repeated.")


@click.group()
def shared() -> None:
    """What users share: publish something for others, see to it, find and rate what others published.

    Nothing leaves a user but by `confirm` and `offer`, and then exactly what the preview showed. Others see a
    pseudonym, or the name that `name` sets. (`memory-agent publish` sends events to your own memory.)

    \b
    Examples:
      memory-agent shared preview runbook.md --tag deploy --out preview.json
      memory-agent shared confirm preview.json
      memory-agent shared search "the deploy to staging hangs"
      memory-agent recall "the deploy to staging hangs" --tier local --tier global
      memory-agent shared unpublish 01KHJY9080NWG22H9Q8BBD7B80
    """


@shared.command(short_help="Show what would be published, word for word.")
@click.argument("file", required=False, type=_file)
@click.option("--text", help="The document itself instead of FILE; - for standard input.")
@click.option("--memory", "memory_id", metavar="ID", help="Title, summary, tags and type are those of this memory.")
@click.option("--title", help="Default: the first heading of the document, else the name of FILE.")
@click.option("--summary", help="What is found and shown. Default: the first paragraph of the document.")
@click.option("--body", "with_body", is_flag=True, help="Publish the whole document too, not the summary alone.")
@click.option("--type", "content_type", type=click.Choice(CONTENT_TYPES), help="What it is. Default: document.")
@click.option("--version", default="1", show_default=True, help="The name of this version.")
@click.option("--item", "item_id", metavar="ID", help="The item of yours of which this is the next version.")
@_tags
@click.option("--policy", "access_policy", metavar="POLICY",
              help="Who finds it: public (every user of this deployment, the default), org:NAME or tier:NAME, "
              "which your key must name.")  # fmt: skip
@click.option("--reference", metavar="TEXT", help="Where the original lies: a path or an address, which others see.")
@click.option("--attach", type=_file, metavar="FILE", help="A file of at most 1 MiB that others can fetch.")
@click.option("--offer", is_flag=True, help="It is to be offered with `shared offer`, as a pattern, and not published.")
@click.option("--out", type=_file, metavar="FILE", help="Write the preview there (0600), for `shared confirm`.")
@daemon_options
def preview(
    target: Target,
    file: Path | None,
    text: str | None,
    memory_id: str | None,
    title: str | None,
    summary: str | None,
    with_body: bool,
    content_type: ContentType | None,
    version: str,
    item_id: str | None,
    tags: tuple[str, ...],
    access_policy: str | None,
    reference: str | None,
    attach: Path | None,
    offer: bool,
    out: Path | None,
) -> None:
    """Show what would be published of a document, a memory or a few words. Sends nothing and stores nothing.

    Secrets are masked. Lines with a masked secret, or with words that may say more than you mean to (names, accounts,
    addresses, paths), have a ! before them; look at these. Of FILE its name leaves only as a title, its path only by
    --reference, its text beyond the summary only by --body. With --offer, a pattern that was learned from runs is shown
    without counts and dates: what the runs did.

    \b
    Examples:
      memory-agent shared preview runbook.md --tag deploy --out preview.json
      memory-agent shared preview --title "Staging needs the VPN" --summary "Connect before a deploy" --json
      memory-agent shared preview --memory 01KHJY9080NWG22H9Q8BBD7B80 --policy org:acme --out preview.json
      memory-agent shared preview agent.md --type agent --version 1.2 --attach agent.tar.gz --out preview.json
      memory-agent shared preview new.md --item 01KHJY9080NWG22H9Q8BBD7B80 --version 2 --policy public --out new.json
    """
    if sum(source is not None for source in (file, text, memory_id)) > 1:
        raise click.UsageError("give one of FILE, --text and --memory")
    if file is None and text is None:
        if with_body:
            raise click.UsageError("--body is for FILE or --text, which is not given")
        if memory_id is None and (title is None or summary is None):
            raise click.UsageError("name what to share: FILE, --text, --memory ID, or --title and --summary")
    if item_id is not None and not given("version"):
        raise click.UsageError("--item needs --version: the name of the next version")
    if item_id is not None and access_policy is None:
        raise click.UsageError("--item needs --policy: for whom the next version is")
    body = None
    if file is not None or text is not None:
        document = _document(file) if file is not None else read_text(text or "")
        title, summary = _outlined(document, None if file is None else file.name, title, summary)
        body = document.strip("\n") if with_body else None
    _refuse_other_file(out)
    data = None if attach is None else _attached(attach)
    with open_for_reading(target, "publish_preview") as memory:
        found = memory.shared.preview(
            title,
            summary,
            content_type=content_type,
            body=body,
            memory_id=memory_id,
            reference=reference,
            version=version,
            tags=tags,
            access_policy=access_policy,
            item_id=item_id,
            attachment=data,
            attachment_name=None if attach is None else attach.name,
            offer=offer,
        )
    if out is not None:
        write_private(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if target.as_json:
        print_document(found)
        return
    _print_preview(found)
    if out is None:
        click.echo(f"\nnothing has left; to {_DOES[offer]} it, write it to a file with --out first")
    else:
        options = {"--attach": attach, "--user": target.user_id if target.user_named else None}
        words = [str(out), *(str(word) for pair in options.items() if pair[1] is not None for word in pair)]
        command = f"memory-agent shared {'offer' if offer else 'confirm'} {shlex.join(words)}"
        click.echo(f"\nnothing has left; to {_DOES[offer]} exactly this: {command}")


@shared.command(short_help="Publish exactly what a preview shows.")
@click.argument("preview", type=_file)
@click.option("--attach", type=_file, metavar="FILE", help="The attachment that was previewed.")
@click.option("--yes", is_flag=True, help="Do not show it again, and do not ask.")
@daemon_options
def confirm(target: Target, preview: Path, attach: Path | None, yes: bool) -> None:
    """Publish what the file PREVIEW shows, which `shared preview --out` wrote; it is durable on return.

    Shows it again and asks. A preview that was changed, or whose memory was changed since, is refused, as is a version
    that is published already. The same preview confirmed twice is published once.

    \b
    Examples:
      memory-agent shared confirm preview.json
      memory-agent shared confirm preview.json --attach agent.tar.gz --user alice
      memory-agent shared confirm preview.json --yes --json
    """
    found = _preview_in(preview, is_offer=False)
    file = found.content.attachment
    if file is not None and attach is None:
        raise click.UsageError(f"it has an attachment, {one_line(file.name)}: name it with --attach")
    if file is None and attach is not None:
        raise click.UsageError("--attach names a file, and the preview has none")
    data = None if attach is None else _attached(attach)
    if not yes:
        if target.as_json:
            raise click.UsageError("--json needs --yes: a person is shown the preview before it is published")
        _print_preview(found)
        click.echo()
        ask_person(f"publish this, for {_audience(found.content.access_policy)}?")
    with waiting("publishing"), open_for_reading(target, "publish_confirm") as memory:
        item = memory.shared.confirm(found, data)
    if target.as_json:
        print_document(_item_document(item))
    else:
        click.echo(f"published {item.id}, version {item.version}, as {one_line(item.author)}")


@shared.command(short_help="Offer a pattern exactly as a preview shows it.")
@click.argument("preview", type=_file)
@click.option("--yes", is_flag=True, help="Do not show it again, and do not ask.")
@daemon_options
def offer(target: Target, preview: Path, yes: bool) -> None:
    """Offer what the file PREVIEW shows, which `shared preview --offer --out` wrote; it is durable on return.

    Shows it again and asks. Nobody sees it until five users (the setting shared.offers_together) offer the same words.
    Then the next upkeep makes an item of them, by "5 users", which names nobody. `shared unpublish` takes it back.

    \b
    Examples:
      memory-agent shared offer offer.json --user alice
    """
    found = _preview_in(preview, is_offer=True)
    if not yes:
        if target.as_json:
            raise click.UsageError("--json needs --yes: a person is shown the preview before it is offered")
        _print_preview(found)
        click.echo()
        ask_person(f"offer this, for {_audience(found.content.access_policy)} once enough users offer the same?")
    with waiting("offering"), open_for_reading(target, "offer") as memory:
        offered = memory.shared.offer(found)
    if target.as_json:
        print_document(offered)
    else:
        click.echo(f"offered {offered.content.item_id}; nobody else sees it until enough users offer the same words")


@shared.command(short_help="List the patterns that you offer.")
@daemon_options
def offered(target: Target) -> None:
    """List the offers of --user, newest first, with the item that was made of one and of others' offers.

    \b
    Examples:
      memory-agent shared offered
      memory-agent shared offered --user alice --json
    """
    with open_for_reading(target, "offered") as memory:
        found = memory.shared.offered()
    if target.as_json:
        print_document(found)
        return
    rows = (
        (one.offered_at, one.content.access_policy, one.proposed_as or "", one.content.item_id, one.content.title)
        for one in found
    )
    print_table(counted(len(found), "offer"), ("offered", "for", "shown as", "id", "title"), rows, whole="id")


@shared.command(short_help="Take an item away from everybody, at once, or an offer back.")
@_item
@daemon_options
def unpublish(target: Target, item_id: str) -> None:
    """Take the item ID away, with its figures: no answer shows it from now on. Or take the offer ID back.

    Its bytes leave the files within the daemon's next upkeep, or now where no daemon runs. Only its author can, and who
    holds a key with the scope shared-admin. Exit code 1: there is no such item of the user's.

    \b
    Examples:
      memory-agent shared unpublish 01KHJY9080NWG22H9Q8BBD7B80
      memory-agent shared unpublish 01KHJY9080NWG22H9Q8BBD7B80 --user alice --json
    """
    with open_for_reading(target, "unpublish") as memory:
        receipt = memory.shared.unpublish(item_id)
    if target.as_json:
        print_document(receipt)
    elif receipt.found:
        click.echo(f"took away {receipt.item_id}, version {', '.join(receipt.versions)}")
    else:
        note(f"nothing was taken away: {one_line(item_id)} is not an item of this user")
    if not receipt.found:
        raise SystemExit(1)


@shared.command(short_help="Rate an item of another user, or take a rating back.")
@_item
@click.argument("rating", required=False, type=click.FloatRange(0, 1))
@click.option("--version", help="The version that is rated. Default: the present one.")
@click.option("--take-back", is_flag=True, help="Take your rating back.")
@daemon_options
def rate(target: Target, item_id: str, rating: float | None, version: str | None, take_back: bool) -> None:
    """Rate the item ID, from 0 to 1, in place of your former RATING.

    Prints the figures that everybody sees, which change when enough different users have rated.

    \b
    Examples:
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 0.8
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 1 --version 1.2 --json
      memory-agent shared rate 01KHJY9080NWG22H9Q8BBD7B80 --take-back
    """
    if take_back == (rating is not None):
        raise click.UsageError("give a RATING from 0 to 1, or --take-back (not both)")
    with open_for_reading(target, "rate") as memory:
        figures = memory.shared.rate(item_id, rating, version)
    if target.as_json:
        print_document(figures)
    else:
        did = "took the rating back" if take_back else f"rated {rating:g}"
        click.echo(f"{did}; everybody sees: {', '.join(worth(figures))}")


@shared.command(short_help="List what you published, with its figures.")
@daemon_options
def published(target: Target) -> None:
    """List the items of --user, newest first, with the figures that everybody sees. --json has their texts.

    \b
    Examples:
      memory-agent shared published
      memory-agent shared published --user alice --json
    """
    with open_for_reading(target, "published") as memory:
        items = memory.shared.published()
    if target.as_json:
        print_document([_item_document(item) for item in items])
        return
    columns = ("published", "type", "version", "for", "figures", "id", "title")
    total = f"{counted(len(items), 'item')}, {size(sum(item.size_bytes for item in items))}"
    print_table(total, columns, map(_row, items), whole="id")


@shared.command(short_help="Find what others published.")
@click.argument("text", metavar="QUERY")
@click.option("--type", "content_types", multiple=True, type=click.Choice(CONTENT_TYPES),
              help="Of this type. May be repeated.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, help="With this tag; of several, at least one.")
@click.option("-k", "--top-k", type=click.IntRange(min=1), default=5, show_default=True,
              help="Maximum number of items.")  # fmt: skip
@click.option("--min-relevance", type=click.FloatRange(0, 1),
              help="Only with at least this relevance; 0 for the best there are. Default: the setting "
              "recall.min_relevance.")  # fmt: skip
@daemon_options
def search(
    target: Target,
    text: str,
    content_types: tuple[ContentType, ...],
    tags: tuple[str, ...],
    top_k: int,
    min_relevance: float | None,
) -> None:
    """Find the shared items that resemble QUERY and that the user may see, best first; - is standard input.

    Their texts are others' words. Nothing of QUERY is kept. `memory-agent recall --tier local --tier global` finds them
    beside your own memories.

    \b
    Examples:
      memory-agent shared search "the deploy to staging hangs"
      memory-agent shared search "review SQL" --type agent --type app --tag sql -k 3
      memory-agent shared search - --json < question.txt
    """
    with open_for_reading(target, "search_shared") as memory:
        found = memory.shared.search(read_text(text), top_k, content_types, tags, min_relevance)
    if target.as_json:
        print_document([{**msgspec.to_builtins(one), "item": _item_document(one.item)} for one in found])
    else:
        _print_items(found)
        emit(Text(counted(len(found), "item"), style="dim"))


@shared.command(short_help="Show an item by its id.")
@_item
@daemon_options
def show(target: Target, item_id: str) -> None:
    """Show the item ID, which others published for the user or the user for others. Its text is its author's words.

    \b
    Examples:
      memory-agent shared show 01KHJY9080NWG22H9Q8BBD7B80
      memory-agent shared show 01KHJY9080NWG22H9Q8BBD7B80 --json
    """
    with open_for_reading(target, "shared_item") as memory:
        item = memory.shared.item(item_id)
    if target.as_json:
        print_document(_item_document(item))
    else:
        _print_items([FoundItem(item=item, score=None, sona_score=0.0)])


@shared.command(short_help="Follow what is published, unpublished and rated.")
@click.option("--after", type=click.IntRange(min=0), metavar="NUMBER",
              help="Go on after this number of the journal (`seq` in --json). Default: from now on.")  # fmt: skip
@following_options
@daemon_options
def follow(
    target: Target,
    after: int | None,
    count: int | None,
    timeout_s: float | None,
    ingest: str | None,
    feed: str | None,
) -> None:
    """Print what becomes of shared items, as far as the key admits: published, unpublished, or a new rating.

    What is gone has no id any more, but the fingerprint (`item`) that it had before. With --json each change is an
    object on a line.

    \b
    Examples:
      memory-agent shared follow
      memory-agent shared follow --after 0 --count 10 --json
    """
    relay = named_relay(target, ingest, feed)
    with open_client(target) as client, client.shared_changes(after, relay=relay) as following:
        if not target.as_json:
            note("following what becomes of shared items; end with Ctrl-C")
        for change in each(following, count, timeout_s):
            if target.as_json:
                click.echo(msgspec.json.encode({"seq": following.seq, **msgspec.to_builtins(change)}))
                continue
            named = (change.item_id or change.item, change.version, change.content_type, change.access_policy)
            click.echo(plain(" · ".join(filter(None, (change.kind, *named)))))


@shared.command(short_help="Fetch the file of an item.")
@_item
@click.option("--out", required=True, type=_file, metavar="FILE", help="Write it there (0600); - is standard output.")
@click.option("--replace", is_flag=True, help="Replace an existing file.")
@daemon_options
def attachment(target: Target, item_id: str, out: Path, replace: bool) -> None:
    """Write the attachment of the item ID to a file. It is another user's: look at it before you use it.

    \b
    Examples:
      memory-agent shared attachment 01KHJY9080NWG22H9Q8BBD7B80 --out agent.tar.gz
      memory-agent shared attachment 01KHJY9080NWG22H9Q8BBD7B80 --out - | tar -tz
    """
    if target.as_json and out == _STANDARD_STREAM:
        raise click.UsageError("--json and - both take standard output: name a file")
    if out != _STANDARD_STREAM and out.exists() and not (replace and out.is_file()):
        raise InvalidInputError("out", f"{out} exists; name another file or give --replace")
    with open_for_reading(target, "shared_attachment") as memory:
        found = memory.shared.attachment(item_id)
    if out == _STANDARD_STREAM:
        sys.stdout.buffer.write(found.data)
        return
    write_private(out, found.data)
    if target.as_json:
        print_document({"file": str(out), "attachment": found.attachment})
    else:
        click.echo(f"wrote {out}: {_file_facts(found.attachment)}")


@shared.command(short_help="Set the name that others see.")
@click.argument("name", required=False)
@click.option("--none", "is_none", is_flag=True, help="No name: others see a pseudonym again.")
@daemon_options
def name(target: Target, name: str | None, is_none: bool) -> None:
    """Set NAME as what others see on all items of --user, also on those that are published.

    A part of the user's pseudonym is added, as in "Ann #3f2a9c": nobody else can look the same.

    \b
    Examples:
      memory-agent shared name "Ann of the platform team"
      memory-agent shared name --none
    """
    if is_none == (name is not None):
        raise click.UsageError("give a NAME, or --none (not both)")
    with open_for_reading(target, "shared_name") as memory:
        seen = memory.shared.set_name(name)
    if target.as_json:
        print_document({"name": seen})
    else:
        click.echo(f"others see: {one_line(seen)}")


def _document(file: Path) -> str:
    """Return the text of a file. Raises `InvalidInputError`."""
    from memory_agent.notes.note import BadNote
    from memory_agent.notes.storing import read_document

    text = read_document(file)
    if isinstance(text, BadNote):
        raise InvalidInputError("file", f"{text.file} {text.reason}")
    return text


def _outlined(document: str, name: str | None, title: str | None, summary: str | None) -> tuple[str | None, str | None]:
    """Return title and summary: those that are given, else what the document begins with; `name` where it has none."""
    from memory_agent.notes.markdown import outline

    heading, paragraph = outline(document)
    return (heading or name) if title is None else title, (paragraph or None) if summary is None else summary


def _attached(file: Path) -> bytes:
    """Return the bytes of a file. Raises `InvalidInputError` for more than an item may have, which are not read."""
    with file.open("rb") as opened:
        data = opened.read(MOST_ATTACHED_BYTES + 1)
    if len(data) > MOST_ATTACHED_BYTES:
        raise InvalidInputError("attachment", f"{file} is larger than {MOST_ATTACHED_BYTES} bytes")
    return data


def _preview_in(file: Path, *, is_offer: bool) -> PublishPreview:
    """Return the preview in a file, for this use. Raises `InvalidInputError`."""
    found = _read_preview(file)
    if found is None or found.is_offer != is_offer:
        raise InvalidInputError("preview", f"{file} is not what `shared preview {'--offer ' * is_offer}--out` wrote")
    return found


def _read_preview(file: Path) -> PublishPreview | None:
    """Return the preview in a file; None if the file has something else."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=PublishPreview)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _refuse_other_file(out: Path | None) -> None:
    """Raise `InvalidInputError` for a file that is there and is no former preview."""
    if out is not None and out.exists() and not (out.is_file() and _read_preview(out)):
        raise InvalidInputError("out", f"{out} exists and is not a preview; name another file")


def _print_preview(preview: PublishPreview) -> None:
    """Print all that would leave, by field."""
    content, texts = preview.content, texts_of(preview.content)
    if content.attachment is not None:
        texts["attachment"] = f"{_file_facts(content.attachment)}\nIt leaves as it is: nothing in it is masked."
    words = {field: [plain(one.text) for one in preview.mentions if one.field == field] for field in texts}
    emit(Text(f"would be {'offered' if preview.is_offer else 'published'}, word for word", style="bold"))
    facts = (content.content_type, f"version {content.version}", f"for {_audience(content.access_policy)}")
    emit(Text(f"{_MARGIN}{' · '.join(facts)}", style="dim"))
    for field, text in texts.items():
        emit(Text(field, style="bold"))
        for line in plain(text).split("\n"):
            emit(_marked(line, words[field]))
    if preview.masked:
        click.echo(f"\nmasked: {shown(preview.masked)}")
    if preview.mentions:
        found = dict.fromkeys(f"{one.kind} {one_line(one.text)}" for one in preview.mentions)
        click.echo(f"look at: {', '.join(found)}")
    if any(plain(text) != text for text in texts.values()):
        note("control and invisible characters are shown as �, and leave as they are")


def _marked(line: str, mentioned: Iterable[str]) -> Text:
    """Return a line with a mark in the margin, and in colour, where it has a masked secret or words to look at."""
    words = [word for word in (*mentioned, _MASKED) if word in line]
    text = Text.assemble((_MARKED if words else _MARGIN, "bold yellow"), line)
    text.highlight_words(words, "bold yellow")
    return text


def _print_items(found: list[FoundItem]) -> None:
    from memory_agent.recall.shared_items import as_memories

    now = datetime.now(UTC)
    for place, (one, memory) in enumerate(zip(found, as_memories(found, with_embedding=False), strict=True), 1):
        print_memory(place, memory, now, _further(one.item))


def _further(item: GlobalRecord) -> Iterable[str]:
    """Yield what an item has beside its text."""
    if item.reference is not None:
        yield f"reference: {one_line(item.reference)}"
    if item.attachment is not None:
        yield f"attachment: {_file_facts(item.attachment)}"
        yield f"to fetch it: memory-agent shared attachment {item.id} --out FILE"


def _row(item: GlobalRecord) -> tuple[object, ...]:
    figures = ", ".join(worth(item.quality_metrics))
    return (item.published_at, item.content_type, item.version, item.access_policy, figures, item.id, item.title)


def _file_facts(file: Attachment) -> str:
    return f"{one_line(file.name)}, {size(file.size_bytes)}, SHA-256 {file.sha256}"


def _audience(policy: str) -> str:
    group, _, name = policy.partition(":")
    kinds = {"org": f"the organisation {name}", "tier": f"the tier {name}"}
    return kinds.get(group, "every user of this deployment")


def _item_document(item: GlobalRecord) -> dict[str, object]:
    """Return an item as a mapping without its vector."""
    document: dict[str, object] = msgspec.to_builtins(item)
    del document["embedding"]
    return document
