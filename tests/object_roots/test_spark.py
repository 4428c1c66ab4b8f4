"""Spark on a root on an S3 server, with executors that share no folder with the driver."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.spark_cluster import Worker, spark_cluster
from tests.object_roots import spark_app

pytestmark = pytest.mark.long
LIMIT_S = 300
UNPRIVILEGED = 65_534
NAMESPACE = """
set -e
mkdir -p "$1/python"
mount --bind "$2" "$1/python"
mount -t tmpfs -o mode=755 none "$3"
mkdir -p "$2"
mount --move "$1/python" "$2"
mount -t tmpfs -o mode=755 none "$4"
folder=$1
shift 4
HOME=$folder exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
"""
"""A script that hides the user's home (but not its Python) and the tests' folder, and drops all privileges."""


@pytest.fixture
def strangers(bucket: str, tmp_path: Path, s3_server: S3Server) -> Iterator[list[Worker]]:
    """Two workers of another user, in namespaces without the driver's folders."""
    workers = []
    with ExitStack() as stack:
        for number in (1, 2):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="stranger-", dir="/tmp")))
            write_profile(folder / "storage.toml", bucket, s3_server.options())
            for path in (folder, folder / "storage.toml"):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
            hidden = [str(folder), sys.base_prefix, str(Path.home()), str(tmp_path)]
            prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh", *hidden]
            environment = {FILE_VARIABLE: str(folder / "storage.toml")}
            workers.append(Worker(f"127.0.0.{number}", folder / "work", prefix, environment))
        yield workers


def run(master: str, root: str, folder: Path) -> dict[str, list[int]]:
    """Run the application, and return what it found."""
    done = tried(master, root, folder)
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def tried(master: str, root: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the application to its end, which may be an error."""
    folder.mkdir()
    command = [sys.executable, "-m", spark_app.__name__, master, root, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    (folder / "said").write_text(done.stderr)
    return done


def test_batches_and_streams_with_a_subscription(bucket: str, tmp_path: Path, s3_server: S3Server) -> None:
    found = run("local[2]", f"{bucket}/root", tmp_path / "driver")
    check(found, f"{bucket}/root", tmp_path / "driver", s3_server.secret)


@pytest.mark.root
def test_executors_share_nothing_but_the_store(
    bucket: str, tmp_path: Path, s3_server: S3Server, strangers: list[Worker]
) -> None:
    """They run as another user, do not see the driver's folders, and have a profile each."""
    with spark_cluster(tmp_path, strangers) as master:
        found = run(master, f"{bucket}/root", tmp_path / "driver")
    check(found, f"{bucket}/root", tmp_path / "driver", s3_server.secret)
    assert all(list(worker.folder.glob("app-*/*")) for worker in strangers), "both executors were used"
    for worker in strangers:
        for log in worker.folder.rglob("std*"):
            assert s3_server.secret.encode() not in log.read_bytes()


def test_executors_with_other_credentials_than_the_driver_say_so(
    bucket: str, tmp_path: Path, s3_server: S3Server
) -> None:
    """Their write is in no topic, and the driver's message names the store and the remedy."""
    root = Root.create(f"{bucket}/root")
    root.create_topic("t")
    profiles, wrong = tmp_path / "wrong.toml", secrets.token_hex(20)
    write_profile(profiles, bucket, {**s3_server.options(), "aws_secret_access_key": wrong})
    worker = Worker("127.0.0.1", tmp_path / "work", environment={FILE_VARIABLE: str(profiles)})
    with spark_cluster(tmp_path, [worker]) as master:
        done = tried(master, f"{bucket}/root", tmp_path / "driver")
    assert done.returncode != 0
    assert f"{bucket}/root/storage/0 could not" in done.stderr
    assert "HTTP status 403, SignatureDoesNotMatch): check the store, its endpoint and the credentials" in done.stderr
    assert messages.values(Root.open(f"{bucket}/root"), "t") == []
    for file in (tmp_path / "work").rglob("std*"):
        assert wrong.encode() not in file.read_bytes()


def check(found: dict[str, list[int]], root: str, folder: Path, secret: str) -> None:
    rows = list(range(spark_app.ROWS))
    assert found["read"] == rows
    assert found["copied"] == [*rows, spark_app.ROWS - 1]
    opened = Root.open(root)
    assert sorted(int(value or b"-1") for value in messages.values(opened, "u")) == found["copied"]
    (subscription,) = opened.subscriptions()
    assert (subscription.name, subscription.backlog_messages) == ("s", 1)
    for file in folder.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), f"{file} has the secret"
