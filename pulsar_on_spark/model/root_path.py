"""Paths of roots as users give them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError

ROOT_VARIABLE: Final = "PULSARPY_ROOT"
"""Environment variable with the root's path, for commands and calls that give none."""


def local_path(given: str | Path) -> Path:
    """Return the absolute local path of a root or storage path, given as a path or a `file:` URI.

    Raises:
        InvalidArgumentError: the text is empty, or a URI of another scheme.
    """
    text = str(given)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif "://" in text:
        scheme = text.split("://", 1)[0]
        raise InvalidArgumentError(f"{text!r} has the scheme {scheme!r}: roots are local paths or file: URIs.")
    if not text.strip():
        raise InvalidArgumentError("The path of the root is empty: give one, or set PULSARPY_ROOT.")
    return Path(text).expanduser().absolute()
