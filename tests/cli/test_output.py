"""Progress is drawn on terminals alone; printed text from others does not control a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from pulsar_on_spark.cli import output


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "is_drawn"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_progress(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, quiet: bool, is_drawn: bool) -> None:
    drawn = _console(monkeypatch, is_terminal)
    with output.progress(quiet) as report:
        report("verify", 0, 3)
        report("verify", 3, 3)
    assert ("verify" in drawn.getvalue(), "3/3" in drawn.getvalue()) == (is_drawn, is_drawn)
    assert bool(drawn.getvalue()) == is_drawn, "not even an empty line"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_waits_are_shown_on_terminals(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    said = _console(monkeypatch, is_terminal)
    with output.waiting("compacting"):
        pass
    assert bool(said.getvalue()) == ("compacting" in said.getvalue()) == is_terminal


def _console(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    """Return what Rich writes on standard error."""
    written = io.StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(output, "err", lambda: Console(file=written, force_terminal=is_terminal, width=80))
    return written


EVIL = "a\x1b]0;title\x07\u202eb\u2028c"
SHOWN = r"a\x1b]0;title\x07\u202eb\u2028c"


def test_output_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(EVIL)
    output.table("T", ("name",), [[EVIL]])
    output.fail(EVIL)
    output.print_json({"name": EVIL})
    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 2
    assert SHOWN.partition(r"\u2028")[0] in printed.err
    assert (printed.out + printed.err).replace("\n", "").isprintable()


def test_names_between_colons_are_no_emojis(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("persistent://public/default/:smile:")
    output.note("[bold] :smile:")
    output.fail("no topic :smile:")
    printed = capsys.readouterr()
    assert printed.out == "persistent://public/default/:smile:\n"
    assert printed.err == "pulsarpy: [bold] :smile:\npulsarpy: no topic :smile:\n"
