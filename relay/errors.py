"""The errors of the bus, and the base classes of all errors.

Each class has a stable `code`, which is used in acks, replies and documents; it is `retryable` if the same call may
succeed later. A class with fields is a dataclass with a message `template`; a class without fields takes the message
itself. All arguments are plain values in `args`, so another process can rebuild an error from its code and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar


class CodedError(Exception):
    """Base class of the errors of the bus and the memory."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = ""
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, name) for name in self.__match_args__))  # including default values

    def __str__(self) -> str:
        return self.template.format_map(vars(self)) if self.template else super().__str__()


_Root = TypeVar("_Root", bound=CodedError)


def by_code(root: type[_Root]) -> dict[str, type[_Root]]:
    """Return `root` and every subclass defined so far, by code, parents first."""
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= by_code(child)
    return found


class RelayError(CodedError):
    """Base class of all errors of the bus."""

    code = "relay"


class MemoryAgentError(CodedError):
    """Base class of all errors of the memory and its daemon.

    Declared here because `access` and `net` raise some of its subclasses.
    """

    code = "internal"


@dataclass(eq=False, repr=False)
class InvalidInputError(MemoryAgentError):
    """An argument is invalid; the message names it."""

    code = "invalid_input"
    template = "{field}: {reason}"

    field: str
    reason: str


@dataclass(eq=False, repr=False)
class SettingsError(MemoryAgentError):
    """A setting is unknown, of the wrong type or out of bounds."""

    code = "settings"
    template = "setting {setting}: {reason}"

    setting: str
    reason: str


class UnavailableError(MemoryAgentError):
    """A part of the daemon is temporarily unreachable."""

    code = "unavailable"
    retryable = True


@dataclass(eq=False, repr=False)
class ConnectionLostError(UnavailableError):
    """The connection ended before the reply arrived. The request may have taken effect."""

    code = "connection_lost"
    template = "the connection to {endpoint} ended before the reply arrived; {outcome}"

    endpoint: str
    outcome: str = "the request may have taken effect"


class DeadlineExceededError(MemoryAgentError):
    """No reply arrived before the deadline."""

    code = "deadline_exceeded"
    retryable = True


class ProtocolError(RelayError, MemoryAgentError):
    """A message does not conform to this version of the protocol."""

    code = "protocol"


class UnauthorizedError(RelayError, MemoryAgentError):
    """The message carries no key, an unknown key, or a revoked key."""

    code = "unauthorized"


@dataclass(eq=False, repr=False)
class ScopeMissingError(RelayError, MemoryAgentError):
    """The key does not have the scope that this kind of request requires."""

    code = "scope_missing"

    scope: str
    key_id: str = ""

    def __str__(self) -> str:
        key = f"the key {self.key_id}" if self.key_id else "the key"
        return f"{key} does not have the scope {self.scope} (keys create --scope {self.scope})"


@dataclass(eq=False, repr=False)
class MalformedEventError(RelayError):
    """The bytes or fields are not a valid event; the message names the invalid field."""

    code = "malformed_event"
    template = "{field}: {reason}"

    field: str
    reason: str


class EventTooLargeError(MalformedEventError):
    """The event is larger than the settings allow."""

    code = "event_too_large"


class UserNotAllowedError(MalformedEventError, InvalidInputError):
    """The event or request names a user that the key does not permit. Does not reveal whether that user exists."""

    code = "user_not_allowed"


@dataclass(eq=False, repr=False)
class KeyFileError(RelayError):
    """A key cannot be created or revoked, or the key file is unusable."""

    code = "key_file"
    template = "{what}: {reason}"

    what: str
    reason: str


@dataclass(eq=False, repr=False)
class EncryptionKeyMissingError(RelayError):
    """The key of a user's encrypted data is missing: it was destroyed, or is in a different keys folder."""

    code = "encryption_key_missing"

    user_id: str
    folder: str

    def __str__(self) -> str:
        if self.user_id == "system":
            return (
                f"{self.folder} does not contain the encryption keys of this data folder: is the right keys folder "
                "mounted there? If they were destroyed, the data cannot be recovered: start with a new data folder"
            )
        return (
            f"{self.folder} does not contain the encryption key of user {self.user_id}: is the right keys folder "
            "mounted there? Erase the remaining data only if the key was destroyed and the data cannot be recovered: "
            f"memory-agent forget --user {self.user_id} --user-all"
        )


@dataclass(eq=False, repr=False)
class EncryptionMismatchError(RelayError):
    """The folder is encrypted but no keys folder is set, or a keys folder is set but the folder is not encrypted."""

    code = "encryption_mismatch"

    path: str
    is_encrypted: bool

    def __str__(self) -> str:
        if self.is_encrypted:
            return f"{self.path} is encrypted: set encryption.keys_folder to the folder that contains its keys"
        return f"{self.path} is not encrypted: run `memory-agent encrypt`, or leave encryption.keys_folder empty"


class UndecipherableError(RelayError):
    """The bytes were encrypted with a different key or for a different purpose, or are damaged."""

    code = "undecipherable"
    template = "encrypted with a different key, or damaged"


@dataclass(eq=False, repr=False)
class RelaySettingsError(RelayError):
    """A setting is unknown, of the wrong type or out of bounds."""

    code = "relay_settings"
    template = "setting {setting}: {reason}"

    setting: str
    reason: str


class JournalError(RelayError):
    """The journal failed; nothing more is acknowledged until it is reopened."""

    code = "journal"
    retryable = True


class JournalPausedError(JournalError):
    """A temporary condition prevented the write; intake retries, and reads continue."""

    code = "journal_paused"


@dataclass(eq=False, repr=False)
class KeysUnavailableError(JournalPausedError):
    """The users' encryption keys can be neither read nor created; nothing was written."""

    code = "keys_unavailable"
    template = "encryption keys: {reason}"

    reason: str


@dataclass(eq=False, repr=False)
class JournalFullError(JournalPausedError):
    """The disk or the memory map is full. Nothing was written; reads continue, and acknowledged events are intact."""

    code = "journal_full"
    template = "no space left in {path}: the limit of {limit_bytes} bytes is reached, or the disk is full"

    path: str
    limit_bytes: int


class CopyUnavailableError(JournalPausedError):
    """The copy of the journal cannot be written, so nothing is acknowledged."""

    code = "copy_unavailable"


class JournalSupersededError(JournalError):
    """Another machine has taken over the copy of this journal."""

    code = "journal_superseded"
    retryable = False


class JournalDamagedError(JournalError):
    """The structure of the file is damaged. Everything read so far was verified; restore the rest from a backup."""

    code = "journal_damaged"
    retryable = False


@dataclass(eq=False, repr=False)
class EntryDamagedError(JournalDamagedError):
    """One entry does not match its checksum; other entries are not affected."""

    code = "entry_damaged"
    template = "{path}: entry {seq} does not match its checksum"

    path: str
    seq: int


@dataclass(eq=False, repr=False)
class JournalInUseError(JournalError):
    """Another process has this journal open for writing."""

    code = "journal_in_use"
    template = "{path} is in use by {owner}"

    path: str
    owner: str


class CursorError(RelayError):
    """The consumer's name is invalid, or its cursor would move past the end of the journal."""

    code = "cursor"


@dataclass(eq=False, repr=False)
class QuarantineEntryError(RelayError):
    """The quarantine has no such entry, or the relay cannot retry it."""

    code = "quarantine_entry"
    template = "quarantine entry {entry_id}: {reason}"

    entry_id: int
    reason: str


class SequenceGapError(RelayError):
    """Earlier events of this producer are missing; the publisher resends from the relay's position."""

    code = "sequence_gap"
    retryable = True


@dataclass(eq=False, repr=False)
class ConsumerBehindError(RelayError):
    """A consumer has too many unread events; nothing was written, and the publisher retries."""

    code = "consumer_behind"
    retryable = True
    template = "consumer {consumer} has {lag} unread events; at most {limit} are allowed"

    consumer: str
    lag: int
    limit: int


class ProducerSupersededError(RelayError):
    """A newer publisher uses the same producer id; this publisher must stop."""

    code = "producer_superseded"


class RelayUnavailableError(RelayError):
    """The relay did not answer in time, or an endpoint is unusable."""

    code = "relay_unavailable"
    retryable = True


@dataclass(eq=False, repr=False)
class SpoolFullError(RelayError):
    """The relay is unreachable and the spool is full; the event was not accepted. Publish it again later."""

    code = "spool_full"
    retryable = True
    template = "the relay is unreachable and the spool {path} is full (limit {limit_bytes} bytes)"

    path: str
    limit_bytes: int


ERRORS: dict[str, type[RelayError]] = by_code(RelayError)  # every error of the bus, by code


def rebuild(code: str, arguments: Sequence[Any]) -> RelayError:
    """Return the error with this code and these arguments, as sent by another process."""
    try:
        return ERRORS.get(code, RelayError)(*arguments)
    except TypeError:
        return RelayError(code, *arguments)
