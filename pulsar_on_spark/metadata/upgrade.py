"""The upgrade of a root's tables from format 1, in which delta-rs wrote the log, to the project's own log.

For each table, one log entry replaces all rows by the rows that count, with checksums. `main` is upgraded first,
because its new root record keeps programs of format 1 from writing to `cursors`. After a crash between the tables, the
next attempt completes the upgrade. Until then, cursors can be read, but not written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from pulsar_on_spark.metadata import state
from pulsar_on_spark.metadata.cursors_table import CURSORS_ORDER
from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.state import State, View
from pulsar_on_spark.metadata.store import FORMAT_VERSION
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError
from pulsar_on_spark.storage.durability import locked, unheld


def upgrade_tables(root: Path) -> bool:
    """Upgrade both tables. No other process may use the root.

    Returns:
        True if at least one table was upgraded; False if both were upgraded before.

    Raises:
        CorruptMetadataError: a table is damaged; nothing was changed.
        MetadataError: a table cannot be read or written now, or a program of an older version has the table open.
    """
    lock_file = root / "lock"
    folders = {name: root / "metadata" / name for name in ("main", "cursors")}
    with locked(lock_file), ExitStack() as stack:
        for folder in folders.values():
            if not stack.enter_context(unheld(folder)):
                raise MetadataError(
                    f"A process of an older version has {folder} open: stop all processes that use the root, and try "
                    "again."
                )
        logs = {name: TableLog(LocalLog(folder, lock_file)) for name, folder in folders.items()}
        tables = {name: _rows(folders[name], log) for name, log in logs.items()}
        if all(log.is_chained for log in logs.values()):
            return False
        if not logs["main"].is_chained:
            log, main = logs["main"], tables["main"]
            rows = pa.concat_tables([main, _root_row(main, log.version)], promote_options="default")
            _rewrite(log, rows, state.MAIN_ORDER, {"root": (log.key_version("root") or 0) + 1})
        if not logs["cursors"].is_chained:
            _rewrite(logs["cursors"], tables["cursors"], CURSORS_ORDER, {})
        return True


def _rows(folder: Path, log: TableLog) -> pa.Table:
    """Return a table's rows, after a comparison of its files with the checksums of format 1.

    Raises:
        CorruptMetadataError: a file differs from its checksum.
    """
    news = log.refresh()
    log.taken_in()
    known = _checksums(folder / "_checksums")
    for file in log.files:
        content = (folder / file.name).read_bytes()
        if known.get(file.name, [len(content), crc32c(content)]) != [len(content), crc32c(content)]:
            raise CorruptMetadataError(
                f"The metadata file {folder / file.name} is damaged, and nothing was changed: restore the root's "
                "metadata from a backup into an empty folder."
            )
    return pa.concat_tables(news.tables, promote_options="default") if news.tables else pa.table({})


def _checksums(folder: Path) -> Mapping[str, list[int]]:
    known: dict[str, list[int]] = {}
    for path in folder.glob("*"):
        line = path.read_bytes().partition(b"\n")[0]
        try:
            stored = json.loads(line)
        except ValueError:  # torn by a crash, as format 1 allows
            continue
        if isinstance(stored, list):
            known |= stored[1]
    return known


def _rewrite(log: TableLog, rows: pa.Table, order: folding.Order, keys: Mapping[str, int]) -> None:
    kept = rows.filter(pa.array(folding.newest(rows, order))) if rows.num_rows else rows
    log.replace_all(kept, keys)
    log.refresh()
    log.checkpoint()


def _root_row(main: pa.Table, version: int) -> pa.Table:
    """Encode the root's record with this version's format version."""
    rows = State()
    rows.apply(main)
    record = View(rows, version).get(RootRecord, "root")
    assert record is not None, "an open root has its record"
    upgraded = record.model_copy(update={"format_version": FORMAT_VERSION})
    return state.encode([(upgraded, False)], version + 1, "", ("root",))
