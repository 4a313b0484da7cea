"""Queries that contain a date, with the date's span, and queries that only seem to contain a date.

The reference time is a Wednesday afternoon in UTC. `since` is inclusive, `until` is exclusive, and None means
unbounded.
"""

from __future__ import annotations

from datetime import UTC, datetime

SEEN_FROM = datetime(2023, 11, 15, 14, 30, tzinfo=UTC)

Named = tuple[str, str, str | None, str | None]
"""The query, its time phrase, `since` and `until`."""

DAYS: list[Named] = [
    ("what did we do yesterday?", "yesterday", "2023-11-14", "2023-11-15"),
    ("Today's errors", "Today", "2023-11-15", "2023-11-16"),
    ("earlier today the build broke", "earlier today", "2023-11-15", "2023-11-16"),
    ("plans for tomorrow", "tomorrow", "2023-11-16", "2023-11-17"),
    ("the day before yesterday", "the day before yesterday", "2023-11-13", "2023-11-14"),
    ("this morning", "this morning", "2023-11-15T04", "2023-11-15T12"),
    ("what broke last night", "last night", "2023-11-14T18", "2023-11-15T06"),
    ("yesterday evening", "yesterday evening", "2023-11-14T17", "2023-11-15"),
    ("what ran at 3pm yesterday?", "at 3pm yesterday", "2023-11-14T15", "2023-11-14T16"),
    ("yesterday at 15:30", "yesterday at 15:30", "2023-11-14T15:15", "2023-11-14T15:45"),
    ("on Monday", "on Monday", "2023-11-13", "2023-11-14"),
    ("on Wednesday", "on Wednesday", "2023-11-08", "2023-11-09"),
    ("What did we decide Monday?", "Monday", "2023-11-13", "2023-11-14"),
    ("Monday's deploy", "Monday", "2023-11-13", "2023-11-14"),
    ("between 9am and 5pm yesterday", "between 9am and 5pm yesterday", "2023-11-14T09", "2023-11-14T17"),
    ("last Monday", "last Monday", "2023-11-13", "2023-11-14"),
    ("last wednesday's stand-up", "last wednesday", "2023-11-08", "2023-11-09"),
    ("this Friday", "this Friday", "2023-11-17", "2023-11-18"),
    ("next Monday", "next Monday", "2023-11-20", "2023-11-21"),
    ("Friday last week", "Friday last week", "2023-11-10", "2023-11-11"),
    ("Monday morning", "Monday morning", "2023-11-13T04", "2023-11-13T12"),
    ("what we said on fri", "on fri", "2023-11-10", "2023-11-11"),
    ("March 3rd", "March 3rd", "2023-03-03", "2023-03-04"),
    ("on 16 November", "on 16 November", "2022-11-16", "2022-11-17"),
    ("Feb 29", "Feb 29", "2020-02-29", "2020-03-01"),
    ("the 3rd of May", "the 3rd of May", "2023-05-03", "2023-05-04"),
    ("Where was Ann on 7 May 2023?", "on 7 May 2023", "2023-05-07", "2023-05-08"),
    ("May 7, 2023", "May 7, 2023", "2023-05-07", "2023-05-08"),
    ("on December 1,2022 we met", "on December 1,2022", "2022-12-01", "2022-12-02"),
    ("Sat 7 May 2022", "Sat 7 May 2022", "2022-05-07", "2022-05-08"),
    ("2023-05-07", "2023-05-07", "2023-05-07", "2023-05-08"),
    ("2023/05/07", "2023/05/07", "2023-05-07", "2023-05-08"),
    ("since the crash of 2023-05-07T10:20:30Z", "2023-05-07T10:20:30Z", "2023-05-07T10:20:30", "2023-05-07T10:20:31"),
    ("2023-05-07 10:20+02:00", "2023-05-07 10:20+02:00", "2023-05-07T08:20", "2023-05-07T08:21"),
    ("25/12/2022", "25/12/2022", "2022-12-25", "2022-12-26"),
    ("12/25/2022", "12/25/2022", "2022-12-25", "2022-12-26"),
    ("am 24.12.2022", "24.12.2022", "2022-12-24", "2022-12-25"),
    ("12/01/2023", "12/01/2023", "2023-01-12", "2023-01-13"),
    ("the evening of 7 July, 2023", "the evening of 7 July, 2023", "2023-07-07T17", "2023-07-08"),
    ("the Sunday before October 25, 2022", "the Sunday before October 25, 2022", "2022-10-23", "2022-10-24"),
]
DISTANCES: list[Named] = [
    ("three days ago you fixed a race", "three days ago", "2023-11-11T14:30", "2023-11-13"),
    ("3d ago", "3d ago", "2023-11-11T14:30", "2023-11-13"),
    ("a couple of days ago", "a couple of days ago", "2023-11-12T14:30", "2023-11-14"),
    ("a few days ago", "a few days ago", "2023-11-09T14:30", "2023-11-14"),
    ("2 weeks ago", "2 weeks ago", "2023-10-29", "2023-11-05"),
    ("a month ago", "a month ago", "2023-09-30", "2023-10-31"),
    ("4 years ago", "4 years ago", "2019-05-15", "2020-05-17T02:30"),
    ("2 hours ago", "2 hours ago", "2023-11-15T11:30", "2023-11-15T13"),
    ("half an hour ago", "half an hour ago", "2023-11-15T13:55", "2023-11-15T14:05"),
    ("two days from now", "two days from now", "2023-11-17", "2023-11-18"),
    ("errors of the past three days", "the past three days", "2023-11-12", "2023-11-16"),
    ("in the last 2 hours", "in the last 2 hours", "2023-11-15T12:30", "2023-11-15T14:31"),
    ("in the last week", "in the last week", "2023-11-08", "2023-11-16"),
    ("next 3 days", "next 3 days", "2023-11-15", "2023-11-19"),
    ("two weeks before August 11, 2023", "two weeks before August 11, 2023", "2023-07-25", "2023-08-01"),
    ("the week before 3 August 2023", "the week before 3 August 2023", "2023-07-27", "2023-08-03"),
]
PERIODS: list[Named] = [
    ("last week", "last week", "2023-11-06", "2023-11-13"),
    ("this week", "this week", "2023-11-13", "2023-11-20"),
    ("next week", "next week", "2023-11-20", "2023-11-27"),
    ("the week before last", "the week before last", "2023-10-30", "2023-11-06"),
    ("last month's report", "last month", "2023-10-01", "2023-11-01"),
    ("last year", "last year", "2022-01-01", "2023-01-01"),
    ("last weekend", "last weekend", "2023-11-11", "2023-11-13"),
    ("how was the weekend?", "the weekend", "2023-11-11", "2023-11-13"),
    ("last quarter", "last quarter", "2023-07-01", "2023-10-01"),
    ("in March 2023", "in March 2023", "2023-03-01", "2023-04-01"),
    ("what happened in March?", "in March", "2023-03-01", "2023-04-01"),
    ("in december", "in december", "2022-12-01", "2023-01-01"),
    ("in November", "in November", "2023-11-01", "2023-12-01"),
    ("what did we do in may?", "in may", "2023-05-01", "2023-06-01"),
    ("last November", "last November", "2022-11-01", "2022-12-01"),
    ("in May last year", "in May last year", "2022-05-01", "2022-06-01"),
    ("Sept 2022", "Sept 2022", "2022-09-01", "2022-10-01"),
    ("in May '22", "in May '22", "2022-05-01", "2022-06-01"),
    ("did we try this in late 2022 already?", "in late 2022", "2022-09-01", "2023-01-01"),
    ("what did we ship in 2022?", "in 2022", "2022-01-01", "2023-01-01"),
    ("summer 2022", "summer 2022", "2022-06-01", "2022-09-01"),
    ("winter of 2021", "winter of 2021", "2021-12-01", "2022-03-01"),
    ("last summer", "last summer", "2023-06-01", "2023-09-01"),
    ("Q3 2024", "Q3 2024", "2024-07-01", "2024-10-01"),
    ("in Q2", "in Q2", "2023-04-01", "2023-07-01"),
    ("third quarter of 2022", "third quarter of 2022", "2022-07-01", "2022-10-01"),
    ("early March", "early March", "2023-03-01", "2023-03-11"),
    ("at the end of May", "at the end of May", "2023-05-21", "2023-06-01"),
    ("late 2022", "late 2022", "2022-09-01", "2023-01-01"),
    ("the first half of September 2022", "the first half of September 2022", "2022-09-01", "2022-09-16"),
    ("in the second week of November", "in the second week of November", "2023-11-08", "2023-11-15"),
]
RANGES: list[Named] = [
    ("since Monday", "since Monday", "2023-11-13", None),
    ("what changed since last week", "since last week", "2023-11-06", None),
    ("since early March", "since early March", "2023-03-01", None),
    ("before March", "before March", None, "2023-03-01"),
    ("until yesterday", "until yesterday", None, "2023-11-15"),
    ("after 7 May", "after 7 May", "2023-05-08", None),
    ("by July 10, 2022", "by July 10, 2022", None, "2022-07-11"),
    ("between 3 May and 7 May 2023", "between 3 May and 7 May 2023", "2023-05-03", "2023-05-08"),
    ("between 3 and 7 May 2023", "between 3 and 7 May 2023", "2023-05-03", "2023-05-08"),
    ("May 3-7, 2023", "May 3-7, 2023", "2023-05-03", "2023-05-08"),
    ("from March to May 2023", "from March to May 2023", "2023-03-01", "2023-06-01"),
    ("from Nov to Feb 2023", "from Nov to Feb 2023", "2022-11-01", "2023-03-01"),
    ("from Monday to Wednesday", "from Monday to Wednesday", "2023-11-06", "2023-11-09"),
    ("from 2019 to 2021", "from 2019 to 2021", "2019-01-01", "2022-01-01"),
    ("2023-05-01 to 2023-05-07", "2023-05-01 to 2023-05-07", "2023-05-01", "2023-05-08"),
]
NAMED = DAYS + DISTANCES + PERIODS + RANGES

WORDS_THAT_ARE_NO_TIME = """
it may work
May I merge this?
may 5 people join
the top 3 may change
it may 2000 times fail
march forward
the long march
March on Washington
they march 20 miles
March 10 miles east
a second later
Sun Microsystems
she sat on the bench
mar the surface
convert dec 10 to hex
oct 17 is octal
integrate monday.com
the Monday meeting
every Monday
Mondays are slow
Monday through Friday
Black Friday sale
when they wed
in April's house
June Carter
before June left
the spring framework
fall back to the cache
a fall 2000 feet deep
his last fall
winter coat
fix the weekend job
the last mile
a last minute fix
the last time it ran
the last 3 commits
the last year of school
the next day
next time
half past three
in the past
this may be wrong
the day is long
week by week
once a week
night mode
good morning
now
right now
from now on
recently
long ago
USA Today
weekly report
the first quarter
""".strip().splitlines()
FIGURES_THAT_ARE_NO_TIME = """
python 3.11
version 1.2.3
version 1.2.2023
release 10.11.2022
2023.05.07
10.0.2022.1
192.168.20.19
port 2022
CVE-2023-48022
file_2022.txt
backup-2023.tar
logs/2023-05-07/app.log
report-2023-05-07.pdf
2023-05-07.log
api-version=2023-05-07
error 404
it costs $2023
issue #2023
PR 2022
commit 2023abcd
sha 20231115
e3b0c44298fc1c149afbf4c8996fb92427ae41e4
550e8400-e29b-41d4-a716-446655440000
2000 users
in 2000 requests
in 2048 bytes
after 2000 ms
since 2000 users signed up
between 2000 and 3000 rows
a month's salary
three weeks of work
a two week sprint
5 minutes
it took 5 minutes
wait 30 days
in 5 minutes
in two days
within 2 hours
retry every 3 hours
1.5 hours ago
meet at 10:30
19:30:2022
3pm
chapter 5/7
16/9
day 3
week 12
what is Q1?
the 5th attempt
in the 2020s
in 2022.5
4k at 2019x1080
2023-13-45
02/30/2023
31 February 2023
2023-05-07T25:00:00Z
octopus 8
""".strip().splitlines()
NO_TIME = WORDS_THAT_ARE_NO_TIME + FIGURES_THAT_ARE_NO_TIME
