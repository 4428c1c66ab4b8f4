"""The current state of the main table in memory: the newest row of each record key, indexed by kind and topic."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

import pyarrow as pa

from pulsar_on_spark.metadata.log.folding import Order
from pulsar_on_spark.metadata.records import COLUMN_FIELDS, LedgerRecord, Record, SegmentRecord
from pulsar_on_spark.model.errors import CorruptMetadataError

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
"""The main table. `seq` is the version that the row's writer read, plus one; a record key's largest `seq` counts."""
MAIN_ORDER = Order(key=("kind", "id"), rank=("seq", "token"))
"""The record key of a row, and the rank by which the newest row of a key is found."""

_READ_COLUMNS = ("kind", "id", "seq", "token", "deleted", *COLUMN_FIELDS, "body")
_TOPIC_ID = COLUMN_FIELDS.index("topic_id")
_ROWS_AT_ONCE = 4096
_BULK = 16
"""Ratio of known to new ids below which an index is sorted again; above it, each new id is inserted."""


class _Row:
    """A stored row. Its record is parsed when a thread first needs it."""

    __slots__ = ("_fields", "_record", "deleted", "seq", "token", "topic_id")

    def __init__(self, seq: int, token: str, deleted: bool, fields: tuple[object, ...], topic_id: str | None) -> None:
        self.seq = seq
        self.token = token
        self.deleted = deleted
        self.topic_id = topic_id
        self._fields: tuple[object, ...] | None = fields
        self._record: Record | None = None

    def values(self) -> dict[str, object] | None:
        """Return the stored fields; None after the record was parsed."""
        fields = self._fields
        if fields is None:
            return None
        values: dict[str, object] = json.loads(cast(str, fields[-1]))
        values.update((name, value) for name, value in zip(COLUMN_FIELDS, fields, strict=False) if value is not None)
        return values

    def record(self, cls: type[R]) -> R:
        if self._fields is None:
            return cast(R, self._record)
        # Read in this order: another thread sets `_record` before it clears `_fields`.
        try:
            values = self.values()
            if values is not None and self._record is None:
                self._record = cls.model_validate(values)
                self._fields = None
        except ValueError as error:
            raise CorruptMetadataError(
                f"A {cls.kind} record of the root's main metadata table cannot be read ({error}): restore the root's "
                "metadata from a backup."
            ) from error
        return cast(R, self._record)


@dataclass(frozen=True, slots=True)
class ChangedChains:
    """Ids of topics with new or changed ledgers or deleted segments (`shaped`), and with new segments (`grown`)."""

    shaped: frozenset[str]
    grown: frozenset[str]


class State:
    """The newest row of each record key. Rows may be applied in any order, any number of times.

    Of two rows with the same record key and `seq`, the row with the larger token counts, as in a fold, so that all
    readers agree. Callers prevent such rows by a common compare-and-set key.
    """

    def __init__(self, after: State | None = None) -> None:
        """Begin empty. `after` is the state that this state replaces, whose `revision` it continues; None for none."""
        self.revision: int = 0 if after is None else after.revision + 1
        """Number that grows with every call of `apply`."""
        self._began = self.revision
        self._shaped: dict[str, int] = {}
        self._grown: dict[str, int] = {}
        self._rows: dict[str, dict[str, _Row]] = {}
        self._ids: dict[str, dict[str | None, list[str]]] = {}
        self._owned: set[str] = set()
        self._owned_lists: set[tuple[str, str | None]] = set()
        self._strings: dict[str, str] = {}

    def fork(self) -> State:
        """Return a copy-on-write copy, which may be changed. This state must not be changed afterwards."""
        fork = State()
        fork.revision, fork._began = self.revision, self._began
        fork._shaped, fork._grown = dict(self._shaped), dict(self._grown)
        fork._rows = dict(self._rows)
        fork._ids = dict(self._ids)
        return fork

    def apply(self, table: pa.Table) -> None:
        """Apply rows of the main table, in any order."""
        added: dict[tuple[str, str | None], list[str]] = {}
        self.revision += 1
        for batch in table.select(_READ_COLUMNS).to_batches(_ROWS_AT_ONCE):
            for kind, record_id, seq, token, deleted, *fields in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                self._own(kind)
                fields[_TOPIC_ID] = topic_id = self._shared(fields[_TOPIC_ID])
                row = _Row(seq, self._shared(token), deleted, tuple(fields), topic_id)
                self._apply_row(kind, record_id, row, added)
        for (kind, scope), record_ids in added.items():
            self._index(kind, scope, record_ids)
        self._strings.clear()

    def _shared(self, text: str) -> str:
        """Return the same object for equal strings, because copies of topic ids and tokens would double the memory."""
        return self._strings.setdefault(text, text)

    def _apply_row(self, kind: str, record_id: str, row: _Row, added: dict[tuple[str, str | None], list[str]]) -> None:
        rows = self._rows[kind]
        previous = rows.get(record_id)
        if previous is not None and (previous.seq, previous.token) >= (row.seq, row.token):
            return
        rows[record_id] = row
        if row.topic_id is not None:
            if kind == LedgerRecord.kind or (kind == SegmentRecord.kind and row.deleted):
                self._shaped[row.topic_id] = self.revision
            elif kind == SegmentRecord.kind:
                self._grown[row.topic_id] = self.revision
        scopes_before: set[str | None] = set() if previous is None or previous.deleted else {None, previous.topic_id}
        scopes_now: set[str | None] = set() if row.deleted else {None, row.topic_id}
        for scope in scopes_before - scopes_now:
            self._unindex(kind, scope, record_id, added)
        for scope in scopes_now - scopes_before:
            added.setdefault((kind, scope), []).append(record_id)

    def _own(self, kind: str) -> None:
        if kind not in self._owned:
            self._rows[kind] = dict(self._rows.get(kind, ()))
            self._ids[kind] = dict(self._ids.get(kind, ()))
            self._owned.add(kind)

    def _own_list(self, kind: str, scope: str | None) -> list[str]:
        if (kind, scope) not in self._owned_lists:
            self._ids[kind][scope] = list(self._ids[kind].get(scope, ()))
            self._owned_lists.add((kind, scope))
        return self._ids[kind][scope]

    def _index(self, kind: str, scope: str | None, record_ids: list[str]) -> None:
        ids = self._own_list(kind, scope)
        if len(record_ids) * _BULK > len(ids):
            ids += record_ids
            ids.sort()
        else:
            for record_id in record_ids:
                insort(ids, record_id)

    def _unindex(
        self, kind: str, scope: str | None, record_id: str, added: dict[tuple[str, str | None], list[str]]
    ) -> None:
        pending = added.get((kind, scope), [])
        if record_id in pending:  # added and removed within this table
            pending.remove(record_id)
            return
        ids = self._own_list(kind, scope)
        del ids[bisect_left(ids, record_id)]

    def chains_since(self, revision: int) -> ChangedChains | None:
        """Return the topics whose chains changed after a revision; None if the changes since then are not known."""
        if revision < self._began:
            return None
        shaped = frozenset(topic_id for topic_id, changed in self._shaped.items() if changed > revision)
        grown = frozenset(topic_id for topic_id, changed in self._grown.items() if changed > revision)
        return ChangedChains(shaped, grown)

    def row(self, kind: str, record_id: str) -> _Row | None:
        """Return the newest row of a record key, even if it is a tombstone; None if there is no row."""
        return self._rows.get(kind, {}).get(record_id)

    def ids(self, kind: str, topic_id: str | None = None) -> list[str]:
        """Return the sorted ids of a kind's live records, of one topic or (None) of all topics.

        The caller must not change the list.
        """
        return self._ids.get(kind, {}).get(topic_id, [])

    def records(self, cls: type[R], record_ids: Iterable[str]) -> list[R]:
        """Return the records of a kind with these ids, which must come from `ids`; to be fast, this is not checked."""
        rows = self._rows.get(cls.kind, {})
        return [rows[record_id].record(cls) for record_id in record_ids]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class RecentView:
    """Immutable view of the main table at one version, which may be some seconds old.

    Such a view is enough to route or authorize a client, but not to decide a commit. A function takes the weakest kind
    of view (`RecentView`, `View`, `DurableView`) that is safe for its purpose.
    """

    state: State
    version: int

    def get(self, cls: type[R], record_id: str) -> R | None:
        """Return the live record with an id; None if there is none."""
        row = self.state.row(cls.kind, record_id)
        return None if row is None or row.deleted else row.record(cls)

    def last(self, cls: type[R], record_id: str) -> R | None:
        """Return the newest record with an id, even if it is deleted (with its last values); None if there was none."""
        row = self.state.row(cls.kind, record_id)
        return None if row is None else row.record(cls)

    def all(self, cls: type[R], topic_id: str | None = None) -> list[R]:
        """Return the live records of a kind in the order of ids, of one topic or (None) of all topics."""
        return self.state.records(cls, self.state.ids(cls.kind, topic_id))

    def newest(self, cls: type[R], topic_id: str) -> R | None:
        """Return the topic's live record with the largest id, for example its last ledger; None if there is none."""
        ids = self.state.ids(cls.kind, topic_id)
        return self._live(cls, ids[-1]) if ids else None

    def oldest(self, cls: type[R], topic_id: str) -> R | None:
        """Return the topic's live record with the smallest id, for example its first ledger; None if there is none."""
        ids = self.state.ids(cls.kind, topic_id)
        return self._live(cls, ids[0]) if ids else None

    def before(self, cls: type[R], topic_id: str, record_id: str) -> R | None:
        """Return the topic's live record with the largest id below `record_id`; None if there is none.

        `record_id` need not exist.
        """
        ids = self.state.ids(cls.kind, topic_id)
        end = bisect_left(ids, record_id)
        return self._live(cls, ids[end - 1]) if end else None

    def since(self, cls: type[R], topic_id: str, record_id: str) -> Iterator[R]:
        """Iterate over a topic's live records by id, beginning with the record with the largest id up to `record_id`.

        Without such a record, all records of the topic are yielded. Each record is parsed when the iterator reaches it.
        """
        ids = self.state.ids(cls.kind, topic_id)
        start = bisect_left(ids, record_id)
        if start == len(ids) or ids[start] != record_id:
            start = max(start - 1, 0)
        for number in range(start, len(ids)):
            yield self._live(cls, ids[number])

    def _live(self, cls: type[R], record_id: str) -> R:
        record = self.get(cls, record_id)
        assert record is not None, f"index names {cls.kind} {record_id}, which is not live"
        return record


@dataclass(frozen=True, eq=False, slots=True)
class View(RecentView):
    """View of the main table's newest version at the time of its reading, on which commits are decided."""


@dataclass(frozen=True, eq=False, slots=True)
class DurableView(View):
    """View of which a power cut takes nothing back, for the deletion of files, skipping of data and reports of results.

    Only `MetadataStore.view(durable=True)` returns such a view.
    """


def encode(rows: Iterable[tuple[Record, bool]], seq: int, token: str, keys: Iterable[str]) -> pa.Table:
    """Encode the rows of one commit.

    Args:
        rows: (record, True if it is deleted) of each row.
        seq: The version that the writer read, plus 1.
        token: The commit's token, which is stored in each row.
        keys: The commit's compare-and-set keys, which are stored only in the first row.
    """
    cas_keys = sorted(keys)
    now = datetime.now(UTC)
    encoded: list[dict[str, object]] = []
    for record, deleted in rows:
        values = record.model_dump(mode="json", by_alias=True)
        columns = {name: values.pop(name) for name in COLUMN_FIELDS if name in values}
        encoded.append(
            {
                "kind": record.kind,
                "id": record.record_id,
                "seq": seq,
                # Once for each commit: repeated in every row, keys would take 1 GB for 5,000 topics created together.
                "cas_keys": None if encoded else cas_keys,
                "token": token,
                "deleted": deleted,
                "committed_at": now,
                **columns,
                "body": json.dumps(values, separators=(",", ":"), sort_keys=True),
            }
        )
    return pa.Table.from_pylist(encoded, schema=MAIN_SCHEMA)


def restamped(rows: pa.Table, seq: int, token: str) -> pa.Table:
    """Return rows of the main table with another commit's `seq` and token, and without their own commits' keys."""
    changed = {"seq": seq, "token": token, "cas_keys": None}
    for name, value in changed.items():
        field = MAIN_SCHEMA.field(name)
        column = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column)
    return rows.select(MAIN_SCHEMA.names).cast(MAIN_SCHEMA)
