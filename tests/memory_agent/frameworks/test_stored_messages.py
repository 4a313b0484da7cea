from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks import stored_messages
from memory_agent.frameworks.stored_messages import Message, StoredMessages
from memory_agent.records.prompt_block import CLOSE, OPEN
from tests.end_to_end.conftest import DaemonProcess


@pytest.fixture
def memory(light_daemon: DaemonProcess, user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        yield memory


def numbered(numbers: range) -> list[Message]:
    return [Message(f"message {number}", number % 2 == 0, {"number": number}) for number in numbers]


def test_messages_keep_their_order_and_sessions_are_apart(memory: MemoryClient) -> None:
    one, other = StoredMessages(memory, "one", "example"), StoredMessages(memory, "other", "example")
    one.append(numbered(range(40)))
    other.append([Message("same text", True, {"x": None})] * 3)
    assert [message["number"] for message in one.read()] == list(range(40))
    assert [message["number"] for message in one.read(3)] == [37, 38, 39]
    assert one.read(0) == []
    assert other.read() == [{"x": None}] * 3
    assert StoredMessages(memory, "one", "another framework").read() == []


def test_the_latest_message_is_popped_and_a_session_cleared(memory: MemoryClient) -> None:
    messages = StoredMessages(memory, "one", "example")
    assert messages.pop() is None
    messages.append(numbered(range(3)))
    assert messages.pop() == {"number": 2}
    assert messages.read() == [{"number": 0}, {"number": 1}]
    messages.clear()
    assert messages.read() == []


def test_a_value_that_is_not_json_is_named_and_nothing_of_the_call_is_stored(memory: MemoryClient) -> None:
    messages = StoredMessages(memory, "one", "example")
    with pytest.raises(InvalidInputError, match=r"message\.image"):
        messages.append([*numbered(range(2)), Message("picture", True, {"image": b"\x89PNG"})])
    assert messages.read() == []


def test_messages_keep_their_order_although_the_clock_is_set_back(memory: MemoryClient) -> None:
    before = datetime.now(UTC) + timedelta(seconds=200)
    memory.remember("x", session_id="one", type="example", timestamp=before, metadata={"message": {"number": -1}})
    messages = StoredMessages(memory, "one", "example")
    messages.append(numbered(range(3)))
    assert [message["number"] for message in messages.read()] == [-1, 0, 1, 2]
    assert messages.pop() == {"number": 2}


def test_messages_before_a_refused_one_are_forgotten_again(memory: MemoryClient) -> None:
    messages = StoredMessages(memory, "one", "example")
    messages.append(numbered(range(1)))
    with pytest.raises(InvalidInputError, match="more than 10000 values"):
        messages.append([*numbered(range(1, 3)), Message("large", False, {"values": [0] * 10_001})])
    assert messages.read() == [{"number": 0}]


def test_a_message_without_text_or_with_a_block_is_whole_when_it_is_read(memory: MemoryClient) -> None:
    text = f"{OPEN}\n1. just now\n| The VPN\n{CLOSE}\nDeploy"
    messages = StoredMessages(memory, "one", "example")
    messages.append([Message("", False, {"tool": "x"}), Message(text, True, {"content": text})])
    assert messages.read() == [{"tool": "x"}, {"content": text}]
    assert [record.text for record in memory.list({"type": "example"}, "oldest").records][1] == "Deploy"


def test_docstring_examples_run(
    light_daemon: DaemonProcess, run_docstrings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(light_daemon.data_dir))
    run_docstrings(stored_messages, Message=Message)
