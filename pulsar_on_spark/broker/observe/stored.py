"""The state of storage, refreshed periodically: a scrape of metrics gets the last state and never waits for a disk."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.observe.backlogs import backlog_of
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.history_table.status import statuses
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    FileRecord,
    IncarnationRecord,
    PathRecord,
    SegmentRecord,
    SubscriptionRecord,
)
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.storage.health import APART
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.storage_status import CopyNumbers, copy_numbers

log = logging.getLogger(__name__)

REFRESH_EVERY_S: Final = 10.0
SHARE: Final = 0.02
"""Maximum share of the time that is spent on refreshing, so that a large root is refreshed less often."""
_POLL_EVERY_S: Final = 0.01
"""Poll interval of a caller that waits for a refresh, in seconds."""


@dataclass(frozen=True, slots=True)
class StorageState:
    """The state of storage at one time.

    Attributes:
        at_s: Start of the refresh that read this state, in seconds of the monotonic clock; 0 before the first refresh.
        logical: Key and value bytes in segments, by topic id.
        offloaded: Key and value bytes in offloaded segments, by topic id.
        physical: Key and value bytes times the copies that the metadata list, by topic id.
        compacted: Number of entries, and their key and value bytes, of the compacted ledger, by topic id.
        backlogs: Number of unacknowledged entries of each subscription that no broker owns, by topic id and name.
        file_bytes: Bytes of all copies of all segment files.
        files: Number of segment files.
        cold_files: Number of segment files that are offloaded.
        open_incarnations: Number of incarnations whose journals are open or not yet recovered.
        history_rows: Number of messages that builds have added to history tables.
        history_bytes: Size of the files that builds have added to history tables.
        history_waiting_bytes: Key and value bytes of sealed messages that the next builds add to history tables.
        storage: The storage paths and copies, as in `pulsarpy status`.
        root_total_bytes: Size of the file system that has the metadata; None on an object store.
        root_free_bytes: Free bytes of the file system that has the metadata; None on an object store.
    """

    at_s: float = 0.0
    logical: Mapping[str, int] = field(default_factory=dict)
    offloaded: Mapping[str, int] = field(default_factory=dict)
    physical: Mapping[str, int] = field(default_factory=dict)
    compacted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    backlogs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    file_bytes: int = 0
    files: int = 0
    cold_files: int = 0
    open_incarnations: int = 0
    history_rows: int = 0
    history_bytes: int = 0
    history_waiting_bytes: int = 0
    storage: CopyNumbers = field(default_factory=CopyNumbers)
    root_total_bytes: int | None = None
    root_free_bytes: int | None = None

    @property
    def paths_to_write(self) -> int:
        """Number of storage paths to which new copies can be written now."""
        return sum(path.is_writable and path.role not in APART for path in self.storage.paths)


class Stored:
    """The periodically refreshed state of storage.

    Args:
        root: The open root.
        views: The views of the root's metadata.
    """

    def __init__(self, root: RootHandle, views: Views) -> None:
        self._root = root
        self._views = views
        self._refreshing: asyncio.Task[None] | None = None
        self._counted = StorageState()
        self._files: Mapping[str, FileRecord] = {}
        self._seen: int | None = None
        self._asked = asyncio.Event()
        self.state = StorageState()
        """The state that the last refresh read."""

    def start(self) -> None:
        """Start refreshing."""
        self._refreshing = asyncio.create_task(self._keep_refreshing(), name="storage state")

    async def stop(self) -> None:
        """Stop refreshing, without waiting for a disk that hangs."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def refresh(self, patience_s: float) -> StorageState:
        """Return a state that was read after this call, or the last state if this takes longer than `patience_s`."""
        asked_s = time.monotonic()
        self._asked.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.state.at_s < asked_s:
                    await asyncio.sleep(_POLL_EVERY_S)
        return self.state

    async def _keep_refreshing(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                view = await self._views.view()
                self.state = await asyncio.to_thread(self._read_state, view)
            except (PulsarpyError, OSError) as error:
                log.warning("Metrics of storage are outdated, the last refresh failed: %s", error)
            except Exception:  # the cause may be gone at the next refresh
                log.exception("Metrics of storage are outdated, the last refresh failed.")
            with suppress(TimeoutError):
                async with asyncio.timeout(max(REFRESH_EVERY_S, (time.monotonic() - began_s) / SHARE)):
                    await self._asked.wait()
            self._asked.clear()

    def _read_state(self, view: DurableView) -> StorageState:
        at_s, root = time.monotonic(), self._root
        if view.version != self._seen:
            self._files, self._counted = catalog.live_files(view), counted(view)
            self._seen = view.version
        disk = shutil.disk_usage(root.place) if isinstance(root.place, Path) else None
        return replace(
            self._counted,
            at_s=at_s,
            backlogs=_backlogs(view, root.store.cursors()),
            storage=copy_numbers(root, view, self._files),
            root_total_bytes=None if disk is None else disk.total,
            root_free_bytes=None if disk is None else disk.free,
        )


def counted(view: View) -> StorageState:
    """Return a state with only the numbers that a view has: sizes, files, journals and histories. No IO."""
    gone = {path.path_id for path in view.all(PathRecord) if path.state in ("lost", "retired")}
    files = {file.file_id: file for file in view.all(FileRecord) if file.replaced_at is None}
    named = {file_id: sum(copy not in gone for copy in file.copies) for file_id, file in files.items()}
    logical: defaultdict[str, int] = defaultdict(int)
    physical: defaultdict[str, int] = defaultdict(int)
    offloaded: defaultdict[str, int] = defaultdict(int)
    cold = {file_id for file_id, file in files.items() if file.is_cold}
    for segment in view.all(SegmentRecord):
        logical[segment.topic_id] += segment.bytes
        physical[segment.topic_id] += segment.bytes * named.get(segment.file_id, 0)
        offloaded[segment.topic_id] += segment.bytes if segment.file_id in cold else 0
    histories = statuses(view)
    return StorageState(
        logical=logical,
        offloaded=offloaded,
        physical=physical,
        compacted={
            compaction.topic_id: (compaction.entries, compaction.bytes) for compaction in view.all(CompactionRecord)
        },
        file_bytes=sum((file.length + file.sidecar_length) * named[file_id] for file_id, file in files.items()),
        files=len(files),
        cold_files=len(cold),
        history_rows=sum(each.rows for each in histories),
        history_bytes=sum(each.bytes for each in histories),
        history_waiting_bytes=sum(each.waiting_bytes for each in histories if each.is_enabled),
        open_incarnations=sum(incarnation.state != "CLOSED" for incarnation in view.all(IncarnationRecord)),
    )


def _backlogs(view: View, cursors: Cursors) -> Mapping[str, Mapping[str, int]]:
    backlogs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    parts = {part.topic_id: part for topic in catalog.topics(view) for part in catalog.parts(view, topic)}
    for record in view.all(SubscriptionRecord):
        is_at_broker = record.face == "broker" and any(owner.consumer for owner in record.owners)
        if not is_at_broker and record.topic_id in parts:
            backlogs[record.topic_id][record.name] = backlog_of(view, cursors, parts[record.topic_id], record).entries
    return backlogs
