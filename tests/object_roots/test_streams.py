"""Streams with a subscription on an S3 server that refuses them, loses their bucket or answers too late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import MetadataError, StorageError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.root_place import parse_place
from pulsar_on_spark.testing.s3_faults import Fault, Request, S3Faults
from pulsar_on_spark.topic.data_path.attach import attach
from pulsar_on_spark.topic.data_path.transactions import batch_of
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete
from tests.kit import messages
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point, kill_all
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.waiting import LIMIT_S

pytestmark = pytest.mark.long

SHORT_S = 0.5
COUNT, LIMIT = 30, 10
VALUES = [b"%d" % number for number in range(COUNT)]


class Store:
    """A server with one bucket and a root in it, behind a proxy; the profile of this process goes through the proxy."""

    def __init__(self, server: S3Server, faults: S3Faults, file: Path) -> None:
        self.server = server
        self.faults = faults
        self.bucket = server.make_bucket()
        self.url = f"{self.bucket}/root"
        self._file = file
        self.renew_profile()

    def renew_profile(self) -> None:
        """Write the credentials that are valid now into the file of profiles."""
        options = self.server.options(self.faults.url)
        write_profile(self._file, self.bucket, options, {"direct": self.server.options()})

    @contextmanager
    def expired_credentials(self) -> Iterator[None]:
        """Refuse the user, until the file of profiles has another one."""
        self.server.change_account()
        yield
        self.renew_profile()

    @contextmanager
    def vanished_bucket(self) -> Iterator[None]:
        """Answer that there is no such bucket."""
        folder = self.server.folder / self.bucket.removeprefix("s3://")
        hidden = folder.rename(self.server.folder.parent / "hidden")
        yield
        hidden.rename(folder)

    @contextmanager
    def storm(self) -> Iterator[None]:
        """Answer that there are too many requests."""
        self.faults.decide = lambda _: Fault.BUSY_503
        yield
        self.faults.decide = lambda _: None


OUTAGES = [Store.expired_credentials, Store.vanished_bucket, Store.storm]


@pytest.fixture(autouse=True)
def kill_queries() -> Iterator[None]:
    """Also those of a test that fails."""
    yield
    kill_all()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    monkeypatch.setattr(remote, "PATIENCE_S", SHORT_S)
    folder = tmp_path / "buckets"
    folder.mkdir()
    with S3Server(folder) as server, S3Faults(server.url) as faults:
        yield Store(server, faults, tmp_path / "storage.toml")


@pytest.fixture
def root(store: Store) -> Root:
    made = Root.create(store.url)
    made.create_topic("t")
    for first in range(0, COUNT, LIMIT):
        messages.write(made, "t", VALUES[first : first + LIMIT])
    return made


def query(root: Root, kept: Checkpoint) -> MicroBatchQuery:
    """A query that may skip what is lost: nothing is."""
    options = {"topic": "t", "subscription": "s", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    return MicroBatchQuery(str(root.place), kept, {**options, "maxMessagesPerTrigger": str(LIMIT)})


def cursor(root: Root) -> Position:
    (topic,) = root.topics()
    record = root.store.view().get(SubscriptionRecord, f"{topic.topic_id}/s")
    assert record is not None
    return mark_delete(record, root.store.cursors().of(topic.topic_id, "s"))


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("is_logged", [False, True])
def test_a_stream_fails_with_a_sentence_and_a_restart_goes_on_behind_it(
    store: Store, root: Root, outage: Callable[[Store], Iterator[None]], is_logged: bool
) -> None:
    kept = Checkpoint()
    running = query(root, kept)
    assert running.run()
    if is_logged:
        assert running.run(Point.LOGGED)
    before = cursor(root)
    with outage(store):
        with pytest.raises((MetadataError, StorageError), match=f"^[^\n]*{store.url}[^\n]*: check [^\n]*\\.$"):
            running.run()
        running.kill()
    assert cursor(Root.open(store.url)) == before
    assert kept.values == VALUES[:LIMIT]
    query(root, kept).run_all()
    assert kept.values == VALUES


def test_a_stream_takes_renewed_credentials_while_it_runs(store: Store, root: Root) -> None:
    kept = Checkpoint()
    running = query(root, kept)
    assert running.run()
    with store.expired_credentials():
        pass
    running.run_all()
    assert kept.values == VALUES


@pytest.mark.parametrize("fault", [Fault.FORBIDDEN_403, Fault.BUSY_503, Fault.RESET])
def test_tasks_that_cannot_read_their_segments_skip_none(store: Store, root: Root, fault: Fault) -> None:
    kept = Checkpoint()
    running = query(root, kept)
    assert running.run()
    store.faults.decide = lambda request: fault if "/segments/" in request.path else None
    with pytest.raises((MetadataError, StorageError), match=f"^[^\n]*{store.url}[^\n]*: check [^\n]*\\.$"):
        running.run()
    store.faults.decide = lambda _: None
    running.kill()
    query(root, kept).run_all()
    assert kept.values == VALUES


@pytest.mark.parametrize("fault", [Fault.FORBIDDEN_403, Fault.BUSY_503])
def test_a_store_that_refuses_for_a_moment_is_asked_again(store: Store, root: Root, fault: Fault) -> None:
    kept = Checkpoint()
    running = query(root, kept)
    assert running.run()
    begun = len(store.faults.outcomes)
    store.faults.decide = lambda request: fault if request.number % 2 else None
    running.run_all()
    assert kept.values == VALUES
    assert any(each.fault is fault for each in store.faults.outcomes[begun:])


def test_the_late_commit_of_a_driver_that_was_replaced_adds_nothing(store: Store, root: Root) -> None:
    """The first driver's log entry is held up in the network until the second one has committed the batch."""
    root.create_topic("u")
    late = Root(parse_place(store.url))
    batch = batch_of("query", 0, None)
    arrived, go_on = threading.Event(), threading.Event()

    def hold_entry(request: Request) -> None:
        if request.method == "PUT" and "_delta_log" in request.path and not arrived.is_set():
            arrived.set()
            assert go_on.wait(LIMIT_S)

    def commit(opened: Root) -> bool:
        write_id = messages.new_write_id()
        staged = messages.stage(opened, {"u": messages.make_rows([b"once"])}, write_id)
        return attach(opened.store, write_id, [staged], batch)

    done: list[bool] = []
    store.faults.decide = hold_entry
    first = threading.Thread(target=lambda: done.append(commit(late)))
    first.start()
    assert arrived.wait(LIMIT_S)
    second = Root(parse_place(store.url, "direct"))
    assert commit(second)
    messages.write(second, "u", [b"behind"])
    go_on.set()
    first.join(LIMIT_S)
    assert done == [False]
    assert messages.values(Root.open(store.url), "u") == [b"once", b"behind"]
