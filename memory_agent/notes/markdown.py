"""Read Markdown documents: each section becomes one or more memories, with its headings as the title.

In files that agents use as memory, such as GEMINI.md, each list item becomes a memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from memory_agent.notes.note import FILE, HEADING, Note, digest_of
from memory_agent.records.prompt_block import without_blocks

SECTION = "document.section"
"""The `type` of a section's memory."""
SUFFIXES = (".md", ".markdown")
MEMORY_FILES = frozenset({"gemini.md", "claude.md", "claude.local.md", "agents.md", "memory.md"})

_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"(?:[-*+]|\d{1,3}[.)])[ \t]+")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FRONT_MATTER = re.compile(r"\A---\r?\n.*?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MOST_PART_CHARS = 1_500
_MOST_CHARS = 12_000  # characters; a longer paragraph is split
_MOST_TITLE_CHARS = 300
_MOST_OUTLINED_TITLE_CHARS = 200
_MOST_SUMMARY_CHARS = 1_000
_SEPARATOR = " > "


class Section(NamedTuple):
    """The text under a heading. `headings` are this heading and the headings above it; `line` is its line number."""

    headings: tuple[str, ...]
    text: str
    line: int


def read_markdown(path: Path, text: str, written: datetime) -> Iterator[Note]:
    """Yield the memories of a document that was last modified at `written`."""
    file = str(path)
    is_memory = path.name.lower() in MEMORY_FILES
    seen: Counter[tuple[str, ...]] = Counter()
    for section in sections(text):
        heading = _SEPARATOR.join(section.headings)
        for part in _parts(section.text, items=is_memory):
            seen[section.headings] += 1
            yield Note(
                id=f"section:{digest_of(file, section.headings, seen[section.headings])}",
                text=part,
                place=f"line {section.line}",
                title=(heading or path.stem)[:_MOST_TITLE_CHARS],
                timestamp=written,
                metadata={FILE: file, HEADING: heading},
                fields={"kind": "finding", "source": "writer_revision", "type": SECTION, "provenance": "cited"},
            )


def sections(text: str) -> Iterator[Section]:
    """Yield the sections with text, in document order.

    Lines in code blocks are not headings. Front matter, comments and recalled memories are skipped.

    >>> [(section.headings, section.text) for section in sections("# A\\nOne.\\n## B\\nTwo.\\n")]
    [(('A',), 'One.'), (('A', 'B'), 'Two.')]
    """
    text = _FRONT_MATTER.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), without_blocks(text))
    headings: dict[int, str] = {}
    body: list[str] = []
    begin, fence = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if fence or (opened := _FENCE.match(line)):
            if not fence:
                fence = opened[1] if opened else ""
            elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            body.append(line)
            continue
        found = _heading(line, body)
        if found is None:
            body.append(line)
            continue
        level, name = found
        if words := "\n".join(body).strip():
            yield Section(tuple(headings.values()), words, begin)
        headings = {above: text for above, text in headings.items() if above < level} | {level: name}
        body, begin = [], number
    if words := "\n".join(body).strip():
        yield Section(tuple(headings.values()), words, begin)


def outline(text: str) -> tuple[str, str]:
    """Return the first heading that has text below it, and the first paragraph, both truncated if long.

    >>> outline("# Deploys\\n\\nConnect to the VPN first.\\n\\nThen push.\\n")
    ('Deploys', 'Connect to the VPN first.')
    """
    title = next((section.headings[0] for section in sections(text) if section.headings), "")
    first = next(sections(text), None)
    paragraph = "" if first is None else next(_paragraphs(first.text), "")
    return _shortened(title, _MOST_OUTLINED_TITLE_CHARS), _shortened(paragraph, _MOST_SUMMARY_CHARS)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _heading(line: str, body: list[str]) -> tuple[int, str] | None:
    """Return the level and name of a line's heading, or None. Removes the text of an underlined heading from `body`."""
    marked = _HEADING.match(line)
    if marked is not None:
        name = line[marked.end() :].strip()
        bare = name.rstrip("#")
        return len(marked[1]), bare.rstrip() if not bare or bare[-1] in " \t" else name
    underline = _UNDERLINE.fullmatch(line)
    is_title = bool(body) and bool(body[-1].strip()) and (len(body) == 1 or not body[-2].strip())
    if underline is None or not is_title or _ITEM.match(body[-1]):
        return None
    return (1 if underline[1][0] == "=" else 2), body.pop().strip()


def _parts(text: str, *, items: bool) -> Iterator[str]:
    """Yield the parts of a text, split between paragraphs; with `items`, each list item is one part."""
    kept = ""
    for paragraph in _paragraphs(text):
        if items and _ITEM.match(paragraph):
            if kept:
                yield kept
            yield _ITEM.sub("", paragraph, count=1).strip()
            kept = ""
        elif kept and len(kept) + len(paragraph) > _MOST_PART_CHARS:
            yield kept
            kept = paragraph
        else:
            kept = f"{kept}\n{paragraph}" if kept else paragraph
    if kept:
        yield kept


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text. Code blocks are not split, and list items include their indented lines."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        begins = not fence and (not line.strip() or _ITEM.match(line) is not None)
        if begins and any(one.strip() for one in kept):
            yield from _cut("\n".join(kept).strip("\n"))
            kept = []
        kept.append(line)
        if opened:
            fence = "" if fence and line.strip().startswith(fence) else fence or opened[1]
    if any(one.strip() for one in kept):
        yield from _cut("\n".join(kept).strip("\n"))


def _cut(paragraph: str) -> Iterator[str]:
    for begin in range(0, len(paragraph), _MOST_CHARS):
        yield paragraph[begin : begin + _MOST_CHARS]
