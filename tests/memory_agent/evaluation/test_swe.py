"""Test the reading of a software-engineering agent's runs: items, questions, evidence, and omitted parts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from agent_runs import (
    CAUSE,
    CAUSE_ELSEWHERE,
    CONCLUSION,
    ENDING,
    PARSER,
    TESTS,
    WANTS_PARSER,
    WANTS_TESTS,
    run,
    step,
    write_runs,
)

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import History, Item, Question, read_swe
from relay.config import EventLimits
from relay.event import event_from_mapping

DEV_FILE = Path(__file__).parents[4] / "shared" / "data" / "swe_runs_dev.json"


def read(file: Path) -> History:
    (history,) = read_swe(file).histories
    return history


@pytest.fixture
def history(tmp_path: Path) -> History:
    return read(write_runs(tmp_path / "runs.json"))


def of_session(history: History, session: str) -> list[Item]:
    return [item for item in history.items if item.session == session]


def texts_of(history: History, question: Question) -> list[str]:
    return [item.text for item in history.items if item.id in question.relevant]


def by_id(history: History) -> dict[str, Question]:
    return {question.id: question for question in history.questions}


def test_the_first_run_has_an_item_for_each_thought_and_each_command_with_its_output(history: History) -> None:
    assert [item.text.splitlines()[0] for item in of_session(history, "run-0")] == [
        "Its last one.",
        "I begin with the layout of the repository.",
        "$ ls",
        f"$ cat src/parser_of_{len(CAUSE)}.py",
        "$ cat src/reader.py",
        f"$ grep -rl parser tests # {len(CAUSE)}",
        "Again.",
        f"{CONCLUSION} ({len(CAUSE)})",
        "$ git diff",
        ENDING,
        "$ submit",
    ]


def test_other_runs_are_reported_several_steps_at_a_time(history: History) -> None:
    reports = of_session(history, "run-1")
    assert [report.text.count("$ ") for report in reports] == [7]
    assert "\n\n" not in reports[0].text
    assert of_session(history, "run-2")[0].text == "Lunch has none."


def test_each_kind_of_question_has_its_evidence(history: History) -> None:
    questions = by_id(history)
    assert list(questions) == [
        "lookup:0:1", "lookup:0:3", "lookup:1:1", "lookup:1:3", "issue:headers-1", "issue:menus-2", "cause:0", "cause:1"
    ]  # fmt: skip
    assert (questions["lookup:0:1"].text, questions["lookup:0:3"].text) == (WANTS_PARSER, WANTS_TESTS)
    assert texts_of(history, questions["lookup:0:1"]) == [f"$ cat src/parser_of_{len(CAUSE)}.py\n{PARSER}"]
    assert texts_of(history, questions["lookup:0:3"]) == [f"$ grep -rl parser tests # {len(CAUSE)}\n{TESTS}"]
    assert questions["issue:headers-1"].text == "The header loses a line"
    assert texts_of(history, questions["cause:1"]) == [f"{CONCLUSION} ({len(CAUSE)})"]
    assert texts_of(history, questions["issue:headers-1"]) == ["Its last one.", ENDING]
    assert {question.category for question in history.questions} == {"lookup", "issue", "cause"}
    assert {question.group for question in history.questions} == {"headers-1", "menus-2"}


def test_a_cause_is_answered_by_other_runs_and_by_no_asked_thought(tmp_path: Path) -> None:
    again = "So the fix is to let read_lines() begin at zero, which gives the header its last line back in every case."
    other = [step(CAUSE_ELSEWHERE, "ls", "src"), step("And now?", "pwd", "/"), step(again, "git diff", "-1 +0")]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([run("headers-1", [step(CAUSE, "cat a", "x")]), run("headers-1", other)]))
    found = by_id(read(file))
    assert [found[f"cause:{number}"].text for number in (0, 1)] == [CAUSE, CAUSE_ELSEWHERE]
    assert [found[f"cause:{number}"].outside_session for number in (0, 1)] == ["run-0", "run-1"]
    (report,) = texts_of(read(file), found["cause:0"])
    assert again in report
    assert found["cause:1"].relevant == {}


def test_no_item_has_the_words_of_a_question_made_of_a_thought(history: History) -> None:
    asked = [question.text for question in history.questions if question.category != "issue"]
    assert set(asked) == {WANTS_PARSER, WANTS_TESTS, CAUSE, CAUSE_ELSEWHERE}
    assert not [item.text for item in history.items for text in asked if text in item.text]


def test_a_command_that_an_issue_repeats_and_a_short_output_answer_no_lookup(tmp_path: Path) -> None:
    steps = [
        step(WANTS_PARSER, "cat parser.py", PARSER),
        step(WANTS_TESTS, "cat  parser.py", PARSER),
        step(f"{WANTS_TESTS}, once more", "ls tests", "three"),
        step("Done.", "submit", None),
    ]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([run("headers-1", steps)]))
    assert [question.category for question in read(file).questions] == ["issue"]
    file.write_text(json.dumps([run("headers-1", steps[:1] + steps[2:]), run("other-2", steps[:1] + steps[2:])]))
    assert [question.id for question in read(file).questions][:2] == ["lookup:0:0", "lookup:1:0"]


def test_at_most_eight_lookups_of_a_run_are_asked_spread_over_it(tmp_path: Path) -> None:
    steps = [step(f"{WANTS_PARSER} {number}", f"cat {number}", f"{number} {PARSER}") for number in range(20)]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([run("headers-1", [*steps, step("Done.", "submit", None)])]))
    lookups = [question.id for question in read(file).questions if question.category == "lookup"]
    assert lookups == [f"lookup:0:{place}" for place in range(0, 20, 3)]


def test_the_text_of_an_issue_is_a_users_and_all_else_the_agents(history: History) -> None:
    assert {item.text for item in history.items if item.role == "user"} == {"Its last one.", "Lunch has none."}


def test_the_same_text_is_one_item(history: History) -> None:
    texts = [item.text for item in history.items]
    assert len(set(texts)) == len(texts)
    assert texts.count("$ ls\nsrc tests") == 1


def test_a_truncated_or_plain_command_is_read_as_it_is(tmp_path: Path) -> None:
    steps = [{"thought": "", "command": '{"command": "cat half', "output": "x"}, {"command": "ls", "output": None}]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([run("a-1", steps, task="Only a title")]))
    assert [item.text for item in read(file).items] == ["$ cat half\nx", "$ ls\n"]


def test_items_are_events_in_order_of_time(history: History) -> None:
    now = datetime(2026, 2, 16, tzinfo=UTC)
    events = [event_from_mapping(event, EventLimits(), now) for event in history.events("swe-runs")]
    times = [event.timestamp for event in events]
    assert times == sorted(times)
    assert {question.asked_at for question in history.questions} == {history.items[-1].timestamp}


@pytest.mark.parametrize("content", ["{", '{"instance_id": 1}', '[{"instance_id": "a", "task": "b"}]', "\xff"])
def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(InvalidInputError, match=r"runs.json: is not a file of runs"):
        read_swe(file)


def test_a_file_that_is_absent_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_swe(tmp_path / "runs.json")
    (tmp_path / "runs.json").write_text("[]")
    with pytest.raises(InvalidInputError, match="contains no runs"):
        read_swe(tmp_path / "runs.json")


@pytest.mark.skipif(not DEV_FILE.exists(), reason=f"no {DEV_FILE}")
def test_the_development_file_gives_what_the_ranking_was_measured_on() -> None:
    history = read(DEV_FILE)
    assert (len(history.items), len(history.answerable), len({q.group for q in history.answerable})) == (3753, 571, 64)
    sessions = {item.id: item.session for item in history.items}
    for question in history.answerable:
        assert question.outside_session not in {sessions[id_] for id_ in question.relevant}
