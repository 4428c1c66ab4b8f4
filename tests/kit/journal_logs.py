"""An incarnation's log on real files without a journal's threads: frames exactly where a test wants them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from pulsar_on_spark.ledger.journal.codec_encode import EncodedFrame, EntryGroup, encode_cursor, encode_entries
from pulsar_on_spark.ledger.journal.codec_encode import encode_lac as encode_lac_frame
from pulsar_on_spark.ledger.journal.codec_encode import encode_roll as encode_roll_frame
from pulsar_on_spark.ledger.journal.files import JournalFileHeader, create_journal_file, log_start
from pulsar_on_spark.ledger.journal.frames import FrameHead
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, Fragment, LogRecord, LogState
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.ledger.journal.messages import CommitLog, LogCommitted
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IdsRecord, LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EntryId, IncarnationId, JournalFileId, LedgerId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.storage.local_path import LocalPath

PUBLISHED_MS = 1_760_000_000_000
"""Time at which the broker took entry 0 of each ledger; each further entry came a millisecond later."""


class LogOnDisk:
    """Writer of an incarnation's log, every frame at once to all copies: each is acknowledged when the next one comes.

    So no process may read or seal the last frame of an OPEN log.
    """

    def __init__(self, root: Root, incarnation: IncarnationId | None = None) -> None:
        self.root = root
        self.incarnation = incarnation or IncarnationId(uuid.uuid4().hex)
        self.register = LogRegister(root.store, self.incarnation)
        self.ledgers: dict[str, LedgerId] = {}
        self.entries: dict[LedgerId, list[bytes]] = {}
        self._at = log_start(self.incarnation)
        self._version = 0
        self._files = 0
        self._fds: dict[Copy, int] = {}
        quorum = root.quorum
        self.record = LogRecord(LogState.OPEN, quorum.write, quorum.ack, ())
        self._begin_fragment()

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def open_ledgers(self, topics: Sequence[str]) -> None:
        """Open a ledger for each topic, making topics that are missing."""
        full = [TopicName.parse(topic).full for topic in topics]
        for topic in full:
            if self.root.store.view().get(TopicRecord, topic) is None:
                self.root.create_topic(topic)

        def decide(view: View) -> Change:
            ids = view.get(IdsRecord, "ledger")
            first = ids.next_ledger_id if ids else 1
            moved: dict[str, int | None] = {keys.incarnation_seal(self.incarnation): None, keys.IDS: None}
            records = []
            for number, name in enumerate(full, first):
                topic = view.get(TopicRecord, name)
                assert topic is not None
                records.append(
                    LedgerRecord(
                        topic_id=topic.topic_id,
                        ledger_id=number,
                        incarnation=self.incarnation,
                        created_at=datetime.now(UTC),
                    )
                )
                moved[keys.topic(name)] = None
                self.ledgers[name] = LedgerId(number)
            return Change(puts=[*records, IdsRecord(next_ledger_id=first + len(full))], keys=moved)

        self.root.store.commit(decide)

    def ledger(self, topic: str) -> LedgerId:
        """The topic's open ledger."""
        return self.ledgers[TopicName.parse(topic).full]

    # -- frames --------------------------------------------------------------------------------------------------------

    def append(self, entries: Mapping[str, Sequence[bytes]]) -> None:
        """Append a frame with entries of topics."""
        group = EntryGroup()
        for topic, payloads in entries.items():
            ledger = self.ledger(topic)
            known = self.entries.setdefault(ledger, [])
            for payload in payloads:
                number = EntryId(len(known))
                group.add(ledger, number, 1, PUBLISHED_MS + number, [payload])
                known.append(payload)
        self._write(encode_entries(group, self._at, self.last_frame))

    def cursors(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Append a frame with cursor records."""
        self._write(encode_cursor(records, self._at, self.last_frame))

    def idle(self) -> None:
        """A frame that proves that the one before it was acknowledged."""
        self._write(encode_lac_frame(self._at, self.last_frame))

    @property
    def last_frame(self) -> int:
        """The number of the last frame, or -1."""
        return self._at.next_number - 1 if self._at.next_number else NO_FRAME

    def roll(self) -> None:
        """Go on in new files."""
        self._write(encode_roll_frame(len(self.record.fragments), self._at, self.last_frame))
        self._begin_fragment()

    # -- the record ----------------------------------------------------------------------------------------------------

    def close(self, given_up: tuple[PathId, ...] = ()) -> None:
        """Close the log, paths having been given up; ledgers stay without close rows, as after a takeover by force."""
        self._release()
        begun = tuple(f for f in self.record.fragments if f.first is not None and f.first <= self.last_frame)
        closed = replace(
            self.record, state=LogState.CLOSED, last_frame=self.last_frame, fragments=begun, given_up=given_up
        )
        self._commit(closed, moves_seal=True)

    def take_over(self) -> None:
        """Take the log over, as a recoverer does first."""
        self._commit(replace(self.record, state=LogState.IN_RECOVERY), moves_seal=True)

    def _begin_fragment(self) -> None:
        self._release()
        paths = self.root.writable_journal_paths(self.root.store.view())[: self.root.quorum.write]
        file = JournalFileId(f"w{self._files:08d}")
        self._files += 1
        header = JournalFileHeader(self.incarnation, file, self._at).encode()
        for path in paths:
            assert isinstance(path, LocalPath), "the root is in a folder"
            fd = create_journal_file(path.directory, self.incarnation, file)
            self._fds[Copy(path.path_id, file)] = fd
            OS_FILES.write(fd, header)
        fragment = Fragment(self._at.next_number, tuple(self._fds))
        self._commit(replace(self.record, fragments=(*self.record.fragments, fragment)))

    def _write(self, frame: EncodedFrame) -> None:
        for fd in self._fds.values():
            OS_FILES.write_buffers(fd, frame.buffers)
            OS_FILES.fdatasync(fd)
        self._at = frame.header.after

    def _commit(self, record: LogRecord, *, moves_seal: bool = False) -> None:
        done = self.register.commit(CommitLog(replace(record, token=uuid.uuid4().hex), self._version, moves_seal))
        assert isinstance(done, LogCommitted), done
        self.record, self._version = record, done.version

    def _release(self) -> None:
        for fd in self._fds.values():
            OS_FILES.close(fd)
        self._fds = {}


class WriterAsFast:
    """Appends an entry of topic "a" before each look of a reader for the next frame, until `MOST` are written.

    Args:
        monkeypatch: Undoes the change of readers.
        log: The log, which has the topic.
        entry: Makes an entry from its number, 1 for the first.

    Attributes:
        written: The number of entries so far.
    """

    MOST: Final = 50

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: LogOnDisk, entry: Callable[[int], bytes]) -> None:
        self.written = 0
        read = LogReader.next

        def read_beside(reader: LogReader[FrameHead], *, every: bool = False) -> FrameHead | None:
            if self.written < self.MOST:
                self.written += 1
                log.append({"a": [entry(self.written)]})
            return read(reader, every=every)

        monkeypatch.setattr(LogReader, "next", read_beside)


def journal_files(root: Root, incarnation: IncarnationId) -> list[tuple[int, JournalFileId]]:
    """The journal files that are on the storage paths, as (path, file)."""
    found = []
    for path in root.path.glob("storage/*"):
        # Unlike a glob, a walk does not mind directories that are deleted meanwhile.
        for directory, _, names in os.walk(path / "journal" / incarnation):
            file = JournalFileId(os.path.basename(directory))
            found += [(int(path.name), file) for name in names if name.startswith("frames.")]
    return sorted(found)
