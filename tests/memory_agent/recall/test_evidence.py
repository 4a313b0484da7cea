"""Late interaction and relevance match a word-by-word computation over the memories that pass the filter."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import INFO, NDIM, SHOWN, VOCABULARY, Talk, Turn, asked_of, open_talk, signs_of, turns, word_vector

from memory_agent.embedders import EmbedderInfo
from memory_agent.recall import evidence as formula
from memory_agent.recall.candidates import shortlist
from memory_agent.recall.evidence import REACH, Met, credit, evidence, late_interaction, relevance
from memory_agent.recall.search import Search
from memory_agent.recall.stages import with_neighbours

talks = st.lists(turns, min_size=1, max_size=14)
queries = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4, unique=True)

WITHOUT_WORDS = msgspec.structs.replace(INFO, words="")
OTHER_WORDS = msgspec.structs.replace(INFO, words="signs-2")
OTHER_WEIGHTS = msgspec.structs.replace(INFO, model_sha256="1" * 64)
OTHER_SCHEME = msgspec.structs.replace(INFO, scheme="float32")


def similarity(word: str, turn: Turn, *, compared: bool) -> float:
    """Return the similarity of `word` to a turn's nearest word, which may be the same word."""
    has_word = word in turn.words
    signs = signs_of(turn)
    if not compared or not turn.has_words or not len(signs):
        return formula._SAME_WORD if has_word else 0.0
    products = np.where(signs, 1.0, -1.0) @ word_vector(word).astype(np.float64)
    nearest = float(products.max() / np.sqrt(NDIM))
    return max(nearest, formula._SAME_WORD) if has_word else nearest


def met(word: str, turn: Turn, *, compared: bool) -> float:
    gained = formula._GAIN * max(similarity(word, turn, compared=compared), 0.0) ** 2.5
    return gained - formula._DISCOUNT * log(max(len(turn.words) + turn.padding, formula._LEAST_WORDS))


def likeness(word: str, turn: Turn) -> float:
    """Return the similarity of `word` to a turn's nearest word, using only vectors."""
    return float((np.where(signs_of(turn), 1.0, -1.0) @ word_vector(word).astype(np.float64)).max() / np.sqrt(NDIM))


def nearness(word: str, turn: Turn, *, compared: bool) -> float:
    """Return how similar `word` is to a turn's nearest word or, without vectors, whether the turn contains `word`."""
    is_known = compared and turn.has_words and len(signs_of(turn))
    return likeness(word, turn) if is_known else float(word in turn.words)


def is_known(turn: Turn) -> bool:
    """Whether a turn's words can be compared. A turn without words has no similarity to any word."""
    return not (turn.words or turn.padding) or (turn.has_words and len(signs_of(turn)) > 0)


def lent(own: float, nearest: float, credit: float) -> float:
    return own + credit * (nearest - own)


def expected(
    talk: Talk,
    words: Sequence[str],
    slots: Sequence[int],
    shown: Sequence[int],
    credits: Sequence[float] | None = None,
    *,
    compared: bool = True,
) -> Met:
    """Return the scores of `slots`, computed word by word and neighbour by neighbour.

    Only `shown` slots are neighbours. `credits` are 1 by default.
    """
    counts = [sum(word in turn.words for turn in talk.turns) for word in words]
    live = len(talk.turns)
    rarity = [max(log((live + 1) / (count + 0.5)), 0.0) + formula._LEAST_RARITY for count in counts]
    smooth = [log((live + formula._PRIOR_MEMORIES) / (count + 1)) for count in counts]
    right: dict[str, list[float]] = {name: [] for name in Met._fields if name != "rarity"}
    for slot, own_credit in zip(slots, credits or [1.0] * len(slots), strict=True):
        turn = talk.turns[slot]
        around = [talk.turns[other] for other in talk.around(slot, REACH, set(shown))]
        parts = list(zip((one / sum(rarity) for one in rarity), words, strict=True))
        even = list(zip((one / sum(smooth) for one in smooth), words, strict=True))
        mine = {w: met(w, turn, compared=compared) for w in words}
        best = {w: max(met(w, one, compared=compared) for one in around) for w in words}
        right["own"].append(sum(s * mine[w] for s, w in parts))
        right["near"].append(sum(s * best[w] for s, w in parts))
        like = {w: nearness(w, turn, compared=compared) for w in words}
        nearest = {w: max(nearness(w, one, compared=compared) for one in around) for w in words}
        like = {w: lent(like[w], nearest[w], own_credit) for w in words}
        can_compare = compared and is_known(turn)
        right["closeness"].append(sum(s * like[w] for s, w in even) if can_compare else np.nan)
        short = [one * (1.0 - min(max(like[w], 0.0), 1.0)) for one, w in zip(smooth, words, strict=True)]
        right["lacked"].append(hypot(*short))
        right["closest"].append(max(lent(mine[w], best[w], own_credit) for w in words) if can_compare else np.nan)
        right["held"].append(sum(s for s, w in even if w in turn.words))
        nearby = ((s, w in turn.words, any(w in one.words for one in around)) for s, w in even)
        right["held_nearby"].append(sum(s * lent(here, beside, own_credit) for s, here, beside in nearby))
    return Met(**{name: np.array(values) for name, values in right.items()}, rarity=sum(smooth))


def check(found: Met, right: Met) -> None:
    for name in Met._fields:
        if len(right.own) or name != "rarity":
            assert np.allclose(getattr(found, name), getattr(right, name), rtol=0, atol=2e-4, equal_nan=True), name


def every(found: Search) -> list[int]:
    return found.passing(np.arange(found.view.count)).tolist()


def score(found: Search, slots: Sequence[int] | None = None, credits: Sequence[float] | None = None) -> Met:
    chosen = np.array(every(found) if slots is None else slots, dtype=np.int64)
    return late_interaction(found, chosen, np.ones(chosen.shape) if credits is None else np.array(credits, float))


@given(talks, queries, st.booleans(), st.data())
@settings(deadline=None, max_examples=60)
def test_late_interaction_equals_a_computation_word_by_word(
    said: list[Turn], words: list[str], is_filtered: bool, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        found = asked_of(talk.archive, words, filter=SHOWN if is_filtered else None)
        slots = [slot for slot in every(found) if data.draw(st.booleans() | st.just(True))]
        credits = [data.draw(st.sampled_from([0.0, 0.3, 1.0])) for _ in slots]
        check(score(found, slots, credits), expected(talk, words, slots, every(found), credits))


@given(talks, queries, st.sampled_from([WITHOUT_WORDS, OTHER_WORDS, OTHER_WEIGHTS]))
@settings(deadline=None, max_examples=30)
def test_without_comparable_word_vectors_the_words_of_the_texts_count(
    said: list[Turn], words: list[str], info: EmbedderInfo
) -> None:
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        found = asked_of(talk.archive, words, info=info)
        check(score(found), expected(talk, words, every(found), every(found), compared=False))


@given(talks, queries)
@settings(deadline=None, max_examples=10)
def test_word_vectors_of_the_same_weights_in_another_scheme_are_compared(said: list[Turn], words: list[str]) -> None:
    """Word vectors remain valid if memories are moved from a machine with VNNI to a machine without it."""
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        found = asked_of(talk.archive, words, info=OTHER_SCHEME)
        check(score(found), expected(talk, words, every(found), every(found)))


@given(talks, queries, st.booleans())
@settings(deadline=None, max_examples=40)
def test_memories_outside_the_filter_do_not_affect_any_score(said: list[Turn], words: list[str], asks: bool) -> None:
    """The vectors, words and questions of filtered-out memories affect scores only through the rarity of words."""
    other = [
        turn._replace(is_asking=not turn.is_asking, length=turn.length // 2) if turn.is_hidden else turn
        for turn in said
    ]
    answers = []
    for variant, one in enumerate((said, other)):
        with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", one, variant) as talk:
            found = asked_of(talk.archive, words, asks=asks, filter=SHOWN)
            ranked = with_neighbours(shortlist(found, 3, sure=3), found)
            assert not any(said[slot].is_hidden for slot in ranked.slots.tolist())
            answers.append((ranked.total, ranked.slots, ranked.lenders))
    for one, two in zip(*answers, strict=True):
        assert np.array_equal(one, two)


def test_words_two_places_away_in_the_session_help_and_no_others(tmp_path: Path) -> None:
    other = ("ferry",)
    said = [Turn(0, ("walnut",)), *(Turn(0, other) for _ in range(3)), Turn(1, other), Turn(None, other)]
    with open_talk(tmp_path / "a", said) as talk:
        found = score(asked_of(talk.archive, ["walnut"]))
    helped = found.near > found.own + 1e-6
    assert helped.tolist() == [False, True, True, False, False, False]
    assert found.near[1] == found.near[2] == found.own[0]
    assert np.allclose(found.own[1:], found.own[1])


def test_what_neighbours_add_counts_by_credit_for_the_relevance_and_wholly_for_the_ranking(tmp_path: Path) -> None:
    said = [Turn(0, ("walnut",)), *(Turn(0, ("ferry",)) for _ in range(3))]
    with open_talk(tmp_path / "a", said) as talk:
        found = asked_of(talk.archive, ["walnut"])
        none, half, whole = (score(found, [1], [credit]) for credit in (0.0, 0.5, 1.0))
        alone = score(found, [3])
    assert none.near == half.near == whole.near > none.own
    for name in ("closeness", "closest", "held_nearby"):
        assert np.allclose(getattr(half, name), (getattr(none, name) + getattr(whole, name)) / 2), name
        assert np.allclose(getattr(none, name), getattr(alone, name)), name
    assert np.allclose(none.lacked, alone.lacked)
    assert none.lacked > half.lacked > whole.lacked


@pytest.mark.parametrize("is_asking", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("is_alike", [False, True])
def test_a_memory_after_a_question_like_the_query_is_credited_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asking: bool, asks: bool, is_alike: bool
) -> None:
    said = [Turn(0, ("walnut",), is_asking=is_asking), Turn(0, ("ferry",)), Turn(0, ("ferry",))]
    monkeypatch.setattr(formula, "_LIKE_QUESTION", -1.0 if is_alike else 1.1)  # the vectors are random
    with open_talk(tmp_path / "a", said) as talk:
        found = score(asked_of(talk.archive, ["walnut"], asks=asks), credits=[0.0] * 3)
    goes_on = is_asking and asks and is_alike
    assert (found.closeness[1] > found.closeness[2] + 1e-6) == goes_on
    assert (found.lacked[1] < found.lacked[2] - 1e-6) == goes_on


def test_a_longer_text_with_the_same_words_is_met_less(tmp_path: Path) -> None:
    paddings = [0, formula._LEAST_WORDS - 1, formula._LEAST_WORDS, 50, 500]
    with open_talk(tmp_path / "a", [Turn(None, ("walnut",), padding=padding) for padding in paddings]) as talk:
        found = score(asked_of(talk.archive, ["walnut"]))
    assert found.own[0] == found.own[1]
    assert (np.diff(found.own[1:]) < 0).all()
    assert np.ptp(found.closeness) == 0


def test_a_rare_word_counts_more_than_one_that_all_have(tmp_path: Path) -> None:
    said = [Turn(None, ("walnut",), is_known=False), *(Turn(None, ("ferry",), is_known=False) for _ in range(8))]
    with open_talk(tmp_path / "a", said) as talk:
        found = score(asked_of(talk.archive, ["ferry", "walnut"]))
    assert found.own[0] > found.own[1] + 0.1


def test_without_memories_nothing_is_met(tmp_path: Path) -> None:
    with open_talk(tmp_path / "a", [Turn(0, ("walnut",))]) as talk:
        found = score(asked_of(talk.archive, ["walnut"]), [])
    assert [len(part) for part in found[:-1]] == [0] * (len(Met._fields) - 1)


shares = st.floats(0, 1)
drawn_parts = st.fixed_dictionaries(
    {
        "cosine": st.floats(-1, 1) | st.just(np.nan),
        "near": st.floats(-1, 1) | st.just(np.nan),
        "closest": st.floats(-1, 1),
        "held": shares,
        "held_nearby": shares,
        "lacked": st.floats(0, 60),
        "length": st.integers(0, 10_000),
        "rarity": st.floats(0.1, 300) | st.just(0.0),
        "words": st.integers(0, 10**8),
    }
)


def one(**drawn: float) -> float:
    """Return the evidence of one memory."""
    return float(
        evidence(
            Met(
                own=np.zeros(1),
                near=np.zeros(1),
                closeness=np.array([drawn["near"]]),
                closest=np.array([drawn["closest"]]),
                held=np.array([drawn["held"]]),
                held_nearby=np.array([max(drawn["held"], drawn["held_nearby"])]),
                lacked=np.array([drawn["lacked"]]),
                rarity=drawn["rarity"],
            ),
            np.array([drawn["cosine"]]),
            np.array([drawn["length"]], dtype=np.int32),
            int(drawn["words"]),
        )[0]
    )


def relevance_of(own: float, share: float, best: float) -> float:
    """Return the relevance of one memory, from its evidence and credit."""
    return float(relevance(np.array([own]), np.array([share]), best)[0])


@settings(deadline=None)
@given(drawn_parts, st.sampled_from(["cosine", "near", "closest", "held", "held_nearby"]), st.floats(0, 1))
def test_a_better_match_never_lowers_the_evidence(drawn: dict[str, float], name: str, more: float) -> None:
    raised = drawn | {name: min(drawn[name] + more, 1.0)}
    before, after = one(**drawn), one(**raised)
    assert np.isnan(before) == np.isnan(after)
    assert np.isnan(before) or after >= before


@settings(deadline=None)
@given(drawn_parts, st.floats(0, 60))
def test_the_same_match_is_weaker_evidence_if_more_is_lacked(drawn: dict[str, float], more: float) -> None:
    before, after = one(**drawn), one(**drawn | {"lacked": drawn["lacked"] + more})
    assert np.isnan(before) or after <= before


@settings(deadline=None)
@given(drawn_parts, st.integers(0, 10**8))
def test_the_same_match_is_weaker_evidence_among_more_text(drawn: dict[str, float], more: int) -> None:
    before, after = one(**drawn), one(**drawn | {"words": drawn["words"] + more})
    assert np.isnan(before) or after <= before


@settings(deadline=None)
@given(drawn_parts)
def test_evidence_is_unknown_only_without_vector_and_words(drawn: dict[str, float]) -> None:
    assert np.isnan(one(**drawn)) == (np.isnan(drawn["cosine"]) and not drawn["rarity"])


logits = st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), max_size=9).map(
    lambda drawn: np.array(drawn, dtype=np.float64)
)


@settings(deadline=None)
@given(logits, shares, st.floats(-1e6, 1e6) | st.just(-np.inf))
def test_relevance_is_a_probability_that_keeps_the_order_and_what_is_unknown(
    found: np.ndarray[tuple[int], np.dtype[np.float64]], share: float, best: float
) -> None:
    probabilities = relevance(found, np.full(found.shape, share), best)
    known = ~np.isnan(found)
    assert (np.isnan(probabilities) == ~known).all()
    assert ((probabilities[known] >= 0) & (probabilities[known] <= 1)).all()
    assert (np.diff(probabilities[known][np.argsort(found[known], kind="stable")]) >= 0).all()


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 30))
def test_a_better_best_only_raises_the_others_and_not_without_bound(own: float, best: float, more: float) -> None:
    by_itself, beside, beside_better = (relevance_of(own, 1.0, one) for one in (-np.inf, best, best + more))
    assert by_itself <= beside <= beside_better
    assert relevance_of(-8.0, 1.0, 1e6) < 0.1


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), shares, shares)
def test_the_best_vouches_for_more_the_more_credit_there_is(own: float, best: float, share: float, more: float) -> None:
    assert relevance_of(own, 0.0, best) == relevance_of(own, 1.0, -np.inf)
    assert relevance_of(own, share, best) <= relevance_of(own, min(share + more, 1.0), best)


def test_credit_grows_with_the_cosine_up_to_one_and_is_whole_without_a_vector() -> None:
    found = credit(np.array([-0.2, 0.1, 0.2, 0.3, 0.9, np.nan]))
    assert found == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0, 1.0])


def test_no_memories_have_no_relevance() -> None:
    nothing = np.empty(0)
    found = evidence(Met(*[nothing] * 7, 3.0), nothing, np.empty(0, dtype=np.int32), 0)
    assert relevance(found, credit(nothing), -np.inf).shape == (0,)


def test_all_lines_give_the_same_scale_without_word_vectors_or_words() -> None:
    known = {
        "cosine": 0.75,
        "near": 0.8,
        "closest": 0.8,
        "held": 0.9,
        "held_nearby": 1.0,
        "lacked": 2.0,
        "length": 20,
        "rarity": 20.0,
        "words": 15_000,
    }
    alien = known | {"cosine": 0.15, "near": 0.35, "closest": 0.45, "held": 0.0, "held_nearby": 0.0, "lacked": 8.0}
    for lacking in ({}, {"near": np.nan}, {"rarity": 0.0}, {"cosine": np.nan, "near": np.nan}):
        sure, unsure = one(**known | lacking), one(**alien | lacking)
        assert relevance_of(sure, 1.0, sure) > 0.9, lacking
        assert relevance_of(unsure, 1.0, unsure) < 0.1, lacking
    best_by_chance = [np.sqrt(2 * np.log1p(tokens / 30)) for tokens in (19_500, 20_000)]
    met = 1.35 * 0.8 + 0.4 * 0.8 + 0.35 * 0.81 - 0.03 * 2.0
    s = 0.75 + met - 0.3 * (best_by_chance[0] - best_by_chance[1])
    assert one(**known) == pytest.approx(9.0 * (s - 1.2))


def test_the_required_match_grows_fast_with_few_memories_and_slowly_with_many() -> None:
    """By chance, the best of 10 scores far exceeds a single score, whereas the best of 100,000 scores is hardly higher
    than the best of 10,000.
    """
    drawn = {"cosine": 0.4, "near": 0.4, "closest": 0.5, "held": 0.0, "held_nearby": 0.0, "lacked": 6.0}
    found = [one(**drawn | {"length": 20, "rarity": 20.0, "words": words}) for words in (15, 150, 150_000, 1_500_000)]
    assert found[0] - found[1] > 2 > found[2] - found[3] > 0.5
