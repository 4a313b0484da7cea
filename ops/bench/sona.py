"""Formats reports from `ops.lab` as a page: the results, and what they do and do not show.

    python -m ops.lab sona LOCOMO_FILE --runs AIRLINE_FILE --plot ops/bench/sona.png --json > report.json
    python -m ops.lab instant LOCOMO_FILE --json > instant.json
    python -m ops.bench.sona report.json instant.json          a second; writes ops/bench/sona.md

The text is fixed; the numbers come from the two reports.
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
# What is learned from the outcomes of runs

Written by `python -m ops.bench.sona` on {date:%Y-%m-%d} from a report of `python -m ops.lab sona`. All questions were
answered by the real, embedded `Memory`, on copies of one store. Half of the questions were used for teaching and the
other half for testing. The 95 % intervals use 10,000 resamples of whole conversations (airline: of whole tasks).

{machine}.

![learning curve](sona.png)
"""

_INSTANT = """\
The layer is active while the bank contains fewer than 16 exemplars (*cold*: measured on each conversation after 15
lessons), and when the bank cannot hold every lesson (*full*: measured on all conversations in one memory, with 85 % of
the questions taught and 512 exemplars kept). Each course was taught once, and tested with and without the layer.
`python -m ops.lab instant` measured this with {seeds} seeds in {took:.0f} s.
"""

_TAIL = """\
## What this shows

- *minus off* is the difference from the shipped ranking with learning off. Both include fusion, centring, neighbours,
  context words and dates. Vectors alone are shown for comparison.
- *gain* is the smaller of two differences: from the arm "learning off", and from the shuffled control, which was taught
  an equal number of memories that were not used. The control gains because memories were shown often, not because they
  were useful.
- *oracle* names all evidence, found or not. No agent can do that, so it is an upper bound. *cite* is an agent that
  names its sources, with mistakes. *list* names all memories that were shown.
- In "oracle", "cite", "list" and the controls, learning is active from the first lesson (`learning.mode=on`), to
  measure what was learned. "cite, gate decides" shows the behaviour for users (`learning.mode=auto`): until the gate
  opens, answers are the same as with learning off. Each LoCoMo question is asked once, so the gate seldom opens there.
- *Users with recurring work* have 50 runs. Four of five runs ask about one of six topics, in varying words; each
  topic is a question about one conversation. Every fifth run asks something else. *Again* is the gain when these topics
  are asked about again in new words, and *new* is the gain on questions never asked before; both are relative
  to the results with learning off. Before decision 0020, the gate had not opened for any of these users by run 50,
  since its trial started after 50 credited runs.
- The arms that test parts of the learner, lists, one vector for all or vectors alone use at most the first two seeds.
  For the same seeds, each arm is compared with the arm "learning off" and with its control.
- "Association alone" is the nearest-exemplar baseline: the memories used by the nearest past requests. "One vector for
  all" is a global Rocchio vector. It is computed with learning off, and shifts all queries by .75 times the mean
  difference between the used memories and the requests of approved runs. Ranking is as shipped. The weight .75 is the
  classic value and was not tuned. The control is a Rocchio vector from an equal number of memories that were not used.
- The gain is measured on *repeated* evidence, where learning from use can help, and is also reported for *new*
  evidence, where learning can only generalise or harm. In the disjoint split, no evidence is repeated.

## What this does not show

- Five conversations give coarse intervals, and settings were tuned on them. Claims about other conversations require
  other data: the conversations used here are half of the source, and the other half is held back.
- LoCoMo's questions were written by an annotator, are asked only once, and have no order. More can be learned from
  users who return to the same topic; nothing can be learned from users who never do.
- The signals are simulated. They do not show how often a real agent cites memories, or how often its citations are
  right.
- The gate's false alarms are counted over only a few streams and users. The statistical test limits their rate in a
  first trial to .036, and the simulation in `tests/sona/test_gate.py` confirms this. The test assumes that, if a user
  does not choose by content, no memory is used more often than a memory ranked above it. A user who always takes the
  last memory would open the gate.
- There are 100 airline runs of 25 tasks; 31 runs succeeded. `outcomes.md` shows the effect of outcomes without
  learning. The runs had no memory, so it is unknown what they would have used: "learning on" uses only the rewards, and
  "cited" also uses simulated citations. Whether seeing successful runs helps a planner was not measured. If no run of
  the same task succeeded, a successful run in first place belongs to a different task; "both at 1" counts only runs of
  the same task.
- In "by task", the tested tasks' runs are stored with their outcomes, as in real use. The lessons, from recalls and
  rewards, come only from other tasks.
- An open gate chooses holdouts and contests by recall ids, which are random, so rows with an open gate vary slightly
  between runs of the lab. All other rows are reproducible with the same seeds.
"""


def page(report: LearningReport, instant: InstantReport, machine: dict[str, str], now: datetime) -> str:
    """Return the contents of sona.md."""
    described = "; ".join(f"{name}: {value}" for name, value in machine.items())
    parts = [_HEAD.format(date=now, machine=described), _list(figures(report))]
    parts += [f"## {title[0].upper()}{title[1:]}\n\n{_table(columns, rows)}" for title, columns, rows in tables(report)]
    return "\n".join([*parts, instant_section(instant), _TAIL])


def instant_section(report: InstantReport) -> str:
    """Return the page's section on the instant layer."""
    title, columns, rows = instant_table(report)
    about = _INSTANT.format(seeds=report.seeds, took=report.took_s)
    return f"## {title[0].upper()}{title[1:]}\n\n{about}\n{_table(columns, rows)}"


def _list(named: dict[str, object]) -> str:
    return "".join(f"- {name}: {shown(value)}\n" for name, value in named.items())


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *([shown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Write sona.md from the given reports."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    report = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=LearningReport)
    instant = msgspec.json.decode(Path(arguments[1]).read_bytes(), type=InstantReport)
    PAGE.write_text(page(report, instant, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
