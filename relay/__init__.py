"""The event bus: publishers that wait for acknowledgement, a durable journal, and readers that follow it by cursor.

An event passes through `publishing.publisher`, `broker`, `intake.group_commit`, `journal.journal`, `answers` and
`subscriber`. Names are imported on first use, so a client does not load the journal.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    name: module
    for module, names in {
        "__main__": "run_relay",
        "access": """
            ALL_SCOPES CURVE Credentials CurvePair Identity KeyDocument LOCAL Origin Principal Scope StoredKey
            TOKEN_FILE check_endpoint create_key ensure_local_key identity_of is_curve keys_version local_identity
            person_of read_key_file read_keys revoke_key rotate_key server_pair set_person
        """,
        "broker": "Broker open_after_former",
        "config": """
            BrokerSettings BusSettings EncryptionSettings Endpoints EventLimits JournalSettings MaskingSettings
            PublisherSettings RelaySettings TableTail journal_folder load_settings read_toml relay_endpoints
            setting_at_fault
        """,
        "crypto": "KeyRing open_key_ring",
        "decoding": "described",
        "errors": """
            ConsumerBehindError CopyUnavailableError CursorError ERRORS EncryptionKeyMissingError
            EncryptionMismatchError EntryDamagedError EventTooLargeError JournalDamagedError JournalError
            JournalFullError JournalInUseError JournalPausedError JournalSupersededError KeyFileError
            KeysUnavailableError MalformedEventError ProducerSupersededError ProtocolError QuarantineEntryError
            RelayError RelaySettingsError RelayUnavailableError ScopeMissingError SequenceGapError SpoolFullError
            UnauthorizedError UndecipherableError UserNotAllowedError
        """,
        "event": """
            Event ON_BEHALF_OF decode_event decode_mapping encode_event event_from_mapping matches matches_any
            read_event
        """,
        "histogram": "Histogram",
        "intake.masking": "Masker masked_kinds",
        "intake.personal_numbers": "personal_numbers",
        "intake.table_tail": "table_problem",
        "journal": """
            Appended Journal JournalCopy RetentionReport check_journal copy_journal cursors encrypt_journal
            publisher_of read_mark require_unused rewind skip_numbers
        """,
        "net": "CurveAuthenticator curve_pair",
        "program": "run_program",
        "publishing.delivery": "FlushReport Progress Rejection",
        "publishing.publisher": "AsyncPublisher Publisher",
        "publishing.submission": "Submitted check_events submit",
        "subscriber": "AsyncSubscriber Subscriber",
        "validation": """
            SHARED_USER SYSTEM_USER validate_event_user validate_group_name validate_id validate_object
            validate_timestamp validate_user_id
        """,
        "wire": "Batch ConsumerState Erasable Erased JournalEntry JournalStats QuarantineEntry RelayStats",
    }.items()
    for name in names.split()
}
"""The module that defines each public name. Type checkers read `__init__.pyi`."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
