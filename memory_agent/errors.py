"""Every error this package raises on purpose.

One root; each class has a stable `code` (what clients and documents refer to) and says whether trying again
may help (`retryable`). Arguments are positional and replayed to `Exception.__init__`, because an exception whose
constructor takes keywords arrives from a Ray actor as something `except` cannot catch (measured).
Engine exceptions (LMDB, SQLite, ONNX Runtime, ZeroMQ, Ray) are translated where the engine is imported.
"""

from __future__ import annotations

from typing import ClassVar

from relay import missing_keys


class MemoryAgentError(Exception):
    """Root of all errors of this package."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False


class InvalidInputError(MemoryAgentError):
    """What the caller passed cannot be used; the field is named."""

    code = "invalid_input"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class UnhandledEventError(MemoryAgentError):
    """One event cannot be turned into a memory, now or ever; it belongs in quarantine."""

    code = "unhandled_event"

    def __init__(self, event_id: str, reason: str) -> None:
        super().__init__(event_id, reason)
        self.event_id = event_id
        self.reason = reason

    def __str__(self) -> str:
        return f"event {self.event_id}: {self.reason}"


class SettingsError(MemoryAgentError):
    """A setting is unknown, of the wrong type or out of its bounds."""

    code = "settings"

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        return f"setting {self.setting}: {self.reason}"


class StoreError(MemoryAgentError):
    """The record store failed in a way that ends its use until it is reopened."""

    code = "store"
    retryable = True


class StoreFullError(StoreError):
    """The disk or the memory map is full; what was acknowledged is intact, deleting still works."""

    code = "store_full"

    def __init__(self, path: str, limit_bytes: int) -> None:
        super().__init__(path, limit_bytes)
        self.path = path
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"no room left in {self.path} (limit {self.limit_bytes} bytes)"


class StoreDamagedError(StoreError):
    """A record or the database file does not match its checksum or structure."""

    code = "store_damaged"
    retryable = False


class EncryptionKeyMissingError(StoreError):
    """The key that a user's data is encrypted with is not there: destroyed, or its folder is another one."""

    code = "encryption_key_missing"
    retryable = False

    def __init__(self, user_id: str, folder: str) -> None:
        super().__init__(user_id, folder)
        self.user_id = user_id
        self.folder = folder

    def __str__(self) -> str:
        return missing_keys(self.user_id, self.folder)


class StoreEncryptedError(StoreError):
    """The store is encrypted, and no folder of keys is named."""

    code = "store_encrypted"
    retryable = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is encrypted: name the folder of its key in encryption.keys_folder"


class StoreNotEncryptedError(StoreError):
    """The store is not encrypted, and a folder of keys is named: nothing is mixed."""

    code = "store_not_encrypted"
    retryable = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} is not encrypted, and encryption.keys_folder is set: run memory-agent encrypt, without daemon"
        )


class StoreOwnedElsewhereError(StoreError):
    """Another process owns this user's store."""

    code = "store_owned_elsewhere"

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(path, owner)
        self.path = path
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.path} is in use by {self.owner}"


class FencedError(StoreError):
    """A newer owner has taken this store over; this one must not write any more."""

    code = "fenced"
    retryable = True

    def __init__(self, path: str, own_epoch: int, current_epoch: int) -> None:
        super().__init__(path, own_epoch, current_epoch)
        self.path = path
        self.own_epoch = own_epoch
        self.current_epoch = current_epoch

    def __str__(self) -> str:
        return f"{self.path}: owner epoch {self.own_epoch} was superseded by {self.current_epoch}"


class IndexDamagedError(MemoryAgentError):
    """A derived index does not match its header or checksum; it is rebuilt from the records."""

    code = "index_damaged"
    retryable = True


class BackupDamagedError(MemoryAgentError):
    """A backup is not whole, or not what its manifest says; nothing was restored from it."""

    code = "backup_damaged"


class ModelError(MemoryAgentError):
    """The embedding model cannot be used."""

    code = "model"


class ModelMissingError(ModelError):
    """No model weights were found anywhere; recall stays lexical until they arrive."""

    code = "model_missing"
    retryable = True


class ModelChecksumError(ModelError):
    """A model file is not the one that is expected; it is refused."""

    code = "model_checksum"

    def __init__(self, path: str, expected_sha256: str, actual_sha256: str) -> None:
        super().__init__(path, expected_sha256, actual_sha256)
        self.path = path
        self.expected_sha256 = expected_sha256
        self.actual_sha256 = actual_sha256

    def __str__(self) -> str:
        return f"{self.path}: SHA-256 is {self.actual_sha256}, expected {self.expected_sha256}; refused"


class EmbedderUnavailableError(ModelError):
    """The embedder did not answer in time."""

    code = "embedder_unavailable"
    retryable = True


class UnavailableError(MemoryAgentError):
    """A part of the daemon cannot be reached now."""

    code = "unavailable"
    retryable = True


class HostDiedError(UnavailableError):
    """A user's host process ended while it was asked; what it was asked may or may not have happened."""

    code = "host_died"


class DeadlineExceededError(MemoryAgentError):
    """The answer did not come before the deadline."""

    code = "deadline_exceeded"
    retryable = True


class DaemonRunningError(MemoryAgentError):
    """Another daemon already serves this data folder."""

    code = "daemon_running"


class UnauthorizedError(MemoryAgentError):
    """The request shows no key that the daemon knows, or one that was revoked."""

    code = "unauthorized"


class ScopeMissingError(MemoryAgentError):
    """The key is not for this kind of request."""

    code = "scope_missing"

    def __init__(self, scope: str, key_id: str = "") -> None:
        super().__init__(scope, key_id)
        self.scope = scope
        self.key_id = key_id

    def __str__(self) -> str:
        return (
            f"the key {self.key_id} has no scope {self.scope}" if self.key_id else f"the key has no scope {self.scope}"
        )


class UserNotAllowedError(InvalidInputError):
    """The request names a user that the key is not for; whether there is such a user is not told."""

    code = "user_not_allowed"


class UnknownMethodError(MemoryAgentError):
    """The request names a method that does not exist."""

    code = "unknown_method"

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"the daemon has no method {self.method}: it is older than this program, or the name is wrong"


class ProtocolError(MemoryAgentError):
    """A message does not have the form that this version of the protocol knows."""

    code = "protocol"


def _family(root: type[MemoryAgentError]) -> list[type[MemoryAgentError]]:
    return [root, *(error for child in root.__subclasses__() for error in _family(child))]


ERRORS: dict[str, type[MemoryAgentError]] = {error.code: error for error in reversed(_family(MemoryAgentError))}
"""Every error by its code, so that one raised in another process is raised here as itself."""
