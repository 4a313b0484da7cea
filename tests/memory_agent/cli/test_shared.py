"""Test `shared …` and `recall --tier`, both on the files of a folder and through a daemon."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parent.parent))

from served_gateway import Served, gateway_without_ray

from memory_agent.cli.group import cli
from memory_agent.embedders import open_embedder
from memory_agent.layout import Layout
from memory_agent.settings import EmbedderSettings
from memory_agent.storage.folders import known_users, user_folder
from relay import SHARED_USER

Run = Callable[..., Result]
RunJson = Callable[..., Any]

QUESTION = "why does the deploy to staging hang?"
TITLE = "Deploy to staging"
FIX = "The deploy to staging hangs while the VPN is off: connect it first."
SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
RUNBOOK = f"""---
draft: true
---
# {TITLE}

{FIX}

Then ask Ann Lee to run /srv/app/deploy.sh with {SECRET} set.
"""
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
BOTH = ("--tier", "local", "--tier", "global")
ATTACHED = b"[rules]\nselect = all\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A daemon's gateway on a folder whose daemon lock is held."""
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    with (
        tempfile.TemporaryDirectory(prefix="shared-") as folder,
        gateway_without_ray(Path(folder), embedder) as served,
        Layout(served.data_dir).hold(),
    ):
        yield served
    embedder.close()


@pytest.fixture(params=["files", "daemon"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "files":
        return tmp_path / "data"
    folder: Path = request.getfixturevalue("served").data_dir
    return folder


@pytest.fixture
def offline(tmp_path: Path) -> Run:
    """A function that runs a command on the files of a temporary folder."""
    folder = tmp_path / "data"
    return lambda *words, input=None: CliRunner().invoke(cli, [*words, "--data-dir", str(folder)], input=input)


@pytest.fixture
def runbook(tmp_path: Path) -> Path:
    file = tmp_path / "runbook.md"
    file.write_text(RUNBOOK)
    return file


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_bytes(ATTACHED)
    return file


def code_of(result: Result) -> tuple[int, str]:
    """Return the exit code and the code of the error, which --json prints as its last line."""
    return result.exit_code, json.loads(result.stderr.splitlines()[-1])["error"]["code"]


def publish(run: Run, out: Path, *words: str, user: str = "ann", confirm: tuple[str, ...] = ()) -> Any:
    previewed = run("shared", "preview", *words, "--out", str(out), "--user", user)
    assert previewed.exit_code == 0, previewed.output
    done = run("shared", "confirm", str(out), *confirm, "--yes", "--user", user, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_what_one_user_publishes_others_find_and_fetch_until_it_is_taken_away(
    run: Run, run_json: RunJson, runbook: Path, rules: Path, tmp_path: Path
) -> None:
    out, fetched = tmp_path / "preview.json", tmp_path / "fetched.toml"
    run("remember", "Lunch is at noon in the canteen", "--user", "ben")
    words = (str(runbook), "--tag", "deploy", "--type", "agent", "--attach", str(rules))
    item = publish(run, out, *words, confirm=("--attach", str(rules)))
    assert (item["title"], item["summary"], item["body"], item["reference"]) == (TITLE, FIX, None, None)
    assert item["tags"] == ["deploy"]
    assert "embedding" not in item

    (found,) = run_json("shared", "search", QUESTION, "--user", "ben")
    assert found["item"] == item
    assert run_json("shared", "search", QUESTION, "--type", "agent", "--tag", "deploy", "-k", "1", "--user", "ben")
    for nothing in (("--type", "app"), ("--tag", "other"), ("--min-relevance", "1")):
        assert run_json("shared", "search", QUESTION, *nothing, "--user", "ben") == []
    shown = run("shared", "search", QUESTION, "--user", "ben").stdout
    assert f"\n   | {FIX}\n   attachment: rules.toml, 21 B, SHA-256 {hashlib.sha256(ATTACHED).hexdigest()}\n" in shown

    assert run_json("shared", "show", item["id"], "--user", "ben") == item
    one = run("shared", "show", item["id"], "--user", "ben").stdout
    assert (item["id"] in one, TITLE in one, f"\n   | {FIX}\n   attachment: rules.toml" in one) == (True, True, True)

    (recalled,) = run_json("recall", QUESTION, *BOTH, "--user", "ben")["memories"]
    assert (recalled["tier"], recalled["record"]["id"]) == ("global", item["id"])
    assert recalled["shared"]["author"] == item["author"]
    assert f"   | {FIX}\n" in run("recall", QUESTION, "--tier", "global", "--user", "ben").stdout
    assert run_json("recall", QUESTION, "--user", "ben")["memories"] == []
    assert run_json("recall", QUESTION, "--tier", "local", "--user", "ben")["memories"] == []

    fetch = ("shared", "attachment", item["id"], "--user", "ben", "--out")
    assert run_json(*fetch, str(fetched))["attachment"] == item["attachment"]
    assert (fetched.read_bytes(), fetched.stat().st_mode & 0o777) == (ATTACHED, 0o600)
    assert code_of(run(*fetch, str(fetched), "--json")) == (1, "invalid_input")
    assert run(*fetch, str(fetched), "--replace").exit_code == 0
    assert run(*fetch, "-").stdout_bytes == ATTACHED

    (own,) = run_json("shared", "published", "--user", "ann")
    assert own == item
    assert run_json("shared", "published", "--user", "ben") == []
    listed = run("shared", "published", "--user", "ann").stdout
    assert [word in listed for word in (item["id"], TITLE, "public", "not yet rated")] == [True] * 4

    taken = run("shared", "unpublish", item["id"], "--user", "ann")
    assert (taken.exit_code, taken.stdout) == (0, f"withdrew {item['id']}, version 1\n")
    again = run("shared", "unpublish", item["id"], "--user", "ann")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr == f"note: nothing was withdrawn: this user has no item {item['id']}\n"
    assert json.loads(run("shared", "unpublish", item["id"], "--user", "ann", "--json").stdout)["found"] is False
    assert code_of(run("shared", "show", item["id"], "--user", "ben", "--json")) == (1, "invalid_input")
    assert run_json("shared", "search", QUESTION, "--user", "ben", "--min-relevance", "0") == []
    assert run_json("recall", QUESTION, *BOTH, "--user", "ben")["memories"] == []


def test_a_preview_shows_every_word_that_would_leave_and_marks_what_to_look_at(
    run: Run, run_json: RunJson, data_dir: Path, runbook: Path, rules: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p 1.json"
    stores = sorted(known_users(data_dir))
    words = (str(runbook), "--body", "--tag", "deploy", "--reference", "https://wiki/deploy", "--attach", str(rules))
    named = ("--version", "1.2", "--user", "cat", "--out", str(out))
    shown = run("shared", "preview", *words, *named)
    assert shown.exit_code == 0, shown.output
    name = run_json("shared", "name", "--user", "cat")["name"]
    body = RUNBOOK.strip("\n").replace(SECRET, "[masked:github_token]").splitlines()
    assert shown.stdout.splitlines() == [
        "would be published, word for word",
        "   document · version 1.2 · for every user of this deployment · "
        + ("under a pseudonym" if name is None else f"as {name}"),
        "title",
        f"   {TITLE}",
        "summary",
        f"   {FIX}",
        "body",
        "   ---",
        "   draft: true",
        "   ---",
        " = the title",
        "",
        " = the summary",
        "",
        f" ! {body[-1]}",
        "reference",
        "   https://wiki/deploy",
        "tags",
        "   deploy",
        "attachment",
        f"   rules.toml, 21 B, SHA-256 {hashlib.sha256(ATTACHED).hexdigest()}",
        "   It is sent unchanged: nothing in it is masked.",
        "",
        "masked: github_token 1",
        "look at: person Ann Lee, path /srv/app/deploy.sh",
        "",
        f"nothing has been sent; to publish exactly this: memory-agent shared confirm '{out}' --attach {rules} "
        f"--user cat --data-dir {data_dir}",
    ]
    document = json.loads(out.read_text())
    assert out.stat().st_mode & 0o777 == 0o600
    assert document["content"]["body"] == "\n".join(body)
    assert SECRET not in out.read_text() + shown.output
    as_json = run_json("shared", "preview", *words, *named)
    assert as_json["content"] | {"item_id": ""} == document["content"] | {"item_id": ""}
    assert json.loads(out.read_text()) == as_json, "a former preview is replaced"
    assert set(known_users(data_dir)) - set(stores) <= {"cat"}


def test_what_cannot_be_seen_is_named_and_cannot_control_the_terminal(run: Run) -> None:
    shown = run("shared", "preview", "--title", "a\x1b[2Jb", "--summary", "one \u200bword")
    assert ("   a�[2Jb\n" in shown.stdout, "   one �word\n" in shown.stdout) == (True, True)
    assert "note: control and invisible characters are shown as �, but are sent unchanged\n" in shown.stderr


@pytest.mark.parametrize(
    ("document", "words", "title", "summary"),
    [
        ("No heading here.\n\nMore.", (), "notes.md", "No heading here."),
        ("\ufeff# A\r\n\r\nOne.\r\n\r\nTwo.", (), "A", "One."),
        ("# A\n## B\n\nOne\nand two.\n\nThree.", ("--body",), "A", "One\nand two."),
        ("# A\n\nOne.", ("--title", "Mine", "--summary", "Said."), "Mine", "Said."),
        (f"# {'t' * 300}\n\n{'word ' * 300}", (), "t" * 199 + "…", ("word " * 199 + "word").strip() + "…"),
    ],
)
def test_a_document_gives_title_and_summary_and_its_text_only_on_request(
    offline: Run, tmp_path: Path, document: str, words: tuple[str, ...], title: str, summary: str
) -> None:
    file = tmp_path / "notes.md"
    file.write_bytes(document.encode())
    by_file = json.loads(offline("shared", "preview", str(file), *words, "--json").stdout)["content"]
    assert (by_file["title"], by_file["summary"]) == (title, summary)
    assert by_file["body"] == (document if "--body" in words else None)
    assert str(tmp_path) not in json.dumps(by_file)
    if title != "notes.md":
        typed = offline("shared", "preview", "--text", "-", *words, "--json", input=document.lstrip("\ufeff").encode())
        said = json.loads(typed.stdout)["content"]
        assert said | {"item_id": ""} == by_file | {"item_id": ""}


def test_a_memory_is_published_unless_it_has_changed_since(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    out = tmp_path / "preview.json"
    words = ("--title", TITLE, "--kind", "pattern", "--tag", "deploy", "--user", "dora")
    run("remember", FIX, "--id", "dora-1", *words)
    preview = ("shared", "preview", "--memory", "dora-1", "--user", "dora", "--out", str(out))
    content = run_json(*preview)["content"]
    assert [content[field] for field in ("title", "summary", "tags", "content_type")] == [
        TITLE, FIX, ["deploy"], "pattern"
    ]  # fmt: skip
    run("remember", "The VPN is not needed any more", "--id", "dora-1", *words)
    refused = run("shared", "confirm", str(out), "--yes", "--user", "dora", "--json")
    assert code_of(refused) == (1, "invalid_input")
    assert "has changed" in refused.stderr
    assert run_json("shared", "published", "--user", "dora") == []
    assert run(*preview).exit_code == 0
    assert run("shared", "confirm", str(out), "--yes", "--user", "dora").stdout.startswith("published ")
    (item,) = run_json("shared", "published", "--user", "dora")
    run("shared", "unpublish", item["id"], "--user", "dora")


def test_a_person_sees_the_preview_again_and_decides(
    run: Run, run_json: RunJson, runbook: Path, tmp_path: Path
) -> None:
    out = tmp_path / "preview.json"
    previewed = run("shared", "preview", str(runbook), "--out", str(out), "--user", "eva").stdout
    for answer, code in (("n\n", 130), ("", 2)):
        asked = run("shared", "confirm", str(out), "--user", "eva", input=answer)
        assert asked.exit_code == code
        assert asked.stdout.strip() == previewed.partition("\n\nnothing has been sent")[0].strip()
        assert "publish this, for every user of this deployment?" in asked.stderr
    assert asked.stderr.endswith("[y/N]: \nerror: standard input is not a terminal; use --yes to confirm\n")
    assert code_of(run("shared", "confirm", str(out), "--user", "eva", "--json")) == (2, "usage")
    assert run_json("shared", "published", "--user", "eva") == []
    assert run("shared", "confirm", str(out), "--user", "eva", input="y\n").exit_code == 0
    (item,) = run_json("shared", "published", "--user", "eva")
    assert run_json("shared", "confirm", str(out), "--user", "eva", "--yes") == item, "once"
    assert run_json("shared", "published", "--user", "eva") == [item]
    run("shared", "unpublish", item["id"], "--user", "eva")


def test_a_pattern_is_offered_as_it_was_shown_listed_and_taken_back(
    run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    out = tmp_path / "offer.json"
    words = ("shared", "preview", "--title", TITLE, "--summary", FIX, "--out", str(out), "--user", "oda")
    assert "shared offer" in run(*words, "--offer").stdout
    assert code_of(run("shared", "confirm", str(out), "--yes", "--user", "oda", "--json")) == (1, "invalid_input")
    assert "is a preview to offer; use `shared offer`" in run("shared", "confirm", str(out), "--yes").stderr
    assert run("shared", "offer", str(out), "--user", "oda", input="n\n").exit_code == 130
    assert run_json("shared", "offered", "--user", "oda") == []
    asked = run("shared", "offer", str(out), "--user", "oda", input="y\n")
    assert asked.exit_code == 0
    assert FIX in asked.stdout
    (offered,) = run_json("shared", "offered", "--user", "oda")
    assert (offered["content"]["summary"], offered["proposed_as"]) == (FIX, None)
    assert run_json("shared", "published", "--user", "oda") == run_json("shared", "offered", "--user", "reader") == []
    assert TITLE in run("shared", "offered", "--user", "oda").stdout
    assert run_json("shared", "unpublish", offered["content"]["item_id"], "--user", "oda")["found"]
    assert run_json("shared", "offered", "--user", "oda") == []


def test_a_next_version_replaces_the_former_and_none_is_published_twice(
    run: Run, run_json: RunJson, tmp_path: Path
) -> None:
    out = tmp_path / "preview.json"
    item = publish(run, out, "--title", TITLE, "--summary", FIX, user="fay")
    said = ("--title", TITLE, "--summary", "The deploy to staging needs no VPN.")
    words = (*said, "--item", item["id"], "--policy", "public")
    assert code_of(run("shared", "preview", *words, "--user", "fay", "--json")) == (2, "usage")
    for_whom = run("shared", "preview", *said, "--item", item["id"], "--version", "2", "--user", "fay")
    assert (for_whom.exit_code, "--item requires --policy" in for_whom.stderr) == (2, True)
    publish(run, out, *words, "--version", "2", user="fay")
    (found,) = run_json("shared", "search", QUESTION, "--user", "gil")
    assert (found["item"]["id"], found["item"]["version"]) == (item["id"], "2")
    again = ("shared", "preview", *words, "--version", "2", "--body", "--text", "x", "--out", str(out), "--user")
    shown = run(*again, "fay")
    assert f'replaces version 2 of "{TITLE}" ({item["id"]})' in shown.stdout
    assert "error: --item: is not an item of this user" in run(*again, "gil").stderr
    for user, named in (("fay", "version"), ("gil", "PREVIEW")):
        refused = run("shared", "confirm", str(out), "--yes", "--user", user)
        assert (refused.exit_code, refused.stderr.split(":")[1]) == (1, f" {named}")
    run("shared", "unpublish", item["id"], "--user", "fay")


def test_ratings_and_names(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    item = publish(run, tmp_path / "preview.json", "--title", TITLE, "--summary", FIX, user="hal")
    rate = ("shared", "rate", item["id"])
    assert run_json(*rate, "0.8", "--user", "ida") == item["quality_metrics"]
    assert run(*rate, "1", "--version", "1", "--user", "ida").stdout == "rated 1; everybody sees: not yet rated\n"
    told = run(*rate, "1", "--user", "ida").stderr
    assert told == "note: ratings of this version are shown once five users have rated it and upkeep has run\n"
    taken = run(*rate, "--take-back", "--user", "ida")
    assert taken.stdout == "withdrew the rating; everybody sees: not yet rated\n"
    assert code_of(run(*rate, "1", "--user", "hal", "--json")) == (1, "invalid_input")
    for wrong in ((), ("1", "--take-back"), ("2",), ("good",)):
        assert run(*rate, *wrong, "--user", "ida").exit_code == 2, wrong

    named = run_json("shared", "name", "Hal of the platform team", "--user", "hal")
    of_hal = ("shared", "preview", "--title", TITLE, "--summary", FIX, "--user", "hal")
    assert run(*of_hal).stdout.splitlines()[1].endswith(f" · as {named['name']}")
    assert named == {"name": f"Hal of the platform team #{item['author_id'][5:11]}"}
    (found,) = run_json("shared", "search", QUESTION, "--user", "ida")
    assert found["item"]["author"] == named["name"]
    assert run_json("shared", "name", "--user", "hal") == named
    assert run("shared", "name", "--user", "hal").stdout == f"others see: {named['name']}\n"
    back = run("shared", "name", "--none", "--user", "hal")
    assert back.stdout == f"others see: {item['author']}\n"
    assert "hal" not in item["author"]
    assert run("shared", "name", "--user", "hal").stdout == back.stdout
    assert run("shared", "name", "Hal", "--none", "--user", "hal").exit_code == 2
    assert code_of(run("shared", "name", "...", "--user", "hal", "--json")) == (1, "invalid_input")
    run("shared", "unpublish", item["id"], "--user", "hal")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "specify what to share"),
        (("--title", "x"), "specify what to share"),
        (("--text", "x", "--memory", "y"), "cannot be combined"),
        (("{file}", "--text", "x"), "cannot be combined"),
        (("--memory", "y", "--body"), "--body requires FILE or --text"),
        (("{file}", "--type", "tool"), "--type"),
        (("{file}", "--item", UNKNOWN), "--item requires --version"),
    ],
)
def test_words_of_a_preview_that_cannot_be_used_are_named(
    offline: Run, runbook: Path, words: tuple[str, ...], named: str
) -> None:
    refused = offline("shared", "preview", *(word.format(file=runbook) for word in words))
    assert (refused.exit_code, named in refused.stderr) == (2, True)


def test_what_cannot_be_previewed_is_refused_and_no_file_is_replaced(
    offline: Run, runbook: Path, tmp_path: Path
) -> None:
    binary, large = tmp_path / "binary.md", tmp_path / "large.bin"
    binary.write_bytes(b"\xff\xfe")
    large.write_bytes(bytes((1 << 20) + 1))
    for words, field in (
        (("--text", "no heading"), "--title"),
        (("--text", "# heading alone"), "--title"),
        ((str(binary),), "FILE"),
        ((str(tmp_path / "none.md"),), "FILE"),
        ((str(runbook), "--policy", "acme"), "--policy"),
        ((str(runbook), "--version", "a b"), "--version"),
        ((str(runbook), "--attach", str(large)), "--attach"),
        ((str(runbook), "--attach", "/dev/zero"), "--attach"),
        ((str(runbook), "--out", str(runbook)), "--out"),
        ((str(runbook), "--out", str(tmp_path)), ""),
        (("--memory", "unknown"), "--memory"),
    ):
        refused = offline("shared", "preview", *words, "--json")
        assert refused.exit_code == (1 if field else 2), words
        message = json.loads(refused.stderr.splitlines()[-1])["error"]["message"]
        assert message.startswith(field)
        assert ("is larger than 1048576 bytes" in message) == (field == "--attach")
    assert runbook.read_text() == RUNBOOK
    assert code_of(offline("shared", "preview", str(runbook), "--attach", "none", "--json")) == (1, "io")
    nowhere = tmp_path / "none" / "preview.json"
    told = offline("shared", "preview", str(runbook), "--out", str(nowhere))
    assert (told.exit_code, told.stderr) == (1, f"error: {nowhere}: No such file or directory\n")


def test_what_is_not_the_preview_is_refused(
    run: Run, run_json: RunJson, runbook: Path, rules: Path, tmp_path: Path
) -> None:
    out = tmp_path / "preview.json"
    attached = ("--attach", str(rules))
    run("shared", "preview", str(runbook), *attached, "--out", str(out), "--user", "jon")
    confirm = ("shared", "confirm", str(out), "--yes", "--user", "jon", "--json")
    document = json.loads(out.read_text())
    assert code_of(run(*confirm)) == (2, "usage")
    rules.write_bytes(b"other")
    assert code_of(run(*confirm, *attached)) == (1, "invalid_input")
    rules.write_bytes(ATTACHED)
    document["content"]["summary"] += " And more."
    for changed in (json.dumps(document), "{}", "[", "\x00"):
        out.write_text(changed)
        refused = run(*confirm, *attached)
        assert code_of(refused) == (1, "invalid_input")
        assert "preview" in refused.stderr
    run("shared", "preview", str(runbook), "--out", str(tmp_path / "plain.json"), "--user", "jon")
    assert code_of(run("shared", "confirm", str(tmp_path / "plain.json"), "--yes", *attached, "--json")) == (2, "usage")
    assert code_of(run("shared", "confirm", str(tmp_path / "none.json"), "--yes", "--json")) == (1, "io")
    assert run_json("shared", "published", "--user", "jon") == []


def test_nothing_is_created_by_looking(run: Run, run_json: RunJson, data_dir: Path, tmp_path: Path) -> None:
    before = sorted(data_dir.glob("users/*"))
    user = ("--user", "kim")
    assert run_json("shared", "search", "Who painted the Mona Lisa?", *user) == []
    assert run_json("shared", "published", *user) == []
    assert run("shared", "published", *user).stdout.startswith("0 items")
    assert run_json("recall", "Who painted the Mona Lisa?", *BOTH, *user)["memories"] == []
    assert run("recall", "Who painted the Mona Lisa?", "--tier", "global", *user).exit_code == 0
    assert run("shared", "unpublish", UNKNOWN, *user).exit_code == 1
    fetch = ("shared", "attachment", UNKNOWN, "--out", str(tmp_path / "x"))
    for refused in (("shared", "rate", UNKNOWN, "1"), fetch, ("shared", "unpublish", "x"), ("shared", "search", " ")):
        assert code_of(run(*refused, *user, "--json")) == (1, "invalid_input")
    assert run("shared", "search", "x", "-k", "0", *user).exit_code == 2
    assert run("shared", "attachment", UNKNOWN, *user).exit_code == 2
    assert run("recall", "x", "--tier", "others", *user).exit_code == 2
    assert "will see a pseudonym" in run("shared", "name", *user).stdout or SHARED_USER in {
        path.name for path in before
    }
    made = {path.name for path in data_dir.glob("users/*")} - {path.name for path in before}
    assert made <= {"kim"}
    assert not (tmp_path / "x").exists()


def test_a_key_says_who_publishes_and_what_is_found(run: Run, run_json: RunJson, runbook: Path, tmp_path: Path) -> None:
    for user, words in (
        ("liz", ("--scope", "recall,share", "--org", "acme")),
        ("max", ("--scope", "recall", "--org", "acme")),
        ("nia", ("--scope", "recall,share")),
    ):
        made = run("keys", "create", user, "--user", user, *words, "--out", str(tmp_path / f"{user}.key"))
        assert made.exit_code == 0, made.output
    liz, max_, nia = (("--key-file", str(tmp_path / f"{user}.key")) for user in ("liz", "max", "nia"))
    out = tmp_path / "preview.json"
    preview = ("shared", "preview", str(runbook), "--policy", "org:acme", "--out", str(out))
    assert code_of(run(*preview, *max_, "--json")) == (1, "scope_missing")
    assert code_of(run(*preview, *liz, "--user", "max", "--json")) == (1, "user_not_allowed")
    assert run(*preview, *liz).exit_code == 0
    refused = run("shared", "confirm", str(out), "--yes", *nia)
    assert (refused.exit_code, "was made for the user 'liz'; preview it again as 'nia'" in refused.stderr) == (1, True)
    refused = run(*preview, *nia)
    assert (refused.exit_code, "org:acme is not permitted by the caller's key" in refused.stderr) == (1, True)
    item = run_json("shared", "confirm", str(out), "--yes", *liz)
    for key, found in ((max_, [item["id"]]), (nia, [])):
        assert [one["item"]["id"] for one in run_json("shared", "search", QUESTION, *key)] == found
        assert [one["record"]["id"] for one in run_json("recall", QUESTION, *BOTH, *key)["memories"]] == found
    assert run("shared", "unpublish", item["id"], *nia).exit_code == 1
    assert code_of(run("shared", "unpublish", item["id"], *max_, "--json")) == (1, "scope_missing")
    assert run("shared", "unpublish", item["id"], *liz).exit_code == 0


def test_nobody_is_the_user_of_the_store(run: Run, runbook: Path, tmp_path: Path) -> None:
    publish(run, tmp_path / "preview.json", str(runbook), user="olga")
    for words in (("remember", "x"), ("recall", "x"), ("list",), ("sona", "status"), ("shared", "published")):
        refused = run(*words, "--user", SHARED_USER, "--json")
        assert code_of(refused) == (1, "invalid_input"), words
        assert "reserved" in refused.stderr
    assert code_of(run("forget", "--user-all", "--yes", "--user", SHARED_USER, "--json")) == (1, "invalid_input")
    assert SHARED_USER not in run("recall", "x", "--user", "olg").stderr


def test_upkeep_of_all_users_goes_on_beside_what_they_share(
    run: Run, run_json: RunJson, data_dir: Path, runbook: Path, tmp_path: Path
) -> None:
    run("remember", "Lunch is at noon", "--user", "pia")
    publish(run, tmp_path / "preview.json", str(runbook), user="pia")
    expected = set(known_users(data_dir))
    assert SHARED_USER in expected
    assert set(run_json("compact")["users"]) == expected
    assert set(run_json("rebuild")["users"]) == expected
    assert run_json("rebuild", "--vectors")["users"].keys() == expected
    assert run_json("shared", "search", QUESTION, "--user", "quinn")


def test_an_erased_user_takes_along_what_was_shared(
    run: Run, run_json: RunJson, data_dir: Path, runbook: Path, tmp_path: Path
) -> None:
    publish(run, tmp_path / "preview.json", str(runbook), "--tag", "of-rob", user="rob")
    other = publish(run, tmp_path / "preview.json", "--title", TITLE, "--summary", "Restart the tunnel", user="sue")
    run("shared", "rate", other["id"], "0.5", "--user", "rob")
    offered = ("--title", "Retry", "--summary", "Retry once", "--offer", "--out", str(tmp_path / "offer.json"))
    run("shared", "preview", *offered, "--user", "rob")
    assert run("shared", "offer", str(tmp_path / "offer.json"), "--yes", "--user", "rob").exit_code == 0
    asked = ("forget", "--user", "rob", "--user-all")
    for _ in range(2):  # a dry run unpublishes nothing
        planned = run_json(*asked, "--dry-run")
        assert [planned[count] for count in ("unpublished", "offers", "ratings")] == [1, 1, 1]
    shown = [line.split() for line in run(*asked, "--dry-run").stdout.splitlines()]
    assert [words for words in shown if words[-1:] == ["1"]][-3:] == [
        ["shared", "items", "1"],
        ["offers", "of", "patterns", "1"],
        ["ratings", "of", "shared", "items", "1"],
    ]
    assert "and 3 shared items, offers and ratings?" in run(*asked).stderr
    assert run_json("shared", "published", "--user", "rob") != []
    receipt = run_json(*asked, "--yes")
    assert receipt["complete"]
    assert [receipt[count] for count in ("unpublished", "offers", "ratings")] == [1, 1, 1]
    assert run_json(*asked, "--dry-run")["ratings"] == 0
    assert run_json("shared", "search", QUESTION, "--tag", "of-rob", "--user", "sue") == []
    assert run_json("shared", "published", "--user", "sue") == [other]
    run("shared", "unpublish", other["id"], "--user", "sue")


def test_on_files_what_was_taken_away_leaves_no_byte(offline: Run, runbook: Path, rules: Path, tmp_path: Path) -> None:
    data_dir, attached = tmp_path / "data", ("--attach", str(rules))
    item = publish(offline, tmp_path / "preview.json", str(runbook), *attached, user="tom", confirm=attached)
    marks = (b"while the VPN is off", b"select = all", b"Tom of the team")
    assert offline("shared", "name", "Tom of the team", "--user", "tom").exit_code == 0

    def kept() -> list[bytes]:
        files = [path.read_bytes() for path in data_dir.rglob("*") if path.is_file()]
        return [mark for mark in marks if any(mark in data for data in files)]

    assert kept() == list(marks)
    assert offline("shared", "unpublish", item["id"], "--user", "tom").exit_code == 0
    assert kept() == [marks[2]]
    shown = offline("forget", "--user", "tom", "--user-all", "--yes")
    assert shown.exit_code == 0
    assert "shared items" not in shown.stdout, "no shared items remain"
    assert kept() == []
    assert not user_folder(data_dir, "tom").exists()
