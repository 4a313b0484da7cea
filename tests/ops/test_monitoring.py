"""Test the alerts, the dashboard and the scrape configuration in ops/deploy against the metrics of a daemon.

`promtool` evaluates the alerts with scraped metrics. `make promtool` installs it from Debian's package.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_caller import HttpCaller
from served_gateway import gateway_in_new_folder

from tests.scraped import Series, samples, scraped

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops" / "deploy"
RULES = FOLDER / "prometheus-rules.yml"
DASHBOARD = FOLDER / "grafana-dashboard.json"
PROMTOOL = shutil.which("promtool") or str(ROOT / ".venv" / "promtool" / "promtool")
JOB = {"job": "memory-agent", "instance": "m"}
MINUTES = 120
FIRING = {
    "MemoryAgentDown": [("up", {}, "0x120")],
    "MemoryAgentIntakeRefused": [("relay_counts_total", {"count": "refused_full"}, "0+1x120")],
    "MemoryAgentJournalLag": [("lag_events", {}, "5000x120")],
    "MemoryAgentQuarantineGrows": [("quarantine_events", {}, "0+1x120")],
    "MemoryAgentDiskReserve": [("disk_free_bytes", {}, "5e8x120")],
    "MemoryAgentHostRestarts": [("host_restarts_total", {}, "0+1x120")],
    "MemoryAgentRecallSlow": [
        ("recall_seconds_bucket", {"le": le}, f"0+{count}x120")
        for le, count in (("0.5", 50), ("1.0", 60), ("2.5", 60), ("+Inf", 60))
    ],
    "MemoryAgentEmbedderAway": [
        ("recalls_degraded_total", {"reason": "embedder_timeout"}, "0+30x120"),
        ("recall_seconds_count", {}, "0+60x120"),
    ],
}
"""The series that make each alert fire: name, labels, and values in promtool's notation."""
OTHER_CAUSES = {
    "MemoryAgentJournalLag": [("lag_seconds_bucket", {"le": "300.0"}, "0+60x120")],
    "MemoryAgentQuarantineGrows": [("quarantine_refused_total", {}, "0+1x120")],
    "MemoryAgentDiskReserve": [("nodes", {"state": "full"}, "1x120")],
    "MemoryAgentHostRestarts": [("part_restarts_total", {"part": "relay"}, "0+1x120")],
    "MemoryAgentEmbedderAway": [("part_up", {"part": "embedder"}, "0x120")],
}

Change = tuple[str, dict[str, str], str]


@pytest.fixture(scope="module")
def page() -> Iterator[dict[Series, float]]:
    """The metrics of a daemon. Those of its parts, which are not processes here, and of its disk are made up."""
    with gateway_in_new_folder() as served, closing(HttpCaller(served.http, served.token)) as caller:
        assert (caller.post("owner", {"run_id": "r"}).status, caller.post("run_end", {"run_id": "r"}).status) == (
            200,
            404,
        )
        found = samples(scraped(caller))
    for part in ("daemon", "relay", "embedder"):
        for name, value in (("part_up", 1.0), ("part_restarts_total", 0.0), ("part_resident_bytes", 1e8)):
            found[f"memory_agent_{name}", (("part", part),)] = value
    found["memory_agent_disk_free_bytes", ()], found["memory_agent_disk_size_bytes", ()] = 5e10, 1e11
    found["memory_agent_node_users", (("node", "m2"),)] = 0.0
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return [one for one in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] if one["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [target["expr"] for one in panels() for target in one["targets"]]


def selectors(expression: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Return the metrics that an expression names, with their label matchers."""
    found = re.findall(r"\b((?:memory_agent|process)_\w+|up\b)(?:\{([^}]*)\})?", expression)
    return [
        (name, {label: (kind, value) for label, kind, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers)})
        for name, matchers in found
    ]


@pytest.mark.parametrize("expression", expressions())
def test_every_figure_and_label_of_alerts_and_dashboard_is_exported(expression: str, page: dict[Series, float]) -> None:
    assert selectors(expression)
    for name, matchers in selectors(expression):
        known = [dict(labels) for found, labels in page if found == name] or [{}] * (name == "up")
        assert known, name
        for label, (kind, value) in matchers.items():
            if label in JOB:
                continue
            values = {labels[label] for labels in known}
            parts = re.sub(r"\((.*)\)", lambda match: match[0].replace("|", " "), value).split("|")
            for part in parts if kind in ("=", "=~", "!~") else ():
                assert any(re.fullmatch(part.replace(" ", "|"), one) for one in values), (name, label, part)
        grouped = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")} - JOB.keys()
        assert {label for label in grouped if label in {"le", *known[0]}} or not known[0] or not grouped


def test_every_figure_is_on_the_dashboard(page: dict[Series, float]) -> None:
    shown = {name for one in panels() for target in one["targets"] for name, _ in selectors(target["expr"])}
    ours = {name for name, _ in page if name.startswith("memory_agent_") and not name.endswith(("_created", "_sum"))}
    histograms = {name.removesuffix("_bucket") + "_count" for name in ours if name.endswith("_bucket")}
    assert ours - shown - histograms == set()


def test_the_dashboard_is_complete_and_its_panels_do_not_overlap() -> None:
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    titles = [one["title"] for one in document["panels"] if one["type"] == "row"]
    assert titles == ["Answers", "Ingest", "Learning", "Storage", "Machines"]
    assert len({one["id"] for one in document["panels"]}) == len(document["panels"])
    taken: set[tuple[int, int]] = set()
    for one in document["panels"]:
        place = one["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells
    for one in panels():
        assert one["title"]
        assert one["description"]
        assert all(target["legendFormat"] for target in one["targets"])


def test_each_alert_has_a_section_of_the_runbook_and_no_section_is_left_over() -> None:
    headings = re.findall(r"^## (.*)$", (FOLDER / "RUNBOOK.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = [heading.lower().replace(" ", "-") for heading in headings]
    named = [re.match(r"ops/deploy/RUNBOOK\.md#([\w-]+): \w", rule["annotations"]["runbook"]) for rule in rules()]
    assert all(named)
    assert [match[1] for match in named if match] == anchors
    assert {rule["alert"] for rule in rules()} == FIRING.keys()
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules())


def promtool(*words: str, cwd: Path) -> None:
    if not Path(PROMTOOL).exists():
        pytest.skip("needs promtool: make promtool")
    done = subprocess.run([PROMTOOL, *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_files_and_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$__range": "6h", "$instance": ".*"}
    shown = [target["expr"] for one in panels() for target in one["targets"]]
    for name, value in variables.items():
        shown = [expression.replace(name, value) for expression in shown]
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(shown)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", str(RULES), str(tmp_path / "panels.yml"), cwd=FOLDER)
    promtool("check", "config", "--syntax-only", "prometheus.yml", cwd=FOLDER)


def test_alerts_fire_for_their_causes_and_only_then(page: dict[Series, float], tmp_path: Path) -> None:
    cases = [case(page, set(), [])]
    cases += [case(page, {alert}, changes) for alert, changes in (*FIRING.items(), *OTHER_CAUSES.items())]
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML
    promtool("test", "rules", "tests.yml", cwd=tmp_path)


def case(page: dict[Series, float], firing: set[str], changes: list[Change]) -> dict[str, Any]:
    """Return a promtool test in which the scraped figures stay constant, except those in `changes`."""
    used = {name for rule in rules() for name, _ in selectors(rule["expr"])}
    values = {series: f"{value}x{MINUTES}" for series, value in page.items() if series[0] in used}
    values["up", ()] = f"1x{MINUTES}"
    for name, labels, changed in changes:
        series = (name if name == "up" else f"memory_agent_{name}", tuple(sorted(labels.items())))
        assert series in values, series
        values[series] = changed
    written = []
    for (name, labels), value in values.items():
        named = ",".join(f"{label}={json.dumps(one)}" for label, one in [*labels, *JOB.items()])
        written.append({"series": f"{name}{{{named}}}", "values": value})
    expected = []
    for rule in rules():
        count = f'count(ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}}) >= bool 1'
        samples = [{"labels": "{}", "value": 1}] if rule["alert"] in firing else []
        expected.append({"expr": count, "eval_time": "110m", "exp_samples": samples})
    return {"interval": "1m", "input_series": written, "promql_expr_test": expected}
