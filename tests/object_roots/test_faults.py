"""A root on an S3 server whose requests go wrong: each in turn, by chance, and for good from one on.

The last is what a process that is killed leaves, because it sends nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.root_place import parse_place
from pulsar_on_spark.testing.s3_faults import Decide, Fault, Request, S3Faults
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.files.merge import merge
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile

pytestmark = pytest.mark.long

AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
SHORT_S = 0.2
BY_CHANCE = 0.15
LONG, SOAK = 40, 5
"""Of the runs that fail at each request in turn, these tests take every fortieth, or fifth, beginning at random."""
STRIDES = [pytest.param(LONG, id="some"), pytest.param(SOAK, id="many", marks=pytest.mark.soak)]
SHORTER = (Fault.LOST_REPLY, Fault.ERROR_500_AFTER, Fault.FORBIDDEN_403)


class Runs:
    """Roots on one server, which are changed behind the proxy and looked at without it."""

    def __init__(self, server: S3Server, faults: S3Faults, file: Path) -> None:
        self._bucket = server.make_bucket()
        self._count = 0
        self.faults = faults
        write_profile(file, self._bucket, server.options(), {"faulty": server.options(faults.url)})

    def run(self, decide: Decide) -> bool:
        """Change a new root with faults; returns True if all steps were done. What was acknowledged must be there."""
        self._count += 1
        url = f"{self._bucket}/root-{self._count}"
        Root.create(url, quorum=Quorum(2, 2, 1), storage_paths=[f"{url}/a", f"{url}/b", f"{url}/c"])
        clean = Root.open(url)
        clean.create_topic("t")
        work = _Work(clean)
        seen = len(self.faults.outcomes)
        self.faults.decide = lambda request: decide(
            Request(request.number - seen, request.method, request.path, request.query, request.is_conditional)
        )
        is_done = True
        try:
            work.change(Root(parse_place(url, "faulty")))
        except PulsarpyError:
            is_done = False
        finally:
            self.faults.decide = lambda _: None
        work.check(Root.open(url))
        return is_done

    def requests(self) -> int:
        """The number of requests of a run without faults."""
        before = len(self.faults.outcomes)
        assert self.run(lambda _: None)
        return len(self.faults.outcomes) - before


class _Work:
    """The changes of a root, and what must be there after some of them."""

    def __init__(self, clean: Root) -> None:
        self._clean = clean
        self._acknowledged: list[bytes] = []
        self._unknown: list[bytes] = []

    def change(self, root: Root) -> None:
        for number in range(3):
            self._write(root, b"%d" % number * 3_000)
        file = self._clean.store.view().all(FileRecord)[0]
        if len(file.copies) > 1:
            lost = self._clean.current_storage_paths()[PathId(file.copies[0])]
            lost.delete_segment(file.names[file.copies[0]])
        repair(root)
        storage_paths.drain(root, 0)
        repair(root)
        merge(root)
        collect(root, AT_ONCE)
        root.store.fold_and_checkpoint()
        self._write(root, b"last")
        root.store.vacuum()

    def _write(self, root: Root, value: bytes) -> None:
        self._unknown.append(value)
        messages.write(root, "t", [value])
        self._acknowledged.append(self._unknown.pop())

    def check(self, root: Root) -> None:
        found = messages.values(root, "t")
        assert found[: len(self._acknowledged)] == self._acknowledged
        assert found[len(self._acknowledged) :] in ([], self._unknown), "a write is there once or not at all"
        for path in root.status().paths:
            if path.state != "writable":  # drained, or marked by a copy that could not be uploaded
                storage_paths.resume(root, path.path_id)
        assert not repair(root).work.lost
        collect(root, AT_ONCE)
        assert messages.values(Root.open(root.place), "t") == found
        assert repair(root).is_whole
        named = {(path, name) for file in root.store.view().all(FileRecord) for path, name in file.names.items()}
        collect(root, AT_ONCE)
        stored = {
            (int(path.path_id), stored.name)
            for path in root.current_storage_paths().values()
            for stored in path.segment_files(0)
        }
        assert stored == named


@pytest.fixture
def runs(
    s3_server: S3Server, faults: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], Runs]:
    """Make roots whose processes wait for the store for this long."""

    def make(patience_s: float) -> Runs:
        monkeypatch.setattr(remote, "PATIENCE_S", patience_s)
        return Runs(s3_server, faults, tmp_path / "storage.toml")

    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    return make


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[] if fault in SHORTER else pytest.mark.soak) for fault in Fault]
)
def test_requests_that_go_wrong_by_chance_change_nothing(runs: Callable[[float], Runs], fault: Fault) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    assert runs(60.0).run(lambda _: fault if chance.random() < BY_CHANCE else None)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.PRECONDITION_412])
def test_each_request_in_turn_loses_its_reply(runs: Callable[[float], Runs], fault: Fault, stride: int) -> None:
    made = runs(60.0)
    for lost in _some(made.requests(), stride):
        made.run(lambda request, lost=lost: fault if request.number == lost else None)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_process_that_is_killed_at_any_request(
    runs: Callable[[float], Runs], is_carried_out: bool, stride: int
) -> None:
    made = runs(SHORT_S)
    for last in _some(made.requests(), stride):
        killed: list[Request] = []

        def decide(request: Request, last: int = last, killed: list[Request] = killed) -> Fault | None:
            if request.number < last:
                return None
            killed.append(request)
            return Fault.LOST_REPLY if is_carried_out and request.number == last else Fault.RESET

        # Random ids decide where copies are, and so the number of requests: a run may end before its last.
        assert made.run(decide) is not bool(killed)


def _some(requests: int, stride: int) -> range:
    assert requests > 100
    first = random.randrange(stride)
    print(f"{requests} requests, every {stride}th from {first}")
    return range(first, requests, stride)
