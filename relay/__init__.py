"""The event bus: a durable journal of events, ways in that acknowledge, and readers that follow by cursor."""

from relay.async_publisher import AsyncPublisher
from relay.async_subscriber import AsyncSubscriber
from relay.broker import Broker
from relay.config import (
    BrokerSettings,
    Endpoints,
    EventLimits,
    JournalSettings,
    PublisherSettings,
    RelaySettings,
    TableTail,
    journal_folder,
    load_settings,
    relay_endpoints,
)
from relay.errors import (
    ERRORS,
    CursorError,
    EntryDamagedError,
    EventTooLargeError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalInUseError,
    MalformedEventError,
    ProducerSupersededError,
    ProtocolError,
    QuarantineEntryError,
    RelayError,
    RelaySettingsError,
    RelayUnavailableError,
    SequenceGapError,
    SpoolFullError,
)
from relay.event import Event, decode_event, encode_event, event_from_mapping, read_event
from relay.journal import Appended, Journal
from relay.publisher import Publisher
from relay.reports import FlushReport, Progress, Rejection
from relay.retention import RetentionReport
from relay.subscriber import Subscriber
from relay.topics import matches, matches_any
from relay.validation import validate_user_id
from relay.wire import Batch, ConsumerState, JournalEntry, JournalStats, QuarantineEntry, RelayStats

__all__ = [
    "ERRORS",
    "Appended",
    "AsyncPublisher",
    "AsyncSubscriber",
    "Batch",
    "Broker",
    "BrokerSettings",
    "ConsumerState",
    "CursorError",
    "Endpoints",
    "EntryDamagedError",
    "Event",
    "EventLimits",
    "EventTooLargeError",
    "FlushReport",
    "Journal",
    "JournalDamagedError",
    "JournalEntry",
    "JournalError",
    "JournalFullError",
    "JournalInUseError",
    "JournalSettings",
    "JournalStats",
    "MalformedEventError",
    "ProducerSupersededError",
    "Progress",
    "ProtocolError",
    "Publisher",
    "PublisherSettings",
    "QuarantineEntry",
    "QuarantineEntryError",
    "Rejection",
    "RelayError",
    "RelaySettings",
    "RelaySettingsError",
    "RelayStats",
    "RelayUnavailableError",
    "RetentionReport",
    "SequenceGapError",
    "SpoolFullError",
    "Subscriber",
    "TableTail",
    "decode_event",
    "encode_event",
    "event_from_mapping",
    "journal_folder",
    "load_settings",
    "matches",
    "matches_any",
    "read_event",
    "relay_endpoints",
    "validate_user_id",
]
