"""The rate of automatic topic creation, limited because each topic stays in the metadata and enlarges commits."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.protocol.commands import ServerError

MAX_PER_CLIENT_S: Final = 100
"""Topics per second that one connection may create; all HTTP requests together have the same limit."""
MAX_PER_BROKER_S: Final = 1_000
"""Topics per second that all clients may create together."""
_PERIOD_S: Final = 2.0
"""Seconds whose allowance a burst may use at once, because an application creates all its topics when it starts."""
_PATIENCE_S: Final = 10.0


class CreationRate:
    """A limit on the creation of topics by one client, or by all. Call all methods in the broker's event loop.

    Args:
        topics_s: Topics per second.
    """

    def __init__(self, topics_s: int = MAX_PER_CLIENT_S) -> None:
        self._throttle = Throttle(round(topics_s * _PERIOD_S), period_s=_PERIOD_S)

    async def wait_for_turn(self) -> None:
        """Wait until one more topic may be created.

        Raises:
            ServerRefusalError: the wait would be too long; the client retries.
        """
        now_s = time.monotonic()
        if self._throttle.wait_s(now_s) > _PATIENCE_S:
            raise ServerRefusalError(ServerError.TooManyRequests, "Topics are created too fast: try again later.")
        wait_s = self._throttle.spend_tokens(now_s, 1, 0)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
