"""The metadata store of a root: compare-and-set on the main table, blind appends to `cursors`, housekeeping of both."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from pulsar_on_spark.metadata import folding, state
from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.delta_log import DeltaLog, StaleHandleError
from pulsar_on_spark.metadata.records import Record, RootRecord
from pulsar_on_spark.metadata.state import State, View
from pulsar_on_spark.model.errors import CommitConflictError, FormatVersionError, MetadataError, NotARootError

FORMAT_VERSION = 1
_ATTEMPTS = 60
_BACKOFF_MAX_S = 0.5
_HOUSEKEEPING_ENTRIES = 64
"""Log entries after the last checkpoint that make a committer fold and checkpoint."""
FORGET_TOMBSTONES_AFTER = timedelta(hours=24)

CURSORS_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("ack_holes", pa.binary()),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The cursors table: (ledger_id, entry_id) is the next entry to read; of a slot the largest (epoch, n) counts."""

_MAIN_ORDER = folding.Order(key=("kind", "id"), rank=("seq",), forget=("segment", "file", "ledger", "write"))
_CURSORS_ORDER = folding.Order(key=("topic_id", "subscription", "slot"), rank=("epoch", "n", "seq"))


@dataclass(frozen=True)
class Change:
    """What one commit does: records to put, records to delete, and the keys that it moves on.

    A key's value is the version that the commit gives it; None means one more than now, the usual compare-and-set.
    """

    puts: Sequence[Record] = ()
    deletes: Sequence[Record] = ()
    keys: Mapping[str, int | None] = field(default_factory=dict)


Decide = Callable[[View], Change | None]


class MetadataStore:
    """The two metadata tables of one root, for one process. Thread-safe."""

    def __init__(self, root: Path) -> None:
        """Open the tables.

        Raises:
            NotARootError: there are no metadata tables at `root`.
            FormatVersionError: a newer version of this project wrote them.
        """
        self._root = root
        self._lock = threading.RLock()
        self._main = self._log("main")
        self._state = State()
        self._cursor_log: DeltaLog | None = None
        self._cursors = Cursors()
        record = self.view().get(RootRecord, "root")
        if record is None:
            raise NotARootError(f"{root} has metadata tables but no root record: run `pulsarpy init {root}` again.")
        if record.format_version > FORMAT_VERSION:
            raise FormatVersionError(
                f"The root {root} has format version {record.format_version}, and this version of pulsar_on_spark reads "
                f"up to {FORMAT_VERSION}: upgrade pulsar_on_spark."
            )
        self.root_record = record

    @staticmethod
    def exists(root: Path) -> bool:
        """Whether there is a main table at `root`."""
        return (root / "metadata" / "main" / "_delta_log").is_dir()

    @classmethod
    def create(cls, root: Path, first: Sequence[Record]) -> MetadataStore:
        """Create the tables, the first commit holding `first`; goes on where an earlier attempt was cut off."""
        for name, schema in (("cursors", CURSORS_SCHEMA), ("main", state.MAIN_SCHEMA)):
            directory = root / "metadata" / name
            if not (directory / "_delta_log" / f"{0:020d}.json").exists():
                DeltaLog.create(directory, schema)
        log = DeltaLog(root / "metadata" / "main", root / "lock")
        if log.version == 0:
            token = uuid.uuid4().hex
            log.append(state.encode(((record, False) for record in first), 1, token, ("root",)), {"root": 1}, token)
        return cls(root)

    def _log(self, name: str) -> DeltaLog:
        directory = self._root / "metadata" / name
        if not (directory / "_delta_log").is_dir():
            raise NotARootError(
                f"{self._root} is not a pulsar_on_spark root: give the path of one, or make it with "
                f"`pulsarpy init {self._root}`."
            )
        return DeltaLog(directory, self._root / "lock")

    def view(self, *, durable: bool = False) -> View:
        """The main table now.

        Args:
            durable: sync everything up to the returned version first; for whoever reports, deletes or skips on the
                strength of what it reads.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    rebuild, tables = self._main.refresh()
                except StaleHandleError:
                    self._reopen_main()
                    continue
                if rebuild:
                    self._state = State()
                for table in tables:
                    self._state.apply(table)
                if durable:
                    self._main.sync_to(self._main.version)
                return View(self._state, self._main.version)
            raise MetadataError(f"The main table of {self._root} changes too fast to be read: try again.")

    def _reopen_main(self) -> None:
        self._main = self._log("main")
        self._state = State()

    def key_version(self, key: str) -> int | None:
        """The version of a key as of the last view; None before its first commit."""
        with self._lock:
            return self._main.key_version(key)

    def commit(self, decide: Decide) -> View:
        """Decide on a fresh view and commit, again and again until no other writer interferes.

        `decide` is called anew at each attempt and must not keep anything of an earlier one; None means that there is
        nothing to do (and what it saw is durable when this returns).

        Returns:
            The view after the commit.

        Raises:
            CommitConflictError: every one of 60 attempts lost to other writers.
        """
        with self._lock:
            for attempt in range(_ATTEMPTS):
                view = self.view()
                change = decide(view)
                if change is None:
                    self._main.sync_to(view.version)
                    return view
                if self._try_commit(view, change):
                    self._housekeep_if_due()
                    return self.view()
                time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
            raise CommitConflictError(
                f"A commit to {self._root}/metadata/main lost {_ATTEMPTS} attempts to other writers: try again."
            )

    def _try_commit(self, view: View, change: Change) -> bool:
        keys = {
            key: (self._main.key_version(key) or 0) + 1 if version is None else version
            for key, version in change.keys.items()
        }
        assert keys, "every commit to the main table is a compare-and-set"
        rows = [*((record, False) for record in change.puts), *((record, True) for record in change.deletes)]
        token = uuid.uuid4().hex
        table = state.encode(rows, view.version + 1, token, keys)
        try:
            self._main.append(table, keys, token)
            return True
        except StaleHandleError:
            # The outcome is unknown: look for our token in the log before deciding anew.
            self._reopen_main()
            self._main.refresh()
            found = self._main.find_commit(token, view.version)
            self._reopen_main()
            if found is not None:
                self._main.sync_to(found)
            return found is not None

    # -- cursors ---------------------------------------------------------------------------------------------------

    def cursors(self) -> Cursors:
        """The cursor rows that count, now."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                if self._cursor_log is None:
                    self._cursor_log, self._cursors = self._log("cursors"), Cursors()
                try:
                    _, tables = self._cursor_log.refresh()
                except StaleHandleError:
                    self._cursor_log = None
                    continue
                for table in tables:
                    self._cursors.apply(_decode_cursors(table))
                return self._cursors
            raise MetadataError(f"The cursors table of {self._root} changes too fast to be read: try again.")

    def append_cursors(self, rows: Sequence[CursorRow]) -> None:
        """Append cursor rows durably. A blind append: appending one twice does no harm."""
        with self._lock:
            for attempt in range(_ATTEMPTS):
                self.cursors()
                log = self._cursor_log
                assert log is not None
                token = uuid.uuid4().hex
                try:
                    log.append(_encode_cursors(rows, log.version + 1, token), {}, token)
                    self._housekeep_if_due()
                    return
                except StaleHandleError:
                    self._cursor_log = None
                    time.sleep(random.uniform(0, min(_BACKOFF_MAX_S, 0.01 * 2**attempt)))
            raise CommitConflictError(
                f"A commit to {self._root}/metadata/cursors lost {_ATTEMPTS} attempts to other writers: try again."
            )

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def _housekeep_if_due(self) -> None:
        """Fold and checkpoint now and then, in whichever process commits: opens and commits stay cheap."""
        logs = [(self._main, _MAIN_ORDER)]
        if self._cursor_log is not None:
            logs.append((self._cursor_log, _CURSORS_ORDER))
        for log, order in logs:
            # Spread over processes: only commits at multiples pay.
            if log.version % _HOUSEKEEPING_ENTRIES == 0:
                self._housekeep(log, order)

    def _housekeep(self, log: DeltaLog, order: folding.Order) -> bool:
        forget_before = pa.scalar(datetime.now(UTC) - FORGET_TOMBSTONES_AFTER, pa.timestamp("us", "UTC"))
        try:
            self._apply_refresh(log)
            folded = log.fold(order, forget_before)
            log.checkpoint()
        except StaleHandleError:
            # Another process folded, checkpointed or cleaned up at the same moment: its work counts.
            if log is self._main:
                self._reopen_main()
            else:
                self._cursor_log = None
            return False
        return folded

    def _apply_refresh(self, log: DeltaLog) -> None:
        if log is self._main:
            self.view()
        else:
            self.cursors()

    def housekeep(self) -> bool:
        """One pass of fold and checkpoint over both tables; returns whether a fold happened."""
        with self._lock:
            self.cursors()
            cursor_log = self._cursor_log
            assert cursor_log is not None
            folded = self._housekeep(self._main, _MAIN_ORDER)
            return self._housekeep(cursor_log, _CURSORS_ORDER) or folded

    def vacuum(self) -> int:
        """Delete metadata files that no reader can still need; returns how many."""
        with self._lock:
            self.view()
            self.cursors()
            assert self._cursor_log is not None
            try:
                return self._main.vacuum() + self._cursor_log.vacuum()
            except StaleHandleError:
                self._reopen_main()
                self._cursor_log = None
                return 0


def _encode_cursors(rows: Sequence[CursorRow], seq: int, token: str) -> pa.Table:
    now = datetime.now(UTC)
    return pa.Table.from_pylist(
        [
            {
                "topic_id": row.topic_id,
                "subscription": row.subscription,
                "slot": row.slot,
                "epoch": row.epoch,
                "n": row.n,
                "ledger_id": row.ledger,
                "entry_id": row.entry,
                "ack_holes": row.ack_holes,
                "seq": seq,
                "token": token,
                "committed_at": now,
            }
            for row in rows
        ],
        schema=CURSORS_SCHEMA,
    )


def _decode_cursors(table: pa.Table) -> list[CursorRow]:
    names = ("topic_id", "subscription", "slot", "epoch", "n", "ledger_id", "entry_id", "ack_holes")
    return [CursorRow(*values) for values in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
