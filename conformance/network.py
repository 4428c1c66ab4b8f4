"""The network that the suites expect: their ports are free, and connections to missing hosts time out.

On a host where it differs, root gets a network namespace that has it.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from typing import Final

BROKER_PORT: Final = 6650
WEB_PORT: Final = 8080

_CLONE_NEWNET: Final = 0x40000000
_SET_UP: Final = ("ip link set lo up", "ip route add default dev lo")
"""Hosts outside must time out, as on any network, and not be unreachable at once."""
_NOBODY: Final = ("192.0.2.1", 1234)
"""An address for documentation (RFC 5737): suites connect to it to see their time limit, but some networks refuse."""
_SILENT_S: Final = 1.0


class PortsTakenError(Exception):
    """Another process holds a port of the suites; the text has the remedy."""


def claim_network() -> None:
    """Make sure of the network that the suites expect, if need be by a namespace of this process and its children.

    Call it before any thread starts: a namespace is a thread's own. No other host is reachable from one.

    Raises:
        PortsTakenError: a port is taken and this process may not have a network of its own.
    """
    taken = [port for port in (BROKER_PORT, WEB_PORT) if not _is_free(port)]
    if not taken and _is_silent(_NOBODY):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if shutil.which("ip") is not None and libc.unshare(_CLONE_NEWNET) == 0:
        for command in _SET_UP:
            subprocess.run(command.split(), check=True)
    elif taken:
        raise PortsTakenError(
            f"Port {' and '.join(map(str, taken))} must be free, because the suites connect to it: stop what listens "
            "there, or run as root with iproute2 installed, which gives the run a network of its own."
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
