"""The journal's shell on real files: grouping, order, rolling, ensemble changes, back-pressure, the end."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
import uvloop

from pulsar_on_spark.ledger.journal import writer_shell
from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.log import FrameKind, LogState
from pulsar_on_spark.model.errors import InvalidArgumentError, JournalFencedError, JournalUnavailableError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.model.quorum import Quorum
from tests.ledger.journal.journal_runs import Listener, Place, add, by_ledger, entries_in

KINDS = [FrameKind.ENTRIES, FrameKind.CURSOR, FrameKind.ROLL]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


LOOPS = pytest.mark.parametrize("run_in_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@LOOPS
def test_acknowledged_entries_are_read_back_in_order(place, run_in_loop):
    async def run():
        listener = Listener()
        journal = place.journal(listener)
        journal.cursor_sink = listener
        assert not journal.can_add
        await journal.open()
        added = []
        for number in range(50):
            for ledger in range(1, 4):
                added.append(add(journal, ledger, number, os.urandom(100 * ledger)))
            if number % 5 == 0:
                journal.add_cursor(b"sub", b"%d" % number, number)
                await asyncio.sleep(0.001)
        await journal.close()
        entries = [context for context in listener.acked if isinstance(context, tuple)]
        assert sorted(entries) == sorted(added)
        assert [context for context in listener.acked if isinstance(context, int)] == list(range(0, 50, 5))
        return entries

    acked = run_in_loop(run())
    record = place.register.read().record
    assert record.state is LogState.CLOSED
    log = place.log(record)
    assert by_ledger(entries_in(log)) == by_ledger(acked)
    records = [pair for frame in log if frame.header.kind is FrameKind.CURSOR for pair in frame.cursor_records()]
    assert records == [(b"sub", b"%d" % number) for number in range(0, 50, 5)]
    assert [len(place.frames(copy)) for copy in record.fragments[0].copies] == [len(log)] * 3


def test_one_turn_of_the_loop_makes_one_frame(place):
    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        for number in range(1000):
            add(journal, 1, number, b"x" * 100)
        await listener.wait(lambda: len(listener.acked) == 1000)
        await journal.close()

    asyncio.run(run())
    log = place.log(place.register.read().record)
    assert [frame.header.rows for frame in log] == [1000]


def test_full_groups_are_sent_although_no_path_is_free(place):
    limits = JournalLimits(group_bytes=1000, group_entries=8)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=limits)
        await journal.open()
        for number in range(80):
            add(journal, 1, number, b"x" * 10)
        for number in range(10):
            add(journal, 2, number, b"y" * 600)
        await journal.close()
        assert len(listener.acked) == 90

    asyncio.run(run())
    log = place.log(place.register.read().record)
    assert [frame.header.rows for frame in log] == [8] * 10 + [2] * 5


def test_a_run_is_added_up_to_the_end_of_the_room(place):
    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(waiting_bytes=1000, waiting_entries=50, entry_bytes=900))
        payloads = [b"x" * 300] * 5
        assert journal.fitting(payloads) == 0
        await journal.open()
        assert journal.fitting(payloads) == 4
        assert journal.fitting(payloads[:3]) == 3
        assert journal.fitting([b""] * 60) == 50
        for refused in (payloads, [b""] * 51):
            with pytest.raises(JournalUnavailableError, match="has no room"):
                journal.add_entries(LedgerId(1), EntryId(0), 1, 1, refused, "refused")
        with pytest.raises(InvalidArgumentError, match="901 bytes exceeds the limit of 900"):
            journal.add_entries(LedgerId(1), EntryId(0), 1, 1, [b"", b"x" * 901], "refused")
        journal.add_entries(LedgerId(1), EntryId(0), 1, 1, payloads[:4], "run")
        assert (journal.can_add, journal.fitting(payloads), journal.waiting_bytes) == (False, 0, 1200)
        await listener.wait(lambda: journal.can_add)
        await journal.close()
        assert listener.acked == ["run"]

    asyncio.run(run())
    (frame,) = place.log(place.register.read().record)
    assert entries_in([frame]) == [(1, entry, b"x" * 300) for entry in range(4)]


def test_an_idle_journal_writes_its_lac_for_tail_readers(place):
    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(idle_lac_s=0.005))
        await journal.open()
        for number in range(3):
            add(journal, 1, number, b"x")
            await listener.wait(lambda number=number: len(listener.acked) == number + 1)
            await asyncio.sleep(0.1)
        record = place.register.read().record
        frames = place.frames(record.fragments[0].copies[0])
        assert [(frame.header.kind, frame.header.lac) for frame in frames] == [
            *((FrameKind.ENTRIES, -1), (FrameKind.LAC, 0)),
            *((FrameKind.ENTRIES, 0), (FrameKind.LAC, 2)),
            *((FrameKind.ENTRIES, 2), (FrameKind.LAC, 4)),
        ]
        await journal.close()

    asyncio.run(run())


@LOOPS
def test_files_roll_by_size(place, run_in_loop):
    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=JournalLimits(roll_bytes=100_000))
        await journal.open()
        added = []
        # A roll waits for a commit: the slower these are, the more entries are in a file.
        while len(added) < 200 or len(place.register.read().record.fragments) <= 4:
            added.append(add(journal, 1, len(added), os.urandom(5000)))
            await listener.wait(lambda added=added: len(listener.acked) == len(added))
            await asyncio.sleep(0.002)  # for the next file to be prepared
        await journal.close()
        return added

    added = run_in_loop(run())
    record = place.register.read().record
    assert len(record.fragments) > 4
    log = place.log(record)
    assert entries_in(log) == added
    rolls = [frame for frame in log if frame.header.kind is FrameKind.ROLL]
    assert [frame.next_fragment() for frame in rolls] == list(range(1, len(record.fragments)))
    assert [frame.header.number + 1 for frame in rolls] == [fragment.first for fragment in record.fragments[1:]]


def test_a_journal_above_its_limits_refuses_entries(place):
    limits = JournalLimits(waiting_bytes=10_000, waiting_entries=50, entry_bytes=8000)

    async def run():
        listener = Listener()
        journal = place.journal(listener, limits=limits)
        with pytest.raises(JournalUnavailableError, match="broker-1 has no room"):
            add(journal, 1, 0, b"x")
        await journal.open()
        with pytest.raises(InvalidArgumentError, match="8001 bytes exceeds the limit of 8000"):
            add(journal, 1, 0, b"x" * 8001)
        number = 0
        for payload in (b"x" * 1000, b""):
            while journal.can_add:
                add(journal, 1, number, payload)
                number += 1
            with pytest.raises(JournalUnavailableError):
                add(journal, 1, number, payload)
            listener.said.clear()
            await listener.wait(lambda: "room" in listener.said)
        assert number == 10 + 50
        await journal.close()
        with pytest.raises(JournalUnavailableError, match="is over"):
            add(journal, 1, number, b"x")
        assert len(listener.acked) == number

    asyncio.run(run())


@pytest.mark.parametrize("quorum", ["1/1/1", "2/2/1", "2/2/2", "3/3/3"])
def test_each_quorum_works(place, quorum):
    async def run():
        listener = Listener()
        journal = place.journal(listener, Quorum.parse(quorum))
        await journal.open()
        for number in range(20):
            add(journal, 1, number, b"%d" % number)
            await asyncio.sleep(0.001)
        await journal.close()

    asyncio.run(run())
    record = place.register.read().record
    assert len(record.fragments[0].copies) == Quorum.parse(quorum).write
    assert by_ledger(entries_in(place.log(record))) == {1: [b"%d" % number for number in range(20)]}


def test_an_abandoned_journal_reports_at_once_and_is_left_to_a_recovery(place):
    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        first = add(journal, 1, 0, b"first")
        await listener.wait(lambda: listener.acked == [first])
        second = add(journal, 1, 1, b"second")
        journal.abandon_log()
        assert listener.lost == [second]
        assert listener.said == ["room", "ended: it was abandoned"]
        assert not journal.can_add
        journal.abandon_log()
        with pytest.raises(JournalFencedError, match="it was abandoned"):
            await journal.close()
        return first, second

    others = set(threading.enumerate())
    first, second = asyncio.run(run())
    assert place.register.read().record.state is LogState.OPEN
    assert entries_in(place.log(place.recover())) in ([first], [first, second])
    deadline = time.monotonic() + 30
    while set(threading.enumerate()) - others:
        assert time.monotonic() < deadline, "a thread is still running"
        time.sleep(0.01)


@pytest.mark.parametrize("where", ["acknowledged", "sent"])
def test_a_defect_ends_the_journal_and_all_waits(place, monkeypatch, where):
    """Half of something is done then: only a recovery can tell what the log holds."""

    class Defective(Listener):
        def on_entries_acknowledged(self, contexts):
            super().on_entries_acknowledged(contexts)
            if where == "acknowledged":
                raise ValueError("a defect")

    def defective(*arguments, **options):
        raise ValueError("a defect")

    async def run():
        listener = Defective()
        journal = place.journal(listener)
        await journal.open()
        if where == "sent":
            monkeypatch.setattr(writer_shell.FramesInFlight, "append", defective)
        added = add(journal, 1, 0, b"x")
        await listener.wait(lambda: listener.said[-1].startswith("ended"))
        assert listener.said[-1] == "ended: its writer has failed: ValueError('a defect')"
        assert listener.acked == ([added] if where == "acknowledged" else [])
        assert not journal.can_add
        with pytest.raises(JournalFencedError, match="its writer has failed"):
            await journal.close()

    asyncio.run(run())
    monkeypatch.undo()
    assert place.register.read().record.state is LogState.OPEN
    assert place.recover().state is LogState.CLOSED


def test_a_closed_or_taken_incarnation_cannot_be_opened_again(place):
    async def run():
        listener = Listener()
        journal = place.journal(listener)
        await journal.open()
        again = place.journal(Listener())
        with pytest.raises(JournalFencedError, match="start a new incarnation"):
            await again.open()
        add(journal, 1, 0, b"x")
        await journal.close()
        with pytest.raises(JournalFencedError):
            await place.journal(Listener()).open()
        assert listener.acked == [(1, 0, b"x")]

    asyncio.run(run())
