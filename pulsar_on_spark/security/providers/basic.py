"""Users and passwords of an htpasswd file (Pulsar's AuthenticationProviderBasic): bcrypt, and Apache's MD5 (apr1)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import bcrypt
from passlib.hash import apr_md5_crypt

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.evidence import Evidence, Failure, NotAuthenticatedError
from pulsar_on_spark.security.principal import Principal, is_role

MAX_PASSWORD_BYTES: Final = 72
"""Limit of a password's length, because bcrypt ignores or refuses further bytes."""
REMEMBERED_S: Final = 60.0
"""Time for which a correct password is not hashed again, because HTTP clients send it with each request."""
MAX_REMEMBERED: Final = 1_000
MAX_CHECKS: Final = 2
"""Limit of concurrent checks, because bcrypt takes 50 ms of CPU and more."""
_BCRYPT: Final = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")
_APR1: Final = re.compile(r"\$apr1\$[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}")


@dataclass(frozen=True, slots=True)
class Users:
    """The users of an htpasswd file.

    Attributes:
        hashes: The hashes of passwords as in the file, by user.
    """

    hashes: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, content: bytes, what: str) -> Users:
        """Return the users of an htpasswd file.

        Args:
            content: The content of the file.
            what: The setting that names the file, for errors.

        Raises:
            InvalidArgumentError: a line is invalid, or there is no user. The message contains no hash.
        """
        hashes: dict[str, str] = {}
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{what} is not an htpasswd file in UTF-8: give another.") from error
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line.startswith("#"):
                continue
            user, _, hashed = line.partition(":")
            if not user or not (_BCRYPT.fullmatch(hashed) or _APR1.fullmatch(hashed)):
                raise InvalidArgumentError(
                    f"{what} has a line {number} (user {user[:64]!r}) whose password is not hashed by bcrypt or apr1: "
                    "write it by `htpasswd -B`."
                )
            if user in hashes:
                raise InvalidArgumentError(f"{what} has the user {user[:64]!r} twice: delete one of the lines.")
            hashes[user] = hashed
        if not hashes:
            raise InvalidArgumentError(f"{what} has no users: add one by `htpasswd -B`.")
        return cls(hashes)

    def check(self, user: str, password: bytes, key: bytes) -> bool:
        """Return True if this is the user's password.

        For an unknown user, the password is checked against the hash of another user, and the result is ignored. The
        unknown name determines which hash is used. So neither the duration of a check nor its variation reveals which
        names are known.

        Args:
            user: The name.
            password: The password.
            key: A secret of the process, which chooses the hash for unknown users.
        """
        known = self.hashes.get(user)
        if known is None:
            digest = hmac.digest(key, user.encode("utf-8", "surrogatepass"), "sha256")
            values = list(self.hashes.values())
            known = values[int.from_bytes(digest[:8]) % len(values)]
            _matches(password, known)
            return False
        return _matches(password, known)


def _matches(password: bytes, hashed: str) -> bool:
    if len(password) > MAX_PASSWORD_BYTES or b"\0" in password:
        password, is_possible = b"", False
    else:
        is_possible = True
    if hashed.startswith("$apr1$"):
        is_equal = bool(apr_md5_crypt.verify(password, hashed))
    else:
        is_equal = bcrypt.checkpw(password, hashed.encode())
    return is_equal and is_possible


def split_credentials(data: bytes) -> tuple[str, bytes]:
    """Return the user and the password in `user:password`.

    Raises:
        NotAuthenticatedError: there is no colon, or the name is not UTF-8 or not a role.
    """
    user, colon, password = data.partition(b":")
    if not data:
        raise NotAuthenticatedError(Failure.MISSING, "there are no user and password")
    try:
        name = user.decode()
        if not colon or not is_role(name):
            raise ValueError
        return name, password
    except ValueError:
        raise NotAuthenticatedError(Failure.MALFORMED, "user and password are not of the form user:password") from None


class BasicProvider:
    """Authentication by the users of an htpasswd file.

    Args:
        read: Returns the users, which may change; called before each check, in a thread.
        clock: Returns the monotonic time, in seconds.
    """

    name = "AuthenticationProviderBasic"
    method = "basic"

    def __init__(self, read: Callable[[], Users], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._turn = asyncio.Semaphore(MAX_CHECKS)
        self._remembered: dict[bytes, float] = {}

    async def authenticate(self, evidence: Evidence) -> Principal:
        """Check user and password, and return the user's identity; a correct password is remembered for a minute.

        Raises:
            NotAuthenticatedError: the user is unknown, or the password is wrong.
        """
        user, password = split_credentials(evidence.data)
        users = await asyncio.to_thread(self._read)
        # The mark covers the hash, so that a changed password takes effect at once.
        known = "\n".join((user, users.hashes.get(user, "")))
        mark = hmac.digest(self._key, known.encode() + b"\n" + password, hashlib.sha256)
        if user in users.hashes and self._remembered.get(mark, 0.0) > self._clock():
            return Principal(user)
        async with self._turn:
            is_right = await asyncio.to_thread(users.check, user, password, self._key)
        if not is_right:
            raise NotAuthenticatedError(Failure.PASSWORD, "the user is unknown, or the password is wrong")
        while len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.pop(next(iter(self._remembered)))
        self._remembered[mark] = self._clock() + REMEMBERED_S
        return Principal(user)
