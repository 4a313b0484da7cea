"""Paths and endpoints below the data folder: all that a client on the same machine needs.

DATA/daemon.lock            held while a daemon serves this folder: its process id and version
DATA/token                  the key `local`, for clients on this machine (0600)
DATA/keys.json curve.json   the other keys, and the key pair that identifies the daemon to remote clients (0600)
DATA/cluster/               the secrets of a daemon that other machines may join (0700)
DATA/encryption             the id of the key of `system`, which identifies the key folder
DATA/journal/ owners/ users/
DATA/run/                   sockets (0700): gateway.sock relay.sock relay-feed.sock embedder.sock,
                            and for each host, host-N.sock (requests) and bulk-N.sock (batches); absent-users/;
                            http: the address of the HTTP server while it runs; http-port: its last port;
                            page-sessions: the sessions of browsers (0600);
                            agents/: the current session of each coding agent's process (0700);
                            start.lock: held while a client starts a daemon; start: how to start it (0600);
                            calls.lock: held by local calls, so that an idle daemon does not stop during a call
DATA/hooks/                 events of hooks that no daemon has acknowledged yet (0700), in subfolders for other daemons
                            and for keys other than those of the data folder
DATA/copies.jsonl           backups and exports of this folder, which receipts of erasures name (0600)
DATA/daemon.log             the log of a daemon that a client started; daemon.log.1 to .3 are earlier logs

Coding agents' hooks import this module at startup, so slow imports are deferred to the functions that need them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

CONSUMER = "memory"
"""The daemon's consumer name in the journal."""
DATA_DIR_VARIABLE = "MEMORY_AGENT_DATA_DIR"
CONFIG_VARIABLE = "MEMORY_AGENT_CONFIG"
TOKEN_VARIABLE = "MEMORY_AGENT_TOKEN"
KEY_FILE_VARIABLE = "MEMORY_AGENT_KEY_FILE"
_GLANCE_S = 0.5
_GLANCE_PAUSE_S = 0.002
ANOTHER_FOLDER = f"choose another data folder with --data-dir or {DATA_DIR_VARIABLE}"


def default_data_dir() -> Path:
    """Return $MEMORY_AGENT_DATA_DIR as an absolute path, or the platform's data folder if it is not set."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    return Path(named).expanduser().absolute() if named else platform_data_dir()


def platform_data_dir() -> Path:
    import platformdirs  # imported late, because it takes 10 ms and most clients set the folder

    return Path(platformdirs.user_data_dir("memory-agent", appauthor=False))


def connections_dir() -> Path:
    """Return the folder in which `connect` records its additions to clients' settings files, and keeps copies of these
    files."""
    import platformdirs  # imported late, as above

    return Path(platformdirs.user_state_dir("memory-agent", appauthor=False)) / "connections"


class Holder(NamedTuple):
    """The process that holds a folder's lock. `version` is empty for a command such as `restore`."""

    pid: int
    version: str


class LocalCall:
    """As long as this object exists, an idle daemon that a client started does not stop."""

    def __init__(self, lock: int | None) -> None:
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            os.close(self._lock)


class Layout:
    """The paths and endpoints of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().absolute()
        self.run = self.data_dir / "run"
        self.absent_users = self.run / "absent-users"
        self.owners = self.data_dir / "owners"
        self.journal = self.data_dir / "journal"
        self.cluster = self.data_dir / "cluster"
        self.lock = self.data_dir / "daemon.lock"
        self.node_marker = self.data_dir / "node"
        self.hooks = self.data_dir / "hooks"
        self.log = self.data_dir / "daemon.log"
        self._token = self.data_dir / "token"
        self.http = self.run / "http"
        self.http_port = self.run / "http-port"
        self.page_sessions = self.run / "page-sessions"
        self.start_lock = self.run / "start.lock"
        self.start = self.run / "start"
        self.calls_lock = self.run / "calls.lock"
        self.agents = self.run / "agents"

    def create(self) -> None:
        """Create the folders, private to this user. Raises `SettingsError`."""
        try:
            for folder in (self.data_dir, self.run):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            from memory_agent.errors import SettingsError

            reason = f"{self.data_dir} cannot be used: {error.strerror}; {ANOTHER_FOLDER}"
            raise SettingsError("data_dir", reason) from error

    @property
    def gateway(self) -> str:
        """The daemon's endpoint for clients."""
        from relay.access import ipc_endpoint

        return ipc_endpoint(self.run / "gateway.sock")

    @property
    def is_encrypted(self) -> bool:
        """Whether this folder is encrypted at rest."""
        return (self.data_dir / "encryption").exists()

    @property
    def embedder(self) -> str:
        """The embedder's endpoint for hosts."""
        from relay.access import ipc_endpoint

        return ipc_endpoint(self.run / "embedder.sock")

    def token(self) -> str:
        """Return the daemon's token, or an empty string before its first start."""
        try:
            return self._token.read_bytes().decode().strip()
        except FileNotFoundError:
            return ""

    def make_token(self) -> str:
        """Return the token of the key `local`, and create the key on the first start. Raises `KeyFileError`."""
        from relay import ensure_local_key  # imported late, as below, because a client on this machine needs only paths

        return ensure_local_key(self.data_dir)

    def clear_sockets(self) -> None:
        """Remove the socket files and the HTTP address left by earlier processes."""
        for socket in (*self.run.glob("*.sock"), self.http):
            socket.unlink(missing_ok=True)

    def daemon_runs(self) -> bool:
        """Whether a daemon is serving this folder now."""
        try:
            lock = os.open(self.lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @property
    def holder(self) -> Holder | None:
        """The process that holds this folder's lock, or None. The lock file may still name the former holder."""
        pid, _, version = (self.lock.read_text() if self.daemon_runs() else "").strip().partition(" ")
        return Holder(int(pid), version) if pid else None

    def claim_start(self) -> TextIO | None:
        """Return a locked file to keep open while a daemon starts, or None if another client is starting a daemon.
        Raises `SettingsError`.
        """
        self.create()
        file = open(os.open(self.start_lock, os.O_RDWR | os.O_CREAT, 0o600), "w")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def call(self) -> LocalCall | None:
        """Return an object that keeps an idle daemon from stopping, or None if a daemon is already stopping."""
        try:
            lock = os.open(self.calls_lock, os.O_RDONLY)
        except FileNotFoundError:  # no daemon has served this folder yet
            return LocalCall(None)
        call = LocalCall(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return call

    @property
    def served_for_s(self) -> float:
        """Wall-clock seconds since a daemon locked this folder."""
        return max(0.0, time.time() - self.lock.stat().st_mtime)

    def finish_restore(self) -> None:
        """Finish an interrupted restore. Raises `DaemonRunningError`."""
        from memory_agent.storage.folder_moves import has_unfinished_moves

        if has_unfinished_moves(self.data_dir):
            with self.hold(serves=False):
                pass

    @contextmanager
    def hold(self, *, serves: bool = True) -> Iterator[None]:
        """Finish an interrupted restore, then hold this folder's lock as the folder's only daemon.

        `serves=False` is for a command that `memory-agent stop` must not stop. Raises `DaemonRunningError` with the
        process that holds the lock.
        """
        from memory_agent.storage.folder_moves import finish_moves
        from memory_agent.version import VERSION  # imported late: reads the package's metadata

        with open(self.lock, "a+") as file:
            if not _locked(file):
                file.seek(0)
                pid = file.read().partition(" ")[0].strip() or "unknown"
                from memory_agent.errors import DaemonRunningError

                advice = f"to stop it: memory-agent stop --data-dir {self.data_dir}"
                raise DaemonRunningError(f"a daemon already serves {self.data_dir} (process {pid}); {advice}")
            self.http.unlink(missing_ok=True)  # left by a killed daemon; another program may now use its port
            file.truncate(0)
            file.write(f"{os.getpid()} {VERSION}\n" if serves else f"{os.getpid()}\n")
            file.flush()
            finish_moves(self.data_dir)
            yield


def _locked(file: TextIO) -> bool:
    deadline_s = time.monotonic() + _GLANCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_GLANCE_PAUSE_S)
        else:
            return True
