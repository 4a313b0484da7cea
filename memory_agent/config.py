"""Settings of each part, and where they come from: defaults, then TOML, then environment, then flags.

Read once, in an entry point; each part receives only its own struct. Unknown names and values out of bounds are
refused by name. Sizes are bytes, durations seconds or milliseconds, as the field's name says.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from memory_agent.records import Mode

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model turns text into vectors. `folder` names a folder with the weights; empty: find them."""

    folder: str = ""
    scheme: str = "auto"  # auto | int8 | float32; auto: int8 where the processor has VNNI
    max_tokens: Annotated[int, msgspec.Meta(ge=8, le=512)] = 256
    bulk_niceness: Annotated[int, msgspec.Meta(ge=0, le=19)] = 10
    query_cache: NonNegative = 1024
    allow_download: bool = True


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user's records. The map is sparse: it bounds the store and reserves no disk."""

    map_size_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 16 << 30
    reserve_bytes: NonNegative = 4 << 20
    exact_search_limit: Count = 20_000
    expansion_search: Count = 128
    takeover_after_s: Positive = 5.0


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes a memory. `signals` is a TOML file with rows added to, or taken from, the default table."""

    signals: str = ""
    min_text_chars: NonNegative = 4
    max_text_chars: Count = 8_000


class RecallSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How memories are ranked. `alpha` is the weight of the vector side in the fusion."""

    mode: Mode = "hybrid"
    alpha: Fraction = 0.7
    min_score: Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)] = -1.0
    centering: bool = True
    candidates: Count = 200
    max_query_chars: Count = 100_000
    deadline_ms: Positive = 2_000.0
