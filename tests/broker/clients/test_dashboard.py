"""Every query of the dashboard and of the alerts asks for metrics and labels that there are, and matches what has the
same ones; every alert's runbook is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

from .conftest import WAIT_MS

DOCS = Path(__file__).parents[3] / "docs"
_NAME = re.compile(r"\b(?:pulsar|pulsarpy|process)_\w+")
_SELECTED = re.compile(r"\{([^}]*)\}")
_SUMMED = re.compile(r"by \(([^)]*)\)")
_MATCHED = re.compile(r"\b(?:on|ignoring) \(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")
_SCRAPED = {"job", "instance"}
"""Labels that Prometheus itself gives."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the text beside it, with labels in braces."""

    expression: str
    text: str = ""

    @property
    def names(self) -> set[str]:
        """The metrics."""
        return set(_NAME.findall(re.sub(f"{_SELECTED.pattern}|{_SUMMED.pattern}", "", self.expression)))

    @property
    def asked(self) -> set[str]:
        """The labels by which it selects, sums and matches."""
        selected = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", " ".join(_SELECTED.findall(self.expression)))
        listed = ", ".join(_SUMMED.findall(self.expression) + _MATCHED.findall(self.expression))
        return {*selected, *re.findall(r"\w+", listed)}

    @property
    def shown(self) -> set[str]:
        """The labels in the text."""
        return set(_SHOWN.findall(self.text))

    def left(self, there: set[str]) -> set[str]:
        """Return the labels of a metric that the result has."""
        summed = _SUMMED.findall(self.expression)
        if summed:
            return set(re.findall(r"\w+", ", ".join(summed)))
        return set() if self.expression.startswith("sum(") else there | _SCRAPED


def dashboard_queries() -> Iterator[Query]:
    dashboard = json.loads((DOCS / "dashboard" / "pulsarpy.json").read_text())
    for panel in dashboard["panels"]:
        yield from (Query(target["expr"], target["legendFormat"]) for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert asked is not None
            yield Query(asked[1], f"{{{{{asked[2]}}}}}")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCS / "dashboard" / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with everything that has metrics, TLS among them."""
    settings = TlsFiles(tmp_path_factory.mktemp("tls")).settings()
    with RunningBroker(tmp_path_factory.mktemp("broker") / "root", settings) as running:
        yield running


def test_dashboard_queries_use_existing_metrics(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.create_producer(topic).send(b"a")
    answer = httpx.get(f"{broker.web_url}/metrics", timeout=WAIT_MS / 1000).raise_for_status()
    samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
    there = {each.name: set(each.labels) for each in samples}
    there |= {"up": set()}
    queries = [*dashboard_queries(), *(Query(rule["expr"], rule["annotations"]["summary"]) for rule in rules())]
    assert len({name for query in queries for name in query.names}) > 30
    for query in queries:
        assert query.names <= there.keys(), query
        labels = [there[name] for name in query.names]
        known = set[str]().union(*labels)
        assert query.asked <= known | _SCRAPED, query
        assert query.shown <= query.left(known), query
        # Without these words an operator's sides match by all labels: what has others gives nothing, ever.
        assert _MATCHED.search(query.expression) or all(each == labels[0] for each in labels), query


def test_alerts_name_their_remedy() -> None:
    headings = re.findall(r"^#+ (.+)$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    anchors = {f"docs/metrics.md#{re.sub('[^a-z ]', '', each.lower()).replace(' ', '-')}" for each in headings}
    found = rules()
    assert found
    for rule in found:
        assert rule["annotations"]["runbook"] in anchors, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert len({rule["alert"] for rule in found}) == len(found)
