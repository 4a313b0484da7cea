"""Test how the command line parses times and texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.cli.options import parse_moment

NOW = datetime(2026, 2, 16, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-02-01", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-02-01T08:30:00Z", datetime(2026, 2, 1, 8, 30, tzinfo=UTC)),
        ("2026-02-01T08:30:00+02:00", datetime(2026, 2, 1, 6, 30, tzinfo=UTC)),
        ("2026-02-01 08:30", datetime(2026, 2, 1, 8, 30, tzinfo=UTC)),
        ("30m", NOW - timedelta(minutes=30)),
        ("12h", NOW - timedelta(hours=12)),
        ("7d", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
        ("0d", NOW),
    ],
)
def test_a_moment_is_a_date_a_time_or_an_age(text: str, meant: datetime) -> None:
    assert parse_moment(text, NOW) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "7", "7y", "-3d", "2026-13-01", "7d ago", "9" * 19 + "d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text, NOW)


@pytest.mark.parametrize("text", ["999999w", "99999999d", "9" * 18 + "m"])
def test_an_age_beyond_the_calendar_has_its_own_error(text: str) -> None:
    with pytest.raises(OverflowError):
        parse_moment(text, NOW)


ZONES = st.integers(-12, 12).map(lambda hours: timezone(timedelta(hours=hours)))


@given(st.integers(0, 4_000_000_000), ZONES)
def test_every_iso_time_with_a_zone_means_that_moment(epoch_s: int, zone: timezone) -> None:
    moment = datetime.fromtimestamp(epoch_s, zone)
    assert parse_moment(moment.isoformat(), NOW) == moment
