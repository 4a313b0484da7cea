"""Reads scraped figures with the parser of `prometheus_client`."""

from __future__ import annotations

from http_caller import HttpCaller
from prometheus_client.parser import text_string_to_metric_families

Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample, and its labels in order."""


def scraped(caller: HttpCaller) -> str:
    """Return a daemon's metrics page."""
    answer = caller.send("GET", "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return answer.body.decode()


def samples(text: str) -> dict[Series, float]:
    """Return all samples of a page."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    """Return one sample of this project."""
    return samples(text)[f"memory_agent_{name}", tuple(sorted(labels.items()))]
