"""Output of commands: tables and progress for terminals, JSON for scripts, errors in one sentence."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_on_spark.model.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from pulsar_on_spark.topic.catalog.progress import Progress as Report

Cell = str | int | None


def out() -> Console:
    """Return the console on standard output, for results. Without a terminal, lines are not wrapped."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200, highlight=False)


def err() -> Console:
    """Return the console on standard error, for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False)


def say(text: str) -> None:
    """Print a line on standard output, with control characters escaped."""
    print(printable(text), flush=True)  # Rich, which tables need, takes 40 ms to import


def fail(text: str) -> None:
    """Print an error as one line on standard error."""
    note(" ".join(text.split()))


def note(text: str) -> None:
    """Print a note, which is neither a result nor an error, on standard error."""
    print(f"pulsarpy: {printable(text)}", file=sys.stderr)


def done(text: str, as_json: bool, **what: object) -> None:
    """Report a change that a command has made: print `text`, or with `as_json` print `what` as JSON."""
    if as_json:
        print_json(what)
    else:
        say(text)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table, with numbers right-aligned and commas between thousands. Without rows, print one line."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    if not cells:
        say(f"{title}: none")
        return
    shown = Table(title=title, title_justify="left", title_style="bold")
    for index, name in enumerate(columns):
        is_number = any(isinstance(row[index], int) and not isinstance(row[index], bool) for row in cells)
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(_text(cell) for cell in row))
    out().print(shown)


def size(size_bytes: int | None) -> str:
    """Return a number of bytes with a unit, for display; "-" for None."""
    from rich.filesize import decimal

    return "-" if size_bytes is None else decimal(size_bytes)


def print_json(value: object) -> None:
    """Print a value of the Python API as JSON, with dataclasses and records as objects."""
    sys.stdout.write(json.dumps(_plain(value), indent=2) + "\n")


@contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Yield a function that shows progress bars on standard error, unless `quiet` is true or there is no terminal."""
    if quiet or not sys.stderr.isatty():  # Rich before 14.3 would print an empty line
        yield lambda step, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield report


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """While the context is open, show `what` on standard error, if that is a terminal."""
    with err().status(what) if sys.stderr.isatty() else nullcontext():
        yield


def _text(cell: Cell) -> str:
    from rich.markup import escape

    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else escape(printable(cell))


def _plain(value: object) -> object:
    if (dump := getattr(value, "model_dump", None)) is not None:  # Pydantic is slow to import
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path | datetime):
        return str(value)
    return value
