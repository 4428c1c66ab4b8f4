"""The present state of the main table: the newest row of each record key, in memory, indexed by kind and topic."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

import pyarrow as pa

from pulsar_on_spark.metadata.records import COLUMN_FIELDS, Record

R = TypeVar("R", bound=Record)

MAIN_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("cas_keys", pa.list_(pa.string())),
        pa.field("token", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("topic_id", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("first_entry", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("file_id", pa.string()),
        pa.field("body", pa.string(), nullable=False),
    ]
)
"""The main table. `seq` is the version that the row's writer read, plus one: of a record key the largest counts."""

_READ_COLUMNS = ("kind", "id", "seq", "deleted", *COLUMN_FIELDS, "body")


class _Row:
    """A stored row; its record is parsed when first asked for."""

    __slots__ = ("_fields", "_record", "deleted", "seq")

    def __init__(self, seq: int, deleted: bool, fields: tuple[object, ...]) -> None:
        self.seq = seq
        self.deleted = deleted
        self._fields: tuple[object, ...] | None = fields
        self._record: Record | None = None

    @property
    def topic_id(self) -> str | None:
        if self._fields is not None:
            return cast("str | None", self._fields[0])
        return cast("str | None", getattr(self._record, "topic_id", None))

    def record(self, cls: type[R]) -> R:
        if self._record is None:
            assert self._fields is not None
            values = json.loads(cast(str, self._fields[-1]))
            for name, value in zip(COLUMN_FIELDS, self._fields, strict=False):
                if value is not None:
                    values[name] = value
            self._record = cls.model_validate(values)
            self._fields = None
        return cast(R, self._record)


class State:
    """Takes rows in any order, any number of times; answers with the newest of each record key."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, _Row]] = {}
        self._ids: dict[tuple[str, str | None], list[str]] = {}

    def apply(self, table: pa.Table) -> None:
        """Take in rows of the main table."""
        columns = [table.column(name).to_pylist() for name in _READ_COLUMNS]
        for kind, record_id, seq, deleted, *fields in zip(*columns, strict=True):
            known = self._rows.setdefault(kind, {}).get(record_id)
            if known is not None and known.seq >= seq:
                continue
            row = _Row(seq, deleted, tuple(fields))
            self._rows[kind][record_id] = row
            if known is None or known.deleted:
                if not deleted:
                    self._index(kind, row.topic_id, record_id)
            elif deleted:
                self._unindex(kind, known.topic_id, record_id)

    def _index(self, kind: str, topic_id: str | None, record_id: str) -> None:
        for scope in {None, topic_id}:
            ids = self._ids.setdefault((kind, scope), [])
            if not ids or ids[-1] < record_id:
                ids.append(record_id)
            else:
                insort(ids, record_id)

    def _unindex(self, kind: str, topic_id: str | None, record_id: str) -> None:
        for scope in {None, topic_id}:
            ids = self._ids[(kind, scope)]
            del ids[bisect_left(ids, record_id)]

    def row(self, kind: str, record_id: str) -> _Row | None:
        """The newest row, deleted or not."""
        return self._rows.get(kind, {}).get(record_id)

    def ids(self, kind: str, topic_id: str | None = None) -> list[str]:
        """Ids of the live records of a kind (of one topic), sorted."""
        return self._ids.get((kind, topic_id), [])


@dataclass(frozen=True)
class View:
    """What a decision may look at: the main table at one version. Valid until the store's next refresh."""

    state: State
    version: int

    def get(self, cls: type[R], record_id: str) -> R | None:
        """The live record, or None."""
        row = self.state.row(cls.kind, record_id)
        return None if row is None or row.deleted else row.record(cls)

    def last(self, cls: type[R], record_id: str) -> R | None:
        """The newest record even if it is deleted: a tombstone keeps the last values."""
        row = self.state.row(cls.kind, record_id)
        return None if row is None else row.record(cls)

    def all(self, cls: type[R], topic_id: str | None = None) -> list[R]:
        """The live records of a kind, or of one topic of a kind, by id."""
        return [self._live(cls, record_id) for record_id in self.state.ids(cls.kind, topic_id)]

    def newest(self, cls: type[R], topic_id: str) -> R | None:
        """The live record with the largest id of a topic: the end of a chain."""
        ids = self.state.ids(cls.kind, topic_id)
        return self._live(cls, ids[-1]) if ids else None

    def since(self, cls: type[R], topic_id: str, record_id: str) -> list[R]:
        """The live records of a topic from the last one at or before `record_id` on, by id."""
        ids = self.state.ids(cls.kind, topic_id)
        start = bisect_left(ids, record_id)
        if start == len(ids) or ids[start] != record_id:
            start = max(start - 1, 0)
        return [self._live(cls, found) for found in ids[start:]]

    def _live(self, cls: type[R], record_id: str) -> R:
        record = self.get(cls, record_id)
        assert record is not None, f"index names {cls.kind} {record_id}, which is not live"
        return record


def encode(rows: Iterable[tuple[Record, bool]], seq: int, token: str, keys: Iterable[str]) -> pa.Table:
    """Rows (record, deleted) as a table for one commit."""
    cas_keys = sorted(keys)
    now = datetime.now(UTC)
    encoded = []
    for record, deleted in rows:
        values = record.model_dump(mode="json", by_alias=True)
        columns = {name: values.pop(name) for name in COLUMN_FIELDS if name in values}
        encoded.append(
            {
                "kind": record.kind,
                "id": record.record_id,
                "seq": seq,
                "cas_keys": cas_keys,
                "token": token,
                "deleted": deleted,
                "committed_at": now,
                **columns,
                "body": json.dumps(values, separators=(",", ":"), sort_keys=True),
            }
        )
    return pa.Table.from_pylist(encoded, schema=MAIN_SCHEMA)
