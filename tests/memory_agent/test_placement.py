"""Users and their hosts: stable, bounded, released."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon.placement import Directory, rendezvous

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
