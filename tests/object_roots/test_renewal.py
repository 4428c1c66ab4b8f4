"""A Spark query whose credentials expire in the middle, with the time that the engine waits for a store by default."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.kit import messages
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.waiting import wait_until
from tests.object_roots import renewal_app

pytestmark = pytest.mark.long

BATCHES, DONE_BATCHES = 8, 2
LIMIT_S = 300
FAILS_WITHIN_S = 60
"""Requests are tried for `remote.REFUSED_PATIENCE_S`, in each of the processes that a query has one after the other."""


def test_a_query_goes_on_in_its_session_after_its_credentials_were_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has failed with a sentence before, and is started again; Spark's Python processes may be the same."""
    profiles, folder, said = tmp_path / "storage.toml", tmp_path / "driver", tmp_path / "said"
    monkeypatch.setenv(FILE_VARIABLE, str(profiles))
    (tmp_path / "s3").mkdir()
    with S3Server(tmp_path / "s3") as server, said.open("wb") as errors:
        url = f"{server.make_bucket()}/root"
        write_profile(profiles, url, server.options())
        root = Root.create(url)
        for name in ("t", "u"):
            root.create_topic(name)
        values = [b"%d" % number for number in range(BATCHES * renewal_app.ROWS_A_BATCH)]
        for first in range(0, len(values), renewal_app.ROWS_A_BATCH):
            messages.write(root, "t", values[first : first + renewal_app.ROWS_A_BATCH])
        command = [sys.executable, "-m", renewal_app.__name__, url, str(folder)]
        app = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            done = DONE_BATCHES * renewal_app.ROWS_A_BATCH
            wait_until(lambda: len(messages.values(root, "u")) >= done, said.read_text, limit_s=LIMIT_S)
            server.change_account()
            refused_s = time.monotonic()
            assert app.stdout is not None
            failure = json.loads(app.stdout.readline() or said.read_text())
            assert time.monotonic() - refused_s < FAILS_WITHIN_S
            write_profile(profiles, url, server.options())
            check_failure(failure, url, server.secret)
            copied = messages.values(Root.open(url), "u")
            assert values[: len(copied)] == copied
            assert len(values) - backlog(root) <= len(copied), "the cursor is behind the sink"
            app.communicate("renewed\n", timeout=LIMIT_S)
            assert app.returncode == 0, said.read_text()[-3_000:]
        finally:
            app.kill()
            app.wait()
        assert messages.values(Root.open(url), "u") == values
        assert backlog(root) == 0


def backlog(root: Root) -> int:
    (subscription,) = root.subscriptions()
    assert subscription.backlog_messages is not None
    return subscription.backlog_messages


def check_failure(failure: str, url: str, secret: str) -> None:
    """It has one sentence with the thing, the place and the remedy, and no stack of a Python process."""
    assert url in failure
    assert "check the store, its endpoint and the credentials of this process, and try again." in failure
    assert "Traceback" not in failure
    assert secret not in failure
