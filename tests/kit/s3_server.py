"""A real S3 server for tests: versitygw, built once from its Go module into the user's cache.

`python -m tests.kit.s3_server` builds it. That takes some four minutes on two cores, so tests with it are `long`. Where
Go is missing they are skipped, and fail where CI is set. With `PULSARPY_TEST_S3=minio` in the environment, both use
MinIO instead (some ten minutes to build; it is under the AGPL, so it is a program for tests and nothing else).
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final

import pytest

from tests.kit.free_ports import free_port
from tests.kit.go import find_go
from tests.kit.waiting import wait_until

_VARIABLE: Final = "PULSARPY_TEST_S3"
_BUILD_S: Final = 1_800


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that serves buckets, which are the folders in a folder.

    Attributes:
        name: The name of the program.
        version: The version of its Go module.
        module: The Go module with the program.
        user: The environment variables with the access key and the secret key of its user.
        arguments: Its arguments, with `{address}` and `{folder}`.
    """

    name: str
    version: str
    module: str
    user: tuple[str, str]
    arguments: tuple[str, ...]


_PROGRAMS: Final = {
    program.name: program
    for program in (
        _Program(
            "versitygw",
            "v1.8.0",
            "github.com/versity/versitygw/cmd/versitygw",
            ("ROOT_ACCESS_KEY", "ROOT_SECRET_KEY"),
            ("--port", "{address}", "--quiet", "--keep-alive", "posix", "{folder}"),
        ),
        _Program(
            "minio",
            "v0.0.0-20260212201848-7aac2a2c5b7c",
            "github.com/minio/minio",
            ("MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
            ("server", "{folder}", "--address", "{address}", "--quiet"),
        ),
    )
}
_USED: Final = _PROGRAMS[os.environ.get(_VARIABLE, "versitygw")]
IS_MINIO: Final = _USED.name == "minio"


def server_program() -> Path:
    """Return the server's program; the test is skipped if it was not built."""
    program = _file()
    if not program.exists():
        reason = "the S3 server of these tests was not built: install Go and run `make test-long`"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def build_server() -> None:
    """Build the server if it is not in the cache; without Go, say what is missing."""
    program = _file()
    if program.exists():
        return
    go = find_go()
    if go is None:
        print("Go is not installed: the tests that need an S3 server are skipped.", file=sys.stderr)
        return
    print(f"building {_USED.name} {_USED.version}, the S3 server of the tests (some minutes, once)")
    program.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=program.parent) as folder:
        command = [go, "install", f"{_USED.module}@{_USED.version}"]
        subprocess.run(command, check=True, env={**os.environ, "GOBIN": folder}, timeout=_BUILD_S)
        (Path(folder) / _USED.name).rename(program)


def _file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pulsarpy-tests" / f"{_USED.name}-{_USED.version}"


class S3Server:
    """A server on a free port of 127.0.0.1, with a user of its own; ends with its block.

    Args:
        folder: A folder for its buckets, on a file system with extended attributes.

    Attributes:
        folder: The folder; a bucket is a folder in it.
        url: The endpoint.
        secret: The user's secret key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key, self.secret = _new_account()
        self._address = ("127.0.0.1", free_port())
        host_and_port = f"{self._address[0]}:{self._address[1]}"
        self.url = f"http://{host_and_port}"
        arguments = (each.format(address=host_and_port, folder=folder) for each in _USED.arguments)
        self._command = [str(server_program()), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        environment = {**os.environ, **dict(zip(_USED.user, (self._key, self.secret), strict=True))}
        self._process = subprocess.Popen(
            self._command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._is_serving, "the S3 server accepts connections")

    def _is_serving(self) -> bool:
        assert self._process is not None, "it was started"
        assert self._process.poll() is None, f"the S3 server ended with {self._process.returncode}"
        try:
            socket.create_connection(self._address, timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Kill it: what it answered for is durable."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def change_account(self) -> None:
        """Start it again with another user: the former one is refused from now on."""
        self.stop()
        self._key, self.secret = _new_account()
        self.start()

    def make_bucket(self) -> str:
        """Make a bucket, which is a folder, and return its URL."""
        name = f"bucket-{secrets.token_hex(6)}"
        (self.folder / name).mkdir()
        return f"s3://{name}"

    def options(self, endpoint: str = "") -> Mapping[str, str]:
        """Return the options of a client of the server, or of a proxy in front of it."""
        return {
            "aws_endpoint": endpoint or self.url,
            "aws_region": "us-east-1",
            "aws_access_key_id": self._key,
            "aws_secret_access_key": self.secret,
        }


def _new_account() -> tuple[str, str]:
    """Return a new user's access key and secret key."""
    return f"key{secrets.token_hex(8)}", secrets.token_hex(20)


def write_profile(file: Path, url: str, options: Mapping[str, str], more: Mapping[str, Mapping[str, str]] = {}) -> None:
    """Write a file of profiles: one for a URL and what is below it, and others by name."""
    lines = [f'[profiles.test]\nmatch = "{url}"', *_lines(options)]
    for name, given in more.items():
        lines += [f"[profiles.{name}]", *_lines(given)]
    file.write_text("\n".join(lines))
    os.chmod(file, 0o600)


def _lines(options: Mapping[str, str]) -> list[str]:
    return [f'{option} = "{value}"' for option, value in options.items()]


if __name__ == "__main__":
    build_server()
