"""Dependencies that only an extra installs."""

from __future__ import annotations

from pulsar_on_spark.model.errors import InvalidArgumentError


def missing(module: str, part: str, extra: str) -> str:
    """Return the sentence about a part of the product whose optional dependency is not installed."""
    return f"{part} needs {module}, which is not installed: `pip install 'pulsar-on-spark[{extra}]'`."


def require_security() -> None:
    """Require the libraries of certificates, keys, tokens and passwords.

    Raises:
        InvalidArgumentError: one of them is not installed.
    """
    try:
        import pulsar_on_spark.security.certificates
        import pulsar_on_spark.security.issuing
        import pulsar_on_spark.security.passwords  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pulsar_on_spark"):
            raise
        raise InvalidArgumentError(missing(error.name, "This command", "security")) from error
