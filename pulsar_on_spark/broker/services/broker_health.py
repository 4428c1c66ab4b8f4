"""Measurements of the running broker for metrics and probes: its clients, a health check, delays of its event loop."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from pulsar_on_spark.broker.services.health import HealthCheck
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.model.latencies import Latencies

LOOP_EVERY_S: Final = 0.25
"""Time between two measurements of the event loop's delay, in seconds."""


class Clients(Protocol):
    """The connections of clients, as metrics count them."""

    @property
    def created(self) -> int:
        """Number of connections since the broker's start, including those that were refused."""

    def __len__(self) -> int:
        """Return the number of open connections."""


class BrokerHealth:
    """Measurements of the running broker, and its health check.

    Args:
        services: The broker's parts.
        connections: The connections of clients.

    Attributes:
        connections: The connections of clients.
        loop_delays: The delays with which the event loop wakes a task.
        health: The health check, which stores a message and reads it.
    """

    def __init__(self, services: Services, connections: Clients) -> None:
        self.connections = connections
        self.loop_delays = Latencies()
        self.health = HealthCheck(services)
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start measuring the delays of the event loop."""
        self._measuring = asyncio.create_task(self._measure(), name="event loop delays")

    async def stop(self) -> None:
        """Stop measuring, and cancel a running health check."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        await self.health.stop()

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LOOP_EVERY_S
            await asyncio.sleep(LOOP_EVERY_S)
            self.loop_delays.observe(max(loop.time() - due_s, 0.0))
