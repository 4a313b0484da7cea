"""Users and their hosts: stable, bounded, released."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon.hosts import Directory, rendezvous

users = st.lists(st.text("abcdefgh", min_size=1, max_size=3), max_size=40)


@given(users, st.integers(0, 5), st.integers(1, 4))
def test_at_most_the_limit_live_alone_and_the_others_share(names: list[str], limit: int, shared: int) -> None:
    directory = Directory(limit, shared)
    for name in names:
        directory.seat(name, 0.0)
    hosts = [directory.seat(name, 0.0) for name in set(names)]
    assert sum(host.startswith("user-") for host in hosts) == min(limit, len(set(names)))
    assert len(directory.hosts()) <= limit + shared


@given(users)
def test_a_user_keeps_its_host_while_awake(names: list[str]) -> None:
    directory = Directory(2, 3)
    first = {}
    for name in names:
        assert directory.seat(name, 1.0) == first.setdefault(name, directory.seat(name, 0.0))


@given(users, st.integers(1, 5))
def test_users_spread_evenly(names: list[str], shared: int) -> None:
    directory = Directory(0, shared)
    for name in names:
        directory.seat(name, 0.0)
    loads = Counter({f"shared-{number}": 0 for number in range(shared)})
    loads.update(directory.seat(name, 0.0) for name in set(names))
    assert max(loads.values()) - min(loads.values()) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.booleans()), max_size=60), st.integers(2, 5))
def test_a_waking_user_never_joins_a_busy_one_while_a_host_idles(events: list[tuple[str, bool]], shared: int) -> None:
    directory, now_s, last_s = Directory(1, shared), 0.0, {}
    for name, sleeps in events:
        now_s += 7.0
        if sleeps:
            directory.leave(name)
            last_s.pop(name, None)
            continue
        was_awake = name in directory
        before = {user: seat.host for user, seat in directory._seats.items() if now_s - last_s[user] < 30.0}
        host = directory.seat(name, now_s)
        last_s[name] = now_s
        if not was_awake and host.startswith("shared-") and host in before.values():
            assert {f"shared-{number}" for number in range(shared)} <= set(before.values())


def test_a_user_returns_to_its_host_when_loads_are_equal() -> None:
    directory = Directory(0, 4)
    first = directory.seat("a", 0.0)
    directory.leave("a")
    assert directory.seat("a", 9.0) == first


def test_of_two_busy_users_at_one_host_one_moves_when_another_host_idles() -> None:
    directory = Directory(0, 2)
    names = [f"user-{number}" for number in range(4)]
    hosts = {name: directory.seat(name, 0.0) for name in names}
    together = [name for name in names if hosts[name] == "shared-0"]
    assert directory.misplaced(0.0) is None, "both hosts have busy users"
    for name in together:
        directory.seat(name, 100.0)
    moved = directory.misplaced(100.0)
    assert moved in together
    directory.leave(moved)
    assert directory.seat(moved, 101.0) == "shared-1"
    assert directory.misplaced(101.0) is None


def test_a_host_is_released_when_its_last_user_sleeps() -> None:
    directory = Directory(0, 1)
    assert directory.seat("a", 0.0) == directory.seat("b", 0.0) == "shared-0"
    assert directory.leave("a") is None
    assert directory.leave("b") == "shared-0"
    assert directory.leave("b") is None


def test_only_users_without_requests_are_idle() -> None:
    directory = Directory(2, 1)
    directory.seat("a", 0.0)
    directory.seat("b", 0.0)
    directory.seat("a", 9.0)
    assert directory.idle(10.0, 5.0) == ("b",)


@given(st.sets(st.text("0123456789", min_size=1, max_size=4), min_size=2, max_size=6), st.text(max_size=8))
def test_removing_a_node_moves_only_its_own_keys(nodes: set[str], key: str) -> None:
    chosen = rendezvous(key, tuple(sorted(nodes)))
    for gone in nodes - {chosen}:
        assert rendezvous(key, tuple(sorted(nodes - {gone}))) == chosen


@given(users, st.integers(0, 5))
def test_who_is_apart_has_its_host_in_any_case_and_counts_for_nothing(names: list[str], limit: int) -> None:
    directory, without = Directory(limit, 2, {"apart": "its-own"}), Directory(limit, 2)
    for name in names:
        assert directory.seat("apart", 0.0) == "its-own"
        assert directory.seat(name, 0.0) == without.seat(name, 0.0)
    assert (len(directory), list(directory)) == (len(without), list(without))
    assert directory.idle(1e6, 1.0) == without.idle(1e6, 1.0)
    assert directory.misplaced(0.0) == without.misplaced(0.0)
    if names:
        assert directory.has("apart")
        assert "apart" in directory.awake()
        assert directory.leave("apart") == "its-own"
