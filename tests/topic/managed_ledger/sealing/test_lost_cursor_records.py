"""Frames that no copy gives and that may hold cursor records: given up, they hold up neither trimming nor takeovers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_on_spark.metadata.cursors import WHOLE
from pulsar_on_spark.model.errors import JournalUndecidedError
from pulsar_on_spark.model.ids import EntryId, Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord, encode
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_cursors import settle_cursors
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.lost_frames import give_up_frames
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit.journal_logs import LogOnDisk, journal_files

from .test_lost_frames import damage
from .test_sealer import entry, sealed_entries
from .test_trim import subscribe


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    made = LogOnDisk(root)
    made.open_ledgers(["a"])
    return made


def write(log: LogOnDisk, *records: CursorRecord) -> None:
    log.cursors([(b"k", encode(record)) for record in records])


def at(log: LogOnDisk, entry: int) -> Position:
    return Position(log.ledger("a"), EntryId(entry))


def mark_delete(log: LogOnDisk, record: CursorRecord) -> Position:
    """Return the mark-delete position of the cursor in the cursors table."""
    rows = log.root.store.cursors().of(record.topic_id, record.subscription)
    return CursorRecord.from_row(max((row for row in rows if row.slot == WHOLE), key=lambda row: row.rank)).mark_delete


def seal_and_trim(log: LogOnDisk) -> None:
    for _ in range(2):
        seal_closed(log.root, pytest.fail, grace_s=0)
    assert journal_files(log.root, log.incarnation) == []


def test_a_frame_that_is_sealed_and_not_trimmed(log: LogOnDisk) -> None:
    """The frame's entries are in a segment; whether it had acknowledgements cannot be known."""
    start = subscribe(log)
    for number in range(4):
        log.append({"a": [entry(number)]})
    write(log, replace(start, mark_delete=at(log, 2)))
    log.idle()
    sealer = Sealer(log.root, log.incarnation, is_live=True)
    sealer.seal(tail=True)
    sealer.close()
    log.append({"a": [entry(4)]})
    log.close()
    damage(log, 1, 400)
    with pytest.raises(JournalUndecidedError, match="give the frame up"):
        settle_cursors(log.root, log.incarnation)

    (lost,) = give_up_frames(log.root, log.incarnation, commit=True)
    assert (lost.begin, lost.end, lost.entries, lost.topics) == (1, 2, 0, ())
    settle_cursors(log.root, log.incarnation)
    assert mark_delete(log, start) == at(log, 2)
    seal_and_trim(log)
    assert sealed_entries(log.root, log.ledger("a")) == [entry(number) for number in range(5)]


def test_a_takeover_does_not_wait_until_the_rest_is_sealed(log: LogOnDisk) -> None:
    start = subscribe(log)
    log.append({"a": [entry(0)]})
    write(log, start)
    log.append({"a": [entry(1)]})
    write(log, replace(start, kind="change", n=1, mark_delete=at(log, 1)))
    log.close()
    damage(log, 2, 400)
    give_up_frames(log.root, log.incarnation, commit=True)
    settle_cursors(log.root, log.incarnation)
    assert mark_delete(log, start) == at(log, 1)
    seal_and_trim(log)


def test_an_epochs_first_record_is_its_owners_start(log: LogOnDisk) -> None:
    """The changes behind the lost one would have nothing to build on."""
    start = subscribe(log)
    log.append({"a": [entry(0)]})
    write(log, start)
    log.append({"a": [entry(1)]})
    write(log, replace(start, kind="change", n=1, mark_delete=at(log, 1)))
    log.close()
    damage(log, 1, 150)
    (lost,) = give_up_frames(log.root, log.incarnation, commit=True)
    assert (lost.begin, lost.end, lost.entries) == (1, 2, 0)
    settle_cursors(log.root, log.incarnation)
    assert mark_delete(log, start) == at(log, 1)
    seal_and_trim(log)
