"""Attaching a write: one commit makes the segments that tasks wrote part of their topics.

The decision is made on one view. It is committed under the topics' keys, the key of the write's bucket and, for a write
with a transaction, the transaction's key. So a write is in its topics completely and exactly once, or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pulsar_on_spark.ledger.segments.segment_writer import WrittenFile
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    IdsRecord,
    LedgerRecord,
    Record,
    SegmentRecord,
    TopicRecord,
    WriteRecord,
    WriterRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import TopicNotFoundError, WriteAbortedError
from pulsar_on_spark.model.ids import WriteId
from pulsar_on_spark.storage.storage_path import PathFailure
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.transactions import Content, Transaction, content_of, is_replay
from pulsar_on_spark.topic.managed_ledger.quotas.refusal import require_room

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """Adjacent batches of a staged file that belong to one topic; the fields are those of `SegmentRecord`."""

    topic: str
    topic_id: str
    first_batch: int
    batch_entries: tuple[int, ...]
    entry_rows: tuple[tuple[int, int], ...]
    entries: int
    rows: int
    bytes: int
    publish_min_ms: int
    publish_max_ms: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A durable file that is not part of any topic yet."""

    written: WrittenFile
    segments: tuple[StagedSegment, ...]


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The files that one task wrote, in order. `task` is the task's position among the tasks of the write."""

    task: int
    files: tuple[StagedFile, ...]
    failures: tuple[PathFailure, ...]


def attach(
    store: MetadataStore, write_id: WriteId, outputs: Sequence[TaskOutput], transaction: Transaction | None
) -> bool:
    """Attach the outputs' segments to their topics in one commit.

    Args:
        store: The root's metadata.
        write_id: The id of the write, which is attached once at most.
        outputs: The files of all tasks.
        transaction: The write's transaction; None for a write without one.

    Returns:
        True if the segments were attached. False if the write is empty, or if its id or its transaction is committed
        already; such a replay of a transaction is logged.

    Raises:
        ReplayDiffersError: the transaction is committed already, with other rows or from other offsets.
        TopicNotFoundError: a topic was deleted, or deleted and created again, since the write began.
        TopicTerminatedError: a topic was terminated.
        WriteAbortedError: garbage collection aborted the write, because it was uncommitted for longer than its limit.
        BacklogQuotaExceededError: see `require_room`.
    """
    ordered = sorted(outputs, key=lambda output: output.task)
    files = [file for output in ordered for file in output.files]
    content = content_of((segment.topic, segment.rows) for file in files for segment in file.segments)
    if not files:
        if transaction is not None:
            _is_replay(store, store.view(), transaction, content)
        return False
    attached = replayed = False

    def decide(view: View) -> Change | None:
        nonlocal attached, replayed
        attached = replayed = False
        verdict = view.get(WriteRecord, write_id)
        if verdict is not None and verdict.status == "committed":
            return None
        if verdict is not None:
            raise WriteAbortedError(
                f"Write {write_id} was aborted by `pulsarpy maintain`, because it was not committed in time: "
                "write again."
            )
        replayed = transaction is not None and _is_replay(store, view, transaction, content)
        if replayed:
            return None
        require_room(store, view, dict.fromkeys(segment.topic for file in files for segment in file.segments))
        attached = True
        return _change(view, write_id, files, transaction, content)

    store.commit(decide)
    if replayed and transaction is not None:
        log.warning(
            "A write of %d messages was skipped, because %s is committed already.", content.rows, transaction.name
        )
    return attached


def _is_replay(store: MetadataStore, view: View, transaction: Transaction, content: Content) -> bool:
    """Return True if the transaction is committed, by the store's last view (raises as `transactions.is_replay`)."""
    versions = [store.key_version(key) for key in (transaction.key, transaction.former_key) if key is not None]
    committed = max((version for version in versions if version is not None), default=None)
    return is_replay(transaction, committed, view.get(WriterRecord, transaction.key), content)


def _change(
    view: View, write_id: WriteId, files: Sequence[StagedFile], transaction: Transaction | None, content: Content
) -> Change:
    now, is_sole = datetime.now(UTC), transaction is None
    puts: list[Record] = [WriteRecord(write_id=write_id, status="committed", decided_at=now, is_sole=is_sole)]
    moved: dict[str, int | None] = {keys.write_bucket(write_id): None}
    if transaction is not None:
        moved[transaction.key] = transaction.version
        puts.append(content.record_of(transaction))
    ids = view.get(IdsRecord, "ledger")
    first_id = next_id = ids.next_ledger_id if ids else 1
    ends: dict[str, tuple[int, int]] = {}
    for file in files:
        puts.append(file.written.file_record(write_id))
        for staged in file.segments:
            if staged.topic not in ends:
                _require_topic(view, staged)
                moved[keys.topic(staged.topic)] = None
                end = _attached_end(view, staged.topic_id)
                if end is None:
                    end, next_id = (next_id, 0), next_id + 1
                    puts.append(_ledger(staged.topic_id, end[0]))
                ends[staged.topic] = end
            ledger_id, first_entry = ends[staged.topic]
            puts.append(_segment(staged, file.written.file_id, ledger_id, first_entry))
            ends[staged.topic] = (ledger_id, first_entry + staged.entries)
    if next_id > first_id:
        # This commit takes a block of exactly the needed size: its ids are greater than all ids in any chain.
        puts.append(IdsRecord(next_ledger_id=next_id))
        moved[keys.IDS] = None
    return Change(puts=puts, keys=moved)


def _require_topic(view: View, staged: StagedSegment) -> None:
    topic = view.get(TopicRecord, staged.topic)
    if topic is None or topic.topic_id != staged.topic_id:
        raise TopicNotFoundError(
            f"Topic {staged.topic} was deleted while it was written to: nothing was written, write again to the new "
            "topic."
        )
    catalog.require_not_terminated(topic)


def _attached_end(view: View, topic_id: str) -> tuple[int, int] | None:
    """Return (ledger, next entry) of the chain's last ledger if it is an attached ledger, which may grow. Else None.

    The result is None, too, if the ledger was completely trimmed.
    """
    last = view.newest(LedgerRecord, topic_id)
    if last is None or last.incarnation is not None:
        return None
    segment = view.newest(SegmentRecord, topic_id)
    if segment is None or segment.ledger_id != last.ledger_id:
        return None  # completely trimmed: its end is unknown here, so a new ledger follows
    return last.ledger_id, segment.first_entry + segment.entries


def _ledger(topic_id: str, ledger_id: int) -> LedgerRecord:
    return LedgerRecord(topic_id=topic_id, ledger_id=ledger_id, created_at=datetime.now(UTC))


def _segment(staged: StagedSegment, file_id: str, ledger_id: int, first_entry: int) -> SegmentRecord:
    return SegmentRecord(
        topic_id=staged.topic_id,
        ledger_id=ledger_id,
        first_entry=first_entry,
        entries=staged.entries,
        rows=staged.rows,
        bytes=staged.bytes,
        file_id=file_id,
        first_batch=staged.first_batch,
        batch_entries=staged.batch_entries,
        entry_rows=staged.entry_rows,
        entry_offset=first_entry,
        publish_min_ms=staged.publish_min_ms,
        publish_max_ms=staged.publish_max_ms,
    )
