"""The report of `ops.lab` as a page: the figures, and what they do and do not show.

    python -m ops.lab sona LOCOMO_FILE --runs AIRLINE_FILE --plot ops/bench/sona.png --json > report.json
    python -m ops.lab instant LOCOMO_FILE --json > instant.json
    python -m ops.bench.sona report.json instant.json          a second; writes ops/bench/sona.md

The prose is fixed; the figures come from the two reports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from memory_agent.cli.render import shown
from ops.bench.machine import describe_machine
from ops.lab.instant import InstantReport
from ops.lab.report import LearningReport
from ops.lab.tables import figures, instant_table, tables

PAGE = Path(__file__).with_name("sona.md")

_HEAD = """\
# What is learned from how runs end

Written by `python -m ops.bench.sona` on {date:%Y-%m-%d} from a report of `python -m ops.lab sona`. Everything was asked
of the real `Memory`, embedded, on copies of one store; no ranking was copied. Half of the questions taught, the other
half tested; intervals are 95 % of 10,000 resamples of whole conversations (airline: of whole tasks).

{machine}.

![learning curve](sona.png)
"""

_INSTANT = """\
The layer acts while the bank holds fewer than 16 exemplars (*cold*: each conversation after 15 lessons)
and once it cannot hold every lesson (*full*: the conversations in one memory, 85 % of the questions taught, 512
exemplars kept). Each course was taught once and asked with and without the layer; {seeds} seeds, {took:.0f} s; from
`python -m ops.lab instant`.
"""

_TAIL = """\
## What this shows

- *less off* is the difference to the shipped ranking with learning off; fusion, centring, neighbours, context words and
  dates are in both. Vectors alone are shown for comparison.
- *gain* is the lesser of two differences: over learning off, and over the shuffled control, which was taught as many
  memories, but not those used. A control gains from being shown often, not from being useful.
- *oracle* gets all evidence, found or not, which no agent gives: an upper bound. *cite* is what an agent that names its
  sources gives, with mistakes. *list* names everything that was shown.
- "oracle", "cite", "list" and the controls act from the first lesson on (`learning.mode=on`), to measure what was
  learned; "cite, gate decides" is what a user gets (`learning.mode=auto`). Until the gate opens, nothing that was
  learned is shown, and an answer is that of learning off. Each question of LoCoMo is asked once, so it seldom opens
  there.
- *Users whose work recurs* ask for one of six matters, each a question of one conversation, in four of five of their 50
  runs, in changing words; every fifth run asks something else. *Again* are the matters afterwards, in words not used
  before, *new* questions never asked, each less learning off. Before decision 0020 the gate opened for none of them by
  run 50: its trial began after 50 credited runs.
- Arms of parts, of lists, of one vector and of vectors alone took the first two seeds at most; each is compared with
  learning off and its control under the same seeds.
- "Association alone" is the nearest-exemplar baseline: what the nearest past requests used. "One vector for all" is a
  global Rocchio vector: all queries moved by .75 of the mean difference between what approved runs used and what they
  asked for, learned with learning off, then ranked as shipped; .75 is the classic weight, not tuned here. Its control
  is such a vector of as many memories that were not used.
- The gain is measured on *repeated* evidence, where learning from use can help, and reported for *new* evidence, where
  it can only generalise or harm. In the disjoint split no evidence repeats.

## What this does not show

- Five conversations give coarse intervals, and settings were chosen on them. A claim about others needs others: this
  file is half of the source; the other half is held back.
- LoCoMo's questions are an annotator's, one each, in no order. A user who returns to the same matter gives more to
  learn from; a user who never does gives nothing.
- The signals are simulated. They do not show how often a real agent cites, or is right.
- The gate's false alarms are counted over few streams and users. That they are at most .036 in a first trial follows
  from its test, and is shown by simulation in `tests/sona/test_gate.py`. The test assumes that whoever does not choose
  by content uses no memory more often than one above it. A user who always takes the last one would open the gate.
- Airline runs: 25 tasks, 31 of 100 runs succeeded; `outcomes.md` has what outcomes change by default, without learning.
  No run knew of a memory, so nothing says what it used: "learning on" has the rewards alone, "cited" also what a
  planner might have cited. Whether a planner that sees successful runs does better itself was not measured. Success in
  first place partly comes from runs of other tasks, where no run of the same task succeeded; "both at 1" counts those
  of the same task alone.
- In "by task" the runs of the asking tasks are stored with their endings, as in use; only what was learned from recalls
  and rewards comes from other tasks.
- An open gate draws the holdout and its contests by recall ids, which are random, so the rows in which it decides vary
  a little from run to run. All others are the same under the same seeds.
"""


def page(report: LearningReport, instant: InstantReport, machine: dict[str, str], now: datetime) -> str:
    """Return the reports as Markdown."""
    described = "; ".join(f"{name}: {value}" for name, value in machine.items())
    parts = [_HEAD.format(date=now, machine=described), _list(figures(report))]
    parts += [f"## {title[0].upper()}{title[1:]}\n\n{_table(columns, rows)}" for title, columns, rows in tables(report)]
    return "\n".join([*parts, instant_section(instant), _TAIL])


def instant_section(report: InstantReport) -> str:
    """Return the measurement of the instant layer as a section."""
    title, columns, rows = instant_table(report)
    about = _INSTANT.format(seeds=report.seeds, took=report.took_s)
    return f"## {title[0].upper()}{title[1:]}\n\n{about}\n{_table(columns, rows)}"


def _list(named: dict[str, object]) -> str:
    return "".join(f"- {name}: {shown(value)}\n" for name, value in named.items())


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *([shown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Write the page of the given reports."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    report = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=LearningReport)
    instant = msgspec.json.decode(Path(arguments[1]).read_bytes(), type=InstantReport)
    PAGE.write_text(page(report, instant, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
