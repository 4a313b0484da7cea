"""Merging two tiers: the order of classes, the reserved places, and equal texts."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from math import sqrt
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_agent.recall.shared import merged
from memory_agent.records.memories import MemoryRecord, RetrievedMemory
from memory_agent.records.shared import QualityMetrics, SharedOrigin

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
CUT_OFF = 0.6
LOCAL, PROVEN, LOCAL_BELOW, UNPROVEN, UNKNOWN = range(1, 6)
"""The classes listed in `memory_agent.recall.shared`."""


def own(
    id: str, relevance: float | None = 0.9, score: float = 0.5, text: str | None = None, title: str | None = None
) -> RetrievedMemory:
    record = MemoryRecord(
        id=id, text=text or f"text of {id}", source="user_input", kind="finding", timestamp=NOW, title=title
    )
    return RetrievedMemory(
        record=record, score=None, lexical_score=1.0, sona_score=score, retrieval="lexical", relevance=relevance
    )


def item(
    id: str,
    relevance: float | None = 0.9,
    score: float = 0.5,
    text: str | None = None,
    *,
    is_proven: bool = False,
    is_worse: bool = False,
    mean: float | None = None,
    users: int = 12,
    days: float = 0.0,
) -> RetrievedMemory:
    users = 0 if mean is None else users
    origin = SharedOrigin(
        author=f"author of {id}",
        version="1",
        content_type="pattern",
        access_policy="public",
        published_at=NOW - timedelta(days=days),
        metrics=QualityMetrics(avg_trajectory_score=mean, distinct_users=users, used_count=users),
        is_proven=is_proven,
        is_worse=is_worse,
    )
    return msgspec.structs.replace(own(id, relevance, score, text, f"title of {id}"), tier="global", shared=origin)


def class_of(memory: RetrievedMemory) -> int:
    is_above = memory.relevance is not None and memory.relevance >= CUT_OFF
    if memory.tier == "local":
        return LOCAL if is_above else LOCAL_BELOW
    assert memory.shared is not None
    if memory.relevance is None:
        return UNKNOWN
    assert is_above
    return PROVEN if memory.shared.is_proven else UNPROVEN


def is_worse(memory: RetrievedMemory) -> bool:
    return memory.shared is not None and memory.shared.is_worse


def merge(
    local: list[RetrievedMemory], shared: list[RetrievedMemory], top_k: int = 5, key: str = "recall"
) -> list[str]:
    return [memory.record.id for memory in merged(tuple(local), shared, top_k, key, CUT_OFF)]


class World(NamedTuple):
    """The ranked memories of two tiers, with some equal texts."""

    local: tuple[RetrievedMemory, ...]
    shared: list[RetrievedMemory]


RELEVANCES = st.sampled_from([None, 0.1, 0.59, CUT_OFF, 0.7, 0.95])
SCORES = st.sampled_from([-0.2, 0.0, 0.3, 0.5, 0.52, 0.55, 0.9])
TEXTS = st.sampled_from([None, None, None, "Use the VPN", "use VPN!", "Restart the worker"])
MEANS = st.sampled_from([None, 0.2, 0.7, 0.9])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    local = draw(st.lists(st.builds(own, st.just("?"), RELEVANCES, SCORES, TEXTS), max_size=14))
    local.sort(key=lambda memory: -memory.sona_score)
    flags, days = st.booleans(), st.integers(0, 3)
    built = st.builds(
        item, st.just("?"), RELEVANCES, SCORES, TEXTS, is_proven=flags, is_worse=flags, mean=MEANS, days=days
    )
    shared = draw(st.lists(built, max_size=14))
    named = [_renamed(memory, f"{'ms'[memory.tier == 'global']}{n}") for n, memory in enumerate([*local, *shared])]
    return World(tuple(named[: len(local)]), named[len(local) :])


def _renamed(memory: RetrievedMemory, id: str) -> RetrievedMemory:
    text = memory.record.text.replace("?", id)
    return msgspec.structs.replace(memory, record=msgspec.structs.replace(memory.record, id=id, text=text))


def unmarked(memory: RetrievedMemory) -> RetrievedMemory:
    return msgspec.structs.replace(memory, shared=None) if memory.tier == "local" else memory


def unexplained(memory: RetrievedMemory) -> RetrievedMemory:
    return msgspec.structs.replace(memory, explanation={})


PLACES = st.integers(1, 16)
KEYS = st.text(max_size=8)


@given(worlds(), PLACES, KEYS)
def test_classes_follow_each_other_and_keep_their_ranking(world: World, top_k: int, key: str) -> None:
    answer = merged(world.local, world.shared, top_k, key, CUT_OFF)
    ids = [memory.record.id for memory in answer]
    assert len(ids) == len(set(ids)) <= top_k
    assert {msgspec.json.encode(unmarked(unexplained(memory))) for memory in answer} <= {
        msgspec.json.encode(memory) for memory in (*world.local, *world.shared)
    }
    classes = [class_of(memory) for memory in answer]
    named = {PROVEN: "proven", UNPROVEN: "new", UNKNOWN: "relevance unknown"}
    assert [memory.explanation.get("class") for memory in answer] == [
        "worse" if kind == UNPROVEN and is_worse(memory) else named.get(kind)
        for kind, memory in zip(classes, answer, strict=True)
    ]
    if not any(memory.tier == "global" for memory in answer):
        assert tuple(map(unmarked, answer)) == world.local[:top_k]
        return
    assert classes == sorted(classes)
    given = [memory.record.id for memory in world.local]
    for kind in range(LOCAL, UNKNOWN + 1):
        found = [memory for memory in answer if class_of(memory) == kind]
        if kind in (LOCAL, LOCAL_BELOW):
            places = [given.index(memory.record.id) for memory in found]
            assert places == sorted(places)
        elif kind == UNKNOWN:
            standing = [(not memory.shared.is_proven, -memory.sona_score) for memory in found if memory.shared]
            assert standing == sorted(standing)
        else:
            ranks = [(kind == UNPROVEN and is_worse(memory), -memory.sona_score) for memory in found]
            assert ranks == sorted(ranks)


@given(worlds(), PLACES, KEYS)
def test_every_place_is_filled_by_its_class(world: World, top_k: int, key: str) -> None:
    everything = Counter(map(class_of, merged(world.local, world.shared, 1_000, key, CUT_OFF)))
    found = Counter(map(class_of, merged(world.local, world.shared, top_k, key, CUT_OFF)))
    assert found.total() == min(top_k, everything.total())
    most = top_k // 5
    is_crowded = everything[LOCAL] >= top_k - min(most, everything[UNPROVEN])
    if not any(found[kind] for kind in (PROVEN, UNPROVEN, UNKNOWN)):
        assert not everything[PROVEN] or everything[LOCAL] >= top_k
        assert not everything[UNPROVEN] or (top_k < 5 and everything[LOCAL] + everything[LOCAL_BELOW] >= top_k)
        return
    better = sum(everything[kind] for kind in (LOCAL, PROVEN, LOCAL_BELOW))
    kept = found[PROVEN] if is_crowded else 0
    assert kept <= min(most, 1)
    reserved = min(most - kept, everything[UNPROVEN])
    assert found[UNPROVEN] == min(everything[UNPROVEN], max(reserved, top_k - better))
    is_reserved = {PROVEN: kept > 0, UNPROVEN: better >= top_k, UNKNOWN: False}
    for memory in merged(world.local, world.shared, top_k, key, CUT_OFF):
        if memory.tier == "global":
            assert memory.explanation["is_reserved"] is is_reserved[class_of(memory)]
            assert memory.explanation["cut_off"] == CUT_OFF
    assert found[LOCAL] == min(everything[LOCAL], top_k - reserved - kept)
    left = top_k - reserved - found[LOCAL]
    assert found[PROVEN] == min(everything[PROVEN], max(kept, (left + 1) // 2, left - everything[LOCAL_BELOW]))


@given(worlds(), PLACES)
def test_with_nothing_shared_the_answer_is_the_local_one(world: World, top_k: int) -> None:
    local = world.local[:top_k]
    below = [msgspec.structs.replace(one, relevance=0.59) for one in world.shared]
    assert merged(local, [], top_k, "recall", CUT_OFF) is local
    assert merged(local, below, top_k, "recall", CUT_OFF) is local
    assert merged(world.local, [], top_k, "recall", CUT_OFF) == local


@given(worlds(), PLACES, KEYS, st.randoms(use_true_random=False))
def test_the_order_in_which_items_arrive_changes_nothing(world: World, top_k: int, key: str, random: object) -> None:
    shuffled = list(world.shared)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    answers = [merged(world.local, shared, top_k, key, CUT_OFF) for shared in (world.shared, shuffled, shuffled[::-1])]
    assert answers[0] == answers[1] == answers[2]


def test_a_full_answer_gives_its_last_place_to_a_new_item() -> None:
    local = [own(f"m{n}", score=0.9 - n / 10) for n in range(5)]
    assert merge(local, [item("s", score=0.1)]) == ["m0", "m1", "m2", "m3", "s"]
    assert merge(local, [item("s", CUT_OFF, score=0.1)]) == ["m0", "m1", "m2", "m3", "s"]
    assert merge(local, [item("s", 0.59, score=2.0)]) == ["m0", "m1", "m2", "m3", "m4"]
    assert merge(local, [item("s", None, score=2.0)]) == ["m0", "m1", "m2", "m3", "m4"]
    assert merge(local[:4], [item("s", None), item("t")]) == ["m0", "m1", "m2", "m3", "t"]


@pytest.mark.parametrize("own_memories", [4, 5, 9])
def test_half_of_the_full_answers_give_their_last_place_to_the_best_proven_item(own_memories: int) -> None:
    local = [own(f"m{n}", score=0.9 - n / 10) for n in range(own_memories)]
    proven = [item("p", score=0.2, is_proven=True, mean=0.9), item("q", score=0.1, is_proven=True, mean=0.9)]
    shown = Counter(tuple(merge(local, [*proven, item("s", score=2.0)], key=key)) for key in recall_ids(1_000))
    assert set(shown) == {("m0", "m1", "m2", "m3", last) for last in "ps"}
    assert abs(shown["m0", "m1", "m2", "m3", "p"] - 500) <= 4 * sqrt(250)
    others = Counter(merge(local, proven, key=key)[-1] for key in recall_ids(1_000))
    assert set(others) == ({"p", "m4"} if own_memories > 4 else {"p"})
    assert {tuple(merge(local[:4], proven, 4, key)) for key in recall_ids(50)} == {("m0", "m1", "m2", "m3")}


@pytest.mark.parametrize(("top_k", "reserved"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (9, 1), (10, 2), (50, 10)])
def test_one_place_of_five_is_reserved(top_k: int, reserved: int) -> None:
    local, new = [own(f"m{n:02}") for n in range(60)], [item(f"s{n:02}") for n in range(60)]
    answer = merge(local, new, top_k)
    assert sum(id.startswith("s") for id in answer) == reserved
    assert len(merge([], new, top_k)) == top_k, "nothing better"
    assert merge(local[:1], new, top_k)[0] == "m00"


def test_proven_items_leave_half_of_the_places_to_local_memories_of_unknown_relevance() -> None:
    known, unknown = [own(f"m{n}") for n in range(2)], [own(f"u{n}", None) for n in range(5)]
    proven = [item(f"p{n}", score=0.9 - n / 10, is_proven=True, mean=0.9) for n in range(6)]
    assert merge([*known, *unknown], proven, 5) == ["m0", "m1", "p0", "p1", "u0"]
    assert merge([*known, *unknown], proven, 6) == ["m0", "m1", "p0", "p1", "u0", "u1"]
    assert merge([*known, unknown[0]], proven, 6) == ["m0", "m1", "p0", "p1", "p2", "u0"]
    assert merge([*unknown[:2], own("v", 0.2)], proven, 4) == ["p0", "p1", "u0", "u1"]
    assert merge(known, proven, 6) == ["m0", "m1", "p0", "p1", "p2", "p3"]


def test_items_of_unknown_relevance_take_only_empty_places_proven_ones_first() -> None:
    unknown = [item("s", None, 0.9), item("t", None, 0.2, is_proven=True, mean=0.9), item("u", None, 0.4)]
    assert merge([own("m", None), own("n")], [*unknown, item("v", score=0.1)]) == ["n", "m", "v", "t", "s"]
    assert merge([], unknown, 2) == ["t", "s"]
    assert merge([own(f"m{n}", None) for n in range(5)], unknown) == ["m0", "m1", "m2", "m3", "m4"]


@cache
def recall_ids(count: int) -> list[str]:
    """Return ids of recalls made within one hour."""
    random = np.random.default_rng(7)
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return ["01KHJY9" + "".join(alphabet[place] for place in random.integers(0, 32, 19)) for _ in range(count)]


@pytest.mark.parametrize(("items", "top_k"), [(2, 5), (3, 5), (7, 5), (20, 5), (5, 10), (9, 10)])
def test_new_items_that_are_about_equally_good_have_equal_chances(items: int, top_k: int) -> None:
    local = [own(f"m{n}") for n in range(top_k)]
    near = [item(f"01KHJY9080NWG22H9Q8BBD7B{n:02}", score=0.5 - 0.04 * n / items) for n in range(items)]
    others = [item("far", score=0.44), item("below", 0.5, score=0.5)]
    shown: Counter[str] = Counter()
    for key in recall_ids(1_000):
        shown.update(merge(local, [*near, *others], top_k, key)[top_k - top_k // 5 :])
    share = (top_k // 5) / items
    assert set(shown) == {memory.record.id for memory in near}
    assert all(abs(times - 1_000 * share) <= 4 * sqrt(1_000 * share * (1 - share)) for times in shown.values()), shown


def test_a_further_item_lowers_all_chances_equally_and_a_recall_can_be_repeated() -> None:
    local, new = [own(f"m{n}") for n in range(5)], [item(f"s{n}") for n in range(4)]
    fifth = item("a")
    for key in recall_ids(200):
        before, after = merge(local, new, key=key), merge(local, [fifth, *new], key=key)
        assert after[-1] in (before[-1], "a")
        assert after == merge(local, [fifth, *new], key=key)


def test_new_items_that_are_worse_follow_those_near_the_best() -> None:
    new = [item("a", score=1.0), item("b", score=0.91), item("c", score=0.89), item("d", score=0.1)]
    assert {tuple(merge([], new, 1, key)) for key in recall_ids(50)} == {("a",), ("b",)}
    assert {tuple(merge([], new, 3, key)) for key in recall_ids(50)} == {("a", "b", "c")}
    losing = [item("a", score=-1.0), item("b", score=-1.09), item("c", score=-1.2)]
    assert {tuple(merge([], losing, 1, key)) for key in recall_ids(50)} == {("a",), ("b",)}


def test_items_worse_than_usual_follow_all_new_items_and_share_the_places_left() -> None:
    worse = [item(f"w{n}", score=0.9, is_worse=True, mean=0.4) for n in range(3)]
    new = [item("a", score=0.5), item("b", score=0.1)]
    answers = [merge([], [*worse, *new], 3, key) for key in recall_ids(50)]
    assert {tuple(answer[:2]) for answer in answers} == {("a", "b")}
    assert {answer[2] for answer in answers} == {"w0", "w1", "w2"}
    local = [own(f"m{n}") for n in range(5)]
    assert {merge(local, [*worse, *new], key=key)[-1] for key in recall_ids(50)} == {"a"}
    assert {merge(local, worse, key=key)[-1] for key in recall_ids(50)} == {"w0", "w1", "w2"}


@pytest.mark.parametrize(
    ("ours", "theirs", "is_same"),
    [
        ("Use the VPN", "use VPN!", True),
        ("Use the VPN", "Use a VPN", False),
        ("Use the VPN. " * 20, "Hello, please - use  the VPN " + "use VPN " * 19, False),
        ("Use the VPN. " * 20, "Hello,\n\nplease: use VPN; " + "the use VPN " * 19 + "thanks", True),
        ("It succeeded", "It failed", False),
        ("It works", "This does the job", False),
    ],
)
def test_equal_texts_are_folded_into_the_local_memory(ours: str, theirs: str, is_same: bool) -> None:
    for mine, other in itertools.permutations((ours, theirs)):
        shared = item("s", 0.99, 0.9, other, is_proven=True, mean=0.9)
        answer = merged((own("m", None, 0.1, mine),), [shared], 5, "recall", CUT_OFF)
        if is_same:
            (memory,) = answer
            assert (memory.record.id, memory.tier, memory.shared) == ("m", "local", shared.shared)
            assert unmarked(memory) == own("m", None, 0.1, mine)
        else:
            assert [memory.record.id for memory in answer] == ["s", "m"]
            assert answer[1].shared is None


def test_each_local_memory_with_the_text_is_marked_with_the_best_proven_item() -> None:
    local = (own("m1", text="Use the VPN"), own("m2", text="use VPN"), own("m3"))
    shared = [item("s1", text="Use the VPN"), item("s2", text="Use VPN.", is_proven=True, mean=0.9)]
    for offered in (shared, shared[::-1]):
        answer = merged(local, offered, 5, "recall", CUT_OFF)
        assert [(one.record.id, one.shared) for one in answer] == [
            ("m1", shared[1].shared), ("m2", shared[1].shared), ("m3", None)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (item("s", score=0.1, text="Use VPN", is_proven=True, mean=0.7), item("a", text="Use the VPN", mean=0.9)),
        (item("s", score=0.1, text="Use VPN", mean=0.7), item("a", text="Use the VPN", mean=0.6, days=1)),
        (item("s", score=0.1, text="Use VPN", mean=0.7, users=13), item("a", text="Use the VPN", mean=0.7, days=1)),
        (item("s", score=0.1, text="Use VPN", mean=0.2), item("a", text="Use the VPN", days=1)),
        (item("s", score=0.1, text="Use VPN", days=2), item("a", text="Use the VPN", days=1)),
        (item("s", score=0.1, text="Use VPN"), item("t", text="Use the VPN")),
    ],
)
def test_of_two_equal_items_the_better_proven_stays_then_the_earlier(
    better: RetrievedMemory, worse: RetrievedMemory
) -> None:
    for shared in ([better, worse], [worse, better]):
        assert merge([], shared) == ["s"]


def test_no_item_takes_the_id_of_a_local_memory() -> None:
    (answer,) = merged((own("m"),), [item("m", text="Something else")], 5, "recall", CUT_OFF)
    assert answer == own("m")
    assert merge([], [item("s", text="First", mean=0.9), item("s", text="Second")]) == ["s"]


@given(st.integers(1, 20), KEYS)
@example(5, "\ud800")
def test_at_a_cut_off_of_nothing_every_known_relevance_is_enough(top_k: int, key: str) -> None:
    local, shared = (own("m", 0.0), own("n", None)), [item("s", 0.0), item("t", 0.0, is_proven=True, mean=0.9)]
    answer = merged(local, shared, top_k, key, 0.0)
    assert [memory.record.id for memory in answer] == ["m", "t", "n", "s"][:top_k]
