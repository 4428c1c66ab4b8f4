"""Free TCP ports of this host, for servers that begin later, or that end and begin again."""

from __future__ import annotations

import random
import socket
from typing import Final

_PORTS: Final = range(20_000, 30_000)
"""Ports below the kernel's range for outgoing connections, which could take a port before a server has it (again)."""


def free_port() -> int:
    """Draw a port that is free now."""
    while True:
        with socket.socket() as tried:
            try:
                tried.bind(("0.0.0.0", port := random.choice(_PORTS)))
            except OSError:
                continue
            return port
