"""Reads runs of a software-engineering agent as imported sessions, with questions about their outcomes, failures and so
on.

It reads the same file as `swe`. The first run for each issue becomes a session with the events that `import-sessions`
publishes: the request, the agent's messages, each command with output and exit code, and the end of the run with the
agent's last message. Sessions begin a day apart. Each user has eight sessions. The issues are divided into two halves
by the digests of their ids: the users `dev-0`, `dev-1`, ... and `held-0`, `held-1`, ...

Questions, with the memories that answer them. A question names its run by the first words of the issue's title, or by
time ("yesterday", "last"), and is asked on the day after the session.

    conclusion   the end of the run
    failure      the commands that failed
    command      the commands that ran tests; the one command that searched for a name or a file
    request      the user's request, or the start of the run, which has the same text
    error        the failed commands that ran tests

The questions in the second half are also asked in other wordings (categories such as `failure, reworded`) and in other
languages (`in de`). These variants were not used to choose the words that recall recognises. Two more categories are
not about kinds, and show whether handling kinds harms other questions: `lookup`, as in `swe`, and `issue`, where the
query is the title of an issue and the request is the evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from memory_agent.evaluation import Dataset, History, Item, Question
from memory_agent.evaluation.dataset import read_file
from memory_agent.evaluation.swe import SweRun, asked_steps, decode_runs
from memory_agent.sessions.entries import Entry, Session
from memory_agent.sessions.events import event_of
from memory_agent.sessions.tool_calls import shortened
from memory_agent.storage.terms import query_words

HALVES = ("dev", "held")
SESSIONS = 8  # of one user
_BEGIN = datetime(2025, 6, 2, 9, tzinfo=UTC)
_STEP = timedelta(seconds=40)
_SOON = timedelta(minutes=5)
_TOPIC_WORDS = 5
_RETURN_CODE = re.compile(r"<returncode>(-?\d+)</returncode>")
_TESTS = re.compile(r"\b(?:pytest|runtests|unittest|tox|nosetests)\b|\bmanage\.py test\b")
_SEARCHED = re.compile(r"""\b(?:grep|find|rg)\b[^|;&]*?["'](?P<name>[\w.*]{5,40})["']""")

_ABOUT: dict[str, tuple[str, ...]] = {
    "conclusion": (
        "What did the run about {topic} conclude?",
        "How did the work on {topic} end?",
        "What was the result of the session about {topic}?",
    ),
    "failure": (
        "What failed in the run about {topic}?",
        "Which commands failed while working on {topic}?",
        "What went wrong with {topic}?",
    ),
    "command": ("Which command ran the tests for {topic}?", "What did I run to test {topic}?"),
    "request": ("What did I ask about {topic}?", "What was my request about {topic}?"),
    "error": ("Which error did the tests give for {topic}?", "What errors came up in the tests for {topic}?"),
}
_REWORDED: dict[str, tuple[str, ...]] = {
    "conclusion": ("What was the outcome for {topic}?", "What did you find in the end about {topic}?"),
    "failure": ("What did not work when fixing {topic}?", "Show me the failures of the {topic} run"),
    "command": ("How were the tests for {topic} started in the shell?", "List the test commands for {topic}"),
    "request": ("What had I told you to do about {topic}?", "What task did I give you on {topic}?"),
    "error": ("Why did the tests break for {topic}?", "What exception was raised by the tests of {topic}?"),
}
_YESTERDAY: dict[str, tuple[str, ...]] = {
    "conclusion": ("What did the run conclude yesterday?",),
    "failure": ("What failed yesterday?", "Which commands failed yesterday?"),
    "command": ("Which command did I use yesterday to run the tests?",),
    "request": ("What did I ask yesterday?",),
    "error": ("Which error did the tests give yesterday?",),
}
_LAST: dict[str, tuple[str, ...]] = {
    "conclusion": ("What did the last run conclude?",),
    "failure": ("What failed last?",),
    "command": ("Which command did I use last to run the tests?",),
    "request": ("What did I ask last?", "What was my last request?"),
    "error": ("What was the last error of the tests?",),
}
_TRANSLATED: dict[str, dict[str, str]] = {
    "de": {
        "conclusion": "Was war das Ergebnis zu {topic}?",
        "failure": "Was ist bei {topic} schiefgegangen?",
        "command": "Mit welchem Befehl wurden die Tests für {topic} gestartet?",
        "request": "Worum hatte ich dich bei {topic} gebeten?",
        "request, last": "Was habe ich zuletzt gefragt?",
    },
    "fr": {
        "conclusion": "Quelle était la conclusion sur {topic} ?",
        "failure": "Qu'est-ce qui a échoué pour {topic} ?",
        "command": "Quelle commande a lancé les tests pour {topic} ?",
        "request": "Qu'est-ce que je t'ai demandé sur {topic} ?",
        "request, last": "Quelle était ma dernière demande ?",
    },
    "es": {
        "conclusion": "¿Cuál fue el resultado de {topic}?",
        "failure": "¿Qué falló con {topic}?",
        "command": "¿Con qué comando se ejecutaron las pruebas de {topic}?",
        "request": "¿Qué te pedí sobre {topic}?",
        "request, last": "¿Qué pregunté por última vez?",
    },
    "it": {
        "conclusion": "A quale conclusione è arrivato il lavoro su {topic}?",
        "failure": "Che cosa è andato storto con {topic}?",
        "command": "Quale comando ha avviato i test di {topic}?",
        "request": "Che cosa ti ho chiesto su {topic}?",
        "request, last": "Qual era la mia ultima richiesta?",
    },
    "ru": {
        "conclusion": "Каким был результат по {topic}?",
        "failure": "Какие ошибки были при работе над {topic}?",
        "command": "Какой командой запускались тесты для {topic}?",
        "request": "О чём я просил по поводу {topic}?",
        "request, last": "Какой был мой последний вопрос?",
    },
    "zh": {
        "conclusion": "关于 {topic} 的结论是什么？",
        "failure": "处理 {topic} 时什么失败了？",
        "command": "用哪个命令运行了 {topic} 的测试？",
        "request": "关于 {topic} 我要求了什么？",
        "request, last": "我最后问了什么？",
    },
    "ja": {
        "conclusion": "{topic} の結論は何でしたか？",
        "failure": "{topic} で何が失敗しましたか？",
        "command": "{topic} のテストはどのコマンドで実行しましたか？",
        "request": "{topic} について私は何を頼みましたか？",
        "request, last": "私が最後に質問したことは何ですか？",
    },
}
_SEARCH = ("Which command searched for {name}?", "Which command did I use to look for {name}?")


def read_kinds(file: Path) -> Dataset:
    """Read the runs in a file as sessions of several users. Raises `InvalidInputError`."""
    content = read_file(file)
    first = {run.instance_id: run for run in reversed(decode_runs(file, content))}
    halves: dict[str, list[SweRun]] = {half: [] for half in HALVES}
    for id_, run in sorted(first.items()):
        halves[HALVES[sha256(id_.encode()).digest()[0] % 2]].append(run)
    histories = [
        _history(f"{half}-{number}", runs[start : start + SESSIONS], reworded=half == HALVES[1])
        for half, runs in halves.items()
        for number, start in enumerate(range(0, len(runs), SESSIONS))
    ]
    return Dataset(name="kinds", digest=sha256(content).hexdigest(), histories=tuple(histories))


def _history(user: str, runs: Sequence[SweRun], *, reworded: bool) -> History:
    sessions = [_Session(number, run) for number, run in enumerate(runs)]
    items = [item for session in sessions for item in session.items]
    questions = [question for session in sessions for question in session.questions(reworded)]
    return History(user=user, items=tuple(items), questions=tuple(questions))


class _Session:
    """The items of one run as an imported session, and the items that answer each kind of question."""

    def __init__(self, number: int, run: SweRun) -> None:
        self._run = run
        self._session = Session("swe-agent", f"run-{number}")
        self._time = _BEGIN + timedelta(days=number)
        self.items: list[Item] = []
        self._answers: dict[str, list[str]] = {kind: [] for kind in _ABOUT}
        self._commands: dict[int, str] = {}
        self._searched: list[tuple[str, str]] = []
        repeated = Counter((run.instance_id, " ".join(step.ran.split())) for step in run.steps)
        self._lookups = asked_steps(run, repeated, has_others=False).lookups
        self._read()

    def questions(self, reworded: bool) -> Iterator[Question]:
        """Yield the questions about this session."""
        words = [word for word in query_words(self._run.title) if len(word) > 1]
        topic = " ".join(words[:_TOPIC_WORDS])
        soon, next_day = self._time + _SOON, (self._time + timedelta(days=1)).replace(hour=10)
        yield from self._asked(_YESTERDAY, ", yesterday", topic, next_day)
        yield from self._asked(_LAST, ", last", topic, soon)
        yield from self._asked(_ABOUT, "", topic, next_day)
        if reworded:
            yield from self._asked(_REWORDED, ", reworded", topic, next_day)
            yield from self._translated(topic, soon, next_day)
        names = Counter(name for name, _ in self._searched)
        unique = [(name, id_) for name, id_ in self._searched if names[name] == 1]
        for name, id_ in unique[:2]:
            for number, wording in enumerate(_SEARCH):
                yield self._question(f"search:{name}:{number}", wording.format(name=name), "command", [id_], next_day)
        for place in self._lookups:
            answer = [self._commands[place]] if place in self._commands else []
            yield self._question(f"lookup:{place}", self._run.steps[place].said, "lookup", answer, next_day)
        yield self._question("issue", self._run.title, "issue", self._answers["request"], next_day)

    def _asked(
        self, wordings: Mapping[str, Sequence[str]], suffix: str, topic: str, at: datetime
    ) -> Iterator[Question]:
        for kind, forms in wordings.items():
            for number, form in enumerate(forms):
                id_ = f"{kind}{suffix}:{number}"
                yield self._question(id_, form.format(topic=topic), kind + suffix, self._answers[kind], at)

    def _translated(self, topic: str, soon: datetime, next_day: datetime) -> Iterator[Question]:
        for language, wordings in _TRANSLATED.items():
            for kind, form in wordings.items():
                kind_alone, _, is_last = kind.partition(", ")
                text, at = form.format(topic=topic), soon if is_last else next_day
                answers = self._answers[kind_alone]
                yield self._question(f"{kind}:{language}", text, f"in {language}", answers, at)

    def _question(self, id_: str, text: str, category: str, answers: Iterable[str], at: datetime) -> Question:
        return Question(
            id=f"{self._run.instance_id}:{id_}",
            text=text,
            category=category,
            relevant=dict.fromkeys(answers, 1),
            asked_at=at,
            group=self._run.instance_id,
        )

    def _read(self) -> None:
        last = max((place for place, step in enumerate(self._run.steps) if step.said), default=None)
        self._answers["request"] += [self._add(self._entry(what, self._run.task)) for what in ("user", "begin")]
        for place, step in enumerate(self._run.steps[:last]):
            if step.said and place not in self._lookups:
                self._add(self._entry("assistant", step.said))
            if step.ran:
                self._add_command(place)
        if last is not None:
            self._answers["conclusion"].append(self._add(self._entry("completed", self._run.steps[last].said)))

    def _add_command(self, place: int) -> None:
        step = self._run.steps[place]
        found = _RETURN_CODE.search(step.output or "")
        code = None if found is None else int(found[1])
        entry = self._entry("command", shortened(step.seen))._replace(command=step.ran, exit_code=code)
        id_ = self._commands[place] = self._add(entry)
        tests = _TESTS.search(step.ran) is not None
        failed = code not in (None, 0)
        for kind, applies in (("failure", failed), ("command", tests), ("error", tests and failed)):
            if applies:
                self._answers[kind].append(id_)
        if (name := _SEARCHED.search(step.ran)) is not None:
            self._searched.append((name["name"], id_))

    def _entry(self, what: str, text: str) -> Entry:
        self._time += _STEP
        return Entry(what=what, id=f"{len(self.items)}", text=text, at=self._time, run=self._session.id)  # type: ignore[arg-type]

    def _add(self, entry: Entry) -> str:
        event = event_of(entry, self._session, None, len(self.items), _BEGIN)
        assert event is not None
        item = Item(
            id=f"{self._session.id}:{entry.id}",
            text=entry.text,
            timestamp=entry.at,
            session=self._session.id,
            type=event["event_type"],
            payload=event["payload"],
        )
        self.items.append(item)
        return item.id
