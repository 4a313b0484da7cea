"""Backups, checks, encryption, export and retention of shared items."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sharing_followers import Followers
from sharing_world import UNLIMITED, World
from test_publish_log import changes_in

from memory_agent.care import (
    Imported,
    Restored,
    encrypt_folder,
    erase,
    erase_user,
    export_user,
    import_user,
    make_backup,
    replay_user,
    restore_all,
    restore_user,
    verify_folder,
)
from memory_agent.embedders import Embedder
from memory_agent.erasure.request import Selection
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge import Knowledge
from memory_agent.knowledge.pseudonyms import FIGURES, NAME, PARTS, place_of
from memory_agent.records.shared import GlobalRecord
from memory_agent.records.shared_requests import Caller, ForgetUser
from memory_agent.settings import RetentionRule, RetentionSettings, Settings
from memory_agent.storage.batch import Batch
from relay import SHARED_USER, EncryptionSettings

QUESTION = "what does staging need?"
KEPT = "Staging needs the VPN: connect to it before a deploy"
GONE = "The quokka of staging needs a permit"
RULES = RetentionSettings(rules=(RetentionRule(name="everything", age_s=1.0),), interval_s=0.1)


def now() -> datetime:
    return datetime.now(UTC)


def quiet(*_: object) -> None:
    return None


@pytest.fixture
def items(world: World) -> dict[str, GlobalRecord]:
    """Three users, each with one item and its file. Two of them have chosen names. The item `kept` has ratings."""
    world.user("ann").shared.set_name("Ann of the platform team")
    world.user("quokka-cas").shared.set_name("Quokka Cas")
    found = {
        "kept": world.published("ann", KEPT, data=b"[the rules]" * 1_000),
        "gone": world.published("ben", GONE, data=b"[quokka permit]" * 1_000, tags=["quokkatag"]),
        "of cas": world.published("quokka-cas", "Another quokka waits at staging", data=b"[quokka]"),
    }
    world.user("quokka-cas").shared.rate(found["kept"].id, 1.0)
    world.user("ben").shared.rate(found["kept"].id, 0.0)
    return found


def contributors(world: World, item: GlobalRecord) -> int:
    """Return the number of users who contribute to an item's figures."""
    with world.shared._archive.store.snapshot() as snapshot:
        return len(snapshot.blobs(place_of(snapshot, PARTS, item.id)))


def backup_of(world: World, name: str = "backup") -> Path:
    backup = world.data_dir.with_name(name)
    with world.closed():
        make_backup(world.data_dir, backup, world.settings, now(), quiet)
    return backup


Restore = Callable[[World, Path], Restored]


def everything(world: World, backup: Path) -> Restored:
    return restore_all(backup, world.data_dir, world.settings, now(), quiet, replace=True)


def the_store(world: World, backup: Path) -> Restored:
    return restore_user(backup, world.data_dir, SHARED_USER, world.settings, now(), quiet, replace=True)


def test_a_backup_restores_items_files_names_and_authors_in_another_folder(
    world: World, items: dict[str, GlobalRecord], tmp_path: Path, embedder: Embedder
) -> None:
    backup = backup_of(world)
    with World(tmp_path / "elsewhere", embedder) as other:
        other.close()
        shutil.rmtree(other.data_dir)
        everything(other, backup)
        other.open()
        assert other.found("dot", QUESTION) == world.found("dot", QUESTION)
        assert other.user("dot").shared.attachment(items["kept"].id).data == b"[the rules]" * 1_000
        assert other.found("dot", QUESTION)[items["kept"].id].item.author == items["kept"].author
        assert items["kept"].author.startswith("Ann of the platform team #")
        assert contributors(other, items["kept"]) == 2
        assert other.user("ann").shared.published() == [items["kept"]]
        assert not other.user("ann").shared.unpublish(items["gone"].id).found
        assert other.user("ben").shared.unpublish(items["gone"].id).found


@pytest.mark.parametrize("restore", [everything, the_store])
def test_a_restore_brings_back_no_removed_item(world: World, items: dict[str, GlobalRecord], restore: Restore) -> None:
    backup = backup_of(world)
    again = world.user("ben").shared.preview(
        "Again", GONE, item_id=items["gone"].id, version="2", access_policy="public"
    )
    assert world.user("ben").shared.unpublish(items["gone"].id).found
    world.close()
    assert erase_user(world.data_dir, world.settings, "quokka-cas", now()).unpublished == 1
    restored = restore(world, backup)
    assert restored.erased_again[SHARED_USER] == (1 if restore is everything else 2)  # the erased user had one rating
    data = world.bytes_of_the_store()
    for trace in (b"uokka", items["gone"].id.encode(), items["of cas"].id.encode(), items["of cas"].author_id.encode()):
        assert trace not in data, trace
    assert KEPT.encode() in data
    world.open()
    assert world.found("dot", QUESTION).keys() == {items["kept"].id}
    assert contributors(world, items["kept"]) == 1
    assert world.user("dot").shared.attachment(items["kept"].id).data == b"[the rules]" * 1_000
    assert items["of cas"].author.startswith("Quokka Cas #")
    with pytest.raises(InvalidInputError, match="not a shared item"):
        world.user("dot").shared.attachment(items["gone"].id)
    with pytest.raises(InvalidInputError, match="unpublished"):
        world.user("ben").shared.confirm(again)


def test_a_user_who_returned_after_an_erasure_has_the_same_pseudonym_elsewhere(
    world: World, tmp_path: Path, embedder: Embedder
) -> None:
    """The target folder's history does not contain the erasure of the former pseudonym."""
    world.published("ann", KEPT)
    world.shared.ask(Caller(user_id="ann"), ForgetUser())
    item = world.published("ann", KEPT)
    backup = backup_of(world)
    with World(tmp_path / "elsewhere", embedder) as other:
        with other.closed():
            shutil.rmtree(other.data_dir)
            everything(other, backup)
        assert [one.id for one in other.user("ann").shared.published()] == [item.id]
        assert other.user("ann").shared.unpublish(item.id).found


def test_a_restore_after_which_the_user_returned_keeps_both_apart(world: World, items: dict[str, GlobalRecord]) -> None:
    backup = backup_of(world)
    world.shared.ask(Caller(user_id="quokka-cas"), ForgetUser())
    second = world.published("quokka-cas", "Back with another quokka")
    later = backup_of(world, "later")
    world.close()
    everything(world, backup)
    world.open()
    assert world.found("dot", QUESTION).keys() == {items["kept"].id, items["gone"].id}
    world.close()
    everything(world, later)
    world.open()
    assert world.found("dot", QUESTION).keys() == {items["kept"].id, items["gone"].id, second.id}
    assert [one.id for one in world.user("quokka-cas").shared.published()] == [second.id]


def test_the_next_opening_deletes_blobs_without_an_item(world: World, items: dict[str, GlobalRecord]) -> None:
    """The store is restored by copying its files; this folder's history is kept."""
    copy = world.data_dir.with_name("copy")
    with world.shared._archive.batch() as batch:
        batch.set_blob("shared:file:" + "0" * 32, b"left over")
    world.close()
    shutil.copytree(world.folder, copy)
    world.open()
    world.user("ben").shared.unpublish(items["gone"].id)
    world.close()
    shutil.rmtree(world.folder)
    shutil.copytree(copy, world.folder)
    world.open()
    assert items["gone"].id not in world.found("dot", QUESTION)
    with world.shared._archive.store.snapshot() as snapshot:
        assert len(snapshot.blobs("shared:file:")) == len(snapshot.blobs(FIGURES)) == 2
    world.shared.expire()
    assert b"permit" not in world.bytes_of_the_store()
    assert b"left over" not in world.bytes_of_the_store()


def test_no_journal_contains_the_text_of_shared_items(world: World) -> None:
    world.published("ann", KEPT)
    world.close()
    with pytest.raises(InvalidInputError, match="are not in the journal"):
        replay_user(world.data_dir, SHARED_USER, world.settings, now(), replace=True)
    world.open()
    assert len(world.found("dot", QUESTION)) == 1


def test_a_receipt_states_that_files_moved_aside_by_a_restore_contain_shared_items(
    world: World, items: dict[str, GlobalRecord]
) -> None:
    backup = backup_of(world)
    world.close()
    restored = the_store(world, backup)
    assert restored.aside is not None
    receipt = erase_user(world.data_dir, world.settings, "quokka-cas", now())
    assert not receipt.complete
    assert Path(restored.aside).name in (receipt.reason or "")
    assert erase(world.data_dir, world.settings, "ann", Selection(session_id="s-1"), now()).complete
    shutil.rmtree(restored.aside)
    assert erase_user(world.data_dir, world.settings, "quokka-cas", now()).complete
    world.open()


def faults(world: World) -> set[tuple[str, str]]:
    with world.closed():
        parts = list(verify_folder(world.data_dir, world.settings, quiet, SHARED_USER))
    return {(one.place, one.fault) for part in parts for one in part.findings}


def changed(change: Callable[[Batch], None]) -> Callable[[Knowledge], None]:
    def do(shared: Knowledge) -> None:
        with shared._archive.batch() as batch:
            change(batch)

    return do


def drop(kind: str) -> Callable[[Batch], None]:
    return lambda batch: [batch.set_blob(name, None) for name in batch.blobs(f"shared:{kind}:")[:1]] and None


def other_bytes(batch: Batch) -> None:
    name = batch.blobs("shared:file:")[0]
    batch.set_blob(name, (batch.blob(name) or b"")[:-1] + b"?")


def other_name(batch: Batch) -> None:
    one, another = batch.blobs(NAME)
    batch.set_blob(one, batch.blob(another))


def no_item(batch: Batch) -> None:
    row, record = next(iter(batch.scan()))
    batch.update(msgspec.structs.replace(record, metadata={"shared": {"author": 7}}))
    assert row


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (drop("file"), "an attachment does not match its item"),
        (other_bytes, "an attachment does not match its item"),
        (drop("standing"), "an item has no figures"),
        (drop("part"), "figures do not match their users' reports"),
        (lambda batch: batch.set_blob("shared:file:" + "0" * 32, b"left"), "a blob belongs to no item"),
        (drop("used"), "an author's usage does not match the items"),
        (other_name, "a name is stored for the wrong user"),
        (no_item, "an item has no description"),
    ],
)
def test_verify_finds_an_incomplete_item(
    world: World, items: dict[str, GlobalRecord], change: Callable[[Batch], None], fault: str
) -> None:
    assert faults(world) == set()
    changed(change)(world.shared)
    assert ("items", fault) in faults(world)
    with world.closed():
        made = make_backup(world.data_dir, world.data_dir.with_name("b"), world.settings, now(), quiet)
    assert made.left_out == (SHARED_USER,)


@pytest.mark.parametrize("trace", [KEPT.encode(), b"[the rules][the rules]", b"Ann of the platform"])
def test_verify_finds_a_flipped_bit_of_an_item(world: World, items: dict[str, GlobalRecord], trace: bytes) -> None:
    world.close()
    file = world.folder / "records" / "data.mdb"
    data = bytearray(file.read_bytes())
    assert trace in data
    place = -1
    while (place := data.find(trace, place + 1)) >= 0:
        data[place + 3] ^= 1
    file.write_bytes(data)
    found = list(verify_folder(world.data_dir, world.settings, quiet, SHARED_USER))
    assert found[0].findings
    shutil.rmtree(world.folder)
    world.open()


def test_an_encrypted_folder_shows_no_shared_content(
    world: World, items: dict[str, GlobalRecord], tmp_path: Path, embedder: Embedder
) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    settings = Settings(shared=UNLIMITED, encryption=EncryptionSettings(keys_folder=str(tmp_path / "keys")))
    before = {id_: found.item for id_, found in world.found("dot", QUESTION).items()}
    world.close()
    encrypted = encrypt_folder(world.data_dir, settings, now(), quiet)
    assert SHARED_USER in {one.user_id for one in encrypted.users}
    data = world.bytes_of_the_store()
    traces = [KEPT, "uokka", "the rules", "platform", items["kept"].author_id, items["kept"].id, items["kept"].id[10:]]
    assert [trace for trace in traces if trace.encode() in data] == []
    with World(world.data_dir, embedder, settings) as again:
        assert {id_: found.item for id_, found in again.found("dot", QUESTION).items()} == before
        assert again.user("dot").shared.attachment(items["kept"].id).data == b"[the rules]" * 1_000
        assert again.user("ben").shared.unpublish(items["gone"].id).found
        again.shared.expire()
        assert faults(again) == set()
    world.settings = settings
    world.open()


def test_retention_rules_do_not_apply_to_shared_items(world: World, items: dict[str, GlobalRecord]) -> None:
    settings = msgspec.structs.replace(world.settings, retention=RULES)
    later = now() + timedelta(days=400)
    world.close()
    world.settings = settings
    world.open()
    world.shared.expire(later)
    world.shared.erasure.age(later)
    world.shared.erasure.erase_expired(now=later)
    world.close()
    erase(world.data_dir, settings, SHARED_USER, Selection(expired=True), later)
    world.open()
    assert len(world.found("dot", QUESTION)) == 3


def test_a_restore_of_the_store_alone_leaves_no_event_of_what_was_taken_away_since(world: World) -> None:
    backup, followers = world.data_dir.with_name("backup"), Followers(world, {"ben": ()})
    kept = world.published("ann", "Staging needs the VPN")
    with world.closed():
        make_backup(world.data_dir, backup, world.settings, now(), quiet)
    gone = world.published("ann", "Staging needs a permit")
    followers.announce()
    world.user("ann").shared.unpublish(gone.id)  # the backup's log is restored before the announcement
    assert gone.id.encode() in followers.bytes_of_the_journal()
    with world.closed():
        restore_user(backup, world.data_dir, SHARED_USER, world.settings, now(), quiet, replace=True)
        assert gone.id.encode() not in followers.bytes_of_the_journal()
    followers.announce()
    assert [change.item_id for change in changes_in(followers.entries()["ben"])] == [kept.id]


def test_an_item_erased_from_the_files_disappears_with_its_attachment(
    world: World, items: dict[str, GlobalRecord]
) -> None:
    world.close()
    receipt = erase(world.data_dir, world.settings, SHARED_USER, Selection(ids=(items["gone"].id,)), now())
    assert (receipt.memories, receipt.complete) == (1, True)
    assert b"permit" not in world.bytes_of_the_store()
    world.open()
    assert world.found("dot", QUESTION).keys() == {items["kept"].id, items["of cas"].id}
    assert faults(world) == set()


def exported(world: World, user_id: str = SHARED_USER) -> list[bytes]:
    with world.closed():
        return list(export_user(world.data_dir, world.settings, user_id, quiet))


def imported(world: World, lines: list[bytes], user_id: str = SHARED_USER) -> Imported:
    with world.closed():
        return import_user(io.BytesIO(b"\n".join(lines)), world.data_dir, world.settings, user_id, now(), quiet)


def without_figures(world: World) -> dict[str, GlobalRecord]:
    found = world.found("dot", QUESTION, "org:acme")
    return {id_: msgspec.structs.replace(one.item, author="") for id_, one in found.items()}


def test_an_export_imports_items_as_they_were_published(
    world: World, items: dict[str, GlobalRecord], tmp_path: Path, embedder: Embedder
) -> None:
    world.published("ann", "Of acme alone", "org:acme", access_policy="org:acme", body="\nlong", reference="a/b")
    lines = exported(world)
    said = b"".join(lines)
    assert said.count(b'"attachment":"') == 3
    with world.shared._archive.store.snapshot() as snapshot:
        secret = snapshot.blob("shared:secret") or b""
    for private in (b"platform", b"quokka-cas", secret, base64.b64encode(secret), secret.hex().encode()):
        assert private not in said
    with World(tmp_path / "elsewhere", embedder) as other:
        first, again = imported(other, lines), imported(other, lines)
        assert (first.taken, first.known, again.taken, again.known) == (4, 0, 0, 4)
        assert without_figures(other) == without_figures(world)
        assert other.user("dot").shared.attachment(items["kept"].id).data == b"[the rules]" * 1_000
        assert len(other.found("dot", QUESTION)) == 3
        assert contributors(other, items["kept"]) == 0
        other.user("dot").shared.rate(items["kept"].id, 1.0)
        assert faults(other) == set()
        assert other.user("ann").shared.published() == []  # "ann" may be a different user in this folder
        assert not other.user("ann").shared.unpublish(items["kept"].id).found
        assert other.user("root", is_admin=True).shared.unpublish(items["kept"].id).found


def test_an_import_does_not_restore_unpublished_items(world: World, items: dict[str, GlobalRecord]) -> None:
    lines = exported(world)
    world.user("ben").shared.unpublish(items["gone"].id)
    world.shared.ask(Caller(user_id="quokka-cas"), ForgetUser())
    found = imported(world, lines)
    assert (found.taken, found.known, found.unpublished) == (0, 1, 2)
    assert world.found("dot", QUESTION).keys() == {items["kept"].id}


def edited(line: bytes, **fields: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(line) | fields)


def of_record(line: bytes, **fields: object) -> bytes:
    return edited(line, record=msgspec.json.decode(line)["record"] | fields)


def of_item(line: bytes, **fields: object) -> bytes:
    record = msgspec.json.decode(line)["record"]
    return of_record(line, metadata={"shared": record["metadata"]["shared"] | fields})


@pytest.mark.parametrize(
    "change",
    [
        lambda line: edited(line, attachment=None),
        lambda line: edited(line, attachment=base64.b64encode(b"[other]").decode()),
        lambda line: edited(line, attachment="no base64!"),
        lambda line: edited(line, events=["e-1"]),
        lambda line: edited(line, record=None),
        lambda line: of_record(line, metadata={}),
        lambda line: of_record(line, metadata={"shared": {"author": 1}}),
        lambda line: of_record(line, title="Another title"),
        lambda line: of_record(line, text="Other words"),
        lambda line: of_record(line, session_id="s-1"),
        lambda line: of_record(line, id="not-an-item"),
        lambda line: of_item(line, policy="everybody"),
        lambda line: of_item(line, policy="org:acme"),
        lambda line: of_item(line, author="ann"),
        lambda line: of_item(line, summary_chars=-1),
    ],
)
def test_a_line_that_differs_from_a_published_item_imports_nothing(
    world: World, items: dict[str, GlobalRecord], tmp_path: Path, embedder: Embedder, change: Callable[[bytes], bytes]
) -> None:
    head, first, *others = exported(world)
    with World(tmp_path / "elsewhere", embedder) as other:
        with pytest.raises(InvalidInputError, match=r"line 2"):
            imported(other, [head, change(first), *others])
        assert other.found("dot", QUESTION, "org:acme") == {}


def test_memories_and_items_are_not_imported_as_each_other(world: World, items: dict[str, GlobalRecord]) -> None:
    world.user("ann").remember("Of ann alone")
    with pytest.raises(InvalidInputError, match="import it with --user shared-knowledge"):
        imported(world, exported(world), "ann")
    memories = exported(world, "ann")
    with pytest.raises(InvalidInputError, match="starts an export of a user's memories"):
        imported(world, memories)
    with pytest.raises(InvalidInputError, match="attachment"):
        imported(world, [memories[0], edited(memories[1], attachment="AAAA")], "ben")
