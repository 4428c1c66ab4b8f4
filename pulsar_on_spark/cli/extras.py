"""Optional dependencies, each of which an extra of the package installs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError


def missing(module: str, part: str, extra: str) -> str:
    """Return the error's sentence for a missing optional dependency, with the extra that installs it.

    Args:
        module: The missing module.
        part: The part of the product that needs the module; the sentence begins with it.
        extra: The extra.
    """
    return f"{part} needs {module}, which is not installed: `pip install 'pulsar-on-spark[{extra}]'`."


_SECURITY: Final = ("bcrypt", "cryptography", "jwt", "passlib")
"""Modules that the extra `security` installs."""


def require_security() -> None:
    """Check that the libraries for certificates, keys, tokens and passwords are installed, without importing them.

    Raises:
        InvalidArgumentError: a library is not installed.
    """
    for module in _SECURITY:
        if find_spec(module) is None:
            raise InvalidArgumentError(missing(module, "This command", "security"))
