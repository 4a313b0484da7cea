"""What followed a run goes on being true while the runs that it cites change: late events, ids used again, kills."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_samples import LATER, approval, at, begin, end
from store_checks import verified
from test_implicit_signs import AGAIN, ELSEWHERE, RELATED, asked, message, opened, run_of, signs, take

from memory_agent.embedders import Embedder
from memory_agent.learning.consolidation import MOST_FOLLOWED, SignInference
from memory_agent.learning.implicit_quality import implicit_quality
from memory_agent.learning.implicit_signs import speaks
from memory_agent.memory import Memory
from memory_agent.storage.stored_runs import WATCHED

_WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {here!r}, str(Path({here!r}).parent)
from memory_agent.embedders import open_embedder
from memory_agent.settings import EmbedderSettings
from run_samples import LATER
from test_implicit_signs import opened
from test_signs_of_changed_runs import told
embedder = open_embedder(EmbedderSettings(allow_download=False))
with opened(Path({folder!r}), embedder) as memory:
    print("opened", flush=True)
    for number, batch in enumerate(told()):
        memory.ingest(batch, seqs=range(10 * number + 1, 10 * number + 1 + len(batch)), now=LATER)
        memory.sona.consolidate(LATER)
        print(number, flush=True)
"""


@pytest.fixture
def memory(tmp_path: Path, embedder: Embedder) -> Iterator[Memory]:
    with opened(tmp_path / "alice", embedder) as memory:
        yield memory


def rejection(run_id: str, minute: float) -> dict[str, Any]:
    return approval(run_id, minute, approved=False) | {"event_id": f"{run_id}-rejection-{minute:g}"}


def told() -> list[list[dict[str, Any]]]:
    """Runs with all kinds of signs, an id that is used again, a run divided by a late event, verdicts that change."""
    return [
        asked("one", 0),
        [message("again", 7, AGAIN), *asked("two", 40, RELATED)],
        asked("three", 80, ELSEWHERE),
        [begin("two", 100, ELSEWHERE) | {"event_id": "two-again"}, end("two", 110) | {"event_id": "two-again-end"}],
        [begin("two", 35, RELATED) | {"event_id": "two-earlier"}],
        [rejection("two", 120)],
        [approval("two", 45) | {"event_id": "two-approved"}, message("off", 140, "What will the weather be in Rome?")],
        asked("five", 2_000, session_id="s-2"),
    ]


def require_sound(memory: Memory) -> None:
    """Every sign cites a memory that is there, and where it is a success, the begin of a run that succeeded."""
    verified(memory._archive.store)
    with memory._archive.store.snapshot() as snapshot:
        for run in snapshot.newest_trajectories():
            for sign in run.signs:
                assert snapshot.record(sign.row) is not None
                later = None if sign.run_id is None else snapshot.trajectory(sign.run_id)
                if sign.kind == "later_success":
                    assert later is not None
                    assert (speaks(later), later.begin_row) == (True, sign.row)
        for row, record in snapshot.scan():
            own = snapshot.run_of(record)
            slot = memory._archive.view.slots([row])
            if own is not None and own.begin_row == row:
                assert record.implicit_quality == implicit_quality(own)
            expected = np.nan if record.implicit_quality is None else record.implicit_quality
            np.testing.assert_equal(memory._archive.view.implicit[slot], [expected])


def settle(memory: Memory) -> None:
    """Let so much time pass that nothing can follow the runs any more."""
    take(memory, message("days-later", 4_000, "Water the plants", "s-9"))
    assert watched(memory) == 0


def watched(memory: Memory) -> int:
    with memory._archive.store.snapshot() as snapshot:
        return len(list(snapshot.run_keys(WATCHED)))


def test_a_success_is_withdrawn_though_a_late_event_gave_its_run_another_begin(memory: Memory) -> None:
    take(memory, asked("one", 0), asked("two", 20, RELATED))
    settle(memory)
    assert signs(memory, "one")[-1] == ("later_success", "two-begin")
    earlier = begin("two", 18, RELATED, session_id="s-1") | {"event_id": "two-earlier"}
    assert not memory.ingest([earlier], now=LATER).rejected
    require_sound(memory)
    memory.sona.consolidate(LATER)
    assert signs(memory, "one")[-1] == ("later_success", "two-earlier")
    assert not memory.ingest([rejection("two", 30)], now=LATER).rejected
    assert [kind for kind, _ in signs(memory, "one")] == []
    require_sound(memory)


def test_a_success_is_withdrawn_when_its_begin_turns_out_to_be_another_run_of_that_id(memory: Memory) -> None:
    """Its id was used before: the first run had not been heard of yet."""
    take(memory, asked("one", 0), asked("two", 20, RELATED))
    settle(memory)
    former = [begin("two", -60, ELSEWHERE, session_id="s-5"), end("two", -50)]
    late = [one | {"event_id": f"former-{one['event_id']}"} for one in former]
    assert not memory.ingest(late, now=LATER).rejected
    require_sound(memory)
    memory.sona.consolidate(LATER)
    (found,) = [sign for sign in run_of(memory, "one").implicit if sign.kind == "later_success"]
    later = run_of(memory, found.run_id or "")
    assert (later.id, later.began_at) == (f"two@{at(20):%Y-%m-%dT%H:%M:%S}Z", at(20))
    assert not memory.ingest([rejection(later.id, 30)], now=LATER).rejected
    assert [sign.kind for sign in run_of(memory, "one").implicit] == []
    require_sound(memory)


def test_a_verdict_that_comes_while_signs_are_read_is_not_overlooked(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The success was read, and withdrawn before it was written; afterwards nothing would read that run again."""
    take(memory, asked("one", 0))
    assert not memory.ingest(
        [*asked("two", 20, RELATED), message("later", 4_000, "Water the plants", "s-9")], now=LATER
    ).rejected
    found = SignInference._found

    def interrupted(self: SignInference, *given: Any) -> Any:
        read = found(self, *given)
        monkeypatch.setattr(SignInference, "_found", found)
        assert not memory.ingest([rejection("two", 30)], now=LATER).rejected
        return read

    monkeypatch.setattr(SignInference, "_found", interrupted)
    memory.sona.consolidate(LATER)
    require_sound(memory)
    memory.sona.consolidate(LATER)
    assert signs(memory, "one") == []
    assert watched(memory) == 0


def test_all_runs_are_settled_however_many_there_are(memory: Memory) -> None:
    """One call looks at a part of them; nothing new comes in before the next one."""
    runs = [one for number in range(MOST_FOLLOWED + 20) for one in asked(f"run-{number}", 10 * number, session_id="s")]
    memory.ingest(runs, now=LATER)
    much_later = LATER + timedelta(days=90)
    memory.ingest([message("months-later", 90_000, "Water the plants", "s-9")], now=much_later)
    for _ in range(3):
        memory.sona.consolidate(much_later)
    assert watched(memory) == 0


@pytest.mark.parametrize("seed", range(4))
def test_signs_stay_sound_in_any_order_of_events(tmp_path: Path, embedder: Embedder, seed: int) -> None:
    seeded = random.Random(seed)
    batches = told()
    seeded.shuffle(batches)
    with opened(tmp_path / "alice", embedder) as memory:
        for batch in batches:
            take(memory, *seeded.sample(batch, len(batch)))
            require_sound(memory)
        read = {run.id: run.implicit for run in memory.runs.list(limit=100)}
        memory._consolidation._following._seen = None  # type: ignore[union-attr]
        memory.sona.consolidate(LATER)
        assert {run.id: run.implicit for run in memory.runs.list(limit=100)} == read


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_leaves_signs_columns_and_lessons_as_one(tmp_path: Path, embedder: Embedder, seed: int) -> None:
    """The columns and the learner are saved when a memory closes, which it never does here."""
    seeded, folder = random.Random(seed), tmp_path / "killed"
    code = _WRITER.format(here=str(Path(__file__).parent), folder=str(folder))
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(seeded.randrange(1, 5)):
                assert writer.stdout.readline()
            writer.kill()
        with opened(folder, embedder) as memory:
            memory._archive.settled_view()
            require_sound(memory)
    with opened(folder, embedder) as memory, opened(tmp_path / "whole", embedder) as whole:
        for one in (memory, whole):
            for number, batch in enumerate(told()):
                one.ingest(batch, seqs=range(10 * number + 1, 10 * number + 1 + len(batch)), now=LATER)
                one.sona.consolidate(LATER)
            require_sound(one)
        assert {run.id for run in memory.runs.list()} == {run.id for run in whole.runs.list()}
        for run in whole.runs.list():
            assert run_of(memory, run.id).quality == run.quality
