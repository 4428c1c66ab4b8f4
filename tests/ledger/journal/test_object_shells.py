"""A journal on stores whose requests come late, twice or not at all, with recoverers and readers at the same time.

The simulator has the protocol; here are the threads around it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal import object_writer
from pulsar_on_spark.ledger.journal.frames import Frame, FrameHead
from pulsar_on_spark.ledger.journal.log import LogRecord
from pulsar_on_spark.ledger.journal.log_reader import LogReader
from pulsar_on_spark.model.errors import JournalUndecidedError, ObjectsUnreachableError, PulsarpyError
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed
from pulsar_on_spark.storage.objects.local import LocalObjects
from tests.ledger.journal.journal_runs import NAME, Entry, Listener, add
from tests.ledger.journal.test_object_journal import LIMITS, ONE, THREE, Stores

LATE_S = 1.0
RUNS = [pytest.param(3, id="some", marks=pytest.mark.long), pytest.param(60, id="many", marks=pytest.mark.soak)]


@dataclass
class Faults:
    """Requests of the journal that go wrong by chance."""

    chance: random.Random
    share: float = 0.0
    late: list[threading.Timer] = field(default_factory=list)

    def strikes(self, key: str) -> bool:
        return key.startswith("journal/") and self.chance.random() < self.share

    def later(self, objects: LocalObjects, key: str, content: bytes) -> None:
        timer = threading.Timer(self.chance.uniform(0, LATE_S), create, (objects, key, content))
        self.late.append(timer)
        timer.start()


create, fetch, list_after = LocalObjects.create, LocalObjects.fetch, LocalObjects.list_after


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    made = Faults(random.Random(seed))

    def faulty_create(objects: LocalObjects, key: str, content: bytes) -> Created | Exists:
        if not made.strikes(key):
            return create(objects, key, content)
        is_done, is_late, is_lost = (made.chance.random() < 0.5 for _ in range(3))
        if is_late:
            made.later(objects, key, content)
        answer = create(objects, key, content) if is_done else None
        if answer is None or is_lost:
            raise ObjectsUnreachableError("the reply is lost")
        return answer

    def faulty_fetch(objects: LocalObjects, key: str) -> Fetched | None:
        if made.strikes(key):
            raise ObjectsUnreachableError("no reply")
        return fetch(objects, key)

    def faulty_list(objects: LocalObjects, prefix: str, after: str = "") -> Iterator[Listed]:
        if made.strikes(prefix):
            raise ObjectsUnreachableError("no reply")
        return list_after(objects, prefix, after)

    monkeypatch.setattr(LocalObjects, "create", faulty_create)
    monkeypatch.setattr(LocalObjects, "fetch", faulty_fetch)
    monkeypatch.setattr(LocalObjects, "list_after", faulty_list)
    monkeypatch.setattr(object_writer, "PAUSE_S", 0.02)
    yield made
    for timer in made.late:
        timer.join()


class Follower(threading.Thread):
    """A reader of the growing log, which must get the frames that the closed log has, whatever fails meanwhile."""

    def __init__(self, stores: Stores, kind: type[FrameHead]) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, int] = {}
        self.error: BaseException | None = None
        self._stores = stores
        self._kind = kind
        self._is_over = threading.Event()

    def __enter__(self) -> Follower:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        try:
            with closing(LogReader(NAME, lambda: self._stores.paths, self._kind)) as reader:
                while not self._is_over.wait(0.01):
                    self._read(reader)
        except BaseException as error:
            self.error = error

    def _read(self, reader: LogReader[FrameHead]) -> None:
        record = self._stores.register.read().record
        if record is not None:
            reader.main_read(record, 0)
            reader.walk.forget_failures()
            reader.open_files()
            while (frame := reader.next()) is not None:
                self.seen[frame.header.number] = frame.header.after.crc


async def _write(stores: Stores, faults: Faults) -> list[Entry]:
    """Write until the journal ends, or for a while; returns what was acknowledged."""
    chance, listener = faults.chance, Listener()
    limits = replace(LIMITS, roll_bytes=chance.choice([2_000, 100_000]), slow_path_s=5.0, idle_lac_s=0.02)
    journal = stores.journal(listener, ONE if len(stores.paths) == 1 else THREE, limits)
    with suppress(PulsarpyError):
        await journal.open()
    end_s, number = time.monotonic() + chance.uniform(1, 4), 0
    while time.monotonic() < end_s and not any(word.startswith("ended") for word in listener.said):
        if journal.can_add:
            add(journal, 1 + number % 3, number // 3, b"%d" % number)
            number += 1
        await asyncio.sleep(chance.uniform(0, 0.02))
    journal.abandon_log()
    return listener.acked  # type: ignore[return-value]


def _recovered(stores: Stores, chance: random.Random) -> LogRecord:
    """Close the log after the faults have ended; a rival may be recovering it at the same time."""
    for _ in range(20):
        with suppress(JournalUndecidedError):
            return stores.recover()
        time.sleep(chance.uniform(0, 0.5))
    raise AssertionError("it cannot be closed")


def _recover_once(stores: Stores) -> None:
    with suppress(JournalUndecidedError):
        stores.recover()


@pytest.mark.parametrize("runs", RUNS)
def test_what_was_acknowledged_is_in_the_log_and_readers_get_nothing_else(
    tmp_path: Path, faults: Faults, runs: int
) -> None:
    for number in range(runs):
        chance = faults.chance
        stores = Stores(tmp_path / str(number), chance.choice([1, 3]))
        faults.share = chance.choice([0.05, 0.2])
        rivals = [threading.Timer(chance.uniform(0.5, 4), _recover_once, (stores,)) for _ in range(chance.randrange(3))]
        with ExitStack() as stack:
            followers = [stack.enter_context(Follower(stores, kind)) for kind in (Frame, FrameHead)]
            for rival in rivals:
                rival.start()
            acked = asyncio.run(_write(stores, faults))
            for rival in rivals:
                rival.join()
            faults.share = 0
            if stores.register.read().record is None:
                assert acked == []
                continue
            record = _recovered(stores, chance)
            for request in faults.late:
                request.join()
            faults.late.clear()
        frames = stores.frames(record)
        assert set(acked) <= set(stores.entries(record))
        assert [frame.header.number for frame in frames] == list(range(len(frames)))
        log = {frame.header.number: frame.header.after.crc for frame in frames}
        for follower in followers:
            assert follower.error is None
            assert {each: crc for each, crc in follower.seen.items() if each in log}.items() <= log.items()
