"""Permissions of a root's files: for its owner alone, or for a group that brokers and Spark share."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pulsar
import pytest

from pulsar_on_spark.root import Root
from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS, new_client

GROUP: Final = 23_000
OWNER: Final = 23_001
COLLEAGUE: Final = 23_002
STRANGER: Final = 23_003
"""Ids of a group and of users that no machine has; the stranger is in a group of his own."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def cli(*arguments: object, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    if not prefix:
        return run_pulsarpy(*arguments)
    command = [*prefix, sys.executable, "-m", "pulsar_on_spark.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_MS / 1000)


def modes(root: Path) -> dict[str, set[int]]:
    """The permissions of all files, and of all folders."""
    found: dict[str, set[int]] = {"files": set(), "folders": set()}
    for path in (root, *root.rglob("*")):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def write(url: str, topic: str, *values: str) -> None:
    client = new_client(url)
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value.encode())
    client.close()


def received(url: str, topic: str, count: int) -> set[str]:
    client = new_client(url)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    found = {consumer.receive(WAIT_MS).data().decode() for _ in range(count)}
    client.close()
    return found


@pytest.mark.parametrize(("mode", "mask"), [("0600", 0o000), ("0660", 0o077)])
def test_all_files_have_the_permissions_of_the_root_whatever_the_umask(tmp_path: Path, mode: str, mask: int) -> None:
    root, extra = tmp_path / "root", tmp_path / "extra"
    expected = {"files": {int(mode, 8)}, "folders": {0o700 if mode == "0600" else 0o2770}}
    with umask(mask):
        with RunningBroker(root, {"root_file_mode": mode}) as broker:
            write(broker.url, "t", "a", "b")
            assert received(broker.url, "t", 2) == {"a", "b"}
            assert cli("storage", "add", extra, root).returncode == 0
            assert modes(root) == expected
        assert cli("maintain", root).returncode == 0
        assert cli("backup", tmp_path / "copy", root).returncode == 0
    assert modes(root) == modes(tmp_path / "copy") == modes(extra) == expected


def test_a_root_that_was_made_open_stays_so_with_a_warning_and_follows_chmod(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with umask(0o022):
        Root.create(root)
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", root], check=True)
        with RunningBroker(root) as broker:
            write(broker.url, "t", "a")
            assert f"chmod -R o= {root}" in broker.said
            assert modes(root)["folders"] == {0o755}
        with pytest.raises(RuntimeError, match="has the permissions 0755, and root_file_mode is 0660"):
            RunningBroker(root, {"root_file_mode": "0660"})
        subprocess.run(["chmod", "-R", "go=", root], check=True)
        with RunningBroker(root, {"root_file_mode": "0600"}) as broker:
            write(broker.url, "t", "b")
            assert received(broker.url, "t", 2) == {"a", "b"}
            assert "chmod" not in broker.said
    assert modes(root) == {"files": {0o600}, "folders": {0o700}}


# ----------------------------------------------------------------------------------------------------------------------


def as_user(user: int, group: int) -> list[str]:
    """The prefix that runs a command as another user, with access to this interpreter wherever it lies."""
    base = Path(sys.base_prefix)
    closed = next((each for each in reversed(base.parents) if not each.stat().st_mode & stat.S_IXOTH), None)
    shown = (
        ""
        if closed is None
        else (
            f"mount --bind {base} /mnt && mount -t tmpfs -o mode=755 tmpfs {closed} && mkdir -p {base} "
            f"&& mount --move /mnt {base} && "
        )
    )
    run = f'{shown}umask 027 && HOME=/nonexistent exec setpriv --reuid {user} --regid {group} --clear-groups "$@"'
    return ["unshare", "--mount", "sh", "-c", run, "sh"]


@contextmanager
def folder_of(owner: int, group: int) -> Iterator[Path]:
    with TemporaryDirectory() as made:
        folder = Path(made) / "root"
        Path(made).chmod(0o755)
        folder.mkdir()
        os.chown(folder, owner, group)
        yield folder


def said_by(user: int, group: int, *arguments: object) -> str:
    done = cli(*arguments, prefix=as_user(user, group))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.root
def test_two_users_of_a_group_share_one_root() -> None:
    with folder_of(OWNER, GROUP) as root:
        said_by(OWNER, GROUP, "init", root, "--root-file-mode", "0660")
        with RunningBroker(root, command="broker", prefix=as_user(OWNER, GROUP)) as broker:
            write(broker.url, "of-owner", "a")
            assert "a" in said_by(COLLEAGUE, GROUP, "read", "of-owner", root)  # out of the journal
            said_by(COLLEAGUE, GROUP, "topics", "create", "of-colleague", "--root", root)
            write(broker.url, "of-colleague", "b")
        said_by(COLLEAGUE, GROUP, "maintain", root)  # seals, and deletes journals
        with RunningBroker(root, command="broker", prefix=as_user(COLLEAGUE, GROUP)) as broker:
            write(broker.url, "of-owner", "c")
            assert received(broker.url, "of-owner", 2) == {"a", "c"}
        said_by(OWNER, GROUP, "maintain", root)
        assert "0 missing, 0 bad" in said_by(OWNER, GROUP, "status", "--verify", root)
        assert "b" in said_by(OWNER, GROUP, "read", "of-colleague", root)
        owners = {path.stat().st_uid for path in root.rglob("*")}
        assert owners == {OWNER, COLLEAGUE}


@pytest.mark.root
def test_others_get_a_sentence() -> None:
    with folder_of(OWNER, GROUP) as root:
        said_by(OWNER, GROUP, "init", root, "--root-file-mode", "0660")
        for command in (("status", root), ("standalone", root)):
            refused = cli(*command, prefix=as_user(STRANGER, STRANGER))
            assert refused.returncode == 1
            assert refused.stderr.count("\n") == 1
            assert "ermission" in refused.stderr
            assert "Errno" not in refused.stderr
