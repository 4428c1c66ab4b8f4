"""The identity of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """A client as authentication has found it, and as authorization judges it.

    Attributes:
        role: The name that permissions are granted to, as in Pulsar.
    """

    role: str


ANONYMOUS: Final = Principal("anonymous")
"""Every client while authentication is off."""
