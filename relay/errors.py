"""Every error the bus raises on purpose.

One root; each class has a stable `code` (what acks, replies and documents refer to) and says whether trying again may
help (`retryable`). Arguments are positional, plain and replayed to `Exception.__init__`, so that an error can be
rebuilt from its code and arguments in another process (`rebuild`). Errors of LMDB, ZeroMQ and SQLite are translated
where the engine is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class RelayError(Exception):
    """Root of all errors of this package."""

    code: ClassVar[str] = "relay"
    retryable: ClassVar[bool] = False


class MalformedEventError(RelayError):
    """What was sent is no event; the field that is wrong is named."""

    code = "malformed_event"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class EventTooLargeError(MalformedEventError):
    """The event has more bytes than the settings allow."""

    code = "event_too_large"


class UserNotAllowedError(MalformedEventError):
    """The event or the request names a user that the key is not for; whether there is such a user is not told."""

    code = "user_not_allowed"


class ScopeMissingError(RelayError):
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


class UnauthorizedError(RelayError):
    """The message carries no key that is known, or one that was revoked."""

    code = "unauthorized"


class KeyFileError(RelayError):
    """A key cannot be made or revoked, or the file that holds the keys cannot be used."""

    code = "key_file"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def missing_keys(user_id: str, folder: str) -> str:
    """Return what to say, and to do, where the key of a user is not in the folder of keys."""
    if user_id == "system":
        return (
            f"{folder} does not hold the encryption keys of this data folder: is the right folder of keys mounted "
            "there? If they were destroyed, nobody can read the data again: begin in another data folder"
        )
    return (
        f"{folder} does not hold the key that the data of user {user_id} is encrypted with: is the right folder of "
        "keys mounted there? Only where the key was destroyed, so that nobody can read the data again, erase the rest: "
        f"memory-agent forget --user {user_id} --user-all"
    )


class EncryptionKeyMissingError(RelayError):
    """The key that a user's data is encrypted with is not there: destroyed, or its folder is another one."""

    code = "encryption_key_missing"

    def __init__(self, user_id: str, folder: str) -> None:
        super().__init__(user_id, folder)
        self.user_id = user_id
        self.folder = folder

    def __str__(self) -> str:
        return missing_keys(self.user_id, self.folder)


class EncryptionMismatchError(RelayError):
    """A folder is encrypted and the settings name no keys, or they name keys and the folder is not encrypted."""

    code = "encryption_mismatch"

    def __init__(self, path: str, is_encrypted: bool) -> None:
        super().__init__(path, is_encrypted)
        self.path = path
        self.is_encrypted = is_encrypted

    def __str__(self) -> str:
        if self.is_encrypted:
            return f"{self.path} is encrypted: set encryption.keys_folder to the folder of its keys"
        return f"{self.path} is not encrypted: run `memory-agent encrypt`, or leave encryption.keys_folder empty"


class UndecipherableError(RelayError):
    """What was encrypted with another key or for another place, or is damaged."""

    code = "undecipherable"

    def __str__(self) -> str:
        return "encrypted with another key, or damaged"


class RelaySettingsError(RelayError):
    """A setting is unknown, of the wrong type or out of its bounds."""

    code = "relay_settings"

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        return f"setting {self.setting}: {self.reason}"


class ProtocolError(RelayError):
    """A message does not have the form that this version of the protocol knows."""

    code = "protocol"


class JournalError(RelayError):
    """The journal failed in a way that ends its use until it is reopened; nothing more is acknowledged."""

    code = "journal"
    retryable = True


class JournalPausedError(JournalError):
    """Nothing was written, for a reason that may pass: it is tried again. Reading goes on."""

    code = "journal_paused"


class KeysUnavailableError(JournalPausedError):
    """The users' encryption keys cannot be read, or none can be made: nothing was written, and nothing unencrypted."""

    code = "keys_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"encryption keys: {self.reason}"


class JournalFullError(JournalPausedError):
    """No room on the disk or in the map: nothing was written, reading goes on, what was acknowledged is intact."""

    code = "journal_full"

    def __init__(self, path: str, limit_bytes: int) -> None:
        super().__init__(path, limit_bytes)
        self.path = path
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"no room left in {self.path} (limit {self.limit_bytes} bytes, or the disk)"


class JournalDamagedError(JournalError):
    """The file's structure is damaged. What has been read so far was checked; the rest needs a backup."""

    code = "journal_damaged"
    retryable = False


class EntryDamagedError(JournalDamagedError):
    """One entry does not match its checksum; the others are not touched by that."""

    code = "entry_damaged"

    def __init__(self, path: str, seq: int) -> None:
        super().__init__(path, seq)
        self.path = path
        self.seq = seq

    def __str__(self) -> str:
        return f"{self.path}: entry {self.seq} does not match its checksum"


class JournalInUseError(JournalError):
    """Another process has this journal open for writing."""

    code = "journal_in_use"

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(path, owner)
        self.path = path
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.path} is in use by {self.owner}"


class CursorError(RelayError):
    """A consumer's name is unusable, or its cursor was moved past the end of the journal."""

    code = "cursor"


class QuarantineEntryError(RelayError):
    """There is no such entry in quarantine, or it is not the relay's to retry."""

    code = "quarantine_entry"

    def __init__(self, entry_id: int, reason: str) -> None:
        super().__init__(entry_id, reason)
        self.entry_id = entry_id
        self.reason = reason

    def __str__(self) -> str:
        return f"quarantine entry {self.entry_id}: {self.reason}"


class SequenceGapError(RelayError):
    """Events of this producer are missing before the ones that came; it sends again from where the relay stands."""

    code = "sequence_gap"
    retryable = True


class ConsumerBehindError(RelayError):
    """A consumer has more unread events than intake may add to: nothing was written, it is tried again later."""

    code = "consumer_behind"
    retryable = True

    def __init__(self, consumer: str, lag: int, limit: int) -> None:
        super().__init__(consumer, lag, limit)
        self.consumer = consumer
        self.lag = lag
        self.limit = limit

    def __str__(self) -> str:
        return f"consumer {self.consumer} has {self.lag} unread events, {self.limit} are allowed"


class ProducerSupersededError(RelayError):
    """A newer publisher uses the same producer id; this one must stop."""

    code = "producer_superseded"


class RelayUnavailableError(RelayError):
    """The relay did not answer in time, or an endpoint cannot be used."""

    code = "relay_unavailable"
    retryable = True


class SpoolFullError(RelayError):
    """The relay is away and the spool has no room: the event was not taken, publish it again later."""

    code = "spool_full"
    retryable = True

    def __init__(self, path: str, limit_bytes: int) -> None:
        super().__init__(path, limit_bytes)
        self.path = path
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"the relay is away and the spool {self.path} is full (limit {self.limit_bytes} bytes)"


def _family(root: type[RelayError]) -> list[type[RelayError]]:
    return [root, *(error for child in root.__subclasses__() for error in _family(child))]


ERRORS: dict[str, type[RelayError]] = {error.code: error for error in _family(RelayError)}
"""Every error by its code."""


def rebuild(code: str, arguments: Sequence[Any]) -> RelayError:
    """Return the error that another process described by its code and arguments."""
    try:
        return ERRORS.get(code, RelayError)(*arguments)
    except TypeError:
        return RelayError(code, *arguments)
