"""Measures a memory on real data: recall of evidence, latency, and the difference between two runs.

Read `dataset` first. `locomo`, `beam`, `swe` and `jsonl` each read one format. `runs` ingests the events, either
through a `daemon_process` or in this process, and asks the questions. `trial` scores each answer with `metrics`, and
`report` averages the scores. `results` writes the answer to each question to a file, and `comparison` compares two such
files. The package does not export `runs`, which loads the engines.
"""

from memory_agent.evaluation.beam import read_beam
from memory_agent.evaluation.comparison import (
    FEWEST,
    RESAMPLES,
    SEED,
    UNITS,
    Comparison,
    MetricDifference,
    Unit,
    bootstrap,
    compare,
)
from memory_agent.evaluation.daemon_process import child_environment, publish_events, temporary_daemon
from memory_agent.evaluation.dataset import Dataset, History, Item, Question, event_id
from memory_agent.evaluation.jsonl import read_jsonl
from memory_agent.evaluation.locomo import MAIN_CATEGORIES, choose_conversations, read_locomo
from memory_agent.evaluation.metrics import Place, distinct
from memory_agent.evaluation.report import Averages, Figures, Report, summarise
from memory_agent.evaluation.results import Results, ranking_settings, read_results, results_file, write_results
from memory_agent.evaluation.swe import read_swe
from memory_agent.evaluation.trial import SHOWN, Answer, Examiner, Plan, Run, filter_of

__all__ = [
    "FEWEST",
    "MAIN_CATEGORIES",
    "RESAMPLES",
    "SEED",
    "SHOWN",
    "UNITS",
    "Answer",
    "Averages",
    "Comparison",
    "Dataset",
    "Examiner",
    "Figures",
    "History",
    "Item",
    "MetricDifference",
    "Place",
    "Plan",
    "Question",
    "Report",
    "Results",
    "Run",
    "Unit",
    "bootstrap",
    "child_environment",
    "choose_conversations",
    "compare",
    "distinct",
    "event_id",
    "filter_of",
    "publish_events",
    "ranking_settings",
    "read_beam",
    "read_jsonl",
    "read_locomo",
    "read_results",
    "read_swe",
    "results_file",
    "summarise",
    "temporary_daemon",
    "write_results",
]
