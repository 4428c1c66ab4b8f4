"""The cost of a root with many topics: `python -m bench.many_topics [--topics 10000]`. In process, on one disk."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.attach import attach
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

TOPICS_A_COMMIT = 100
TOPICS_A_WRITE = 1_000


def measure(root: Root, count: int) -> list[tuple[str, float]]:
    """Return (name, seconds) of each step, in order."""
    names = [f"t{number}" for number in range(count)]
    steps: list[tuple[str, Callable[[], object]]] = [
        (f"create, {TOPICS_A_COMMIT} topics a commit", lambda: _create(root, names)),
        ("create one more topic", lambda: root.create_topic("more")),
        ("list topics", root.topics),
        (f"write a message to each, {TOPICS_A_WRITE} topics a write", lambda: _write(root, names)),
        ("write a message to one topic", lambda: messages.write(root, names[0], [b"2"])),
        ("status", root.status),
        ("open the root", lambda: Root.open(root.path)),
        ("maintain", root.maintain),
        ("maintain again", root.maintain),
        ("start and stop a broker", lambda: RunningBroker(root.path).stop()),
    ]
    return [(name, _timed(step)) for name, step in steps]


def _create(root: Root, names: list[str]) -> None:
    for at in range(0, len(names), TOPICS_A_COMMIT):
        some: dict[TopicName, int | None] = {TopicName.parse(name): None for name in names[at : at + TOPICS_A_COMMIT]}
        root.store.commit(partial(_creation, wanted=some))


def _creation(view: View, wanted: Mapping[TopicName, int | None]) -> Change | None:
    return catalog.creation_of_missing(view, wanted)[0]


def _write(root: Root, names: list[str]) -> None:
    for at in range(0, len(names), TOPICS_A_WRITE):
        rows: dict[str, pa.RecordBatch] = {name: messages.make_rows([b"1"]) for name in names[at : at + TOPICS_A_WRITE]}
        write_id = messages.new_write_id()
        attach(root.store, write_id, [messages.stage(root, rows, write_id)], None)


def _timed(step: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s


def main() -> int:
    """Measure all steps, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Root.create(Path(folder) / "root"), arguments.topics)
    table = Table("step", "seconds", title=f"{arguments.topics:,} topics, load average {os.getloadavg()[0]:.1f}")
    for name, seconds in found:
        table.add_row(name, f"{seconds:.3f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
