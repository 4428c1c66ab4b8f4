"""The broker itself as metrics see it: its journals, its processes, how late its event loop is."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from pulsar_on_spark.broker.background.housekeeping import Housekeeping
from pulsar_on_spark.broker.observe.stored import Stored
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.services.health import HealthCheck
from pulsar_on_spark.model.latencies import Latencies

LOOP_EVERY_S: Final = 0.25
"""How often the event loop is asked how late it is."""


class Clients(Protocol):
    """The connections of clients, as far as metrics count them."""

    created: int

    def __len__(self) -> int:
        """Count those that are open."""


class Vitals:
    """What only metrics and health ask for.

    Args:
        journals: The broker's.
        connections: Its clients.
        stored: What is stored.
        housekeeping: Its passes.

    Attributes:
        loop_delays: How much later than asked for the event loop woke a task up.
        health: Whether the broker serves.
    """

    def __init__(
        self,
        journals: Journals,
        connections: Clients,
        stored: Stored,
        housekeeping: Housekeeping,
    ) -> None:
        self.journals = journals
        self.connections = connections
        self.stored = stored
        self.housekeeping = housekeeping
        self.loop_delays = Latencies()
        self.health = HealthCheck()
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look and to measure."""
        self.stored.start()
        self._measuring = asyncio.create_task(self._measure(), name="event loop delays")

    async def stop(self) -> None:
        """End."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        await self.health.stop()
        await self.stored.stop()

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LOOP_EVERY_S
            await asyncio.sleep(LOOP_EVERY_S)
            self.loop_delays.observe(max(loop.time() - due_s, 0.0))
