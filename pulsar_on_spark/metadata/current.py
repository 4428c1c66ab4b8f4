"""The metadata tables for users: their current rows, as an Arrow table or by SQL.

The tables also hold superseded rows and tombstones, which a plain Delta reader returns, too. The functions of this
module leave these rows out and return all other rows as stored: fields without a column of their own are JSON in
`body`. The functions repair nothing, acquire no lock and need no write permission.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.metadata.cursors_table import CURSORS_ORDER, CURSORS_SCHEMA
from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.metadata.log.tables import METADATA, has_table, read_only_log
from pulsar_on_spark.metadata.patience import retried
from pulsar_on_spark.metadata.state import MAIN_ORDER, MAIN_SCHEMA
from pulsar_on_spark.model.errors import InvalidArgumentError, NotARootError
from pulsar_on_spark.storage.root_place import parse_place

TableName = Literal["main", "cursors"]


@dataclass(frozen=True, slots=True)
class _Shape:
    schema: pa.Schema
    order: folding.Order


_SHAPES = {"main": _Shape(MAIN_SCHEMA, MAIN_ORDER), "cursors": _Shape(CURSORS_SCHEMA, CURSORS_ORDER)}


def current(root: Path | str, table: TableName, kind: str | None = None) -> pa.Table:
    """Read the current rows of a metadata table: the newest row of each record key, without tombstones.

    Args:
        root: the root's path.
        table: "main" (record key: kind, id) or "cursors" (topic_id, subscription, slot).
        kind: for "main", the kind of rows to return, for example "topic", "segment", "subscription"; None for all.

    Returns:
        The rows with all stored columns, in no particular order.

    Raises:
        InvalidArgumentError: there is no such table, or `kind` is given for "cursors".
        NotARootError: `root` has no such table.
        MetadataError: the table cannot be read.
    """
    shape = _shape(table, kind)
    place = parse_place(root)
    if not has_table(place, table):
        raise NotARootError(f"{root} is not a pulsar_on_spark root: give the path of a root.")
    log = TableLog(read_only_log(place, table))
    news = retried(nullcontext(), f"{place}/{METADATA}/{table}", log.refresh)
    rows = pa.concat_tables(news.tables, promote_options="default") if news.tables else shape.schema.empty_table()
    if kind is not None:
        rows = rows.filter(pc.equal(rows.column("kind"), kind))
    rows = rows.filter(pa.array(folding.newest(rows, shape.order)))
    return rows.filter(pc.invert(rows.column("deleted"))) if "deleted" in rows.column_names else rows


def current_sql(root: Path | str, table: TableName, kind: str | None = None, source: str | None = None) -> str:
    r"""Return a SELECT equivalent to `current`, for Spark with Delta or any other engine with window functions.

    For example, the segments of each topic by size:

        spark.sql(f"SELECT topic_id, sum(bytes) FROM ({current_sql(root, 'main', 'segment')}) GROUP BY topic_id")

    Args:
        root: the root's path.
        table: "main" or "cursors".
        kind: for "main", the kind of rows to select; None for all.
        source: the table to select from; None for the table's path in the syntax of Spark with Delta.

    Raises:
        InvalidArgumentError: there is no such table, or `kind` is given for "cursors".
    """
    shape = _shape(table, kind)
    if source is None:
        place = f"{parse_place(root)}/{METADATA}/{table}".replace("`", "``")
        source = f"delta.`{place}`"
    key = ", ".join(shape.order.key)
    rank = ", ".join(f"{name} DESC" for name in shape.order.rank)
    conditions = ["recency = 1"]
    if "deleted" in shape.schema.names:
        conditions.append("NOT deleted")
    if kind is not None:
        conditions.append("kind = '{}'".format(kind.replace("'", "''")))
    return (
        f"SELECT {', '.join(shape.schema.names)} FROM ("
        f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {rank}) AS recency FROM {source}"
        f") AS versions WHERE {' AND '.join(conditions)}"
    )


def _shape(table: str, kind: str | None) -> _Shape:
    if table not in _SHAPES:
        raise InvalidArgumentError(f"There is no metadata table {table!r}: choose main or cursors.")
    if kind is not None and table != "main":
        raise InvalidArgumentError(f"The rows of the metadata table {table} have no kinds: leave out kind={kind!r}.")
    return _SHAPES[table]
