"""Free TCP ports of 127.0.0.1."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that was free just now; another process may take it before its caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
