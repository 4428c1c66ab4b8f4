"""Optional dependencies, which only an extra of the package installs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError


def missing(module: str, part: str, extra: str) -> str:
    """Return the error for a missing optional dependency of a part of the product; it names the extra to install."""
    return f"{part} needs {module}, which is not installed: `pip install 'pulsar-on-spark[{extra}]'`."


_SECURITY: Final = ("bcrypt", "cryptography", "jwt", "passlib")
"""Modules that only the extra `security` installs."""


def require_security() -> None:
    """Check that the libraries of certificates, keys, tokens and passwords are installed, without loading them.

    Raises:
        InvalidArgumentError: one of them is not installed.
    """
    for module in _SECURITY:
        if find_spec(module) is None:
            raise InvalidArgumentError(missing(module, "This command", "security"))
