"""Dependencies that only an extra installs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError


def missing(module: str, part: str, extra: str) -> str:
    """Return the sentence about a part of the product whose optional dependency is not installed."""
    return f"{part} needs {module}, which is not installed: `pip install 'pulsar-on-spark[{extra}]'`."


_SECURITY: Final = ("bcrypt", "cryptography", "jwt", "passlib")
"""Modules that only the extra `security` installs."""


def require_security() -> None:
    """Require the libraries of certificates, keys, tokens and passwords, without loading them.

    Raises:
        InvalidArgumentError: one of them is not installed.
    """
    for module in _SECURITY:
        if find_spec(module) is None:
            raise InvalidArgumentError(missing(module, "This command", "security"))
