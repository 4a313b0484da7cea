"""Reads a software-engineering agent's runs on GitHub issues (SWE-bench; Jimenez et al. 2024) as the agent's working
memory.

A file is a list of `{instance_id, task, steps: [{thought, command, output}]}`; an issue may have several runs. All runs
belong to one user, so memories of other issues compete with those of the question's issue. A run is a session, and a
question's group is its issue. The files contain no timestamps, so each memory is dated 40 s after the previous one.

Items. In every fourth run, each thought is an item, and each command with its output is an item. In the other runs,
each item covers 3 to 12 steps, so some items are long. The text of an issue, excluding its title, is an item (role
`user`). A run's last thought is an item if it is longer than 140 characters. Equal texts form one item.

Questions, with the items that answer them. A thought that is used as a question is omitted from its run's items.

    lookup    A thought that names what it looks for. Answered by the command and output of its step. A run has
              at most 8 lookups, spread over the run. The command must not occur in another step for the issue.
    issue     The title of an issue. Answered by its text and by the last thoughts of its runs.
    cause     The thought in which a run found the cause. Answered by such thoughts in other runs for the issue. The
              session of the run is excluded.

Questions and evidence were not judged by people. A report that covers more steps answers more lookups, so this
benchmark favours rankings that prefer long texts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.dataset import Dataset, History, Item, Question, Role, read_file
from relay import described

_USER = "runs"
_BEGIN = datetime(2025, 6, 1, tzinfo=UTC)
_STEP = timedelta(seconds=40)
_SINGLE_STEPS = 4  # every fourth run reports single steps
_LOOKUPS = 8
_SHORTEST_OUTPUT, _SHORTEST_CAUSE, _SHORTEST_ENDING = 60, 80, 141  # characters
_LOOKUP_CHARS, _LOOKUP_WORDS = range(45, 261), 7  # lengths and minimum word count of a thought used as a lookup

_TAGS = re.compile(r"</?(?:returncode|output)>")
_WORD = re.compile(r"[^\W\d_]{3,}")
_NAME = re.compile(r"[A-Za-z]\w*_\w+|\w+\.\w+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w+|\w+\(\)|`[^`]+`")
_CAUSE = re.compile(
    r"root cause|the (?:issue|problem|bug) is|I (?:can )?see the (?:issue|problem)|found the (?:issue|problem|bug)|"
    r"the fix is",
    re.IGNORECASE,
)


class _Step(msgspec.Struct, frozen=True):
    thought: str | None = None
    command: str | None = None
    output: str | None = None

    @property
    def said(self) -> str:
        return (self.thought or "").strip()

    @property
    def ran(self) -> str:
        """The command. The field may contain JSON, `{"command": "ls"}`, possibly truncated."""
        text = self.command or ""
        try:
            return msgspec.json.decode(text, type=described(_Command)).command
        except msgspec.DecodeError:
            return text.removeprefix('{"command": "')

    @property
    def seen(self) -> str:
        return _TAGS.sub("", self.output or "").strip()

    @property
    def shown(self) -> str:
        return f"$ {self.ran}\n{self.seen}"


class _Command(msgspec.Struct, frozen=True):
    command: str


class SweRun(msgspec.Struct, frozen=True):
    instance_id: str
    task: str
    steps: list[_Step]

    @property
    def title(self) -> str:
        return self.task.strip().partition("\n")[0]

    @property
    def body(self) -> str:
        return self.task.strip().partition("\n")[2].strip()


def decode_runs(file: Path, content: bytes) -> list[SweRun]:
    """Return the runs in a file's content. Raises `InvalidInputError`."""
    try:
        return msgspec.json.decode(content, type=described(list[SweRun]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(file), f"is not a file of runs: {error}") from error


def read_swe(file: Path) -> Dataset:
    """Read the runs in a file as one user's history. Raises `InvalidInputError`."""
    content = read_file(file)
    runs = decode_runs(file, content)
    items = _Items()
    repeated = Counter((run.instance_id, _plain(step.ran)) for run in runs for step in run.steps)
    attempts = Counter(run.instance_id for run in runs)
    for number, run in enumerate(runs):
        items.add_run(number, run, repeated, has_others=attempts[run.instance_id] > 1)
    if not items.items:
        raise InvalidInputError(str(file), "contains no runs")
    history = History(user=_USER, items=tuple(items.items), questions=tuple(items.questions(runs)))
    return Dataset(name="swe", digest=sha256(content).hexdigest(), histories=(history,))


class _Asked(msgspec.Struct, frozen=True):
    """The steps whose thoughts are questions, and all steps that mention the cause, in one run."""

    lookups: Sequence[int]
    cause: int | None
    causes: Sequence[int]

    @property
    def steps(self) -> set[int]:
        return {*self.lookups, *(() if self.cause is None else (self.cause,))}


class _Items:
    """The items of the added runs, and the item that contains each step."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._of_text: dict[str, Item] = {}
        self._time = _BEGIN
        self._asked: list[_Asked] = []
        self._thoughts: list[dict[int, Item]] = []
        self._shown: list[dict[int, Item]] = []
        self._bodies: dict[str, Item] = {}
        self._endings: defaultdict[str, list[Item]] = defaultdict(list)

    def add_run(self, number: int, run: SweRun, repeated: Counter[tuple[str, str]], *, has_others: bool) -> None:
        """Add a run. `repeated` counts the commands per issue. `has_others` is true if the issue has other runs."""
        session = _session(number)
        asked = asked_steps(run, repeated, has_others)
        thoughts: dict[int, Item] = {}
        shown: dict[int, Item] = {}
        if run.body and run.instance_id not in self._bodies:
            self._bodies[run.instance_id] = self._add(run.body, session, "user")
        for part in _parts(number, len(run.steps)):
            self._time += _STEP
            said = {place: "" if place in asked.steps else run.steps[place].said for place in part}
            if number % _SINGLE_STEPS == 0:
                thoughts |= {place: self._add(text, session) for place, text in said.items() if text}
                shown |= {place: self._add(run.steps[place].shown, session) for place in part}
            else:
                lines = (line for place in part for line in (said[place], run.steps[place].shown) if line)
                report = self._add("\n".join(lines), session)
                thoughts |= dict.fromkeys(part, report)
                shown |= dict.fromkeys(part, report)
        last = len(run.steps) - 1
        if run.steps and last not in asked.steps and len(run.steps[last].said) >= _SHORTEST_ENDING:
            self._endings[run.instance_id].append(self._add(run.steps[last].said, session))
        self._asked.append(asked)
        self._thoughts.append(thoughts)
        self._shown.append(shown)

    def questions(self, runs: Sequence[SweRun]) -> Iterator[Question]:
        """Yield the questions. Call this after adding all runs."""
        for number, run in enumerate(runs):
            for place in self._asked[number].lookups:
                text, item = run.steps[place].said, self._shown[number][place]
                yield self._question(f"lookup:{number}:{place}", text, run.instance_id, [item])
        for instance, body in self._bodies.items():
            title = next(run.title for run in runs if run.instance_id == instance)
            yield self._question(f"issue:{instance}", title, instance, [body, *self._endings[instance]])
        for number, run in enumerate(runs):
            cause, session = self._asked[number].cause, _session(number)
            if cause is not None:
                items = [item for item in self._causes(number, runs) if item.session != session]
                yield self._question(f"cause:{number}", run.steps[cause].said, run.instance_id, items, session)

    def _causes(self, number: int, runs: Sequence[SweRun]) -> Iterator[Item]:
        """Yield the items in which other runs for the same issue mention the cause."""
        for other, run in enumerate(runs):
            if other != number and run.instance_id == runs[number].instance_id:
                asked, thoughts = self._asked[other], self._thoughts[other]
                yield from (thoughts[place] for place in asked.causes if place in thoughts and place != asked.cause)

    def _question(
        self, id_: str, text: str, instance: str, items: Sequence[Item], outside: str | None = None
    ) -> Question:
        category, _, _ = id_.partition(":")
        return Question(
            id=id_,
            text=text,
            category=category,
            relevant={item.id: 1 for item in items},
            asked_at=self._time,
            group=instance,
            outside_session=outside,
        )

    def _add(self, text: str, session: str, role: Role = "assistant") -> Item:
        item = self._of_text.get(text)
        if item is None:
            item = Item(id=f"i{len(self.items)}", text=text, timestamp=self._time, session=session, role=role)
            self._of_text[text] = item
            self.items.append(item)
        return item


def asked_steps(run: SweRun, repeated: Counter[tuple[str, str]], has_others: bool) -> _Asked:
    usable = [
        place
        for place, step in enumerate(run.steps[:-1])
        if _is_lookup(step.said)
        and len(step.seen) >= _SHORTEST_OUTPUT
        and repeated[run.instance_id, _plain(step.ran)] == 1
    ]
    every = max(1, -(-len(usable) // _LOOKUPS))
    causes = [
        place
        for place, step in enumerate(run.steps)
        if len(step.thought or "") >= _SHORTEST_CAUSE and _CAUSE.search(step.said)
    ]
    return _Asked(usable[::every], causes[0] if causes and has_others else None, causes)


def _is_lookup(thought: str) -> bool:
    return (
        len(thought) in _LOOKUP_CHARS
        and len(_WORD.findall(thought)) >= _LOOKUP_WORDS
        and _NAME.search(thought) is not None
        and _CAUSE.search(thought) is None
    )


def _parts(number: int, steps: int) -> Iterator[range]:
    """Yield groups of steps that are reported together: single steps, or 3 to 12 in a fixed but irregular sequence."""
    place = 0
    while place < steps:
        size = 1 if number % _SINGLE_STEPS == 0 else 3 + (place * 7 + number * 5) % 10
        yield range(place, min(place + size, steps))
        place += size


def _session(number: int) -> str:
    return f"run-{number}"


def _plain(command: str) -> str:
    return " ".join(command.split())
