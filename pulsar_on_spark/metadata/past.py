"""The metadata of a root at a past moment that the logs of both tables still cover. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import pyarrow as pa

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.cursors_table import CURSORS_ORDER, CURSORS_SCHEMA, decode_cursors
from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.data_files import decoding
from pulsar_on_spark.metadata.log.history import History
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.metadata.log.tables import METADATA, read_only_log
from pulsar_on_spark.metadata.patience import retried
from pulsar_on_spark.metadata.records import Record
from pulsar_on_spark.metadata.state import MAIN_ORDER, MAIN_SCHEMA, State, View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.storage.root_place import RootPlace

R = TypeVar("R", bound=Record)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Past:
    """Both tables at one moment, and the main table's later rows.

    Attributes:
        version: The version of the main table.
        at: The moment: the time given to `read_past`, or the time of the version given.
        view: The main table.
        main: The main table's rows: the newest row of each record key, including tombstones.
        keys: The main table's compare-and-set keys.
        cursors: The cursor rows that counted.
        later: The rows that were committed to the main table after the moment, one Arrow table for each commit.
    """

    version: int
    at: datetime
    view: View
    main: pa.Table
    keys: Mapping[str, int]
    cursors: Sequence[CursorRow]
    later: Sequence[pa.Table]

    def later_records(self, cls: type[R]) -> Iterator[R]:
        """Iterate over the records of a kind that were committed after the moment, in the order of the commits."""
        for number, rows in enumerate(self.later):
            state = State()
            with decoding("main"):
                state.apply(rows)
            yield from View(state, self.version + number).all(cls)


def read_past(place: RootPlace, moment: int | datetime) -> Past:
    """Read the metadata as of a moment.

    The cursors are as of the same time as the main table, by the clocks of the processes that wrote the two tables.

    Args:
        place: The root's folder or object store.
        moment: A version of the main table, or a time with a zone.

    Raises:
        InvalidArgumentError: the moment is in the future, or before the oldest moment that the logs cover; the error
            names that moment.
        MetadataError: the tables are damaged, or cannot be read now.
    """
    main, cursors = (TableLog(read_only_log(place, table)) for table in ("main", "cursors"))
    # Cursors are read first, so those of the newest version are never newer than it.
    cursors_then, main_then = _history(place, "cursors", cursors), _history(place, "main", main)
    version, at_ms = _resolve(place, main_then, cursors_then, moment)
    snapshot = main_then.snapshot(version)
    rows = _newest(main.read(snapshot.files.values()), MAIN_SCHEMA, MAIN_ORDER)
    state = State()
    with decoding(f"{place}/{METADATA}/main"):
        state.apply(rows)
    cursor_files = cursors_then.snapshot(cursors_then.version_at(at_ms)).files.values()
    return Past(
        version,
        _EPOCH + timedelta(milliseconds=at_ms),
        View(state, version),
        rows,
        snapshot.keys,
        decode_cursors(_newest(cursors.read(cursor_files), CURSORS_SCHEMA, CURSORS_ORDER)),
        # A fold only repeats rows.
        [rows for entry in main_then.behind(version) if not entry.removed for rows in main.read(entry.added)],
    )


def _history(place: RootPlace, table: str, log: TableLog) -> History:
    return retried(nullcontext(), f"{place}/{METADATA}/{table}", log.history)


def _newest(tables: Sequence[pa.Table], schema: pa.Schema, order: folding.Order) -> pa.Table:
    rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="default").combine_chunks()
    return rows.filter(pa.array(folding.newest(rows, order)))


def _resolve(place: RootPlace, main: History, cursors: History, moment: int | datetime) -> tuple[int, int]:
    """Return the version of the main table, and the moment in milliseconds since 1970 (raises as `read_past`)."""
    oldest = _oldest(main, cursors)
    kept = (
        f"the logs of {place}/{METADATA} go from version {oldest} of {_in_words(main.time_ms(oldest))} to version "
        f"{main.newest} of {_in_words(main.time_ms(main.newest))}"
    )
    if isinstance(moment, int):
        if not oldest <= moment <= main.newest:
            raise InvalidArgumentError(f"Version {moment} is not kept: give a version that is kept ({kept}).")
        return moment, max(main.time_ms(moment), cursors.times_ms[0])
    if moment > datetime.now(UTC):
        raise InvalidArgumentError(f"The time {moment.isoformat()} is in the future: give a past time ({kept}).")
    at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    version = main.version_at(at_ms)
    if version < oldest or at_ms < cursors.times_ms[0]:
        raise InvalidArgumentError(f"The state of {moment.isoformat()} is not kept: give a time that is kept ({kept}).")
    return version, at_ms


def _oldest(main: History, cursors: History) -> int:
    """Return the oldest version that has a root record, and whose time the cursors' log covers."""
    first = main.base.version
    while main.snapshot(first).keys.get("root") is None:  # the creation of a root takes two versions
        first += 1
    # A version is the table's state until the next version.
    return max(first, min(main.version_at(cursors.times_ms[0]), main.newest))


def _in_words(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
