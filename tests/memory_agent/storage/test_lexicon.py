from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hammering import hammered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import NOW, memory

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.records import KINDS, PROVENANCES, SOURCES, MemoryFilter, MemoryRecord
from memory_agent.storage.changes import Change, Changes, indexed_text
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.terms import query_words

few = st.sampled_from(["a", "b", "A", "it's", "日本"])
moments = st.integers(0, 5).map(lambda step: NOW + step * timedelta(microseconds=1))
qualities = st.sampled_from([0.0, 0.4, 0.8, 1.0])


@st.composite
def records(draw: st.DrawFn) -> MemoryRecord:
    return memory(
        source=draw(st.sampled_from(SOURCES[:3])),
        kind=draw(st.sampled_from(KINDS[:3])),
        timestamp=draw(moments),
        quality_score=draw(st.none() | qualities),
        session_id=draw(st.none() | few),
        run_id=draw(st.none() | few),
        channel_id=draw(st.none() | few),
        agent_id=draw(st.none() | few),
        tags=draw(st.lists(few, max_size=3).map(tuple)),
        provenance=draw(st.none() | st.sampled_from(PROVENANCES)),
    )


filters = st.builds(
    MemoryFilter,
    kinds=st.lists(st.sampled_from(KINDS), max_size=2).map(tuple),
    sources=st.lists(st.sampled_from(SOURCES), max_size=2).map(tuple),
    since=st.none() | moments,
    until=st.none() | moments,
    session_id=st.none() | few,
    run_id=st.none() | few,
    channel_id=st.none() | few,
    agent_id=st.none() | few,
    tags=st.lists(few, max_size=2).map(tuple),
    provenance=st.lists(st.sampled_from(PROVENANCES), max_size=2).map(tuple),
    min_quality=st.none() | qualities,
)


def passes(record: MemoryRecord, chosen: MemoryFilter) -> bool:
    """Reference implementation of a filter."""
    return (
        (not chosen.kinds or record.kind in chosen.kinds)
        and (not chosen.sources or record.source in chosen.sources)
        and (chosen.since is None or record.timestamp >= chosen.since)
        and (chosen.until is None or record.timestamp < chosen.until)
        and (chosen.session_id is None or record.session_id == chosen.session_id)
        and (chosen.run_id is None or record.run_id == chosen.run_id)
        and (chosen.channel_id is None or record.channel_id == chosen.channel_id)
        and (chosen.agent_id is None or record.agent_id == chosen.agent_id)
        and (not chosen.tags or bool(set(chosen.tags) & set(record.tags)))
        and (not chosen.provenance or record.provenance in chosen.provenance)
        and (
            chosen.min_quality is None
            or (record.quality_score is not None and record.quality_score >= chosen.min_quality)
        )
    )


def built(folder: Path, memories: list[MemoryRecord]) -> Lexicon:
    lexicon = Lexicon.fresh(folder / "lexicon")
    lexicon.rebuild(enumerate(memories, start=1), through=1, lineage="store")
    return lexicon


@pytest.fixture
def lexicon(tmp_path: Path):  # type: ignore[no-untyped-def]
    opened = built(
        tmp_path,
        [
            memory("fixed the auth race with a mutex in session_manager.rs"),
            memory("races are won by the swift", title="Auth notes"),
            memory("nothing to see here", tags=("race", "report")),
            memory("a completely different matter"),
        ],
    )
    yield opened
    opened.close()


@given(memories=st.lists(records(), max_size=12), chosen=st.lists(filters, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_filter_is_exact(tmp_path: Path, memories: list[MemoryRecord], chosen: list[MemoryFilter]) -> None:
    with built(tmp_path, memories) as lexicon:
        for one in chosen:
            expected = [row for row, record in enumerate(memories, start=1) if passes(record, one)]
            assert lexicon.matching_rows(one).tolist() == expected
            assert lexicon.count_matching(one) == len(expected)
            assert sorted(lexicon.search("mutex", 100, one)[0].tolist()) == expected


def test_each_field_of_a_filter_is_under_test() -> None:
    tested = {"kinds", "sources", "since", "until", "session_id", "run_id", "channel_id", "agent_id"}
    tested |= {"tags", "provenance", "min_quality"}
    assert set(MemoryFilter.__struct_fields__) - tested == {"min_score"}


def test_words_are_found_by_their_stem_in_text_title_and_tags(lexicon: Lexicon) -> None:
    rows, scores = lexicon.search("racing", 10)
    assert sorted(rows.tolist()) == [1, 2, 3]
    assert (scores > 0).all()
    assert (np.diff(scores) <= 0).all()
    assert sorted(lexicon.search("auth", 10)[0].tolist()) == [1, 2]
    assert lexicon.search("session manager", 10)[0].tolist() == [1]


def test_the_limit_and_the_filter_hold_for_words_too(lexicon: Lexicon) -> None:
    assert len(lexicon.search("race", 2)[0]) == 2
    assert lexicon.search("race", 10, MemoryFilter(tags=("report",)))[0].tolist() == [3]
    assert lexicon.search("race", 0)[0].tolist() == []


def test_of_equal_scores_the_later_row_comes_first(tmp_path: Path) -> None:
    with built(tmp_path, [memory("same words") for _ in range(20)]) as lexicon:
        assert lexicon.search("same", 10)[0].tolist() == list(range(20, 10, -1))


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "?!… --",
        "the of and",
        '"unclosed',
        "NEAR(a b, 3)",
        "title:race OR text:*",
        "race AND NOT (",
        "^race*",
        "'; DROP TABLE memories; --",
        "\x00race\x00",
        "\ud800 race",
        "{race} + race : race",
        "race" * 300_000,
        "race " * 200_000,
        " ".join(f"w{number}" for number in range(100_000)),
        "e\u0301 \u200b \U0001f3c1 \ufffe",
        "-race",
    ],
)
def test_no_query_does_harm(lexicon: Lexicon, query: str) -> None:
    rows, scores = lexicon.search(query, 10)
    assert len(rows) == len(scores)
    assert lexicon.word_hits(query, np.array([1, 3])).shape[1] == 2
    assert list(lexicon.passages(query, {7: memory("a race")})) == [7]
    assert len(lexicon) == 4


@given(query=st.text(max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_query(lexicon: Lexicon, query: str) -> None:
    lexicon.search(query, 10)


def test_stop_words_count_only_when_there_is_nothing_else() -> None:
    assert query_words("What did the auth race do to AUTH?") == ["auth", "race"]
    assert query_words("who are you") == ["who", "are", "you"]


def test_the_best_passage_of_each_record_is_marked(lexicon: Lexicon) -> None:
    records = {3: memory("the auth race, fixed"), 5: memory("unrelated"), 8: memory("RACES")}
    assert lexicon.passages("auth races", records) == {3: ("the **auth** **race**, fixed",), 5: (), 8: ("**RACES**",)}


def test_hits_say_which_row_has_which_word_whatever_its_form(tmp_path: Path) -> None:
    memories = [
        memory("Races are lost"),
        memory("the auth race"),
        memory("auth", title="x"),
        memory("nothing", tags=("race",)),
    ]
    with built(tmp_path, memories) as lexicon:
        rows = np.array([1, 2, 4])
        assert lexicon.word_hits("the auth races", rows).tolist() == [[False, True, False], [True, True, True]]
        assert lexicon.word_hits("", rows).shape == (0, 3)
        assert lexicon.word_hits("auth", np.array([], dtype=np.int64)).shape == (1, 0)


def test_words_are_counted_in_all_memories_whatever_their_form(tmp_path: Path) -> None:
    memories = [memory("Races are lost"), memory("the auth race"), memory("auth", title="x", tags=("race",))]
    with built(tmp_path, memories) as lexicon:
        assert lexicon.having(["races", "racing", "auth", "x", "unheard"]) == {
            "races": 3,
            "racing": 3,
            "auth": 2,
            "x": 1,
            "unheard": 0,
        }


def test_a_filter_by_a_time_without_zone_is_refused(lexicon: Lexicon) -> None:
    with pytest.raises(InvalidInputError) as caught:
        lexicon.matching_rows(MemoryFilter(since=datetime(2026, 1, 1)))  # noqa: DTZ001
    assert caught.value.field == "since"


def test_a_filter_by_a_name_that_is_not_unicode_matches_nothing(lexicon: Lexicon) -> None:
    assert lexicon.matching_rows(MemoryFilter(session_id="\ud800", tags=("\udfff",))).tolist() == []


def test_neighbours_are_those_of_the_session_in_order_of_time(tmp_path: Path) -> None:
    def at(minute: int, session: str | None) -> MemoryRecord:
        return memory(timestamp=NOW + timedelta(minutes=minute), session_id=session)

    memories = [at(5, "s"), at(1, "s"), at(3, "s"), at(2, "other"), at(3, "s"), at(4, None), at(9, "s")]
    with built(tmp_path, memories) as lexicon:  # in order of time: 2, 3, 5, 1, 7
        assert lexicon.around([5, 2, 6, 99], reach=2) == [(2, 3, 5, 1, 7), (2, 3, 5), (6,), (99,)]
        assert lexicon.around([2, 7], reach=1) == [(2, 3), (1, 7)]
        assert lexicon.around([], reach=2) == []


def test_memories_are_counted_by_kind_and_source_and_have_a_span(lexicon: Lexicon, tmp_path: Path) -> None:
    assert lexicon.count_by("kind") == {"finding": 4}
    assert lexicon.count_by("source") == {"worker_result": 4}
    oldest, newest = lexicon.time_span()
    assert oldest is not None
    assert newest is not None
    assert newest - oldest == timedelta(seconds=3)
    assert oldest.tzinfo is UTC
    with pytest.raises(InvalidInputError):
        lexicon.count_by("row; DROP TABLE memories")
    with built(tmp_path / "", []) as empty:
        assert empty.time_span() == (None, None)


def test_a_deleted_memory_leaves_no_word_and_a_changed_one_only_its_new_words(lexicon: Lexicon) -> None:
    old, now = memory("alpha beta", tags=("x",)), memory("beta gamma", tags=("y",))
    lexicon.apply(Changes(1, 2, [Change(9, "put", old, None, False)]))
    lexicon.apply(Changes(2, 3, [Change(9, "update", now, None, False, indexed_text(old))]))
    assert [lexicon.search(word, 9)[0].tolist() for word in ("alpha", "beta", "gamma")] == [[], [9], [9]]
    assert lexicon.matching_rows(MemoryFilter(tags=("x",))).tolist() == []
    assert lexicon.matching_rows(MemoryFilter(tags=("y",))).tolist() == [9]
    lexicon.apply(Changes(3, 4, [Change(9, "delete", None, None, False, indexed_text(now))]))
    assert [lexicon.search(word, 9)[0].tolist() for word in ("alpha", "beta", "gamma")] == [[], [], []]
    assert lexicon.matching_rows(MemoryFilter(tags=("y",))).tolist() == []
    assert len(lexicon) == 4
    lexicon.compact()


@pytest.mark.parametrize(
    "changes",
    [
        Changes(5, 6, []),  # 2 to 5 are missing
        Changes(0, 2, []),  # 1 was followed
        Changes(1, 2, [Change(1, "put", memory(), None, False)]),  # is held
        Changes(1, 2, [Change(9, "update", memory(), None, False)]),  # is not held
        Changes(1, 2, [Change(9, "delete", None, None, False, indexed_text(memory()))]),
        Changes(1, 2, [Change(1, "delete", None, None, False, None)]),
    ],
)
def test_changes_that_do_not_fit_are_refused_as_a_whole(lexicon: Lexicon, changes: Changes) -> None:
    with pytest.raises(IndexDamagedError):
        lexicon.apply(changes)
    assert (lexicon.applied, len(lexicon)) == (1, 4)


def test_a_stretch_that_was_followed_does_no_harm(lexicon: Lexicon) -> None:
    lexicon.apply(Changes(0, 1, [Change(1, "put", memory(), None, False)]))
    assert len(lexicon) == 4


def test_a_closed_lexicon_opens_as_it_was(lexicon: Lexicon) -> None:
    lexicon.close()
    lexicon.close()
    with pytest.raises(IndexDamagedError):
        lexicon.search("race", 5)
    with Lexicon.open(lexicon.path) as again:
        assert (again.applied, again.lineage, len(again)) == (1, "store", 4)
        assert sorted(again.search("race", 9)[0].tolist()) == [1, 2, 3]


def test_a_lexicon_that_has_still_to_be_built_does_not_answer_with_nothing(tmp_path: Path) -> None:
    with Lexicon.fresh(tmp_path / "lexicon") as fresh, pytest.raises(IndexDamagedError):
        fresh.search("race", 5)


def test_every_damage_to_a_closed_file_is_noticed(lexicon: Lexicon) -> None:
    lexicon.close()
    whole, mark = lexicon.path.read_bytes(), lexicon.path.with_name("lexicon.seal").read_bytes()
    rng = np.random.default_rng(1)
    damaged = [b"", whole[:100], whole[:-4096], whole[:-1], whole[:-4096] + bytes(4096), whole + b"\x00"]
    for bit in rng.integers(0, 8 * len(whole), size=100).tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        lexicon.path.write_bytes(content)
        lexicon.path.with_name("lexicon.seal").write_bytes(mark)
        with pytest.raises(IndexDamagedError):
            Lexicon.open(lexicon.path)


def test_a_file_left_by_a_process_that_died_is_believed_only_while_the_machine_runs_on(lexicon: Lexicon) -> None:
    lexicon.close()
    Lexicon.open(lexicon.path)._disconnect()  # as a process that dies: no clean-shutdown mark
    with Lexicon.open(lexicon.path) as again:
        assert len(again) == 4
    other = Lexicon.open(lexicon.path)
    assert other._writer is not None
    other._writer.execute("UPDATE state SET value = 'an earlier boot' WHERE name = 'boot'")
    other._disconnect()
    with pytest.raises(IndexDamagedError):
        Lexicon.open(lexicon.path)


def test_a_reset_sets_the_file_aside(lexicon: Lexicon) -> None:
    lexicon.reset()
    assert lexicon.path.with_name("lexicon.damaged").exists()
    with pytest.raises(IndexDamagedError):
        lexicon.search("race", 5)
    lexicon.rebuild([(1, memory("race"))], through=7, lineage="store")
    assert lexicon.search("race", 5)[0].tolist() == [1]
    assert lexicon.applied == 7


def test_threads_search_while_changes_are_applied(lexicon: Lexicon) -> None:
    def search() -> None:
        assert len(lexicon.search("race", 500)[0]) >= 3
        assert len(lexicon.matching_rows(MemoryFilter(kinds=("finding",)))) >= 4

    with hammered(search):
        for number in range(1, 100):
            lexicon.apply(Changes(number, number + 1, [Change(100 + number, "put", memory("a race"), None, False)]))
    assert len(lexicon) == 103
