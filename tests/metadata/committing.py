"""A process of its own that commits to a root; run by path, one line of output a reported commit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore


def increment(store: MetadataStore, name: str, key: str) -> int:
    """Add one to a counter under its key; returns what it became."""
    became = 0

    def decide(view: View) -> Change:
        nonlocal became
        found = view.get(TenantRecord, name)
        became = 1 + (found.model_extra["count"] if found is not None and found.model_extra else 0)
        return Change(puts=[TenantRecord(tenant=name, count=became)], keys={key: None})

    store.commit(decide)
    return became


def main(root: str, process: str, commits: str, *tasks: str) -> None:
    """Increment `shared`, `shared` again and `p<process>` in turn; with tasks, housekeep and vacuum in between."""
    store = MetadataStore(Path(root))
    for number in range(int(commits)):
        name = f"p{process}" if number % 3 == 0 else f"shared{number % 2}"
        print(name, increment(store, name, f"key/{name}"), flush=True)
        if "cursors" in tasks and number % 5 == 0:
            store.append_cursors([CursorRow("t", f"s{process}", 0, 1, number, 1, number)])
        if "housekeep" in tasks and number % 7 == 0:
            store.fold_and_checkpoint()
        if "vacuum" in tasks and number % 25 == 0:
            store.vacuum()
        if "wait" in tasks:
            time.sleep(0.002)


def forever(root: str) -> None:
    """Commit ever new records and report each on a line of its own, to be killed or frozen at any moment."""
    store = MetadataStore(Path(root))
    number = sum(record.tenant.startswith("r") for record in store.view().all(TenantRecord))
    while True:
        record = TenantRecord(tenant=f"r{number:06d}")
        store.commit(lambda view, record=record: Change(puts=[record], keys={f"key/{record.tenant[-1]}": None}))
        store.append_cursors([CursorRow("t", "s", 0, 1, number, 1, number)])
        # One write(2): what is in the pipe was reported.
        os.write(1, f"{number}\n".encode())
        number += 1


if __name__ == "__main__":
    if sys.argv[1] == "forever":
        forever(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
