"""Cold paths on an S3 server: files move there, are read with latency, and are never lost while the store is away."""

from __future__ import annotations

import shutil
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.model.errors import CopiesUnreachableError, InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.reports import ReportKind, read_reports
from pulsar_on_spark.storage.root_place import objects_at, parse_place
from pulsar_on_spark.testing.s3_faults import Decide, Fault, Request, S3Faults
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.files.collect import Ages
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.s3_server import S3Server, write_profile

pytestmark = pytest.mark.long

COLD = PathId(3)
ALL = OffloadRequest(TopicName.parse("t"))
AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)
VALUES = [bytes([65 + number]) * 5_000 for number in range(4)]
SHORT_S = 0.2


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=5)


@pytest.fixture
def patience_s() -> float:
    """For how long processes wait for the store."""
    return 60.0


@pytest.fixture
def cold_url(
    s3_server: S3Server, faults: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> str:
    """The URL of a cold path whose requests go through the proxy."""
    monkeypatch.setattr(remote, "PATIENCE_S", patience_s)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    bucket = s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(), {"faulty": s3_server.options(faults.url)})
    return f"{bucket}/cold"


@pytest.fixture
def root(memory_path: Path, cold_url: str) -> Root:
    """A root in a folder with four files, and a cold path on the server."""
    made = Root.create(memory_path / "root")
    made.create_topic("t")
    for value in VALUES:
        messages.write(made, "t", [value])
    storage_paths.add(made, cold_url, "archive", role="cold", profile="faulty")
    return made


def files(root: Root) -> list[FileRecord]:
    return [file for file in root.store.view().all(FileRecord) if file.replaced_at is None]


def test_files_move_to_a_bucket_and_are_read_and_backed_up(root: Root, memory_path: Path) -> None:
    before = messages.read(root, "t")
    assert offload(root, ALL).moved.moved == 4
    assert offload(root, now=later).released.moved == 4
    assert {file.copies for file in files(root)} == {(COLD,)}
    assert messages.read(root, "t") == before
    assert repair(root).is_whole
    back_up(root, memory_path / "backup")
    assert messages.read(Root.open(memory_path / "backup"), "t") == before
    root.delete_topic("t")
    for _ in range(2):
        maintain(root, AT_ONCE)
    assert [stored for path in root.current_storage_paths().values() for stored in path.segment_files(0)] == []


@pytest.mark.parametrize("patience_s", [SHORT_S])
@pytest.mark.parametrize("fault", [Fault.FORBIDDEN_403, Fault.BUSY_503, Fault.RESET])
def test_a_store_without_an_answer_or_credentials_loses_nothing(root: Root, faults: S3Faults, fault: Fault) -> None:
    before = messages.read(root, "t")
    offload(root, ALL)
    offload(root, now=later)
    faults.decide = lambda _: fault
    opened = Root.open(root.path)
    with pytest.raises(CopiesUnreachableError):
        messages.read(opened, "t", fail_on_data_loss=False)
    done = repair(opened, RepairLimits(replace_after=timedelta()))
    assert (done.work.lost, done.work.restored, done.lacking) == ((), 0, 0)
    record = root.store.view().get(PathRecord, str(COLD))
    assert record is not None
    assert record.state == ("writable" if fault is Fault.FORBIDDEN_403 else "read-only")
    maintain(opened, AT_ONCE)
    assert [each for each in read_reports(root.path) if each.kind is ReportKind.LOSS] == []
    faults.decide = lambda _: None
    maintain(opened, AT_ONCE)
    assert messages.read(opened, "t") == before
    assert repair(opened).is_whole


def test_an_empty_bucket_is_not_the_path(root: Root, cold_url: str) -> None:
    before = messages.read(root, "t")
    offload(root, ALL)
    offload(root, now=later)
    objects = objects_at(parse_place(cold_url))
    held = {each.key: objects.fetch(each.key) for each in objects.list_after("")}
    for key in held:
        objects.delete(key)
    with pytest.raises(CopiesUnreachableError):
        messages.read(root, "t", fail_on_data_loss=False)
    done = repair(root, RepairLimits(replace_after=timedelta()))
    assert (done.missing, done.work.lost, done.work.restored) == (0, (), 0)
    assert IDENTITY_NAME in held
    for key, fetched in held.items():
        assert fetched is not None
        objects.create(key, fetched.content)
    maintain(root, AT_ONCE)
    assert messages.read(root, "t") == before


def test_a_copy_of_the_root_only_reads_from_the_bucket(root: Root, cold_url: str) -> None:
    before = messages.read(root, "t")
    offload(root, ALL)
    copy = Root.open(shutil.copytree(root.path, root.path.with_name("copy")))
    assert offload(root, now=later).released.moved == 4
    done = offload(copy, now=later)
    assert (done.released.moved, messages.read(copy, "t")) == (0, before)
    copy.delete_topic("t", force=True)
    for _ in range(2):
        assert "so this root only reads from it" in " ".join(maintain(copy, AT_ONCE).collect.skipped_paths)
    assert messages.read(root, "t") == before
    assert repair(root).is_whole


def test_a_slow_store_is_read_ahead(root: Root, faults: S3Faults) -> None:
    """Some 200 ms a request: four files are read in far less than one request after the other would take."""
    root.create_topic("big")
    value = b"".join(number.to_bytes(4) for number in range(1 << 18))
    messages.write(root, "big", [value[number:] for number in range(24)])
    offload(root, OffloadRequest(TopicName.parse("big")))
    offload(root, now=later)
    counted = len(faults.outcomes)

    def slow(_: Request) -> None:
        time.sleep(0.2)

    faults.decide = slow
    began_s = time.monotonic()
    assert len(messages.read(root, "big")) == 24
    took_s = time.monotonic() - began_s
    requests = len(faults.outcomes) - counted
    print(f"{requests} requests in {took_s:.1f} s")
    assert took_s < max(requests, 5) * 0.2


def test_a_store_that_hangs_delays_only_consumers_of_its_files(root: Root, faults: S3Faults) -> None:
    """A broker whose store answers no request: eight subscriptions wait for it, and others get their backlog."""
    root.create_topic("hot")
    messages.write(root, "hot", VALUES)
    offload(root, ALL)
    offload(root, now=later)
    answer = threading.Event()

    def hang(_: Request) -> None:
        answer.wait(60)

    with RunningBroker(root.path, {"maintain_interval_s": 600}) as broker:
        client = new_client(broker.url)
        faults.decide = hang
        earliest = pulsar.InitialPosition.Earliest
        waiting = [client.subscribe("t", f"s{number}", initial_position=earliest) for number in range(8)]
        time.sleep(1)
        for number in range(3):
            reader = client.subscribe("hot", f"s{number}", initial_position=earliest)
            began_s = time.monotonic()
            assert [reader.receive(WAIT_MS).data() for _ in VALUES] == VALUES
            assert time.monotonic() - began_s < 1
            began_s = time.monotonic()
            reader.seek(1)  # by time
            assert reader.receive(WAIT_MS).data() == VALUES[0]
            assert time.monotonic() - began_s < 2
        answer.set()
        for consumer in waiting:
            assert [consumer.receive(WAIT_MS).data() for _ in VALUES] == VALUES
        client.close()


@pytest.mark.parametrize("patience_s", [SHORT_S])
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.ERROR_500_AFTER, Fault.FORBIDDEN_403])
def test_each_request_in_turn_goes_wrong(root: Root, faults: S3Faults, fault: Fault) -> None:
    """Moves fail or succeed, and in the end every file is moved, once."""
    before = messages.read(root, "t")

    def failing(number: int) -> Decide:
        first = len(faults.outcomes)
        return lambda request: fault if len(faults.outcomes) - first == number else None

    for number in range(0, 24, 3):
        for moment in (lambda: datetime.now(UTC), later):
            faults.decide = failing(number)
            try:
                offload(root, ALL, now=moment)
            except PulsarpyError as error:
                print(error)
            faults.decide = lambda _: None
            assert messages.read(root, "t") == before
        maintain(root, AT_ONCE)
    offload(root, ALL)
    offload(root, now=lambda: later() + timedelta(hours=5))
    assert {file.copies for file in files(root)} == {(COLD,)}
    maintain(root, AT_ONCE)
    stored = [each.name for each in root.current_storage_paths()[COLD].segment_files(0)]
    assert sorted(map(str, stored)) == sorted(str(file.names[COLD]) for file in files(root))


def test_a_root_on_an_object_store_has_cold_urls_only(bucket: str, memory_path: Path) -> None:
    made = Root.create(f"{bucket}/root")
    made.create_topic("t")
    messages.write(made, "t", VALUES)
    with pytest.raises(InvalidArgumentError, match="can hold journals only"):
        storage_paths.add(made, memory_path / "disk", role="cold")
    added = storage_paths.add(made, f"{bucket}/archive", role="cold")
    assert offload(made, ALL).moved.moved == 1
    assert offload(made, now=later).released.moved == 1
    assert {file.copies for file in files(made)} == {(added.path_id,)}
    assert messages.values(made, "t") == VALUES
