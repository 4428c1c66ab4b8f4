"""Passwords of users in htpasswd files, the counterpart of `providers.basic`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import bcrypt

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security.files import replace_file
from pulsar_on_spark.security.principal import MAX_ROLE_BYTES, is_role
from pulsar_on_spark.security.providers.basic import MAX_PASSWORD_BYTES, Users

ROUNDS: Final = 12
"""The cost of a hash: 2**12 rounds, a quarter of a second of CPU."""


def set_password(file: Path, user: str, password: str) -> None:
    """Add a user to an htpasswd file, or replace the user's password; the file is created if it is absent.

    Args:
        file: The file. It is replaced in one step, and only its owner can read it.
        user: The user's name, which is the role.
        password: The password, 1 to `MAX_PASSWORD_BYTES` bytes of UTF-8.

    Raises:
        InvalidArgumentError: the name or the password is invalid, or the file is not an htpasswd file.
        OSError: the file cannot be read or written.
    """
    if not is_role(user) or user.startswith("#") or not user.isprintable() or ":" in user:
        raise InvalidArgumentError(
            f"User {user[:64]!r} cannot be in an htpasswd file: use 1 to {MAX_ROLE_BYTES} bytes of printable "
            "characters, without a colon, and not beginning with '#'."
        )
    secret = password.encode()
    if not 1 <= len(secret) <= MAX_PASSWORD_BYTES or b"\0" in secret:
        raise InvalidArgumentError(
            f"The password of user {user!r} must have 1 to {MAX_PASSWORD_BYTES} bytes, none of them 0: give another."
        )
    hashes = dict(Users.parse(file.read_bytes(), f"The file {file}").hashes) if file.exists() else {}
    hashes[user] = bcrypt.hashpw(secret, bcrypt.gensalt(ROUNDS)).decode()
    replace_file(file, "".join(f"{name}:{hashed}\n" for name, hashed in hashes.items()).encode(), secret=True)
