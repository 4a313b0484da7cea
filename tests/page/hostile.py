"""Texts that a page must display literally, a memory with them in every field, and how browsers display them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_agent import MemoryClient
from relay import Publisher, relay_endpoints

USER, READER, FEW = "hostile", "reader", "few"
"""Three users: one with all of the texts, one who can see the published items, and one with three of the texts."""

TEXTS = {
    "image": "<img src=x onerror=\"window.pwned='image'\">",
    "script": "<script>window.pwned = 'script'</script>",
    "svg": "\"'><svg/onload=window.pwned='svg'>",
    "frame": "<iframe srcdoc=\"<script>parent.pwned='frame'</script>\"></iframe>",
    "style": "</style><style>* { display: none }</style>",
    "comment": "<!-- --></textarea></title><base href=//evil.example/>",
    "attribute": "' autofocus onfocus='window.pwned=1' x='",
    "link": "javascript:window.pwned='link'//",
    "markdown": "[open](javascript:window.pwned=1) ![](http://evil.example/x.png) https://evil.example/",
    "data": "data:text/html,<script>window.pwned=1</script>",
    "template": "${window.pwned=1} {{constructor.constructor('window.pwned=1')()}} %{7*7}",
    "entities": "&lt;b&gt; &amp;lt; &#x202e; &nbsp;",
    "address": "?user_id=other&id=1#/erase?everything=1%00%2e%2e/",
    "prototype": "__proto__ constructor toString",
    "bidi": "invoice\u202efdp.exe\u202c \u2066isolated\u2069 \u200emark\u200f \u061c",
    "zero width": "pass\u200bword\ufeff\u2060 so\u00adft \u200cjoin",
    "tags": "flag\U000e0041\U000e0042\U000e007f \u3164filler\u115f",
    "controls": "bell\x07 escape\x1b[31mred null\x00 delete\x7f next\x9bline",
    "lines": "one\r\ntwo\u2028three\u2029four\ttab",
    "marks": "\u0301\u0308 alone, z\u0351\u036b\u0343\u036a\u0302\u036b\u033d stacked",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "right to left": "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd 123",
    "wide": "x" * 3_000,
}
"""The texts by name. If one of them runs as code, it sets `pwned`."""
TEXTS["everything"] = " ".join(TEXTS[name] for name in TEXTS if name != "wide")

LINE = "a long line " * 87_381
"""A line of one megabyte, which only an event can contain."""

MOST_TITLE, MOST_TAG, MOST_KEY = 200, 64, 200
"""Maximum lengths of a shared item's title and of each tag, and of metadata keys in these tests."""

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_JOINED_EMOJI = re.compile("(?<=[\U0001f300-\U0001faff\ufe0f])\u200d")


def shown(text: str) -> str:
    """Return a text as the page should show it: invisible characters as code points, and whitespace collapsed."""
    plain = _JOINED_EMOJI.sub("\uf8ff", text.replace("\r\n", "\n"))
    marked = INVISIBLE.sub(lambda found: f"U+{ord(found[0]):04X}", plain)
    return " ".join(marked.replace("\uf8ff", "\u200d").split())


def as_id(text: str) -> str:
    """Convert a string to an id: without control characters, and at most 150 bytes long."""
    plain = "".join(one for one in text if unicodedata.category(one) != "Cc")
    return plain.encode()[:150].decode(errors="ignore")


@dataclass(frozen=True)
class Hostile:
    """A memory, a run and a shared item whose fields contain one of the texts."""

    name: str
    text: str
    memory_id: str
    run_id: str
    run_texts: tuple[str, ...]
    """The request, steps and summary of the run, without control characters."""

    @property
    def fields(self) -> Iterator[str]:
        """The texts shown in the memory's pane."""
        yield f"{self.name} text {self.text}"
        yield f"{self.name} title {self.text}"[:MOST_TITLE]
        yield f"{self.name} tag {self.text}"[:MOST_TAG]
        yield f"{self.name} key {self.text}"[:MOST_KEY]
        yield f"{self.name} value {self.text}"
        for field in ("session", "channel", "agent", "type", "phase"):
            yield as_id(f"{field} {self.text}")


def filled(data_dir: Path, user: str, *names: str) -> dict[str, Hostile]:
    """Store each of these texts in every field of a memory, a run and a shared item."""
    with MemoryClient(user, data_dir=data_dir) as client:
        client.shared.set_name("<b>Mallory</b>")
        return {name: _made(client, name, TEXTS[name]) for name in names}


def quarantine(data_dir: Path) -> None:
    """Publish an event with each text; the events are quarantined, because their runs have no owner."""
    with Publisher(relay_endpoints(data_dir).ingest) as publisher, MemoryClient(data_dir=data_dir) as client:
        for name, text in TEXTS.items():
            payload = {"run_id": as_id(f"{name} {text}"), "summary": text}
            publisher.publish({"event_type": as_type(text), "user_id": "system", "payload": payload})
        client.wait(publisher.flush().acked_through, timeout_s=60)


def as_type(text: str) -> str:
    """Convert a string to an event type, without spaces or control characters."""
    return "x." + "".join(one for one in text if one.isprintable() and one not in " *")[:100]


def _made(client: MemoryClient, name: str, text: str) -> Hostile:
    session = as_id(f"session {text}")
    run = client.runs.begin(f"{name} objective {text}", session_id=session)
    record = client.remember(
        f"{name} text {text}",
        title=f"{name} title {text}"[:MOST_TITLE],
        tags=[f"{name} tag {text}"[:MOST_TAG]],
        metadata={f"{name} key {text}"[:MOST_KEY]: f"{name} value {text}", name: {text[:100]: [text]}},
        session_id=session,
        channel_id=as_id(f"channel {text}"),
        agent_id=as_id(f"agent {text}"),
        type=as_id(f"type {text}"),
        phase=as_id(f"phase {text}"),
        run_id=run.id,
        id=as_id(f"id {name} {text}"),
    )
    client.runs.step(run.id, f"{name} step {text}", memory_ids=[record.id])
    run = client.runs.end(run.id, "completed", f"{name} summary {text}", quality=0.9, memory_ids=[record.id])
    told = client.get([step.record_id for step in (*run.steps, *run.conclusions) if step.record_id])
    preview = client.shared.preview(
        f"{name} title {text}"[:MOST_TITLE],
        f"{name} summary {text}",
        body=f"{name} body {text}",
        tags=[f"{name} tag {text}"[:MOST_TAG]],
    )
    client.shared.confirm(preview)
    return Hostile(name, text, record.id, run.id, (run.objective or "", *(one.text for one in told)))
