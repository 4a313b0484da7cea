"""`shared preview`, `confirm` and `offer`: what would leave a user is shown before, word for word; then it is sent."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.text import Text

from memory_agent.cli.access import open_for_reading
from memory_agent.cli.failure import confirm as ask_person
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options, given, read_text
from memory_agent.cli.progress import waiting
from memory_agent.cli.render import emit, file_facts, item_document, one_line, plain, print_document, shown
from memory_agent.errors import InvalidInputError, ScopeMissingError, UnavailableError
from memory_agent.records.shared import CONTENT_TYPES, ContentType, PublishPreview
from memory_agent.records.shared_content import MOST_ATTACHED_BYTES, texts_of
from relay.disk import write_private

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

_MARGIN, _MARKED, _REPEATED = "   ", " ! ", " = "
_OFTEN_REPEATED = ("title", "summary")
"""Fields that a document's body has too, and the title of a memory its text."""
_HEADING = re.compile(r"#{1,6}\s+")
_MASKED = "[masked:"
_COMMAND = {False: "`shared confirm`", True: "`shared offer`"}
_DOES = {False: "publish", True: "offer"}
_file = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Show what would be published, word for word.")
@click.argument("file", required=False, type=_file)
@click.option("--text", help="The document itself instead of FILE; - for standard input.")
@click.option("--memory", "memory_id", metavar="ID", help="Title, summary, tags and type are those of this memory.")
@click.option("--title", help="Default: the first heading of the document, else the name of FILE.")
@click.option("--summary", help="What is found and shown. Default: the first paragraph of the document.")
@click.option("--body", "with_body", is_flag=True, help="Publish the whole document too, not the summary alone.")
@click.option("--type", "content_type", type=click.Choice(CONTENT_TYPES), help="What it is. Default: document.")
@click.option("--version", default="1", show_default=True, help="The name of this version.")
@click.option("--item", "item_id", metavar="ID", help="The item of yours of which this is the next version.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by. May be repeated.")
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
    addresses, paths), have a ! before them; look at these. A line with a = stands for what is shown above it. Of FILE
    its name leaves only as a title, its path only by --reference, its text beyond the summary only by --body. With
    --offer, a pattern that was learned from runs is shown without counts and dates: what the runs did.

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
        author = None if offer or target.as_json else _author(memory)
    if out is not None:
        write_private(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if target.as_json:
        print_document(found)
        return
    _print_preview(found, author)
    if out is None:
        click.echo(f"\nnothing has left; to {_DOES[offer]} it, write it to a file with --out first")
    else:
        options = {
            "--attach": attach,
            "--user": target.user_id if target.user_named else None,
            "--key-file": target.key_file if given("key_file") else None,
            "--data-dir": target.data_dir if given("data_dir") else None,
            "--endpoint": target.endpoint,
        }
        words = [str(out), *(str(word) for pair in options.items() if pair[1] is not None for word in pair)]
        command = f"memory-agent shared {'offer' if offer else 'confirm'} {shlex.join(words)}"
        click.echo(f"\nnothing has left; to {_DOES[offer]} exactly this: {command}")


@click.command(short_help="Publish exactly what a preview shows.")
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
        with open_for_reading(target, "publish_confirm") as memory:
            author = _author(memory)
        _print_preview(found, author)
        click.echo()
        ask_person(f"publish this, for {_audience(found.content.access_policy)}?")
    with waiting("publishing"), open_for_reading(target, "publish_confirm") as memory:
        item = memory.shared.confirm(found, data)
    if target.as_json:
        print_document(item_document(item))
    else:
        click.echo(f"published {item.id}, version {item.version}, as {one_line(item.author)}")


@click.command(short_help="Offer a pattern exactly as a preview shows it.")
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
        _print_preview(found, None)
        click.echo()
        ask_person(f"offer this, for {_audience(found.content.access_policy)} once enough users offer the same?")
    with waiting("offering"), open_for_reading(target, "offer") as memory:
        offered = memory.shared.offer(found)
    if target.as_json:
        print_document(offered)
    else:
        click.echo(f"offered {offered.content.item_id}; nobody else sees it until enough users offer the same words")


def _document(file: Path) -> str:
    """Return the text of a file. Raises `InvalidInputError`."""
    from memory_agent.notes import read_document

    text = read_document(file)
    if not isinstance(text, str):
        raise InvalidInputError("file", f"{text.file} {text.reason}")
    return text


def _outlined(document: str, name: str | None, title: str | None, summary: str | None) -> tuple[str | None, str | None]:
    """Return title and summary: those that are given, else what the document begins with; `name` where it has none."""
    from memory_agent.notes import outline

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
    if found is None:
        raise InvalidInputError("preview", f"{file} is not what `shared preview {'--offer ' * is_offer}--out` wrote")
    if found.is_offer != is_offer:
        raise InvalidInputError(
            "preview", f"{file} is one to {_DOES[found.is_offer]}: {_COMMAND[found.is_offer]} takes it"
        )
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


def _author(memory: MemoryClient | Memory) -> str | None:
    """Return what others would see as the author; None if it cannot be known now, or not with this key."""
    try:
        name = memory.shared.name()
    except (ScopeMissingError, UnavailableError):
        return None
    return "under a pseudonym" if name is None else f"as {one_line(name)}"


def _print_preview(preview: PublishPreview, author: str | None) -> None:
    """Print all that would leave, by field; `author` is as `_author` returns it."""
    content, texts = preview.content, texts_of(preview.content)
    if content.attachment is not None:
        texts["attachment"] = f"{file_facts(content.attachment)}\nIt leaves as it is: nothing in it is masked."
    words = {field: [plain(one.text) for one in preview.mentions if one.field == field] for field in texts}
    emit(Text(f"would be {'offered' if preview.is_offer else 'published'}, word for word", style="bold"))
    if preview.replaces is not None:
        former = (
            f"version {preview.replaces.version} of {json.dumps(one_line(preview.replaces.title), ensure_ascii=False)}"
        )
        emit(Text(f"{_MARGIN}replaces {former} ({content.item_id})"))
    facts = [content.content_type, f"version {content.version}", f"for {_audience(content.access_policy)}"]
    facts += [author] if author is not None else []
    emit(Text(f"{_MARGIN}{' · '.join(facts)}", style="dim"))
    before: dict[str, list[str]] = {}
    for field, text in texts.items():
        emit(Text(field, style="bold"))
        lines = plain(text).split("\n")
        for line, repeated in _once(lines, before):
            emit(Text(f"{_REPEATED}the {repeated}", style="dim") if repeated else _marked(line, words[field]))
        if field in _OFTEN_REPEATED:
            before[field] = lines
    if preview.masked:
        click.echo(f"\nmasked: {shown(preview.masked)}")
    if preview.mentions:
        found = dict.fromkeys(f"{one.kind} {one_line(one.text)}" for one in preview.mentions)
        click.echo(f"look at: {', '.join(found)}")
    if any(plain(text) != text for text in texts.values()):
        note("control and invisible characters are shown as �, and leave as they are")


def _once(lines: Sequence[str], before: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield the lines, and for those that repeat a field of `before` its name: once for all of them."""
    left, place = dict(before), 0
    while place < len(lines):
        repeated = next((field for field, said in left.items() if _says(lines[place : place + len(said)], said)), "")
        yield lines[place], repeated
        place += len(left.pop(repeated)) if repeated else 1


def _says(lines: Sequence[str], said: Sequence[str]) -> bool:
    """Return whether lines are those of a field, or its heading."""
    return [_HEADING.sub("", line).rstrip() for line in lines] == list(said)


def _marked(line: str, mentioned: Iterable[str]) -> Text:
    """Return a line with a mark in the margin, and in colour, where it has a masked secret or words to look at."""
    words = [word for word in (*mentioned, _MASKED) if word in line]
    text = Text.assemble((_MARKED if words else _MARGIN, "bold yellow"), line)
    text.highlight_words(words, "bold yellow")
    return text


def _audience(policy: str) -> str:
    group, _, name = policy.partition(":")
    kinds = {"org": f"the organisation {name}", "tier": f"the tier {name}"}
    return kinds.get(group, "every user of this deployment")
