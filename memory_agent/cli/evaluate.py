"""`eval …`: measure recall quality and speed, and compare two runs.

The commands that run a trial differ in the format they read; what they share is in `evaluate_trial`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from memory_agent.cli.evaluate_compare import compare
from memory_agent.cli.evaluate_trial import Trial, trial_options
from memory_agent.evaluation import Dataset, choose_conversations, read_beam, read_jsonl, read_locomo, read_swe

_MOVED = {"sona": "python -m ops.lab sona (from a checkout of the repository)"}
"""Commands that were part of `eval`, and what runs them now."""


class Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers and ranges of numbers, as in 3,4 or 0-2."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(number for part in value.split(",") for number in _range(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers and ranges such as 3,4 or 0-2", param, ctx)


class EvaluationGroup(click.Group):
    """The commands of `eval`; a command that moved is refused with its new place."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in _MOVED:
            raise click.UsageError(f"'eval {args[0]}' moved out of the product; run: {_MOVED[args[0]]}", ctx)
        return super().resolve_command(ctx, args)


@click.group("eval", cls=EvaluationGroup)
def evaluate() -> None:
    """Measure on real inputs and compare two measurements.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --embedded --mode vector --results vector.jsonl
      memory-agent eval compare hybrid.jsonl vector.jsonl
    """


evaluate.add_command(compare)


@evaluate.command(short_help="Evidence found in long conversations.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--conversations", type=Numbers(), metavar="NUMBERS",
              help="Only these, by their position in the file from 0, as in 3,4 or 0-2.")  # fmt: skip
@trial_options
def locomo(trial: Trial, file: Path | None, conversations: tuple[int, ...] | None) -> None:
    """Publish the turns of LoCoMo conversations, ask the questions, count the evidence found.

    One user per conversation (locomo-0, locomo-1, …; --user sets another prefix). A separate process publishes every
    turn through the relay; the questions are asked over RPC. A daemon is started on a temporary folder, unless
    --data-dir names that of a running one. Events per second are from the first publish to the last event recallable.

    Metrics, for k of 1, 5, 10 and 50, averaged over questions:

    \b
      turns at k     share of a question's evidence turns among the first k memories
      sessions at k  share of a question's evidence sessions among the first k distinct
                     sessions of the answer, ranked by their best memory; answers of fewer
                     than k sessions (see --top-k) make it a lower bound, and are counted
      NDCG@10        gain 2^grade - 1, discount log2(rank + 1), over the ideal order
      MRR            1 / rank of the first relevant memory or session, 0 without one

    A memory that stands for several duplicate turns counts as all of them, at its one rank. That is the headline: the
    rows "all", in JSON recall_at and so on. A wrongly folded turn could only raise it, so the row "all, shown records
    alone" (recall_at_shown) counts only the turn that is shown: a lower bound.

    Questions without evidence in the conversation are not asked. The last two rows of the sessions follow a common
    convention: such questions count as answered, over all questions and over categories 1 to 4 alone.

    With --results, the answer to each question is written to a file, for --compare: ids and figures, never text.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --conversations 3,4 --embedded --json > report.json
      memory-agent eval locomo locomo10.json --mode lexical --results lexical.jsonl
      memory-agent eval locomo --compare hybrid.jsonl lexical.jsonl
    """
    trial.run("locomo", "FILE", file, partial(_read_conversations, conversations=conversations))


@evaluate.command(short_help="Evidence found in very long chats.")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@trial_options
def beam(trial: Trial, folder: Path | None) -> None:
    """Measure as `eval locomo` does, on the chats of BEAM ("Beyond a Million Tokens").

    FOLDER is a folder of one chat, with chat.json and probing_questions/probing_questions.json, or one that holds such
    folders at any depth (chats/100K, or chats). One user per chat, named by its path below FOLDER; each message is a
    memory of its role, a batch is a session. The evidence is the messages of `source_chat_ids`; abstention questions
    have none and are left out; a chat without messages or without questions is refused. The metrics are those of `eval
    locomo`; no language model judges answers, so these are not the scores that BEAM publishes.

    \b
    Examples:
      memory-agent eval beam chats/100K --embedded
      memory-agent eval beam chats/1M/3 --results chat3.jsonl
      memory-agent eval beam --compare before.jsonl after.jsonl
    """
    trial.run("beam", "FOLDER", folder, read_beam)


@evaluate.command(short_help="What an agent saw, found in its runs.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@trial_options
def swe(trial: Trial, file: Path | None) -> None:
    """Measure as `eval locomo` does, on runs of a software-engineering agent (SWE-bench): long reports and outputs.

    FILE is a JSON list of runs, {"instance_id", "task", "steps": [{"thought", "command", "output"}]}; an issue
    (instance_id) may have several runs. All runs are one user's (swe-runs), a run is a session. In each fourth run a
    thought is a memory, and a command with its output is one; the others report 3 to 12 steps at a time.

    Three kinds of questions are made by rule; no memory holds their words:

    \b
      lookup   what a thought wants to see: the command that it led to, with its output
      issue    the title of an issue: its text, and what its runs said at their end
      cause    what a run found to be the cause: where other runs of the issue say it;
               the memories of the asking run are left out

    The metrics are those of `eval locomo`, with memories for turns and runs for sessions. `eval compare --by
    conversation` resamples whole issues.

    \b
    Examples:
      memory-agent eval swe runs.json --embedded
      memory-agent eval swe runs.json --mode lexical --results lexical.jsonl
      memory-agent eval swe --compare before.jsonl after.jsonl
    """
    trial.run("swe", "FILE", file, read_swe)


@evaluate.command(short_help="Records found, in data of your own.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@trial_options
def jsonl(trial: Trial, file: Path | None) -> None:
    """Measure as `eval locomo` does, on your own data: a file of JSON lines, records and queries.

    \b
      {"type": "record", "id": "r1", "text": "The deploy needs the VPN"}
      {"type": "record", "id": "r2", "text": "VPN: ask Ann", "session_id": "s-17",
       "timestamp": "2026-02-16T10:00:00Z", "kind": "finding", "user": "alice"}
      {"type": "query", "id": "q1", "text": "why does the deploy hang?", "relevant": ["r1"]}
      {"type": "query", "id": "q2", "text": "who knows the VPN?", "relevant": {"r2": 2},
       "timestamp": "2026-03-01", "category": "people", "user": "alice"}

    (each on one line). `relevant` lists ids, or grades them: 1 or more, 0 for not relevant. A query is answered from
    the records of its own user; without relevant ids it is left out. `timestamp` is when a record happened or a query
    is asked; each `category` has a row, `none` for queries without one. Records become events of a type that keeps
    their kind, with "Feedback:" before the text for `pattern`; an episode is a user's message, or with `"role":
    "assistant"` an assistant's. A bad line is refused with its number and field. The
    metrics are those of `eval locomo`, with records for turns, and sessions where records name them.

    \b
    Examples:
      memory-agent eval jsonl mine.jsonl --embedded
      memory-agent eval jsonl mine.jsonl --results mine-hybrid.jsonl
      memory-agent eval jsonl --compare mine-hybrid.jsonl mine-vector.jsonl
    """
    trial.run("jsonl", "FILE", file, read_jsonl)


def _read_conversations(file: Path, conversations: tuple[int, ...] | None) -> Dataset:
    dataset = read_locomo(file)
    return dataset if conversations is None else choose_conversations(dataset, conversations)


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    numbers = range(int(first), int(last if dash else first) + 1)
    if not numbers or numbers[0] < 0:
        raise ValueError(part)
    return numbers
