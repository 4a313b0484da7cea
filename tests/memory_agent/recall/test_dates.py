"""Dates in queries: spans are exact to the second, and phrases that only resemble dates are ignored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from date_samples import NAMED, NO_TIME, SEEN_FROM
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import age
from memory_agent.recall.dates import MOST_CHARS, DateSpan, describe, understand_dates
from memory_agent.recall.dates.phrases import MOST_PHRASES

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
WORDS = """
    a an the two 3 12 31 99 9999 couple of few half may May march March mar Feb 29 30 31st 3rd 2022 2023 1900 2099 '22
    last this next past previous day days week weeks weekend month year quarter decade hour minute h d ago back now
    from to until between and since before after by in on at during over more than early mid late end beginning first
    second half yesterday today tonight tomorrow morning night Monday fri sunday summer winter fall Q1 q3 3pm 10:30
    24:61 , - . ? 2023-05-07 2023-02-30 2023-05-07T10:20:30Z 05/07/2023 31/31/2023 1.1.2023 \u017feptember wee\u212a
"""

anything = st.text(max_size=300)
"""Includes surrogates and NUL."""
like_time = st.lists(st.sampled_from(WORDS.split()), max_size=30).map(" ".join)
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(timezones=zones | st.just(ZoneInfo("America/New_York")))


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("query", "phrase", "since", "until"), NAMED)
def test_a_named_time_is_understood(query: str, phrase: str, since: str | None, until: str | None) -> None:
    found = understand_dates(query, SEEN_FROM)
    assert [(span.phrase, span.since, span.until) for span in found] == [(phrase, moment(since), moment(until))]


@pytest.mark.parametrize("query", NO_TIME)
def test_phrases_that_only_resemble_a_time_are_ignored(query: str) -> None:
    assert understand_dates(query, SEEN_FROM) == ()


def test_a_time_is_found_within_a_sentence_about_something_else() -> None:
    query = "It may fail on port 2022: what changed between 3.11 and 3.12 since last Monday, or in May 2023?"
    assert [describe(span) for span in understand_dates(query, SEEN_FROM)] == [
        "since last Monday = 2023-11-13 …",
        "in May 2023 = 2023-05-01 … 2023-05-31",
    ]


@pytest.mark.parametrize(
    ("query", "understood"),
    [
        ("in january and february", ["in january = 2023-01-01 … 2023-01-31", "february = 2023-02-01 … 2023-02-28"]),
        ("in 2021 or 2022", ["in 2021 = 2021-01-01 … 2021-12-31", "2022 = 2022-01-01 … 2022-12-31"]),
        ("on Monday and Tuesday", ["on Monday = 2023-11-13", "Tuesday = 2023-11-14"]),
        ("on Monday, Friday and Tuesday?", ["on Monday = 2023-11-13", "Friday = 2023-11-10", "Tuesday = 2023-11-14"]),
        ("on Mon and Tuesday last week", ["on Mon = 2023-11-06", "Tuesday last week = 2023-11-07"]),
        ("last Monday or Tuesday", ["last Monday = 2023-11-13", "Tuesday = 2023-11-14"]),
        ("in Q1, or Q2 2022", ["in Q1 = 2022-01-01 … 2022-03-31", "Q2 2022 = 2022-04-01 … 2022-06-30"]),
        (
            "in March, April and May 2022",
            [
                "in March = 2022-03-01 … 2022-03-31",
                "April = 2022-04-01 … 2022-04-30",
                "May 2022 = 2022-05-01 … 2022-05-31",
            ],
        ),
        ("March and April 2022", ["March = 2022-03-01 … 2022-03-31", "April 2022 = 2022-04-01 … 2022-04-30"]),
        (
            "in december and january 2022",
            ["in december = 2021-12-01 … 2021-12-31", "january 2022 = 2022-01-01 … 2022-01-31"],
        ),
    ],
)
def test_every_time_of_a_list_is_understood(query: str, understood: list[str]) -> None:
    assert [describe(span) for span in understand_dates(query, SEEN_FROM)] == understood


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("in April, may I ask you", "in April"),
        ("in March and may fail again", "in March"),
        ("on Monday and sat down", "on Monday"),
        ("in 2021, 2022 rows were deleted", "in 2021"),
        ("in March 2022 and April", "in March 2022"),
        ("during the summer and fall apart", "during the summer"),
        ("since January and February", "since January"),
    ],
)
def test_words_that_only_resemble_a_list_item_are_ignored(query: str, phrase: str) -> None:
    assert [span.phrase for span in understand_dates(query, SEEN_FROM)] == [phrase]


@pytest.mark.parametrize(
    "query",
    [
        "what we decided, but not last week",
        "everything except last week",
        "any day other than yesterday",
        "everything but the last two weeks",
        "bugs that weren't in March",
        "not in January or February",
        "all runs except last week and yesterday",
        "not from March to May 2022",
        "excluding on Monday, Tuesday and Wednesday",
    ],
)
def test_an_excluded_time_is_ignored(query: str) -> None:
    assert understand_dates(query, SEEN_FROM) == ()


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("not last week, but yesterday", "yesterday"),
        ("not only last week", "last week"),
        ("why didn't yesterday's build pass", "yesterday"),
        ("whether or not yesterday's build failed", "yesterday"),
        ("what did not work last week", "last week"),
    ],
)
def test_a_negation_of_something_else_keeps_the_time(query: str, phrase: str) -> None:
    assert [span.phrase for span in understand_dates(query, SEEN_FROM)] == [phrase]


def test_an_ambiguous_day_and_month_means_both_dates() -> None:
    found = understand_dates("on 05/07/2023", SEEN_FROM)
    assert [span.since for span in found] == [moment("2023-05-07"), moment("2023-07-05")]
    assert {(span.start, span.end) for span in found} == {(0, 13)}


@pytest.mark.parametrize(
    ("zone", "since", "until"),
    [
        ("America/New_York", "2023-11-14T05", "2023-11-15T05"),
        ("Asia/Kolkata", "2023-11-13T18:30", "2023-11-14T18:30"),
        ("Pacific/Kiritimati", "2023-11-14T10", "2023-11-15T10"),
    ],
)
def test_days_begin_where_the_reference_time_is(zone: str, since: str, until: str) -> None:
    (span,) = understand_dates("yesterday", SEEN_FROM.astimezone(ZoneInfo(zone)))
    assert (span.since, span.until) == (moment(since), moment(until))
    assert describe(span, ZoneInfo(zone)).count(" … ") == 0


def test_a_day_on_which_the_clocks_change_has_23_or_25_hours() -> None:
    new_york = datetime(2023, 11, 6, 12, tzinfo=ZoneInfo("America/New_York"))
    (day,) = understand_dates("yesterday", new_york)
    (hours,) = understand_dates("in the last 36 hours", new_york)
    assert day.since is not None
    assert day.until is not None
    assert hours.since is not None
    assert day.until - day.since == timedelta(hours=25)
    assert new_york.astimezone(UTC) - hours.since == timedelta(hours=36)


@pytest.mark.parametrize(
    "now",
    [
        datetime(2026, 11, 23, 0, 0, tzinfo=UTC),
        datetime(2026, 3, 1, 23, 59, 59, tzinfo=ZoneInfo("Asia/Kolkata")),
        datetime(2026, 11, 2, 0, 20, tzinfo=ZoneInfo("America/New_York")),  # the clocks were changed the day before
    ],
)
@pytest.mark.parametrize(
    "time_of_day", [timedelta(seconds=1), timedelta(hours=9, minutes=40), timedelta(days=1, microseconds=-1)]
)
def test_the_age_shown_for_a_memory_names_a_span_that_contains_it(now: datetime, time_of_day: timedelta) -> None:
    for days in range(401):
        timestamp = now.astimezone(UTC) - timedelta(days=days) - time_of_day
        shown = age(timestamp, now)
        for span in understand_dates(f"what failed {shown}?", now):
            assert span.phrase == shown
            assert span.since is not None
            assert span.until is not None
            assert span.since <= timestamp < span.until, (shown, timestamp)
        assert understand_dates(shown, now) or shown == "just now"


def test_less_than_an_age_ago_is_not_extended_by_rounding() -> None:
    for query in ("since two weeks ago", "less than two weeks ago"):
        (span,) = understand_dates(query, SEEN_FROM)
        assert (span.since, span.until) == (moment("2023-10-29"), None)


def test_a_reference_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="time zone"):
        understand_dates("yesterday", datetime(2023, 11, 15))  # noqa: DTZ001


@given(anything | like_time, moments)
def test_any_text_gives_consistent_spans(query: str, now: datetime) -> None:
    found = understand_dates(query, now)
    for span in found:
        assert query[span.start : span.end] == span.phrase
        assert span.phrase == span.phrase.strip()
        times = [bound for bound in (span.since, span.until) if bound is not None]
        assert times
        assert all(bound.tzinfo is UTC for bound in times)
        assert times == sorted(set(times))
    places = list(dict.fromkeys((span.start, span.end) for span in found))
    assert all(one[1] <= other[0] for one, other in pairwise(places))
    assert understand_dates(query, now) == found


@given(st.sampled_from(NAMED), anything.filter(str.isascii))
def test_a_phrase_is_found_regardless_of_neighbouring_sentences(sample: tuple[str, ...], noise: str) -> None:
    phrase = sample[1]
    query = f"{re.sub('[^a-z ]', '', noise)}. \n{phrase}.\n {noise}"
    assert any(phrase in span.phrase or span.phrase in phrase for span in understand_dates(query, SEEN_FROM))


@given(st.sampled_from(NAMED), moments)
def test_earlier_queries_change_nothing(sample: tuple[str, ...], now: datetime) -> None:
    expected = understand_dates(sample[0], SEEN_FROM)
    understand_dates(sample[0], now)
    assert understand_dates(sample[0], SEEN_FROM) == expected


@pytest.fixture
def far_away_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_away_clock")
def test_the_zone_of_the_machine_does_not_matter() -> None:
    for query, phrase, since, until in NAMED:
        found = understand_dates(query, SEEN_FROM)
        assert [(span.phrase, span.since, span.until) for span in found] == [(phrase, moment(since), moment(until))]


def test_many_threads_may_ask_at_once() -> None:
    queries = [query for query, *_ in NAMED] * 4
    one_by_one = [understand_dates(query, SEEN_FROM) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: understand_dates(query, SEEN_FROM), queries)) == one_by_one


@pytest.mark.parametrize(
    "filling", ["x", " ", "\n", "9", "may ", "yesterday ", "\u202e\u05d0", "\ud800", "\0", "2023-"]
)
def test_a_huge_query_is_read_as_far_as_the_limit(filling: str) -> None:
    huge = filling * (1_000_000 // len(filling))
    late = understand_dates(f"{huge}\nsince last Monday", SEEN_FROM)
    early = understand_dates(f"since last Monday.\n{huge}", SEEN_FROM)
    assert all(span.end <= MOST_CHARS for span in late)
    assert early[0].phrase == "since last Monday"
    assert len(early) <= MOST_PHRASES


def test_a_query_without_a_time_loads_no_parser() -> None:
    code = (
        "import sys, datetime, memory_agent.memory; from memory_agent.recall.dates import understand_dates as ask\n"
        "now = datetime.datetime(2023, 11, 15, tzinfo=datetime.UTC)\n"
        "assert ask('fix the bug in the auth module', now) == () and 'dateutil' not in sys.modules\n"
        "assert len(ask('what did we do last week?', now)) == 1 and 'dateutil' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning:dateutil", "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("since", "until", "shown"),
    [
        ("2023-11-06", "2023-11-13", "x = 2023-11-06 … 2023-11-12"),
        ("2023-11-06", "2023-11-07", "x = 2023-11-06"),
        ("2023-11-06", None, "x = 2023-11-06 …"),
        (None, "2023-11-06", "x = … 2023-11-05"),
        ("2023-11-06T15", "2023-11-06T16", "x = 2023-11-06 15:00 … 2023-11-06 16:00"),
    ],
)
def test_a_span_is_described_by_its_first_and_last_day(since: str | None, until: str | None, shown: str) -> None:
    assert describe(DateSpan("x", 0, 1, moment(since), moment(until))) == shown


def test_a_phrase_over_two_lines_is_described_in_one() -> None:
    (span,) = understand_dates("what broke last\n\tweek?", SEEN_FROM)
    assert span.phrase == "last\n\tweek"
    assert describe(span) == "last week = 2023-11-06 … 2023-11-12"


@pytest.mark.skipif(not LOCOMO.exists(), reason="the LoCoMo data is not available")
def test_every_real_question_that_names_a_year_is_understood_and_none_that_names_no_time() -> None:
    entries = json.loads(LOCOMO.read_text(encoding="utf-8"))
    questions = {item["question"] for entry in entries for item in entry["qa"]}
    understood = {question for question in questions if understand_dates(question, SEEN_FROM)}
    named = re.compile(r"yesterday|\bago\b|(last|next|the) (year|week|month|summer|weekend|Fri)|[A-Z]\w+ber\b|20\d\d")
    months = re.compile(r"January|February|March|April|May|June|July|August|Aug")
    assert {question for question in questions if re.search(r"\b20\d\d\b", question)} <= understood
    assert {question for question in understood if not named.search(question) and not months.search(question)} == set()
