"""The object store over obstore, on a real S3 server, also behind a proxy that loses replies and refuses requests."""

from __future__ import annotations

import logging
import random
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError, ObjectsUnreachableError
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.objects import remote
from pulsar_on_spark.storage.objects.contract import Created, Exists, Version
from pulsar_on_spark.storage.objects.meter import REQUESTS
from pulsar_on_spark.storage.objects.probe import probe
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.testing.object_store_contract import ObjectStoreContract, created, key
from pulsar_on_spark.testing.s3_faults import Fault, Request, S3Faults
from tests.kit.s3_server import IS_MINIO, S3Server
from tests.kit.waiting import LIMIT_S

pytestmark = pytest.mark.long

SHORT_S = 0.5
FAULTY_PART = 1 / 3


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


def objects(server: S3Server, url: str, endpoint: str = "", patience_s: float = 60.0) -> RemoteObjects:
    return RemoteObjects(url, server.options(endpoint), patience_s=patience_s)


def every_question(store: RemoteObjects, name: str, version: Version) -> tuple[Callable[[], object], ...]:
    """Every request whose answer may be that the object is absent, but for a look at its metadata alone."""
    return (
        lambda: store.fetch(name),
        lambda: store.fetch_range(name, 0, 1),
        lambda: store.confirm_absent(name),
        lambda: store.create(name, b"2"),
        lambda: store.replace(name, b"2", version),
        lambda: list(store.list_after("")),
        lambda: store.delete(name),
    )


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3_server: S3Server, bucket: str) -> RemoteObjects:
        store = objects(s3_server, f"{bucket}/a/prefix")
        created(store, IDENTITY_NAME, b"identity")
        return store


@pytest.mark.parametrize("fault", Fault)
class TestS3WithFaults(ObjectStoreContract):
    """About every third request goes wrong in one way, by chance: a period could hit the same step of every attempt."""

    @pytest.fixture
    def store(self, s3_server: S3Server, faults: S3Faults, fault: Fault, bucket: str) -> Iterator[RemoteObjects]:
        created(objects(s3_server, bucket), IDENTITY_NAME, b"identity")
        faults.decide = lambda request: fault if random.Random(request.number + 1).random() < FAULTY_PART else None
        yield objects(s3_server, bucket, faults.url)
        assert any(outcome.fault is fault for outcome in faults.outcomes)


def test_a_real_store_passes_the_probe_and_keeps_nothing_of_it(s3_server: S3Server, bucket: str) -> None:
    store = objects(s3_server, bucket)
    probe(store, bucket)
    assert list(store.list_after("")) == []


def test_a_write_that_arrives_after_its_writer_gave_up_does_not_overwrite(
    s3_server: S3Server, faults: S3Faults, bucket: str
) -> None:
    name, arrived, go_on = key(), threading.Event(), threading.Event()

    def hold_first(request: Request) -> Fault | None:
        if request.method == "PUT" and request.number == 0:
            arrived.set()
            assert go_on.wait(LIMIT_S)
        return None

    faults.decide = hold_first
    late = threading.Thread(target=lambda: objects(s3_server, bucket, faults.url).create(name, b"late"))
    late.start()
    assert arrived.wait(LIMIT_S)
    assert isinstance(objects(s3_server, bucket).create(name, b"in time"), Created)
    go_on.set()
    late.join(LIMIT_S)
    answer = objects(s3_server, bucket).create(name, b"any")
    assert isinstance(answer, Exists)
    assert answer.content == b"in time"


def test_an_absent_server_is_an_unknown_outcome_and_not_an_absent_object(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        url = server.make_bucket()
        store = objects(server, url, patience_s=SHORT_S)
        name = key()
        created(store, name, b"1")
        server.stop()
        for ask in (
            lambda: store.fetch(name),
            lambda: store.fetch_range(name, 0, 1),
            lambda: store.create(name, b"2"),
            lambda: store.confirm_absent(name),
            lambda: list(store.list_after("")),
            lambda: store.delete(name),
        ):
            with pytest.raises(ObjectsUnreachableError, match=f"^{url} could not .* in 0.5 s"):
                ask()
        server.start()
        fetched = store.fetch(name)
        assert fetched is not None
        assert fetched.content == b"1"


@pytest.mark.skipif(IS_MINIO, reason="MinIO notices a moment later that a folder was deleted behind its back")
def test_a_vanished_bucket_is_no_proof_that_an_object_is_absent(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        url = server.make_bucket()
        store = objects(server, url, patience_s=SHORT_S)
        created(store, IDENTITY_NAME, b"identity")
        name = key()
        version = created(store, name, b"1")
        shutil.rmtree(tmp_path / url.removeprefix("s3://"))
        for ask in every_question(store, name, version):
            with pytest.raises(ObjectsUnreachableError, match="NoSuchBucket"):
                ask()


def test_a_user_that_the_store_does_not_know_any_more_is_no_proof_that_an_object_is_absent(tmp_path: Path) -> None:
    """versitygw answers 404 then, as to requests for objects that do not exist."""
    with S3Server(tmp_path) as server:
        store = objects(server, server.make_bucket(), patience_s=SHORT_S)
        created(store, IDENTITY_NAME, b"identity")
        name = key()
        version = created(store, name, b"1")
        server.change_account()
        for ask in every_question(store, name, version):
            with pytest.raises(ObjectsUnreachableError, match=r"XAdminUserNotFound|InvalidAccessKeyId"):
                ask()


def test_wrong_credentials_are_an_unknown_outcome_and_are_not_shown(
    s3_server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = secrets.token_hex(20)
    options = {**s3_server.options(), "aws_secret_access_key": wrong}
    store = RemoteObjects(bucket, options, patience_s=SHORT_S)
    with caplog.at_level(logging.DEBUG), pytest.raises(ObjectsUnreachableError, match="HTTP status 403") as raised:
        store.fetch(key())
    shown = f"{raised.value} {raised.value.__cause__} {store!r} {caplog.text}"
    assert wrong not in shown
    assert s3_server.options()["aws_access_key_id"] not in shown


def test_a_store_that_refuses_the_credentials_is_given_up_soon_and_once(
    s3_server: S3Server, faults: S3Faults, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else a process asks of it on its way to the error costs one request each."""
    monkeypatch.setattr(remote, "REFUSED_PATIENCE_S", SHORT_S)
    options = {**s3_server.options(faults.url), "aws_secret_access_key": secrets.token_hex(20)}
    began_s = time.monotonic()
    with pytest.raises(ObjectsUnreachableError, match=r"in 0.5 s .*HTTP status 403, SignatureDoesNotMatch"):
        RemoteObjects(bucket, options).fetch(key())
    assert 0 < time.monotonic() - began_s < LIMIT_S
    assert len(faults.outcomes) > 1, "new credentials may be on their way"
    monkeypatch.setattr(remote, "REFUSED_PATIENCE_S", 0.0)
    for ask in (
        lambda store: store.fetch(key()),
        lambda store: store.delete(key()),
        lambda store: list(store.list_after("")),
        lambda store: uploaded(store, b"1"),
    ):
        asked = len(faults.outcomes)
        with pytest.raises(ObjectsUnreachableError, match="HTTP status 403"):
            ask(RemoteObjects(f"{bucket}/below", options))
        assert len(faults.outcomes) == asked + 1


def test_refusals_are_forgotten_when_a_request_is_carried_out(
    s3_server: S3Server, faults: S3Faults, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REFUSED_PATIENCE_S", SHORT_S)
    store = objects(s3_server, bucket, faults.url)
    faults.decide = lambda _: Fault.FORBIDDEN_403
    with pytest.raises(ObjectsUnreachableError):
        store.fetch(key())
    faults.decide = lambda _: None
    assert store.fetch(key()) is None
    faults.decide = lambda _: Fault.FORBIDDEN_403
    asked = len(faults.outcomes)
    with pytest.raises(ObjectsUnreachableError):
        store.fetch(key())
    assert len(faults.outcomes) > asked + 1


def test_renewed_credentials_are_used_for_uploads_too(s3_server: S3Server, faults: S3Faults, bucket: str) -> None:
    wrong = {**s3_server.options(faults.url), "aws_secret_access_key": secrets.token_hex(20)}
    names = Counter[str]()

    def renewed() -> dict[str, str]:
        names["asked"] += 1
        return wrong if names["asked"] < 3 else dict(s3_server.options(faults.url))

    store = RemoteObjects(bucket, wrong, renewed_options=renewed)
    name = uploaded(store, b"content")
    assert [outcome.status for outcome in faults.outcomes] == [403, 403, 403, 200]
    fetched = objects(s3_server, bucket).fetch(name)
    assert fetched is not None
    assert fetched.content == b"content"


def uploaded(store: RemoteObjects, content: bytes) -> str:
    """Upload an object, and return its key."""
    name = key()
    upload = store.upload(name)
    upload.write(content)
    upload.finish()
    return name


@pytest.mark.parametrize(("url", "options"), [("ftp://host/x", {}), ("s3://bucket", {"aws_colour": "red"})])
def test_an_unusable_url_or_option_is_refused(url: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{url} cannot be used as an object store"):
        RemoteObjects(url, options)


def test_an_uncontended_write_is_one_request_and_a_lost_one_two(
    s3_server: S3Server, faults: S3Faults, bucket: str
) -> None:
    store = objects(s3_server, bucket, faults.url)
    name = key()
    store.create(name, b"1")
    store.create(name, b"2")
    assert [(each.request.method, each.status) for each in faults.outcomes] == [
        ("PUT", 200),
        ("PUT", 412),
        ("GET", 200),
    ]


def test_requests_are_counted_by_operation_and_result(s3_server: S3Server, faults: S3Faults, bucket: str) -> None:
    store = objects(s3_server, bucket, faults.url)
    before = Counter(REQUESTS.counts())
    version = created(store, "a", b"1")
    assert isinstance(store.create("a", b"2"), Exists)
    assert store.replace("a", b"3", version) is not None
    assert store.fetch("b") is None
    assert store.fetch_range("a", 0, 1) == b"3"
    assert store.head("b") is None
    assert len(list(store.list_after(""))) == 1
    upload = store.upload("large")
    upload.write(bytes(100))
    upload.finish()
    store.delete("large")
    left = [Fault.ERROR_500, Fault.FORBIDDEN_403, Fault.RESET]
    faults.decide = lambda request: left.pop() if left else None
    assert store.fetch("a") is not None
    assert dict(Counter(REQUESTS.counts()) - before) == {
        ("put", "ok"): 2,
        ("put", "conflict"): 1,
        ("get", "ok"): 3,  # one settles the conflict
        ("get", "absent"): 1,
        ("get", "failed"): 2,
        ("get", "refused"): 1,
        ("head", "absent"): 1,
        ("list", "ok"): 1,
        ("upload", "ok"): 1,
        ("delete", "ok"): 1,
    }
    assert sum(REQUESTS.counts().values()) - before.total() == len(faults.outcomes)
