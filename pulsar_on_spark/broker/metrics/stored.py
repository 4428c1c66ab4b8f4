"""What is stored and where, looked at now and then: a scrape gets the last look, and never waits for a disk."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.views import Views
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, PathRecord, SegmentRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import PulsarpyError

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
SHARE: Final = 0.02
"""Of the time, at most, is spent on looking: a large root is looked at less often."""


@dataclass(frozen=True, slots=True)
class PathLook:
    """A storage path. Bytes are those of its file system, 0 where it did not say."""

    path_id: int
    uri: str
    state: str
    total_bytes: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoredLook:
    """What one look found.

    Attributes:
        at_s: When, on the monotonic clock; 0 before the first.
        logical: Key and value bytes in segments, by topic id.
        physical: The same times the copies that are kept.
        file_bytes: Bytes of all copies of all segment files.
        files: Segment files.
        missing_copies: Copies that files should have and do not have on paths that are there.
        open_incarnations: Incarnations whose journals are open or not recovered yet.
        paths: All storage paths in use.
    """

    at_s: float = 0.0
    logical: Mapping[str, int] = field(default_factory=dict)
    physical: Mapping[str, int] = field(default_factory=dict)
    file_bytes: int = 0
    files: int = 0
    missing_copies: int = 0
    open_incarnations: int = 0
    paths: Sequence[PathLook] = ()


class Stored:
    """Looks at what is stored until it is stopped.

    Args:
        root: The root's path.
        views: Its metadata.
        write_quorum: Copies that a file has where it says nothing else.
    """

    def __init__(self, root: Path, views: Views, write_quorum: int) -> None:
        self._root = root
        self._views = views
        self._write_quorum = write_quorum
        self._looking: asyncio.Task[None] | None = None
        self._seen_version = -1
        self.look = StoredLook()
        """The last one."""

    def start(self) -> None:
        """Begin."""
        self._looking = asyncio.create_task(self._look_again_and_again(), name="stored look")

    async def stop(self) -> None:
        """End; a disk that hangs is not waited for."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_again_and_again(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                view = await self._views.view()
                self.look = await asyncio.to_thread(self._look, view)
            except (PulsarpyError, OSError) as error:
                log.warning("Metrics of what is stored are those of an earlier look: %s", error)
            await asyncio.sleep(max(LOOK_EVERY_S, (time.monotonic() - began_s) / SHARE))

    def _look(self, view: View) -> StoredLook:
        counted = self.look
        if view.version != self._seen_version:
            counted = stored_look(view, self._write_quorum)
            self._seen_version = view.version
        paths = [_sized(self._root, each) for each in view.all(PathRecord) if each.state != "retired"]
        return StoredLook(
            time.monotonic(),
            counted.logical,
            counted.physical,
            counted.file_bytes,
            counted.files,
            counted.missing_copies,
            counted.open_incarnations,
            paths,
        )


def stored_look(view: View, write_quorum: int) -> StoredLook:
    """What the metadata alone say. Pure."""
    gone = {each.path_id for each in view.all(PathRecord) if each.state in ("lost", "retired")}
    files = {each.file_id: each for each in view.all(FileRecord) if each.replaced_at is None}
    held = {file_id: sum(copy not in gone for copy in each.copies) for file_id, each in files.items()}
    logical: defaultdict[str, int] = defaultdict(int)
    physical: defaultdict[str, int] = defaultdict(int)
    for segment in view.all(SegmentRecord):
        logical[segment.topic_id] += segment.bytes
        physical[segment.topic_id] += segment.bytes * held.get(segment.file_id, 0)
    return StoredLook(
        logical=logical,
        physical=physical,
        file_bytes=sum((each.length + each.sidecar_length) * held[file_id] for file_id, each in files.items()),
        files=len(files),
        missing_copies=sum(
            max((each.write_quorum or write_quorum) - held[file_id], 0) for file_id, each in files.items()
        ),
        open_incarnations=sum(each.state != "CLOSED" for each in view.all(IncarnationRecord)),
    )


def _sized(root: Path, path: PathRecord) -> PathLook:
    try:
        found = os.statvfs(root / path.uri)
    except OSError:
        return PathLook(path.path_id, path.uri, path.state)
    return PathLook(
        path.path_id, path.uri, path.state, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    )
