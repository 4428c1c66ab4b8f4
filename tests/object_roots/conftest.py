"""Roots on a real S3 server. All these tests are long: the server is built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.kit.s3_server import S3Server, write_profile


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket, with a profile for it that child processes find, too."""
    url = s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", url, s3_server.options())
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    return url
