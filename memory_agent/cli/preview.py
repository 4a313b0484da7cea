"""`shared preview`, `confirm` and `offer`: show word for word what would be published, then send exactly that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from memory_agent.cli.access import open_memory
from memory_agent.cli.command import SectionedCommand, as_struct
from memory_agent.cli.failure import confirm as ask_person
from memory_agent.cli.failure import note
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import Target, daemon_options, given, read_text
from memory_agent.cli.progress import waiting
from memory_agent.cli.render import emit, file_facts, one_line, plain, print_done, printed_json, shown, without_vector
from memory_agent.errors import InvalidInputError, ScopeMissingError, UnavailableError
from memory_agent.records.shared import PublishPreview
from memory_agent.records.shared_content import MOST_ATTACHED_BYTES, texts_of
from memory_agent.verbs.shared_params import PreviewParams
from relay import described
from relay.disk import write_private

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

_MARGIN, _MARKED, _REPEATED = "   ", " ! ", " = "
_OFTEN_REPEATED = ("title", "summary")
"""The body of a document repeats both fields; the text of a memory may repeat the title."""
_HEADING = re.compile(r"#{1,6}\s+")
_MASKED = "[masked:"
_COMMAND = {False: "`shared confirm`", True: "`shared offer`"}
_DOES = {False: "publish", True: "offer"}
_file = click.Path(dir_okay=False, path_type=Path)


class _Source(msgspec.Struct, frozen=True):
    """A preview's source, and which parts of it to publish."""

    file: Path | None
    text: str | None
    body: bool
    attachment: Path | None

    def document(self) -> str | None:
        """Return the document's text, or None if there is no document. Raises `InvalidInputError`."""
        if self.file is None:
            return None if self.text is None else read_text(self.text)
        from memory_agent.notes import read_document

        text = read_document(self.file)
        if not isinstance(text, str):
            raise InvalidInputError("file", f"{text.file} {text.reason}")
        return text

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the preview's parameters: `fields`, plus those taken from the document and the attachment."""
        added: dict[str, Any] = {}
        document = self.document()
        if document is not None:
            from memory_agent.notes import outline

            heading, paragraph = outline(document)
            if fields["title"] is None:
                added["title"] = heading or (None if self.file is None else self.file.name)
            if fields["summary"] is None:
                added["summary"] = paragraph or None
            if self.body:
                added["body"] = document.strip("\n")
        if self.attachment is not None:
            added |= {"attachment": _attached(self.attachment), "attachment_name": self.attachment.name}
        return fields | added


@click.command(
    cls=SectionedCommand,
    short_help="Show what would be published, word for word.",
    sections={"The item": ("--type", "--version", "--item", "--tag", "--policy", "--reference", "--offer")},
)
@click.argument("file", required=False, type=_file)
@click.option("--text", help="The document's text, instead of FILE; - for standard input.")
@field_options(PreviewParams, content_type="--type", access_policy="--policy")
@click.option("--body", is_flag=True, help="Publish the whole document too, not only the summary.")
@click.option(
    "--attach", "attachment", type=_file, metavar="FILE", help="A file of at most 1 MiB that others can fetch."
)
@click.option("--out", type=_file, metavar="FILE", help="Write the preview to this file (0600), for `shared confirm`.")
@daemon_options
@as_struct("source", _Source)
def preview(target: Target, source: _Source, out: Path | None, **fields: Any) -> None:
    """Show what would be published from a document, a memory or a few words. Sends and stores nothing.

    Secrets are masked. Check the lines marked with !: they contain a masked secret, or words that may reveal more than
    you intend (names, accounts, addresses, paths, and phone, card and bank account numbers). A line marked with =
    stands for text that is already shown above. Only the title and summary of FILE are published; without a heading,
    the title is the file name. The path is published only with --reference, and the whole text only with --body. With
    --offer, a pattern learned from runs is shown without counts and dates, leaving only what the runs did.

    \b
    Examples:
      memory-agent shared preview runbook.md --tag deploy --out preview.json
      memory-agent shared preview --title "Staging needs the VPN" --summary "Connect before a deploy" --json
      memory-agent shared preview --memory 01KHJY9080NWG22H9Q8BBD7B80 --policy org:acme --out preview.json
      memory-agent shared preview agent.md --type agent --version 1.2 --attach agent.tar.gz --out preview.json
      memory-agent shared preview new.md --item 01KHJY9080NWG22H9Q8BBD7B80 --version 2 --policy public --out new.json
    """
    _check(source, fields)
    asked = source.fields(fields)
    if out is not None and out.exists() and not (out.is_file() and _read_preview(out)):
        raise InvalidInputError("out", f"{out} exists and is not a preview; choose a different file")
    with open_memory(target, "publish_preview") as memory:
        found = memory.shared.preview(**asked)
        author = None if found.is_offer or target.as_json else _author(memory)
    if out is not None:
        write_private(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if printed_json(target.as_json, found):
        return
    _print_preview(found, author)
    does = _DOES[found.is_offer]
    if out is None:
        click.echo(f"\nnothing has been sent; to {does} it, first write it to a file with --out")
    else:
        click.echo(
            f"\nnothing has been sent; to {does} exactly this: {_next_command(target, source, out, found.is_offer)}"
        )


def _check(source: _Source, fields: Mapping[str, Any]) -> None:
    if sum(one is not None for one in (source.file, source.text, fields["memory_id"])) > 1:
        raise click.UsageError("FILE, --text and --memory cannot be combined")
    if source.file is None and source.text is None:
        if source.body:
            raise click.UsageError("--body requires FILE or --text")
        if fields["memory_id"] is None and (fields["title"] is None or fields["summary"] is None):
            raise click.UsageError("specify what to share: FILE, --text, --memory ID, or --title and --summary")
    if fields["item_id"] is not None:
        if not given("version"):
            raise click.UsageError("--item requires --version, the name of the next version")
        if fields["access_policy"] is None:
            raise click.UsageError("--item requires --policy, the audience of the next version")


def _next_command(target: Target, source: _Source, out: Path, is_offer: bool) -> str:
    """Return the command that publishes or offers the preview in `out`, with the options that it needs."""
    options = {
        "--attach": source.attachment,
        "--user": target.only_user,
        "--key-file": target.key_file if given("key_file") else None,
        "--data-dir": target.data_dir if given("data_dir") else None,
        "--endpoint": target.endpoint,
    }
    words = [str(out), *(str(word) for pair in options.items() if pair[1] is not None for word in pair)]
    return f"memory-agent shared {'offer' if is_offer else 'confirm'} {shlex.join(words)}"


@click.command(short_help="Publish exactly what a preview shows.")
@click.argument("preview", type=_file)
@click.option("--attach", "attachment", type=_file, metavar="FILE", help="The attachment that was previewed.")
@click.option("--yes", is_flag=True, help="Do not show the preview again or ask for confirmation.")
@daemon_options
def confirm(target: Target, preview: Path, attachment: Path | None, yes: bool) -> None:
    """Publish exactly what the file PREVIEW shows. `shared preview --out` writes the file. Durable on return.

    Shows it again and asks for confirmation. Rejects an edited preview, another user's preview, a preview whose memory
    has changed since, and a version that is already published. Confirming a preview twice publishes it once.

    \b
    Examples:
      memory-agent shared confirm preview.json
      memory-agent shared confirm preview.json --attach agent.tar.gz --user alice
    """
    found = _preview_in(preview, is_offer=False)
    file = found.content.attachment
    if file is not None and attachment is None:
        raise click.UsageError(f"the preview has an attachment, {one_line(file.name)}; add it with --attach")
    if file is None and attachment is not None:
        raise click.UsageError("--attach was given, but the preview has no attachment")
    data = None if attachment is None else _attached(attachment)
    if not yes:
        if target.as_json:
            raise click.UsageError("--json requires --yes, because it cannot show the preview before publishing")
        with open_memory(target, "publish_confirm") as memory:
            author = _author(memory)
        _print_preview(found, author)
        click.echo()
        ask_person(f"publish this, for {_audience(found.content.access_policy)}?")
    with waiting("publishing"), open_memory(target, "publish_confirm") as memory:
        item = memory.shared.confirm(found, data)
    sentence = f"published {item.id}, version {item.version}, as {one_line(item.author)}"
    print_done(target.as_json, without_vector(item), sentence)


@click.command(short_help="Offer a pattern exactly as a preview shows it.")
@click.argument("preview", type=_file)
@click.option("--yes", is_flag=True, help="Do not show the preview again or ask for confirmation.")
@daemon_options
def offer(target: Target, preview: Path, yes: bool) -> None:
    """Offer exactly what the file PREVIEW shows. `shared preview --offer --out` writes the file. Durable on return.

    Shows it again and asks for confirmation. Other users do not see the offer until five users (the setting
    shared.offers_together) offer the same words. The next upkeep then publishes these words as one anonymous item by "5
    users". `shared unpublish` withdraws the offer.

    \b
    Examples:
      memory-agent shared offer offer.json --user alice
    """
    found = _preview_in(preview, is_offer=True)
    if not yes:
        if target.as_json:
            raise click.UsageError("--json requires --yes, because it cannot show the preview before offering")
        _print_preview(found, None)
        click.echo()
        ask_person(f"offer this, for {_audience(found.content.access_policy)}, once enough users offer the same words?")
    with waiting("offering"), open_memory(target, "offer") as memory:
        offered = memory.shared.offer(found)
    sentence = f"offered {offered.content.item_id}; nobody else sees it until enough users offer the same words"
    print_done(target.as_json, offered, sentence)


def _attached(file: Path) -> bytes:
    with file.open("rb") as opened:
        data = opened.read(MOST_ATTACHED_BYTES + 1)
    if len(data) > MOST_ATTACHED_BYTES:
        raise InvalidInputError("attachment", f"{file} is larger than {MOST_ATTACHED_BYTES} bytes")
    return data


def _preview_in(file: Path, *, is_offer: bool) -> PublishPreview:
    """Return the preview that a file contains. Raises `InvalidInputError` if the file is not a preview of this kind."""
    found = _read_preview(file)
    if found is None:
        raise InvalidInputError("preview", f"{file} was not written by `shared preview {'--offer ' * is_offer}--out`")
    if found.is_offer != is_offer:
        raise InvalidInputError(
            "preview", f"{file} is a preview to {_DOES[found.is_offer]}; use {_COMMAND[found.is_offer]}"
        )
    return found


def _read_preview(file: Path) -> PublishPreview | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=described(PublishPreview))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _author(memory: MemoryClient | Memory) -> str | None:
    """Return the author as shown to other users, or None if unavailable or not readable with this key."""
    try:
        name = memory.shared.name()
    except (ScopeMissingError, UnavailableError):
        return None
    return "under a pseudonym" if name is None else f"as {one_line(name)}"


def _print_preview(preview: PublishPreview, author: str | None) -> None:
    """Print everything that would be published, by field. `author` is a result of `_author`."""
    content, texts = preview.content, texts_of(preview.content)
    if content.attachment is not None:
        texts["attachment"] = f"{file_facts(content.attachment)}\nIt is sent unchanged: nothing in it is masked."
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
        note("control and invisible characters are shown as �, but are sent unchanged")


def _once(lines: Sequence[str], before: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield each line, paired with "". Of the lines that repeat a field of `before`, yield only the first, with the
    field's name.
    """
    left, place = dict(before), 0
    bare = [_HEADING.sub("", line).rstrip() for line in lines]
    while place < len(lines):
        repeated = next((name for name, text in left.items() if bare[place : place + len(text)] == list(text)), "")
        yield lines[place], repeated
        place += len(left.pop(repeated)) if repeated else 1


def _marked(line: str, mentioned: Iterable[str]) -> Text:
    words = [word for word in (*mentioned, _MASKED) if word in line]
    text = Text.assemble((_MARKED if words else _MARGIN, "bold yellow"), line)
    text.highlight_words(words, "bold yellow")
    return text


def _audience(policy: str) -> str:
    group, _, name = policy.partition(":")
    kinds = {"org": f"the organisation {name}", "tier": f"the tier {name}"}
    return kinds.get(group, "every user of this deployment")
