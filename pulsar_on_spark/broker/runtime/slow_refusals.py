"""The delay of a refusal after too many refusals to the same source."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.security.audit import host_of
from pulsar_on_spark.security.audit_log import Audit
from pulsar_on_spark.security.limits import DELAY_S, FREE_FAILURES, MAX_WAITING, WINDOW_S, FailureCounts, source_of


class SlowRefusals:
    """The delay of refusals of clients that failed to authenticate, in Pulsar's protocol and HTTP together.

    Args:
        audit: The audit, which notes the clients whose refusals wait.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._failures = FailureCounts()
        self._waiting = 0

    async def turn(self, address: str) -> bool:
        """Wait until a client may get its refusal, and return True; return False if too many clients wait for theirs.

        Args:
            address: The client's address, `host:port`.
        """
        failures = self._failures.note(source_of(host_of(address)), asyncio.get_running_loop().time())
        if failures <= FREE_FAILURES:
            return True
        if failures == FREE_FAILURES + 1:
            reason = f"more than {FREE_FAILURES} failures in {WINDOW_S:g} s: further answers wait {DELAY_S:g} s"
            self._audit.note_refusal(address, None, "SLOW_DOWN", reason=reason)
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(DELAY_S)
        finally:
            self._waiting -= 1
        return True
