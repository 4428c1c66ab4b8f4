"""A journal on an S3 server whose requests go wrong: each in turn, by chance, and for good from one on.

The metadata are in a folder, so that every request is one of the journal: of its opening, appends, rolls, fences,
readers and deletions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pulsar_on_spark.ledger.journal.journal_paths import delete_file
from pulsar_on_spark.ledger.journal.log import LogState, copies_of
from pulsar_on_spark.ledger.journal.object_file import ObjectFile
from pulsar_on_spark.ledger.journal.object_format import ObjectKind
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import JournalFileId, PathId
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.root_place import parse_place
from pulsar_on_spark.testing.s3_faults import Decide, Fault, Request, S3Faults
from tests.kit.s3_server import S3Server, write_profile
from tests.ledger.journal.journal_runs import CLUSTER, NAME, Entry, Listener
from tests.ledger.journal.test_object_journal import LIMITS, Stores, fill

pytestmark = pytest.mark.long

PATIENCE_S: Final = 30.0
SHORT_S: Final = 0.2
BY_CHANCE: Final = 0.2
LONG, SOAK = 40, 2
"""Of the runs that fail at each request in turn, these tests take every fortieth, or second, beginning at random."""
STRIDES = [pytest.param(LONG, id="some"), pytest.param(SOAK, id="many", marks=pytest.mark.soak)]


class Runs:
    """Journals on one server, which are written behind the proxy and looked at without it."""

    def __init__(self, server: S3Server, faults: S3Faults, folder: Path) -> None:
        self._bucket = server.make_bucket()
        self._folder = folder
        self._count = 0
        self.faults = faults
        write_profile(folder / "storage.toml", self._bucket, server.options(), {"faulty": server.options(faults.url)})

    def run(self, decide: Decide) -> bool:
        """Write, roll, recover and delete a journal with faults; returns True if all steps were done.

        What was acknowledged is in the log, as soon as a recovery without faults has closed it.
        """
        self._count += 1
        url = f"{self._bucket}/p{self._count}"
        faulty, clean = (ObjectPath(PathId(0), parse_place(url, each), CLUSTER) for each in ("faulty", ""))
        clean.create()
        stores = Stores(self._folder / f"r{self._count}", 0)
        acked: list[Entry] = []
        seen = len(self.faults.outcomes)
        self.faults.decide = lambda request: decide(replace(request, number=request.number - seen))
        try:
            stores.paths = {PathId(0): faulty}
            is_done = _change(stores, acked)
        finally:
            self.faults.decide = lambda _: None
        stores.paths = {PathId(0): clean}
        if stores.register.read().record is None:
            assert acked == []
            return is_done
        record = stores.recover()
        assert record.state is LogState.CLOSED
        found = stores.entries(record)
        assert [entry for entry in sorted(acked) if entry not in found] == []
        for copy in copies_of(record):
            delete_file(clean, NAME, JournalFileId(copy.file))
            left = ObjectFile(clean, NAME, JournalFileId(copy.file))
            heads = [left.read_head(number) for number in left.sizes()]
            assert {head.kind for head in heads if head is not None} <= {ObjectKind.FENCE}
        return is_done

    def requests(self) -> int:
        """The number of requests of a run without faults."""
        before = len(self.faults.outcomes)
        assert self.run(lambda _: None)
        return len(self.faults.outcomes) - before


def _change(stores: Stores, acked: list[Entry]) -> bool:
    """Write files of a journal, leave it, recover and read it, all with faults; returns True if all was done."""
    try:
        asyncio.run(_write(stores, acked))
        found = stores.entries(stores.recover())
    except (PulsarpyError, TimeoutError) as error:
        print(f"not all was done: {error!r}")
        return False
    return set(acked) <= set(found)


async def _write(stores: Stores, acked: list[Entry]) -> None:
    listener = Listener()
    # A path is given up later than a store is silent for a while, on a busy machine, too.
    limits = replace(LIMITS, roll_bytes=6_000, slow_path_s=max(2.0, remote.PATIENCE_S / 2))
    journal = stores.journal(listener, limits=limits)
    try:
        await journal.open()
        for _ in range(2):
            await fill(journal, listener, 12, len(listener.acked))
    finally:
        with suppress(PulsarpyError):
            journal.abandon_log()
        acked += listener.acked  # type: ignore[arg-type]


@pytest.fixture
def runs(
    s3_server: S3Server, faults: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], Runs]:
    """Make journals whose processes wait for the store for this long."""

    def make(patience_s: float) -> Runs:
        monkeypatch.setattr(remote, "PATIENCE_S", patience_s)
        return Runs(s3_server, faults, tmp_path)

    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    return make


@pytest.mark.parametrize("fault", Fault)
def test_requests_that_go_wrong_by_chance_lose_nothing(runs: Callable[[float], Runs], fault: Fault) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    assert runs(PATIENCE_S).run(lambda _: fault if chance.random() < BY_CHANCE else None)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.PRECONDITION_412, Fault.CONFLICT_409])
def test_each_request_in_turn_goes_wrong(runs: Callable[[float], Runs], fault: Fault, stride: int) -> None:
    made = runs(PATIENCE_S)
    for bad in _some(made.requests(), stride):
        assert made.run(lambda request, bad=bad: fault if request.number == bad else None)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_process_that_is_killed_at_any_request_loses_nothing(
    runs: Callable[[float], Runs], is_carried_out: bool, stride: int
) -> None:
    made = runs(SHORT_S)
    for last in _some(made.requests(), stride):

        def decide(request: Request, last: int = last) -> Fault | None:
            if request.number < last:
                return None
            return Fault.LOST_REPLY if is_carried_out and request.number == last else Fault.RESET

        made.run(decide)


def test_a_store_without_an_answer_for_a_while_costs_time_only(runs: Callable[[float], Runs]) -> None:
    first = random.randrange(5, 20)
    print(f"from request {first}")
    assert runs(PATIENCE_S).run(lambda request: Fault.BUSY_503 if first <= request.number < first + 10 else None)


def _some(requests: int, stride: int) -> range:
    assert requests > 20, requests
    first = random.randrange(stride)
    print(f"{requests} requests, every {stride}th from {first}")
    return range(first, requests, stride)
