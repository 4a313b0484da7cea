from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import memory, unit_vectors

from memory_agent.errors import InvalidInputError, StoreDamagedError
from memory_agent.records.memories import KINDS, PROVENANCES, SOURCES, MemoryRecord, Utility
from memory_agent.storage.changes import OPS, LogEntry, Op
from memory_agent.storage.codec import (
    Usage,
    decode_entry,
    decode_record,
    encode_entry,
    encode_record,
    encode_vector,
    name_key,
    unit_vector,
    usage_of,
    vector_body,
    vectors_of,
    with_checksum,
    without_checksum,
)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=1_500)
names = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
times = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
fractions = st.floats(0, 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)
records = st.builds(
    MemoryRecord,
    id=st.text("0123456789ABC", min_size=1, max_size=26),
    text=texts,
    source=st.sampled_from(SOURCES),
    kind=st.sampled_from(KINDS),
    timestamp=times,
    embedding=st.none(),
    quality_score=st.none() | fractions,
    session_id=names,
    metadata=st.dictionaries(st.text("abc", max_size=3), json_values, max_size=3),
    title=names,
    tags=st.lists(texts, max_size=3).map(tuple),
    provenance=st.none() | st.sampled_from(PROVENANCES),
    run_id=names,
    channel_id=names,
    agent_id=names,
    event_id=names,
    last_recalled_at=st.none() | times,
    times_recalled=st.integers(0, 10**9),
    cached_from=st.none() | st.sampled_from(PROVENANCES),
    utility=st.builds(Utility, used=st.integers(0, 10**9), reward_sum=st.floats(-1e9, 1e9)),
)


@given(record=records, row=st.integers(1, 2**62))
def test_every_record_round_trips(record: MemoryRecord, row: int) -> None:
    assert decode_record(row, encode_record(row, record), usage_of(record)) == record


@given(record=records, data=st.data())
def test_a_flipped_bit_anywhere_in_a_record_is_noticed(record: MemoryRecord, data: st.DataObject) -> None:
    value = bytearray(encode_record(7, record))
    bit = data.draw(st.integers(0, 8 * len(value) - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreDamagedError):
        decode_record(7, bytes(value), Usage())


def test_a_record_under_another_row_is_noticed() -> None:
    with pytest.raises(StoreDamagedError):
        decode_record(8, encode_record(7, memory()), Usage())


def test_a_long_text_is_stored_deflated() -> None:
    assert len(encode_record(1, memory("the same words again and again " * 50))) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", datetime(2026, 1, 1)),  # noqa: DTZ001
        ("quality_score", float("nan")),
        ("quality_score", 1.5),
        ("source", "rumour"),
        ("kind", "secret"),
        ("provenance", "guessed"),
        ("metadata", {"set": object()}),
        ("metadata", {"huge": 2**80}),
    ],
)
def test_unstorable_values_are_refused_by_name(field: str, value: Any) -> None:
    record = msgspec.structs.replace(memory(), **{field: value})
    with pytest.raises(InvalidInputError) as caught:
        encode_record(1, record)
    assert caught.value.field == field


def test_text_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        encode_record(1, memory("half a pair \ud800"))


@pytest.mark.parametrize(
    "vector",
    [
        [np.nan, 1.0],
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [0.0, 0.0],
        [1.0],
        [1.0, 2.0, 3.0],
        [[1.0, 2.0]],
        [],
    ],
)
def test_a_vector_with_nan_infinity_or_length_zero_is_refused(vector: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        unit_vector(np.array(vector, dtype=np.float32), 2)
    assert caught.value.field == "vector"


@given(scale=st.sampled_from([1e-38, 1e-20, 1.0, 1e20, 3e38]))
def test_a_vector_of_any_length_is_stored_at_unit_length(scale: float) -> None:
    direction = unit_vectors(1, seed=3)[0]
    assert np.allclose(
        unit_vector(direction * np.float32(scale), None), direction, atol=1e-2 if scale < 1e-30 else 1e-5
    )


def test_float16_changes_a_cosine_by_less_than_a_ten_thousandth() -> None:
    vectors = unit_vectors(2_000, seed=5, ndim=384)
    stored = vectors_of([vector_body(i, encode_vector(i, v), 384) for i, v in enumerate(vectors)], 384)
    lengths = np.linalg.norm(stored, axis=1)
    assert np.abs(stored @ vectors[0] / lengths - vectors @ vectors[0]).max() < 1e-4


def test_a_vector_of_the_wrong_size_or_with_a_flipped_bit_is_damage() -> None:
    value = encode_vector(3, unit_vectors(1, seed=1)[0])
    with pytest.raises(StoreDamagedError):
        vector_body(3, value, 8)
    with pytest.raises(StoreDamagedError):
        vector_body(3, value[:-1] + bytes([value[-1] ^ 1]), 16)


@pytest.mark.parametrize("op", OPS)
def test_an_entry_of_the_change_log_round_trips(op: Op) -> None:
    entry = LogEntry(op, 2**40)
    assert decode_entry(9, encode_entry(9, entry)) == entry


@pytest.mark.parametrize(("op", "now"), [("update", "reword"), ("delete", "delete")])
def test_an_entry_of_a_former_version_with_the_former_words_can_be_read(op: Op, now: Op) -> None:
    entry = encode_entry(9, LogEntry(op, 7))
    body = without_checksum(9, entry, "change") + b"\x00" + msgspec.msgpack.encode(("title", "text", ("a", "b")))
    assert decode_entry(9, with_checksum(9, body)) == LogEntry(now, 7)


def test_ids_of_any_length_have_distinct_keys_within_the_limit() -> None:
    ids = ["a", "b", "x" * 128, "x" * 129, "x" * 5_000, "y" * 5_000]
    keys = {name_key(name, "id") for name in ids}
    assert len(keys) == len(ids)
    assert max(map(len, keys)) <= 511
