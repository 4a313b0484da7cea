"""The errors of this package. `relay.errors` describes how errors are declared and sent."""

from __future__ import annotations

from dataclasses import dataclass

from relay import errors
from relay.errors import ConnectionLostError as ConnectionLostError
from relay.errors import DeadlineExceededError as DeadlineExceededError
from relay.errors import InvalidInputError as InvalidInputError
from relay.errors import MemoryAgentError as MemoryAgentError
from relay.errors import ProtocolError as ProtocolError
from relay.errors import ScopeMissingError as ScopeMissingError
from relay.errors import SettingsError as SettingsError
from relay.errors import UnauthorizedError as UnauthorizedError
from relay.errors import UnavailableError as UnavailableError
from relay.errors import UserNotAllowedError as UserNotAllowedError
from relay.errors import by_code


@dataclass(eq=False, repr=False)
class UnhandledEventError(MemoryAgentError):
    """An event can never become a memory and must be quarantined."""

    code = "unhandled_event"
    template = "event {event_id}: {reason}"

    event_id: str
    reason: str


@dataclass(eq=False, repr=False)
class RateLimitedError(MemoryAgentError):
    """This user searches shared items more often than the settings allow."""

    code = "rate_limited"
    retryable = True
    template = "too many searches of shared items; retry in {retry_after_ms} ms"

    retry_after_ms: int


@dataclass(eq=False, repr=False)
class QuotaExceededError(MemoryAgentError):
    """The user has reached the maximum number of memories for the user's tier."""

    code = "quota_exceeded"
    template = (
        "{user_id} has reached the limit of {limit} memories for the tier {tier}; "
        "forget some, or choose another tier (quota.users)"
    )

    user_id: str
    limit: int
    tier: str


@dataclass(eq=False, repr=False)
class RunUnknownError(MemoryAgentError):
    """The run has not begun, or was forgotten."""

    code = "run_unknown"
    template = "no such run: {run_id} (mistyped, never begun, or forgotten)"

    run_id: str


@dataclass(eq=False, repr=False)
class RunBegunError(MemoryAgentError):
    """The run has already begun with a different objective or session."""

    code = "run_begun"
    template = "run {run_id} began at {began_at} with a different objective or session; begin a new run with a new id"

    run_id: str
    began_at: str


@dataclass(eq=False, repr=False)
class RunEndedError(MemoryAgentError):
    """The run has ended, so it accepts no further steps and cannot end or begin again."""

    code = "run_ended"
    template = "run {run_id} ended at {ended_at}; revise its quality with feedback, or begin a run with a new id"

    run_id: str
    ended_at: str


class StoreError(MemoryAgentError):
    """The record store failed; it must be reopened."""

    code = "store"
    retryable = True


@dataclass(eq=False, repr=False)
class StoreFullError(StoreError):
    """The disk or the memory map is full. Acknowledged records are intact, and deleting still works."""

    code = "store_full"
    template = "no space left in {path} (limit {limit_bytes} bytes)"

    path: str
    limit_bytes: int


class StoreDamagedError(StoreError):
    """A record or the database file does not match its checksum or structure."""

    code = "store_damaged"
    retryable = False


class EncryptionKeyMissingError(errors.EncryptionKeyMissingError, StoreError):
    """The key of a user's encrypted data is missing: it was destroyed, or is in a different keys folder."""

    code = "encryption_key_missing"
    retryable = False


@dataclass(eq=False, repr=False)
class StoreEncryptedError(StoreError):
    """The store is encrypted, but the settings name no keys folder."""

    code = "store_encrypted"
    retryable = False
    template = "{path} is encrypted: set encryption.keys_folder to the folder that contains its key"

    path: str


@dataclass(eq=False, repr=False)
class StoreNotEncryptedError(StoreError):
    """The store is not encrypted, but the settings name a keys folder."""

    code = "store_not_encrypted"
    retryable = False
    template = (
        "{path} is not encrypted, but encryption.keys_folder is set; stop the daemon and run memory-agent encrypt"
    )

    path: str


@dataclass(eq=False, repr=False)
class StoreOwnedElsewhereError(StoreError):
    """Another process owns this user's store."""

    code = "store_owned_elsewhere"
    template = "{path} is in use by {owner}"

    path: str
    owner: str


@dataclass(eq=False, repr=False)
class FencedError(StoreError):
    """A newer owner has taken over this store; the earlier owner must stop writing."""

    code = "fenced"
    template = "{path}: owner epoch {own_epoch} was superseded by {current_epoch}"

    path: str
    own_epoch: int
    current_epoch: int


class IndexDamagedError(MemoryAgentError):
    """Derived columns do not match their checksum or the change log; they are rebuilt from the records."""

    code = "index_damaged"
    retryable = True


@dataclass(eq=False, repr=False)
class IndexUnavailableError(UnavailableError):
    """The index of a user's vectors does not answer. Nothing is lost: the index catches up later."""

    code = "index_unavailable"
    template = "the index in {engine} is not responding: {reason}"

    engine: str
    reason: str


@dataclass(eq=False, repr=False)
class IndexUnusableError(MemoryAgentError):
    """The index of a user's vectors cannot be used until its database or settings are corrected. Nothing is lost."""

    code = "index_unusable"
    template = "the index in {engine} cannot be used: {reason}; {advice}"

    engine: str
    reason: str
    advice: str


class BackupDamagedError(MemoryAgentError):
    """A backup is incomplete or does not match its manifest; nothing was restored from it."""

    code = "backup_damaged"


class ArchiveDamagedError(MemoryAgentError):
    """A user's archive is incomplete, damaged or older than required; nothing was restored from it."""

    code = "archive_damaged"


@dataclass(eq=False, repr=False)
class ClientSettingsError(MemoryAgentError):
    """A coding agent's settings file cannot be edited, so it was not changed."""

    code = "client_settings"
    template = "{path} was not changed: {reason}"

    path: str
    reason: str


class ModelError(MemoryAgentError):
    """A model is unusable."""

    code = "model"


@dataclass(eq=False, repr=False)
class InvalidSelectionError(ModelError):
    """A reranker returned an invalid selection, such as a memory that was not offered."""

    code = "invalid_selection"
    template = "the judge's selection is not used: it {reason}"

    reason: str
    tokens_read: int = 0
    tokens_written: int = 0


class ModelMissingError(ModelError):
    """No model weights were found; recall is lexical until they are available."""

    code = "model_missing"
    retryable = True


@dataclass(eq=False, repr=False)
class ModelChecksumError(ModelError):
    """A model file does not match its expected checksum and was rejected."""

    code = "model_checksum"
    template = "{path} was rejected: SHA-256 is {actual_sha256}, expected {expected_sha256}"

    path: str
    expected_sha256: str
    actual_sha256: str


class EmbedderUnavailableError(ModelError):
    """The embedder did not respond in time."""

    code = "embedder_unavailable"
    retryable = True


@dataclass(eq=False, repr=False)
class ProviderError(ModelError):
    """The API of a model provider rejected a call, or returned an unusable answer."""

    code = "provider"
    template = "{provider}: {reason}"

    provider: str
    reason: str


class ProviderInputError(ProviderError):
    """The API of a model provider rejected the input, for example because a text is too long for the model."""

    code = "provider_input"


class ProviderUnavailableError(ProviderError):
    """The API of a model provider did not answer in time, or requested a later retry."""

    code = "provider_unavailable"
    retryable = True


class HostDiedError(UnavailableError):
    """A user's host process died during the request; the request may or may not have taken effect."""

    code = "host_died"
    is_lost = False
    """Whether the host may have died because its machine failed, rather than because of the request. Set only in the
    daemon."""


class ArchiveUnavailableError(UnavailableError):
    """The archive refused an operation or did not complete it in time. The data to archive is still pending."""

    code = "archive_unavailable"


class NothingSharedError(UnavailableError):
    """Nothing has been shared in this deployment yet; the store of shared items is created on first use."""

    code = "nothing_shared"


class DaemonRunningError(MemoryAgentError):
    """Another daemon already serves this data folder."""

    code = "daemon_running"


class NoClusterError(MemoryAgentError):
    """The daemon accepts no other machines: its setting `cluster.listen` is empty, or it runs without Ray."""

    code = "no_cluster"


@dataclass(eq=False, repr=False)
class NodeMismatchError(MemoryAgentError):
    """A machine cannot join, because its protocol, formats, Ray, Python, model or clock differs from the daemon's."""

    code = "node_mismatch"
    template = "the {what} of this machine is {own}, but the daemon's is {expected}; {advice}"

    what: str
    own: str
    expected: str
    advice: str


@dataclass(eq=False, repr=False)
class NodeNameTakenError(MemoryAgentError):
    """Another machine has joined under this name."""

    code = "node_name_taken"
    template = "{name} is the name of the machine at {address}; choose another name, or remove that machine first"

    name: str
    address: str


@dataclass(eq=False, repr=False)
class NodeLeftError(MemoryAgentError):
    """This machine has left the cluster, so its process does not rejoin on its own."""

    code = "node_left"
    template = "{name} has left the cluster; to rejoin: memory-agent join"

    name: str


@dataclass(eq=False, repr=False)
class UnknownMethodError(MemoryAgentError):
    """The request names a method that does not exist."""

    code = "unknown_method"
    template = "the daemon has no method {method}; either the daemon is older than this program or the name is wrong"

    method: str


ERRORS: dict[str, type[MemoryAgentError]] = by_code(MemoryAgentError)
"""The errors by code. With this table, an error from another process is raised as the same class."""
