"""Secrets and keys that settings and options name, and the permissions of their files.

They are given as in Pulsar's settings: `file:///a/path`, a path, `data:;base64,...` or only base64.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pulsar_on_spark.model.errors import InvalidArgumentError

log = logging.getLogger(__name__)

OPEN_SECRETS_VARIABLE: Final = "PULSARPY_ALLOW_OPEN_SECRETS"
"""If this environment variable is 1, secret files that every user of the host can read are accepted."""
MAX_FILE_BYTES: Final = 1 << 20
_SECRET_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644


def require_private(file: Path, what: str) -> None:
    """Refuse a secret file that every user of the host can read.

    Args:
        file: The file.
        what: The kind of the file, such as "the private key", for the error.

    Raises:
        InvalidArgumentError: every user can read the file.
        OSError: there is no such file.
    """
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & stat.S_IROTH:
        return
    if os.environ.get(OPEN_SECRETS_VARIABLE) == "1":
        log.warning("Every user of this host can read %s %s (permissions %04o).", what, file, mode)
    else:
        raise InvalidArgumentError(
            f"Every user of this host can read {what} {file} (permissions {mode:04o}): run `chmod o= {file}`, "
            f"or set {OPEN_SECRETS_VARIABLE}=1."
        )


def read_given(given: str, what: str, *, secret: bool) -> bytes:
    """Return the bytes that a setting or an option names.

    Args:
        given: A `file:` URL, a `data:` URL, the path of a file, or base64.
        what: The setting or option, for errors.
        secret: True if a file must not be readable by other users of the host.

    Raises:
        InvalidArgumentError: the content cannot be read.
    """
    if given.startswith("data:"):
        return _data_url(given, what)
    is_url = given.startswith("file:")
    file = Path(unquote(urlsplit(given).path) if is_url else given)
    try:
        if is_url or (len(given) < 1024 and file.is_file()):
            if secret:
                require_private(file, what)
            with file.open("rb") as opened:
                return opened.read(MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"{what} names a file that cannot be read ({getattr(error, 'strerror', None) or error}): give another file."
        ) from error
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(
            f"{what} is neither a file nor base64: give file:///PATH, or data:;base64,KEY."
        ) from error


def write_new(file: Path, content: bytes, *, secret: bool) -> None:
    """Write a new file; an existing one is not replaced, because tokens and clients may depend on it.

    Args:
        file: The file.
        content: The file's content.
        secret: True if only the file's owner may read it.

    Raises:
        InvalidArgumentError: the file exists.
    """
    mode = _SECRET_MODE if secret else _PUBLIC_MODE
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as made:
            made.write(content)
    except FileExistsError as error:
        raise InvalidArgumentError(f"The file {file} exists: give another, or delete it.") from error


def replace_file(file: Path, content: bytes, *, secret: bool) -> None:
    """Write or replace a file in one step: a reader sees the old or the new content, also after a power cut.

    Args:
        file: The file.
        content: The file's content.
        secret: True if only the file's owner may read it.
    """
    written = file.with_name(f".{file.name}.{os.getpid()}")
    mode = _SECRET_MODE if secret else _PUBLIC_MODE
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    written.replace(file)


def path_of(given: str) -> Path:
    """Return the path in a `file:` URL, or any other text as a path."""
    return Path(unquote(urlsplit(given).path) if given.startswith("file:") else given)


def _data_url(given: str, what: str) -> bytes:
    head, comma, data = given.removeprefix("data:").partition(",")
    try:
        if not comma:
            raise ValueError("no comma")
        return base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"{what} is not a data URL: give one such as data:;base64,KEY.") from error
