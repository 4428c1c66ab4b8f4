"""Roots on a real S3 server. All these tests are long: the server is built once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.kit.s3_server import S3Server


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket, with a profile for it that child processes find, too."""
    url = s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", url, s3_server.options())
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    return url


def write_profile(file: Path, url: str, options: Mapping[str, str], more: Mapping[str, Mapping[str, str]] = {}) -> None:
    """Write a file of profiles: one for a URL and what is below it, and others by name."""
    lines = [f'[profiles.test]\nmatch = "{url}"', *_lines(options)]
    for name, given in more.items():
        lines += [f"[profiles.{name}]", *_lines(given)]
    file.write_text("\n".join(lines))
    os.chmod(file, 0o600)


def _lines(options: Mapping[str, str]) -> list[str]:
    return [f'{option} = "{value}"' for option, value in options.items()]
