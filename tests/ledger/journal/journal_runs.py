"""A small root for journals, a listener that records its callbacks, and the reading of closed logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_on_spark.ledger.journal.codec_scan import FrameScanner
from pulsar_on_spark.ledger.journal.files import file_directory, open_journal_file, read_file_header
from pulsar_on_spark.ledger.journal.frames import Frame, payload_views
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.journal import Journal
from pulsar_on_spark.ledger.journal.journal_bytes import FileBytes
from pulsar_on_spark.ledger.journal.log import Copy, FrameKind, LogRecord
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.ids import EntryId, IncarnationId, JournalFileId, LedgerId, PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.storage_path import PathFailure

CLUSTER = "c1"
NAME = IncarnationId("broker-1")
QUORUM = Quorum(3, 3, 2)

Entry = tuple[int, int, bytes]
"""Ledger, entry id, payload."""


@dataclass
class Listener:
    """Recorder of the journal's callbacks to both of its sinks and at its end; the test chooses the contexts."""

    acked: list[object] = field(default_factory=list)
    lost: list[object] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_entries_acknowledged(self, contexts: Sequence[object]) -> None:
        assert not any(word.startswith("ended") for word in self.said), "nothing is acknowledged after the end"
        self.acked += contexts
        self.changed.set()

    def on_entries_unknown(self, contexts: Sequence[object]) -> None:
        self.lost += contexts
        self.changed.set()

    def on_cursors_acknowledged(self, contexts: Sequence[object]) -> None:
        self.on_entries_acknowledged(contexts)

    def on_cursors_unknown(self, contexts: Sequence[object]) -> None:
        self.on_entries_unknown(contexts)

    def on_journal_room(self) -> None:
        self._note("room")

    def on_ended(self, reason: str) -> None:
        self._note(f"ended: {reason}")

    def _note(self, word: str) -> None:
        self.said.append(word)
        self.changed.set()

    async def wait(self, until: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not until():
                self.changed.clear()
                await self.changed.wait()

    async def wait_until(self, until: Callable[[], object]) -> None:
        """For what the journal does not tell of."""
        async with asyncio.timeout(60):
            while not until():
                await asyncio.sleep(0.02)


class Place:
    """Metadata and storage paths in a directory, made or opened where they are, and one incarnation's log there."""

    def __init__(
        self, base: Path, paths: int = 4, files: FileOps = OS_FILES, incarnation: IncarnationId = NAME
    ) -> None:
        root = base / "root"
        if MetadataStore.exists(root):
            self.store = MetadataStore(root)
        else:
            self.store = MetadataStore.create(
                root, [RootRecord(format_version=1, cluster_id=CLUSTER, quorum=str(QUORUM))]
            )
        self.paths = {
            PathId(number): LocalPath(PathId(number), base / f"p{number}", CLUSTER) for number in range(paths)
        }
        for path in self.paths.values():
            path.create(files)
        self.files = files
        self.failures: list[PathFailure] = []
        self.register = LogRegister(self.store, incarnation)

    def journal(
        self,
        listener: Listener,
        quorum: Quorum = QUORUM,
        limits: JournalLimits | None = None,
        paths: Sequence[int] | None = None,
    ) -> Journal:
        used = self.paths if paths is None else {PathId(path): self.paths[PathId(path)] for path in paths}
        return Journal(
            self.register,
            list(used.values()),
            quorum,
            listener,
            on_ended=listener.on_ended,
            mark_failed=self.failures.extend,
            limits=limits,
            files=self.files,
        )

    def recover(
        self, writable: Sequence[int] | None = None, files: FileOps = OS_FILES, give_up: Sequence[int] = ()
    ) -> LogRecord:
        ids = list(self.paths) if writable is None else [PathId(path) for path in writable]
        register = LogRegister(self.store, self.register.incarnation)
        lost = [PathId(path) for path in give_up]
        return recover(register, lambda: self.paths, ids, give_up=lost, files=files, silent_after_s=5)

    def file(self, copy: Copy) -> Path:
        """The file's directory."""
        return file_directory(self.paths[copy.path].directory, self.register.incarnation, JournalFileId(copy.file))

    def frames(self, copy: Copy) -> list[Frame]:
        """All good frames of a copy."""
        fd = open_journal_file(self.file(copy))
        try:
            if OS_FILES.size(fd) == 0:
                return []
            scanner = FrameScanner(FileBytes(fd), read_file_header(FileBytes(fd), "f")[1], "f")
            frames = []
            while isinstance(found := scanner.next_frame(), Frame):
                frames.append(found)
            return frames
        finally:
            OS_FILES.close(fd)

    def offsets(self, file: Path) -> list[int]:
        """Return the offsets at which the frames of an intact file start."""
        fd = OS_FILES.open(file)
        try:
            scanner = FrameScanner(FileBytes(fd), read_file_header(FileBytes(fd), "f")[1], "f")
            offsets = []
            while isinstance(found := scanner.next_frame(), Frame):
                offsets.append(found.offset)
            return offsets
        finally:
            OS_FILES.close(fd)

    def log(self, record: LogRecord) -> list[Frame]:
        """All frames of a closed log; each is the same on an ack quorum of its copies."""
        assert record.last_frame is not None
        log: list[Frame] = []
        firsts = [fragment.first for fragment in record.fragments]
        ends = [*firsts[1:], record.last_frame + 1][: len(firsts)]
        for fragment, end in zip(record.fragments, ends, strict=True):
            by_number: dict[int, list[Frame]] = {}
            for copy in fragment.copies:
                for frame in self.frames(copy):
                    by_number.setdefault(frame.header.number, []).append(frame)
            for number in range(fragment.first, end):
                copies = by_number.get(number, [])
                assert len(copies) >= record.ack_quorum, f"frame {number} has {len(copies)} copies"
                assert len({bytes(copy.data) for copy in copies}) == 1
                log.append(copies[0])
        assert [frame.header.number for frame in log] == list(range(record.last_frame + 1))
        return log


def entries_in(log: Sequence[Frame]) -> list[Entry]:
    """The entries of frames in order; no id comes twice, and a ledger's ids have no gap."""
    entries: list[Entry] = []
    seen: dict[int, int] = {}
    for frame in log:
        if frame.header.kind is not FrameKind.ENTRIES:
            continue
        batch = frame.record_batch()
        ids = zip(batch.column("ledger_id").to_pylist(), batch.column("entry_id").to_pylist(), strict=True)
        for (ledger, entry), payload in zip(ids, payload_views(batch), strict=True):
            assert entry == seen.get(ledger, -1) + 1, f"entry {ledger}:{entry} follows {seen.get(ledger)}"
            seen[ledger] = entry
            entries.append((ledger, entry, bytes(payload)))
    return entries


def by_ledger(entries: Sequence[Entry]) -> dict[int, list[bytes]]:
    """Payloads by ledger, in order of entries."""
    found: dict[int, list[bytes]] = {}
    for ledger, _, payload in entries:
        found.setdefault(ledger, []).append(payload)
    return found


def add(journal: Journal, ledger: int, entry: int, payload: bytes) -> Entry:
    """Add an entry; its context is what `entries_in` gives for it."""
    added = (ledger, entry, payload)
    journal.add_entries(LedgerId(ledger), EntryId(entry), 1, 1_700_000_000_000, [payload], added)
    return added
