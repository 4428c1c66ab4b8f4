"""Suspended reads continue where they stopped, and do not hold files for long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pulsar_on_spark.broker.reading import worker
from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.jobs import EntrySource, Filled, FillJob, Large
from pulsar_on_spark.broker.reading.slabs import Slab, slab_bytes
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange
from tests.kit import messages
from tests.kit.open_files import open_files_under
from tests.kit.pulsar_entries import read_entry
from tests.kit.running_incarnation import RunningIncarnation

SLAB_BYTES = 100_000


class Reading:
    """Reads of one thread with one slab."""

    def __init__(self, root: Root) -> None:
        self.slab = memoryview(bytearray(slab_bytes(SLAB_BYTES)))
        self.reads = worker._Reads(CatchUp(root, SLAB_BYTES), [self.slab], max_suspended=2)

    def fill(self, part: TopicPart, ledger: int, first: int, end: int, ahead_bytes: int = 10_000) -> Filled | Large:
        wanted = EntryRange(ledger, first, end)  # type: ignore[arg-type]
        return self.reads.fill(FillJob(1, EntrySource(part), (wanted,), 0, ahead_bytes))[0]

    def values(self, filled: Filled) -> list[bytes | None]:
        slab = Slab(self.slab, filled.runs)
        taken = [data for run in filled.runs for data in slab.copy_entries(run.ledger, run.first, run.end, SLAB_BYTES)]
        assert len(taken) == sum(run.end - run.first for run in filled.runs)
        return [message.value for data in taken for message in read_entry(data)]


@pytest.fixture
def part(root: Root) -> TopicPart:
    (found,) = messages.target(root, "clicks").parts
    return found


def test_a_backlog_is_read_continuously_over_many_jobs(
    root: Root, part: TopicPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%04d" % number * 20 for number in range(2_000)]
    with RunningIncarnation(root) as broker:
        broker.send("clicks", values)
        ledger = broker.acknowledged_ids[0].ledger
        reading, begun = Reading(root), 0
        read = CatchUp.read

        def counted(*arguments: object) -> object:
            nonlocal begun
            begun += 1
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(CatchUp, "read", counted)
        found: list[bytes | None] = []
        while len(found) < 2_000:
            filled = reading.fill(part, ledger, len(found), 2_000)
            assert isinstance(filled, Filled)
            found += reading.values(filled)
            assert filled.next == ((ledger, len(found)) if len(found) < 2_000 else None)
        assert found == values
        assert begun == 1
        reading.reads.close()


def test_entries_after_an_error_are_not_lost(root: Root, part: TopicPart) -> None:
    messages.write(root, "clicks", [b"x"] * 10)
    reading = Reading(root)
    filled = reading.fill(part, 1, 0, 5)
    assert isinstance(filled, Filled)
    assert reading.values(filled) == [b"x"] * 10
    assert not filled.next
    reading.reads.close()


def test_idle_reads_close_their_files(root: Root, part: TopicPart, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = RunningIncarnation(root)
    broker.send("clicks", [b"x" * 1_000] * 200)
    ledger = broker.acknowledged_ids[0].ledger
    broker.stop()

    def opened() -> list[Path]:
        return [file for file in open_files_under(root.path / "storage") if file.name.startswith("frames")]

    deadline_s = time.monotonic() + 60
    while opened():  # the broker's paths close theirs in threads of their own
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    reading = Reading(root)
    first = reading.fill(part, ledger, 0, 200)
    assert isinstance(first, Filled)
    assert opened()
    reading.reads.close_idle()
    assert opened(), "not yet"
    monkeypatch.setattr(worker, "IDLE_S", 0.0)
    reading.reads.close_idle()
    assert opened() == []
    done = len(reading.values(first))
    second = reading.fill(part, ledger, done, 200)
    assert isinstance(second, Filled)
    assert second.runs[0].first == done
    reading.reads.close()


def test_a_limited_number_of_reads_stays_suspended(root: Root, part: TopicPart) -> None:
    with RunningIncarnation(root) as broker:
        broker.send("clicks", [b"x" * 1_000] * 200)
        ledger = broker.acknowledged_ids[0].ledger
        reading = Reading(root)
        for first in range(0, 200, 20):
            assert isinstance(reading.fill(part, ledger, first, 200), Filled)
            assert len(reading.reads._suspended) <= 2
        reading.reads.close()
