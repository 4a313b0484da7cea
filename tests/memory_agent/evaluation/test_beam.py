"""Reading BEAM: formats, dates and evidence."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chats import BATCHES, write_beam, write_chat

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import History, read_beam
from memory_agent.evaluation.beam import source_ids

MARCH, APRIL = datetime(2024, 3, 15, tzinfo=UTC), datetime(2024, 4, 2, tzinfo=UTC)


def read(folder: Path, chat: Any, **rest: Any) -> History:
    (history,) = read_beam(write_chat(folder, chat, **rest)).histories
    return history


def test_a_folder_of_chats_has_a_user_per_chat_in_natural_order(tmp_path: Path) -> None:
    chats = write_beam(tmp_path)
    assert [history.user for history in read_beam(chats).histories] == ["100K-2", "100K-10"]
    assert [history.user for history in read_beam(chats / "100K").histories] == ["2", "10"]
    assert [history.user for history in read_beam(chats / "100K" / "2").histories] == ["2"]
    assert read_beam(chats).digest == read_beam(chats / "100K").digest != read_beam(chats / "100K" / "2").digest


def test_messages_are_items_without_their_locator_and_batches_are_sessions(tmp_path: Path) -> None:
    history = read(tmp_path, BATCHES)
    assert [item.id for item in history.items] == ["m0", "m1", "m2", "m3", "m4", "m5"]
    assert history.items[0].text == "My greenhouse has 12 tomato plants."
    assert [item.session for item in history.items] == ["batch-1"] * 4 + ["batch-2"] * 2


def test_messages_of_the_assistant_are_events_of_its_own_type(tmp_path: Path) -> None:
    history = read(tmp_path, BATCHES)
    assert [item.role for item in history.items] == ["user", "assistant"] * 3
    types = [event["event_type"] for event in history.events("beam-2")]
    assert types == ["chat.user_msg", "chat.assistant_msg"] * 3


def test_a_message_has_the_day_of_the_last_anchor_and_questions_that_of_the_very_last(tmp_path: Path) -> None:
    history = read(tmp_path, BATCHES)
    assert [item.timestamp for item in history.items] == [MARCH] * 4 + [APRIL] * 2
    assert {question.asked_at for question in history.questions} == {APRIL}


def test_messages_before_the_first_anchor_have_its_day_and_unknown_anchors_are_ignored(tmp_path: Path) -> None:
    chat = [
        {"batch_number": 1, "turns": [[{"role": "user", "id": 0, "content": "x"}]]},
        {"batch_number": 2, "time_anchor": "April-02-2024", "turns": [[{"role": "user", "id": 1, "content": "y"}]]},
        {"batch_number": 3, "time_anchor": "some day", "turns": [[{"role": "user", "id": 2, "content": "z"}]]},
    ]
    assert [item.timestamp for item in read(tmp_path / "dated", chat).items] == [APRIL] * 3
    undated = read(tmp_path / "undated", [chat[0]])
    assert [item.timestamp for item in undated.items] == [None]
    assert {question.asked_at for question in undated.questions} == {None}


def test_evidence_is_found_however_it_is_nested_and_unknown_ids_are_counted(tmp_path: Path) -> None:
    history = read(tmp_path, BATCHES)
    relevant = {question.id.partition(":")[2]: question.relevant for question in history.questions}
    assert relevant == {
        "abstention:0": {},
        "knowledge_update:0": {"m0": 1, "m4": 1},
        "preference_following:0": {"m2": 1},
    }
    assert history.unmatched == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [([4, 60, 4], {4, 60}), ({"a": [1], "b": [[2], 3]}, {1, 2, 3}), (7, {7}), (None, set()), ([True, "5"], set())],
)
def test_source_ids_are_read_in_every_form(written: object, meant: set[int]) -> None:
    assert source_ids(written) == meant


def test_plain_lists_of_messages_are_read_like_batches(tmp_path: Path) -> None:
    plain = [[m for turn in batch["turns"] for m in turn] for batch in BATCHES]
    batches, lists = read(tmp_path / "a", BATCHES), read(tmp_path / "b", plain)
    assert [(item.id, item.text, item.session) for item in lists.items] == [
        (item.id, item.text, item.session) for item in batches.items
    ]


def test_batches_of_different_plans_are_different_sessions(tmp_path: Path) -> None:
    chat = [{"plan-10": [BATCHES[1]], "plan-2": [BATCHES[0]]}]
    for number, form in enumerate((chat, chat[0])):
        history = read(tmp_path / str(number), form)
        assert [item.session for item in history.items] == ["plan-2/batch-1"] * 4 + ["plan-10/batch-2"] * 2


def test_an_ambiguous_message_id_is_not_evidence(tmp_path: Path) -> None:
    history = read(tmp_path, [{"plan-1": [BATCHES[0]]}, {"plan-2": [BATCHES[0]]}])
    assert len({item.id for item in history.items}) == len(history.items) == 8
    assert [question.relevant for question in history.questions] == [{}, {}, {}]
    assert history.unmatched == 4  # 0 and 2 are ambiguous, and 4 and 77 are absent


def test_the_truncated_chat_takes_precedence(tmp_path: Path) -> None:
    write_chat(tmp_path, BATCHES)
    assert len(read(tmp_path, BATCHES[:1], name="chat_trunecated.json").items) == 4


@pytest.mark.parametrize(
    "chat", ['"text"', "[1]", '[{"batch_number": 1, "turns": [[{"id": 1}]]}]', "{", '{"plan-1": 3}']
)
def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path, chat: str) -> None:
    write_chat(tmp_path, [])
    (tmp_path / "chat.json").write_text(chat)
    with pytest.raises(InvalidInputError, match=r"chat.json: is not a BEAM file"):
        read_beam(tmp_path)


def test_questions_of_another_format_are_refused_by_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"probing_questions.json: is not a BEAM file"):
        read(tmp_path, BATCHES, probes={"abstention": [{"text": "no question"}]})


def test_a_folder_without_a_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="contains no BEAM chat"):
        read_beam(tmp_path)
    chat = write_chat(tmp_path / "7", BATCHES)
    (chat / "chat.json").unlink()
    with pytest.raises(InvalidInputError, match=r"7: contains neither chat_trunecated.json nor chat.json"):
        read_beam(tmp_path)


@pytest.mark.parametrize("chat", [[], [{"batch_number": 1, "turns": []}], {"plan-1": []}])
def test_a_chat_without_messages_is_refused_by_file(tmp_path: Path, chat: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"chat.json: contains no messages"):
        read(tmp_path, chat)


@pytest.mark.parametrize("probes", [{}, {"abstention": []}])
def test_a_chat_without_questions_is_refused_by_file(tmp_path: Path, probes: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"probing_questions.json: contains no questions"):
        read(tmp_path, BATCHES, probes=probes)


def test_two_folders_that_would_be_one_user_are_refused(tmp_path: Path) -> None:
    write_chat(tmp_path / "a b", BATCHES)
    write_chat(tmp_path / "a_b", BATCHES)
    with pytest.raises(InvalidInputError, match="several chats map to the user a_b"):
        read_beam(tmp_path)


def test_probes_as_json_of_the_authors_have_ten_types_of_two(tmp_path: Path) -> None:
    probes = {f"type-{number}": [{"question": "q", "source_chat_ids": [0]}] * 2 for number in range(10)}
    history = read(tmp_path, BATCHES, probes=probes)
    assert len({question.id for question in history.questions}) == 20
    assert json.dumps([question.category for question in history.questions]).count("type-3") == 2
