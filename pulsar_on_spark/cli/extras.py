"""Dependencies that only an extra installs."""

from __future__ import annotations


def missing(module: str, part: str, extra: str) -> str:
    """Return the sentence about a part of the product whose optional dependency is not installed."""
    return f"{part} needs {module}, which is not installed: `pip install 'pulsar-on-spark[{extra}]'`."
