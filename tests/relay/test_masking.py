"""Test masking: secrets found, texts left unchanged, running time, and recognition of repeated events."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, combinations, product
from pathlib import Path
from string import ascii_lowercase
from subprocess import run
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up import MadeUp, made_up_secrets

from relay import (
    Broker,
    Event,
    EventLimits,
    Journal,
    Masker,
    MaskingSettings,
    Publisher,
    RelaySettingsError,
    Subscriber,
    event_from_mapping,
    read_event,
)
from relay.access import publisher_for_all
from relay.intake import masking, secret_patterns
from relay.intake.admission import Admission
from relay.intake.group_commit import Intake, Submission
from relay.intake.secret_patterns import SecretFormat
from relay.wire import Publish

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOKEN = "ghp_" + "Ab1" * 12
PIECES = (
    *("a", "A1", "0", "-", "_", ".", ":", "@", "=", '"', "\n", "\\n", "://", "://a:", "-----BEGIN PRIVATE KEY-----"),
    *("eyJ", "eyJaaaaaaaaa.", "ghp_", "github_pat_", "sk-", "password=", "password is ", "--password ", 'api_key="'),
    *("token=", "secret_access_key", "bearer ", "bearer a", "SG.", "glpat-", "hooks.slack.com/services/", "&sig=a"),
    *("-u a:", "redis-cli ", "sshpass -p ", "mysql -p", "login('a', ", "login a password ", "dp.pt.", "kennwort ist "),
    *("12345678:AA", "your-", "password=your-", "[masked:", "hf_a", "AKIA", "Key="),
)


def masked(text: str, **settings: Any) -> str:
    return Masker(MaskingSettings(**settings)).text(text)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_of_any_made_up_secret_is_left_and_its_kind_is_named(seed: int) -> None:
    for kind, text, secret in made_up_secrets(seed):
        masker = Masker()
        found = masker.text(text)
        assert f"[masked:{kind}]" in found, found
        assert not any(secret[at : at + 8] in found for at in range(max(1, len(secret) - 7))), found
        assert masker.counts[kind] >= 1


def nothing_is_left(one: MadeUp) -> bool:
    found = masked(one.text)
    return not any(one.secret[at : at + 8] in found for at in range(max(1, len(one.secret) - 7)))


def lines(file: str) -> list[str]:
    return (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("seed", range(100, 103))
def test_nothing_of_60_secrets_in_other_sentences_is_left(seed: int) -> None:
    """The author of the file had read the table, which at that time found 48 of 60 (decision 0005). The formats that it
    had missed were added.
    """
    missed = [one.text for one in made_up_secrets(seed, "held_out_secrets.jsonl") if not nothing_is_left(one)]
    assert missed == []


@pytest.mark.parametrize("file", ["innocent_lines.txt", "second_innocent_lines.txt"])
def test_hard_lines_that_hold_no_secret_are_left_alone(file: str) -> None:
    """Digests, ids, commits, paths, base64 of prose, public keys, and text that only mentions secrets: 240 in all."""
    assert [line for line in lines(file) if masked(line) != line] == []


def test_the_documented_share_of_held_out_secrets_is_found() -> None:
    """Secrets of other issuers and flags of other tools show what share of unknown formats is found. If the table is
    ever tuned on this file, write a new file.
    """
    found = [nothing_is_left(one) for seed in range(100, 120) for one in
             made_up_secrets(seed, "second_held_out_secrets.jsonl")]  # fmt: skip
    assert len(found) == 600
    assert sum(found) >= 227


def test_the_sentence_around_a_secret_stays() -> None:
    assert masked(f"The push failed: token {TOKEN}, see the log.") == (
        "The push failed: token [masked:github_token], see the log."
    )
    assert masked("postgres://admin:Sup3rS3cr3t@db:5432/app") == "postgres://admin:[masked:url_password]@db:5432/app"


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f2504e04f8911d39a0c0305e82c3301aabbccdd fixed run 01KHJY9080NWG22H9Q8BBD7B80",
        "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "def f(token: str, password=None) -> str: return os.environ['API_KEY']",
        "api_key=settings.key, token=self._token, password=${PASSWORD}, secret: <your-secret>",
        "Set PASSWORD to your password; see https://example.com/login?user=bob",
        "550e8400-e29b-41d4-a716-446655440000 at https://example.com:8080/a@b",
        "The password is required. The token: something that the tokenizer makes of a word.",
        "the session token was rotated while two tabs refresh; a key in the map; basic understanding of things",
        "password: string, secret: required, access_token=***********, passwd=xxxxxxxx",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCARygAwIBAgIJAL\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    ],
)
def test_text_that_only_mentions_secrets_is_left_alone(text: str) -> None:
    assert masked(text) == text


def test_no_line_of_our_own_sources_is_masked() -> None:
    listed = run(["git", "ls-files", "relay", "sona", "memory_agent"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split()] or [*(ROOT / "relay").glob("*.py")]
    masker = Masker()
    for file in files:
        if file.suffix in (".py", ".toml"):
            for line in file.read_text(encoding="utf-8").splitlines():
                assert masker.text(line) == line, f"{file}: {line}"


def test_no_turn_of_months_of_conversation_is_masked() -> None:
    data = ROOT.parent / "shared" / "data" / "locomo_dev.json"
    if not data.exists():
        pytest.skip(f"there is no {data.name}")
    masker = Masker()
    for text in _texts(json.loads(data.read_text(encoding="utf-8"))):
        assert masker.text(text) == text
    assert masker.counts == {}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*chain.from_iterable(map(_texts, values))]


@pytest.mark.timeout(120)  # takes 2 s; with a pattern that backtracks, it would take days
def test_hostile_text_costs_time_in_proportion_to_its_length() -> None:
    masker = Masker()
    for piece in PIECES:
        masker.text(piece * (262_144 // len(piece)))
    for first, second in product(PIECES, PIECES):
        masker.text(first + second * (2_048 // len(second)))
    for first, second in combinations(PIECES, 2):  # repeated, each pair is almost the same text in either order
        masker.text((first + second) * (2_048 // len(first + second)))


@given(st.lists(st.sampled_from([*PIECES, *(one.secret for one in made_up_secrets()), " ", "'", "x"]), max_size=12))
def test_masking_is_idempotent(parts: list[str]) -> None:
    text = masked(" ".join(parts))  # this pass can miss a token that follows another token without a gap
    once = Masker()
    again = once.text(text)
    assert Masker().text(again) == again


@pytest.fixture(scope="module")
def every_pattern() -> Masker:
    """A masker that searches every text for every pattern, even for patterns whose literals do not occur in it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            masking, "FORMATS", tuple(replace(one, literals=("",), at_literal=False) for one in secret_patterns.FORMATS)
        )
        return Masker()


_FRAGMENTS = (
    *PIECES,
    *sorted({literal for one in secret_patterns.FORMATS for literal in one.literals}),
    *(one.secret for seed in (1, 2) for one in made_up_secrets(seed)),
    *(one.text for one in made_up_secrets(3)),
    *(
        "_",
        "key",
        "Secret",
        "PASSWORD",
        "client_",
        "access-",
        "x-goog-",
        " is ",
        ": ",
        " = ",
        "--",
        "\t",
        "K",
        "ſ",
        "ı",
        "İ",
        "é",
    ),
    *("x" * 40, "Ab1" * 12, "0123456789abcdef" * 4, "hunter2secret!", "123456789"),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=10).map("".join) | st.text(max_size=60), st.data())
def test_looking_for_literals_first_finds_what_every_pattern_finds(
    every_pattern: Masker, text: str, data: st.DataObject
) -> None:
    for old, new in data.draw(st.lists(st.sampled_from(["sſ", "kK", "iı", "iİ", "aA"]), max_size=2)):
        text = text.replace(old, new)
    masker = Masker()
    assert masker.text(text) == every_pattern.text(text)
    payload = {"text": text, text[:20]: [text[20:], {"nested": (text, 1, None)}]}
    assert masker.value(payload) == every_pattern.value(payload)
    event = Event(event_id="e", event_type="t", timestamp=NOW, user_id="alice", payload=payload, extra={"more": text})
    assert masker.event(event) == every_pattern.event(event)


@pytest.mark.parametrize("one", secret_patterns.FORMATS, ids=lambda one: f"{one.kind} {one.literals[0]}")
def test_every_match_of_a_pattern_is_found_by_a_literal(one: SecretFormat) -> None:
    """A strict pattern has no alternatives to its literals, so few examples reveal a wrong literal."""
    examples = 10 if one.strict else 50

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.from_regex(one.pattern))
    def check(text: str) -> None:
        searched = secret_patterns.fold_case(text) if one.ignores_case else text
        assert one.is_in(text, [literal for literal in one.literals if literal in searched])

    check()


def test_letters_are_folded_as_patterns_that_ignore_case_compare_them() -> None:
    characters = "".join(chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000)
    folded = secret_patterns.fold_case(characters)
    assert len(folded) == len(characters)
    for letter in ascii_lowercase:
        found = [match.start() for match in re.finditer(letter, characters, re.IGNORECASE)]
        assert found == [match.start() for match in re.finditer(letter, folded)], letter


@pytest.mark.parametrize("token", ["lin_oauth_" + "Ab1" * 12, "dckr_oat_" + "Ab1" * 12, "bearer\t" + "Ab1" * 12])
def test_a_token_is_found_without_another_one_of_its_kind(token: str) -> None:
    assert "Ab1" not in masked(f"it printed {token} there")


def test_values_at_any_depth_and_fields_named_as_secrets_are_masked() -> None:
    payload = {
        "report": {"findings": [{"claim": f"used {TOKEN}"}]},
        "password": "plain",
        "DB-Password": 4711,
        "client_secret": {"value": "abc", "set": True, "old": None},
        TOKEN: "as a name",
        "tokens": 812,
        "token": "the",
        "summary": "nothing here",
    }
    assert Masker().value(payload) == {
        "report": {"findings": [{"claim": "used [masked:github_token]"}]},
        "password": "[masked:password]",
        "DB-Password": "[masked:password]",
        "client_secret": {"value": "[masked:password]", "set": True, "old": None},
        "[masked:github_token]": "as a name",
        "tokens": 812,
        "token": "the",
        "summary": "nothing here",
    }


class _Fields(Mapping[str, object]):
    """A mapping that cannot be encoded as JSON and whose `repr` shows no fields."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> object:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@pytest.mark.parametrize(
    "others", [{"n": 10**30}, {"n": 10**5000}, {"n": "\ud800"}, {1: 2, None: 3}, {"n": object()}, _Fields({"a": 1})]
)
def test_secrets_beside_what_json_cannot_hold_are_masked(others: Mapping[Any, Any]) -> None:
    masker, token = Masker(), "ghp_" + "aB3" * 12
    value = {"token of ours": [token], "others": others, "fields": _Fields({"note": token})}
    masked = masker.value(value)
    event = masker.event(
        Event(
            event_id="e", event_type="noted", user_id="ann", payload=value, timestamp=datetime(2026, 1, 1, tzinfo=UTC)
        )
    )
    assert (
        masked
        == event.payload
        == {
            "token of ours": ["[masked:github_token]"],
            "others": dict(others),
            "fields": {"note": "[masked:github_token]"},
        }
    )


def test_json_keeps_every_literal() -> None:
    for one in secret_patterns.FORMATS:
        assert all(literal in msgspec.json.encode(literal).decode() for literal in one.literals)


def test_bytes_that_are_not_text_are_masked_too() -> None:
    assert Masker().data(b"\xff\x00 " + TOKEN.encode() + b" \xfe") == b"\xff\x00 [masked:github_token] \xfe"
    told = {"user_id": 1, "payload": {"password": "plain", "text": TOKEN}}
    kept = {"user_id": 1, "payload": {"password": "[masked:password]", "text": "[masked:github_token]"}}
    assert json.loads(Masker().data(json.dumps(told).encode())) == kept
    assert msgspec.msgpack.decode(Masker().data(msgspec.msgpack.encode(told))) == kept


def test_masking_can_be_switched_off_extended_and_given_exceptions() -> None:
    assert masked(TOKEN, enabled=False) == TOKEN
    assert masked(TOKEN, allow=("ghp_Ab1.*",)) == TOKEN
    assert masked("badge EMP-12345 opened it", patterns={"badge": r"EMP-\d{5}"}) == "badge [masked:badge] opened it"
    with pytest.raises(RelaySettingsError, match="is not a valid pattern"):
        Masker(MaskingSettings(allow=("(",)))
    with pytest.raises(RelaySettingsError, match="empty text"):
        Masker(MaskingSettings(patterns={"badge": "x*"}))


def test_masking_an_event_keeps_its_id() -> None:
    sent = {"event_type": "user_input", "user_id": "alice", "payload": {"text": f"use {TOKEN}"}, "note": TOKEN}
    event = event_from_mapping(sent, EventLimits(), NOW)
    found = Masker().event(event)
    assert (found.event_id, found.payload, found.extra) == (
        event.event_id,
        {"text": "use [masked:github_token]"},
        {"note": "[masked:github_token]"},
    )


def test_a_relay_stores_no_secret_counts_them_and_still_recognises_a_repeat(tmp_path: Path) -> None:
    sent = {"event_type": "user_input", "user_id": "alice", "timestamp": NOW, "payload": {"text": f"use {TOKEN}"}}
    with Broker(tmp_path) as broker:
        with Publisher(broker.endpoints.ingest) as publisher:
            for event in (sent, sent):
                publisher.publish(event)
            publisher.flush()
        with Subscriber(*broker.endpoints) as subscriber:
            entries = subscriber.fetch(0, 10).entries
            counts = subscriber.stats().counts
    assert [read_event(entry.data).payload for entry in entries] == [{"text": "use [masked:github_token]"}]
    assert (counts["duplicates"], counts["masked_github_token"]) == (1, 2)


def test_bytes_that_are_not_an_event_are_masked_in_quarantine(tmp_path: Path) -> None:
    unreadable = json.dumps({"user_id": "alice", "payload": {"text": TOKEN, "password": "plain"}}).encode()
    with Journal.open(tmp_path) as journal:
        intake = Intake(journal, Admission(EventLimits(), Masker()), Counter())
        publish = Publish(producer_id="p", epoch=1, base_seq=1, first_seq=1, attempt=1, events=[unreadable])
        intake.take([Submission(b"peer", publish, publisher_for_all("k"))], NOW)
        entry = journal.quarantined_entry(1)
    assert json.loads(entry.data)["payload"] == {"text": "[masked:github_token]", "password": "[masked:password]"}


def test_many_names_that_are_masked_alike_stay_as_many_fields_and_no_longer_than_they_were() -> None:
    names = [f"ghp_{number:036d}" for number in range(4_000)]
    masked = Masker().value({"[masked:github_token]#3": "taken", **{name: name[-4:] for name in names}})
    assert len(masked) == 4_001
    assert not set(names) & set(masked)
    assert sum(map(len, masked)) < sum(map(len, names))
    assert sorted(masked.values()) == sorted(["taken", *(name[-4:] for name in names)])


@pytest.mark.parametrize("text", ["password=hunter2secret!", "PASSPHRASE=tr0ub4dor&3?", "set pwd=Qw3rty!!, then go"])
def test_the_last_characters_of_an_assigned_password_are_masked(text: str) -> None:
    masked = Masker(MaskingSettings()).text(text)
    assert not set("!?") & set(masked)
    assert masked.partition("=")[2].startswith("[masked:password]")
