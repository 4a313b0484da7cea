"""Test the queue of causes: limits, fairness, pauses and deadlines, with a simulated clock."""

from __future__ import annotations

from memory_agent.daemon.reactor import Cause, TriggerQueue


def cause(user_id: str, seq: int, deadline_s: float = 100.0, document: str | None = None, data: bytes = b"e") -> Cause:
    pause_s = 0.0 if document is None else 10.0
    return Cause(user_id, seq, "message", data, deadline_s, document=document, pause_s=pause_s)


def drained(queue: TriggerQueue, now_s: float) -> list[tuple[str, int]]:
    taken = []
    while (found := queue.take(now_s)) is not None:
        taken.append((found.user_id, found.seq))
        queue.done(found.user_id)
    return taken


def test_users_take_turns_and_one_users_causes_keep_their_order() -> None:
    queue = TriggerQueue(10, 5)
    for seq in (1, 2, 3):
        queue.offer(cause("alice", seq), 0.0)
    queue.offer(cause("bob", 4), 0.0)
    assert drained(queue, 0.0) == [("alice", 1), ("bob", 4), ("alice", 2), ("alice", 3)]


def test_messages_come_before_documents() -> None:
    queue = TriggerQueue(10, 5)
    queue.offer(cause("alice", 1, document="d"), 0.0)
    queue.offer(cause("alice", 2), 0.0)
    queue.offer(cause("alice", 3), 0.0)
    assert drained(queue, 0.0) == [("alice", 2), ("alice", 3), ("alice", 1)]


def test_a_user_has_one_running_recall() -> None:
    queue = TriggerQueue(10, 5)
    queue.offer(cause("alice", 1), 0.0)
    queue.offer(cause("alice", 2), 0.0)
    first = queue.take(0.0)
    assert first is not None
    assert queue.take(0.0) is None
    assert queue.next_due_s() is None
    queue.done("alice")
    assert drained(queue, 0.0) == [("alice", 2)]


def test_too_many_causes_of_one_user_drop_only_that_users_oldest() -> None:
    queue = TriggerQueue(20, 8)
    queue.offer(cause("bob", 1), 0.0)
    for seq in range(2, 2_002):
        queue.offer(cause("alice", seq), 0.0)
    assert len(queue) == 9
    assert drained(queue, 0.0)[0] == ("bob", 1)
    assert queue.counts == {"full": 1_992}


def test_causes_of_many_users_are_bounded() -> None:
    queue = TriggerQueue(20, 8)
    for seq in range(2_000):
        queue.offer(cause(f"user-{seq % 50}", seq), 0.0)
    assert len(queue) == 20
    assert queue.counts == {"full": 1_980}


def test_bytes_are_bounded() -> None:
    queue = TriggerQueue(100, 100)
    for seq in range(20):
        queue.offer(cause("alice", seq, data=bytes(1 << 20)), 0.0)
    assert drained(queue, 0.0) == [("alice", seq) for seq in range(4, 20)]
    assert queue.counts == {"full": 4}


def test_a_document_that_changes_every_second_causes_one_recall_per_pause() -> None:
    queue = TriggerQueue(10, 5)
    taken = []
    for second in range(60):
        queue.offer(cause("alice", second, second + 5.0, document="d"), float(second))
        taken += [(second, seq) for _, seq in drained(queue, float(second))]
    assert taken == [(0, 0), (10, 10), (20, 20), (30, 30), (40, 40), (50, 50)]
    assert queue.counts == {"debounced": 53}  # 6 of 60 causes were recalled, and the last cause waits
    assert queue.next_due_s() == 60.0


def test_two_documents_do_not_wait_for_each_other() -> None:
    queue = TriggerQueue(10, 5)
    queue.offer(cause("alice", 1, document="d"), 0.0)
    queue.offer(cause("alice", 2, document="other"), 0.0)
    queue.offer(cause("bob", 3, document="d"), 0.0)
    assert sorted(drained(queue, 0.0)) == [("alice", 1), ("alice", 2), ("bob", 3)]


def test_late_causes_are_dropped_and_a_pause_extends_the_deadline() -> None:
    queue = TriggerQueue(10, 5)
    queue.offer(cause("alice", 1, deadline_s=5.0, document="d"), 0.0)
    assert drained(queue, 0.0) == [("alice", 1)]
    queue.offer(cause("alice", 2, deadline_s=6.0, document="d"), 1.0)
    queue.offer(cause("alice", 3, deadline_s=6.0), 1.0)
    assert drained(queue, 9.0) == []
    assert queue.counts == {"late": 1}
    assert drained(queue, 10.0) == [("alice", 2)]


def test_dropping_one_users_causes_leaves_those_of_others() -> None:
    queue = TriggerQueue(10, 5)
    queue.offer(cause("alice", 1), 0.0)
    queue.offer(cause("bob", 2), 0.0)
    queue.drop("alice")
    queue.drop("unknown")
    assert drained(queue, 0.0) == [("bob", 2)]
    assert not queue.counts
