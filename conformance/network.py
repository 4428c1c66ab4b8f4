"""The network that the suites expect: their ports are free, and connections to missing hosts time out.

On a host where this is not so, root gets a network namespace.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from typing import Final

BROKER_PORT: Final = 6650
WEB_PORT: Final = 8080
TLS_PORTS: Final = (6651, 8443)

_CLONE_NEWNET: Final = 0x40000000
_SET_UP: Final = ("ip link set lo up", "ip route add default dev lo")
"""Connections to other hosts must time out, as on any network, instead of failing at once."""
_NOBODY: Final = ("192.0.2.1", 1234)
"""A documentation address (RFC 5737): suites connect to it to test their time limit, but some networks refuse it."""
_SILENT_S: Final = 1.0


class PortsTakenError(Exception):
    """Another process holds a port of the suites; the text has the remedy."""


def claim_network() -> None:
    """Provide the network that the suites expect, if necessary by a namespace of this process and its children.

    Call it before any thread starts: a namespace belongs to a thread. Other hosts are not reachable from it.

    Raises:
        PortsTakenError: a port is taken, and this process may not create a network namespace.
    """
    taken = [port for port in (BROKER_PORT, WEB_PORT, *TLS_PORTS) if not _is_free(port)]
    if not taken and _is_silent(_NOBODY):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if shutil.which("ip") is not None and libc.unshare(_CLONE_NEWNET) == 0:
        for command in _SET_UP:
            subprocess.run(command.split(), check=True)
    elif taken:
        raise PortsTakenError(
            f"Port {' and '.join(map(str, taken))} must be free, because the suites connect to it: stop the process "
            "that listens there, or run as root with iproute2 installed, for a separate network namespace."
        )


def _is_silent(address: tuple[str, int]) -> bool:
    """Return True if a connection there gets no answer at all, not even an error."""
    try:
        with socket.create_connection(address, _SILENT_S):
            return False
    except TimeoutError:
        return True
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
