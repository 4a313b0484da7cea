"""Test the reading of LoCoMo: its format, its irregular annotations, and the events of its turns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import Dataset, History, choose_conversations, read_locomo
from memory_agent.evaluation.locomo import parse_evidence
from relay.config import EventLimits
from relay.event import event_from_mapping

DEV_FILE = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"

CONVERSATION = {
    "speaker_a": "Ann",
    "speaker_b": "Ben",
    "session_10_date_time": "12:09 am on 1 March, 2024",
    "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "The kiln is fixed."}],
    "session_2_date_time": "1:56 pm on 8 May, 2023",
    "session_2": [
        {"speaker": "Ann", "dia_id": "D2:1", "text": "Look!", "blip_caption": "a blue vase", "img_url": ["x"]},
        {"speaker": "Ben", "dia_id": "D2:02", "text": "Nice."},
    ],
    "session_3_date_time": "9:00 am on 9 May, 2023",
}
QUESTIONS: list[dict[str, Any]] = [
    {"question": "What did Ann show?", "answer": "a vase", "evidence": ["D2:1"], "category": 4},
    {"question": "Both?", "answer": "yes", "evidence": ["D2:2; D10:1"], "category": 1},
    {"question": "Lost?", "answer": "?", "evidence": ["D9:9", "D:10:1"], "category": 1},
    {"question": "Never said?", "adversarial_answer": "x", "evidence": [], "category": 5},
    {"question": "No list at all?", "answer": 3, "category": 3},
]


@pytest.fixture
def conversation(tmp_path: Path) -> History:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([{"sample_id": "s", "conversation": CONVERSATION, "qa": QUESTIONS}]))
    (read,) = read_locomo(file).histories
    return read


def test_turns_come_in_the_order_of_the_sessions_with_speaker_and_caption(conversation: History) -> None:
    assert [(turn.id, turn.text) for turn in conversation.items] == [
        ("D2:1", "Ann: Look! [shares a blue vase]"),
        ("D2:2", "Ben: Nice."),
        ("D10:1", "Ben: The kiln is fixed."),
    ]


def test_session_and_date_are_kept(conversation: History) -> None:
    first, _, last = conversation.items
    assert (first.session, first.timestamp) == ("session_2", datetime(2023, 5, 8, 13, 56, tzinfo=UTC))
    assert (last.session, last.timestamp) == ("session_10", datetime(2024, 3, 1, 0, 9, tzinfo=UTC))


def test_a_question_is_asked_when_the_last_session_was_held(conversation: History) -> None:
    assert {question.asked_at for question in conversation.questions} == {datetime(2024, 3, 1, 0, 9, tzinfo=UTC)}


def test_questions_have_unique_ids_and_keep_their_category(conversation: History) -> None:
    assert [question.id for question in conversation.questions] == ["0:0", "0:1", "0:2", "0:3", "0:4"]
    assert [question.category for question in conversation.questions] == ["4", "1", "1", "5", "3"]
    assert [question.id for question in conversation.answerable] == ["0:0", "0:1", "0:2"]


def test_evidence_that_no_turn_has_is_ignored_and_counted(conversation: History) -> None:
    evidence = [list(question.relevant) for question in conversation.questions]
    assert evidence == [["D2:1"], ["D10:1", "D2:2"], ["D10:1"], [], []]
    assert conversation.unmatched == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("D1:3", {"D1:3"}),
        ("D8:6; D9:17", {"D8:6", "D9:17"}),
        ("D:11:26", {"D11:26"}),
        ("D30:05", {"D30:5"}),
        ("D9:1 D4:4 D4:6", {"D9:1", "D4:4", "D4:6"}),
        (["D1:1", ["D2:2", "D3:3,D4:4"]], {"D1:1", "D2:2", "D3:3", "D4:4"}),
        ("D", set()),
        ([], set()),
        (None, set()),
    ],
)
def test_evidence_is_read_in_every_form(written: object, meant: set[str]) -> None:
    assert parse_evidence(written) == meant


def test_every_turn_becomes_an_event_that_the_relay_accepts(conversation: History) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    events = [event_from_mapping(item, EventLimits(), now) for item in conversation.events("locomo-0")]
    assert [event.event_id for event in events] == ["locomo-0:D2:1", "locomo-0:D2:2", "locomo-0:D10:1"]
    first = events[0]
    assert (first.event_type, first.user_id, first.session_id) == ("chat.user_msg", "locomo-0", "session_2")
    assert first.timestamp == conversation.items[0].timestamp
    assert first.payload == {"text": "Ann: Look! [shares a blue vase]"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("not json", "is not a LoCoMo file"),
        ('[{"conversation": {}}]', "qa"),
        ('[{"conversation": {"session_1": [{"speaker": "A", "dia_id": "x", "text": "t"}]}, "qa": []}]', "LoCoMo"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(InvalidInputError, match=reason) as caught:
        read_locomo(file)
    assert caught.value.field == str(file)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_locomo(tmp_path / "absent.json")


def many(tmp_path: Path, count: int) -> Dataset:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([{"conversation": CONVERSATION, "qa": QUESTIONS}] * count))
    return read_locomo(file)


def test_chosen_conversations_keep_their_place_in_the_file(tmp_path: Path) -> None:
    dataset = many(tmp_path, 4)
    chosen = choose_conversations(dataset, [3, 1, 3])
    assert [history.user for history in chosen.histories] == ["1", "3"]
    assert chosen.histories[1] == dataset.histories[3]
    assert chosen.digest == dataset.digest


def test_an_unknown_conversation_is_named(tmp_path: Path) -> None:
    reason = "conversations: not found: 2, 11; the file contains conversations 0 to 1"
    with pytest.raises(InvalidInputError, match=reason):
        choose_conversations(many(tmp_path, 2), [11, 0, 2])


def test_different_content_has_a_different_digest(tmp_path: Path) -> None:
    assert many(tmp_path, 1).digest != many(tmp_path, 2).digest
    assert many(tmp_path, 1).digest == many(tmp_path, 1).digest


@pytest.mark.skipif(not DEV_FILE.exists(), reason="the evaluation data is not available")
def test_the_real_file_is_read_completely() -> None:
    histories = read_locomo(DEV_FILE).histories
    assert [len(history.items) for history in histories] == [419, 369, 663, 629, 680]
    assert sum(len(history.questions) for history in histories) == 999
    without = [question for part in histories for question in part.questions if not question.relevant]
    assert [question.category for question in without] == ["3", "3"]
    assert sum(history.unmatched for history in histories) == 1
