"""The record as a table on the terminal and as docs/conformance.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from conformance.record import SIDES, Outcomes, Record
from conformance.suites import SUITES

HEAD = """# Conformance

Written by `make conformance` from the output of the official suites of Pulsar's clients.
Each test runs in a process of its own, against a broker with the settings that its suite expects
(`conformance/suites.py`); none is left out. A test that fails is repeated once at a fresh broker,
and the page says so if it then passes; a test that needs a missing environment (Docker) is not
repeated. Brokers have TLS, authentication and authorization as the suites' own settings say, with
the suites' certificates, keys and tokens.

The last column has the same suites against a real Pulsar 4.2.4, one broker with one copy and the
same settings. Every test's outcome is in [conformance.json](conformance.json), which the next run
must not fall below.
"""
NAMES = {"ours": "here", "pulsar": "Pulsar 4.2.4"}


def print_outcomes(suite: str, outcomes: Outcomes, console: Console) -> None:
    """Print the tests of a suite that did not pass, and the sums."""
    table = Table("test", "result", "why", title=suite)
    for test, outcome in outcomes.items():
        if outcome.result != "passed" or outcome.why:
            table.add_row(test, outcome.result, outcome.why)
    console.print(table)
    console.print(f"{suite}: {_sums(outcomes)}")


def write_page(record: Record, path: Path) -> None:
    """Write the page of the documentation."""
    lines = [HEAD, *_table(["suite", "tests", *NAMES.values()], _summary(record))]
    for suite in SUITES.values():
        rows = _not_passed(record, suite.name)
        if rows:
            lines.append(f"## Not passed at once: {suite.name}\n\n{suite.source}.\n")
            lines += _table(["test", *NAMES.values(), "why"], rows)
    path.write_text("\n".join(lines))


def _summary(record: Record) -> list[list[str]]:
    rows = []
    for suite in SUITES.values():
        sides = [record.outcomes(suite.name, side) for side in SIDES]
        rows.append([suite.source, str(max(map(len, sides))), *(_sums(each) for each in sides)])
    return rows


def _sums(outcomes: Outcomes) -> str:
    if not outcomes:
        return "not run"
    counts = Counter(each.result for each in outcomes.values())
    needs = Counter(each.why for each in outcomes.values() if each.result == "failed" and each.why.startswith("needs "))
    parts = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    if needs:
        parts[-1] += f" (of these {', '.join(f'{count} {why}' for why, count in needs.most_common())})"
    if counts["skipped"]:
        parts.append(f"{counts['skipped']} skipped by themselves")
    return ", ".join(parts)


def _not_passed(record: Record, suite: str) -> list[list[str]]:
    sides = [record.outcomes(suite, side) for side in SIDES]
    rows = []
    for test in {test: None for outcomes in sides for test in outcomes}:
        found = [outcomes.get(test) for outcomes in sides]
        if any(each is not None and (each.result != "passed" or each.why) for each in found):
            results = ["not run" if each is None else each.result for each in found]
            rows.append([f"`{test}`", *results, _cell(next(each.why for each in found if each and each.why))])
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)] + [""]
