"""Progress is drawn where somebody looks, and nowhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pulsar_on_spark.cli import output


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "is_drawn"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_progress(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, quiet: bool, is_drawn: bool) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(output, "err", lambda: Console(file=drawn, force_terminal=is_terminal, width=80))
    with output.progress(quiet) as report:
        report("verify", 0, 3)
        report("verify", 3, 3)
    assert ("verify" in drawn.getvalue(), "3/3" in drawn.getvalue()) == (is_drawn, is_drawn)
