"""A table on a real S3 server, also behind a proxy that loses replies and refuses requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log import cleaning, folding
from pulsar_on_spark.metadata.log.chain import ConflictError, OvertakenError, UnknownOutcomeError
from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.object_log import ObjectLog
from pulsar_on_spark.metadata.log.table_log import TableLog
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.testing.s3_faults import Fault, S3Faults
from tests.kit.s3_server import S3Server

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("id", pa.string()), pa.field("seq", pa.int64()), pa.field("token", pa.string())])
ORDER = folding.Order(key=("id",), rank=("seq",))
COMMITS = 25


@pytest.fixture
def url(s3_server: S3Server) -> str:
    url = f"{s3_server.make_bucket()}/root/metadata/main"
    store = RemoteObjects(url, s3_server.options())
    store.create(IDENTITY_NAME, b"identity")
    create_table(ObjectLog(store, url), SCHEMA)
    return url


def keep_few(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Fold and clean up as soon as there are more entries."""
    for module, name in ((folding, "LAG"), (folding, "WORTH_FILES"), (cleaning, "KEEP_ENTRIES")):
        monkeypatch.setattr(module, name, entries)
    for name in ("KEEP_S", "RETAIN_S"):
        monkeypatch.setattr(cleaning, name, -1.0)


def opened(server: S3Server, url: str, endpoint: str = "", objects: RemoteObjects | None = None) -> TableLog:
    options = server.options(endpoint)
    log = TableLog(ObjectLog(objects or RemoteObjects(url, options), url))
    refreshed(log)
    return log


def refreshed(log: TableLog) -> list[str]:
    news = log.refresh()
    log.taken_in()
    return [name for rows in news.tables for name in rows.column("id").to_pylist()]


def append(log: TableLog, name: str, key: str) -> str:
    """Append as the store does; returns the token, for `settle`."""
    token = log.new_token()
    rows = pa.table({"id": [name], "seq": [log.version + 1], "token": [token]}, schema=SCHEMA)
    version = log.version
    try:
        log.append(rows, {key: (log.key_version(key) or 0) + 1}, token)
    except UnknownOutcomeError as error:
        if not log.settle(token, version, error):
            raise ConflictError from error
        refreshed(log)
    else:
        log.taken_in()
    return token


def commit(log: TableLog, name: str, key: str) -> None:
    while True:
        try:
            append(log, name, key)
        except (ConflictError, OvertakenError):
            refreshed(log)
        else:
            return


def test_a_table_is_used_as_on_a_disk_and_read_by_delta(
    s3_server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_few(monkeypatch, 4)
    log, other = opened(s3_server, url), opened(s3_server, url)
    for number in range(COMMITS):
        commit((log, other)[number % 2], f"r{number % 6}", f"key{number % 3}")
        if number % 8 == 7:
            refreshed(log)
            log.fold(ORDER, None)
            refreshed(log)
            assert log.checkpoint()
    assert log.vacuum() > 0
    delta = DeltaTable(url, storage_options={**s3_server.options(), "aws_allow_http": "true"})
    fresh = opened(s3_server, url)
    expected = {f"key{key}": len(range(key, COMMITS, 3)) for key in range(3)}
    assert {key: fresh.key_version(key) for key in expected} == expected
    assert {key: delta.transaction_version(key) for key in expected} == expected
    assert delta.version() == fresh.version
    again = TableLog(ObjectLog(RemoteObjects(url, s3_server.options()), url))
    assert sorted(delta.to_pyarrow_table().column("id").to_pylist()) == sorted(refreshed(again))


def test_a_commit_takes_three_requests_and_a_look_for_news_one(s3_server: S3Server, faults: S3Faults, url: str) -> None:
    log = opened(s3_server, url, faults.url)
    append(log, "first", "key")
    before = len(faults.outcomes)
    append(log, "second", "key")
    requests = [outcome.request for outcome in faults.outcomes[before:]]
    assert [request.method for request in requests] == ["PUT", "PUT", "GET"]
    assert [request.is_conditional for request in requests] == [True, True, False]
    before = len(faults.outcomes)
    assert refreshed(log) == []
    assert len(faults.outcomes) == before + 1


@pytest.mark.parametrize("fault", Fault)
def test_two_writers_lose_and_double_nothing(s3_server: S3Server, faults: S3Faults, fault: Fault, url: str) -> None:
    chance = random.Random(7)
    # Created before: an open is read-only, and not what this is about.
    logs = [opened(s3_server, url, faults.url) for _ in range(2)]
    faults.decide = lambda request: fault if chance.random() < 0.15 else None

    def write(number: int) -> None:
        for commits in range(COMMITS):
            commit(logs[number], f"w{number}-{commits}", "shared" if commits % 2 else f"own{number}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    faults.decide = lambda request: None
    assert any(outcome.fault is fault for outcome in faults.outcomes)
    log = TableLog(ObjectLog(RemoteObjects(url, s3_server.options()), url))
    assert Counter(refreshed(log)) == {f"w{number}-{commits}": 1 for number in range(2) for commits in range(COMMITS)}
    assert log.key_version("shared") == 2 * (COMMITS // 2)


class Killed(BaseException):
    """The process ends."""


class Mortal(RemoteObjects):
    """A store whose process is killed before, or just after, its n-th request."""

    left = 10_000
    is_sent = False

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def create(self, key: str, content: bytes) -> Created | Exists:
        if self.is_sent and self.left == 0:
            super().create(key, content)
        self._count()
        return super().create(key, content)

    def fetch(self, key: str) -> Fetched | None:
        self._count()
        return super().fetch(key)

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._count()
        return super().list_after(prefix, after)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_writer_that_is_killed_between_any_two_requests_leaves_a_whole_log(
    s3_server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    keep_few(monkeypatch, 2)
    reported: set[str] = set()
    kills = 0
    for requests in range(int(is_sent), 60, 3):
        objects = Mortal(url, s3_server.options())
        log = opened(s3_server, url, objects=objects)
        objects.left, objects.is_sent = requests, is_sent
        try:
            for number in range(4):
                append(log, f"{requests}-{number}", "key")
                reported.add(f"{requests}-{number}")
            log.fold(ORDER, None)
            refreshed(log)
            log.checkpoint()
            log.vacuum()
        except Killed:
            kills += 1
        survivors = TableLog(ObjectLog(RemoteObjects(url, s3_server.options()), url))
        names = refreshed(survivors)
        assert reported <= set(names)
        assert len(set(names)) == len(names)
        assert len(names) <= len(reported) + kills, "each kill leaves one commit in doubt"
        assert survivors.key_version("key") == len(names) or not names
    assert kills > 10
