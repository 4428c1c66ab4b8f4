"""Limits of failed authentications, against fast guessing of credentials, and the sources by which failures count.

Pure.
"""

from __future__ import annotations

import ipaddress
from typing import Final

FREE_FAILURES: Final = 20
"""Number of failures of one source in `WINDOW_S` that are answered at once."""
WINDOW_S: Final = 60.0
DELAY_S: Final = 1.0
"""Wait before each further answer, in seconds."""
MAX_WAITING: Final = 100
"""Maximum number of answers, to all sources, that are delayed at the same time; further clients get no answer."""
MAX_SOURCES: Final = 10_000
"""Maximum number of sources that are counted; above it, the source whose window began first is dropped."""
_PREFIX_BITS: Final = 64


def source_of(host: str) -> str:
    """Return the source by which limits count an address (a host without a port).

    An IPv6 address counts by its /64 prefix, because a host may have all addresses of one prefix. An IPv4 address
    counts by itself, also in its IPv6-mapped form, and so does a text that is not an address.

    >>> source_of("2001:db8::8:1"), source_of("::ffff:10.0.0.7"), source_of("10.0.0.7")
    ('2001:db8::/64', '10.0.0.7', '10.0.0.7')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _PREFIX_BITS), strict=False))


class FailureCounts:
    """The failed authentications of each source."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, int]] = {}
        """Start of each source's window, and the failures in it; in the order of the starts."""

    def note(self, source: str, now_s: float) -> int:
        """Count a failure, and return the number of the source's failures in its present window of `WINDOW_S`.

        Args:
            source: The source of the client's address (`source_of`).
            now_s: The time of a monotonic clock, in seconds.
        """
        begun_s, failures = self._of.get(source, (now_s, 0))
        if now_s - begun_s >= WINDOW_S:
            begun_s, failures = now_s, 0
        if not failures:
            self._of.pop(source, None)
            if len(self._of) >= MAX_SOURCES:
                del self._of[next(iter(self._of))]
        self._of[source] = (begun_s, failures + 1)
        return failures + 1
