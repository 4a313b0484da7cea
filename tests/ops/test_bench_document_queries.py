"""Test the measurement of document queries, on synthetic runs."""

from __future__ import annotations

from memory_agent.embedders import open_embedder
from memory_agent.settings import EmbedderSettings
from ops.bench.document_queries import Run, _Step, measure

VPN = (
    "The deploy to staging hangs because the VPN is off.",
    "Connecting the VPN of staging lets the deploy go through.",
)
LOCK = (
    "The migration of the orders table waits for a lock of a report.",
    "With a lock timeout the migration of the orders table is retried.",
)


def test_related_work_of_the_same_issue_is_counted() -> None:
    runs = [
        Run(instance_id="vpn", task="Deploys to staging hang\nmore", steps=[_Step(text) for text in VPN]),
        Run(instance_id="vpn", task="Deploys to staging hang", steps=[_Step(text + " So it is.") for text in VPN]),
        Run(instance_id="lock", task="The migration of orders blocks", steps=[_Step(text) for text in LOCK]),
    ]
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    figures = {(one["query"], one["floor"]): one for one in measure(runs, embedder)}
    embedder.close()
    assert len(figures) == 8
    central = figures["title and central sentences", "default"]
    assert (central["documents"], central["found"], central["empty"]) == (2, 2, 0)
    assert central["related of shown"] > 0.5
