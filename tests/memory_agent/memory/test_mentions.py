"""Mentions of people, accounts and machines in a text."""

from __future__ import annotations

import time

import pytest

from memory_agent.memory.mentions import mentions


def found(text: str, *own_names: str) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in mentions({"body": text}, own_names)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ann Lee fixed it", [("person", "Ann Lee")]),
        ("The fix of Ann M. Lee holds", [("person", "Ann M. Lee")]),
        ("asked Ann, who knew", [("person", "Ann")]),
        ("Thanks to Ann Lee it holds", [("person", "Ann Lee")]),
        ("Write to ann.lee@example.com", [("email", "ann.lee@example.com")]),
        ("cc @ann-lee please", [("account", "@ann-lee")]),
        ("see /srv/app/deploy.sh and ~/notes.md", [("path", "/srv/app/deploy.sh"), ("path", "~/notes.md")]),
        (r"see C:\Users\ann\x.txt", [("path", r"C:\Users\ann\x.txt")]),
        ("on 10.0.0.7:8080 and db.corp", [("address", "10.0.0.7:8080"), ("address", "db.corp")]),
        ("Staging needs the VPN before a deploy", []),
        ("When Monday comes, either/or is fine, 50/50", []),
        ("from Monday to Friday", []),
        ("call +44 20 7946 0958", [("phone", "+44 20 7946 0958")]),
        ("to DE89 3704 0044 0532 0130 00", [("iban", "DE89 3704 0044 0532 0130 00")]),
        ("4111-1111-1111-1111, not 4111-1111-1111-1112", [("card", "4111-1111-1111-1111")]),
    ],
)
def test_mentions_are_found_by_kind(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


def test_the_authors_own_names_are_found_in_any_case() -> None:
    assert found("ALICE-7 says alice-77 is not her", "alice-7") == [("account", "ALICE-7")]
    assert found("a letter", "a") == []


def test_each_mention_is_listed_once_and_at_most_two_hundred_are() -> None:
    told = mentions({"title": "Ann Lee", "body": "Ann Lee met Ann Lee"})
    assert [(one.text, one.field) for one in told] == [("Ann Lee", "title"), ("Ann Lee", "body")]
    assert len(mentions({"body": " ".join(f"/srv/{number}" for number in range(1_000))})) == 200


@pytest.mark.parametrize(
    "piece", ["a" * 50, "A" * 50, "Aa ", "a.", "a@", "/a", "1.", "@", "a-", "A. ", "tel 1", "+1 2", "DE89 "]
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """For a text 100 times as long, the processor time (best of three) grows by a factor of less than 1,000."""

    def taken_s(text: str) -> float:
        began_s = time.process_time()
        mentions({"body": text})
        return time.process_time() - began_s

    short_s = min(taken_s(piece * 200) for _ in range(3))
    assert any(taken_s(piece * 20_000) < 1_000 * max(short_s, 1e-4) for _ in range(3))
