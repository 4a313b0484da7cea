"""Finds the kinds of memories that a query asks for: "what failed yesterday?", "which command did I use last?".

    end        how a run, task or assignment ended; in an agent's session without runs, its last message
    failure    a command, run or task that failed
    command    a command with its output
    request    what the user asked

A query asks for a kind if it is a question or begins with a word such as "show", and contains words for that kind.
Other texts with these words, such as "AttributeError when ...", do not ask for a kind: a false positive is worse than a
miss. Supports English, German, French, Spanish, Italian, Russian, Chinese and Japanese.

A memory's kind follows from its type, source or quality, never from its text, so texts in any language are found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from memory_agent.recall.dates import are_general
from memory_agent.recall.query import Query
from memory_agent.records.memories import SOURCES
from memory_agent.storage.column import Mask
from memory_agent.storage.terms import asks, fold, text_words
from memory_agent.storage.view import NO_NAME, View

_ENDS = re.compile(r"(?:.*\.)?(?:run|task|assignment)\.(?:completed|failed|cancelled|canceled)")
_COMMANDS = re.compile(r"(?:.*\.)?command(?:\..*)?")
_USER, _AGENT = SOURCES.index("user_input"), SOURCES.index("worker_result")
_FAILED = 0.5

AskedKind = Literal["end", "failure", "command", "request"]

_MOST_CHARS = 300  # longer texts are messages, in which a word such as "error" says little about what is asked
_QUESTIONS = r"""
    what|which|how|when|where|why|who|did|show|list|tell|give|remind|summari[sz]e|describe
    was|welche\w*|wie|wann|wo|warum|wieso|wer|zeig\w*|nenn\w*
    que|qu|quel\w*|quoi|comment|quand|ou|pourquoi|montre\w*|donne\w*
    cual\w*|como|cuando|donde|quien|muestra\w*|dime|lista
    che|cosa|quale|quali|come|quando|dove|chi|perche|mostra\w*|elenca
    что|чем|как\w*|когда|где|кто|почему|покажи\w*|о\s+ч[её]м
"""
_QUESTIONS_ANYWHERE = "什么|哪|怎|为何|為何|吗|呢|多少|何|どの|どう|なぜ|いつ|どれ|どこ|誰|教えて|見せて|ましたか"
_WORDS: dict[AskedKind, str] = {
    "end": r"""
        conclu(?:ded?|des|ding|sions?)|outcomes?|results?|(?<!-)end(?:ed|s)?(?!-|\s+(?:to|point|up|of)\b)|turn(?:ed)?\s+out
        ergebnis\w*|ergeben|ergab|geendet|endete|ausgegangen|ausging|fazit
        conclure|conclut|conclusions?|resultats?|abouti\w*|termine
        concluy\w*|conclui\w*|resultados?|termino|acabo
        conclus\w+|concludeva|risultat\w+|finit[oaie]
        результат\w*|итог\w*|вывод\w*|закончил\w*|завершил\w*
    """,
    "failure": r"""
        fail(?:ed|s|ing|ures?)?|errors?|exceptions?|tracebacks?|crash(?:ed|es)?|broke(?:n)?
        (?:went|goes|go|gone)\s+wrong|(?:did|does)(?:n.t|\s+not)\s+work
        fehler\w*|fehlgeschlagen\w*|fehlschlag\w*|schlug\w*|gescheitert\w*|scheitert\w*|schief\w*|abgesturzt\w*
        echou\w+|echecs?|erreurs?|plante
        fallo|fallos|fallaron|fallado|fallando|errore?s
        fallit[oaie]|fallimenti?|error[ei]|storto
        ошиб\w+|упал\w*|не\s+удал\w+|сломал\w*|провал\w*|сбо[йи]\w*
    """,
    "command": r"""
        commands?|cmd|(?:did|have|had)\s+(?:i|you|we)\s+(?:run|type|execute)|shell
        befehle?n?|kommandos?
        commandes?
        comandos?
        comand[oi]
        команд\w*
    """,
    "request": r"""
        (?:did|had|have)\s+(?:i|we)\s+(?:\w+\s+)?(?:ask|asked|request|requested|tell|told|want|wanted)
        (?:did|had|have)\s+(?:i|we)\s+(?:give|given)\s+you|(?:my|our)\s+(?:\w+\s+)?(?:requests?|questions?|prompts?|task)
        (?:habe|hatte)\s+ich\s+(?:\w+\s+){0,5}(?:gefragt|gebeten|beauftragt|verlangt)|fragte\s+ich
        meine?[nr]?\s+(?:\w+\s+)?(?:fragen?|auftrage?|anfragen?|bitten?)
        j.ai\s+(?:\w+\s+){0,2}demande|ai.je\s+(?:\w+\s+){0,2}demande|ma\s+(?:\w+\s+)?(?:demande|question|requete)
        pregunte|pedi|solicite|he\s+(?:pedido|preguntado)|mi\s+(?:\w+\s+)?(?:pregunta|peticion|solicitud)
        ho\s+(?:\w+\s+)?(?:chiesto|domandato)|mia\s+(?:\w+\s+)?(?:richiesta|domanda)
        я\s+(?:\w+\s+){0,3}(?:спр\w+|просил\w*|попросил\w*)|мо[йяие]\w*\s+(?:\w+\s+)?(?:вопрос\w*|запрос\w*|просьб\w*)
    """,
}
_CHARS: dict[AskedKind, str] = {
    "end": "结论|結論|结果|結果|終わり|終わっ",
    "failure": "失败|失敗|错误|錯誤|出错|报错|エラー|例外|うまくいかな",
    "command": "命令|指令|コマンド",
    "request": "我.{0,8}(?:问|問|要求|请求|請求)|私.{0,12}(?:頼|聞|質問|依頼)|(?:質問|依頼)し",
}
_LATEST = r"""
    last|latest|most\s+recent(?:ly)?|zuletzt|letzte\w*|derni\w+|ultim\w+|последн\w+
"""
_LATEST_CHARS = "最后|最後|最近|上次|前回|直近"
_IN_GENERAL = r"""
    runs?|sessions?|tasks?|work|used?|my|last|give|gave|come|came|up
    lauf\w*|sitzung\w*|benutzt|verwendet|ist|war
    execution|seance|utilise\w*|est|etait
    ejecucion|sesion|use|usado|es|fue
    esecuzione|sessione|usato|e|era|stat[oa]
    запуск\w*|сесси\w*|использовал\w*|был\w*
"""
"""Words that do not narrow down which memories of a kind are meant."""


def _pattern(words: str, chars: str = "") -> re.Pattern[str]:
    lines = "|".join(line.strip() for line in words.strip().splitlines())
    return re.compile(rf"\b(?:{lines})\b" + (f"|{chars}" if chars else ""))


_BEGINS = re.compile(r"\W*" + _pattern(_QUESTIONS).pattern)
_ANYWHERE = re.compile(_QUESTIONS_ANYWHERE)
_KINDS = {kind: _pattern(words, _CHARS[kind]) for kind, words in _WORDS.items()}
_NEWEST = _pattern(_LATEST, _LATEST_CHARS)
_GENERAL = _pattern(_IN_GENERAL)


class Asked(NamedTuple):
    """The kinds that a query asks for, and the memories (n,) that match the largest number of these kinds."""

    kinds: frozenset[AskedKind]
    members: Mask
    is_general: bool  # the query names nothing else, except perhaps a time
    is_latest: bool  # the query asks for the newest memories, or is general and mentions no time


def asked_of(query: Query, words: Sequence[str], dates: Sequence[str], view: View, mask: Mask | None) -> Asked | None:
    """Return what a query with these `words` and `dates` asks for among the memories in `mask` (n,), or None."""
    text = fold(query.text[: _MOST_CHARS + 1])
    for phrase in dates:
        text = text.replace(fold(phrase), " ")
    kinds = asked_kinds(text)
    counts = np.sum([_is_of(kind, view) for kind in kinds], axis=0) if kinds else np.zeros(1)
    counts = counts if mask is None else counts * mask
    if not counts.any():
        return None
    rest = text
    for pattern in (*_KINDS.values(), _NEWEST, _GENERAL, _ANYWHERE):
        rest = pattern.sub(" ", rest)
    is_general = are_general(set(text_words(rest)).intersection(map(fold, words)))
    is_latest = _NEWEST.search(text) is not None or (is_general and not dates)
    return Asked(kinds, counts == counts.max(), is_general, is_latest)


def asked_kinds(text: str) -> frozenset[AskedKind]:
    """Return the kinds of memories that a folded text asks for.

    >>> sorted(asked_kinds("which command failed?"))
    ['command', 'failure']
    >>> asked_kinds("the command failed with an error")
    frozenset()
    """
    is_question = asks(text) or _BEGINS.match(text) or _ANYWHERE.search(text)
    if len(text) > _MOST_CHARS or not is_question:
        return frozenset()
    return frozenset(kind for kind, words in _KINDS.items() if words.search(text))


def _is_of(kind: AskedKind, view: View) -> Mask:
    if kind == "end":
        return view.of_type(_ENDS) | _last_words(view)
    if kind == "command":
        return view.of_type(_COMMANDS)
    found: Mask = view.qualities < _FAILED if kind == "failure" else view.sources == _USER
    return found & view.alive


def _last_words(view: View) -> Mask:
    """Return which memories (n,) are the agent's last message in a session that has commands but no runs."""
    found: Mask = view.is_last & (view.sources == _AGENT) & (view.runs == NO_NAME) & (view.sessions != NO_NAME)
    slots = found.nonzero()[0]
    found[slots] = np.isin(view.sessions[slots], view.sessions[view.of_type(_COMMANDS)])
    return found
