"""Test teaching and asking, with the real memory and model: all arms start equal, and asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import History, Item, Question
from memory_agent.settings import EmbedderSettings, Settings
from ops.lab import forgetting, rocchio, trials
from ops.lab.arms import ARMS, CITE, LIST, OFF, ORACLE, ROCCHIO
from ops.lab.course import Setup, course
from ops.lab.histories import merged
from ops.lab.protocol import workers
from ops.lab.stores import CachingEmbedder, ingest_all

DAY = datetime(2024, 2, 16, tzinfo=UTC)
TOPICS = (
    ("The kiln in the garage is hot", "Where is the kiln?", "What is hot in the garage?"),
    ("Norway has long fjords", "Which country has fjords?", "How long are the fjords of Norway?"),
    ("The cello needs a new string", "What does the cello need?", "Which instrument needs a string?"),
    ("The parser fails on tabs", "What does the parser fail on?", "Why do tabs break the parser?"),
    ("Staging needs the VPN", "What does staging need?", "Where is the VPN needed?"),
    ("Lunch is at noon on Fridays", "When is lunch?", "What happens at noon on Fridays?"),
)
BY_NAME = {arm.name: arm for arm in ARMS}


def history(user: str, topics: tuple[tuple[str, str, str], ...] = TOPICS) -> History:
    items = tuple(
        Item(id=f"i{place}", text=topic[0], timestamp=DAY, session=f"s{place // 2}")
        for place, topic in enumerate(topics)
    )
    questions = tuple(
        Question(id=f"{user}:{place}:{asked}", text=text, category="1", relevant={f"i{place}": 1}, asked_at=DAY)
        for place, topic in enumerate(topics)
        for asked, text in enumerate(topic[1:])
    )
    return History(user=user, items=items, questions=questions)


ONE, OTHER = history("one"), history("other", TOPICS[::-1])
BOTH = merged((ONE, OTHER), forgetting.pair_user(ONE, OTHER))


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    settings = Settings(embedder=EmbedderSettings(allow_download=False))
    own = open_embedder(settings.embedder)
    embedder = CachingEmbedder(own)
    events = {part.user: part.events(part.user) for part in (ONE, OTHER, BOTH)}
    stores = ingest_all(events, settings, tmp_path_factory.mktemp("stores"), embedder, lambda *_: None)
    yield Setup(stores, embedder, shown=5)
    own.close()


def test_every_event_has_its_record(setup: Setup) -> None:
    assert [len(setup.stores.records[part.user]) for part in (ONE, OTHER, BOTH)] == [6, 6, 12]
    assert set(setup.stores.records["one"]) == {f"one:i{place}" for place in range(6)}


@pytest.mark.parametrize("name", [ORACLE, CITE, LIST, ROCCHIO])
def test_before_the_first_lesson_every_arm_answers_as_with_learning_off(setup: Setup, name: str) -> None:
    found = []
    for arm in (OFF, name):
        with course(setup, BY_NAME[arm], ONE, np.random.default_rng(1)) as untaught:
            found.append(untaught.ask(ONE.questions))
    assert found[0] == found[1]


def test_asking_leaves_no_trace(setup: Setup) -> None:
    with course(setup, BY_NAME[ORACLE], ONE, np.random.default_rng(1)) as one:
        one.teach(ONE.questions[::2])
        first = one.ask(ONE.questions)
        assert one.ask(ONE.questions) == first
        before = one.heard.feedbacks
    assert before == len(ONE.questions[::2])


def test_the_same_seed_gives_the_same_course_in_one_go_or_in_parts(setup: Setup) -> None:
    found = []
    for cuts in ((0, 8), (0, 8), (0, 3, 8)):
        with course(setup, BY_NAME[CITE], ONE, np.random.default_rng(3)) as one:
            for start, end in pairwise(cuts):
                one.teach(ONE.questions[start:end])
            found.append((one.ask(ONE.questions), one.heard))
    assert found[0] == found[1] == found[2]


def test_feedback_is_counted_with_its_credits(setup: Setup) -> None:
    with course(setup, BY_NAME[ORACLE], ONE, np.random.default_rng(1)) as oracle:
        status = oracle.teach(ONE.questions[:4])
    assert (oracle.heard.feedbacks, oracle.heard.named, oracle.heard.credited) == (4, 4, 4)
    assert status.credited == 4
    with course(setup, BY_NAME[LIST], ONE, np.random.default_rng(1)) as listed:
        status = listed.teach(ONE.questions[:4])
    assert (listed.heard.feedbacks, listed.heard.named, listed.heard.credited) == (4, 20, 0)
    assert sum(listed.heard.not_credited.values()) == 20
    assert status.credited == 0


def test_with_learning_off_nothing_is_said_and_nothing_is_learnt(setup: Setup) -> None:
    with course(setup, BY_NAME[OFF], ONE, np.random.default_rng(1)) as off:
        status = off.teach(ONE.questions)
    assert (off.heard.feedbacks, status.credited) == (0, 0)


def test_rocchio_learns_one_vector_from_feedback_and_moves_later_queries(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocchio, "BETA", 20.0)  # moves so far that the query hardly counts
    found = []
    for name in (OFF, ROCCHIO):
        with course(setup, replace(BY_NAME[name], mode="vector"), ONE, np.random.default_rng(1)) as one:
            status = one.teach(ONE.questions[::2])
            found.append(one.ask(ONE.questions))
            assert one.ask(ONE.questions) == found[-1]
    assert (one.heard.feedbacks, status.credited, status.mode) == (len(ONE.questions[::2]), 0, "off")
    assert one.heard.credited > 0
    assert found[0] != found[1]


def test_a_trial_asks_repeated_questions_at_every_stage_and_all_of_the_test_at_the_end(setup: Setup) -> None:
    job = trials.CourseJob(0, "random", 0, ONE, BY_NAME[CITE])
    split = trials.split_of("random", ONE, 0, 0)
    report = trials.run_job(setup, job)
    asked = {
        stage: {answer.question for answer in report.answered if answer.taught == stage} for stage in trials.STAGES
    }
    assert asked[100] == {question.id for question in split.test}
    assert all(asked[stage] == split.repeated for stage in trials.STAGES[:-1])
    assert report.heard.feedbacks == len(split.train)


def test_several_processes_give_the_same_result_as_one(setup: Setup) -> None:
    jobs = trials.jobs([ONE], [BY_NAME[OFF], BY_NAME[CITE]], [0])
    found = []
    for processes in (1, 2):
        with workers(setup, processes, lambda *_: None) as staff:
            found.append(staff.run("learn", trials.run_job, jobs))
    assert found[0] == found[1]
    assert [report.arm for report in found[0]] == [job.arm.name for job in jobs]


def test_of_two_projects_both_are_asked_before_and_after_the_second_was_taught(setup: Setup) -> None:
    (job, *_) = forgetting.jobs([ONE, OTHER], [BY_NAME[OFF], BY_NAME[ORACLE]], [0])
    asked = forgetting.run_job(setup, replace(job, arm=BY_NAME[ORACLE])).asked
    assert set(asked) == {"A after A", "A after B", "B after A", "B after B", "B alone"}
    assert asked["A after A"].keys() == asked["A after B"].keys() <= {question.id for question in ONE.questions}
    assert asked["B after B"].keys() == asked["B alone"].keys() <= asked["B after A"].keys()
    assert asked["B after A"].keys() <= {question.id for question in OTHER.questions}
