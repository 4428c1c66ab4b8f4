"""The benchmark page and the README's chart say what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.harness import Benchmark, Goal, Result, ratio
from bench.ratios import CHART, Bar, bars, broker_ratios, draw
from bench.report import write_markdown


def test_the_page_has_ratios_and_keeps_goals_to_developers(tmp_path: Path):
    goal = Goal("one / two", ratio("one", "two"), at_least=2.5)
    result = Result(Benchmark("batch read", "ms", "some work", [], [goal]), {"one": [3.0], "two": [2.0]}, {}, [0.5])
    write_markdown([result], {"packages": {}}, {}, 1, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| one / two | 1.50 |" in page
    assert not re.search("goal|missed|reached|2.5", page)


def test_the_chart_shows_the_figures_of_the_documentation():
    shown = re.findall(r">(\d+\.\d\d) x<", CHART.read_text())
    assert sorted(shown) == sorted(f"{bar.ratio:.2f}" for bar in bars()), "run python -m bench.ratios"


def test_the_brokers_ratios_are_those_of_three_copies():
    page = "| | copies | Pulsar | pulsar_on_spark | ratio |\n|---|---|---|---|---|\n"
    page += "| produce | 3, ack 2 | 2/s | 4/s | 2.00 |\n| | 1 | 2/s | 2/s | 1.00 |\n\n| later | 3 | 1 | 9 | 9.00 |\n"
    assert broker_ratios(page) == {"produce": 2.0}


def test_a_chart_that_is_drawn_twice_has_the_same_bytes(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        draw([Bar("a", 0.5), Bar("b", 2.0)], tmp_path / name / "chart.svg")
    chart = (tmp_path / "one" / "chart.svg").read_bytes()
    assert chart == (tmp_path / "two" / "chart.svg").read_bytes()
    assert b">0.50 x<" in chart


def test_a_figure_that_the_documentation_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.ratios.BROKER", (("a broker", "no such work", False),))
    with pytest.raises(KeyError, match="no such work"):
        bars()
