"""Every query of the dashboard and of the alerts asks for metrics that there are; every alert's runbook is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.testing.running_broker import RunningBroker

from .conftest import WAIT_MS

DOCS = Path(__file__).parents[3] / "docs"
_NAME = re.compile(r"\b(?:pulsar|pulsarpy|process)_\w+")
_LABELS = re.compile(r"\{[^}]*\}|by \([^)]*\)")


def dashboard_queries() -> Iterator[str]:
    dashboard = json.loads((DOCS / "dashboard" / "pulsarpy.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load((DOCS / "dashboard" / "alerts.yml").read_text())["groups"]
    return group["rules"]


def test_queries_ask_for_what_there_is(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.create_producer(topic).send(b"a")
    answer = httpx.get(f"{broker.web_url}/metrics", timeout=WAIT_MS / 1000).raise_for_status()
    there = {each.name for family in text_string_to_metric_families(answer.text) for each in family.samples}
    queries = [*dashboard_queries(), *(str(rule["expr"]) for rule in rules())]
    asked = {name for query in queries for name in _NAME.findall(_LABELS.sub("", query))}
    assert len(asked) > 30
    assert asked <= there


def test_alerts_name_what_to_do() -> None:
    headings = re.findall(r"^#+ (.+)$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    anchors = {f"docs/metrics.md#{re.sub('[^a-z ]', '', each.lower()).replace(' ', '-')}" for each in headings}
    found = rules()
    assert found
    for rule in found:
        assert rule["annotations"]["runbook"] in anchors, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert len({rule["alert"] for rule in found}) == len(found)
