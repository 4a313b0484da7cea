"""Test the use of keys with a real daemon: remote access over CURVE, access for one user, and revocation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import ScopeMissingError, UnauthorizedError, UserNotAllowedError
from relay import Publisher, identity_of, read_key_file

from .conftest import DaemonProcess, invoke

CURVE = "curve+tcp://127.0.0.1:*"


def keys(data_dir: Path, *words: str) -> Any:
    done = invoke("keys", *words, "--json", "--data-dir", str(data_dir))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_one_user_works_over_curve_until_the_key_is_revoked(own_daemon: DaemonProcess, tmp_path: Path) -> None:
    own_daemon.configure(f'daemon.listen=["{CURVE}"]', f'relay.broker.listen=["{CURVE}"]')
    own_daemon.start()
    (gateway,), (relay,) = own_daemon.ready["endpoints"]["listen"], own_daemon.ready["endpoints"]["relay_listen"]
    file = tmp_path / "alice.key"
    keys(own_daemon.data_dir, "create", "alice-laptop", "--user", "alice", "--curve", "--out", str(file))
    with Publisher(relay, identity=identity_of(read_key_file(file))) as publisher:
        publisher.publish({"event_type": "chat.user_msg", "payload": {"text": "the login race needs a mutex"}})
        publisher.publish({"event_type": "chat.user_msg", "user_id": "bob", "payload": {"text": "for bob"}})
        report = publisher.flush()
    assert (report.acked, [one.code for one in report.rejections]) == (1, ["user_not_allowed"])
    with MemoryClient(endpoint=gateway, key_file=file) as alice:
        alice.wait(report.acked_through, 60.0)
        assert [memory.record.text for memory in alice.recall("login race").memories] == [
            "the login race needs a mutex"
        ]
        with pytest.raises(ScopeMissingError):
            alice.status()
        keys(own_daemon.data_dir, "revoke", "alice-laptop")
        with pytest.raises(UnauthorizedError):
            alice.recall("login race")
    refused = pytest.raises(Exception, match="not accept this key")
    with MemoryClient("alice", endpoint=gateway, key_file=file) as late, refused:
        late.recall("login race", deadline_ms=300)
    with MemoryClient("alice", data_dir=own_daemon.data_dir) as owner:  # the owner of the folder needs no key
        assert len(owner.recall("login race").memories) == 1
    own_token = keys(own_daemon.data_dir, "create", "bob", "--user", "bob")["token"]
    with (
        MemoryClient("alice", data_dir=own_daemon.data_dir, token=own_token) as bob,
        pytest.raises(UserNotAllowedError),
    ):
        bob.recall("login race")
