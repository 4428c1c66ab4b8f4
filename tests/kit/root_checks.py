"""Invariants of every root, whatever was killed: its records agree with each other, and its files with them.

`violations` holds at any time. `leftovers` holds once housekeeping is through with what was cut off. What copies are
worth says `Root.status(verify=True)`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pulsar_on_spark.ledger.journal.files import JOURNAL, file_directory
from pulsar_on_spark.metadata.current import current
from pulsar_on_spark.metadata.cursors_table import decode_cursors
from pulsar_on_spark.metadata.records import (
    COLUMN_FIELDS,
    FileRecord,
    IdsRecord,
    IncarnationRecord,
    LedgerRecord,
    NamespaceRecord,
    PathRecord,
    Record,
    SegmentRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.local_path import local_paths
from pulsar_on_spark.topic.catalog.catalog import named_files
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions

KINDS = tuple(Record.__subclasses__())


def violations(root: Root) -> list[str]:
    """Return what is wrong in a root's metadata, a sentence each. No process may write to the root meanwhile.

    Raises:
        MetadataError: a table cannot be read.
    """
    view = root.store.view(durable=True)
    return [
        *_tables(root, view),
        *_topics(view),
        *_ledgers(view),
        *_files(view),
        *_subscriptions(root, view),
    ]


def leftovers(root: Root) -> list[Path]:
    """Return the files on storage paths that no record needs.

    Raises:
        MetadataError: the metadata cannot be read.
    """
    view = root.store.view(durable=True)
    paths = local_paths(root.storage_paths(view))
    needed = {path.directory / IDENTITY_NAME for path in paths.values()}
    for file in view.all(FileRecord):
        for path_id, name in file.names.items():
            if (path := paths.get(PathId(path_id))) is not None:
                needed |= {path.segment_file(name), path.sidecar_file(name)}
    journals = set()
    for incarnation in view.all(IncarnationRecord):
        for path_id, file_name in (copy for fragment in incarnation.fragments for copy in fragment.copies):
            if PathId(path_id) in paths:
                directory = paths[PathId(path_id)].directory
                journals.add(
                    file_directory(directory, IncarnationId(incarnation.incarnation), JournalFileId(file_name))
                )
    found = (file for path in paths.values() for file in path.directory.rglob("*") if file.is_file())
    return sorted(file for file in found if file not in needed and file.parent not in journals)


def journals_left(root: Root) -> list[Path]:
    """The journal directories on storage paths that can be reached."""
    paths = local_paths(root.current_storage_paths()).values()
    return sorted(each for path in paths for each in path.directory.glob(f"{JOURNAL}/*"))


# --- the tables ---


def _tables(root: Root, view: View) -> Iterator[str]:
    """Plain Delta gives what the store gives."""
    rows = current(root.path, "main")
    theirs = {(row["kind"], row["id"]): row for row in rows.to_pylist()}
    ours = {(kind.kind, record.record_id): record for kind in KINDS for record in view.all(kind)}
    yield from (f"plain Delta lacks record {key}" for key in sorted(ours.keys() - theirs.keys()))
    yield from (f"plain Delta has record {key}, the store does not" for key in sorted(theirs.keys() - ours.keys()))
    for key in sorted(ours.keys() & theirs.keys()):
        if _record(type(ours[key]), theirs[key]) != ours[key]:
            yield f"record {key} is another one in plain Delta"
    cursors = root.store.cursors()
    for cursor in decode_cursors(current(root.path, "cursors")):
        if cursor not in cursors.of(cursor.topic_id, cursor.subscription):
            yield f"the cursor row of {cursor.cursor_key} is another one in plain Delta"


def _record(kind: type[Record], row: Mapping[str, object]) -> Record:
    columns = {name: row[name] for name in COLUMN_FIELDS if name in kind.model_fields}
    return kind.model_validate_json(json.dumps({**json.loads(str(row["body"])), **columns}))


# --- records beside each other ---


def _topics(view: View) -> Iterator[str]:
    topics = {topic.name: topic for topic in view.all(TopicRecord)}
    tenants = {tenant.tenant for tenant in view.all(TenantRecord)}
    namespaces = {namespace.namespace for namespace in view.all(NamespaceRecord)}
    yield from (f"namespace {each} has no tenant" for each in namespaces if each.partition("/")[0] not in tenants)
    for topic in topics.values():
        name = TopicName.parse(topic.name)
        if name.namespace not in namespaces:
            yield f"topic {topic.name} has no namespace"
        for index in range(topic.partitions or 0):
            partition = topics.get(name.partition(index).full)
            if partition is None or partition.partition_of != topic.name:
                yield f"topic {topic.name} lacks partition {index}"
        whole = None if topic.partition_of is None else topics.get(topic.partition_of)
        if topic.partition_of is not None and (whole is None or name.partition_index >= (whole.partitions or 0)):
            yield f"topic {topic.name} is a partition of none"
    known = {topic.topic_id for topic in topics.values()}
    for kind in KINDS:
        for record in view.all(kind) if "topic_id" in kind.model_fields else ():
            if vars(record)["topic_id"] not in known:
                yield f"{kind.kind} {record.record_id} is of a topic that is not there"


def _ledgers(view: View) -> Iterator[str]:
    ids = view.get(IdsRecord, "ledger")
    seen: set[int] = set()
    segments: defaultdict[tuple[str, int], list[SegmentRecord]] = defaultdict(list)
    for segment in view.all(SegmentRecord):
        segments[segment.topic_id, segment.ledger_id].append(segment)
    for ledger in view.all(LedgerRecord):
        where = f"ledger {ledger.ledger_id}"
        if ledger.ledger_id in seen:
            yield f"{where} is in two chains"
        seen.add(ledger.ledger_id)
        if ids is None or ledger.ledger_id >= ids.next_ledger_id:
            yield f"{where} has an id that was not given yet"
        yield from _segments(view, ledger, segments.pop((ledger.topic_id, ledger.ledger_id), []))
    yield from (f"segments of ledger {ledger_id} are in no chain" for _, ledger_id in segments)


def _segments(view: View, ledger: LedgerRecord, segments: Iterable[SegmentRecord]) -> Iterator[str]:
    where = f"ledger {ledger.ledger_id}"
    trimmed = chain.trimmed_before(view, ledger.topic_id)
    end = trimmed.entry if trimmed.ledger == ledger.ledger_id else 0
    for segment in sorted(segments, key=lambda segment: segment.first_entry):
        missing = range(end, segment.first_entry)
        if segment.first_entry < end or not all(any(lost.first <= at for lost in ledger.lost) for at in missing):
            yield f"entries of {where} do not follow each other at {segment.first_entry}, expected {end}"
        end = segment.first_entry + segment.entries
        if sum(segment.batch_entries) != segment.entries:
            yield f"a segment of {where} has {segment.entries} entries, its batches {sum(segment.batch_entries)}"
    if ledger.closed and ledger.entries is not None and end > ledger.entries:
        yield f"{where} was closed with {ledger.entries} entries, and has {end}"


def _files(view: View) -> Iterator[str]:
    files = {file.file_id: file for file in view.all(FileRecord)}
    paths = {path.path_id: path for path in view.all(PathRecord)}
    aborted = {write.write_id for write in view.all(WriteRecord) if write.status == "aborted"}
    for named in sorted(named_files(view)):
        file = files.get(named)
        if file is None:
            yield f"file {named} has no record"
        elif file.replaced_at is not None:
            yield f"file {named} is in use and marked as replaced"
    for file in files.values():
        if file.write_id in aborted:
            yield f"file {file.file_id} is of an aborted write"
        if len(set(file.copies)) != len(file.copies) or not file.copies:
            yield f"file {file.file_id} has the copies {file.copies}"
        for path_id in file.copies:
            if file.replaced_at is None and (path_id not in paths or paths[path_id].state == "retired"):
                yield f"file {file.file_id} has a copy on storage path {path_id}, which is not there"


def _subscriptions(root: Root, view: View) -> Iterator[str]:
    """A cursor stands at an entry of its topic, behind its last one, or before what was trimmed."""
    cursors = root.store.cursors()
    for record in view.all(SubscriptionRecord):
        chained = [ledger.ledger_id for ledger in view.all(LedgerRecord, record.topic_id)]
        trimmed = chain.trimmed_before(view, record.topic_id)
        for slot, position in current_positions(record, cursors.of(record.topic_id, record.name)).items():
            if position > trimmed and position.ledger not in chained and position.entry:
                yield f"slot {slot} of subscription {record.record_id} stands at {position}, outside of its topic"
