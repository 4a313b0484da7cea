"""Test how used memories are inferred from a run's text: facts count, but the request and common words do not."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from memory_agent.learning.attribution import MOST_STATEMENTS, THRESHOLD, ShownText, overlaps, statements, stem, weigh

AUTH = "The auth race was fixed by guarding the token refresh with a mutex in session_manager.rs."
CACHE = "Redis evicted hot keys, so the cache ran with allkeys-lru and 512 MB."
OWNER = "Priya Raghunathan owns the billing exporter and wants to review its migrations."
PATHS = "Migrations live in deploy/sql/2024_rollout and need PGBOUNCER_POOL set."
LUNCH = "We had lunch at the harbour and talked about sailing boats for an hour."
SHOWN = [ShownText(row, text) for row, text in enumerate((AUTH, CACHE, OWNER, PATHS, LUNCH), start=1)]

FILLER = [f"Day {day}: looked at the build, wrote tests, and read the logs of service {day % 7}." for day in range(200)]


class CountedTexts:
    """The word counts that a store containing some given texts would have."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.memories = len(texts)
        self._having = Counter(
            word for text in texts for word in {word for one in statements(text) for word in one.words}
        )
        self.asked: list[str] = []

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        self.asked += words
        return {word: self._having[stem(word)] for word in words}


STORE = CountedTexts([*FILLER, *(memory.text for memory in SHOWN)])


def used(output: str, request: str = "why do logins fail?", shown: Sequence[ShownText] = SHOWN) -> list[int]:
    return [found.row for found in overlaps(output, request, shown, STORE)]


@pytest.mark.parametrize(
    ("output", "row"),
    [
        ("Guarded the refresh with a mutex, as in session_manager.rs.", 1),
        ("Set allkeys-lru with 512 MB on Redis.", 2),
        ("Asked Priya Raghunathan about the exporter.", 3),
        ("Added the file to deploy/sql/2024_rollout.", 4),
        ("PGBOUNCER_POOL was missing.", 4),
    ],
)
def test_an_output_with_a_memorys_names_numbers_files_or_settings_used_it(output: str, row: int) -> None:
    assert used(output) == [row]


def test_an_overlap_lists_its_words_rarest_first() -> None:
    store = CountedTexts([*FILLER, *(memory.text for memory in SHOWN), *["a mutex"] * 20])
    found = overlaps("Took the mutex in session_manager.rs.", "why?", SHOWN, store)
    assert [one.row for one in found] == [1]
    assert set(found[0].words) == {"mutex", "session", "manager", "rs"}
    assert found[0].words[-1] == "mutex"


def test_inflected_words_are_the_same_words() -> None:
    assert used("Mutexes guarded refreshing tokens.") == used("A mutex guards the token refresh.") == [1]


@pytest.mark.parametrize(
    "output", ["The task is done.", "Done! Everything completed successfully.", "OK, thank you.", ""]
)
def test_phrases_that_end_every_run_credit_nothing(output: str) -> None:
    shown = [*SHOWN, ShownText(9, "The task is done."), ShownText(10, "Done! Everything completed successfully.")]
    assert [found.row for found in overlaps(output, "deploy it", shown, STORE)] == []


def test_the_requests_own_words_credit_nothing() -> None:
    request = "Is the mutex in session_manager.rs still guarding the token refresh?"
    assert used("Looked at the mutex in session_manager.rs that guards the token refresh.", request) == []


def test_words_in_all_shown_memories_credit_none_of_them() -> None:
    shown = [
        ShownText(row, f"{name} deploys zeppelin to Antwerp.")
        for row, name in enumerate(("Ann Lee", "Bo Larsen", "Cy Young"), 1)
    ]
    store = CountedTexts([*FILLER, *(memory.text for memory in shown)])
    assert weigh("Deployed zeppelin to Antwerp.", "go", shown, store) == []
    assert [found.row for found in overlaps("Bo Larsen deploys zeppelin.", "go", shown, store)] == [2]


def test_a_word_that_many_memories_of_the_store_have_is_no_evidence() -> None:
    shown = [ShownText(1, "Read the logs of the build."), ShownText(2, LUNCH)]
    assert overlaps("Read the logs of the build.", "why?", shown, STORE) == []


@pytest.mark.parametrize(
    "output",
    [
        "Redis runs with allkeys-lru and 256 MB.",
        "Redis did not evict hot keys with allkeys-lru.",
        "Redis runs with allkeys-lru and 5120 MB.",
    ],
)
def test_another_number_or_a_denial_does_not_come_from_the_memory(output: str) -> None:
    assert used(output) == []
    assert used("Redis runs with allkeys-lru.") == [2]


def test_a_number_that_the_request_names_is_not_another_number() -> None:
    assert used("For 900 clients, Redis runs with allkeys-lru.", "What of 900 clients?") == [2]


def test_a_memory_that_one_statement_contradicts_may_be_used_in_another() -> None:
    assert used("Redis with allkeys-lru and 256 MB was too small.\nRedis evicted hot keys; now allkeys-lru holds.") == [
        2
    ]


def test_a_long_output_needs_more_agreement_than_a_short_one() -> None:
    """Each additional statement is another chance of accidental agreement."""
    short = "Talked about sailing."
    (one,) = weigh(short, "why?", SHOWN, STORE)
    long = "\n".join([short, *(f"Then lunch number {number} followed." for number in range(60))])
    scores = {found.row: found for found in weigh(long, "why?", SHOWN, STORE)}
    assert scores[5].score < one.score


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_case_and_other_scripts_are_read(form: str) -> None:
    shown = [
        ShownText(1, "Das Café Müßiggang öffnet um neun."),
        ShownText(2, "Сервер Ласточка стоит в Новосибирске."),
        ShownText(3, "部署脚本在东京机房。"),
    ]
    store = CountedTexts([*FILLER, *(memory.text for memory in shown)])
    for output, row in (("CAFE MÜSSIGGANG!", 1), ("ласточка в новосибирске", 2), ("注意。部署脚本在东京机房。", 3)):
        found = overlaps(unicodedata.normalize(form, output), "?", shown, store)
        assert [one.row for one in found] == [row]


@pytest.mark.parametrize("output", ["", "   \n\n", "?!.", "🚀🚀", "\x00"])
def test_an_output_without_words_credits_nothing_and_reads_no_counts(output: str) -> None:
    store = CountedTexts(FILLER)
    assert weigh(output, "why?", SHOWN, store) == []
    assert store.asked == []


def test_no_shown_memories_and_empty_memories_are_handled() -> None:
    assert overlaps(AUTH, "why?", [], STORE) == []
    assert overlaps(AUTH, "why?", [ShownText(1, "")], STORE) == []
    assert used(AUTH, shown=[SHOWN[0]]) == [1]


def test_a_store_of_a_few_memories_gives_too_little_evidence_for_one_common_word() -> None:
    shown = [ShownText(1, "The parser was slow."), ShownText(2, "The editor was slow.")]
    assert overlaps("Parser and lexer rewritten.", "go", shown, CountedTexts([memory.text for memory in shown])) == []


def test_only_a_bounded_part_of_a_huge_output_is_read() -> None:
    store = CountedTexts(FILLER)
    huge = f"{AUTH}\n" + "lunch talk about sailing boats number x.\n" * 200_000
    assert len(statements(huge)) == MOST_STATEMENTS
    weigh(huge + "pgbouncer_pool", "why?", SHOWN, store)
    assert "pgbouncer" not in store.asked
    assert len(store.asked) < 100
    assert statements("x" * 10_000_000) == []


def test_equal_scores_are_in_the_order_of_the_rows() -> None:
    shown = [
        ShownText(row, f"The walrus sleeps near {place}.") for row, place in ((8, "Oslo"), (3, "Riga"), (5, "Bonn"))
    ]
    store = CountedTexts([*FILLER, *(memory.text for memory in shown)])
    found = weigh("Bonn. Riga. Oslo.", "go", shown, store)
    assert [one.row for one in found] == [3, 5, 8]
    assert len({one.score for one in found}) == 1


def test_every_used_memory_weighs_at_least_the_threshold() -> None:
    output = f"{AUTH} {CACHE} Talked about lunch and other things with many people there."
    weighed = weigh(output, "why?", SHOWN, STORE)
    assert overlaps(output, "why?", SHOWN, STORE) == [found for found in weighed if found.score >= THRESHOLD]
    assert {found.row for found in weighed if found.score < THRESHOLD} == {5}
